package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

const (
	callsText = "I look.\n<tool_call>\n{\"name\": \"p\", \"arguments\": {\"input\": \"*** \\\"Begin\\\"\\n\"}}\n</tool_call>\n" +
		"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"input\": 5}}\n</tool_call>"
	asksCustom = `{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"custom","custom":{"name":"p","description":"d",` +
		`"format":{"type":"grammar","grammar":{"syntax":"lark","definition":"start: \"x\""}}}},{"type":"function","function":{"name":"f"}}]%s}`
)

// toolCalls returns the calls of a stream of chunks, put together by their indexes as clients do: the fields that come first, then texts.
func toolCalls(t *testing.T, all []event) string {
	t.Helper()
	type custom struct{ Name, Input *string }
	type function struct{ Name, Arguments string }
	var out []string
	for _, e := range all {
		var c struct {
			Choices []struct {
				Delta struct {
					Calls []struct {
						Index    int
						ID, Type string
						Custom   *custom
						Function *function
					} `json:"tool_calls"`
				}
			}
		}
		if e.data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(e.data), &c); err != nil {
			t.Fatalf("%s: %v", e.data, err)
		}
		for _, x := range c.Choices {
			for _, call := range x.Delta.Calls {
				if (call.Custom == nil) == (call.Function == nil) || call.Custom != nil && call.Custom.Input == nil {
					t.Errorf("a piece of a call is %s: want custom with an input, or function", e.data)
					continue
				}
				if call.ID != "" {
					out = append(out, call.Type)
				}
				if call.Index != len(out)-1 {
					t.Fatalf("%s behind %d calls", e.data, len(out))
				}
				if call.Function != nil {
					out[call.Index] += " " + call.Function.Name + call.Function.Arguments
					continue
				}
				if call.Custom.Name != nil {
					out[call.Index] += " " + *call.Custom.Name + " "
				}
				out[call.Index] += *call.Custom.Input
			}
		}
	}
	return fmt.Sprintf("%q", out)
}

// TestCustomToolInChat: a tool that takes a text is called with it in chat completions, whole and streamed in pieces of every size.
func TestCustomToolInChat(t *testing.T) {
	const want = `["custom p *** \"Begin\"\n" "function f {\"input\": 5}"]`
	for n := 1; n < len(callsText); n += 5 {
		s := serve(t, writes(callsText, n, tandem.FinishStop), large)
		_, all := s.ask(t, "POST", "/v1/chat/completions", fmt.Sprintf(asksCustom, `,"stream":true`))
		if got := toolCalls(t, events(t, strings.NewReader(all))); got != want || !strings.Contains(all, `"finish_reason":"tool_calls"`) {
			t.Fatalf("in pieces of %d bytes: %s, want %s: %s", n, got, want, all)
		}
	}
	s := serve(t, writes(callsText, 7, tandem.FinishStop), func(c *Config) {
		large(c)
		c.Strict = true
	})
	answer, all := s.ask(t, "POST", "/v1/chat/completions", fmt.Sprintf(asksCustom, ""))
	var a struct {
		Choices []struct {
			Message struct {
				Calls []map[string]json.RawMessage `json:"tool_calls"`
			}
		}
	}
	if err := json.Unmarshal([]byte(all), &a); err != nil || answer.StatusCode != http.StatusOK || len(a.Choices[0].Message.Calls) != 2 {
		t.Fatalf("whole: %s %s: %v", answer.Status, all, err)
	}
	for i, want := range []string{`"custom" {"name":"p","input":"*** \"Begin\"\n"} `, `"function"  {"name":"f","arguments":"{\"input\": 5}"}`} {
		c := a.Choices[0].Message.Calls[i]
		if got := fmt.Sprintf("%s %s %s", c["type"], c["custom"], c["function"]); got != want || len(c) != 3 || len(c["id"]) < 5 {
			t.Errorf("call %d is %s, want %s", i, got, want)
		}
	}
}

// TestCustomToolTakenUp: a stream that broke off within the text of a call goes on behind it.
func TestCustomToolTakenUp(t *testing.T) {
	want := ""
	takenUpEverywhere(t, "/v1/chat/completions", fmt.Sprintf(asksCustom, `,"stream":true`), writes(callsText, 1, tandem.FinishStop),
		writes(callsText, 60, tandem.FinishStop), func(all []event) {
			got := toolCalls(t, all)
			if want == "" {
				want = got
			}
			if got != want {
				t.Errorf("%s\nwant\n%s", got, want)
			}
		})
}

// TestCustomToolsOffered: what a chat says of tools that take a text reaches the model, in both forms; what has no name is refused.
func TestCustomToolsOffered(t *testing.T) {
	s, prompt := recorder(t)
	const (
		body  = `{"messages":[{"role":"user","content":"a"}],"tools":[%s]%s}`
		f     = `{"type":"function","function":{"name":"f"}}`
		told  = `d\n\nThe argument input is a text that follows this grammar (regex):\n^x$`
		input = `"parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}`
	)
	for _, c := range []struct{ tools, choice, reads, lacks string }{
		{`{"type":"custom","custom":{"name":"p","description":"d","format":{"type":"grammar","grammar":{"syntax":"regex","definition":"^x$"}}}}`,
			"", told, ""},
		{`{"type":"custom","name":"p","description":"d","format":{"type":"grammar","syntax":"regex","definition":"^x$"}}`, "", told, ""},
		{`{"type":"custom","custom":{"name":"p","description":"d"}}`, "", `"description":"d",` + input, "grammar"},
		{`{"type":"custom","custom":{"name":"p","format":{"type":"text"}}}`, "", `{"name":"p",` + input, "grammar"},
		{`{"type":"custom","custom":{"name":"p","format":"odd"}}`, "", `{"name":"p",` + input, "grammar"},
		{`{"type":"custom","custom":{"name":"p"}},` + f, `,"tool_choice":{"type":"custom","custom":{"name":"p"}}`, `"name":"p"`, `"name":"f"`},
		{`{"type":"custom","custom":{"name":"p"}},` + f, `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",` +
			`"tools":[{"type":"custom","custom":{"name":"p"}}]}}`, `"name":"p"`, `"name":"f"`},
	} {
		answer, all := s.ask(t, "POST", "/v1/chat/completions", fmt.Sprintf(body, c.tools, c.choice))
		if got := prompt(); answer.StatusCode != http.StatusOK || !strings.Contains(got, c.reads) ||
			c.lacks != "" && strings.Contains(got, c.lacks) || strings.Contains(answer.Header.Get("X-Tandem-Ignored"), "tools[]") {
			t.Errorf("%s%s: %s %s, read as %s, want %s", c.tools, c.choice, answer.Status, all, got, c.reads)
		}
	}
	for tool, param := range map[string]string{
		`{"type":"custom"}`: "tools[0].custom.name", `{"type":"custom","custom":{}}`: "tools[0].custom.name",
		`{"type":"custom","custom":{"name":5}}`: "tools[0].custom.name", `{"type":"custom","custom":[]}`: "tools[0].custom",
	} {
		p := s.refused(t, "POST", "/v1/chat/completions", fmt.Sprintf(body, tool, ""))
		if p.status != http.StatusBadRequest || p.Param != param {
			t.Errorf("%s: %+v, want 400 of %s", tool, p, param)
		}
	}
}
