package drafter

import "time"

const (
	stretch   = 6   // rounds of a session in the way that is tried: fewer than the planner needs to believe that nothing is drafted ahead
	leastRest = 42  // rounds of a session in the better way between two such stretches
	mostRest  = 378 // of drafting in turn, while drafting ahead is worse each time
	payMemory = 512 // about the number of latest rounds that count
	farLonger = 8   // a round of so many times the usual length does not count: a client was slow
	leastHits = 1.0 / 512
	leastMore = 1.03 // of the rate in turn: less may be chance
)

// pays decides whether drafting ahead from states pays, by what it has brought: tokens per second of rounds ahead and of rounds in turn.
// That counts all that it costs: trees from the draft's own outputs are worse, passes ahead take memory bandwidth from the target, and a
// new proposal waits for the pass that is running. No model of these costs is needed, and hits alone would not tell them.
//
// All sessions draft in the better way, and for a few rounds now and then in the other. Without hits ahead cannot be the better one.
// There is one pays for a session that is alone, which begins ahead, and one for several, which begin in turn: those wait for each
// other's passes ahead, and trees that come early are verified in smaller batches.
type pays struct {
	of     [2]struct{ tokens, seconds, rounds float64 } // in turn and ahead; earlier rounds count less
	hits   float64                                      // of the latest rounds ahead
	ahead  bool                                         // the better way
	trying bool                                         // the other one is tried
	left   int                                          // rounds of this stretch, of all sessions
	rest   int                                          // rounds until the next trial
}

func newPays(ahead bool) pays { return pays{ahead: ahead, hits: 1, left: 2 * stretch, rest: leastRest} }

// next reports whether the next round of one of so many sessions is to be ahead.
func (p *pays) next(sessions int) bool {
	if p.left <= 0 {
		if p.trying {
			better := p.better()
			if p.rest *= 2; better || p.ahead {
				p.rest = leastRest
			}
			p.ahead, p.rest = better, min(p.rest, mostRest)
			p.left = p.rest * sessions
		} else {
			p.left = stretch * sessions
		}
		p.trying = !p.trying
	}
	p.left--
	return p.ahead != p.trying
}

// better reports whether drafting ahead has brought clearly more.
func (p *pays) better() bool {
	turn, ahead := p.of[0], p.of[1]
	if p.hits < leastHits {
		return false
	}
	return turn.seconds == 0 || ahead.tokens*turn.seconds >= leastMore*turn.tokens*ahead.seconds
}

// tried notes whether a round ahead was a hit.
func (p *pays) tried(hit bool) {
	if p.hits *= 1 - 1.0/stretch; hit {
		p.hits += 1.0 / stretch
	}
}

// learn notes a round that took so long and brought so many tokens.
func (p *pays) learn(ahead bool, tokens int, took time.Duration) {
	at, seconds := 0, took.Seconds()
	if ahead {
		at = 1
	}
	if w := p.of[at]; w.rounds >= 1 && seconds > farLonger*w.seconds/w.rounds {
		return
	}
	for i := range p.of {
		w := &p.of[i]
		w.tokens, w.seconds, w.rounds = w.tokens*(1-1.0/payMemory), w.seconds*(1-1.0/payMemory), w.rounds*(1-1.0/payMemory)
	}
	w := &p.of[at]
	w.tokens, w.seconds, w.rounds = w.tokens+float64(tokens), w.seconds+seconds, w.rounds+1
}
