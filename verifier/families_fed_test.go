package verifier_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/verifier"
)

// TestFamiliesFeedDrafts: a draft that reads hidden states drafts for a target of every architecture; the texts of eight requests at a time
// stay those of plain decoding.
func TestFamiliesFeedDrafts(t *testing.T) {
	dir := t.TempDir()
	for i, f := range family.All(3) {
		for _, kind := range []string{"eagle3", []string{"eagle", "dovetail", "dflash"}[i%3]} {
			t.Run(f.Name+", "+kind, func(t *testing.T) { feedDraft(t, f, kind, i, dir) })
		}
	}
}

// fedDraft returns the i-th shape of drafts of a kind: one to four taps, all tokens or some, its own output matrix or the target's.
func fedDraft(kind string, i, layers, vocab int) family.DraftShape {
	s := family.DraftShape{Kind: kind, Taps: []int{-1}, Bare: i%3 - 1}
	for n := range min(i%4, layers) {
		s.Taps = append([]int{n + 1}, s.Taps...)
	}
	if i%3 > 0 || kind == "eagle3" {
		s.Tokens, s.Output = vocab-10, i%2 == 0
	}
	return s
}

func feedDraft(t *testing.T, f *family.Model, kind string, i int, dir string) {
	const sessions = 8
	path := f.Write(t, dir)
	names, err := engine.Identify(t.Context(), path, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := engine.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	draft := family.Draft(fedDraft(kind, i, info.Config.Layers, f.Vocab), f, names.Lineage, names.Vocabulary, 1)
	draftPath := draft.Write(t, filepath.Dir(path))
	side, err := engine.SideOf(draftPath)
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.OpenDraft(draftPath, path, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 160,
		KVPages: engine.PagesFor(sessions, limit, drafter.DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	target := openTapped(t, path, sessions+1, 1, side.Taps)
	r := newRig(t, rigOptions{sessions: sessions, drafter: drafter.Config{Model: m, Taps: side.Taps},
		verifier: verifier.Config{Model: target, Taps: side.Taps}})
	twin := plain{openModel(t, path, 1)}
	var all sync.WaitGroup
	for i := range sessions {
		rng := rand.New(rand.NewPCG(uint64(i), 4))
		a := asked{sampling: greedy, tokens: 16, bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}}
		if i%2 == 1 {
			a.sampling = tandem.Sampling{Temperature: 0.8, TopP: 0.95, Seed: uint64(i)}
		}
		for range 3 + 5*i {
			a.prompt = append(a.prompt, tandem.Token(3+rng.IntN(f.Vocab-3)))
		}
		want := twin.generate(t, a)
		all.Go(func() {
			if s, err := r.generate(a); err != nil || !slices.Equal(s.text, want) {
				t.Errorf("request %d: %v\n got %v\nwant %v", i, err, s.text, want)
			}
		})
	}
	all.Wait()
	n := r.counters.Snapshot()
	if n["features.came"] == 0 || n["features.corrupt"]+n["features.stale"]+n["faults"]+n["tickets.invalid"] != 0 {
		t.Errorf("counters %v: want features that came, and no faults", n)
	}
}
