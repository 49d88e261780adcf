package responses

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// FuzzRead: no body is a fault of the server's, and what is translated is a body of a chat, or refused by name.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"input":"a","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}],"tool_choice":{"type":"function","name":"f"}}`))
	f.Add([]byte(`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},` +
		`{"type":"function_call","call_id":"1","name":"f","arguments":"{"},{"type":"function_call_output","call_id":"1","output":"r"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		plan, err := Read(t.Context(), body, false, func(string) {})
		var chat []byte
		if err == nil {
			chat = plan.Chat
		}
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
