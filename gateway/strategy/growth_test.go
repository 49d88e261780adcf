package strategy

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

// asked replays a text in rounds that all ask one drafter for a tree of at most these bounds, which grows by the costs and by what was
// learned, and returns what it came to. Without costs the tree is as large as its bounds.
func (b *box) asked(r *recorded, name string, bounds tandem.Bounds, verify []time.Duration, chances *worth.Calibration) (sum tally) {
	d := r.drafter(name, b)
	for at := 0; at < len(r.text); {
		p := tandem.Proposal{Bounds: bounds, Growth: tandem.GrowBest, Temper: spec.DraftTemper(r.temperature)}
		p.Bounds.Depth = min(bounds.Depth, len(r.text)-at-1)
		if verify != nil {
			p.Plan = tandem.Plan{Verify: verify, Round: b.hop, Accept: chances.Accept()}
		}
		got := d.propose(at, p, 1)
		held := min(spec.Held(got.Tree, r.text[at:]), len(r.text)-at-1)
		rows := got.Tree.Len()
		sum.add(tally{tokens: held + 1, rounds: 1, nodes: rows, took: got.Busy + b.hop + b.verified.Time(rows)})
		chances.Record(got.Tree, r.text[at:at+held+1])
		at += held + 1
	}
	return sum
}

// TestGrowthOnTheRealPair: over the recorded answers, rounds that always ask the 0.5B for a tree that grows by what was learned bring more
// than any chain of a fixed length, on code and on edits. No choice of the planner takes part.
func TestGrowthOnTheRealPair(t *testing.T) {
	texts := readRecording(t, pairRecording)
	for name, b := range map[string]*box{"AVX-512": pairWide, "AVX2": pairNarrow} {
		verify := b.curve()
		for _, kind := range []string{"code", "edit"} {
			run := func(bounds tandem.Bounds, verify []time.Duration) (sum tally) {
				for _, r := range texts {
					if r.class == kind {
						sum.add(b.asked(r, pairDraft, bounds, verify, worth.NewCalibration()))
					}
				}
				return sum
			}
			plain := run(tandem.Bounds{}, nil)
			best, length := 0.0, 0
			for n := 1; n <= 6; n++ {
				if sum := run(tandem.Bounds{Nodes: n + 1, Depth: n, Width: 1}, nil); sum.rate() > best {
					best, length = sum.rate(), n
				}
			}
			grown := run(tandem.DefaultBounds(tandem.StrategyPlanner), verify)
			branch := run(tandem.Bounds{Nodes: 32, Depth: 31, Width: 1}, verify)
			t.Logf("%s, %s: trees %.3f of plain, %.2f tokens of %.1f nodes a round; one branch %.3f, %.2f of %.1f; a chain of %d %.3f",
				name, kind, grown.rate()/plain.rate(),
				float64(grown.tokens)/float64(grown.rounds), float64(grown.nodes)/float64(grown.rounds),
				branch.rate()/plain.rate(), float64(branch.tokens)/float64(branch.rounds), float64(branch.nodes)/float64(branch.rounds),
				length, best/plain.rate())
			if grown.rate() < best {
				t.Errorf("%s, %s: trees bring %.3f of plain, a chain of %d %.3f", name, kind, grown.rate()/plain.rate(), length,
					best/plain.rate())
			}
		}
	}
}

// TestLookupIsTrusted: rounds that always ask lookup for a tree that costs and chances cut bring at least 0.95 of the best fixed bounds of
// lookup in every class.
func TestLookupIsTrusted(t *testing.T) {
	type set struct {
		of    []*recorded
		b     *box
		where string
	}
	for _, x := range []set{
		{readRecording(t, pairRecording), pairWide, "real pair"},
		{readRecording(t, recording), zen4, "shipped models"},
	} {
		verify := x.b.curve()
		by := map[string][]*recorded{}
		for _, r := range x.of {
			by[r.class] = append(by[r.class], r)
		}
		for class, texts := range by {
			run := func(bounds tandem.Bounds, verify []time.Duration) (sum tally) {
				for _, r := range texts {
					sum.add(x.b.asked(r, lookup, bounds, verify, worth.NewCalibration()))
				}
				return sum
			}
			plain := run(tandem.Bounds{}, nil).rate()
			best, most := 0.0, 0
			for _, n := range []int{2, 3, 4, 6, 8, 12, 16, 24, 32} {
				if r := run(tandem.Bounds{Nodes: n, Depth: n - 1, Width: 8}, nil).rate(); r > best {
					best, most = r, n
				}
			}
			rate := run(tandem.DefaultBounds(tandem.StrategyPlanner), verify).rate()
			t.Logf("%s, %s: %.3f of plain; lookup with bounds of %d nodes %.3f", x.where, class, rate/plain, most, best/plain)
			if rate < 0.95*best {
				t.Errorf("%s, %s: %.2f tokens/s, bounds of %d nodes have %.2f", x.where, class, rate, most, best)
			}
		}
	}
}
