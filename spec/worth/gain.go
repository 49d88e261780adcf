package worth

import (
	"fmt"
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
	Took        time.Duration // from the start of the round to its commit
	Beside      bool          // a draft may have computed during the pass: ahead, or reading the prompt
	Model       Role
}

// Role is what draft models had to do with a round.
type Role uint8

const (
	Apart Role = iota // none could be asked, or only others drafted: it says nothing of them
	Idle              // one could be asked, and nobody guessed anything
	Asked             // one was asked, or read the text meanwhile
)

// Earned is what draft models brought to answers, from the rounds that say something of them: those with Asked or Idle whose passes had no
// rows of other sessions.
type Earned struct {
	Rounds int
	Plain  time.Duration // what plain decoding of their tokens would have taken
	Took   time.Duration // the same with draft models: what rounds with Asked took, and plain decoding of the others
}

// Counts reports whether these are enough rounds of one answer to say something: a planner has settled by then.
func (e Earned) Counts() bool { return float64(e.Rounds) >= Tuned.Rounds && e.Plain > 0 && e.Took > 0 }

// Gain returns how many times as fast as without draft models the answers were; 1 if nothing was measured.
func (e Earned) Gain() float64 {
	if e.Plain <= 0 || e.Took <= 0 {
		return 1
	}
	return float64(e.Plain) / float64(e.Took)
}

// earnedLine is Earned as a line, in nanoseconds.
const earnedLine = "earned %d %d %d"

func (e Earned) String() string {
	return fmt.Sprintf(earnedLine, e.Rounds, int64(e.Plain), int64(e.Took))
}

// ParseEarned returns what String made a line of; false for another line.
func ParseEarned(line string) (e Earned, ok bool) {
	_, err := fmt.Sscanf(line, earnedLine, &e.Rounds, (*int64)(&e.Plain), (*int64)(&e.Took))
	return e, err == nil && e.Rounds >= 0 && e.Plain >= 0 && e.Took >= 0
}

// alone returns the rows that the pass would have had without the session's guesses.
func (s Spent) alone() int { return max(s.Rows-max(s.Nodes, 1)+1, 1) }

// stretch, rounds: whose conditions count as the same; it bounds what is kept of a long answer.
const stretch = 1 << 8

// Plain sums up what plain decoding would have taken. Its zero value is ready. Not safe for concurrent use.
type Plain struct {
	spent []Spent
	past  sums // of rounds that are no more in spent
}

type sums struct {
	time   time.Duration
	earned Earned
}

// Add takes a round. pass returns the time of a pass by its rows and the positions before it.
func (p *Plain) Add(s Spent, pass func(rows, context int) time.Duration) {
	if p.spent = append(p.spent, s); len(p.spent) >= stretch {
		p.past, p.spent = p.sum(pass), p.spent[:0]
	}
}

// Time returns the time of plain decoding of all rounds, 0 if there is none, and what draft models brought to them.
func (p *Plain) Time(pass func(rows, context int) time.Duration) (time.Duration, Earned) {
	all := p.sum(pass)
	return all.time, all.earned
}

func (p *Plain) sum(pass func(rows, context int) time.Duration) sums {
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
	all := p.past
	for _, s := range p.spent {
		plain := s.Busy + s.Rest
		if s.Nodes > 1 || s.Busy <= 0 || s.Beside {
			plain = time.Duration(float64(s.Tokens) * (q*float64(pass(s.alone(), s.Context)) + rest))
		}
		all.time += plain
		if s.Model == Apart || s.alone() > 1 {
			continue
		}
		all.earned.Rounds++
		all.earned.Plain += plain
		if s.Model == Idle {
			all.earned.Took += plain
		} else {
			all.earned.Took += s.Took
		}
	}
	return all
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
