package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// written is a generator of answers to conversations of any length.
type written func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error)

func (f written) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	return f(ctx, r, s)
}

// large gives a server room for long conversations.
func large(c *Config) { c.Limits.Context = 1 << 12 }

// writes returns a generator that writes text in pieces of n bytes, and then ends as it is told.
func writes(text string, n int, finish tandem.FinishReason) written {
	return func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
		res := tandem.Result{Identity: "fp_1", Finish: finish, PromptTokens: len(r.Tokens)}
		err := s.Started(tandem.Started{Request: r})
		for from := 0; from < len(text) && err == nil; from += n {
			err = s.Delta(tandem.Delta{Text: text[from:min(from+n, len(text))], Tokens: []tandem.Token{'x'}, Origins: []tandem.Origin{0}})
			res.OutputTokens++
		}
		return res, err
	}
}

const (
	twoCalls = "<think>Hm.</think>I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\\ny\"}}\n</tool_call>\n" +
		"<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"
	fAndG = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}},` +
		`{"type":"web_search"},{"type":"function","function":{"name":"g","parameters":{"$ref":"#/$defs/x","$defs":{"x":{}}}}}]`
)

// seen is what a client makes of an answer.
type seen struct {
	content, thought, finish string
	calls                    []string // name and arguments
	ids                      map[string]bool
}

// streamed asks for a stream and puts it together as clients do.
func (s *site) streamed(t *testing.T, body string) seen {
	t.Helper()
	_, all := s.ask(t, "POST", "/v1/chat/completions", body)
	got := seen{ids: map[string]bool{}}
	for _, line := range strings.Split(all, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var c struct {
			Choices []struct {
				Delta struct {
					Content   string `json:"content"`
					Reasoning string `json:"reasoning_content"`
					Calls     []struct {
						Index    *int `json:"index"`
						ID, Type string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				} `json:"delta"`
				Finish string `json:"finish_reason"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		for _, x := range c.Choices {
			got.content, got.thought = got.content+x.Delta.Content, got.thought+x.Delta.Reasoning
			if x.Finish != "" {
				got.finish += x.Finish + "."
			}
			for _, call := range x.Delta.Calls {
				switch n := len(got.calls); {
				case call.Index == nil:
					t.Errorf("a call without an index: %s", data)
				case call.Function.Name != "" && *call.Index == n && call.ID != "" && call.Type == "function":
					got.calls, got.ids[call.ID] = append(got.calls, call.Function.Name+" "), true
				case call.Function.Name != "" || *call.Index != n-1 || call.ID != "":
					t.Errorf("call %d of %d: %s", *call.Index, n, data)
				}
				got.calls[len(got.calls)-1] += call.Function.Arguments
			}
		}
	}
	return got
}

// TestCalls: calls and thoughts of an answer, streamed in pieces of every size and as a whole.
func TestCalls(t *testing.T) {
	body := func(fields string) string {
		return `{"messages":[{"role":"user","content":"hi"}],` + fAndG + fields + `}`
	}
	for n := range len(twoCalls) {
		s := serve(t, writes(twoCalls, n+1, tandem.FinishStop), large)
		got := s.streamed(t, body(`,"stream":true`))
		if fmt.Sprintf("%q %q %q %q", got.thought, got.content, got.calls, got.finish) !=
			`"Hm." "I look." ["f {\"a\": \"x\\ny\"}" "g {}"] "tool_calls."` || len(got.ids) != 2 {
			t.Fatalf("in pieces of %d bytes: %+v", n+1, got)
		}
	}
	s := serve(t, writes(twoCalls, 7, tandem.FinishStop), large)
	_, all := s.ask(t, "POST", "/v1/chat/completions", body(""))
	if want := `"message":{"role":"assistant","content":"I look.","reasoning_content":"Hm.","tool_calls":[{"id":"call_`; !strings.Contains(all, want) ||
		!strings.Contains(all, `"finish_reason":"tool_calls"`) {
		t.Errorf("the whole answer is %s: want %s", all, want)
	}
	answer, all := s.ask(t, "POST", "/v1/chat/completions", body(`,"parallel_tool_calls":false`))
	if strings.Contains(all, `"g"`) || !strings.Contains(answer.Header.Get("X-Tandem-Ignored"), "web_search") {
		t.Errorf("one call: %s, ignored %q", all, answer.Header.Get("X-Tandem-Ignored"))
	}
	if _, all := s.ask(t, "POST", "/v1/chat/completions", body(`,"tool_choice":"none"`)); !strings.Contains(all, `<tool_call>`) {
		t.Errorf("no calls are wanted: %s", all)
	}

	s = serve(t, writes("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", 3, tandem.FinishStop), large)
	if _, all := s.ask(t, "POST", "/v1/chat/completions", body("")); !strings.Contains(all, `"content":null`) {
		t.Errorf("a call alone: %s", all)
	}
}

// TestThoughtTokens: the tokens of thoughts are the same whole and streamed, in chats and responses.
func TestThoughtTokens(t *testing.T) {
	count := regexp.MustCompile(`"reasoning_tokens":(\d+)`)
	for bytes, want := range map[int]string{1: "11", 3: "4", len(twoCalls): "0"} { // with the end's marker; 0: 3 bytes of one token
		s := serve(t, writes(twoCalls, bytes, tandem.FinishStop), large)
		for _, c := range []struct{ path, body string }{
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],` + fAndG + `%s}`},
			{"/v1/responses", `{"input":"hi","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]%s}`},
		} {
			for _, fields := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
				_, all := s.ask(t, "POST", c.path, fmt.Sprintf(c.body, fields))
				if got := count.FindAllStringSubmatch(all, -1); len(got) != 1 || got[0][1] != want {
					t.Errorf("%s%s in pieces of %d bytes: %v tokens of thoughts, want %s: %s", c.path, fields, bytes, got, want, all)
				}
			}
		}
	}
	s := serve(t, writes("<think>abc</think>", 1, tandem.FinishStop), large)
	_, all := s.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"n":2,`+fAndG+`}`)
	if got := count.FindStringSubmatch(all); got == nil || got[1] != "22" {
		t.Errorf("two choices: %v tokens of thoughts: %s", got, all)
	}
}
