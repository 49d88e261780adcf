package bodies

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
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
func sound(t *testing.T, c *ask.Request, err error) {
	t.Helper()
	if err != nil {
		e := oai.FromError(err)
		if e.Status != 400 && e.Status != 413 || e.Type != "invalid_request_error" || e.Message == "" {
			t.Fatalf("%v becomes %+v", err, e)
		}
		if _, err := json.Marshal(e.Body()); err != nil {
			t.Fatal(err)
		}
		return
	}
	r := c.Request
	if c.N < 1 || max(len(c.Prompts), 1)*c.N > ask.MostChoices || len(r.Stop) > tandem.MostStops {
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
		if e := oai.FromError(c.InItsWords(err)); e.Status != 400 || e.Message == "" {
			t.Fatalf("%v becomes %+v", err, e)
		}
	}
}

func FuzzChatBody(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := Chat(bytes.NewReader(body), defaults, testLimits)
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
		c, err := Completion(bytes.NewReader(body), defaults, testLimits)
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
		faultless(t, err)
		_, err = ReadDetokenize(bytes.NewReader(body), testLimits)
		faultless(t, err)
	})
}

func faultless(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	if e := oai.FromError(err); e.Status != 400 && e.Status != 413 || e.Message == "" {
		t.Fatalf("%v becomes %+v", err, e)
	}
}

// dialects are readers of the APIs that are not OpenAI's chats and completions.
var dialects = map[string]func(io.Reader, Limits) (*ask.Request, error){
	"messages": func(r io.Reader, l Limits) (*ask.Request, error) { return Messages(r, defaults, l) },
	"count": func(r io.Reader, l Limits) (*ask.Request, error) {
		l.CountOnly = true
		return Messages(r, defaults, l)
	},
	"responses": func(r io.Reader, l Limits) (*ask.Request, error) {
		c, _, err := Responses(r, defaults, l)
		return c, err
	},
	"chat": func(r io.Reader, l Limits) (*ask.Request, error) {
		c, o, err := OllamaChat(r, defaults, l)
		if err == nil && !o.Load && len(c.Messages) == 0 {
			err = errors.New("a chat without a message")
		}
		return c, err
	},
	"generate": func(r io.Reader, l Limits) (*ask.Request, error) {
		c, _, err := OllamaGenerate(r, defaults, l)
		return c, err
	},
	"completion": func(r io.Reader, l Limits) (*ask.Request, error) {
		c, _, err := NativeCompletion(r, defaults, l)
		return c, err
	},
	"infill": func(r io.Reader, l Limits) (*ask.Request, error) {
		c, _, err := Infill(r, defaults, l)
		return c, err
	},
	"embed":      func(r io.Reader, l Limits) (*ask.Request, error) { return OllamaEmbed(r, l, false) },
	"embeddings": func(r io.Reader, l Limits) (*ask.Request, error) { return OllamaEmbed(r, l, true) },
}

// FuzzDialects: no body is a fault of the server's, and what is read holds what every request does, or is refused by name.
func FuzzDialects(f *testing.F) {
	for _, s := range []string{
		`{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[{"type":"text","text":"a"},` +
			`{"type":"tool_result","tool_use_id":"1","content":"r"}]}]}`,
		`{"max_tokens":5,"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"t"},` +
			`{"type":"tool_use","id":"1","name":"f","input":{}}]}],"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"f"}}`,
		`{"input":"a","tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}],"tool_choice":{"type":"function","name":"f"}}`,
		`{"input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},` +
			`{"type":"function_call","call_id":"1","name":"f","arguments":"{"},{"type":"function_call_output","call_id":"1","output":"r"}]}`,
		`{"input":[{"input":{"a":[1]},"type":"web_search_call"},{"type":"item_reference","id":"rs_1"}],"text":{"format":{"type":"json_object"}}}`,
		`{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{}}}]},` +
			`{"role":"tool","content":"r","tool_name":"f"}],"options":{"num_predict":3,"num_ctx":9},"format":"json","think":true}`,
		`{"prompt":"a","system":"s","raw":false,"stream":false,"keep_alive":0}`,
		`{"prompt":[1,"a",2],"n_predict":0,"logit_bias":[[1,false],["a",0.5]],"n_probs":2,"response_fields":["a/b"],"n_cmpl":2}`,
		`{"prompt":["a",[1,"b"],{"prompt_string":"c"}],"repeat_last_n":-1,"temperature":-1,"seed":4294967295,"stop":["x"]}`,
		`{"input_prefix":"a","input_suffix":"b","input_extra":[{"filename":"f","text":"t"}],"prompt":"p","stream":true}`,
		`{"input":["a","b"],"truncate":false,"dimensions":2,"options":{"num_ctx":5}}`,
	} {
		f.Add([]byte(s))
	}
	reads := func(string) bool { return true }
	l := Limits{Text: 1 << 16, Tokens: 1 << 10, Vocab: 300, Reads: reads, Encode: func(text string) (out []tandem.Token) {
		for _, b := range []byte(text) {
			out = append(out, tandem.Token(b))
		}
		return out
	}}
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, read := range dialects {
			c, err := read(bytes.NewReader(body), l)
			if err != nil && oai.FromError(err).Status >= 500 {
				t.Fatalf("%s: %s: %v", name, body, err)
			}
			if err == nil && c.Kind != ask.Embedding {
				sound(t, c, nil)
			}
		}
	})
}
