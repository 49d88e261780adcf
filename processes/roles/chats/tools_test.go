package chats

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/grammar"
	"github.com/tandem-llm/tandem/text/token"
)

// open returns the renderer of a template for the shipped model.
func open(t *testing.T, source string) conversation.Chat {
	t.Helper()
	const target = "../../../models/gopher-19m-q8_0.gguf"
	vocab, err := token.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "t.jinja")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := Open(path, "", target, vocab)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

const lines = "{% for m in messages %}<{{ m.role }}>{{ m.content }}" +
	"{% for c in m.tool_calls %}[{{ c.function.name }}]{% endfor %}{{ '\n' }}{% endfor %}" +
	"{% if add_generation_prompt %}<assistant>{% endif %}"

var (
	f     = json.RawMessage(`[{"type":"function","function":{"name":"f"}}]`)
	asked = []conversation.Message{{Role: "user", Content: "x"},
		{Role: "assistant", Content: "y", ToolCalls: json.RawMessage(`[{"id":"1","function":{"name":"f","arguments":"{\"a\": 1}"}}]`)},
		{Role: "tool", Content: "3"}, {Role: "tool", Content: "4"}}
)

// TestToolsInWords: a template without tools is told of them in the system message, and of calls and results as texts.
func TestToolsInWords(t *testing.T) {
	const rest = "<user>x\n<assistant>y\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n" +
		"<user><tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>\n<assistant>"
	described := describe(f)
	for _, tc := range []struct {
		of   conversation.Conversation
		want string
	}{
		{conversation.Conversation{Messages: asked}, rest},
		{conversation.Conversation{Messages: asked, Tools: f}, "<system>" + described + "\n" + rest},
		{conversation.Conversation{Messages: asked[:1], Tools: f, Must: true}, "<system>" + described + "\n\n" +
			"Answer with a call of the function f, and with nothing else.\n<user>x\n<assistant>"},
		{conversation.Conversation{Messages: append([]conversation.Message{{Role: "system", Content: "s"}}, asked[0]), Tools: f},
			"<system>s\n\n" + described + "\n<user>x\n<assistant>"},
	} {
		p, err := open(t, lines).Prompt(t.Context(), tc.of)
		if err != nil || p.Text != tc.want {
			t.Errorf("%+v: %v, got\n%s\nwant\n%s", tc.of, err, p.Text, tc.want)
		}
		if (p.Output.Reader != nil) != (len(tc.of.Tools) > 0) {
			t.Errorf("%+v: the answer is read for calls: %v", tc.of, p.Output.Reader != nil)
		}
	}
	p, err := open(t, lines+"{{ tools|length }}").Prompt(t.Context(), conversation.Conversation{Messages: asked, Tools: f})
	if want := "<user>x\n<assistant>y[f]\n<tool>3\n<tool>4\n<assistant>1"; err != nil || p.Text != want {
		t.Errorf("a template with tools: %v, got %q, want %q", err, p.Text, want)
	}
}

// TestAnswerGoesOn: the beginning of an answer is continued, whether the template trims contents or not.
func TestAnswerGoesOn(t *testing.T) {
	said := []conversation.Message{{Role: "user", Content: "So: x"}, {Role: "assistant", Content: "So: "}}
	for source, want := range map[string]string{lines: "<user>So: x\n<assistant>So: ",
		"{% for m in messages %}{{ m.content|trim }}|{% endfor %}": "So: x|So:"} {
		p, err := open(t, source).Prompt(t.Context(), conversation.Conversation{Messages: said, Continue: true})
		if err != nil || p.Text != want {
			t.Errorf("%v, got %q, want %q", err, p.Text, want)
		}
		if n := len(p.Tokens()); n == 0 {
			t.Error("no tokens")
		}
	}
}

// TestThoughts: an answer is read for thoughts where the template shows them, and begins within one where the prompt has opened it.
func TestThoughts(t *testing.T) {
	ask := conversation.Conversation{Messages: asked[:1]}
	for source, want := range map[string]string{
		"{{ messages[0].content }}<think>\n":                      `[{1 0 a} {0 0 b}]`,
		"{{ messages[0].content }}{# <think> #}":                  `[{0 0 a</think>b}]`,
		"{{ messages[0].content }}<think>\n\n</think>\n\n":        `[{0 0 a</think>b}]`,
		"{{ messages[0].content }}{% if false %}<think>{%endif%}": `[{0 0 a</think>b}]`,
	} {
		p, err := open(t, source).Prompt(t.Context(), ask)
		if err != nil || p.Output.Reader == nil {
			t.Fatalf("%s: %v, the answer is read: %v", source, err, p.Output.Reader != nil)
		}
		r := p.Output.Reader()
		all := slices.Clone(r.Read("a</think>b"))
		if got := fmt.Sprint(append(all, r.End(false)...)); got != want {
			t.Errorf("%s: got %s, want %s", source, got, want)
		}
	}
}

// TestShortIDs: a template with Mistral's marker is given ids of nine letters and digits, equal ones for a call and its result.
func TestShortIDs(t *testing.T) {
	const source = "{# [TOOL_CALLS] #}{{ tools|length }}{% for m in messages %}{{ m.tool_call_id }}" +
		"{% for c in m.tool_calls %}{{ c.id }}|{% endfor %}{% endfor %}"
	talk := func(id string) conversation.Conversation {
		call, _ := json.Marshal([]any{map[string]any{"id": id, "type": "function",
			"function": map[string]any{"name": "f", "arguments": "{}"}}})
		return conversation.Conversation{Tools: f, Messages: []conversation.Message{{Role: "assistant", ToolCalls: call},
			{Role: "tool", ToolCallID: id}}}
	}
	const long = "toolu_01A09q90qw90lq917835lq9"
	for id, want := range map[string]string{"aB3456789": "aB3456789", long: shortID(long)} {
		p, err := open(t, source).Prompt(t.Context(), talk(id))
		if err != nil || p.Text != "1"+want+"|"+want || len(want) != 9 || !p.Output.ShortIDs {
			t.Errorf("%s: %q, %v, want %s twice", id, p.Text, err, want)
		}
	}
}

// TestAllowedOutputs: what a conversation asks for becomes the grammar of the whole output: an answer behind the thoughts, or a call in the
// form that the template shows. Nothing asked for: all outputs.
func TestAllowedOutputs(t *testing.T) {
	answer := &grammar.Spec{Choices: []string{"yes"}}
	const turn, thinks = "{{ messages[0].content }}{# <tool_call> #}", "{{ messages[0].content }}{# <tool_call> #}<think>\n"
	call := "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"
	for _, c := range []struct {
		source  string
		of      conversation.Conversation
		yes, no string // outputs; both "": all are allowed
	}{
		{turn, conversation.Conversation{}, "", ""},
		{turn, conversation.Conversation{Tools: f}, "", ""},
		{turn, conversation.Conversation{Answer: answer}, "yes", "no"},
		{thinks, conversation.Conversation{Answer: answer}, "a</think>\n\nyes", "yes"},
		{turn, conversation.Conversation{Tools: f, Must: true}, call, "yes"},
		{thinks, conversation.Conversation{Tools: f, Must: true}, "a</think>\n\n" + call, call},
		{turn, conversation.Conversation{Tools: f, Answer: answer}, call, "no"},
		{turn, conversation.Conversation{Tools: f, Strict: map[string]bool{"f": true}}, "So.\n" + call,
			"So.\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"},
	} {
		c.of.Messages = asked[:1]
		p, err := open(t, c.source).Prompt(t.Context(), c.of)
		if err != nil {
			t.Fatal(err)
		}
		if p.Output.Allowed == nil || c.yes == "" {
			if p.Output.Allowed != nil || c.yes != "" {
				t.Errorf("%s, %+v: %+v is allowed", c.source, c.of, p.Output.Allowed)
			}
			continue
		}
		g, err := grammar.Compile(*p.Output.Allowed, grammar.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		state, yes := g.Start().Next([]byte(c.yes))
		wrong, no := g.Start().Next([]byte(c.no))
		if !yes || !state.Done() || no && wrong.Done() {
			t.Errorf("%s, %+v: %q %v, %q %v", c.source, c.of, c.yes, yes && state.Done(), c.no, no)
		}
	}
}
