package worth

import (
	"slices"
	"time"
)

// What plain decoding of an answer would have taken, from the rounds that made it. Nothing is decoded twice:
//
//	plain = Σ over rounds with the root alone of their time
//	      + Σ over the others of tokens · (q · T(others + 1, context) + rest)
//
// T is the cost of a pass by rows; q is the median of how much longer the passes of these rounds took than T says, and rest the median of
// what a round takes beside drafts and passes. Plain decoding has one pass and one rest a token. The passes beside which something else
// computed do not count: the draft reads its prompt then, which plain decoding has not.

// Spent is what a round was measured to take.
type Spent struct {
	Rows, Nodes int // of the pass; of the session's tree, root included
	Context     int // positions before the pass
	Tokens      int // committed
	Busy, Rest  time.Duration
	Beside      bool // a draft may have computed during the pass: ahead, or reading the prompt
}

// alone returns the rows that the pass would have had without the session's guesses.
func (s Spent) alone() int { return max(s.Rows-max(s.Nodes, 1)+1, 1) }

// stretch, rounds: whose conditions count as the same; it bounds what is kept of a long answer.
const stretch = 1 << 8

// Plain sums up what plain decoding would have taken. Its zero value is ready. Not safe for concurrent use.
type Plain struct {
	spent []Spent
	sum   time.Duration
}

// Add takes a round. pass returns the time of a pass by its rows and the positions before it.
func (p *Plain) Add(s Spent, pass func(rows, context int) time.Duration) {
	if p.spent = append(p.spent, s); len(p.spent) >= stretch {
		p.sum, p.spent = p.Time(pass), p.spent[:0]
	}
}

// Time returns the time of plain decoding of all rounds; 0: none.
func (p *Plain) Time(pass func(rows, context int) time.Duration) time.Duration {
	var alone []Spent
	for _, s := range p.spent {
		if s.Busy > 0 && !s.Beside {
			alone = append(alone, s)
		}
	}
	if len(alone) == 0 {
		alone = p.spent
	}
	q := median(alone, func(s Spent) float64 { return float64(s.Busy) / float64(max(pass(s.Rows, s.Context), 1)) })
	if q == 0 { // nobody measured
		q = 1
	}
	rest := median(alone, func(s Spent) float64 { return float64(s.Rest) })
	sum := p.sum
	for _, s := range p.spent {
		if s.Nodes <= 1 && s.Busy > 0 && !s.Beside {
			sum += s.Busy + s.Rest
			continue
		}
		sum += time.Duration(float64(s.Tokens) * (q*float64(pass(s.alone(), s.Context)) + rest))
	}
	return sum
}

// median returns the median of a value of rounds; 0: there are none.
func median(all []Spent, of func(Spent) float64) float64 {
	if len(all) == 0 {
		return 0
	}
	values := make([]float64, len(all))
	for i, s := range all {
		values[i] = of(s)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
