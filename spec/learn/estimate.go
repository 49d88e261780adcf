package learn

import (
	"math"
	"time"
)

// estimate is what a planner expects of a round of an arm.
type estimate struct {
	tokens, doubt float64 // mean, its standard error; plain rounds have no doubt
	seconds       float64
	probed        float64 // the time that a probe may take, if that is foreseen
	known         bool    // the arm has been used, or there is hindsight of it
	rate, hope    float64 // tokens per second: mean, and with one standard error more
}

// estimate judges an arm; pool supplements the time of an arm with few timed rounds.
func (p *Planner) estimate(arm Arm, pool pool) estimate {
	s := p.arms[arm.Name]
	if s == nil {
		s = p.newArm(arm)
	}
	dear := pool.dear(arm.Price, p.t.Dear)
	usual := pool.mean + dear // about as long as others, but for its own drafting
	e := estimate{tokens: 1, seconds: pool.shortest + dear}
	if e.known = s.timed > 0; e.known {
		e.seconds = s.seconds * p.level
	} else if s.recalled > 0 && pool.mean > 0 {
		e.known, e.seconds = true, usual
	}
	if !s.plain {
		if s.timed > 0 && pool.mean > 0 && !s.several {
			e.seconds = (s.timed*e.seconds + p.t.Alike*usual) / (s.timed + p.t.Alike)
		}
		n, mean, guessN := s.n, s.accepted, s.guessN
		fresh := n * math.Exp2(-float64(p.rounds-s.last)/p.t.Stale)
		if s.recalled > 0 {
			n, mean, guessN = s.recalled, s.hindsight*p.scale(s), guessN/4
			fresh += p.t.Paired * n
		}
		mu := (n*mean + guessN*s.guess*p.text()) / (n + guessN)
		e.tokens, e.doubt = max(1+mu, 0.1), math.Sqrt(max(mu, 0.05)*(1+max(mu, 0.05))/(fresh+guessN+min(p.expected/4, p.t.Prior)))
	}
	e.rate = e.tokens / e.seconds
	if e.hope = (e.tokens + e.doubt) / (e.seconds * (1 - p.t.Jitter/math.Sqrt(1+s.timed))); s.plain && s.timed == 0 {
		e.hope = e.rate / p.t.Hope
	}
	if s.foreseen > 0 && e.known && (s.plain || s.foreseen < p.t.Cold*e.seconds) {
		e.probed = s.foreseen
		e.hope = max(e.hope, (e.tokens+e.doubt)/s.foreseen)
	}
	return e
}

// text returns how well the text can be guessed relative to what was expected; it returns to 1 in rounds without a draft.
func (p *Planner) text() float64 {
	fresh := math.Exp2(-float64(p.rounds-p.drafted) / (2 * p.t.Stale))
	return (p.accepted*fresh + 0.5) / (p.expected*fresh + 0.5)
}

// scale compares accepted tokens with what hindsight foretold: decayed sums of both.
type scale struct{ came, foretold float64 }

// atMost returns the same ratio with at most n foretold tokens.
func (s scale) atMost(n float64) scale {
	if s.foretold > n {
		s.came, s.foretold = s.came*n/s.foretold, n
	}
	return s
}

// of returns the ratio, pulled towards usual with the weight of sure foretold tokens.
func (s scale) of(usual, sure float64) float64 {
	return (s.came + sure*usual) / (s.foretold + sure)
}

func (s *scale) take(came, foretold, fade float64) {
	s.came, s.foretold = s.came*fade+came, s.foretold*fade+foretold
}

// scale returns the ratio of an arm's accepted tokens to its hindsight: about that of all arms, unless its own rounds differ
// much. The ratio of all arms is bounded near 1, so that an arm whose hindsight promises far too much does not spoil the others' estimates.
func (p *Planner) scale(s *armState) float64 {
	usual := min(max(p.all.of(1, p.t.Common), p.t.Low), p.t.High)
	seen := s.own.of(usual, p.t.Common)
	return s.own.of(min(max(usual, seen/2), 2*seen), p.t.Own)
}

// pool holds times that arms share: the shortest known time of a round, 1 s if none is known, and the means over
// arms with a draft of their times and prices, 0 if none is known.
type pool struct{ shortest, mean, price float64 }

func (p *Planner) pool(arms []Arm) pool {
	out := pool{shortest: math.Inf(1)}
	n := 0.0
	for _, a := range arms {
		if s := p.arms[a.Name]; s != nil && s.timed > 0 {
			out.shortest = min(out.shortest, s.seconds*p.level)
			if !s.plain {
				n += s.timed
				out.mean += (s.seconds*p.level - out.mean) * s.timed / n
				out.price += (a.Price.Seconds() - out.price) * s.timed / n
			}
		}
	}
	if n == 0 && math.IsInf(out.shortest, 1) {
		out.shortest = 1
	}
	return out
}

// dear returns how much longer than the mean of all, in seconds, a round takes whose drafting has that price, as far as it is felt:
// beyond that share of a round.
func (p pool) dear(price time.Duration, share float64) float64 {
	return max(price.Seconds()-p.price-share*p.mean, 0)
}

// loss returns how much longer a round takes than the best arm would need for the same tokens, in rounds of the best arm.
func (e estimate) loss(best estimate) float64 {
	if e.probed > 0 {
		e.seconds = min(e.seconds, e.probed)
	}
	return max(e.seconds/best.seconds-e.tokens/best.tokens, 0)
}
