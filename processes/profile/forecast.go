package profile

import (
	"time"

	"github.com/tandem-llm/tandem"
)

// Terms are what the speed of rounds with chains of one draft follows from.
type Terms struct {
	Verify []tandem.Cost // passes of the target by rows, behind one context, with all weights in memory
	Draft  time.Duration // a pass of the draft of one row, which drafts one more token
	Depths []float64     // how often token i+1 of a chain is right if those before are, then the last one for all behind; none: no draft
	Read   time.Duration // what the disk takes for the weights that a pass reads from it
	Ahead  time.Duration // the part of Read that can be done before the pass begins, while the draft computes
}

// Forecast is what rounds with chains of one length are expected to bring.
type Forecast struct {
	Drafted int           // tokens of a chain; 0: plain decoding
	Tokens  float64       // that a round decides
	Time    time.Duration // of a round
}

// Speed returns the tokens per second.
func (f Forecast) Speed() float64 { return f.Tokens / f.Time.Seconds() }

// Best returns the length from 0 to longest with the most tokens per second, by the time of a token with drafting and verifying in turn:
//
//	(γ·T_D + max(T_V(γ+1), read − ahead)) / τ(γ)
//
// That is Dovetail's first equation and PPD's τ(n)/L(n), with what a streamed pass reads: it computes while it reads on, and a part is read
// while the draft computes (LLMCad, section 3.4). Lengths whose pass is wider than any in Verify are left out; the time is 0 if all are.
func (t Terms) Best(longest int) (best Forecast) {
	tokens, chance := 1.0, 1.0
	for n := range longest + 1 {
		if n > 0 {
			if len(t.Depths) == 0 {
				break
			}
			chance *= t.Depths[min(n, len(t.Depths))-1]
			tokens += chance
		}
		verify, known := PassTime(t.Verify, n+1)
		if !known {
			break
		}
		drafting := time.Duration(n) * t.Draft
		f := Forecast{n, tokens, drafting + max(verify, t.Read-min(drafting, t.Ahead), 1)}
		if n == 0 || f.Speed() > best.Speed() {
			best = f
		}
	}
	return best
}
