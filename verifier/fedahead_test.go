package verifier_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/verifier"
)

const dovetailFile = "../models/gopher-dovetail-q8_0.gguf"

// apartRig is a rig of the shipped target and Dovetail's draft, each on an emulated processor of its own, whose passes sleep.
func apartRig(t testing.TB, sessions int, gain float64, target, draft func(rows int) time.Duration) *rig {
	t.Helper()
	spec, err := engine.SideOf(dovetailFile)
	if err != nil {
		t.Fatal(err)
	}
	options := func(took func(int) time.Duration) engine.Options {
		return engine.Options{Device: testdevice.Slow(testdevice.CPU(t, 1), took), MaxRows: 192,
			KVPages: engine.PagesFor(sessions+1, limit, drafter.DefaultTreeRows)}
	}
	o := options(target)
	o.Taps = spec.Taps
	of, err := engine.Open(targetFile, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(of.Close)
	m, err := engine.OpenDraft(dovetailFile, targetFile, options(draft))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	var costs []tandem.Cost
	for _, rows := range []int{1, 8, 64, 192} {
		costs = append(costs, tandem.Cost{Rows: rows, Time: target(rows)})
	}
	return newRig(t, rigOptions{sessions: sessions, verifier: verifier.Config{Model: of, Taps: spec.Taps, Costs: costs},
		drafter: drafter.Config{Model: m, Taps: spec.Taps, AheadGain: gain}})
}

// TestFedAhead: with a draft that reads the target's states and a processor of its own, which drafts ahead, the text is the target's, and
// what was drafted ahead is used. On shared cores nothing is drafted ahead.
func TestFedAhead(t *testing.T) {
	for gain, want := range map[float64]bool{0: true, 0.7: false} {
		t.Run(fmt.Sprintf("gain=%v", gain), func(t *testing.T) {
			took := func(ms int) func(int) time.Duration {
				return func(int) time.Duration { return time.Duration(ms) * time.Millisecond }
			}
			r := apartRig(t, 2, gain, took(60), took(1))
			twin := plain{openModel(t, targetFile, 2)}
			for i, prompt := range prompts[:2] {
				a := asked{prompt: r.encode(t, prompt), tokens: 32, bounds: tandem.Bounds{Nodes: 4, Depth: 3, Width: 1},
					sampling: tandem.Sampling{Temperature: 0.8 * float64(i), TopP: 1, Seed: 7}, how: tandem.Proposal{Ahead: true}}
				s, err := r.generate(a)
				if want := twin.generate(t, a); err != nil || !slices.Equal(s.text, want) {
					t.Errorf("got  %v, %v\nwant %v", s.text, err, want)
				}
			}
			n := r.counters.Snapshot()
			if n["faults"] > 0 || n["ahead.hits"] > 0 != want || !want && n["ahead.nodes"] > 0 {
				t.Errorf("%d hits and %d misses of %d nodes ahead, %d faults", n["ahead.hits"], n["ahead.misses"], n["ahead.nodes"],
					n["faults"])
			}
		})
	}
}

// encode returns the tokens of a text.
func (r *rig) encode(t testing.TB, text string) []tandem.Token {
	t.Helper()
	m := openModel(t, targetFile, 1)
	return m.Vocab().Encode(text, true)
}

// TestFedTextAhead: with each kind of draft that reads states, sessions that go ahead write what plain decoding writes.
func TestFedTextAhead(t *testing.T) {
	for _, side := range sideNames {
		t.Run(side, func(t *testing.T) {
			r, _ := fedRig(t, rigOptions{side: side, sessions: 1, drafter: drafter.Config{Chunk: 5}})
			twin := plain{openModel(t, filepath.Join(sides, "target.gguf"), 2)}
			for i := range 3 {
				a := asked{prompt: tinyText(uint64(i), 4), tokens: 40, bounds: tandem.Bounds{Nodes: 12, Depth: 2, Width: 8},
					sampling: tandem.Sampling{Temperature: 0.4 * float64(i), TopP: 1, Seed: 3}, how: tandem.Proposal{Ahead: true}}
				s, err := r.generate(a)
				if want := twin.generate(t, a); err != nil || !slices.Equal(s.text, want) {
					t.Errorf("got  %v, %v\nwant %v", s.text, err, want)
				}
			}
			if n := r.counters.Snapshot(); n["ahead.nodes"] == 0 || n["faults"] > 0 {
				t.Errorf("%d nodes ahead, %d faults", n["ahead.nodes"], n["faults"])
			}
		})
	}
}

// BenchmarkFedAhead decodes with Dovetail's draft in turn and ahead, chains of 3. Passes sleep: the target those of 0.97 b (elsewhere and
// zen5), the draft a share of that for a row, so that both seem to have processors of their own. In turn and ahead alternate, so that
// what disturbs the machine disturbs both; ratios are tokens/s ahead over in turn.
func BenchmarkFedAhead(b *testing.B) {
	targets := map[string]func(rows int) time.Duration{"zen4": elsewhere, "zen5": zen5.Time}
	for _, name := range []string{"zen4", "zen5"} {
		for _, share := range []float64{0.05, 0.1, 0.2} {
			for _, sessions := range []int{1, 4} {
				b.Run(fmt.Sprintf("%s/draft=%v/sessions=%d", name, share, sessions), func(b *testing.B) {
					draft := func(rows int) time.Duration {
						return time.Duration(share * float64(targets[name](1)) * (1 + float64(rows-1)/20))
					}
					c := crowd{rig: apartRig(b, sessions, 0, targets[name], draft), vocab: openModel(b, targetFile, 1).Vocab(),
						sessions: sessions, length: 3}
					c.decode(b, 0, 4) // prompts are known from here on
					var sums [2]flow
					for b.Loop() {
						for i := range sums {
							c.ahead = i == 1
							f, _ := c.decode(b, 0, 100)
							sums[i].join(f)
						}
					}
					n := c.counters.Snapshot()
					b.ReportMetric(sums[0].rate(), "in-turn-tokens/s")
					b.ReportMetric(sums[1].rate()/sums[0].rate(), "ahead-over-in-turn")
					b.ReportMetric(float64(n["ahead.hits"])/float64(max(n["ahead.hits"]+n["ahead.misses"], 1)), "hits")
				})
			}
		}
	}
}
