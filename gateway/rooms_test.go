package gateway_test

import (
	"context"
	"flag"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/mempool"
	"github.com/tandem-llm/tandem/verifier"
)

const (
	targetFile = "../models/gopher-19m-q8_0.gguf"
	positions  = 128
)

var long = flag.Bool("long", false, "try all combinations of strategies, votes and techniques")

// room is a drafter and what ends it.
type room interface {
	tandem.Drafter
	CloseOwned(ctx context.Context, owner uint64) error
	Shutdown(context.Context) error
}

// tokensOf is a sink that keeps the tokens.
type tokensOf []tandem.Token

func (*tokensOf) Progress(tandem.PromptProgress) error { return nil }
func (*tokensOf) Started(tandem.Started) error         { return nil }
func (s *tokensOf) Delta(d tandem.Delta) error         { *s = append(*s, d.Tokens...); return nil }

// progress is a sink that tells of each round as well.
type progress struct {
	*tokensOf
	round func()
}

func (p progress) Delta(d tandem.Delta) error { p.round(); return p.tokensOf.Delta(d) }

func requestsOf() *[6]chan struct{} {
	var all [6]chan struct{}
	for i := range all {
		all[i] = make(chan struct{}, 1)
	}
	return &all
}

// TestRoomsInOneProcess is a tandem without services: real models, all three rooms, several requests at
// once. Speculation, and peers that forget everything, change no token.
func TestRoomsInOneProcess(t *testing.T) {
	g, d, v := assemble(t, "all")
	prompts := []string{"func (r *Reader) Read(", "def main(", "package sort\n\n// "}
	request := func(i int, p tandem.Bounds) tandem.Request {
		s := tandem.Sampling{TopP: 1}
		if i%2 == 1 {
			s = tandem.Sampling{Temperature: 0.8, TopP: 0.95, Seed: uint64(i)}
		}
		return tandem.Request{Prompt: prompts[i%len(prompts)], MaxTokens: 40, IgnoreEOS: true, Sampling: s, Bounds: p}
	}
	// going tells that a request has gone on, and is closed when it has ended.
	all := func(p tandem.Bounds, going *[6]chan struct{}) (out [6]tokensOf, accepted int) {
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range out {
			group.Go(func() {
				defer close(going[i])
				res, err := g.Generate(context.Background(), request(i, p), progress{&out[i], func() {
					select {
					case going[i] <- struct{}{}:
					default: // it is told already
					}
				}})
				if err != nil {
					t.Errorf("request %d, tree %v: %v", i, p, err)
				}
				mu.Lock()
				defer mu.Unlock()
				accepted += res.Stats.Accepted
			})
		}
		group.Wait()
		return out, accepted
	}
	plain, _ := all(tandem.Bounds{}, requestsOf())
	tree := tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}
	same := func(when string, got [6]tokensOf) {
		for i := range got {
			if len(got[i]) != 40 || !slices.Equal(got[i], plain[i]) {
				t.Errorf("request %d, %s: tokens %v, want %v", i, when, got[i], plain[i])
			}
		}
	}
	drafted, accepted := all(tree, requestsOf())
	if same("drafted", drafted); accepted < 40 {
		t.Errorf("%d of 240 tokens were accepted drafts: want at least 40", accepted)
	}
	going := requestsOf()
	var forgetting sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	forgetting.Go(func() {
		for who := 0; ; who++ {
			for range 3 { // nobody is made to forget a request again before it has gone on
				for _, on := range going {
					<-on
				}
			}
			if ctx.Err() != nil {
				return
			}
			forget := d[0].CloseOwned
			if who%3 == 1 {
				forget = v.CloseOwned
			}
			if err := forget(context.Background(), 0); err != nil {
				t.Error(err)
			}
		}
	})
	forgotten, _ := all(tree, going)
	stop()
	forgetting.Wait()
	same("peers forget", forgotten)
}

// TestStrategiesInOneProcess runs every strategy and vote with three experts and the one without a model:
// the text is that of plain decoding, the drafters have shares in it, and drafting makes fewer rounds.
func TestStrategiesInOneProcess(t *testing.T) {
	g, _, _ := assemble(t, "go", "py", "prose", lookup.Name)
	prompts := []string{"func (r *Reader) Read(", "def main(", "It was a dark night, and the old man"}
	request := tandem.Request{MaxTokens: 60, IgnoreEOS: true, Sampling: tandem.Sampling{TopP: 1}}
	plain := make([]tokensOf, len(prompts))
	for i, p := range prompts {
		r := request
		r.Prompt = p
		if _, err := g.Generate(context.Background(), r, &plain[i]); err != nil {
			t.Fatal(err)
		}
	}
	for a, strategy := range []tandem.Strategy{tandem.StrategyFixed, tandem.StrategyLLMCad, tandem.StrategyMinions,
		tandem.StrategyPlanner} {
		for b, vote := range []tandem.Vote{tandem.VoteNone, tandem.VoteMajority, tandem.VoteTree} {
			for c, without := range []tandem.Technique{0, tandem.TechniqueBranches | tandem.TechniqueAdaptive | tandem.TechniqueAhead} {
				if !*long && (a+b+c)%2 > 0 { // of the rest any two of the three still meet
					continue
				}
				var group sync.WaitGroup
				stats := make([]tandem.Stats, len(prompts))
				for i, p := range prompts {
					group.Go(func() {
						var got tokensOf
						r := request
						r.Prompt, r.Strategy, r.Vote, r.Without = p, strategy, vote, without
						r.Bounds = tandem.Bounds{Nodes: 16, Depth: 7, Width: 4}
						res, err := g.Generate(context.Background(), r, &got)
						if stats[i] = res.Stats; err != nil || !slices.Equal(got, plain[i]) {
							t.Errorf("%s, vote %s, without %v, prompt %d: tokens %v, error %v, want %v", strategy, vote, without.Names(), i,
								got, err, plain[i])
						}
					})
				}
				group.Wait()
				rounds, held := 0, 0
				for _, st := range stats {
					rounds += st.Rounds
					for _, d := range st.Drafters {
						held += d.Accepted
					}
				}
				if strategy != tandem.StrategyPlanner && (rounds > 170 || held < 10) {
					t.Errorf("%s, vote %s, without %v: %d rounds for 180 tokens, %d held by drafts", strategy, vote, without.Names(),
						rounds, held)
				}
				t.Logf("%s, vote %s, without %v: %d rounds; %+v %v ahead %d of %d", strategy, vote, without.Names(), rounds,
					stats[0].Drafters, stats[0].Choices, stats[0].AheadHits, stats[0].AheadTries)
			}
		}
	}
}

// TestTypicalBesideExactInOneProcess: a lossy request's statistics say so; an exact one's that runs at the same time say nothing, and its
// text is that of plain decoding.
func TestTypicalBesideExactInOneProcess(t *testing.T) {
	g, _, _ := assemble(t, "go", lookup.Name)
	exact := tandem.Request{Prompt: "func (r *Reader) Read(", MaxTokens: 60, IgnoreEOS: true,
		Sampling: tandem.Sampling{Temperature: 1, TopP: 1, Seed: 3}}
	var plain, got, lossy tokensOf
	if _, err := g.Generate(context.Background(), exact, &plain); err != nil {
		t.Fatal(err)
	}
	exact.Strategy, exact.Bounds = tandem.StrategyFixed, tandem.Bounds{Nodes: 16, Depth: 7, Width: 4}
	typical := exact
	typical.Sampling.Accept = tandem.AcceptTypical
	var group sync.WaitGroup
	var results [2]tandem.Result
	for i, r := range []tandem.Request{exact, typical} {
		group.Go(func() {
			var err error
			if results[i], err = g.Generate(context.Background(), r, []*tokensOf{&got, &lossy}[i]); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if !slices.Equal(got, plain) || results[0].Stats.Accept != "" {
		t.Errorf("exact: accept %q, tokens\n%v, want\n%v", results[0].Stats.Accept, got, plain)
	}
	t.Logf("rounds: %d exact, %d typical", results[0].Stats.Rounds, results[1].Stats.Rounds)
	if results[1].Stats.Accept != "typical" || len(lossy) != 60 || results[1].Stats.Rounds > results[0].Stats.Rounds {
		t.Errorf("typical: accept %q, %d tokens in %d rounds", results[1].Stats.Accept, len(lossy), results[1].Stats.Rounds)
	}
}

// assemble wires the three rooms over a pool in memory, with those draft models, and lookup.Drafter and recycling by their
// names.
func assemble(t *testing.T, drafts ...string) (*gateway.Gateway, []room, *verifier.Verifier) {
	t.Helper()
	return assembleWith(t, func(*verifier.Config) {}, drafts...)
}

// assembleWith is assemble with a verifier that is configured as change says.
func assembleWith(t *testing.T, change func(*verifier.Config), drafts ...string) (*gateway.Gateway, []room, *verifier.Verifier) {
	t.Helper()
	fileOf := func(name string) string { return "../models/gopher-draft-" + name + "-f16.gguf" }
	needed := []string{targetFile}
	for _, name := range drafts {
		if name != lookup.Name && name != tandem.Recycling {
			needed = append(needed, fileOf(name))
		}
	}
	for _, f := range needed {
		if _, err := os.Stat(f); err != nil {
			t.Skipf("no model: %v", err)
		}
	}
	open := func(file string) *engine.Model {
		m, err := engine.Open(file, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192,
			KVPages: engine.PagesFor(10, positions, drafter.DefaultTreeRows)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	target := open(targetFile)
	counters := new(tandem.Counters)
	config := verifier.Config{Model: target, Counters: counters}
	change(&config)
	v, err := verifier.New(config)
	if err != nil {
		t.Fatal(err)
	}
	pool := mempool.Pool{Verifier: v}
	var rooms []room
	var enlisted []gateway.Enlisted
	recycling := slices.Contains(drafts, tandem.Recycling)
	for _, name := range drafts {
		var d room
		if name == tandem.Recycling {
			continue
		}
		if name == lookup.Name {
			d, err = lookup.New(lookup.Config{Vocab: target.Vocab().Size(), Pool: pool, Counters: counters})
		} else {
			d, err = drafter.New(drafter.Config{Model: open(fileOf(name)), Name: name, Pool: pool, Counters: counters})
		}
		if err != nil {
			t.Fatal(err)
		}
		rooms, enlisted = append(rooms, d), append(enlisted, gateway.Enlisted{Name: name, Drafter: d})
	}
	g, err := gateway.New(gateway.Config{Vocab: gateway.FromToken(target.Vocab()), Verifier: v, Drafters: enlisted, Recycling: recycling,
		Limits: tandem.Limits{Context: positions}, Sessions: 8, Counters: counters,
		Timeouts: gateway.Timeouts{ProposeMin: 10 * time.Second, ProposeMax: 20 * time.Second}}) // a busy machine drafts late
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	began := make(chan struct{})
	running.Go(func() {
		_ = v.Verdicts(ctx, tandem.Subscription{Began: func() { close(began) }, Deliver: func(all []tandem.Verdict) {
			for _, x := range all {
				g.Deliver(x)
			}
		}})
	})
	<-began
	t.Cleanup(func() {
		limited, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Shutdown(limited); err != nil {
			t.Error(err)
		}
		stop()
		running.Wait()
		for _, d := range rooms {
			if err := d.Shutdown(limited); err != nil {
				t.Error(err)
			}
		}
		if err := v.Shutdown(limited); err != nil {
			t.Error(err)
		}
		t.Log(counters.Snapshot())
	})
	return g, rooms, v
}
