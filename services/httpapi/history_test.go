package httpapi

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// recorder is a server that keeps the latest prompt.
func recorder(t *testing.T) (s *site, prompt func() string) {
	var last tandem.Request
	s = serve(t, written(func(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
		last = r
		return writes("ok", 1, tandem.FinishStop)(ctx, r, sink)
	}), large)
	return s, func() string { return strings.TrimPrefix((alphabet{}).DecodeWritten(last.Tokens), "<s>") }
}

// TestChoiceIsNotForced: a choice that the prompt asks for and nothing forces is named, in each API that has it.
func TestChoiceIsNotForced(t *testing.T) {
	s, _ := recorder(t)
	const (
		chat      = `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":`
		responses = `{"input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":`
		messages  = `{"max_tokens":5,"messages":[{"role":"user","content":"a"}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":`
	)
	for _, c := range []struct {
		path, body string
		named      bool
	}{
		{"/v1/chat/completions", chat + `"required"}`, true}, {"/v1/chat/completions", chat + `"any"}`, true},
		{"/v1/chat/completions", chat + `{"type":"function","function":{"name":"f"}}}`, true},
		{"/v1/chat/completions", chat + `{"type":"allowed_tools","mode":"required","tools":[{"name":"f"}]}}`, true},
		{"/v1/chat/completions", chat + `{"type":"allowed_tools","mode":"auto","tools":[{"name":"f"}]}}`, false},
		{"/v1/chat/completions", chat + `"auto"}`, false}, {"/v1/chat/completions", chat + `"none"}`, false},
		{"/v1/responses", responses + `"required"}`, true}, {"/v1/responses", responses + `{"type":"function","name":"f"}}`, true},
		{"/v1/responses", responses + `"auto"}`, false},
		{"/v1/messages", messages + `{"type":"any"}}`, true}, {"/v1/messages", messages + `{"type":"tool","name":"f"}}`, true},
		{"/v1/messages", messages + `{"type":"auto"}}`, false},
		{"/apply-template", chat + `"required"}`, true},
	} {
		answer, all := s.ask(t, "POST", c.path, c.body)
		if ignored := answer.Header.Get("X-Tandem-Ignored"); answer.StatusCode != http.StatusOK ||
			strings.Contains(ignored, "tool_choice") != c.named {
			t.Errorf("%s %s: %s, ignored %q: %s", c.path, c.body, answer.Status, ignored, all)
		}
	}
}
