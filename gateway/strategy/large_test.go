package strategy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// processor is a machine as the formula of passes sees it.
type processor struct {
	name       string
	read, macs float64    // bytes a second, and int8 multiply-adds a second of all cores
	share      [7]float64 // of the limit that whole passes of Q4_K_M reach at largeWidths
}

var largeWidths = [7]int{1, 2, 4, 8, 16, 32, 64}

// Shares are those of docs/measurements/kernels.md: whole passes of an 8B on two cores, by instruction set, and on 16. So are the rates of
// a core, 92 and 236 billion multiply-adds a second (Zen 3, Zen 4), and those of the 16 cores. 60 GB/s are two thirds of two channels of
// DDR5-5600.
var (
	narrowShare = [7]float64{0.87, 0.81, 0.87, 0.92, 1.04, 1.02, 1.03}
	wideShare   = [7]float64{0.84, 0.83, 0.80, 0.71, 0.52, 0.55, 0.56}
	processors  = []processor{
		{"8 cores, AVX2, 60 GB/s", 60e9, 8 * 92e9, narrowShare},
		{"8 cores, AVX-512, 60 GB/s", 60e9, 8 * 236e9, wideShare},
		{"16 cores, AVX2, 159 GB/s", 159e9, 16 * 92e9, narrowShare},
		{"16 cores, AVX-512, 159 GB/s", 159e9, 3199e9, [7]float64{0.75, 0.71, 0.67, 0.56, 0.48, 0.52, 0.53}},
	}
)

// weight is what a pass has to do: bytes that it reads, and multiply-adds of a row.
type weight struct {
	name        string
	bytes, macs float64
}

// Models as bench decode counts them (Q4_K_M). A block has .043 of its target's time, as the one that was trained for a real target has.
var (
	largeTargets = []weight{{"Qwen2.5-7B", 4.37e9, 7.07e9}, {"Llama-3.1-8B", 4.62e9, 7.50e9}, {"Qwen3-8B", 4.68e9, 7.57e9}}
	sister       = weight{"Qwen2.5-0.5B", 485e6, 494e6}
	trimmedSis   = weight{"trimmed", 325e6, 402e6} // with fewer output rows, Q4_0
)

const blockShare = 0.043

// passes returns T_V(W) or T_D(W) by the formula: the longer of reading the weights and the multiply-adds, over the share of it that is
// reached. Shares differ by chance, so a pass takes no longer than a wider one.
func (p processor) passes(w weight) (list []tandem.Cost) {
	for i, rows := range largeWidths {
		limit := max(w.bytes/p.read, float64(rows)*w.macs/p.macs)
		list = append(list, tandem.Cost{Rows: rows, Time: time.Duration(limit / p.share[i] * 1e9)})
	}
	for i := len(list) - 2; i >= 0; i-- {
		list[i].Time = min(list[i].Time, list[i+1].Time)
	}
	return list
}

// planner returns tokens a second of the planner with some drafters on texts, and of plain decoding.
func (x bench) planner(t testing.TB, texts []*recorded, names []string) (planner, plain float64) {
	t.Helper()
	rules, err := Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	shared := x.gateway(rules)
	var sum, alone tally
	for _, r := range texts {
		req := planned()
		req.Sampling.Temperature = r.temperature
		sum.add(x.box.replay(r, req, shared, names))
		alone.add(tally{tokens: len(r.text), took: time.Duration(len(r.text)) * (x.box.plain + x.box.verified.Time(1))})
	}
	if sum.tokens != alone.tokens {
		t.Errorf("%s: %d tokens were replayed: want %d", x.name, sum.tokens, alone.tokens)
	}
	return sum.rate(), alone.rate()
}

// TestLargeTargets replays the planner on computed costs of targets of 7 to 8 billion weights: with what a sister of a third of the target,
// the same trimmed, and free drafters guessed along a real target's answers, and with a block that is as often right as the trained one was
// in use and on held-out answers (2.25 and 2.52 tokens a round of a chain of three).
func TestLargeTargets(t *testing.T) {
	for _, p := range processors {
		for _, w := range largeTargets {
			verify := p.passes(w)
			block := make([]tandem.Cost, len(verify))
			for i, c := range verify {
				block[i] = tandem.Cost{Rows: c.Rows, Time: time.Duration(blockShare * float64(c.Time))}
			}
			best := 0.0
			var line strings.Builder
			for _, c := range verify {
				fmt.Fprintf(&line, " %.0f", c.Time.Seconds()*1e3)
			}
			of := func(what string, x bench, texts []*recorded, names []string) {
				planner, plain := x.planner(t, texts, names)
				fmt.Fprintf(&line, "; %s %.2f (%.1f tokens/s)", what, planner/plain, planner)
				best = max(best, planner/plain)
			}
			pair := bench{w.name, pairRecording, pairDraft, newPairBox(verify, p.passes(sister)), bars{}}
			of("0.5B", pair, pair.texts(t, true), pair.everyone())
			of("free", pair, pair.texts(t, true), free)
			trimmed := bench{w.name, pairRecording, trimmedDraft, newPairBox(verify, p.passes(trimmedSis)), bars{}}
			of("trimmed", trimmed, trimmed.texts(t, true), trimmed.everyone())
			trained := bench{w.name, pairRecording, pairDraft, newPairBox(verify, block), bars{}}
			of("block", trained, texts("block", 8, 0.62, 0.1), inventedNames)
			of("block, its kinds of texts", trained, texts("block", 8, 0.7, 0.1), inventedNames)
			t.Logf("%s, %s: ms of 1 to 64 rows%s", p.name, w.name, line.String())
			if best < 2.2 {
				t.Errorf("%s, %s: %.2f times plain decoding at best: want 2.2", p.name, w.name, best)
			}
		}
	}
}
