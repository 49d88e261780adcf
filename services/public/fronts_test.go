package public_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// letters is a vocabulary of bytes.
type letters struct{}

func (letters) Encode(text string, _ bool) (out []tandem.Token) {
	for _, b := range []byte(text) {
		out = append(out, tandem.Token(b))
	}
	return out
}
func (l letters) EncodeWithControl(text string, special bool) []tandem.Token {
	return l.Encode(text, special)
}
func (letters) FillIn(string, string, ...tandem.Excerpt) ([]tandem.Token, []string) {
	return nil, []string{"prefix"}
}
func (letters) GapEnds() []string       { return nil }
func (letters) AtLeast(text string) int { return len(text) }

func (letters) AppendBytes(dst []byte, t tandem.Token) []byte     { return append(dst, byte(t)) }
func (l letters) AppendWritten(dst []byte, t tandem.Token) []byte { return l.AppendBytes(dst, t) }
func (letters) DecodeWritten([]tandem.Token) string               { return "" }
func (letters) Texts(...tandem.Token) func(tandem.Token) string {
	return func(t tandem.Token) string { return string(rune(t)) }
}

// judge is a generator that validates as the gateway does, and keeps what it was asked last.
type judge struct {
	limits tandem.Limits
	mu     sync.Mutex
	last   tandem.Request
}

func (j *judge) Generate(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	if err := r.Validate(j.limits); err != nil {
		return tandem.Result{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.last = r
	return tandem.Result{Finish: tandem.FinishStop}, s.Started(tandem.Started{Session: 1, Request: r})
}

func (j *judge) asked() tandem.Request {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.last
	j.last = tandem.Request{}
	return r
}

// run runs a server until the test ends.
func run(t *testing.T, serve func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestBothFrontsAgree asks the same over HTTP and gRPC: what one refuses the other refuses too, naming the
// same field and with the same words for what would be right, and what one takes arrives equal from both.
func TestBothFrontsAgree(t *testing.T) {
	j := &judge{limits: tandem.Limits{Context: 1000, Vocab: 256}}
	defaults := ask.Defaults{MaxTokens: 5, Sampling: tandem.Sampling{TopP: 1}, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10},
		Strategy: tandem.StrategyPlanner}
	web, err := httpapi.New(httpapi.Config{Listen: "127.0.0.1:0", Generator: j, Model: httpapi.Model{Name: "m"}, Defaults: defaults,
		Limits: j.limits, Vocab: letters{}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, web.Run)
	wire, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	public.Register(wire.Registrar(), public.Service{Generator: j, Defaults: defaults})
	run(t, wire.Run)
	conn, err := rpc.Dial(wire.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	calls := tandemv1.NewGenerationServiceClient(conn)

	type request = tandemv1.GenerateRequest
	sampling := func(s *tandemv1.Sampling) func(*request) {
		return func(r *request) {
			s.Seed = new(uint64(1))
			r.Sampling = s
		}
	}
	speculation := func(s *tandemv1.Speculation) func(*request) { return func(r *request) { r.Speculation = s } }
	for _, c := range []struct {
		body       string // of the HTTP request, besides prompt and seed
		set        func(*request)
		web, field string // named by the refusal; "" if it is taken
	}{
		{`"max_tokens":0`, func(r *request) { r.MaxTokens = new(int32(0)) }, "max_tokens", "max_tokens"},
		{`"max_tokens":1`, func(r *request) { r.MaxTokens = new(int32(1)) }, "", ""},
		{`"temperature":-0.1`, sampling(&tandemv1.Sampling{Temperature: new(-0.1)}), "temperature", "sampling.temperature"},
		{`"temperature":2`, sampling(&tandemv1.Sampling{Temperature: new(2.0)}), "", ""},
		{`"top_k":-2`, sampling(&tandemv1.Sampling{TopK: new(int32(-2))}), "top_k", "sampling.top_k"},
		{`"top_k":40`, sampling(&tandemv1.Sampling{TopK: new(int32(40))}), "", ""},
		{`"top_p":1.5`, sampling(&tandemv1.Sampling{TopP: new(1.5)}), "top_p", "sampling.top_p"},
		{`"min_p":1.1`, sampling(&tandemv1.Sampling{MinP: new(1.1)}), "min_p", "sampling.min_p"},
		{`"min_p":0.1`, sampling(&tandemv1.Sampling{MinP: new(0.1)}), "", ""},
		{`"repeat_penalty":11`, sampling(&tandemv1.Sampling{RepeatPenalty: new(11.0)}), "repeat_penalty", "sampling.repeat_penalty"},
		{`"repeat_penalty":1.1,"repeat_last_n":99`, sampling(&tandemv1.Sampling{RepeatPenalty: new(1.1), RepeatLast: new(int32(99))}), "",
			""},
		{`"repeat_last_n":4097`, sampling(&tandemv1.Sampling{RepeatLast: new(int32(4097))}), "repeat_last_n", "sampling.repeat_last"},
		{`"frequency_penalty":2.1`, sampling(&tandemv1.Sampling{FrequencyPenalty: new(2.1)}), "frequency_penalty",
			"sampling.frequency_penalty"},
		{`"frequency_penalty":-2,"presence_penalty":2`,
			sampling(&tandemv1.Sampling{FrequencyPenalty: new(-2.0), PresencePenalty: new(2.0)}), "", ""},
		{`"presence_penalty":-2.1`, sampling(&tandemv1.Sampling{PresencePenalty: new(-2.1)}), "presence_penalty",
			"sampling.presence_penalty"},
		{`"logit_bias":{"256":1}`, sampling(&tandemv1.Sampling{LogitBias: map[uint32]float32{256: 1}}), "logit_bias",
			"sampling.logit_bias"},
		{`"logit_bias":{"7":101}`, sampling(&tandemv1.Sampling{LogitBias: map[uint32]float32{7: 101}}), "logit_bias",
			"sampling.logit_bias"},
		{`"logit_bias":{"7":-100,"3":0.5}`, sampling(&tandemv1.Sampling{LogitBias: map[uint32]float32{7: -100, 3: 0.5}}), "", ""},
		{`"logprobs":21`, sampling(&tandemv1.Sampling{Logprobs: new(true), TopLogprobs: new(int32(21))}), "logprobs",
			"sampling.top_logprobs"},
		{`"logprobs":5`, sampling(&tandemv1.Sampling{Logprobs: new(true), TopLogprobs: new(int32(5))}), "", ""},
		{`"stop":["a","b","c","d","e"]`, func(r *request) { r.Stop = []string{"a", "b", "c", "d", "e"} }, "", ""},
		{`"stop":["a","é"]`, func(r *request) { r.Stop = []string{"a", "é"} }, "", ""},
		{`"speculation":{"max_width":257}`, speculation(&tandemv1.Speculation{Nodes: new(int32(257))}), "speculation.max_width",
			"speculation.nodes"},
		{`"speculation":{"max_depth":0}`, speculation(&tandemv1.Speculation{Depth: new(int32(0))}), "speculation.max_depth",
			"speculation.depth"},
		{`"speculation":{"max_branches":65}`, speculation(&tandemv1.Speculation{Width: new(int32(65))}), "speculation.max_branches",
			"speculation.width"},
		{`"speculation":{"strategy":"x"}`, speculation(&tandemv1.Speculation{Strategy: new("x")}), "speculation.strategy",
			"speculation.strategy"},
		{`"speculation":{"vote":"x"}`, speculation(&tandemv1.Speculation{Vote: new("x")}), "speculation.vote", "speculation.vote"},
		{`"speculation":{"without":["x"]}`, speculation(&tandemv1.Speculation{Without: []string{"x"}}), "speculation.without",
			"speculation.without"},
		{`"speculation":{"max_nodes":8,"max_width":8,"max_depth":3,"max_branches":2,"strategy":"minions","vote":"tree","without":["ahead"]}`,
			speculation(&tandemv1.Speculation{Nodes: new(int32(8)), Depth: new(int32(3)), Width: new(int32(2)), Strategy: new("minions"),
				Vote: new("tree"), Without: []string{"ahead"}}), "", ""},
		{`"speculation":{"max_branches":1}`, speculation(&tandemv1.Speculation{Width: new(int32(1))}), "", ""},
		{`"speculation":{"max_depth":2,"strategy":"fixed"}`,
			speculation(&tandemv1.Speculation{Depth: new(int32(2)), Strategy: new("fixed")}), "", ""},
		{`"speculation":{"enabled":false}`, speculation(&tandemv1.Speculation{Enabled: new(false)}), "", ""},
	} {
		status, param, says := post(t, web.URL()+"/v1/completions", `{"prompt":[1,2],"seed":1,`+c.body+`}`)
		one := j.asked()
		r := &request{Prompt: &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenList{Ids: []uint32{1, 2}}},
			Sampling: &tandemv1.Sampling{Seed: new(uint64(1))}}
		c.set(r)
		err := generate(t, calls, r)
		other := j.asked()
		if c.field == "" {
			one.Tenant, other.Tenant = "", ""
			if status != http.StatusOK || err != nil || !reflect.DeepEqual(one, other) || one.MaxTokens == 0 {
				t.Errorf("%s: %d %s; %v:\n%+v over HTTP\n%+v over gRPC", c.body, status, says, err, one, other)
			}
			continue
		}
		if status != http.StatusBadRequest || param != c.web {
			t.Errorf("%s: HTTP says %d of %q: %s", c.body, status, param, says)
		}
		if !errors.Is(err, tandem.Invalid) || tandem.FieldOf(err) != c.field {
			t.Errorf("%s: gRPC says %v of %q", c.body, err, tandem.FieldOf(err))
			continue
		}
		if _, want, _ := strings.Cut(err.Error(), ": want"); !strings.HasSuffix(says, want) && c.field != "max_tokens" { // HTTP also has -1
			t.Errorf("%s: HTTP says %q, gRPC %q", c.body, says, err)
		}
	}
}

// post sends a body and returns the answer's status and, of an error, what it blames and says.
func post(t *testing.T, url, body string) (status int, param, says string) {
	t.Helper()
	answer, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		Error struct{ Param, Message string }
	}
	if answer.StatusCode != http.StatusOK && json.Unmarshal(all, &e) != nil {
		t.Errorf("%s: %s", answer.Status, all)
	}
	return answer.StatusCode, e.Error.Param, e.Error.Message
}

// generate runs a request over gRPC to its end.
func generate(t *testing.T, c tandemv1.GenerationServiceClient, r *tandemv1.GenerateRequest) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	st, err := c.Generate(ctx, r)
	for err == nil {
		_, err = st.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
