package worth

import "math"

// What rounds of a set of drafters bring. The tokens accepted in a round are about geometrically distributed, so of n rounds with mean μ
//
//	doubt = √(μ(1+μ)/n)
//
// is the standard error. Rounds of the session count for Tuned.Rounds rounds at most; what other sessions have seen counts for
// Tuned.Inherited rounds,
// and hindsight, the rounds that a drafter would have had on the text so far, for as many as it tells of.

// Yield is what rounds with the drafts of a set of drafters are like, in the mean. A text that is easy to guess has deeper trees and takes
// longer drafts than another one: so tokens and what they cost have the same memory.
type Yield struct {
	Accepted float64 // tokens
	Passes   float64 // of drafting, in passes over one row of the drafter whose take longest
	Rows     float64 // of the trees, root included
}

// add moves a mean towards y by that share.
func (y *Yield) add(x Yield, share float64) {
	y.Accepted += (x.Accepted - y.Accepted) * share
	y.Passes += (x.Passes - y.Passes) * share
	y.Rows += (x.Rows - y.Rows) * share
}

// Expected is what is known of a yield.
type Expected struct {
	Yield
	Doubt float64 // standard error of Accepted
	Known bool    // somebody has seen it, or there is hindsight of it
}

// belief is what is known of the rounds of one set of drafters.
type belief struct {
	own     Yield // of this session, and the rounds that it counts for
	rounds  float64
	seen    bool  // there were such rounds
	before  Yield // of other sessions, likewise
	earlier float64
	recall  float64 // accepted tokens of the rounds that hindsight tells of, and how many these are
	recalls float64
	fresh   Yield // of the rounds since the belief was handed on, and how many
	since   float64
}

func (b *belief) expected() Expected {
	seen := b.rounds + b.earlier
	n := seen + b.recalls
	e := Expected{Known: n > 0}
	if seen > 0 {
		e.Yield = b.own
		e.Yield.add(b.before, b.earlier/seen)
	}
	sum := seen*e.Accepted + b.recalls*b.recall
	if unknown := 1 - b.earlier; unknown > 0 && !b.seen { // as much as is expected where nothing is known: one token in one round
		sum, n = sum+unknown, n+unknown
	}
	e.Accepted = sum / n
	// What other texts have shown is as doubtful for this one as what nobody knows, however many they were.
	own, other := max(e.Accepted, 1/n), max(e.Accepted, 1)
	others := (n - b.rounds - b.recalls) / n
	e.Doubt = math.Sqrt(own*(1+own)/n + other*(1+other)*others*others)
	return e
}

// Yields is what one session knows of the rounds of sets of drafters, by the set's name.
type Yields map[string]*belief

// Inherit returns what a new session begins with.
func (y Yields) Inherit() Yields {
	out := Yields{}
	for set, b := range y {
		if b.rounds > 0 {
			out[set] = &belief{before: b.own, earlier: min(b.rounds, Tuned.Inherited)}
		}
	}
	return out
}

func (y Yields) of(set string) *belief {
	b := y[set]
	if b == nil {
		b = &belief{}
		y[set] = b
	}
	return b
}

// Of returns what is expected of a set: of one that is not known, that one token is accepted.
func (y Yields) Of(set string) Expected {
	if b := y[set]; b != nil {
		return b.expected()
	}
	return (&belief{}).expected()
}

// Observe takes a round of a set, or what a round of it would have been like.
func (y Yields) Observe(set string, x Yield) {
	b := y.of(set)
	b.rounds = min(b.rounds+1, Tuned.Rounds)
	b.own.add(x, 1/b.rounds)
	b.seen = true
	b.since++
	b.fresh.add(x, 1/b.since)
}

// Fade lets a round pass: what was seen before it counts less, but for the sets that it shows anew.
func (y Yields) Fade() {
	for _, b := range y {
		b.rounds *= 1 - 1/(2*Tuned.Rounds)
	}
}

// Recall takes how many tokens the rounds of a set would have had accepted on the latest text, by its drafters' hindsight, and how many
// rounds that is; 0: nothing is known of the latest text.
func (y Yields) Recall(set string, accepted, rounds float64) {
	b := y.of(set)
	b.recall, b.recalls = accepted, rounds
}

// HandOn adds what a session has seen since the last call to what new ones begin with.
func (y Yields) HandOn(to Yields) {
	for set, b := range y {
		x := to.of(set)
		if b.since == 0 {
			x.rounds *= 1 - 1/Tuned.Rounds // so that what was hardly used for long is looked at again
			continue
		}
		x.rounds = min(x.rounds+b.since, 2*Tuned.Rounds)
		x.own.add(b.fresh, min(b.since/x.rounds, 1))
		b.since, b.fresh = 0, Yield{}
	}
}
