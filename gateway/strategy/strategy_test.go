package strategy

import (
	"math"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

func TestBestBranch(t *testing.T) {
	// 0 ─ 5 ─ 6 ─ 7
	//   │   └ 8
	//   └ 9
	tree := tandem.Tree{Tokens: []tandem.Token{1, 5, 9, 6, 8, 7}, Parents: []int32{-1, 0, 0, 1, 1, 3},
		LogProbs: []float32{0, -1, -0.5, -1.5, -2, -3}}
	for _, test := range []struct {
		committed []tandem.Token
		all, ok   int
	}{
		{[]tandem.Token{4}, 1, 0},          // the likeliest way down is 9
		{[]tandem.Token{9, 4}, 1, 1},       //
		{[]tandem.Token{5, 4}, 3, 1},       // on along 6, 7
		{[]tandem.Token{5, 8, 4}, 2, 2},    //
		{[]tandem.Token{5, 6, 7, 4}, 3, 3}, //
		{[]tandem.Token{5}, 3, 1},          // the text ends in the path
	} {
		all, ok, confidence := bestBranch(tree, test.committed)
		if all != test.all || ok != test.ok || math.Abs(confidence-math.Exp(-0.5)) > 1e-6 {
			t.Errorf("committed %v: %d of %d, confidence %v: want %d of %d, %v", test.committed, ok, all, confidence, test.ok, test.all,
				math.Exp(-0.5))
		}
	}
	if all, _, _ := bestBranch(tandem.Root(3), []tandem.Token{1}); all != 0 {
		t.Error("a root is a branch")
	}
}

// TestThresholdKnowsWhatDraftingCosts has LLMCad guess wrong for long: α rises as far as a draft pass costs tokens, whatever single rounds
// were lost or ended the text.
func TestThresholdKnowsWhatDraftingCosts(t *testing.T) {
	tree := tandem.Tree{Tokens: []tandem.Token{1, 5, 9}, Parents: []int32{-1, 0, 0}, LogProbs: []float32{0, -1, -4}}
	for pass, want := range map[time.Duration]float64{100 * time.Microsecond: 0.01, 2 * time.Millisecond: 0.05,
		12 * time.Millisecond: 0.3} {
		l := &llmcad{alpha: learn.NewAlpha(0), adaptive: true}
		for range 40 {
			o := &Outcome{Drafts: []Draft{{Got: tandem.Proposed{Busy: 2 * pass, Passes: 2}}}, Tree: tree, Judged: true, Tokens: 1,
				Wall:    40 * time.Millisecond,
				Verdict: tandem.Verdict{Tokens: []tandem.Token{4}}}
			l.Learn(o)
			o.Lossy, o.Wall = true, time.Second
			l.Learn(o)
			o.Lossy, o.AtEnd = false, true
			l.Learn(o)
		}
		if got := l.alpha.Now(); math.Abs(got-want) > 1e-9 {
			t.Errorf("draft passes of %v in a round of 40 ms: α is %v, want %v", pass, got, want)
		}
	}
}
