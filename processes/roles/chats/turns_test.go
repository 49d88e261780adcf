package chats

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/text/chat"
	"github.com/tandem-llm/tandem/text/token"
)

// alternate refuses turns that do not alternate, as the templates of Gemma and Llama 2 do; %s is a condition of messages that count.
const alternate = "{%% for m in messages if %s %%}{%% if (m.role == 'user') != (loop.index0 %% 2 == 0) %%}" +
	"{{ raise_exception('roles must alternate') }}{%% endif %%}{%% endfor %%}"

var (
	strictly = fmt.Sprintf(alternate, "true")
	toolRole = fmt.Sprintf(alternate, "m.role != 'tool' and not m.tool_calls") // and calls are no turn: Mistral's
	// first shows the system's text at the beginning of the first turn, and takes none later: Gemma 3, Llama 2, Mistral.
	first = "{% set s = '' %}{% if messages[0].role == 'system' %}" +
		"{% set s = messages[0].content + '|' %}{% set messages = messages[1:] %}{% endif %}"
	// with shows tools, calls and results.
	with = "{% for m in messages %}<{{ m.role }}>{% if loop.first %}{{ s }}{% endif %}" +
		"{% if m.tool_calls %}{% for c in m.tool_calls %}" +
		"[{{ c.function.name }} {{ c.function.arguments|tojson }}]{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}" +
		"{% if tools %}{{ tools|length }}{% endif %}"
	// llama 3.1 and gpt-oss show one call a turn.
	one = "{% for m in messages if m.tool_calls|length > 1 %}{{ raise_exception('single tool-calls') }}{% endfor %}" + with
	cut = "{% for m in messages %}<{{ m.role }}>{{ m.content }}" +
		"{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments|tojson }}{% endif %}" +
		"{% endfor %}{% if tools %}{{ tools|length }}{% endif %}"
	lastSystem = "{% set ns = namespace(s='') %}" +
		"{% for m in messages if m.role == 'system' %}{% set ns.s = m.content %}{% endfor %}{{ ns.s }}" +
		"{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
	noSystem = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
	plain    = "{% for m in messages %}<{{ m.role }}>{% if loop.first %}{{ s }}{% endif %}{{ m.content }}{% endfor %}"
)

// talk makes messages of "role text" and, of calls, "call id id…"; results are "tool id text".
func talk(turns ...string) (out []conversation.Message) {
	for _, turn := range turns {
		role, text, _ := strings.Cut(turn, " ")
		m := conversation.Message{Role: role, Content: text}
		switch role {
		case "call":
			m.Role, m.Content = "assistant", ""
			var all []conversation.ToolCall
			for _, id := range strings.Fields(text) {
				all = append(all, conversation.ToolCall{ID: id, Function: conversation.FunctionCall{Name: "f", Arguments: `{"a": "` + id + `"}`}})
			}
			m.ToolCalls, _ = conversation.Marshal(all)
		case "tool":
			m.ToolCallID, m.Content, _ = strings.Cut(text, " ")
		}
		out = append(out, m)
	}
	return out
}

// TestTurns: what a template refuses, or shows without one of its texts, it gets in a form that it shows.
func TestTurns(t *testing.T) {
	for _, c := range []struct{ name, template, turns, want string }{
		{"two of the user", strictly + plain, "user a; user b; assistant c; user d; user e", "<user>a\n\nb<assistant>c<user>d\n\ne"},
		{"two of the assistant", strictly + plain, "user a; assistant b; assistant c; user d", "<user>a<assistant>b\n\nc<user>d"},
		{"an empty one", strictly + plain, "user a; user ; user b", "<user>a\n\nb"},
		{"a greeting", strictly + plain, "assistant hi; user a", "<user><assistant>hi<user>a"},
		{"system and greeting", first + strictly + plain, "system s; assistant hi; user a", "<user>s|<assistant>hi<user>a"},
		{"two of the system", first + strictly + plain, "system s; system t; user a", "<user>s\n\nt|a"},
		{"the system later", first + strictly + plain, "system s; user a; assistant b; system t; user c",
			"<user>s|a<assistant>b<user>t\n\nc"},
		{"the system at the end", first + strictly + plain, "system s; user a; system t", "<user>s|a\n\nt"},
		{"a result and the user", first + strictly + plain, "user q; call 1 2; tool 1 r; tool 2 p; user n; user m", "<user>q<assistant>" +
			"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"1\"}}\n</tool_call>\n" +
			"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"2\"}}\n</tool_call>" +
			"<user><tool_response>\nr\n</tool_response>\n<tool_response>\np\n</tool_response>\n\nn\n\nm"},
		{"no system", noSystem + strictly + plain, "system s; user a; assistant b; system t; user c",
			"<user>s\n\na<assistant>b<user>t\n\nc"},
		{"no system, other turns as they are", noSystem + plain, "system s; system t; user a; user b", "<user>s\n\nt\n\na<user>b"},
		{"no system, a greeting", noSystem + strictly + plain, "system s; assistant hi; user a", "<user>s<assistant>hi<user>a"},
		{"the system dropped", "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
			"system s; user a; user b", "<user>s\n\na<user>b"},
		{"the last of the system alone", lastSystem, "system s; system t; user a; assistant b; system u; user c",
			"s\n\nt<user>a<assistant>b<user>u<user>c"},
		{"Mistral's: a result and the user", first + toolRole + with, "system s; user a; call 1; tool 1 r; user b; assistant c; user d",
			"<user>s|a<assistant>[f {\"a\": \"1\"}]<tool>r\n\nb<assistant>c<user>d"},
		{"Mistral's: no result", first + toolRole + with, "user a; call 1 2; tool 1 r; user b; call 3",
			"<user>a<assistant>[f {\"a\": \"1\"}][f {\"a\": \"2\"}]<tool>r<tool>no result\n\nb<assistant>[f {\"a\": \"3\"}]"},
		{"Mistral's: text and call", toolRole + with, "user a; assistant b; call 1; call 2; tool 1 r; tool 2 p",
			"<user>a<assistant>[f {\"a\": \"1\"}][f {\"a\": \"2\"}]<tool>r<tool>p"},
		{"one call a turn", one, "user a; call 1 2 3; tool 1 r; tool 3 p; tool 9 q; user b", "<user>a<assistant>[f {\"a\": \"1\"}]<tool>r" +
			"<assistant>[f {\"a\": \"2\"}]<assistant>[f {\"a\": \"3\"}]<tool>p<tool>q<user>b"},
		{"the first call alone", cut, "user a; call 1 2; tool 1 r; tool 2 p",
			`<user>a<assistant>{"a": "1"}<tool>r<assistant>{"a": "2"}<tool>p`},
		{"no calls", plain + "{% if tools %}{{ tools|length }}{% endif %}", "user a; call 1; tool 1 r",
			"<user>a<assistant><tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"1\"}}\n</tool_call>" +
				"<user><tool_response>\nr\n</tool_response>"},
	} {
		turns := talk(strings.Split(c.turns, "; ")...)
		before, _ := json.Marshal(turns)
		p, err := open(t, c.template).Prompt(t.Context(), conversation.Conversation{Messages: turns})
		if err != nil || p.Text != c.want {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", c.name, err, p.Text, c.want)
		}
		if after, _ := json.Marshal(turns); string(after) != string(before) {
			t.Errorf("%s: the caller's messages are %s now, and were %s", c.name, after, before)
		}
	}
}

// TestTurnsAsTheyAre: templates that show every conversation are given each as it is, so that their prompts stay the same bytes.
func TestTurnsAsTheyAre(t *testing.T) {
	const chatML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}" +
		"{% for c in m.tool_calls %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}" +
		"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
	everything := talk("system s", "system t", "assistant hi", "assistant ho", "user a", "user b", "system u", "call 1 2", "tool 2 p",
		"tool 1 r", "user c", "call 3", "user d", "system v")
	for name, source := range map[string]string{
		"ChatML with tools": chatML + "{% if tools %}{{ tools|length }}{% endif %}",
		"gpt-oss' markers": "{% for m in messages %}<|start|>" +
			"{{ m.role }}<|message|>{{ m.content }}{{ m.tool_calls }}<|end|>{% endfor %}{{ tools }}",
		"Llama 3's markers": "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content|trim }}<|eot_id|>" +
			"{{ m.tool_calls|tojson }}{% endfor %}{{ tools }}",
		"the first message alone": "{{ messages[0].content }}{{ tools }}", "the last": "{{ messages[-1].content }}{{ tools }}",
		"refuses all": "{{ raise_exception('no') }}", "nothing": "{{ tools }}",
		"a list": "{{ messages|map(attribute='content')|join(',') }}{{ tools }}" +
			"{{ messages|map(attribute='tool_calls')|list }}",
	} {
		template, err := chat.Parse(source, chat.Special{})
		if err != nil {
			t.Fatal(err)
		}
		var turns []chat.Message
		for _, m := range everything {
			turns = append(turns, chat.Message{Role: m.Role, Content: m.Content, ToolCallID: m.ToolCallID, ToolCalls: m.ToolCalls})
		}
		want, refusal := template.Render(t.Context(), turns, chat.Options{AddGenerationPrompt: true})
		got, err := open(t, source).Prompt(t.Context(), conversation.Conversation{Messages: everything})
		if fmt.Sprint(err) != fmt.Sprint(refusal) || got.Text != want.Text {
			t.Errorf("%s: %v, got\n%s\nwant\n%s", name, err, got.Text, want.Text)
		}
	}
	const want = "<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
	if p, err := open(t, chatML).Prompt(t.Context(), conversation.Conversation{Messages: talk("user a", "user b")}); err != nil ||
		p.Text != want {
		t.Errorf("ChatML: %v, got %q, want %q", err, p.Text, want)
	}
}

// TestTurnsGoOn: a joined answer is continued at its end.
func TestTurnsGoOn(t *testing.T) {
	p, err := open(t, strictly+plain).Prompt(t.Context(), conversation.Conversation{Messages: talk("user a", "assistant b", "assistant c "),
		Continue: true})
	if want := "<user>a<assistant>b\n\nc "; err != nil || p.Text != want {
		t.Errorf("%v, got %q, want %q", err, p.Text, want)
	}
}

// TestRealTurns: the templates of real models get the conversations of the goldens as they are, so their prompts are what Jinja2 makes.
func TestRealTurns(t *testing.T) {
	for name, file := range testkit.RealGoldens {
		t.Run(name, func(t *testing.T) {
			path := testkit.RealModel(t, file)
			var want struct {
				Chats []struct {
					Messages []conversation.Message
					Tools    json.RawMessage
					Prompt   bool `json:"add_generation_prompt"`
					Text     string
				}
			}
			testkit.RealGolden(t, "../../..", name, &want)
			vocab, err := token.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			c, _, err := Open("", "", path, vocab)
			if err != nil || c == nil {
				t.Skipf("%s has no template: %v", file, err)
			}
			for i, chat := range want.Chats {
				if !chat.Prompt || string(chat.Tools) != "null" && !c.Reads("tools") {
					continue
				}
				if string(chat.Tools) == "null" {
					chat.Tools = nil
				}
				got, err := c.Prompt(t.Context(), conversation.Conversation{Messages: chat.Messages, Tools: chat.Tools})
				if err != nil || got.Text != chat.Text {
					t.Errorf("conversation %d: %v\n%q\nJinja2 renders\n%q", i, err, got.Text, chat.Text)
				}
			}
			begun := time.Now()
			needs := tried(t.Context(), c.(room).template)
			t.Logf("%s: %+v, in %v", name, needs, time.Since(begun))
		})
	}
}
