package oai

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
)

var defaults = ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1, Bias: []tandem.Bias{{Token: 3, Add: 1}}},
	Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}}

var testLimits = Limits{Text: 1 << 10, Tokens: 64}

// seeds are bodies that reach every reader.
var seeds = []string{
	``, `{}`, `null`, `[]`, `{"a":`, `{"prompt":"a"}`, `{"prompt":["a","b"],"n":2}`, `{"prompt":[1,2]}`, `{"prompt":[[1],[2]]}`,
	`{"prompt":[[]]}`,
	`{"prompt":"a","max_tokens":1e1,"temperature":0.5,"top_p":1,"seed":7,"frequency_penalty":-2,"presence_penalty":2,"logit_bias":{"5":1,"3":-1},"stop":["a"],"logprobs":3,` +
		`"stream":true,"stream_options":{"include_usage":true},"response_format":{"type":"text"},"top_k":1,"min_p":0.1,"repeat_penalty":1.1,"repeat_last_n":4,"ignore_eos":false,"best_of":1,"suffix":null}`,
	`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{}]},{"role":"tool","content":[{"type":"text","text":"x"}],"tool_call_id":"1"}],` +
		`"logprobs":true,"top_logprobs":2,"max_completion_tokens":5,"tools":[],"tool_choice":"none","speculation":{"enabled":true,"max_nodes":4,"max_width":4,"max_depth":2,"max_branches":2,"strategy":"fixed",` +
		`"vote":"auto","drafters":["a"],"without":["ahead"],"report":true}}`,
	`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`, "{\"prompt\":\"\xff\"}", `{"prompt":"\ud800"}`,
	`{"prompt":"a","prompt":"b"}`,
	`{"content":"a","add_special":true,"with_pieces":true,"parse_special":false}`, `{"tokens":[1,2,3]}`, `{"\u0000":1}`,
	`{"n":-0,"prompt":"a","seed":18446744073709551615}`,
}

// sound checks what holds for every call that is read, and for every error.
func sound(t *testing.T, c *Call, err error) {
	t.Helper()
	if err != nil {
		e := FromError(err)
		if e.Status != 400 && e.Status != 413 || e.Type != "invalid_request_error" || e.Message == "" {
			t.Fatalf("%v becomes %+v", err, e)
		}
		if _, err := json.Marshal(e.Body()); err != nil {
			t.Fatal(err)
		}
		return
	}
	r := c.Request
	if c.N < 1 || max(len(c.Prompts), 1)*c.N > MostChoices || len(r.Stop) > tandem.MostStops {
		t.Fatalf("%d choices of %d prompts, %d stops", c.N, len(c.Prompts), len(r.Stop))
	}
	for _, f := range []float64{r.Sampling.Temperature, r.Sampling.TopP, r.Sampling.MinP, r.Sampling.RepeatPenalty} {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			t.Fatalf("%v was read out of JSON", f)
		}
	}
	for _, n := range []int{r.MaxTokens, r.Sampling.TopK, r.Sampling.RepeatLast, r.Bounds.Nodes, r.Bounds.Depth, r.Bounds.Width} {
		if n > math.MaxInt32 || n < math.MinInt32 {
			t.Fatalf("%d does not fit into 32 bits", n)
		}
	}
	for i, b := range r.Sampling.Bias {
		if i > 0 && b.Token <= r.Sampling.Bias[i-1].Token {
			t.Fatalf("bias %v is not ascending", r.Sampling.Bias)
		}
	}
	if len(defaults.Sampling.Bias) != 1 || defaults.Sampling.Bias[0] != (tandem.Bias{Token: 3, Add: 1}) {
		t.Fatalf("a body changed the defaults to %v", defaults.Sampling.Bias)
	}
	if err := r.Validate(tandem.Limits{}); err != nil {
		if e := FromError(c.InItsWords(err)); e.Status != 400 || e.Message == "" {
			t.Fatalf("%v becomes %+v", err, e)
		}
	}
}

func FuzzChatBody(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := ReadChat(bytes.NewReader(body), defaults, testLimits)
		sound(t, c, err)
		if err == nil && len(c.Messages) == 0 {
			t.Fatal("a chat without a message")
		}
	})
}

func FuzzCompletionBody(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := ReadCompletion(bytes.NewReader(body), defaults, testLimits)
		sound(t, c, err)
		if err == nil && len(c.Prompts) == 0 {
			t.Fatal("a completion without a prompt")
		}
	})
}

func FuzzNativeBodies(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		_, err := ReadTokenize(bytes.NewReader(body), testLimits)
		bare(t, err)
		_, err = ReadDetokenize(bytes.NewReader(body), testLimits)
		bare(t, err)
	})
}

func bare(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if e := FromError(err); e.Status != 400 && e.Status != 413 || e.Message == "" {
		t.Fatalf("%v becomes %+v", err, e)
	}
}
