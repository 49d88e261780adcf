package worth

import "math"

// What rounds of a set of drafters bring. The tokens accepted in a round are about geometrically distributed, so of n rounds with mean μ
//
//	doubt = √(μ(1+μ)/n)
//
// is the standard error. The session's own rounds count for at most Tuned.Rounds rounds, those of other sessions for Tuned.Inherited.
// Hindsight, what a drafter would have guessed of the text so far, counts for as many rounds as it covers.

// Yield is the mean of rounds with drafts of a set of drafters. A text that is easy to guess gets deeper trees, which take longer to draft.
// So the tokens and what they cost are remembered together.
type Yield struct {
	Accepted float64 // tokens
	Passes   float64 // time of drafting, in passes over one row of the set's slowest drafter
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
	chain   float64 // rows of such a round
	fresh   Yield   // of the rounds since the belief was handed on, and how many
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
	if seen > 0 { // trees that are cut to less than hindsight's chains, because rows are dear, do not bring what these promise
		e.Rows += max(b.chain-e.Rows, 0) * b.recalls / n
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

// Inherit returns the yields that a new session begins with. y holds what earlier sessions have handed on, and is only read.
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

// Of returns what is expected of a set. If nothing is known of it, one token is expected to be accepted.
func (y Yields) Of(set string) Expected {
	if b := y[set]; b != nil {
		return b.expected()
	}
	return (&belief{}).expected()
}

// Observe takes what a round of a set has brought, or would have brought.
func (y Yields) Observe(set string, x Yield) {
	b := y.of(set)
	b.rounds = min(b.rounds+1, Tuned.Rounds)
	b.own.add(x, 1/b.rounds)
	b.seen = true
	b.since++
	b.fresh.add(x, 1/b.since)
}

// Fade makes what was seen so far count less. It is called once a round, before Observe.
func (y Yields) Fade() {
	for _, b := range y {
		b.rounds *= 1 - 1/(2*Tuned.Rounds)
	}
}

// Recall takes what the drafters' hindsight says of a set (spec.Foretold): on the latest text it would have had so many rounds, with that
// mean of accepted tokens, with passes of so many rows. It replaces what an earlier Recall has said. rounds 0: hindsight says nothing.
func (y Yields) Recall(set string, accepted, rounds, rows float64) {
	b := y.of(set)
	b.recall, b.recalls, b.chain = accepted, rounds, rows
}

// HandOn adds what the session has seen since the last HandOn to the yields that new sessions inherit.
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
