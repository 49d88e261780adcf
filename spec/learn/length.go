package learn

import (
	"fmt"
	"math"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// The rules by which a Length changes.
const (
	LengthCurve = "curve" // by the slope of the cost of a token over the lengths near the one in use
	LengthPaper = "paper" // by the slope of that cost over time, as Minions has it
)

// LengthRule is Minions' adaptive speculation length (Wang et al., 2024, section 3.3). The paper names decision_threshold, s_punish and
// s_reward but gives them no values; its fixed length is 4 and it compares with 2 to 12 (section 5.3).
type LengthRule struct {
	Rule    string // LengthCurve or LengthPaper
	Start   int    // first length, in tokens
	Most    int    // s_max; the least is 1
	Punish  int    // s_punish: taken off when longer drafts cost more per token
	Reward  int    // s_reward: added when longer drafts cost less per token
	Records int    // decision_threshold: passes between two decisions
}

// DefaultLengthRule starts at the paper's fixed length and ends at the longest of its comparison.
var DefaultLengthRule = LengthRule{Rule: LengthCurve, Start: 4, Most: 12, Punish: 1, Reward: 1, Records: 8}

// Validate returns Invalid for a rule with meaningless values.
func (r LengthRule) Validate() error {
	const op = "length"
	switch {
	case r.Rule != LengthCurve && r.Rule != LengthPaper:
		return tandem.Errorf(op, tandem.Invalid, "length rule is %.50q: want %s or %s", r.Rule, LengthCurve, LengthPaper)
	case r.Most < 1 || r.Start < 1 || r.Start > r.Most:
		return tandem.Errorf(op, tandem.Invalid, "length starts at %d with at most %d: want 1 ≤ start ≤ most", r.Start, r.Most)
	case r.Punish < 1 || r.Reward < 1:
		return tandem.Errorf(op, tandem.Invalid, "length is punished by %d and rewarded by %d: want at least 1", r.Punish, r.Reward)
	case r.Records < 1:
		return tandem.Errorf(op, tandem.Invalid, "decision after %d records: want at least 1", r.Records)
	case r.Records < 2 && r.Rule == LengthPaper:
		return tandem.Errorf(op, tandem.Invalid, "decision after %d record: the slope over time wants at least 2", r.Records)
	}
	return nil
}

// Chain is the result of one session's chain in a target pass.
type Chain struct {
	Session tandem.SessionID
	Batch   int           // tickets that shared the pass (Verdict.Batch)
	Rows    int           // of the pass (Verdict.Rows)
	Nodes   int           // of the session's own tree, root included
	Busy    time.Duration // of the pass
	Length  int           // tokens of the verified chain, perhaps fewer than were asked for
	Right   int           // tokens found correct, without the target's own token
	Bounded bool          // fewer tokens than the length in use were asked for, because of the request's bounds or its budget
}

// Length is the speculation length in use, one for all sessions. Not safe for concurrent use.
//
// LengthPaper, literally: each pass is a record t_V/vl, the pass' time over the mean of the drafted tokens found
// correct in its chains. Records of drafts of the former length, which were in the pool when it changed, count: they
// are the transition. After decision_threshold records a line is fitted through them over time, the sign of its slope
// changes the length, and the records begin anew. A pass with nothing correct would cost infinitely much, so vl is then
// half a token in the whole pass. Chains bounded by their requests are not of that length and are left out.
//
// LengthCurve fits the line over the lengths instead of over time. With few sessions nothing is in transition, all records are of one
// length, and the paper's slope is luck; and after a useful decrease its rule would go back up. A chain of s tokens also shows how many
// tokens each shorter length would have had accepted, and all lengths share the chances of their first tokens. So τ(s), the target's own
// token included, is 1 + Σ Π over the chances of acceptance by position given all before (a product-limit estimate), and two lengths differ
// only by the tokens that the longer one adds. t_V(s) is the known cost of a pass with all its chains s long, beside the other rows that
// passes had lately. So it does not matter how many sessions ran with which length. A decision waits for passes with a chain of the length
// in use: shorter or bounded chains teach chances but decide nothing.
type Length struct {
	rule     LengthRule
	now      int
	fresh    int     // passes since the latest decision that count for the next
	slopeWas float64 // slope at the latest decision, in seconds a token
	decided  bool
	pass     lengthPass

	sum, moment float64 // paper: Σ y and Σ x·y of the records t_V/vl, in seconds, at x = 0, 1, …

	count          []float64 // curve, by length: faded count of chains
	tried, allowed []float64 // by position, from 1: faded counts of tokens verified after a right path, and of the right ones among them
	chains, rest   float64   // running means of the chains of a pass, and of its other rows
}

// lengthPass collects the chains of one pass. Chains of one pass have the same Batch and Rows, and different sessions.
type lengthPass struct {
	batch, rows   int
	sessions      []tandem.SessionID
	nodes         int
	busy          time.Duration
	chains, right int  // of chains that are not bounded
	inUse         bool // one of those has the length in use
}

// holds reports whether c is from the same pass.
func (p *lengthPass) holds(c Chain) bool {
	for _, s := range p.sessions {
		if s == c.Session {
			return false
		}
	}
	return p.batch == c.Batch && p.rows == c.Rows
}

// NewLength returns the rule's first length. A zero rule means DefaultLengthRule; r must be valid.
func NewLength(r LengthRule) *Length {
	if r == (LengthRule{}) {
		r = DefaultLengthRule
	}
	n := r.Most + 1
	return &Length{rule: r, now: r.Start, count: make([]float64, n), tried: make([]float64, n), allowed: make([]float64, n)}
}

// Now returns the length to draft with, 1 to the rule's Most.
func (l *Length) Now() int { return l.now }

// Record takes a verified chain and the costs of passes. Meaningless values are ignored. A pass is judged when all
// chains of its batch have been recorded, or else with the first chain of another pass.
func (l *Length) Record(c Chain, costs *worth.Costs) {
	if c.Length < 1 || c.Length > l.rule.Most || c.Right < 0 || c.Right > c.Length || c.Busy <= 0 || c.Nodes <= c.Right {
		return
	}
	c.Rows = max(c.Rows, c.Nodes)
	p := &l.pass
	if len(p.sessions) > 0 && !p.holds(c) {
		l.judge(costs)
	}
	if len(p.sessions) == 0 {
		p.batch, p.rows, p.busy = c.Batch, c.Rows, c.Busy
	}
	// the least has the fewest draws in it
	p.sessions, p.nodes, p.busy = append(p.sessions, c.Session), p.nodes+c.Nodes, min(p.busy, c.Busy)
	if !c.Bounded {
		p.chains, p.right = p.chains+1, p.right+c.Right
	}
	p.inUse = p.inUse || c.Length == l.now
	l.learn(c)
	if len(p.sessions) >= c.Batch {
		l.judge(costs)
	}
}

// learn updates the chances of acceptance with a chain.
func (l *Length) learn(c Chain) {
	for _, sums := range [][]float64{l.count, l.tried, l.allowed} {
		for i := range sums {
			sums[i] *= 1 - 1.0/(worth.Memory<<2)
		}
	}
	l.count[c.Length]++
	for k := 1; k <= min(c.Length, c.Right+1); k++ {
		l.tried[k]++
		if k <= c.Right {
			l.allowed[k]++
		}
	}
}

// near is how far compared lengths may be from the one in use, in tokens: over a wider range the cost is not linear.
const near = 2

// judge ends the current pass and decides if it is time.
func (l *Length) judge(costs *worth.Costs) {
	p := l.pass
	l.pass = lengthPass{sessions: p.sessions[:0]}
	gain := worth.CostGain
	if l.chains == 0 {
		gain = 1
	}
	chains := float64(len(p.sessions))
	l.chains, l.rest = l.chains+gain*(chains-l.chains), l.rest+gain*(float64(max(p.rows-p.nodes, 0))-l.rest)
	switch {
	case l.rule.Rule == LengthPaper && p.chains > 0:
		record := p.busy.Seconds() * float64(p.chains) / max(float64(p.right), 1.0/2)
		l.sum, l.moment = l.sum+record, l.moment+float64(l.fresh)*record
	case l.rule.Rule == LengthPaper || !p.inUse:
		return
	}
	if l.fresh++; l.fresh >= l.rule.Records {
		l.decide(costs)
	}
}

// InTransition reports whether the length was decided too recently to be judged yet.
func (l *Length) InTransition() bool { return l.decided && l.fresh < l.rule.Records }

// milliseconds returns seconds as milliseconds, rounded to µs, and no negative zero.
func milliseconds(seconds float64) float64 {
	return math.Round(seconds*float64(time.Second/time.Microsecond))/float64(time.Millisecond/time.Microsecond) + 0
}

// Explain returns the figures that decided the length in use, in words.
func (l *Length) Explain() string {
	out := fmt.Sprintf("%d of %d records", l.fresh, l.rule.Records)
	if l.decided {
		out = fmt.Sprintf("slope %+.3g ms a token, ", milliseconds(l.slopeWas)) + out
	}
	return out
}

// decide changes the length by the slope of the cost.
func (l *Length) decide(costs *worth.Costs) {
	next := l.now
	if l.rule.Rule == LengthPaper {
		l.slopeWas = l.overTime()
	} else {
		l.slopeWas = l.overLengths(costs)
	}
	switch slope := l.slopeWas; {
	case slope > 0:
		next -= l.rule.Punish
	case slope < 0:
		next += l.rule.Reward
	case l.rule.Rule == LengthPaper: // neither dearer nor cheaper
	case l.now < l.rule.Most: // nothing to compare with yet: try a longer length
		next += l.rule.Reward
	default:
		next -= l.rule.Punish
	}
	l.now, l.fresh, l.decided = min(max(next, 1), l.rule.Most), 0, true
	l.sum, l.moment = 0, 0
}

// overTime fits a line through the records since the latest decision, at x = 0 to fresh-1, and returns its slope: by how many
// seconds the cost of a token grows with each pass.
func (l *Length) overTime() float64 {
	n := float64(l.fresh)
	middle, spread := (n-1)/2, 0.0 // mean of x, and Σ (x - mean)²
	for x := range l.fresh {
		spread += (float64(x) - middle) * (float64(x) - middle)
	}
	return (l.moment - middle*l.sum) / spread
}

// overLengths fits a line through t_V(s)/τ(s), weighted by chains, over the lengths near the one in use, and returns its
// slope: by how many seconds the cost of a token grows with the length. It is 0 if there is only one length.
func (l *Length) overLengths(costs *worth.Costs) float64 {
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
	lo, hi := max(l.now-near, 1), min(l.now+near, l.rule.Most)
	var n, sx, sy, xy, xx float64
	lengths := 0
	cost := func(s int) float64 {
		return costs.Time(int(math.Round(l.rest+l.chains*float64(1+s)))).Seconds() / tau[s]
	}
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
