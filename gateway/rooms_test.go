package gateway_test

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/mempool"
	"github.com/tandem-llm/tandem/verifier"
)

const (
	targetFile = "../models/gopher-19m-q8_0.gguf"
	draftFile  = "../models/gopher-draft-all-f16.gguf"
	positions  = 128
)

// tokensOf is a sink that keeps the tokens.
type tokensOf []tandem.Token

func (*tokensOf) Started(tandem.Started) error { return nil }
func (s *tokensOf) Delta(d tandem.Delta) error { *s = append(*s, d.Tokens...); return nil }

// TestRoomsInOneProcess is a tandem without services: real models, all three rooms, several requests at
// once. Speculation, and peers that forget everything, change no token.
func TestRoomsInOneProcess(t *testing.T) {
	g, d, v := assemble(t)
	prompts := []string{"func (r *Reader) Read(", "def main(", "package sort\n\n// "}
	request := func(i int, p tandem.Policy) tandem.Request {
		s := tandem.Sampling{TopP: 1}
		if i%2 == 1 {
			s = tandem.Sampling{Temperature: 0.8, TopP: 0.95, Seed: uint64(i)}
		}
		return tandem.Request{Prompt: prompts[i%len(prompts)], MaxTokens: 40, IgnoreEOS: true, Sampling: s, Policy: p}
	}
	all := func(p tandem.Policy) (out [6]tokensOf, accepted int) {
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range out {
			group.Go(func() {
				res, err := g.Generate(context.Background(), request(i, p), &out[i])
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
	plain, _ := all(tandem.Policy{})
	tree := tandem.Policy{Nodes: 16, Depth: 7, Width: 10}
	same := func(when string, got [6]tokensOf) {
		for i := range got {
			if len(got[i]) != 40 || !slices.Equal(got[i], plain[i]) {
				t.Errorf("request %d, %s: tokens %v, want %v", i, when, got[i], plain[i])
			}
		}
	}
	drafted, accepted := all(tree)
	if same("drafted", drafted); accepted < 40 {
		t.Errorf("%d of 240 tokens were accepted drafts: want at least 40", accepted)
	}
	var forgetting sync.WaitGroup
	ctx, stop := context.WithCancel(context.Background())
	forgetting.Go(func() {
		for who := 0; ; who++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(25 * time.Millisecond):
			}
			forget := d.CloseAll
			if who%3 == 1 {
				forget = v.CloseAll
			}
			if err := forget(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	forgotten, _ := all(tree)
	stop()
	forgetting.Wait()
	same("peers forget", forgotten)
}

// assemble wires the three rooms over a pool in memory.
func assemble(t *testing.T) (*gateway.Gateway, *drafter.Drafter, *verifier.Verifier) {
	t.Helper()
	for _, f := range []string{targetFile, draftFile} {
		if _, err := os.Stat(f); err != nil {
			t.Skipf("no model: %v", err)
		}
	}
	open := func(file string) *engine.Model {
		m, err := engine.Open(file, engine.Options{Threads: 1, MaxRows: 192, KVPages: engine.PagesFor(8, positions, drafter.DefaultTreeRows)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	target, draft := open(targetFile), open(draftFile)
	pool := mempool.New(32)
	counters := new(tandem.Counters)
	var g *gateway.Gateway
	v, err := verifier.New(verifier.Config{Model: target, Counters: counters, Deliver: func(x tandem.Verdict) { g.Deliver(x) }})
	if err != nil {
		t.Fatal(err)
	}
	d, err := drafter.New(drafter.Config{Model: draft, Name: "all", Pool: pool, Counters: counters})
	if err != nil {
		t.Fatal(err)
	}
	g, err = gateway.New(gateway.Config{Vocab: gateway.FromToken(target.Vocab()), Verifier: v, Drafter: d, DrafterName: "all", Pool: pool,
		Limits: tandem.Limits{Context: positions}, Sessions: 6, Counters: counters})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = v.Run(ctx, pool) }) // ends with ctx, as its error says
	t.Cleanup(func() {
		limited, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := g.Shutdown(limited); err != nil {
			t.Error(err)
		}
		stop()
		running.Wait()
		for _, shutdown := range []func(context.Context) error{d.Shutdown, v.Shutdown} {
			if err := shutdown(limited); err != nil {
				t.Error(err)
			}
		}
		t.Log(counters.Snapshot())
	})
	return g, d, v
}
