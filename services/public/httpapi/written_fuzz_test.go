package httpapi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// FuzzEveryAPI: whatever a model writes, in whatever form and pieces, every API answers it the same, whole and streamed: the same thoughts,
// texts and calls in all of them, and the same end in both.
func FuzzEveryAPI(f *testing.F) {
	marks := []string{"", "<function= <parameter=", "<|start_header_id|>", "<|channel|> <|message|>", "[TOOL_CALLS]", "<arg_key>",
		"<｜tool▁calls▁begin｜>", "<start_function_call>"}
	for i, text := range []string{twoCalls, "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>x",
		`{"name": "g"}; {"name": "f", "parameters": {"a": "é"}}`, "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B",
		`[TOOL_CALLS][{"name": "f", "arguments": {"a": "b"}}]`, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>b</arg_value>\n</tool_call>",
		"<think>a</think>\n\n<think>b", "```json\n{\"name\": \"g\"}\n```"} {
		f.Add(text, byte(1+i), byte(i), i%3 == 0, i != 6)
	}
	var text, mark string
	var size int
	var finish tandem.FinishReason
	g := written(func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
		res := tandem.Result{Identity: "fp_1", Finish: finish, PromptTokens: len(r.Tokens)}
		err := s.Started(tandem.Started{Request: r})
		for piece := []rune(text); len(piece) > 0 && err == nil; {
			n := min(size, len(piece))
			err = s.Delta(tandem.Delta{Text: string(piece[:n]), Tokens: []tandem.Token{'x'}, Origins: []tandem.Origin{0}})
			piece, res.OutputTokens = piece[n:], res.OutputTokens+1
		}
		return res, err
	})
	chat := &shows{}
	s := serve(f, g, func(c *Config) { large(c); c.Chat = chat })
	f.Fuzz(func(t *testing.T, writes string, n, form byte, cut, tools bool) {
		text, size, finish = strings.ToValidUTF8(writes, "?"), 1+int(n), tandem.FinishStop
		if mark = marks[int(form)%len(marks)]; len(text) > 2000 {
			return
		}
		if chat.marks = mark; cut {
			finish = tandem.FinishLength
		}
		openai := fmt.Sprintf(`,"tools":[{"type":"function","function":{"name":"f","parameters":%s}},`+
			`{"type":"function","function":{"name":"g"}}]`, schemaOfF)
		flat := fmt.Sprintf(`,"tools":[{"type":"function","name":"f","parameters":%s},{"type":"function","name":"g"}]`, schemaOfF)
		anthropic := fmt.Sprintf(`,"tools":[{"name":"f","input_schema":%s},{"name":"g","input_schema":{"type":"object"}}]`, schemaOfF)
		if !tools {
			openai, flat, anthropic = "", "", ""
		}
		first := ""
		for _, api := range []struct {
			name, tools string
			ask         func(*testing.T, string, bool) reply
		}{{"chat", openai, s.asked}, {"responses", flat, s.askedResponses}, {"messages", anthropic, s.askedMessages},
			{"ollama", openai, s.askedOllama}} {
			whole, stream := api.ask(t, api.tools, false), api.ask(t, api.tools, true)
			if fmt.Sprintf("%q", whole) != fmt.Sprintf("%q", stream) {
				t.Fatalf("%s of %q, form %q, in %d: whole %q, streamed %q", api.name, text, mark, size, whole, stream)
			}
			whole.end = ""
			if got := fmt.Sprintf("%q", whole); first == "" {
				first = got
			} else if got != first {
				t.Fatalf("%s of %q, form %q: %s, chat %s", api.name, text, mark, got, first)
			}
		}
	})
}
