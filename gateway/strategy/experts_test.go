package strategy

import (
	"math"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// TestTreesShrinkWhereExpertsAreDear: a target with experts is verified, in passes whose time is a fixed part, rows and the experts that
// they used. Where texts share fewer experts, rows are dearer, and what a drafter is to keep of the same tree becomes smaller; so it does
// where an expert costs more, as one that comes from a disk does. Passes that use few experts by chance are not taken for a faster machine.
func TestTreesShrinkWhereExpertsAreDear(t *testing.T) {
	const row, most = 384, 6144
	tree := tandem.Tree{Tokens: []tandem.Token{1}, Parents: []int32{-1}, LogProbs: []float32{0}}
	for i := range int32(31) {
		tree.Tokens, tree.Parents = append(tree.Tokens, tandem.Token(i+2)), append(tree.Parents, i)
		tree.LogProbs = append(tree.LogProbs, -0.12*float32(i+1))
	}
	sizes := map[string]int{}
	for name, c := range map[string]struct {
		expert time.Duration // what one more costs
		apart  float64       // how far rows of the text choose by themselves
	}{"alike": {20 * time.Microsecond, 0.1}, "text": {20 * time.Microsecond, 0.45}, "apart": {20 * time.Microsecond, 1},
		"cheap":       {2 * time.Microsecond, 0.45},
		"from a disk": {200 * time.Microsecond, 0.45}} {
		used := func(rows int, apart float64) int {
			return int(most * (1 - math.Pow(1-row/float64(most), 1+apart*float64(rows-1))))
		}
		took := func(rows, experts int) time.Duration {
			return 2*time.Millisecond + time.Duration(rows)*200*time.Microsecond + time.Duration(experts)*c.expert
		}
		var costs []tandem.Cost
		for _, w := range []int{1, 2, 4, 8, 16, 32} {
			n := used(w, 0.8) // at the start
			costs = append(costs, tandem.Cost{Rows: w, Time: took(w, n), Experts: n, Expert: c.expert})
		}
		rules, err := Rules{}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		l := NewShared(rules)
		l.Measured("", costs)
		for i := range 80 {
			rows, luck := []int{1, 8, 16}[i%3], []float64{0.5, 1, 1.5}[i%7%3]
			var added []int
			for n := range rows {
				added = append(added, min(row, used(n+1, c.apart*luck)-used(n, c.apart*luck)))
			}
			added[0] = row
			e := tandem.CountExperts(added)
			l.Verified(tandem.Verdict{Rows: rows, Nodes: rows, Experts: e, Busy: took(rows, e.All()), Tokens: []tandem.Token{1}}, false)
		}
		verify, _ := l.curve(32, 0)
		plan := tandem.Plan{Verify: verify, Round: time.Millisecond}
		_, kept := spec.Cut(tree, plan, 0)
		sizes[name] = len(kept)
		if one := took(1, row); verify[0] < one*95/100 || verify[0] > one*105/100 {
			t.Errorf("%s: one row takes %v, want %v", name, verify[0], one)
		}
	}
	ordered := sizes["alike"] > sizes["text"] && sizes["text"] > sizes["apart"] && sizes["apart"] > 1
	if !ordered || sizes["cheap"] <= sizes["text"] || sizes["text"] < sizes["from a disk"] {
		t.Errorf("nodes kept of a chain of 32: %v", sizes)
	}
}
