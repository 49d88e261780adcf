package learn

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
)

func TestCalibrationLearns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := NewCalibration(tuned.Calibration)
	for i, p := range c.Accept() { // the draft model is believed at first
		if want := 1 / (1 + math.Exp2(float64(i)-16.5)); math.Abs(float64(p)-want) > 1e-6 {
			t.Errorf("bin %d starts with %v, want %v", i, p, want)
		}
	}
	for range 1000 { // nodes of log-probability -0.7 come true 9 times of 10, their children of -1.5 once of 9
		tree := tandem.Tree{Tokens: []tandem.Token{7, 1, 2}, Parents: []int32{-1, 0, 1}, LogProbs: []float32{0, -0.7, -2.2}}
		committed := []tandem.Token{5}
		if x := r.Float64(); x < 0.1 {
			committed = []tandem.Token{1, 2, 5}
		} else if x < 0.9 {
			committed = []tandem.Token{1, 5}
		}
		c.Record(tree, committed)
		c.Record(tree, committed[:min(1, len(committed))]) // cut off: says nothing of what is deeper if that was right
	}
	accept := c.Accept()
	if a, b := accept[tandem.AcceptBin(-0.7)], accept[tandem.AcceptBin(-1.5)]; math.Abs(float64(a)-0.9) > 0.06 ||
		math.Abs(float64(b)-0.11) > 0.07 {
		t.Errorf("learned %v and %v, want 0.9 and 0.11", a, b)
	}
	if !slices.IsSortedFunc(accept, func(a, b float32) int { return cmp.Compare(b, a) }) {
		t.Errorf("chances rise: %v", accept)
	}
	before := slices.Clone(accept)
	c.Record(tandem.Tree{Tokens: []tandem.Token{7, 1}, Parents: []int32{-1, 0}}, []tandem.Token{1})
	if !slices.Equal(c.Accept(), before) {
		t.Error("a tree without chances taught something")
	}
}

// TestCalibrationOfADraftThatIsTooSure: a draft model states the square of the odds that it has. After some 60 trees the calibration tells
// 0.98 from 0.9 from 0.6, also in bins that it has not seen.
func TestCalibrationOfADraftThatIsTooSure(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	c := NewCalibration(tuned.Calibration)
	own := func(p float64) float32 { // as stated
		odds := p / (1 - p)
		return float32(-math.Log1p(1 / (odds * odds)))
	}
	for range 60 {
		tree, committed := tandem.Tree{Tokens: []tandem.Token{7}, Parents: []int32{-1}, LogProbs: []float32{0}}, []tandem.Token{}
		right := true
		for i, p := range []float64{0.98, 0.9, 0.98, 0.6, 0.98} {
			tree.Tokens, tree.Parents = append(tree.Tokens, 1), append(tree.Parents, int32(i))
			tree.LogProbs = append(tree.LogProbs, tree.LogProbs[i]+own(p))
			if right = right && r.Float64() < p; right {
				committed = append(committed, 1)
			}
		}
		c.Record(tree, append(committed, 5))
	}
	accept := c.Accept()
	for p, off := range map[float64]float64{0.98: 0.02, 0.95: 0.04, 0.9: 0.06, 0.8: 0.1, 0.6: 0.12} {
		if got := float64(accept[tandem.AcceptBin(own(p))]); math.Abs(got-p) > off {
			t.Errorf("nodes that are right with %v, stated as %.4f: learned %.3f", p, math.Exp(float64(own(p))), got)
		}
	}
}

func TestCosts(t *testing.T) {
	ms := time.Millisecond
	c := NewCosts([]tandem.Cost{{Rows: 1, Time: 39 * ms}, {Rows: 8, Time: 43 * ms}, {Rows: 12, Time: 54 * ms}, {Rows: 16, Time: 66 * ms},
		{Rows: 16, Context: 500, Time: 68 * ms},
		{Rows: 0, Time: ms}, {Rows: 3, Time: -ms}}, tuned.Costs)

	about := func(rows int, want time.Duration) {
		t.Helper()
		if got := c.Time(rows); got < want*98/100 || got > want*102/100 {
			t.Errorf("%d rows: %v, want about %v", rows, got, want)
		}
	}
	about(1, 39*ms)
	about(10, 48500*time.Microsecond)
	about(16, 67*ms)
	about(24, 93*ms)
	about(0, 39*ms)
	for range 200 { // the memory has become faster
		c.Observe(1, nil, 26*ms)
	}
	about(1, 26*ms)
	if got := c.Time(16); got > 50*ms {
		t.Errorf("16 rows: %v after all rows have become faster", got)
	}
	for range 100 {
		c.Observe(16, nil, 80*ms)
		c.Observe(1, nil, 26*ms)
	}
	if got := c.Time(16); got < 72*ms || got > 82*ms {
		t.Errorf("16 rows: %v, want about 80 ms", got)
	}
	was := c.Time(4)
	c.Observe(4, nil, 10*time.Second) // a stall
	if got := c.Time(4); got > was*12/10 {
		t.Errorf("one stall moved %v to %v", was, got)
	}
	c.Observe(0, nil, ms)
	c.Observe(1, nil, -ms)

	blind := NewCosts(nil, tuned.Costs)
	if blind.Time(1) != 0 {
		t.Errorf("%v without any measurement", blind.Time(1))
	}
	blind.Observe(8, nil, 20*ms)
	if got := blind.Time(8); got < 19*ms || got > 21*ms {
		t.Errorf("8 rows: %v after one observation of 20 ms", got)
	}
}

func TestCostsNeverFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var measured []tandem.Cost
		for i := range rapid.IntRange(0, 8).Draw(t, "points") {
			measured = append(measured, tandem.Cost{Rows: rapid.IntRange(1, 40).Draw(t, fmt.Sprint("rows ", i)),
				Time: time.Duration(rapid.IntRange(1, 1e6).Draw(t, fmt.Sprint("time ", i)))})
		}
		c := NewCosts(measured, tuned.Costs)
		for i := range rapid.IntRange(1, 50).Draw(t, "observed") {
			c.Observe(rapid.IntRange(1, 60).Draw(t, fmt.Sprint("at ", i)), nil,
				time.Duration(rapid.IntRange(1, 1e6).Draw(t, fmt.Sprint("took ", i))))
		}
		for rows := 1; rows < 80; rows++ {
			if a, b := c.Time(rows), c.Time(rows+1); a < 0 || b < a {
				t.Fatalf("%d rows take %v, %d rows %v", rows, a, rows+1, b)
			}
		}
	})
}

// BenchmarkRoundOfState is what a round costs besides trees: weights, length, α, calibration, costs.
func BenchmarkRoundOfState(b *testing.B) {
	t := tandem.Root(7)
	t.LogProbs = []float32{0}
	for i := int32(1); i < 16; i++ {
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, tandem.Token(i)), append(t.Parents, i/2), append(t.LogProbs, t.LogProbs[i/2]-0.5)
	}
	w, l, a, c := NewWeights(WeightRule{}, tuned.Compare), NewLength(LengthRule{}, tuned.Length), NewAlpha(0, tuned.Alpha),
		NewCalibration(tuned.Calibration)
	costs := NewCosts([]tandem.Cost{{Rows: 1, Time: 39e6}, {Rows: 8, Time: 43e6}, {Rows: 16, Time: 67e6}, {Rows: 32, Time: 122e6}},
		tuned.Costs)
	for b.Loop() {
		for _, name := range []string{"a", "b", "c"} {
			w.Of(name)
		}
		w.Record("a", 2, 4)
		l.Record(Chain{Batch: 1, Rows: 5, Nodes: 5, Busy: time.Millisecond, Length: 4, Right: 1}, costs)
		a.Record(4, 2, 0.01)
		c.Record(t, []tandem.Token{1, 2})
		c.Accept()
		costs.Observe(8, nil, 43e6)
		for rows := range 64 {
			costs.Time(rows + 1)
		}
	}
}

var tuned = DefaultTuning()
