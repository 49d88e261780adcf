package bodies

import (
	"strings"
	"testing"
)

// TestCustomCallsInHistory: calls of tools that take a text are read back as calls of the functions that the model was told of.
func TestCustomCallsInHistory(t *testing.T) {
	const function = `{"id":"2","type":"function","function":{"name":"custom","arguments":"{}"}}`
	for sent, want := range map[string]string{
		`{"id":"1","type":"custom","custom":{"name":"p","input":"a<\n"}}`: `{"id":"1","type":"function","function":{"name":"p","arguments":"{\"input\":\"a<\\n\"}"}}`,
		`{"id":"1","type":"custom","custom":{"name":"p"}}`:                `{"id":"1","type":"function","function":{"name":"p","arguments":"{\"input\":\"\"}"}}`,
		`{"type":"custom"}`:                `{"type":"custom"}`,
		`{"type":"custom","custom":"odd"}`: `{"type":"custom","custom":"odd"}`,
		`5`:                                `5`,
	} {
		body := `{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[` + sent + `,` + function + `]}]}`
		c, err := Chat(strings.NewReader(body), defaults, testLimits)
		if err != nil {
			t.Errorf("%s: %v", sent, err)
		} else if got := string(c.Messages[1].ToolCalls); got != "["+want+","+function+"]" {
			t.Errorf("%s is read as %s, want %s", sent, got, want)
		}
	}
}
