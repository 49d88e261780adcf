package worth

import (
	"math"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestForecast: the best chain is that of the equation, worked out by hand.
func TestForecast(t *testing.T) {
	const ms = time.Millisecond
	flat := []tandem.Cost{{Rows: 1, Time: 20 * ms}, {Rows: 17, Time: 20 * ms}}
	all := NewCosts(flat)
	for name, c := range map[string]struct {
		t       Terms
		drafted int
		tokens  float64
		time    time.Duration
	}{
		"no draft":               {Terms{Verify: all}, 0, 1, 20 * ms},
		"a draft that costs all": {Terms{Verify: all, Draft: 20 * ms, Right: []float64{.5}}, 0, 1, 20 * ms},
		"a free draft":           {Terms{Verify: all, Right: []float64{.5}}, 4, 1.9375, 20 * ms},
		"right once":             {Terms{Verify: all, Draft: 4 * ms, Right: []float64{.9, 0}}, 1, 1.9, 24 * ms},
		"reads":                  {Terms{Verify: all, Draft: 10 * ms, Right: []float64{1, 1, 0}, Read: 500 * ms}, 2, 3, 520 * ms},
		"reads ahead": {Terms{Verify: all, Draft: 10 * ms, Right: []float64{1, 1, 0}, Read: 500 * ms, Ahead: 15 * ms}, 2, 3,
			505 * ms},
		"computes while it reads": {Terms{Verify: all, Draft: 10 * ms, Right: []float64{1, 0}, Read: 15 * ms, Ahead: 15 * ms}, 1, 2,
			30 * ms},
	} {
		if got := c.t.Best(4); got.Drafted != c.drafted || math.Abs(got.Tokens-c.tokens) > 1e-9 || got.Time != c.time {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// 442437 ns times the rate of one token in 442437 ns is a little less than one token
	if got := (Terms{Verify: NewCosts([]tandem.Cost{{Rows: 1, Time: 442437}})}).Best(4); got.Tokens != 1 {
		t.Errorf("plain decoding brings %v tokens a round, want 1", got.Tokens)
	}
	if got := (Terms{Verify: NewCosts(flat[:1]), Right: []float64{1}}).Best(4); got.Drafted != 0 {
		t.Errorf("a pass that was not measured: %+v", got)
	}
}

// TestBestTree: trees are as wide as computing hides behind the disk, and never worse than the best chain. The chances of nodes follow each
// other as in a tree.
func TestBestTree(t *testing.T) {
	const ms = time.Millisecond
	costs := NewCosts(Linear(40*ms, 8*ms, 64)) // 24 rows in 232 ms
	of := func(read time.Duration, right float64) Terms {
		return Terms{Verify: costs, Draft: 4 * ms, Right: []float64{right}, Read: read, Ahead: 15 * ms}
	}
	widest := 0
	for _, read := range []time.Duration{0, 60 * ms, 120 * ms, 240 * ms, 500 * ms} {
		for _, right := range []float64{.3, .7, .95} {
			x := of(read, right)
			tree, chain := x.BestTree(16), x.Best(16)
			if tree.Speed() < chain.Speed()-1e-9 || tree.Speed() < x.Best(0).Speed() {
				t.Errorf("read %v, right %v: %+v, and the best chain %+v", read, right, tree, chain)
			}
			if right == .7 {
				if tree.Drafted < widest {
					t.Errorf("read %v: %d nodes, and %d beside a faster disk", read, tree.Drafted, widest)
				}
				widest = tree.Drafted
			}
		}
	}
	if tree := of(240*ms, .7).BestTree(16); tree.Drafted < 16 || tree.Drafted > 32 {
		t.Errorf("%+v: want about the 24 rows that 240 ms of reading hide", tree)
	}
	chances := grown([]float64{.6}, 2, 4)
	for i, want := range []float64{.6, .36, .08, .6 * .08} {
		if math.Abs(chances[i]-want) > 1e-9 {
			t.Errorf("chances %v, want %v at %d", chances, want, i)
		}
	}
	if got := (Terms{Verify: costs}).BestTree(16); got.Drafted != 0 || got.Tokens != 1 {
		t.Errorf("without a draft: %+v", got)
	}
}
