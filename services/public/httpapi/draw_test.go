package httpapi

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
)

// says returns a generator that says these tokens, each with the others as its likeliest, and notes what it was asked.
func says(asked *tandem.Request, tokens []tandem.Token, logprob float32) script {
	var mu sync.Mutex // choices are generated beside each other
	return func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
		mu.Lock()
		*asked = r
		mu.Unlock()
		if err := s.Started(tandem.Started{Request: r}); err != nil {
			return tandem.Result{}, err
		}
		text := alphabet{}.Texts(r.Tokens...)
		for _, t := range tokens {
			d := tandem.Delta{Text: text(t), Tokens: []tandem.Token{t}, Origins: make([]tandem.Origin, 1)}
			if r.Sampling.Logprobs {
				l := tandem.Logprob{LogProb: logprob}
				for i := range r.Sampling.TopLogprobs {
					l.Top = append(l.Top, tandem.TopLogprob{Token: bos + tandem.Token(i), LogProb: 0 - float32(i)})
				}
				d.Logprobs = []tandem.Logprob{l}
			}
			if err := s.Delta(d); err != nil {
				return tandem.Result{}, err
			}
		}
		return tandem.Result{Finish: tandem.FinishStop, OutputTokens: len(tokens)}, nil
	}
}

type legacyLogprobs struct {
	Tokens  []string
	Offsets []int                `json:"text_offset"`
	Top     []map[string]float64 `json:"top_logprobs"`
}

// TestLogprobsOfCompletions checks OpenAI's reference: the token that came is among top_logprobs in any case, offsets count characters of
// prompt and text, and tokens that look alike as text can be told apart.
func TestLogprobsOfCompletions(t *testing.T) {
	var asked tandem.Request
	tokens := []tandem.Token{'h', 0xc3, 0xa9, '!', eot}
	s := serve(t, says(&asked, tokens, -7), nil)
	for _, stream := range []string{"false", "true"} {
		for name, c := range map[string]struct {
			prompt string
			from   int
		}{"text": {`"né"`, 2}, "tokens": {`[256,110,195,169]`, 2}, "half a character at the end": {`[110,195]`, 1}} {
			said := tokens
			if strings.HasPrefix(name, "half") {
				said = []tandem.Token{0xa9, 'h'}
			}
			s := serve(t, says(&asked, said, -7), nil)
			_, all := s.ask(t, "POST", "/v1/completions", `{"prompt":`+c.prompt+`,"logprobs":2,"stream":`+stream+`}`)
			var got legacyLogprobs
			text := ""
			take := func(raw string) {
				var a struct {
					Choices []struct {
						Text     string
						Logprobs *legacyLogprobs
					}
				}
				if err := json.Unmarshal([]byte(raw), &a); err != nil {
					t.Fatal(err)
				}
				text += a.Choices[0].Text
				if l := a.Choices[0].Logprobs; l != nil {
					got.Tokens, got.Offsets = append(got.Tokens, l.Tokens...), append(got.Offsets, l.Offsets...)
					got.Top = append(got.Top, l.Top...)
				}
			}
			if stream == "true" {
				for _, e := range events(t, strings.NewReader(all)) {
					if e.data != "" && e.data != "[DONE]" {
						take(e.data)
					}
				}
			} else {
				take(all)
			}
			names, offsets, whole := []string{"h", `bytes:\xc3`, `bytes:\xa9`, "!", "</s>"}, []int{0, 1, 1, 2, 3}, "hé!"
			if len(said) == 2 {
				names, offsets, whole = []string{`bytes:\xa9`, "h"}, []int{0, 1}, "éh"
			}
			for i := range offsets {
				offsets[i] += c.from
			}
			if text != whole || !slices.Equal(got.Tokens, names) || !slices.Equal(got.Offsets, offsets) {
				t.Errorf("%s, stream %s: %q of %q at %v: want %q of %q at %v", name, stream, text, got.Tokens, got.Offsets, whole, names,
					offsets)
			}
			for i, top := range got.Top {
				if top["<s>"] != 0 || top[names[i]] > -1 || len(top) < 2 || len(top) > 3 {
					t.Errorf("%s, stream %s: of token %q the likeliest are %v", name, stream, names[i], top)
				}
			}
		}
	}
	var none legacyLogprobs
	answer := s.post(t, "/v1/completions", `{"prompt":"a","logprobs":0}`)
	raw, _ := json.Marshal(answer["choices"].([]any)[0].(map[string]any)["logprobs"])
	if err := json.Unmarshal(raw, &none); err != nil || len(none.Top) != 5 || none.Top[0]["h"] != -7 || len(none.Top[0]) != 1 {
		t.Errorf("with 0 likeliest: %s, %v", raw, err)
	}
}

// TestControlTokensHaveAText: two of them can be told apart, and what adds nothing to the text adds no bytes.
func TestControlTokensHaveAText(t *testing.T) {
	var asked tandem.Request
	s := serve(t, says(&asked, []tandem.Token{'a', eot}, -1), nil)
	_, all := s.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":2}`)
	if want := `{"token":"</s>","logprob":-1,"bytes":[],"top_logprobs":[{"token":"<s>","logprob":0,"bytes":[]},{"token":"</s>","logprob":-1,"bytes":[]}]}`; !strings.Contains(unescaped(all), want) {
		t.Errorf("%s\nwant %s", all, want)
	}
	_, all = s.ask(t, "POST", "/v1/completions", `{"prompt":"x","speculation":{"report":true}}`)
	if want := `{"id":257,"text":"","origin":"target"}`; !strings.Contains(all, want) { // what the text is made of
		t.Errorf("%s\nwant %s", all, want)
	}
}

// unescaped undoes what JSON's encoder does for HTML.
func unescaped(s string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(s)
}

// TestPromptsWithMarkers: a prompt's markers are text, unless the request says that they are tokens; a suffix brings its own.
func TestPromptsWithMarkers(t *testing.T) {
	var asked tandem.Request
	s := serve(t, says(&asked, []tandem.Token{'a'}, -1), nil)
	for body, want := range map[string][]tandem.Token{
		`{"prompt":"a<s>b"}`:                        {bos, 'a', '<', 's', '>', 'b'},
		`{"prompt":"a<s>b","parse_special":false}`:  {bos, 'a', '<', 's', '>', 'b'},
		`{"prompt":"a<s>b","parse_special":true}`:   {bos, 'a', bos, 'b'},
		`{"prompt":"a","suffix":""}`:                {bos, 'a'},
		`{"prompt":"a","suffix":null}`:              {bos, 'a'},
		`{"prompt":"a","suffix":"<s>"}`:             {bos, 261, 'a', 262, '<', 's', '>', 263},
		`{"prompt":"","suffix":"b"}`:                {bos, 261, 262, 'b', 263},
		`{"prompt":"a","suffix":"b","logprobs":1}`:  {bos, 261, 'a', 262, 'b', 263},
		`{"prompt":["c","a"],"suffix":"b","n":1}`:   nil,
		`{"prompt":[[97]],"parse_special":true}`:    {'a'},
		`{"prompt":"a","parse_special":true,"n":1}`: {bos, 'a'},
	} {
		s.post(t, "/v1/completions", body)
		if want != nil && !slices.Equal(asked.Tokens, want) {
			t.Errorf("%s: tokens %v, want %v", body, asked.Tokens, want)
		}
	}
	for body, param := range map[string]string{
		`{"prompt":[97],"suffix":"b"}`:                              "suffix",
		`{"prompt":"a","suffix":5}`:                                 "suffix",
		`{"prompt":"a","suffix":"b","parse_special":true}`:          "parse_special",
		`{"prompt":"a","parse_special":"yes"}`:                      "parse_special",
		`{"prompt":"a","suffix":"` + strings.Repeat("b", 70) + `"}`: "prompt",
	} {
		if p := s.refused(t, "POST", "/v1/completions", body); p.status < 400 || p.status >= 500 || p.Param != param {
			t.Errorf("%s: %+v", body, p)
		}
	}
	without := serve(t, says(&asked, nil, 0), func(c *Config) { c.Vocab = noInfill{} })
	p := without.refused(t, "POST", "/v1/completions", `{"prompt":"a","suffix":"b"}`)
	if p.status != 400 || p.Param != "suffix" || !strings.Contains(p.Message, "no token for prefix, middle") {
		t.Errorf("a file without markers: %+v", p)
	}
}

type noInfill struct{ alphabet }

func (noInfill) FillIn(string, string, ...tandem.Excerpt) ([]tandem.Token, []string) {
	return nil, []string{"prefix", "middle"}
}

// TestSeeds: an answer says how it was drawn, and sent back that gives the same; several choices are drawn differently.
func TestSeeds(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) {
		c.Defaults.Sampling = tandem.ServerSampling
		c.Defaults.MaxOutput = 4
	})
	drawn := func(a map[string]any, i int) (map[string]any, string) {
		c := a["choices"].([]any)[i].(map[string]any)
		return c["tandem"].(map[string]any)["sampling"].(map[string]any), c["text"].(string)
	}
	a := s.post(t, "/v1/completions", `{"prompt":"a","n":3,"max_tokens":50}`)
	first, text := drawn(a, 0)
	if first["temperature"] != 0.8 || first["top_k"] != 40.0 || first["top_p"] != 0.95 || first["min_p"] != 0.05 || len(text) != 4 {
		t.Errorf("drawn by %v: %q", first, text)
	}
	seeds := map[any]bool{}
	for i := range 3 {
		x, _ := drawn(a, i)
		seeds[x["seed"]] = true
	}
	b, _ := drawn(s.post(t, "/v1/completions", `{"prompt":"a"}`), 0)
	if seeds[b["seed"]] = true; len(seeds) != 4 {
		t.Errorf("4 answers have the seeds %v", seeds)
	}
	first["prompt"] = "a"
	again, _ := json.Marshal(first)
	if same, got := drawn(s.post(t, "/v1/completions", string(again)), 0); got != text || same["seed"] != first["seed"] {
		t.Errorf("sent back, %s gives %q drawn by %v: want %q", again, got, same, text)
	}
	fixed := serve(t, script(nil), func(c *Config) { c.Defaults.Seed = new(uint64(7)) })
	if x, _ := drawn(fixed.post(t, "/v1/completions", `{"prompt":"a"}`), 0); x["seed"] != 7.0 {
		t.Errorf("with a seed of the server's: %v", x)
	}
}

func TestProps(t *testing.T) {
	s := serve(t, script(nil), func(c *Config) {
		c.Defaults.Sampling, c.Defaults.MaxOutput, c.Build = tandem.ServerSampling, 3, "v9"
		c.Model.File, c.Model.Template = "gopher.gguf", "{{ x }}"
	})
	_, all := s.ask(t, "GET", "/props", "")
	same(t, "props", all, `{"default_generation_settings":{"n_ctx":64,"params":{"seed":-1,"temperature":0.8,"top_k":40,"top_p":0.95,`+
		`"min_p":0.05,"repeat_last_n":64,"repeat_penalty":1,"presence_penalty":0,"frequency_penalty":0,"max_tokens":3,"n_predict":3,`+
		`"ignore_eos":false,"stream":false}},"model_alias":"gopher","model_path":"gopher.gguf","chat_template":"{{ x }}",`+
		`"chat_template_caps":{"supports_forced_tool_calls":true,"supports_json_schema":true,"supports_parallel_tool_calls":true,`+
		`"supports_system_role":true,"supports_tool_calls":true,`+
		`"supports_tools":true},"modalities":{"audio":false,"vision":false},"build_info":"tandem v9"}`)
}
