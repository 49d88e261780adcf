package public

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/ask"
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

var defaults = ask.Defaults{MaxTokens: 128, Sampling: tandem.Sampling{TopP: 1}, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10},
	Strategy: tandem.StrategyPlanner}

func serve(t *testing.T, cfg Service) tandemv1.GenerationServiceClient {
	t.Helper()
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	Register(s.Registrar(), cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	return dial(t, s.Addr())
}

// dialled is a client that knows where its server is.
type dialled struct {
	tandemv1.GenerationServiceClient
	addr string
}

func (d dialled) address() string { return d.addr }

func dial(t *testing.T, addr string) tandemv1.GenerationServiceClient {
	t.Helper()
	conn, err := rpc.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return dialled{tandemv1.NewGenerationServiceClient(conn), addr}
}

// collect returns all events of one generation and how it ended.
func collect(t *testing.T, c tandemv1.GenerationServiceClient, r *tandemv1.GenerateRequest) ([]*tandemv1.GenerateResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
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
	c := serve(t, Service{Model: "gopher", Defaults: defaults,
		Generator: generator{func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
			if err := s.Started(tandem.Started{Session: 0xabc, PromptTokens: []tandem.Token{1, 5}, Request: r, Drafter: "d"}); err != nil {
				return tandem.Result{}, err
			}
			if err := s.Delta(tandem.Delta{Text: "é", Tokens: []tandem.Token{7, 8},
				Origins: []tandem.Origin{tandem.OriginDraft, tandem.OriginTarget}}); err != nil {
				return tandem.Result{}, err
			}
			return tandem.Result{Finish: tandem.FinishLength, PromptTokens: 2, OutputTokens: 2,
				Stats: tandem.Stats{Rounds: 1, Drafted: 15, DraftedDepth: 7,
					Accepted: 1, Prefill: 1, Decode: 2, DraftBusy: 3, VerifyBusy: 4, Coordination: []time.Duration{5}, AheadHits: 6,
					AheadTries: 7, Accept: "typical",
					AheadBusy: 8, AheadUseful: 9,
					Planning: 10, Choices: map[string]int{"plain": 11},
					Drafters: []tandem.DrafterStats{{Name: "go", Rounds: 12, Drafted: 13, Accepted: 14, Weight: 1.5}}}}, nil
		}}})
	all, err := collect(t, c, text("hello"))
	if err == nil || len(all) != 3 {
		t.Fatalf("%d events, %v", len(all), err)
	}
	st, d, f := all[0].GetStarted(), all[1].GetDelta(), all[2].GetFinished()
	if st.GetSession() != "0000000000000abc" || st.GetModel() != "gopher" || st.GetDrafter() != "d" || st.GetMaxTokens() != 128 ||
		!reflect.DeepEqual(st.GetPrompt().GetIds(), []uint32{1, 5}) || st.GetSpeculation().GetNodes() != 16 ||
		st.Sampling.Temperature == nil {
		t.Errorf("started %v", st)
	}
	if d.GetText() != "é" || !reflect.DeepEqual(d.GetTokens().GetIds(), []uint32{7, 8}) ||
		!reflect.DeepEqual(d.GetOrigins(), []tandemv1.Origin{tandemv1.Origin_ORIGIN_DRAFT, tandemv1.Origin_ORIGIN_TARGET}) {
		t.Errorf("delta %v", d)
	}
	s := f.GetStatistics()
	if f.GetReason() != tandemv1.FinishReason_FINISH_REASON_LENGTH || f.GetUsage().GetOutputTokens() != 2 ||
		f.GetUsage().GetPromptTokens() != 2 ||
		s.GetRounds() != 1 || s.GetDrafted() != 15 || s.GetDraftedDepth() != 7 || s.GetAccepted() != 1 || s.GetPrefillNs() != 1 ||
		s.GetDecodeNs() != 2 || s.GetDraftBusyNs() != 3 || s.GetVerifyBusyNs() != 4 ||
		!reflect.DeepEqual(s.GetCoordinationNs(), []int64{5}) {
		t.Errorf("finished %v", f)
	}
	if s.GetAheadHits() != 6 || s.GetAheadTries() != 7 || s.GetAheadBusyNs() != 8 || s.GetAheadUsefulNs() != 9 || s.GetPlanningNs() != 10 ||
		s.GetAccept() != "typical" ||
		s.GetChoices()["plain"] != 11 ||
		len(s.GetDrafters()) != 1 || s.Drafters[0].GetName() != "go" || s.Drafters[0].GetRounds() != 12 ||
		s.Drafters[0].GetDrafted() != 13 || s.Drafters[0].GetAccepted() != 14 || s.Drafters[0].GetWeight() != 1.5 {
		t.Errorf("statistics %v", s)
	}
	if p := st.GetSpeculation(); p.GetStrategy() != "planner" || p.GetVote() != "auto" {
		t.Errorf("speculation in effect %v", p)
	}
}

// TestSlowClients has one client that reads its socket a byte at a time and one that reads its stream not
// at all: what is kept for them is bounded, and others get theirs at once.
func TestSlowClients(t *testing.T) {
	const piece = 1 << 10
	var mu sync.Mutex
	taken := map[string]int{} // bytes that the server took for a client
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(_ context.Context, r tandem.Request, s tandem.Sink) (tandem.Result,
		error) {
		for n := 0; r.Prompt != "quick" || n < 500; n++ {
			if err := s.Delta(tandem.Delta{Text: strings.Repeat("x", piece)}); err != nil {
				return tandem.Result{}, err
			}
			mu.Lock()
			taken[r.Prompt] += piece
			mu.Unlock()
		}
		return tandem.Result{}, nil
	}}})
	address := c.(interface{ address() string }).address()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if _, err := c.Generate(ctx, text("idle")); err != nil {
		t.Fatal(err)
	}
	slow := dial(t, trickle(t, ctx, address))
	go func() { _, _ = slow.Generate(ctx, text("slow")) }()
	held := func() int {
		mu.Lock()
		defer mu.Unlock()
		return taken["idle"] + taken["slow"]
	}
	const most = 2 << 20 // flow control windows and socket buffers
	for end, still, last := time.Now().Add(60*time.Second), 0, -1; still < 10; time.Sleep(30 * time.Millisecond) {
		if now := held(); now == last && now > 0 {
			still++
		} else {
			still, last = 0, now
		}
		if last > most || time.Now().After(end) {
			t.Fatalf("%d bytes are kept for clients that do not read: want at most %d", last, most)
		}
	}
	for name, c := range map[string]tandemv1.GenerationServiceClient{"on the same connection": c, "on another": dial(t, address)} {
		start := time.Now()
		all, err := collect(t, c, text("quick"))
		if len(all) != 501 || all[500].GetFinished() == nil {
			t.Errorf("%s: %d events, %v", name, len(all), err)
		}
		if d := time.Since(start); d > 20*time.Second { // the other clients never read
			t.Errorf("%s: 500 events took %v", name, d)
		}
	}
}

// TestStalledClientIsGivenUp has a client that reads nothing: once no more fits into the transport, its
// generation ends, so that its place is free for others.
func TestStalledClientIsGivenUp(t *testing.T) {
	const stall = 100 * time.Millisecond
	ended := make(chan error, 1)
	c := serve(t, Service{Defaults: defaults, Stall: stall,
		Generator: generator{func(ctx context.Context, _ tandem.Request, s tandem.Sink) (tandem.Result, error) {
			for {
				if err := s.Delta(tandem.Delta{Text: strings.Repeat("x", 1<<10)}); err != nil {
					ended <- errors.Join(err, ctx.Err())
					return tandem.Result{}, err
				}
			}
		}}})
	st, err := c.Generate(t.Context(), text("idle"))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the generation ended with %v: want its context cancelled", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the generation waits for its client for ever")
	}
	for err == nil {
		_, err = st.Recv()
	}
	if !errors.Is(rpc.FromStatus(err), tandem.Deadline) {
		t.Errorf("the client is told %v: want a deadline", err)
	}
}

// trickle returns an address whose connections go to address, with answers of a byte a millisecond.
func trickle(t *testing.T, ctx context.Context, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	t.Cleanup(func() { stop(); _ = l.Close() })
	work.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("unix", strings.TrimPrefix(address, "unix://"))
			if err != nil {
				t.Error(err)
				return
			}
			end := func() { _, _ = a.Close(), b.Close() }
			work.Go(func() { <-ctx.Done(); end() })
			work.Go(func() { _, _ = io.Copy(b, a); end() })
			work.Go(func() {
				defer end()
				var one [1]byte
				for n := 0; ; n++ {
					if _, err := b.Read(one[:]); err != nil {
						return
					}
					if _, err := a.Write(one[:]); err != nil {
						return
					}
					if n > 200 { // the connection's own first messages pass
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
	})
	return "unix://" + path
}

func TestOptions(t *testing.T) {
	var got tandem.Request
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(_ context.Context, r tandem.Request, _ tandem.Sink) (tandem.Result,
		error) {
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
	full := &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenList{Ids: []uint32{3, 4}}},
		MaxTokens:   new(int32(5)),
		Sampling:    &tandemv1.Sampling{Temperature: new(0.5), TopK: new(int32(9)), TopP: new(0.25), Seed: new(uint64(0))},
		Speculation: &tandemv1.Speculation{Nodes: new(int32(4)), Depth: new(int32(4)), Width: new(int32(1))}, IgnoreEos: &yes,
		FullTrace: &yes}
	if err := ask(full); err != nil {
		t.Fatal(err)
	}
	want := tandem.Request{Tokens: []tandem.Token{3, 4}, MaxTokens: 5, Sampling: tandem.Sampling{Temperature: 0.5, TopK: 9, TopP: 0.25},
		Bounds: tandem.Bounds{Nodes: 4, Depth: 4, Width: 1}, Strategy: tandem.StrategyPlanner, IgnoreEOS: true, FullTrace: true}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := ask(text("x")); err != nil || got.Bounds != defaults.Bounds || got.MaxTokens != 128 || got.Sampling.TopP != 1 {
		t.Errorf("defaults gave %+v, %v", got, err)
	}
	first := got.Sampling.Seed
	if _ = ask(text("x")); got.Sampling.Seed == first {
		t.Error("two requests without a seed got the same one")
	}
	if got.Strategy != tandem.StrategyPlanner {
		t.Errorf("default strategy is %q", got.Strategy)
	}
	chosen := text("x")
	chosen.Speculation = &tandemv1.Speculation{Nodes: new(int32(9)), Strategy: new("minions"), Vote: new("tree"),
		Drafters: []string{"go", "py"}, Without: []string{"ahead", "branches"}}
	if err := ask(chosen); err != nil || got.Strategy != tandem.StrategyMinions || got.Vote != tandem.VoteTree ||
		got.Bounds != (tandem.Bounds{Nodes: 9, Depth: 8, Width: 8}) ||
		!reflect.DeepEqual(got.Drafters, []string{"go", "py"}) || got.Without != tandem.TechniqueAhead|tandem.TechniqueBranches {
		t.Errorf("a chosen strategy gave %+v, %v", got, err)
	}
	no := text("x")
	no.Speculation = &tandemv1.Speculation{Enabled: new(false), Nodes: new(int32(9))}
	if err := ask(no); err != nil || !got.Bounds.Plain() {
		t.Errorf("speculation switched off gave %v, %v", got.Bounds, err)
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
		"top_k is -2":       func(r *tandemv1.GenerateRequest) { r.Sampling = &tandemv1.Sampling{TopK: new(int32(-2))} },
		"tree 0/0/0": func(r *tandemv1.GenerateRequest) {
			r.Speculation = &tandemv1.Speculation{Nodes: new(int32(0)), Depth: new(int32(0)), Width: new(int32(0))}
		},
		"strategy is": func(r *tandemv1.GenerateRequest) { r.Speculation = &tandemv1.Speculation{Strategy: new("best")} },
		"vote is":     func(r *tandemv1.GenerateRequest) { r.Speculation = &tandemv1.Speculation{Vote: new("all")} },
		"technique":   func(r *tandemv1.GenerateRequest) { r.Speculation = &tandemv1.Speculation{Without: []string{"luck"}} },
		"drafter \"go\"": func(r *tandemv1.GenerateRequest) {
			r.Speculation = &tandemv1.Speculation{Drafters: []string{"go", "go"}}
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
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(ctx context.Context, r tandem.Request, s tandem.Sink) (
		tandem.Result, error) {
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
	if all, _ := collect(t, c, text("fine")); len(all) != 1 ||
		all[0].GetFinished().GetReason() != tandemv1.FinishReason_FINISH_REASON_STOP {
		t.Errorf("the request after: %v", all)
	}
}

func TestClientThatLeavesCancels(t *testing.T) {
	entered, left := make(chan struct{}), make(chan time.Time, 1)
	c := serve(t, Service{Defaults: defaults, Generator: generator{func(ctx context.Context, _ tandem.Request, s tandem.Sink) (
		tandem.Result, error) {
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
		if d := at.Sub(start); d > 20*time.Second {
			t.Errorf("cancelled after %v", d)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("generation goes on without its client")
	}
}

func TestDescribe(t *testing.T) {
	c := serve(t, Service{Defaults: defaults, Describe: func(context.Context) Description {
		return Description{Version: "1", Model: "gopher", Vocab: 4096, Context: 2048, Counters: map[string]int64{"a": 1},
			Processes: []Process{{Role: "drafter", Up: true, Description: tandem.Description{Model: "small", ISA: "avx2", PID: 7,
				Threads: 2}}}}
	}})
	d, err := c.Describe(context.Background(), &tandemv1.DescribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if d.GetModel() != "gopher" || d.GetVocabulary() != 4096 || d.GetContext() != 2048 || d.GetMaxTokens() != 128 ||
		d.GetSpeculation().GetDepth() != 7 ||
		d.GetCounters()["a"] != 1 || len(d.GetProcesses()) != 1 || d.GetProcesses()[0].GetIsa() != "avx2" || !d.GetProcesses()[0].GetUp() {
		t.Errorf("described %v", d)
	}
}
