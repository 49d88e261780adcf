package chats

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/token"
)

// TestVariables: the template is given the variables of the flag, those of the request before them, and the tools.
func TestVariables(t *testing.T) {
	const target = "../../../models/gopher-19m-q8_0.gguf"
	vocab, err := token.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "t.jinja")
	source := "{{ a }} {{ b|tojson }} {{ tools|tojson }}{% for m in messages %}{% for c in m.tool_calls %}" +
		"{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}"
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := Open(path, `{"a": 1, "b": {"z": 12345678901234567890, "y": 1.0}}`, target, vocab)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Reads("a") || c.Reads("c") {
		t.Error("the template reads a, not c")
	}
	calls := json.RawMessage(`[{"type":"function","function":{"name":"f","arguments":"{\"k\":1e20}"}}]`)
	for _, tc := range []struct {
		of   conversation.Conversation
		want string
	}{
		{conversation.Conversation{}, `1 {"z": 12345678901234567890, "y": 1.0} null`},
		{conversation.Conversation{Variables: conversation.Variables{"a": json.RawMessage(`"x"`)}}, `x {"z": 12345678901234567890, "y": 1.0} null`},
		{conversation.Conversation{Variables: conversation.Variables{"b": json.RawMessage(`null`)}, Tools: json.RawMessage(`[{"q": 1}]`)}, `1 null [{"q": 1}]`},
		{conversation.Conversation{Messages: []conversation.Message{{Role: "assistant", ToolCalls: calls}}, Variables: conversation.Variables{"b": json.RawMessage(`1`)}},
			`1 1 null{"k": 1e+20}`},
	} {
		p, err := c.Prompt(t.Context(), tc.of)
		if err != nil || p.Text != tc.want {
			t.Errorf("%+v: %q, %v, want %q", tc.of, p.Text, err, tc.want)
		}
	}
	for kwargs, want := range map[string]string{`{"tools": []}`: "tools cannot be set",
		`5`: "want a JSON object", `{"a": 1} x`: "--chat-template-kwargs",
		`{"a": 1, "a": 2}`: "there twice"} {
		if err := Check("", kwargs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", kwargs, err, want)
		}
	}
}
