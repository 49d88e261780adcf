package public

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/ask"
)

func TestSamplingOptions(t *testing.T) {
	var got tandem.Request
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result,
		error) {
		got = r
		return tandem.Result{}, s.Started(tandem.Started{Request: r})
	}}})
	r := text("x")
	r.Sampling = &tandemv1.Sampling{Seed: new(uint64(3)), MinP: new(0.25), RepeatPenalty: new(1.5), RepeatLast: new(int32(9)),
		FrequencyPenalty: new(-0.5),
		PresencePenalty:  new(0.75), LogitBias: map[uint32]float32{9: -100, 2: 1.5, 300: 0}, Logprobs: new(true),
		TopLogprobs: new(int32(5)), Accept: new("typical"), AcceptEpsilon: new(0.2), AcceptDelta: new(0.4)}
	r.Stop, r.Report, r.Written = []string{"a", "é"}, new(true), new(true)
	all, _ := collect(t, c, r)
	want := tandem.Sampling{TopP: 1, Seed: 3, MinP: 0.25, RepeatPenalty: 1.5, RepeatLast: 9, FrequencyPenalty: -0.5, PresencePenalty: 0.75,
		Bias: []tandem.Bias{{Token: 2, Add: 1.5}, {Token: 9, Add: -100}, {Token: 300}}, Logprobs: true, TopLogprobs: 5,
		Accept: tandem.AcceptTypical, Epsilon: 0.2, Delta: 0.4}
	if !reflect.DeepEqual(got.Sampling, want) || !slices.Equal(got.Stop, []string{"a", "é"}) || !got.Report || !got.Written {
		t.Errorf("got %+v", got)
	}
	r.Sampling.Temperature, r.Sampling.TopK, r.Sampling.TopP = new(0.0), new(int32(0)), new(1.0)
	if len(all) == 0 || !proto.Equal(all[0].GetStarted().GetSampling(), r.Sampling) {
		t.Errorf("in effect: %v", all)
	}
}

// TestBoundsKeepTheStrategy: bounds in a request bound the strategy that runs without them. Only a strategy names another one, and what the
// request leaves open of its bounds is that strategy's own.
func TestBoundsKeepTheStrategy(t *testing.T) {
	num, name := func(n int32) *int32 { return &n }, func(s tandem.Strategy) *string { return new(string(s)) }
	bounds := func(nodes, depth, width int) tandem.Bounds {
		return tandem.Bounds{Nodes: nodes, Depth: depth, Width: width}
	}
	planner, own := tandem.DefaultBounds(tandem.StrategyPlanner), bounds(256, 30, 32)
	fixed, llmcad := tandem.DefaultBounds(tandem.StrategyFixed), tandem.DefaultBounds(tandem.StrategyLLMCad)
	for _, c := range []struct {
		server   tandem.Strategy
		asks     *tandemv1.Speculation
		strategy tandem.Strategy
		bounds   tandem.Bounds
	}{
		{tandem.StrategyPlanner, &tandemv1.Speculation{}, tandem.StrategyPlanner, own},
		{tandem.StrategyPlanner, &tandemv1.Speculation{Width: num(1)}, tandem.StrategyPlanner, bounds(256, 30, 1)},
		{tandem.StrategyPlanner, &tandemv1.Speculation{Depth: num(3)}, tandem.StrategyPlanner, bounds(256, 3, 32)},
		{tandem.StrategyPlanner, &tandemv1.Speculation{Nodes: num(9)}, tandem.StrategyPlanner, bounds(9, 30, 32)},
		{tandem.StrategyMinions, &tandemv1.Speculation{Width: num(1)}, tandem.StrategyMinions, bounds(256, 30, 1)},
		{tandem.StrategyPlanner, &tandemv1.Speculation{Strategy: name("planner"), Width: num(1)}, tandem.StrategyPlanner,
			bounds(256, 30, 1)},
		{tandem.StrategyFixed, &tandemv1.Speculation{Strategy: name("planner"), Width: num(1)}, tandem.StrategyPlanner,
			bounds(planner.Nodes, planner.Depth, 1)},
		{tandem.StrategyPlanner, &tandemv1.Speculation{Strategy: name("fixed")}, tandem.StrategyFixed, fixed},
		{tandem.StrategyPlanner, &tandemv1.Speculation{Strategy: name("fixed"), Width: num(1)}, tandem.StrategyFixed,
			bounds(fixed.Nodes, fixed.Depth, 1)},
		{tandem.StrategyPlanner, &tandemv1.Speculation{Strategy: name("llmcad"), Nodes: num(5)}, tandem.StrategyLLMCad,
			bounds(5, llmcad.Depth, llmcad.Width)},
	} {
		var r tandem.Request
		d := ask.Defaults{Strategy: c.server, Bounds: own}
		if err := d.Speculate(&r, c.asks); err != nil || r.Strategy != c.strategy || r.Bounds != c.bounds {
			t.Errorf("%v of a server of %s: %s %v, %v: want %s %v", c.asks, c.server, r.Strategy, r.Bounds, err, c.strategy, c.bounds)
		}
	}
}

// TestFieldsThatAreWrong has each refusal name its field by its path in the request, once.
func TestFieldsThatAreWrong(t *testing.T) {
	c := serve(t, Service{Defaults: defaults,
		Generator: generator{func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error) {
			return tandem.Result{}, nil
		}}})
	sampling := func(s *tandemv1.Sampling) func(*tandemv1.GenerateRequest) {
		return func(r *tandemv1.GenerateRequest) { r.Sampling = s }
	}
	speculation := func(s *tandemv1.Speculation) func(*tandemv1.GenerateRequest) {
		return func(r *tandemv1.GenerateRequest) { r.Speculation = s }
	}
	many := map[uint32]float32{}
	for i := range uint32(301) {
		many[i] = 1
	}
	nan := math.NaN()
	for _, c2 := range []struct {
		field  string
		change func(*tandemv1.GenerateRequest)
	}{
		{"prompt", func(r *tandemv1.GenerateRequest) { r.Prompt = nil }},
		{"max_tokens", func(r *tandemv1.GenerateRequest) { r.MaxTokens = new(int32(0)) }},
		{"stop", func(r *tandemv1.GenerateRequest) { r.Stop = []string{""} }},
		{"stop", func(r *tandemv1.GenerateRequest) { r.Stop = slices.Repeat([]string{"a"}, 65) }},
		{"sampling.temperature", sampling(&tandemv1.Sampling{Temperature: new(101.0)})},
		{"sampling.top_k", sampling(&tandemv1.Sampling{TopK: new(int32(-2))})},
		{"sampling.top_p", sampling(&tandemv1.Sampling{TopP: new(nan)})},
		{"sampling.min_p", sampling(&tandemv1.Sampling{MinP: new(1.01)})},
		{"sampling.repeat_penalty", sampling(&tandemv1.Sampling{RepeatPenalty: new(10.5)})},
		{"sampling.accept", sampling(&tandemv1.Sampling{Accept: new("all")})},
		{"sampling.accept", sampling(&tandemv1.Sampling{AcceptEpsilon: new(0.1)})},
		{"sampling.accept_epsilon", sampling(&tandemv1.Sampling{Accept: new("typical"), AcceptEpsilon: new(1.1)})},
		{"sampling.accept_delta", sampling(&tandemv1.Sampling{Accept: new("typical"), AcceptDelta: new(nan)})},
		{"sampling.repeat_last", sampling(&tandemv1.Sampling{RepeatLast: new(int32(4097))})},
		{"sampling.frequency_penalty", sampling(&tandemv1.Sampling{FrequencyPenalty: new(math.Inf(-1))})},
		{"sampling.presence_penalty", sampling(&tandemv1.Sampling{PresencePenalty: new(2.5)})},
		{"sampling.logit_bias", sampling(&tandemv1.Sampling{LogitBias: map[uint32]float32{1 << 31: 1}})},
		{"sampling.logit_bias", sampling(&tandemv1.Sampling{LogitBias: many})},
		{"sampling.logit_bias", sampling(&tandemv1.Sampling{LogitBias: map[uint32]float32{1: float32(nan)}})},
		{"sampling.top_logprobs", sampling(&tandemv1.Sampling{TopLogprobs: new(int32(1))})},
		{"sampling.top_logprobs", sampling(&tandemv1.Sampling{Logprobs: new(true), TopLogprobs: new(int32(21))})},
		{"speculation.nodes", speculation(&tandemv1.Speculation{Nodes: new(int32(1))})},
		{"speculation.depth", speculation(&tandemv1.Speculation{Depth: new(int32(65))})},
		{"speculation.nodes", speculation(&tandemv1.Speculation{Nodes: new(int32(0)), Depth: new(int32(0)), Width: new(int32(0))})},
		{"speculation.strategy", speculation(&tandemv1.Speculation{Strategy: new("x")})},
		{"speculation.vote", speculation(&tandemv1.Speculation{Vote: new("x")})},
		{"speculation.drafters", speculation(&tandemv1.Speculation{Drafters: []string{""}})},
		{"speculation.without", speculation(&tandemv1.Speculation{Without: []string{"x"}})},
	} {
		r := text("x")
		c2.change(r)
		if _, err := collect(t, c, r); !errors.Is(err, tandem.Invalid) || tandem.FieldOf(err) != c2.field ||
			strings.Count(err.Error(), "request:") > 1 {
			t.Errorf("%s: %v of field %q", c2.field, err, tandem.FieldOf(err))
		}
	}
}

func TestDeltaInFull(t *testing.T) {
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(_ context.Context, _ tandem.Request, s tandem.Sink) (tandem.Result,
		error) {
		err := s.Delta(tandem.Delta{Tokens: []tandem.Token{7, 8}, Origins: make([]tandem.Origin, 2),
			Logprobs: []tandem.Logprob{{LogProb: -1, Top: []tandem.TopLogprob{{Token: 7, LogProb: -1}, {Token: 3, LogProb: -2}}},
				{LogProb: -0.5}},
			Round: &tandem.Round{Index: 4, Base: 12, Choice: "go 8/4", Why: "2.1 tokens in 3 ms", Drafters: []string{"go", "py"},
				Votes: []uint16{3, 1, 2}, Path: []int32{2, 9},
				Tree:  tandem.Tree{Tokens: []tandem.Token{6, 5, 7}, Parents: []int32{-1, 0, 0}, LogProbs: []float32{0, -3, -0.25}},
				Lanes: []tandem.Lane{{Stage: "draft", By: "go", From: time.Millisecond, To: 2 * time.Millisecond}}}})
		return tandem.Result{Finish: tandem.FinishStop, Stopped: "é", PromptTokens: 9, CachedTokens: 8,
			Stats: tandem.Stats{DraftedByDepth: []int{3, 2}, AcceptedByDepth: []int{1}, Reasons: map[string]int{"best": 1}}}, err
	}}})
	all, _ := collect(t, c, text("x"))
	if len(all) != 2 {
		t.Fatalf("%d events", len(all))
	}
	want := &tandemv1.Delta{Tokens: &tandemv1.TokenList{Ids: []uint32{7, 8}}, Origins: []tandemv1.Origin{tandemv1.Origin_ORIGIN_TARGET,
		tandemv1.Origin_ORIGIN_TARGET},
		Logprobs: []*tandemv1.Logprob{{LogProb: -1, Top: []*tandemv1.TopLogprob{{Token: 7, LogProb: -1}, {Token: 3, LogProb: -2}}},
			{LogProb: -0.5}},
		Round: &tandemv1.Round{Index: 4, Base: 12, Choice: "go 8/4", Why: "2.1 tokens in 3 ms", Drafters: []string{"go", "py"},
			Nodes: []*tandemv1.RoundNode{{Token: 6, Parent: -1, LogProb: new(float32(0)), Votes: 3},
				{Token: 5, LogProb: new(float32(-3)), Votes: 1},
				{Token: 7, LogProb: new(float32(-0.25)), Votes: 2, Accepted: true}},
			Lanes: []*tandemv1.Lane{{Stage: "draft", By: "go", FromNs: 1e6, ToNs: 2e6}}}}
	if got := all[0].GetDelta(); !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	f := all[1].GetFinished()
	if f.GetStopped() != "é" || f.GetUsage().GetCachedPromptTokens() != 8 ||
		!slices.Equal(f.GetStatistics().GetDraftedByDepth(), []int32{3, 2}) ||
		!slices.Equal(f.GetStatistics().GetAcceptedByDepth(), []int32{1}) || f.GetStatistics().GetReasons()["best"] != 1 {
		t.Errorf("finished %v", f)
	}
}

// words is a vocabulary of bytes.
type words struct{}

func (words) Size() int { return 256 }

func (w words) EncodeWithControl(text string, special bool) []tandem.Token {
	return w.Encode(text, special)
}
func (words) Encode(text string, special bool) (out []tandem.Token) {
	if special {
		out = append(out, 1)
	}
	for _, b := range []byte(text) {
		out = append(out, tandem.Token(b))
	}
	return out
}

func (words) AppendBytes(dst []byte, t tandem.Token) []byte { return append(dst, byte(t)) }

func (words) Decode(tokens []tandem.Token) string {
	var out []byte
	for _, t := range tokens {
		out = append(out, byte(t))
	}
	return string(out)
}

func TestTokenize(t *testing.T) {
	c, ctx := serve(t, Service{Defaults: defaults, Vocab: words{}}), context.Background()
	got, err := c.Tokenize(ctx, &tandemv1.TokenizeRequest{Text: "aé"})
	if err != nil || !slices.Equal(got.GetTokens().GetIds(), []uint32{1, 'a', 0xc3, 0xa9}) || len(got.GetPieces()) != 4 ||
		string(got.GetPieces()[2]) != "\xc3" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = c.Tokenize(ctx, &tandemv1.TokenizeRequest{Text: "a", NoSpecial: true}); err != nil ||
		!slices.Equal(got.GetTokens().GetIds(), []uint32{'a'}) {
		t.Errorf("without special tokens: %v, %v", got, err)
	}
	back, err := c.Detokenize(ctx, &tandemv1.DetokenizeRequest{Tokens: &tandemv1.TokenList{Ids: []uint32{'a', 0xc3, 'b'}}})
	if err != nil || back.GetText() != "a\uFFFDb" {
		t.Errorf("%v, %v", back, err)
	}
	if got, err = c.Tokenize(ctx, &tandemv1.TokenizeRequest{Text: strings.Repeat("x", maxText)}); err != nil ||
		len(got.GetTokens().GetIds()) != maxText+1 {
		t.Errorf("the longest text: %d tokens, %v", len(got.GetTokens().GetIds()), err)
	}
	if _, err = c.Tokenize(ctx, &tandemv1.TokenizeRequest{Text: strings.Repeat("x", maxText+1)}); tandem.FieldOf(err) != "text" {
		t.Errorf("a text too long: %v", err)
	}
	if _, err = c.Detokenize(ctx,
		&tandemv1.DetokenizeRequest{Tokens: &tandemv1.TokenList{Ids: []uint32{256}}}); tandem.FieldOf(err) != "tokens.ids" {
		t.Errorf("a token beyond the vocabulary: %v", err)
	}
	none := serve(t, Service{Defaults: defaults})
	if _, err = none.Tokenize(ctx, &tandemv1.TokenizeRequest{}); !errors.Is(err, tandem.Unsupported) {
		t.Errorf("without a vocabulary: %v", err)
	}
}

func TestKeys(t *testing.T) {
	keys, err := access.New([]string{"alpha", "beta"})
	if err != nil {
		t.Fatal(err)
	}
	var tenants []string
	c := serve(t, Service{Defaults: defaults, Keys: keys, Vocab: words{},
		Describe: func(context.Context) Description { return Description{} },
		Generator: generator{func(_ context.Context, r tandem.Request, _ tandem.Sink) (tandem.Result, error) {
			tenants = append(tenants, r.Tenant)
			return tandem.Result{}, nil
		}}})
	calls := map[string]func(context.Context) error{
		"generate": func(ctx context.Context) error {
			st, err := c.Generate(ctx, text("x"))
			if err == nil {
				_, err = st.Recv()
			}
			return err
		},
		"describe": func(ctx context.Context) error { _, err := c.Describe(ctx, &tandemv1.DescribeRequest{}); return err },
		"tokenize": func(ctx context.Context) error { _, err := c.Tokenize(ctx, &tandemv1.TokenizeRequest{}); return err },
		"detokenize": func(ctx context.Context) error {
			_, err := c.Detokenize(ctx, &tandemv1.DetokenizeRequest{})
			return err
		},
	}
	for name, call := range calls {
		ctx := context.Background()
		for _, bad := range []context.Context{ctx, metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer gamma"),
			metadata.AppendToOutgoingContext(ctx, "authorization", "alpha"),
			metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer gamma", "authorization", "Bearer alpha")} {
			if err := call(bad); !errors.Is(err, tandem.Unauthenticated) || strings.Contains(err.Error(), "alpha") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := call(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer beta")); err != nil {
			t.Errorf("%s with its key: %v", name, err)
		}
	}
	beta, _ := keys.Tenant("Bearer beta")
	if !slices.Equal(tenants, []string{beta}) {
		t.Errorf("tenants %q, want %q alone", tenants, beta)
	}
}

// TestHealthNeedsNoKey asks a server with keys how it is, as an orchestrator does.
func TestHealthNeedsNoKey(t *testing.T) {
	keys, err := access.New([]string{"alpha"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	Register(s.Registrar(), Service{Keys: keys})
	s.SetServing(true)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	var conn *grpc.ClientConn
	if conn, err = rpc.Dial(s.Addr()); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil || got.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", got, err)
	}
}

// TestDeadlineIsTheClients has a generation see its client's deadline, and end with it.
func TestDeadlineIsTheClients(t *testing.T) {
	seen := make(chan time.Duration, 10)
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(ctx context.Context, _ tandem.Request, _ tandem.Sink) (
		tandem.Result, error) {
		at, _ := ctx.Deadline()
		seen <- time.Until(at)
		<-ctx.Done()
		return tandem.Result{}, ctx.Err()
	}}})
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		st, err := c.Generate(ctx, text("x"))
		if err == nil {
			_, err = st.Recv()
		}
		cancel()
		if !errors.Is(err, tandem.Deadline) {
			t.Errorf("ended with %v", err)
		}
		select {
		case left := <-seen:
			if left > limit {
				t.Errorf("the generation had %v left of %v", left, limit)
			}
			if left > 0 {
				return
			}
		case <-time.After(limit): // the machine is so busy that the time was over before the generation began
		}
		if limit > 30*time.Second {
			t.Fatalf("no generation within %v", limit)
		}
	}
}

func FuzzRequest(f *testing.F) {
	full := text("x")
	full.Sampling = &tandemv1.Sampling{MinP: new(0.1), LogitBias: map[uint32]float32{3: 1}, TopLogprobs: new(int32(1))}
	full.Stop, full.Speculation = []string{"a"}, &tandemv1.Speculation{Nodes: new(int32(4))}
	b, err := proto.Marshal(full)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m tandemv1.GenerateRequest
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		r, err := request(defaults, &m)
		if err == nil {
			err = r.Validate(tandem.Limits{})
		}
		if err != nil {
			if !errors.Is(err, tandem.Invalid) || tandem.FieldOf(err) == "" {
				t.Errorf("refused with %v of field %q", err, tandem.FieldOf(err))
			}
			return
		}
		if s := r.Sampling; !(s.TopP > 0 && s.MinP <= 1 && s.Temperature >= 0) || len(s.Bias) > 300 || len(r.Stop) > tandem.MostStops {
			t.Errorf("accepted %+v", r)
		}
	})
}

// TestConstraintForms: each form of a constraint is heard in a generation, one that cannot be obeyed is refused before it begins, with the
// field.
func TestConstraintForms(t *testing.T) {
	var got *tandem.Constraint
	calls := 0
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result,
		error) {
		got = r.Sampling.Constraint
		calls++
		return tandem.Result{}, s.Started(tandem.Started{Request: r})
	}}})
	for want, of := range map[string]*tandemv1.Constraint{
		`{"schema":{"type":"object"}}`: {Form: &tandemv1.Constraint_JsonSchema{JsonSchema: `{"type": "object"}`}},
		`{"object":true}`:              {Form: &tandemv1.Constraint_JsonObject{JsonObject: true}},
		`{"regex":"a+"}`:               {Form: &tandemv1.Constraint_Regex{Regex: "a+"}},
		`{"choices":["a","b"]}`:        {Form: &tandemv1.Constraint_Choices{Choices: &tandemv1.Choices{Texts: []string{"a", "b"}}}},
		"":                             {Form: &tandemv1.Constraint_JsonObject{}},
	} {
		r := text("x")
		r.Constraint = of
		_, _ = collect(t, c, r)
		if want == "" && got != nil || want != "" && (got == nil || got.Spec != want || len(got.Digest) != 64) {
			t.Errorf("%v is heard as %+v: want %s", of, got, want)
		}
	}
	before := calls
	for _, of := range []*tandemv1.Constraint{{Form: &tandemv1.Constraint_Regex{Regex: "("}},
		{Form: &tandemv1.Constraint_JsonSchema{JsonSchema: `{"type": 7}`}}, {Form: &tandemv1.Constraint_JsonSchema{JsonSchema: "{"}}} {
		r := text("x")
		r.Constraint = of
		if _, err := collect(t, c, r); tandem.FieldOf(rpc.FromStatus(err)) != "constraint" {
			t.Errorf("%v: %v", of, err)
		}
	}
	if calls != before {
		t.Errorf("%d of them have begun", calls-before)
	}
}
