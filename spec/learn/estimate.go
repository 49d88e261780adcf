package learn

import "math"

// estimate is what is expected of a round of an arm.
type estimate struct {
	tokens, doubt float64 // mean, its standard error; plain rounds have no doubt
	seconds       float64
	known         bool    // it has been used, or hindsight tells
	rate, hope    float64 // tokens per second: mean, and with one standard error more
}

// estimate judges an arm; pool is what estimates of arms whose time is hardly known lean on.
func (p *Planner) estimate(arm Arm, pool pool) estimate {
	s := p.arms[arm.Name]
	if s == nil {
		s = newArm(arm)
	}
	e := estimate{tokens: 1, seconds: pool.shortest}
	if e.known = s.timed > 0; e.known {
		e.seconds = s.seconds * p.level
	} else if s.recalled > 0 && pool.mean > 0 {
		e.known, e.seconds = true, pool.mean // about as long as others
	}
	if !s.plain {
		if s.timed > 0 && pool.mean > 0 && !s.several {
			e.seconds = (s.timed*e.seconds + plannerAlike*pool.mean) / (s.timed + plannerAlike)
		}
		n, mean, guessN := s.n, s.accepted, s.guessN
		fresh := n * math.Exp2(-float64(p.rounds-s.last)/plannerStale)
		if s.recalled > 0 {
			n, mean, guessN = s.recalled, s.hindsight*p.scale(s), guessN/4
			fresh += plannerPaired * n
		}
		mu := (n*mean + guessN*s.guess*p.text()) / (n + guessN)
		e.tokens, e.doubt = max(1+mu, 0.1), math.Sqrt(max(mu, 0.05)*(1+max(mu, 0.05))/(fresh+guessN+min(p.expected/4, plannerPrior)))
	}
	e.rate = e.tokens / e.seconds
	if e.hope = (e.tokens + e.doubt) / (e.seconds * (1 - plannerJitter/math.Sqrt(1+s.timed))); s.plain && s.timed == 0 {
		e.hope = e.rate / plannerHope
	}
	return e
}

// text returns how well the text can be guessed, against what was expected; without a draft for long, as well as any.
func (p *Planner) text() float64 {
	fresh := math.Exp2(-float64(p.rounds-p.drafted) / (2 * plannerStale))
	return (p.accepted*fresh + 0.5) / (p.expected*fresh + 0.5)
}

// scale is what rounds brought against what hindsight said: decayed sums of accepted tokens.
type scale struct{ came, foretold float64 }

// atMost returns the same ratio, of at most n foretold tokens.
func (s scale) atMost(n float64) scale {
	if s.foretold > n {
		s.came, s.foretold = s.came*n/s.foretold, n
	}
	return s
}

// of returns their ratio; as long as less than sure tokens were foretold it is nearer to usual.
func (s scale) of(usual, sure float64) float64 {
	return (s.came + sure*usual) / (s.foretold + sure)
}

func (s *scale) take(came, foretold float64) {
	s.came, s.foretold = s.came*plannerTextFade+came, s.foretold*plannerTextFade+foretold
}

// scale returns what an arm's rounds bring against its hindsight, as far as is known: about what all arms' do, unless its own were
// quite different. That of a text is never far from 1; who says he knows it all and does not must not spoil the others' name.
func (p *Planner) scale(s *armState) float64 {
	usual := min(max(p.all.of(1, plannerCommon), plannerLow), plannerHigh)
	seen := s.own.of(usual, plannerCommon)
	return s.own.of(min(max(usual, seen/2), 2*seen), plannerOwn)
}

// pool is what arms have in common: the shortest known time of a round, 1 s if none is known, and the mean of
// those with a draft, 0 if none is known.
type pool struct{ shortest, mean float64 }

func (p *Planner) pool(arms []Arm) pool {
	out := pool{shortest: math.Inf(1)}
	n := 0.0
	for _, a := range arms {
		if s := p.arms[a.Name]; s != nil && s.timed > 0 {
			out.shortest = min(out.shortest, s.seconds*p.level)
			if !s.plain {
				n += s.timed
				out.mean += (s.seconds*p.level - out.mean) * s.timed / n
			}
		}
	}
	if n == 0 && math.IsInf(out.shortest, 1) {
		out.shortest = 1
	}
	return out
}

// loss returns how much longer a round takes than the best arm would for the same tokens, in rounds of that.
func (e estimate) loss(best estimate) float64 {
	return max(e.seconds/best.seconds-e.tokens/best.tokens, 0)
}
