package anthropic

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// FuzzChat: no body is a fault of the server's, and what is translated is a body of a chat, or refused by name.
func FuzzChat(f *testing.F) {
	f.Add([]byte(`{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"},` +
		`{"type":"tool_result","tool_use_id":"1","content":"r"}]}]}`))
	f.Add([]byte(`{"max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t"},` +
		`{"type":"tool_use","id":"1","name":"f","input":{}}]}],"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"f"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		chat, err := Chat(t.Context(), body, Options{CountOnly: len(body)%2 == 0})
		if err == nil {
			if !json.Valid(chat) {
				t.Fatalf("%s becomes %s", body, chat)
			}
			_, err = oai.ReadChat(bytes.NewReader(chat), ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1}},
				oai.Limits{Text: 1 << 16, Tokens: 1 << 10})
		}
		if err != nil && oai.FromError(err).Status >= 500 {
			t.Fatalf("%s: %v", body, err)
		}
	})
}
