package spec

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

func TestCutByTheBook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := treeOf(t, "tree")
		plan := tandem.Plan{Round: time.Duration(rapid.IntRange(0, 5).Draw(t, "round")) * time.Millisecond,
			Others: float64(rapid.IntRange(0, 3).Draw(t, "others"))}
		for i := range rapid.IntRange(1, 16).Draw(t, "widths") {
			plan.Verify = append(plan.Verify, time.Duration(rapid.IntRange(1, 40).Draw(t, fmt.Sprint("verify ", i)))*time.Millisecond)
		}
		if rapid.Bool().Draw(t, "calibrated") {
			for i := range tandem.AcceptBins() {
				plan.Accept = append(plan.Accept, float32(rapid.IntRange(0, 4).Draw(t, fmt.Sprint("accept ", i)))/4)
			}
		}
		draft := time.Duration(rapid.IntRange(0, 3).Draw(t, "draft")) * time.Millisecond
		cut, kept := Cut(tree, plan, draft)
		if err := cut.Validate(len(plan.Verify), 8); err != nil {
			t.Fatal(err)
		}
		chanceOf := func(i int) float64 { // the least on the way to the root
			least := 1.0
			for ; i > 0; i = int(tree.Parents[i]) {
				lp := float32(0)
				if tree.LogProbs != nil {
					lp = tree.LogProbs[i]
				}
				if lp != lp {
					lp = float32(math.Inf(-1))
				}
				p := min(math.Exp(float64(lp)), 1)
				if plan.Accept != nil {
					p = 1
					for _, a := range plan.Accept[:tandem.AcceptBin(lp)+1] {
						p = min(p, float64(a))
					}
				}
				least = min(least, p)
			}
			return least
		}
		rate := func(chances []float64) float64 {
			sum := plan.Others + 1
			for _, c := range chances {
				sum += c
			}
			return sum / (draft + plan.Round + plan.Verify[len(chances)]).Seconds()
		}
		var all, got []float64
		for i := 1; i < tree.Len(); i++ {
			all = append(all, chanceOf(i))
		}
		slices.SortFunc(all, func(a, b float64) int { return cmp.Compare(b, a) })
		want := 0.0
		for w := 0; w <= len(all) && w < len(plan.Verify); w++ {
			want = max(want, rate(all[:w]))
		}
		for i, at := range kept {
			if i > 0 {
				got = append(got, chanceOf(int(at)))
			}
			if cut.Tokens[i] != tree.Tokens[at] || !slices.Equal(pathOf(cut, int32(i)), pathOf(tree, at)) {
				t.Fatalf("node %d is not node %d of the tree", i, at)
			}
		}
		if r := rate(got); math.Abs(r-want) > 1e-9*want {
			t.Fatalf("rate %v with %v, best %v", r, kept, want)
		}
	})
}

func TestCutWithoutAPlan(t *testing.T) {
	tree := chainOf(-1, 1, 2, 3)
	cut, kept := Cut(tree, tandem.Plan{}, 0)
	if cut.Len() != 4 || len(kept) != 4 {
		t.Errorf("kept %v", kept)
	}
	if cut.Tokens[1] = 9; tree.Tokens[1] != 1 {
		t.Error("the cut is no copy")
	}
}

func TestWorth(t *testing.T) {
	plan := tandem.Plan{Round: time.Millisecond}
	for w := range 16 {
		plan.Verify = append(plan.Verify, time.Duration(40+max(w-7, 0)*5)*time.Millisecond)
	}
	sure, poor := chainOf(-0.1, 1, 2, 3), chainOf(-3, 1, 2)
	ms := time.Millisecond
	for _, c := range []struct {
		name   string
		tree   tandem.Tree
		plan   tandem.Plan
		step   time.Duration
		leaves []float32
		want   bool
	}{
		{"a sure chain goes on", sure, plan, ms / 2, []float32{-0.3}, true},
		{"not at any price", sure, plan, 30 * ms, []float32{-0.3}, false},
		{"a poor one ends", poor, plan, ms, []float32{-6}, false},
		{"nothing to run", sure, plan, 0, nil, false},
		{"no plan", poor, tandem.Plan{}, time.Second, []float32{-20}, true},
		{"the root alone", chainOf(0), plan, ms, []float32{0}, true},
	} {
		if got := Worth(c.tree, c.plan, 2*ms, c.step, c.leaves); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// wide is a tree of n nodes like those of a drafter.
func wide(n int) tandem.Tree {
	r := rand.New(rand.NewPCG(1, 1))
	t := tandem.Root(7)
	t.LogProbs = []float32{0}
	for i := 1; i < n; i++ {
		p := int32(r.IntN(i))
		t.Tokens, t.Parents = append(t.Tokens, tandem.Token(i)), append(t.Parents, p)
		t.LogProbs = append(t.LogProbs, t.LogProbs[p]-r.Float32()*2)
	}
	return t
}

func widePlan() tandem.Plan {
	p := tandem.Plan{Accept: learn.NewCalibration(learn.DefaultTuning().Calibration).Accept()}
	for w := range 64 {
		p.Verify = append(p.Verify, time.Duration(40+w)*time.Millisecond)
	}
	return p
}

func BenchmarkCut64(b *testing.B) {
	t, p := wide(64), widePlan()
	for b.Loop() {
		Cut(t, p, time.Millisecond)
	}
}

func BenchmarkWorth64(b *testing.B) {
	t, p := wide(64), widePlan()
	for b.Loop() {
		Worth(t, p, time.Millisecond, time.Millisecond, t.LogProbs[54:])
	}
}

func BenchmarkMerge3x32(b *testing.B) {
	ballots := []Ballot{{wide(32), 1}, {wide(32), 2}, {wide(32), 0.5}}
	for b.Loop() {
		Merge(ballots, 16)
	}
}

func BenchmarkMajority3x32(b *testing.B) {
	ballots := []Ballot{{wide(32), 1}, {wide(32), 2}, {wide(32), 0.5}}
	for b.Loop() {
		Majority(ballots)
	}
}
