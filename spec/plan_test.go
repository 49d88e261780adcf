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
	"github.com/tandem-llm/tandem/spec/worth"
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
		chanceOf := func(i int) float64 { // the product on the way to the root
			product := 1.0
			for ; i > 0; i = int(tree.Parents[i]) {
				own := float32(0)
				if tree.LogProbs != nil {
					own = tree.LogProbs[i] - tree.LogProbs[tree.Parents[i]]
				}
				p := min(math.Exp(float64(own)), 1)
				if plan.Accept != nil {
					p = 1
					for _, a := range plan.Accept[:tandem.AcceptBin(own)+1] {
						p = min(p, float64(a))
					}
				}
				if own != own {
					p = 0
				}
				product *= p
			}
			return product
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

// TestRows: a chain or a wide tree grows as long as it pays, by what a pass costs for its rows.
func TestRows(t *testing.T) {
	plan := tandem.Plan{Round: time.Millisecond}
	for w := range 16 {
		plan.Verify = append(plan.Verify, time.Duration(40+max(w-7, 0)*5)*time.Millisecond)
	}
	long := plan // a round that already took long
	long.Round = 100 * time.Millisecond
	flat := tandem.Plan{Verify: slices.Repeat([]time.Duration{40 * time.Millisecond}, 16)}
	sure, poor := chainOf(-0.1, 1, 2, 3), chainOf(-3, 1, 2)
	wide := tandem.Tree{Tokens: []tandem.Token{0, 1, 2, 3, 4}, Parents: []int32{-1, 0, 0, 0, 0},
		LogProbs: []float32{0, -1.2, -1.3, -1.4, -5}}
	even := tandem.Tree{Tokens: wide.Tokens, Parents: wide.Parents, LogProbs: []float32{0, -1.5, -1.5, -1.5, -1.5}}
	ms := time.Millisecond
	linear := func(base, row time.Duration) func(int) time.Duration {
		return func(rows int) time.Duration { return base + time.Duration(rows)*row }
	}
	for _, c := range []struct {
		name    string
		tree    tandem.Tree
		plan    tandem.Plan
		pass    func(int) time.Duration
		pending int
		want    int
	}{
		{"a sure chain goes on", sure, plan, linear(0, ms/2), 1, 1},
		{"not at any price", sure, plan, linear(0, 30*ms), 1, 0},
		{"a long round goes on while a pass brings more than the round", sure, long, linear(0, 12*ms), 1, 1},
		{"a poor one ends", poor, plan, linear(0, ms), 1, 0},
		{"nothing to run", sure, plan, linear(0, 0), 0, 0},
		{"no plan", poor, tandem.Plan{}, linear(0, time.Second), 2, 2},
		{"rows that cost nothing", even, flat, linear(ms/2, 0), 4, 4},
		{"the unlikely one does not pay for its row", wide, plan, linear(0, ms), 4, 3},
		{"rows that cost much", wide, plan, linear(0, 7*ms/2), 4, 1},
	} {
		d := Draft{Tree: c.tree, Rows: slices.Repeat([]int32{-1}, c.tree.Len())}
		for i := range c.pending { // the last nodes of a chain, all of a wide tree
			d.Rows[c.tree.Len()-c.pending+i] = int32(i)
		}
		if got := NewChildren(nil).Rows(d, c.plan, 2*ms, c.pass, c.pending); got != c.want {
			t.Errorf("%s: %d rows, want %d", c.name, got, c.want)
		}
	}
}

// TestChildren: what is expected of a pass is what was found after nodes like those that it runs; a session begins with what all
// sessions have found, and goes its own way.
func TestChildren(t *testing.T) {
	all := NewChildren(nil)
	sure, unsure := float32(-0.01), float32(-2)
	found := func(chance float64) []Candidate { return []Candidate{{1, logOf(chance)}, {2, logOf((1 - chance) / 2)}} }
	first := NewChildren(all)
	for range 100 {
		first.Learn(Row{Depth: 1, Own: sure}, found(0.9), nil)
		first.Learn(Row{Depth: 1, Own: unsure}, found(0.3), nil)
	}
	next := NewChildren(all)
	a, b := next.expect(sure), next.expect(unsure)
	if math.Abs(a[0]-0.9) > 0.05 || math.Abs(b[0]-0.3) > 0.05 || math.Abs(a[1]-0.05) > 0.02 {
		t.Errorf("a new session expects %.3f after sure nodes and %.3f after others: want about 0.9 and 0.3", a, b)
	}
	for range 30 {
		next.Learn(Row{Depth: 1, Own: sure}, found(0.6), nil)
	}
	if own := next.expect(sure)[0]; math.Abs(own-0.6) > 0.07 {
		t.Errorf("a session that finds 0.6 expects %.3f", own)
	}
	if other := first.expect(sure)[0]; math.Abs(other-0.9) > 0.05 {
		t.Errorf("another session expects %.3f, although it has found 0.9", other)
	}
}

// TestChildrenChain: a chain is as long as enumeration says: with the most tokens for its time. Without a plan, or with passes that cost
// nothing, it is as long as may be; where a pass takes as long as many rounds, it has no rows.
func TestChildrenChain(t *testing.T) {
	const most, verify = 12, 10 * time.Millisecond
	plan := tandem.Plan{Verify: slices.Repeat([]time.Duration{verify}, 2*most)}
	c := NewChildren(nil)
	for range 200 {
		c.Learn(Row{}, []Candidate{{1, logOf(0.8)}}, nil)
	}
	share := c.expect(0)[0]
	for _, pass := range []time.Duration{0, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, time.Second} {
		for depth, chance := range []float64{1, 0.7} {
			want, best := 0, 0.0
			for rows := range most + 1 {
				tokens, reach := 1+float64(depth)*chance, chance
				for range rows + 1 {
					reach *= share
					tokens += reach
				}
				if rate := tokens / (verify + time.Duration(rows+1)*pass).Seconds(); rate > best+1e-9 {
					want, best = rows, rate
				}
			}
			if got := c.Chain(Row{Depth: depth, Chance: chance}, plan, 0, pass, most); got != want {
				t.Errorf("passes of %v, depth %d: %d rows, want %d", pass, depth, got, want)
			}
		}
	}
	if got := c.Chain(Row{}, tandem.Plan{}, 0, time.Second, most); got != most {
		t.Errorf("without a plan %d rows, want %d", got, most)
	}
	if got := c.Chain(Row{}, plan, 0, 0, -1); got != 0 {
		t.Errorf("with no room %d rows", got)
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
	p := tandem.Plan{Accept: worth.NewCalibration().Accept()}
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

func BenchmarkRows64(b *testing.B) {
	p, c := widePlan(), NewChildren(nil)
	d := Draft{Tree: wide(64)}
	for i := range int32(64) {
		d.Rows = append(d.Rows, i-54)
	}
	for b.Loop() {
		c.Rows(d, p, time.Millisecond, func(rows int) time.Duration { return time.Duration(rows) * time.Microsecond }, 10)
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
