package ollama

import (
	"bytes"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// FuzzBodies: no body is a fault of the server's, and what is translated is a body of a chat, or refused by name.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]},` +
		`{"role":"tool","content":"r","tool_name":"f"}],"options":{"num_predict":3,"num_ctx":9},"format":"json","think":true}`))
	f.Add([]byte(`{"prompt":"a","system":"s","raw":false,"stream":false,"keep_alive":0}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, translate := range []func([]byte, Limits, func(string)) (*Plan, error){Chat, Generate} {
			plan, err := translate(body, Limits{Context: 1 << 10, Vocab: 300}, func(string) {})
			if err == nil && !plan.Load {
				d, l := ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1}}, oai.Limits{Text: 1 << 16, Tokens: 1 << 10}
				read := oai.ReadChat
				if plan.Raw {
					read = oai.ReadCompletion
				}
				_, err = read(bytes.NewReader(plan.Body), d, l)
			}
			if err != nil && oai.FromError(err).Status >= 500 {
				t.Fatalf("%s: %v", body, err)
			}
		}
	})
}
