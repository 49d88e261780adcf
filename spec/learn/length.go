package learn

import (
	"fmt"
	"math"
	"time"

	"github.com/tandem-llm/tandem"
)

// LengthRule is Minions' adaptive speculation length (Wang et al., 2024, section 3.3). The paper names
// decision_threshold, s_punish and s_reward but gives them no values; its fixed length is 4 and it compares
// with 2 to 12 (section 5.3).
type LengthRule struct {
	Start   int // first length, in tokens
	Most    int // s_max; the least is 1
	Punish  int // s_punish: taken off when a longer draft costs more per token
	Reward  int // s_reward: added when a longer draft costs less per token
	Records int // decision_threshold: verifications of the length in use before it changes
}

// DefaultLengthRule starts where the paper's comparison does and goes as far.
var DefaultLengthRule = LengthRule{Start: 4, Most: 12, Punish: 1, Reward: 1, Records: 8}

// Validate returns Invalid for a rule that has no meaning.
func (r LengthRule) Validate() error {
	const op = "length"
	switch {
	case r.Most < 1 || r.Start < 1 || r.Start > r.Most:
		return tandem.Errorf(op, tandem.Invalid, "length starts at %d with at most %d: want 1 ≤ start ≤ most", r.Start, r.Most)
	case r.Punish < 1 || r.Reward < 1:
		return tandem.Errorf(op, tandem.Invalid, "length is punished by %d and rewarded by %d: want at least 1", r.Punish, r.Reward)
	case r.Records < 1:
		return tandem.Errorf(op, tandem.Invalid, "decision after %d records: want at least 1", r.Records)
	}
	return nil
}

const (
	// lengthFade is what verifications count for after each later one.
	lengthFade = 0.995
	// lengthNear is how far from the length in use others are compared: over more the cost is no line.
	lengthNear = 2
)

// Length is the speculation length in use. Not safe for concurrent use.
//
// The paper fits a line through the records of t_V/τ since the last change of s. Its x axis is taken to be s
// here, not the order of arrival: after a rise of s the two slopes have the same sign, but only over s is the
// rule also right after a fall, where the paper's own would go back up although the fall had paid. So the line
// goes through the costs per token of the lengths used lately.
//
// A single τ is mostly luck. But a verification of s tokens says of each shorter length, too, how many would
// have been accepted, and all lengths share the chances of their first tokens. So τ(s) is 1 + Σ Π over the
// chances of acceptance by position given all before (a product-limit estimate), and what differs between two
// lengths is only what the longer one adds. t_V(s) is the mean of the verifications of that length.
//
// Transition: drafts of the former length that are still in the pool when it changes are recorded under
// their own length. They are good for the line, but a decision waits for Records verifications of the new one.
type Length struct {
	rule           LengthRule
	now            int
	fresh          int     // verifications of now since it changed
	slopeWas       float64 // of the cost over the length at the latest decision, seconds per token; 0: nothing to compare
	decided        bool
	count, time    []float64 // by length: faded sums, seconds
	tried, allowed []float64 // by position, from 1: faded counts of tokens verified with all before them right, and of those right
}

// NewLength returns the rule's first length. A zero rule means DefaultLengthRule; r must be valid.
func NewLength(r LengthRule) *Length {
	if r == (LengthRule{}) {
		r = DefaultLengthRule
	}
	n := r.Most + 1
	return &Length{rule: r, now: r.Start, count: make([]float64, n), time: make([]float64, n), tried: make([]float64, n), allowed: make([]float64, n)}
}

// Now returns the length to draft with, 1 to the rule's Most.
func (l *Length) Now() int { return l.now }

// Record takes the verification of an output that was drafted with length s: it took that long and
// brought that many tokens, the target's own included. Values out of range are ignored.
func (l *Length) Record(s int, verify time.Duration, tokens int) {
	if s < 1 || s > l.rule.Most || verify <= 0 || tokens < 1 {
		return
	}
	for _, sums := range [][]float64{l.count, l.time, l.tried, l.allowed} {
		for i := range sums {
			sums[i] *= lengthFade
		}
	}
	l.count[s]++
	l.time[s] += verify.Seconds()
	for k := 1; k <= min(s, tokens); k++ {
		l.tried[k]++
		if k < tokens {
			l.allowed[k]++
		}
	}
	if s != l.now {
		return
	}
	if l.fresh++; l.fresh >= l.rule.Records {
		l.decide()
	}
}

// InTransition reports whether the length has changed so lately that it is not judged yet.
func (l *Length) InTransition() bool { return l.decided && l.fresh < l.rule.Records }

// Explain words the length in use with the figures that decided.
func (l *Length) Explain() string {
	out := fmt.Sprintf("%d tokens", l.now)
	if l.decided {
		out += fmt.Sprintf(", slope %+.3g ms a token", math.Round(1e6*l.slopeWas)/1e3+0) // + 0: no negative zero
	}
	return out + fmt.Sprintf(", %d of %d records", l.fresh, l.rule.Records)
}

// decide changes the length by the slope of the cost over it.
func (l *Length) decide() {
	next := l.now
	l.slopeWas, l.decided = l.slope(), true
	switch slope := l.slopeWas; {
	case slope > 0:
		next -= l.rule.Punish
	case slope < 0 || l.now < l.rule.Most: // nothing to compare with yet: try a longer one
		next += l.rule.Reward
	default:
		next -= l.rule.Punish
	}
	l.now, l.fresh = min(max(next, 1), l.rule.Most), 0
}

// slope fits a line through t_V(s)/τ(s), weighted by records, over the lengths near the one in use, and returns
// by how much a token costs more, in seconds, for one of length more. It is 0 if there is only one length.
func (l *Length) slope() float64 {
	tau, right := make([]float64, l.rule.Most+1), 1.0
	tau[0] = 1
	for k := 1; k <= l.rule.Most; k++ {
		if l.tried[k] > 0 {
			right *= l.allowed[k] / l.tried[k]
		} else {
			right = 0
		}
		tau[k] = tau[k-1] + right
	}
	lo, hi := max(l.now-lengthNear, 1), min(l.now+lengthNear, l.rule.Most)
	var n, sx, sy, xy, xx float64
	lengths := 0
	cost := func(s int) float64 { return l.time[s] / l.count[s] / tau[s] }
	for s := lo; s <= hi; s++ {
		if w := l.count[s]; w > 0 {
			n, sx, sy, lengths = n+w, sx+w*float64(s), sy+w*cost(s), lengths+1
		}
	}
	for s := lo; s <= hi; s++ {
		if w := l.count[s]; w > 0 {
			xy += w * (float64(s) - sx/n) * (cost(s) - sy/n)
			xx += w * (float64(s) - sx/n) * (float64(s) - sx/n)
		}
	}
	if lengths < 2 {
		return 0
	}
	return xy / xx
}
