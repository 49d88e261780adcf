package worth

import "time"

// Round has the times of a round's parts, which follow each other. A target may read weights from a disk. Then it computes while it reads
// on, and a part of the weights is read while the draft computes (LLMCad, section 3.4):
//
//	T = draft + way + max(verify, read − min(draft, ahead)) + rest
type Round struct {
	Draft, Way, Verify, Rest time.Duration
	Read                     time.Duration // of the weights that the pass reads from a disk
	Ahead                    time.Duration // the part of Read that can be done before the pass begins
}

// Time returns how long the round takes, never 0.
func (r Round) Time() time.Duration {
	return max(r.Draft+r.Way+max(r.Verify, r.Read-min(r.Draft, r.Ahead))+r.Rest, 1)
}

// Best returns the number of guesses that brings the most tokens per second, and that rate. Of equal numbers it takes the lowest:
//
//	argmax over n of (tokens + chance₁ + … + chanceₙ) / T(n)
//
// chances has each guess's chance to be accepted, likeliest first. tokens is what a round brings without guesses. time returns the time of
// a round with n of them. This is Dovetail's first equation and PPD's τ(n)/L(n).
func Best(tokens float64, chances []float64, time func(n int) time.Duration) (n int, rate float64) {
	for i := range len(chances) + 1 {
		if i > 0 {
			tokens += chances[i-1]
		}
		if r := tokens / max(time(i), 1).Seconds(); r > rate {
			n, rate = i, r
		}
	}
	return n, rate
}

// Chain returns the chances that the first 1, 2 … n tokens of a chain are all right. right says how often a token is right if those before
// it are, the last one for all behind; none: there is no draft.
func Chain(right []float64, n int) (chances []float64) {
	if len(right) == 0 {
		return nil
	}
	chance := 1.0
	for i := range n {
		chance *= right[min(i, len(right)-1)]
		chances = append(chances, chance)
	}
	return chances
}

// Terms are what the speed of rounds with chains of one draft follows from.
type Terms struct {
	Verify *Costs        // passes of the target, with all weights in memory
	Draft  time.Duration // a pass of the draft of one row, which drafts one more token
	Right  []float64     // as Chain takes it
	Read   time.Duration // as in Round, of a pass of one row
	Each   time.Duration // what one more row adds to Read: the experts of a streamed mixture that it chooses
	Ahead  time.Duration // as in Round
}

// Forecast is what rounds with chains of one length are expected to bring.
type Forecast struct {
	Drafted int           // tokens of a chain; 0: plain decoding
	Tokens  float64       // that a round decides
	Time    time.Duration // of a round
}

// Speed returns the tokens per second.
func (f Forecast) Speed() float64 { return f.Tokens / f.Time.Seconds() }

// Best returns the length from 0 to longest with the most tokens per second. Chains whose pass is wider than any measured are left out.
func (t Terms) Best(longest int) Forecast {
	chances := Chain(t.Right, min(longest, t.Verify.Widest()-1))
	round := func(n int) time.Duration {
		more := time.Duration(n)
		return Round{Draft: more * t.Draft, Verify: t.Verify.Time(n + 1), Read: t.Read + more*t.Each, Ahead: t.Ahead}.Time()
	}
	n, _ := Best(1, chances, round)
	tokens := 1.0
	for _, c := range chances[:n] {
		tokens += c
	}
	return Forecast{n, tokens, round(n)}
}
