package learn

import "math"

// Estimate is what a planner expects of a round of an arm.
type Estimate struct {
	Tokens  float64 // mean, the target's own included
	Seconds float64
	Rate    float64 // tokens per second, those of others in the same pass included
	Hope    float64 // tokens per second with one standard error more, in the shortest time that it may take

	doubt  float64 // standard error of Tokens; plain rounds have none
	once   float64 // seconds more of the next round alone
	others float64 // tokens of others in the pass
	Known  bool    // a session has used it, or there is hindsight of it
}

// Estimate judges an arm.
func (p *Planner) Estimate(arm Arm) Estimate {
	e := Estimate{Tokens: 1, Seconds: arm.Time.Seconds(), once: arm.Once.Seconds(), others: p.others, Known: true}
	if arm.Drafters != nil {
		s := p.sets[arm.set()]
		if s == nil {
			s = p.unknown(arm)
		}
		e.Known = s.n > 0 || s.told || s.recalled > 0
		fresh := p.fresh(s)
		sum, n := fresh*s.mean.Accepted+s.guessN*s.guess.Accepted*p.ease(s), fresh+s.guessN
		if s.recalled > 0 {
			sum, n = sum+s.recalled*s.hindsight*p.scale(s), n+s.recalled
		}
		mu := sum / n
		// Accepted tokens of its own rounds were between 0 and the depth. What other texts have shown is as doubtful as what nobody knows.
		v, far := spread(mu), spread(max(mu, p.t.Guess))
		if s.idle {
			far = v
		}
		if s.mean.Depth > 0 {
			v = min(v, max(mu, 0.05)*max(s.mean.Depth+1-mu, 0.25))
		}
		v += (far - v) * s.guessN / n
		e.Tokens, e.doubt = max(1+mu, 0.1), math.Sqrt(v/(n+min(p.text.foretold/4, p.t.Prior)))
	}
	if e.Seconds <= 0 {
		e.Seconds = 1 // nothing is known of any time
	}
	least := e.Seconds
	if arm.Least > 0 {
		least = min(least, arm.Least.Seconds())
	}
	e.Rate, e.Hope = (e.others+e.Tokens)/e.Seconds, (e.others+e.Tokens+e.doubt)/least
	return e
}

// spread is the variance of the accepted tokens of a round with that mean.
func spread(mu float64) float64 { return max(mu, 0.05) * (1 + max(mu, 0.05)) }

// ease returns how well the text can be guessed relative to what was expected, by the rounds of other sets than s; it returns to 1 in
// rounds without a draft.
func (p *Planner) ease(s *setState) float64 {
	fresh := math.Exp2(-float64(p.rounds-p.drafted) / (2 * p.t.Stale))
	mine := math.Pow(p.t.TextFade, float64(p.texts-s.texts))
	came, expected := max(p.text.came-mine*s.text.came, 0), max(p.text.foretold-mine*s.text.foretold, 0)
	return (came*fresh + 0.5) / (expected*fresh + 0.5)
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
func (p *Planner) scale(s *setState) float64 {
	usual := min(max(p.all.of(1, p.t.Common), p.t.Low), p.t.High)
	seen := s.own.of(usual, p.t.Common)
	return s.own.of(min(max(usual, seen/2), 2*seen), p.t.Own)
}

// loss returns how much longer a round takes than the best arm would need for the same tokens, in rounds of the best arm.
func (e Estimate) loss(best Estimate) float64 {
	return max((e.Seconds+e.once)/best.Seconds-(e.others+e.Tokens)/(best.others+best.Tokens), 0)
}
