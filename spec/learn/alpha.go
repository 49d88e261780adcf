package learn

import (
	"math"

	"github.com/tandem-llm/tandem/spec/worth"
)

// leastAlpha and worth.MostCertain keep α within (0, 1): at 0 drafts would never end, at 1 none would begin.
// Until Bound is called, α rises half of the way to 1, in logarithms.
const leastAlpha = 1e-6

// DefaultAlpha is the paper's first threshold.
const DefaultAlpha = 0.01

// Alpha is LLMCad's self-adaptive threshold (Xu et al., 2023, section 3.3, formula 3): drafting ends when the
// likeliest branch's cumulative confidence falls below it. Not safe for concurrent use.
type Alpha struct {
	now, start, most float64
}

// NewAlpha returns a threshold that begins at start; 0 means DefaultAlpha. Other values are clamped to (0, 1).
func NewAlpha(start float64) *Alpha {
	if start == 0 || math.IsNaN(start) {
		start = DefaultAlpha
	}
	start = min(max(start, leastAlpha), worth.MostCertain)
	return &Alpha{now: start, start: start, most: min(math.Sqrt(start), worth.MostCertain)}
}

// Bound sets the most that α rises to: the cost of a draft pass in tokens, its time over that of a committed token, or α's
// start if that is more. The paper has no bound; but a pass that adds a token of confidence C pays if C is more than the pass
// costs. If passes cost next to nothing, a threshold that rises with every wrong guess ends drafts long before that: 0.77 to
// 0.94 of the tokens per second of a fixed threshold on the 0.97 b shape. NaN changes nothing.
func (a *Alpha) Bound(cost float64) {
	if !math.IsNaN(cost) {
		a.most = min(max(cost, a.start), worth.MostCertain)
		a.now = min(a.now, a.most)
	}
}

// Now returns the threshold, more than 0 and less than 1.
func (a *Alpha) Now() float64 { return a.now }

// Record takes a verified draft: all, the number of tokens on the branch that matched best; ok, how many of them were
// right; and Tc, the likeliest branch's cumulative confidence when drafting stopped. If all were right, α is halved;
// otherwise α ← α / Tc^((all−ok)/all), which raises it. A Tc outside (0, 1] counts as α, which it had fallen to.
func (a *Alpha) Record(all, ok int, confidence float64) {
	if all < 1 {
		return
	}
	if !(confidence > 0 && confidence <= 1) {
		confidence = a.now
	}
	if ok >= all {
		a.now /= 2
	} else {
		wrong := float64(all-max(ok, 0)) / float64(all)
		a.now /= math.Pow(confidence, wrong)
	}
	a.now = min(max(a.now, leastAlpha), a.most)
}
