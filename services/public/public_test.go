package public

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// generator validates like the gateway, then does what run says.
type generator struct {
	run func(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error)
}

func (g generator) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	if err := r.Validate(tandem.Limits{}); err != nil {
		return tandem.Result{}, err
	}
	return g.run(ctx, r, s)
}

var defaults = Defaults{MaxTokens: 128, Sampling: tandem.Sampling{TopP: 1}, Policy: tandem.Policy{Nodes: 16, Depth: 7, Width: 10}}

func serve(t *testing.T, cfg Config) tandemv1.GenerationServiceClient {
	t.Helper()
	s, err := rpc.NewServer(rpc.Config{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	Register(s.Registrar(), cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	conn, err := rpc.Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return tandemv1.NewGenerationServiceClient(conn)
}

// collect returns all events of one generation and how it ended.
func collect(t *testing.T, c tandemv1.GenerationServiceClient, r *tandemv1.GenerateRequest) ([]*tandemv1.GenerateResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	st, err := c.Generate(ctx, r)
	if err != nil {
		return nil, err
	}
	var all []*tandemv1.GenerateResponse
	for {
		m, err := st.Recv()
		if err != nil {
			return all, err
		}
		if m.GetSequence() != uint64(len(all)) {
			t.Errorf("event %d has sequence %d", len(all), m.GetSequence())
		}
		all = append(all, m)
	}
}

func text(s string) *tandemv1.GenerateRequest {
	return &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Text{Text: s}}
}

func TestGeneration(t *testing.T) {
	c := serve(t, Config{Model: "gopher", Defaults: defaults, Generator: generator{func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
		if err := s.Started(tandem.Started{Session: 0xabc, PromptTokens: []tandem.Token{1, 5}, Request: r, Drafter: "d"}); err != nil {
			return tandem.Result{}, err
		}
		if err := s.Delta(tandem.Delta{Text: "é", Tokens: []tandem.Token{7, 8}, Origins: []tandem.Origin{tandem.OriginDraft, tandem.OriginTarget}}); err != nil {
			return tandem.Result{}, err
		}
		return tandem.Result{Finish: tandem.FinishLength, PromptTokens: 2, OutputTokens: 2, Stats: tandem.Stats{Rounds: 1, Drafted: 15, DraftedDepth: 7,
			Accepted: 1, Prefill: 1, Decode: 2, DraftBusy: 3, VerifyBusy: 4, Coordination: []time.Duration{5}}}, nil
	}}})
	all, err := collect(t, c, text("hello"))
	if err == nil || len(all) != 3 {
		t.Fatalf("%d events, %v", len(all), err)
	}
	st, d, f := all[0].GetStarted(), all[1].GetDelta(), all[2].GetFinished()
	if st.GetSession() != "0000000000000abc" || st.GetModel() != "gopher" || st.GetDrafter() != "d" || st.GetMaxTokens() != 128 ||
		!reflect.DeepEqual(st.GetPrompt().GetIds(), []uint32{1, 5}) || st.GetSpeculation().GetNodes() != 16 || st.Sampling.Temperature == nil {
		t.Errorf("started %v", st)
	}
	if d.GetText() != "é" || !reflect.DeepEqual(d.GetTokens().GetIds(), []uint32{7, 8}) ||
		!reflect.DeepEqual(d.GetOrigins(), []tandemv1.Origin{tandemv1.Origin_ORIGIN_DRAFT, tandemv1.Origin_ORIGIN_TARGET}) {
		t.Errorf("delta %v", d)
	}
	s := f.GetStatistics()
	if f.GetReason() != tandemv1.FinishReason_FINISH_REASON_LENGTH || f.GetUsage().GetOutputTokens() != 2 || f.GetUsage().GetPromptTokens() != 2 ||
		s.GetRounds() != 1 || s.GetDrafted() != 15 || s.GetDraftedDepth() != 7 || s.GetAccepted() != 1 || s.GetPrefillNs() != 1 ||
		s.GetDecodeNs() != 2 || s.GetDraftBusyNs() != 3 || s.GetVerifyBusyNs() != 4 || !reflect.DeepEqual(s.GetCoordinationNs(), []int64{5}) {
		t.Errorf("finished %v", f)
	}
}

func TestOptions(t *testing.T) {
	var got tandem.Request
	c := serve(t, Config{Defaults: defaults, Generator: generator{func(_ context.Context, r tandem.Request, _ tandem.Sink) (tandem.Result, error) {
		got = r
		return tandem.Result{}, nil
	}}})
	ask := func(r *tandemv1.GenerateRequest) error {
		got = tandem.Request{}
		_, err := collect(t, c, r)
		if errors.Is(err, tandem.Invalid) {
			return err
		}
		return nil
	}
	yes := true
	full := &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenList{Ids: []uint32{3, 4}}}, MaxTokens: new(int32(5)),
		Sampling:    &tandemv1.Sampling{Temperature: new(0.5), TopK: new(int32(9)), TopP: new(0.25), Seed: new(uint64(0))},
		Speculation: &tandemv1.Speculation{Nodes: new(int32(4)), Depth: new(int32(4)), Width: new(int32(1))}, IgnoreEos: &yes, FullTrace: &yes}
	if err := ask(full); err != nil {
		t.Fatal(err)
	}
	want := tandem.Request{Tokens: []tandem.Token{3, 4}, MaxTokens: 5, Sampling: tandem.Sampling{Temperature: 0.5, TopK: 9, TopP: 0.25},
		Policy: tandem.Policy{Nodes: 4, Depth: 4, Width: 1}, IgnoreEOS: true, FullTrace: true}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := ask(text("x")); err != nil || got.Policy != defaults.Policy || got.MaxTokens != 128 || got.Sampling.TopP != 1 {
		t.Errorf("defaults gave %+v, %v", got, err)
	}
	first := got.Sampling.Seed
	if _ = ask(text("x")); got.Sampling.Seed == first {
		t.Error("two requests without a seed got the same one")
	}
	no := text("x")
	no.Speculation = &tandemv1.Speculation{Enabled: new(false), Nodes: new(int32(9))}
	if err := ask(no); err != nil || !got.Policy.Plain() {
		t.Errorf("speculation switched off gave %v, %v", got.Policy, err)
	}
	for name, change := range map[string]func(*tandemv1.GenerateRequest){
		"prompt is empty": func(r *tandemv1.GenerateRequest) { r.Prompt = nil },
		"prompt is empty:": func(r *tandemv1.GenerateRequest) {
			r.Prompt = &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenList{}}
		},
		"prompt token 0": func(r *tandemv1.GenerateRequest) {
			r.Prompt = &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenList{Ids: []uint32{1 << 31}}}
		},
		"max_tokens is 0":   func(r *tandemv1.GenerateRequest) { r.MaxTokens = new(int32(0)) },
		"max_tokens is -1":  func(r *tandemv1.GenerateRequest) { r.MaxTokens = new(int32(-1)) },
		"temperature is -1": func(r *tandemv1.GenerateRequest) { r.Sampling = &tandemv1.Sampling{Temperature: new(-1.0)} },
		"top_p is 0":        func(r *tandemv1.GenerateRequest) { r.Sampling = &tandemv1.Sampling{TopP: new(0.0)} },
		"top_k is -1":       func(r *tandemv1.GenerateRequest) { r.Sampling = &tandemv1.Sampling{TopK: new(int32(-1))} },
		"tree 0/0/0": func(r *tandemv1.GenerateRequest) {
			r.Speculation = &tandemv1.Speculation{Nodes: new(int32(0)), Depth: new(int32(0)), Width: new(int32(0))}
		},
		"tree 1000/7/10": func(r *tandemv1.GenerateRequest) { r.Speculation = &tandemv1.Speculation{Nodes: new(int32(1000))} },
	} {
		r := text("x")
		change(r)
		if err := ask(r); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v: want invalid", name, err)
		}
	}
}

func TestFaultsStayWithTheirRequest(t *testing.T) {
	c := serve(t, Config{Defaults: defaults, Generator: generator{func(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
		switch r.Prompt {
		case "panic":
			panic("boom")
		case "full":
			return tandem.Result{}, tandem.Errorf("queue", tandem.Exhausted, "queue is full")
		case "half":
			if err := s.Delta(tandem.Delta{Text: "ha"}); err != nil {
				return tandem.Result{}, err
			}
			return tandem.Result{}, tandem.Errorf("verify", tandem.Unavailable, "no verifier")
		}
		return tandem.Result{Finish: tandem.FinishStop}, nil
	}}})
	for prompt, want := range map[string]tandem.Kind{"panic": tandem.Internal, "full": tandem.Exhausted, "half": tandem.Unavailable} {
		all, err := collect(t, c, text(prompt))
		if tandem.KindOf(err) != want {
			t.Errorf("%s: %v: want %v", prompt, err, want)
		}
		if prompt == "half" && len(all) != 1 {
			t.Errorf("half: %d events", len(all))
		}
	}
	if all, _ := collect(t, c, text("fine")); len(all) != 1 || all[0].GetFinished().GetReason() != tandemv1.FinishReason_FINISH_REASON_STOP {
		t.Errorf("the request after: %v", all)
	}
}

func TestClientThatLeavesCancels(t *testing.T) {
	entered, left := make(chan struct{}), make(chan time.Time, 1)
	c := serve(t, Config{Defaults: defaults, Generator: generator{func(ctx context.Context, _ tandem.Request, s tandem.Sink) (tandem.Result, error) {
		close(entered)
		<-ctx.Done()
		left <- time.Now()
		return tandem.Result{}, ctx.Err()
	}}})
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := c.Generate(ctx, text("x")); err != nil {
		t.Fatal(err)
	}
	<-entered
	start := time.Now()
	cancel()
	select {
	case at := <-left:
		if d := at.Sub(start); d > 500*time.Millisecond {
			t.Errorf("cancelled after %v", d)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("generation goes on without its client")
	}
}

func TestDescribe(t *testing.T) {
	c := serve(t, Config{Defaults: defaults, Describe: func(context.Context) Description {
		return Description{Version: "1", Model: "gopher", Vocab: 4096, Context: 2048, Counters: map[string]int64{"a": 1},
			Processes: []Process{{Role: "drafter", Up: true, Description: wire.Description{Model: "small", ISA: "avx2", PID: 7, Threads: 2}}}}
	}})
	d, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if d.GetModel() != "gopher" || d.GetVocabulary() != 4096 || d.GetContext() != 2048 || d.GetMaxTokens() != 128 || d.GetSpeculation().GetDepth() != 7 ||
		d.GetCounters()["a"] != 1 || len(d.GetProcesses()) != 1 || d.GetProcesses()[0].GetIsa() != "avx2" || !d.GetProcesses()[0].GetUp() {
		t.Errorf("described %v", d)
	}
}
