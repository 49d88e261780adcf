package worth

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestCalibrationLearns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := NewCalibration()
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
	c := NewCalibration()
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
