package verifier_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/verifier"
)

// openSide opens a draft with states of the tiny target, and says which of the target's it reads.
func openSide(t testing.TB, name string, sessions int) (*engine.Model, []int) {
	t.Helper()
	path, target := filepath.Join(sides, name+".gguf"), filepath.Join(sides, "target.gguf")
	side, err := engine.SideOf(path)
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.OpenDraft(path, target, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192,
		KVPages: engine.PagesFor(sessions, limit, drafter.DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m, side.Taps
}

// fedRig is a rig of the tiny target and a draft that reads its states.
func fedRig(t testing.TB, o rigOptions) (*rig, *engine.Model) {
	t.Helper()
	_, taps := openSide(t, o.side, 1)
	m := openTapped(t, filepath.Join(sides, "target.gguf"), max(o.sessions, 2)+1, 1, taps)
	o.verifier.Model, o.verifier.Taps = m, taps
	return newRig(t, o), m
}

// tinyText returns n tokens of the tiny target.
func tinyText(seed uint64, n int) (text []tandem.Token) {
	r := rand.New(rand.NewPCG(seed, 1))
	for range n {
		text = append(text, tandem.Token(60+r.IntN(200)))
	}
	return text
}

// sideNames are drafts that read states; those of blockNames never draft ahead.
var (
	sideNames  = []string{"dovetail", "dovetail-bare", "eagle", "eagle3"}
	blockNames = []string{"dflash"}
)

// TestFedText: with a draft that reads the target's states, eight sessions at a time write what plain decoding writes, with and without
// temperature, and the draft gets all features in time.
func TestFedText(t *testing.T) {
	for _, side := range slices.Concat(sideNames, blockNames) {
		t.Run(side, func(t *testing.T) {
			const sessions = 8
			r, _ := fedRig(t, rigOptions{side: side, sessions: sessions, drafter: drafter.Config{Chunk: 5},
				verifier: verifier.Config{Chunk: 7}})
			twin := plain{openModel(t, filepath.Join(sides, "target.gguf"), 2)}
			var group sync.WaitGroup
			texts, asks := make([][]tandem.Token, sessions), make([]asked, sessions)
			for i := range sessions {
				asks[i] = asked{prompt: tinyText(uint64(i), 1+5*i), tokens: 24, bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 3},
					sampling: tandem.Sampling{Temperature: 0.8 * float64(i%2), TopP: 1, Seed: uint64(i)},
					how:      tandem.Proposal{Ahead: i%3 == 0}}
				group.Go(func() {
					s, err := r.generate(asks[i])
					if err != nil {
						t.Error(err)
					}
					texts[i] = s.text
				})
			}
			group.Wait()
			for i := range sessions {
				if want := twin.generate(t, asks[i]); !slices.Equal(texts[i], want) {
					t.Errorf("session %d\ngot  %v\nwant %v", i, texts[i], want)
				}
			}
			n := r.counters.Snapshot()
			if n["features.came"] < 8*24 || n["features.missing"] > 0 || n["features.corrupt"] > 0 || n["faults"] > 0 ||
				n["drafts.nodes"] == 0 {
				t.Errorf("counted %v", featured(n))
			}
		})
	}
}

// featured returns the counters of features, drafts and faults.
func featured(n map[string]int64) map[string]int64 {
	for name := range n {
		if !strings.HasPrefix(name, "features.") && !strings.HasPrefix(name, "drafts") && name != "faults" {
			delete(n, name)
		}
	}
	return n
}
