package gateway

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestManyAtOnce runs requests in real time against peers that lose, repeat and forget, so that the
// race detector sees the goroutines as they are.
func TestManyAtOnce(t *testing.T) {
	w := newWorld()
	w.quiet = true
	w.openV, w.openD, w.propose, w.carry, w.verify, w.closes = 300*time.Microsecond, 200*time.Microsecond, 100*time.Microsecond,
		50*time.Microsecond, 100*time.Microsecond, 50*time.Microsecond
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		for operation, does := range faultsOf {
			if f := (fault{do: does[rng.IntN(len(does))], kind: tandem.UnknownSession,
				wait: time.Millisecond}); operation != "open-verifier" && rng.IntN(12) == 0 {
				w.faults[fmt.Sprintf("%s %d", operation, i)] = f
			}
		}
	}
	c := w.config()
	c.Sessions, c.Queue = 8, 100
	c.Timeouts.Round, c.Timeouts.VerifierWait = 10*time.Millisecond, time.Minute
	c.Timeouts.ProposeMin, c.Timeouts.ProposeMax = 2*time.Millisecond, 10*time.Millisecond
	c.Drafters = append(c.Drafters, w.enlisted("b"), w.enlisted("c"))
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	w.gw = g
	ctx, stop := context.WithCancel(context.Background())
	var noise, group sync.WaitGroup
	noise.Go(func() {
		for who := range 1000 {
			if pause(ctx, 15*time.Millisecond) != nil {
				return
			}
			w.restart([]string{"verifier", "drafter", "b", "c"}[who%4])
			switch who % 3 {
			case 0:
				g.Dismiss("b")
			case 1:
				g.Enlist(w.enlisted("b"))
			}
			g.VerifierState(who%4 == 0)
			g.DrafterState("fake", who%4 == 1)
		}
	})
	for i := range 24 {
		group.Go(func() {
			r := tandem.Request{Prompt: fmt.Sprint("func ", i), MaxTokens: 40, Sampling: tandem.Sampling{TopP: 1, Seed: uint64(i)},
				Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2},
				Strategy: []tandem.Strategy{tandem.StrategyFixed, tandem.StrategyPlanner, tandem.StrategyMinions,
					tandem.StrategyLLMCad}[i%4],
				Vote: []tandem.Vote{tandem.VoteAuto, tandem.VoteTree, tandem.VoteMajority}[i%3]}
			s := &sink{}
			if _, err := g.Generate(context.Background(), r, s); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			if want, text, _ := w.plain(r, 1000); !slices.Equal(s.tokens, want) || s.text != text {
				t.Errorf("request %d differs from plain decoding", i)
			}
		})
	}
	group.Wait()
	stop()
	noise.Wait()
	w.flights.Wait()
	if err := g.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if len(w.violations) > 0 {
		t.Errorf("contracts broken: %q", w.violations)
	}
	if w.held()+len(g.sessions) > 0 {
		t.Error("sessions left")
	}
	if p := unsettled(g); p != "" {
		t.Error(p)
	}
}

func TestBadRequests(t *testing.T) {
	w := newWorld()
	c := w.config()
	c.Limits = tandem.Limits{Context: 20, PromptBytes: 100, Nodes: 16}
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	good := tandem.Request{Prompt: "x", MaxTokens: 1, Sampling: tandem.Sampling{TopP: 1}}
	for want, change := range map[string]func(*tandem.Request){
		"prompt is empty":                 func(r *tandem.Request) { r.Prompt = "" },
		"prompt has 21 tokens":            func(r *tandem.Request) { r.Prompt = strings.Repeat("x", 20) },
		"prompt has 101 bytes":            func(r *tandem.Request) { r.Prompt = strings.Repeat("x", 101) },
		"not valid UTF-8 at byte 1":       func(r *tandem.Request) { r.Prompt = "x\xff" },
		"max_tokens is 0":                 func(r *tandem.Request) { r.MaxTokens = 0 },
		"prompt token 1 is 258":           func(r *tandem.Request) { r.Tokens = []tandem.Token{5, 258} },
		"temperature is NaN":              func(r *tandem.Request) { r.Sampling.Temperature = math.NaN() },
		"tree 17/2/2: nodes is 17: want ": func(r *tandem.Request) { r.Bounds = tandem.Bounds{Nodes: 17, Depth: 2, Width: 2} },
	} {
		r := good
		change(&r)
		_, err := g.Generate(context.Background(), r, &sink{})
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: want invalid, %q", err, want)
		}
	}
	if len(w.counts) > 0 {
		t.Errorf("bad requests reached the peers: %v", w.counts)
	}
}

func TestBadConfig(t *testing.T) {
	w := newWorld()
	for want, change := range map[string]func(*Config){
		"no vocabulary":        func(c *Config) { c.Vocab = nil },
		"no verifier":          func(c *Config) { c.Verifier = nil },
		"sessions is -1":       func(c *Config) { c.Sessions = -1 },
		"queue is -2":          func(c *Config) { c.Queue = -2 },
		"context is -3":        func(c *Config) { c.Limits.Context = -3 },
		"round timeout is -1s": func(c *Config) { c.Timeouts.Round = -time.Second },
		"want the least first": func(c *Config) { c.Timeouts.ProposeMin = time.Hour },
	} {
		c := w.config()
		change(&c)
		if _, err := New(c); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v: want invalid, %q", err, want)
		}
	}
}

// TestBudgetBeyondInt asks for as many tokens as an int holds: the context is the limit.
func TestBudgetBeyondInt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Limits.Context = 10
		w.gw, _ = New(c)
		s := &sink{}
		res, err := w.gw.Generate(context.Background(), tandem.Request{Tokens: []tandem.Token{5, 6}, MaxTokens: math.MaxInt,
			Sampling: tandem.Sampling{TopP: 1}}, s)
		if err != nil || res.OutputTokens != 8 || res.Finish != tandem.FinishLength || s.started.Request.MaxTokens != 8 {
			t.Errorf("%d tokens, finish %q, effective max_tokens %d, error %v: want 8, length, 8", res.OutputTokens, res.Finish,
				s.started.Request.MaxTokens, err)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestPanicHarmsOneRequest lets a sink panic; the request fails with the stack, the next one works.
func TestPanicHarmsOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Sessions = 1
		w.gw, _ = New(c)
		r := tandem.Request{Prompt: "x", MaxTokens: 3, Sampling: tandem.Sampling{TopP: 1}}
		_, err := w.gw.Generate(context.Background(), r, &sink{each: func(tandem.Delta) { panic("no room") }})
		if tandem.KindOf(err) != tandem.Internal || !strings.Contains(err.Error(), "no room") ||
			!strings.Contains(tandem.StackOf(err), "gateway_test.go") || strings.Contains(err.Error(), "goroutine") {
			t.Errorf("error %v: want internal with the panic, and its stack beside it", err)
		}
		if res, err := w.gw.Generate(context.Background(), r, &sink{}); err != nil || res.OutputTokens != 3 {
			t.Errorf("next request: %d tokens, %v", res.OutputTokens, err)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestQueueIsFair lets ten requests queue for one place: they are served in the order they came.
func TestQueueIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		c := w.config()
		c.Sessions, c.Queue = 1, 9
		w.gw, _ = New(c)
		var mu sync.Mutex
		var order []int
		var group sync.WaitGroup
		for i := range 10 {
			group.Go(func() {
				testkit.Sleep(time.Duration(i) * time.Millisecond)
				s := &sink{each: func(tandem.Delta) {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
				}}
				if _, err := w.gw.Generate(context.Background(),
					tandem.Request{Prompt: "x", MaxTokens: 1, Sampling: tandem.Sampling{TopP: 1}}, s); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if !slices.IsSorted(order) || len(order) != 10 {
			t.Errorf("served in order %v", order)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestSlowSink blocks one request's sink for 20 s at each piece: the other is not slowed.
func TestSlowSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		w.gw, _ = New(w.config())
		var group sync.WaitGroup
		r := tandem.Request{Prompt: "x", MaxTokens: 10, Sampling: tandem.Sampling{TopP: 1}}
		for _, block := range []time.Duration{20 * time.Second, 0} {
			group.Go(func() {
				res, err := w.gw.Generate(context.Background(), r, &sink{each: func(tandem.Delta) { testkit.Sleep(block) }})
				if took := time.Since(w.began); err != nil || block == 0 && took > time.Second {
					t.Errorf("sink of %v: done after %v, %v", block, took, err)
				}
				for _, d := range res.Stats.Coordination {
					if d > 10*time.Millisecond {
						t.Errorf("sink of %v: coordination of %v", block, d)
					}
				}
			})
		}
		group.Wait()
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestDeadline ends a request at its deadline, with the kind that says so.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		w.gw, _ = New(w.config())
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		res, err := w.gw.Generate(ctx, tandem.Request{Prompt: "x", MaxTokens: 10, Sampling: tandem.Sampling{TopP: 1}}, &sink{})
		if tandem.KindOf(err) != tandem.Deadline || res.OutputTokens != 3 || time.Since(w.began) != 30*time.Millisecond {
			t.Errorf("after %v, %d tokens, error %v: want a deadline after 30ms and 3 tokens", time.Since(w.began), res.OutputTokens, err)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// TestAdmitted: a client is told once that its request was admitted, before it has started; not if it was refused. Its error, or its
// panic, ends the request.
func TestAdmitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.quiet = true
		w.gw, _ = New(w.config())
		gone := tandem.Errorf("client", tandem.Canceled, "gone")
		for _, tc := range []struct {
			budget, times int
			f             func() error
			kind          tandem.Kind
		}{{0, 0, func() error { return nil }, tandem.Invalid}, {4, 1, func() error { return nil }, tandem.KindOf(nil)},
			{4, 1, func() error { return gone }, tandem.Canceled}, {4, 1, func() error { panic("bang") }, tandem.Internal}} {
			to, told := new(sink), 0
			ctx := tandem.WithAdmitted(context.Background(), func() error {
				if told++; to.started.Session != 0 {
					t.Error("it has started before it was admitted")
				}
				return tc.f()
			})
			_, err := w.gw.Generate(ctx, tandem.Request{Prompt: "x", MaxTokens: tc.budget, Sampling: tandem.Sampling{TopP: 1}}, to)
			if tandem.KindOf(err) != tc.kind || told != tc.times || err != nil && to.started.Session != 0 {
				t.Errorf("budget %d: told %d times, %v, want %d times and %v", tc.budget, told, err, tc.times, tc.kind)
			}
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

// FuzzDeliver throws arbitrary verdicts at a session; it must never crash or say anything else.
func FuzzDeliver(f *testing.F) {
	f.Add(uint8(0), int32(4), int32(1), int32(0), uint8(1), uint8(2))
	f.Add(uint8(3), int32(-1), int32(1<<30), int32(-7), uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, kind uint8, base, token, node int32, path, tokens uint8) {
		v := tandem.Verdict{Base: tandem.Position(base), Kind: tandem.Kind(kind)}
		for i := range min(path, 16) {
			v.Path = append(v.Path, node+int32(i))
		}
		for i := range min(tokens, 16) {
			v.Tokens = append(v.Tokens, tandem.Token(token)+tandem.Token(i))
		}
		if err := round.WellFormed(v, 16, vocabSize); err == nil {
			for i, n := range v.Path {
				if n < 1 || n > 15 || i > 0 && n <= v.Path[i-1] {
					t.Errorf("path %v taken", v.Path)
				}
			}
			for _, x := range v.Tokens {
				if x < 0 || x >= vocabSize {
					t.Errorf("tokens %v taken", v.Tokens)
				}
			}
			if len(v.Tokens) != len(v.Path)+1 {
				t.Errorf("%d tokens with a path of %d taken", len(v.Tokens), len(v.Path))
			}
		}
		b := newMailbox()
		b.arm(round.Question{Epoch: 1, Base: 4, Hash: 9})
		if b.offer(v) == "" || b.answered() {
			t.Errorf("verdict of epoch %d taken in epoch 1", v.Epoch)
		}
	})
}
