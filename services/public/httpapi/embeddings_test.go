package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// spans is an embedder that checks as the gateway does; the vector of a text is its length, its first and its last token, made unit.
type spans struct {
	asked *tandem.EmbedRequest
	err   error
}

func (e spans) Embed(_ context.Context, r tandem.EmbedRequest) (out tandem.Embedded, err error) {
	*e.asked = r
	if e.err != nil {
		return out, e.err
	}
	if r.Dimensions > 3 {
		return out, &tandem.Error{Kind: tandem.Invalid, Field: "dimensions",
			Err: fmt.Errorf("dimensions is %d: vectors have 3", r.Dimensions)}
	}
	if err := r.Validate(limits); err != nil {
		return out, err
	}
	for _, tokens := range r.Inputs {
		x := []float32{float32(len(tokens)), float32(tokens[0]), float32(tokens[len(tokens)-1]) / 3}
		if r.Dimensions > 0 {
			x = x[:r.Dimensions]
		}
		if err := tandem.Unit(x); err != nil {
			return out, err
		}
		out.Vectors, out.Tokens = append(out.Vectors, x), out.Tokens+len(tokens)
	}
	return out, nil
}

func embedding(t testing.TB, change func(*Config)) (*site, *tandem.EmbedRequest) {
	asked := new(tandem.EmbedRequest)
	return serve(t, script(nil), func(c *Config) {
		c.Embedder, c.Width = spans{asked: asked}, 3
		if change != nil {
			change(c)
		}
	}), asked
}

// vectorsIn returns the vectors of an answer of /v1/embeddings, as numbers or in base64, and its tokens.
func vectorsIn(t testing.TB, text string) (all [][]float32, tokens int) {
	t.Helper()
	var a struct {
		Object, Model string
		Data          []struct {
			Object    string
			Index     int
			Embedding json.RawMessage
		}
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		}
	}
	if err := json.Unmarshal([]byte(text), &a); err != nil || a.Object != "list" || a.Model != "gopher" || a.Usage.Prompt != a.Usage.Total {
		t.Fatalf("%v: %s", err, text)
	}
	for i, d := range a.Data {
		var numbers []float32
		var encoded string
		if json.Unmarshal(d.Embedding, &encoded) == nil {
			raw, err := base64.StdEncoding.DecodeString(encoded)
			if err != nil || len(raw)%4 != 0 {
				t.Fatalf("%v: %d bytes", err, len(raw))
			}
			for ; len(raw) > 0; raw = raw[4:] {
				numbers = append(numbers, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
			}
		} else if err := json.Unmarshal(d.Embedding, &numbers); err != nil {
			t.Fatal(err)
		}
		if d.Index != i || d.Object != "embedding" {
			t.Errorf("entry %d is a %q with index %d", i, d.Object, d.Index)
		}
		all = append(all, numbers)
	}
	return all, a.Usage.Prompt
}

// TestEmbeddings: each form of input reaches the embedder as tokens, and base64 holds the same bits as numbers.
func TestEmbeddings(t *testing.T) {
	s, asked := embedding(t, nil)
	for body, want := range map[string]string{
		`{"model":"m","input":"ab"}`:                              "[[256 97 98]]",
		`{"model":"m","input":["ab"],"encoding_format":"base64"}`: "[[256 97 98]]", // LangChain
		`{"input":["a","b","<s>c"],"user":"u"}`:                   "[[256 97] [256 98] [256 256 99]]",
		`{"input":[1,2,3],"dimensions":3}`:                        "[[1 2 3]]",
		`{"input":[[1],[2,3]]}`:                                   "[[1] [2 3]]",
		`{"input":"` + strings.Repeat("a", context1-1) + `"}`:     fmt.Sprint([][]tandem.Token{append([]tandem.Token{256}, slices.Repeat([]tandem.Token{97}, context1-1)...)}),
	} {
		for _, path := range []string{"/v1/embeddings", "/embeddings"} {
			answer, text := s.ask(t, "POST", path, body)
			if answer.StatusCode != 200 || fmt.Sprint(asked.Inputs) != want {
				t.Fatalf("%s: %s: %v: want %s: %s", body, answer.Status, asked.Inputs, want, text)
			}
			got, tokens := vectorsIn(t, text)
			made, _ := spans{asked: asked}.Embed(t.Context(), *asked)
			if fmt.Sprint(got) != fmt.Sprint(made.Vectors) || tokens != made.Tokens {
				t.Errorf("%s: %v, %d tokens: want %v, %d", body, got, tokens, made.Vectors, made.Tokens)
			}
		}
	}
	for _, path := range []string{"/v1/embeddings", "/api/embed"} { // a field of an answer's part that is as wide as asked for
		if _, text := s.ask(t, "POST", path, `{"input":"ab","dimensions":2.0}`); asked.Dimensions != 2 || strings.Count(text, ",0.9") != 1 {
			t.Errorf("%s with 2 dimensions asks for %d: %s", path, asked.Dimensions, text)
		}
	}
	_, plain := s.ask(t, "POST", "/v1/embeddings", `{"input":["abc","z"],"encoding_format":"float"}`)
	_, packed := s.ask(t, "POST", "/v1/embeddings", `{"input":["abc","z"],"encoding_format":"base64"}`)
	a, _ := vectorsIn(t, plain)
	b, _ := vectorsIn(t, packed)
	if len(a) != 2 || fmt.Sprint(a) != fmt.Sprint(b) || !strings.Contains(plain, `"embedding":[`) || !strings.Contains(packed, `"embedding":"`) {
		t.Errorf("as numbers %v, in base64 %v", a, b)
	}
}

// TestEmbeddingsRefused: each bad body is a 400 that names the field.
func TestEmbeddingsRefused(t *testing.T) {
	s, _ := embedding(t, nil)
	for body, want := range map[string][2]string{
		`{}`:                                     {"input", "missing"},
		`{"input":null}`:                         {"input", "missing"},
		`{"input":""}`:                           {"input", "empty"},
		`{"input":[]}`:                           {"input", "empty"},
		`{"input":[[]]}`:                         {"input", "empty"},
		`{"input":["a",""]}`:                     {"input", "text 1"},
		`{"input":["a",1]}`:                      {"input[1]", "behind"},
		`{"input":[1,"a"]}`:                      {"input[1]", "behind"},
		`{"input":[1.5]}`:                        {"input[0]", "1.5"},
		`{"input":[-1]}`:                         {"input", "-1"},
		`{"input":[300]}`:                        {"input", "vocabulary has 300"},
		`{"input":[99999999999]}`:                {"input[0]", "99999999999"},
		`{"input":{"text":"a"}}`:                 {"input", "want a string"},
		`{"input":true}`:                         {"input", "true"},
		`{"input":[[["a"]]]}`:                    {"input[0][0]", ""},
		`{"input":"a","dimensions":4}`:           {"dimensions", "have 3"},
		`{"input":"a","dimensions":0}`:           {"dimensions", "at least 1"},
		`{"input":"a","dimensions":"3"}`:         {"dimensions", "integer"},
		`{"input":"a","encoding_format":"int8"}`: {"encoding_format", "float or base64"},
		`{"input":"a","encoding_format":5}`:      {"encoding_format", "string"},
		`{"input":"a"`:                           {"", ""},
		`[]`:                                     {"", "object"},
		`{"input":"` + strings.Repeat("a", context1) + `"}`:                {"input", "maximum context length is 64 tokens. However, your input resulted in 65 tokens"},
		`{"input":[` + strings.Repeat("1,", context1) + `1]}`:              {"input", "65 tokens"},
		`{"input":["a"` + strings.Repeat(`,"a"`, tandem.MostInputs) + `]}`: {"input", "2048"},
		`{"input":"a","input":"b"}`:                                        {"input", "twice"},
	} {
		p := s.refused(t, "POST", "/v1/embeddings", body)
		if p.status != 400 || p.Param != want[0] || !strings.Contains(p.Message, want[1]) {
			t.Errorf("%.100s: %d of %q: %s: want 400 of %q with %q", body, p.status, p.Param, p.Message, want[0], want[1])
		}
	}
	if p := s.refused(t, "POST", "/v1/embeddings", `{"input":"`+strings.Repeat("a", 9<<20)+`"}`); p.status != 413 {
		t.Errorf("a body that is too large: %d", p.status)
	}
	if p := s.refused(t, "POST", "/v1/embeddings", `{"input":[`+strings.Repeat("1,", context1)+`1]}`); p.Code != "context_length_exceeded" {
		t.Errorf("code %q: want context_length_exceeded", p.Code)
	}
	wide, _ := embedding(t, func(c *Config) { c.Width = 1 << 20 })
	if p := wide.refused(t, "POST", "/v1/embeddings", `{"input":["a","b","c","d"]}`); p.Code != "answer_too_large" ||
		!strings.Contains(p.Message, "base64") {
		t.Errorf("an answer that is too large: %q: %s", p.Code, p.Message)
	}
	none := serve(t, script(nil), nil)
	if p := none.refused(t, "POST", "/v1/embeddings", `{"input":"a"}`); p.status != 400 || p.Code != "unsupported_value" {
		t.Errorf("without an embedder: %d %q", p.status, p.Code)
	}
	strict, _ := embedding(t, func(c *Config) { c.Strict = true })
	if p := strict.refused(t, "POST", "/v1/embeddings", `{"input":"a","model":"other"}`); p.status != 404 {
		t.Errorf("another model at a strict server: %d", p.status)
	}
}

// TestOllamaEmbed: both of Ollama's paths, their texts that are cut or refused, and their errors.
func TestOllamaEmbed(t *testing.T) {
	s, asked := embedding(t, nil)
	got := s.post(t, "/api/embed", `{"model":"gopher:latest","input":["a","bc"],"keep_alive":"5m","options":{"num_gpu":1,"num_ctx":64}}`)
	if fmt.Sprint(asked.Inputs) != "[[256 97] [256 98 99]]" || len(got["embeddings"].([]any)) != 2 || got["model"] != "gopher" ||
		got["prompt_eval_count"] != 5.0 || got["total_duration"].(float64) <= 0 {
		t.Errorf("%v of %v", got, asked.Inputs)
	}
	if got = s.post(t, "/api/embeddings", `{"model":"gopher","prompt":"a"}`); len(got["embedding"].([]any)) != 3 {
		t.Errorf("%v", got)
	}
	long := strings.Repeat("a", 200)
	s.post(t, "/api/embed", `{"input":"`+long+`"}`)
	if n := len(asked.Inputs[0]); n != context1 || asked.Inputs[0][0] != bos {
		t.Errorf("a long text is cut to %d tokens: want %d", n, context1)
	}
	s.post(t, "/api/embed", `{"input":"`+long+`","options":{"num_ctx":9}}`)
	if n := len(asked.Inputs[0]); n != 9 {
		t.Errorf("a long text is cut to %d tokens: want 9", n)
	}
	for body, want := range map[string]string{`{}`: "[]", `{"input":""}`: "[]", `{"input":[]}`: "[]", `{"input":null}`: "[]"} {
		if got := s.post(t, "/api/embed", body); fmt.Sprint(got["embeddings"]) != want {
			t.Errorf("%s: %v: want %s", body, got, want)
		}
	}
	if got := s.post(t, "/api/embeddings", `{"prompt":""}`); fmt.Sprint(got["embedding"]) != "[]" {
		t.Errorf("%v", got)
	}
	for body, says := range map[string]string{
		`{"input":"` + long + `","truncate":false}`: "201 tokens",
		`{"input":5}`:                                         "want a string or a list",
		`{"input":["a",5]}`:                                   "input[1]",
		`{"input":["a",""]}`:                                  "input[1] is empty",
		`{"input":"a","dimensions":4}`:                        "vectors have 3",
		`{"input":"a","dimensions":-2}`:                       "at least 1",
		`{"input":"a","options":{"num_ctx":65}}`:              "context of 64",
		`{"input":"a","options":{"num_ctx":"x"}}`:             "want an integer",
		`{"input":"a"`:                                        "",
		`{"input":["a"` + strings.Repeat(`,"a"`, 2048) + `]}`: "2048",
	} {
		answer, text := s.ask(t, "POST", "/api/embed", body)
		var e struct{ Error string }
		if json.Unmarshal([]byte(text), &e) != nil || answer.StatusCode != 400 || e.Error == "" || !strings.Contains(e.Error, says) {
			t.Errorf("%.100s: %s: %s: want 400 with %q", body, answer.Status, text, says)
		}
	}
	if got := s.post(t, "/api/show", `{"model":"gopher"}`); !slices.Contains(got["capabilities"].([]any), any("embedding")) {
		t.Errorf("capabilities %v", got["capabilities"])
	}
}

// FuzzEmbeddings: no body is a fault of the server's.
func FuzzEmbeddings(f *testing.F) {
	f.Add("/v1/embeddings", `{"input":["a",[1]],"encoding_format":"base64","dimensions":3,"user":"u"}`)
	f.Add("/api/embed", `{"input":["a"],"truncate":false,"dimensions":3,"options":{"num_ctx":3},"keep_alive":0}`)
	f.Add("/api/embeddings", `{"prompt":"a","options":{}}`)
	s, _ := embedding(f, nil)
	f.Fuzz(func(t *testing.T, path, body string) {
		if path != "/v1/embeddings" && path != "/api/embed" && path != "/api/embeddings" {
			return
		}
		if answer, text := s.ask(t, "POST", path, body); answer.StatusCode >= 500 {
			t.Fatalf("%s with %q: %s: %s", path, body, answer.Status, text)
		}
	})
}
