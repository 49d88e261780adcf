package worth

import "time"

// Round has the times of a round's parts, which follow each other. A target may read weights from a disk. Then it computes while it reads
// on, and a part of the weights is read while the draft computes (LLMCad, section 3.4):
//
//	T = draft + way + max(verify, read − min(draft, ahead)) + rest
type Round struct {
	Draft, Way, Verify, Rest time.Duration
	Read                     time.Duration // of the weights that the pass reads from a disk
	Ahead                    time.Duration // the part of Read that can be done before the pass begins
}

// Time returns how long the round takes, never 0.
func (r Round) Time() time.Duration {
	return max(r.Draft+r.Way+max(r.Verify, r.Read-min(r.Draft, r.Ahead))+r.Rest, 1)
}

// Best returns the number of guesses that brings the most tokens per second, and that rate. Of equal numbers it takes the lowest:
//
//	argmax over n of (tokens + chance₁ + … + chanceₙ) / T(n)
//
// chances has each guess's chance to be accepted, likeliest first. tokens is what a round brings without guesses. time returns the time of
// a round with n of them. This is Dovetail's first equation and PPD's τ(n)/L(n).
func Best(tokens float64, chances []float64, time func(n int) time.Duration) (n int, rate float64) {
	for i := range len(chances) + 1 {
		if i > 0 {
			tokens += chances[i-1]
		}
		if r := tokens / max(time(i), 1).Seconds(); r > rate {
			n, rate = i, r
		}
	}
	return n, rate
}

// Chain returns the chances that the first 1, 2 … n tokens of a chain are all right. right says how often a token is right if those before
// it are, the last one for all behind; none: there is no draft.
func Chain(right []float64, n int) (chances []float64) {
	if len(right) == 0 {
		return nil
	}
	chance := 1.0
	for i := range n {
		chance *= right[min(i, len(right)-1)]
		chances = append(chances, chance)
	}
	return chances
}

// grown returns, likeliest first, the chances of the n likeliest nodes of a draft's tree that are no deeper than depth. right is as Chain
// takes it; of what the likeliest child leaves, the second has OtherShare and the third half of that.
func grown(right []float64, depth, n int) (chances []float64) {
	type node struct {
		chance float64
		depth  int
	}
	front := []node{{1, 0}}
	for len(chances) < n && len(front) > 0 {
		at := 0
		for i, x := range front {
			if x.chance > front[at].chance {
				at = i
			}
		}
		x := front[at]
		if front[at] = front[len(front)-1]; x.depth > 0 {
			chances = append(chances, x.chance)
		}
		if front = front[:len(front)-1]; x.depth == depth {
			continue
		}
		first := right[min(x.depth, len(right)-1)]
		for _, share := range []float64{first, (1 - first) * OtherShare, (1 - first) * OtherShare / 2} {
			if chance := x.chance * share; chance >= LeastChance {
				front = append(front, node{chance, x.depth + 1})
			}
		}
	}
	return chances
}

// Terms are what the speed of rounds with one draft follows from.
type Terms struct {
	Verify *Costs        // passes of the target, with all weights in memory
	Draft  time.Duration // a pass of the draft, which makes a chain or a tree one token deeper
	Right  []float64     // as Chain takes it
	Read   time.Duration // as in Round, of a pass of one row
	Each   time.Duration // what one more row adds to Read: the experts of a streamed mixture that it chooses
	Ahead  time.Duration // as in Round
}

// Forecast is what rounds with trees of one shape are expected to bring.
type Forecast struct {
	Drafted int           // nodes of a tree without its root; 0: plain decoding
	Tokens  float64       // that a round decides
	Time    time.Duration // of a round
}

// Speed returns the tokens per second.
func (f Forecast) Speed() float64 { return f.Tokens / f.Time.Seconds() }

// Best returns the length from 0 to longest of a chain with the most tokens per second. Chains whose pass is wider than any measured are
// left out.
func (t Terms) Best(longest int) Forecast {
	chances := Chain(t.Right, min(longest, t.Verify.Widest()-1))
	n, _ := Best(1, chances, func(n int) time.Duration { return t.round(n, n) })
	return t.forecast(n, chances[:n])
}

// BestTree returns the depth from 0 to deepest, and the number n of the likeliest nodes of that depth, with the most tokens per second:
//
//	argmax over depth, n of τ(depth, n) / (depth·T_D + max(T_V(n + 1), read − min(depth·T_D, ahead)))
//
// Trees whose pass is wider than any measured are left out.
func (t Terms) BestTree(deepest int) Forecast {
	best := t.forecast(0, nil)
	for depth := 1; depth <= deepest && len(t.Right) > 0; depth++ {
		chances := grown(t.Right, depth, t.Verify.Widest()-1)
		n, rate := Best(1, chances, func(n int) time.Duration { return t.round(depth, n) })
		if rate > best.Speed() && n > 0 {
			best = t.forecast(depth, chances[:n])
		}
	}
	return best
}

// round returns the time of a round with a tree of n nodes beside the root, for which the draft runs so many passes.
func (t Terms) round(passes, n int) time.Duration {
	read := t.Read + time.Duration(n)*t.Each
	return Round{Draft: time.Duration(passes) * t.Draft, Verify: t.Verify.Time(n + 1), Read: read, Ahead: t.Ahead}.Time()
}

// forecast returns what a round with nodes of those chances brings.
func (t Terms) forecast(passes int, chances []float64) Forecast {
	f := Forecast{len(chances), 1, t.round(passes, len(chances))}
	for _, c := range chances {
		f.Tokens += c
	}
	return f
}
