package llamacpp

import (
	"bytes"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// FuzzBodies: no body is a fault of the server's, and what is translated is a body of a completion, or refused by name.
func FuzzBodies(f *testing.F) {
	f.Add([]byte(`{"prompt":[1,"a",2],"n_predict":0,"logit_bias":[[1,false],["a",0.5]],"n_probs":2,"response_fields":["a/b"],"n_cmpl":2}`))
	f.Add([]byte(`{"prompt":["a",[1,"b"],{"prompt_string":"c"}],"repeat_last_n":-1,"temperature":-1,"seed":4294967295,"stop":["x"]}`))
	f.Add([]byte(`{"input_prefix":"a","input_suffix":"b","input_extra":[{"filename":"f","text":"t"}],"prompt":"p","stream":true}`))
	o := Options{Ignored: func(string) {}, Encode: func(text string) (out []tandem.Token) {
		for _, b := range []byte(text) {
			out = append(out, tandem.Token(b))
		}
		return out
	}}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, translate := range []func([]byte, Options) (*Plan, error){Completion, Infill} {
			plan, err := translate(body, o)
			if err == nil {
				var c *oai.Call
				c, err = oai.ReadCompletion(bytes.NewReader(plan.Body), ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1}},
					oai.Limits{Text: 1 << 16, Tokens: 1 << 10})
				for i := range plan.Mixed {
					if err == nil && i >= len(c.Prompts) {
						t.Fatalf("%s: prompt %d of %d is mixed", body, i, len(c.Prompts))
					}
				}
			}
			if err != nil && oai.FromError(err).Status >= 500 {
				t.Fatalf("%s: %v", body, err)
			}
		}
	})
}
