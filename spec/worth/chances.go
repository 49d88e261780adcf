package worth

import (
	"math"

	"github.com/tandem-llm/tandem"
)

// Calibration learns the chance that a drafter's node is accepted once its parent is, by the AcceptBin of the probability that the drafter
// gave it after the parent. Counts fade. Not safe for concurrent use.
//
// A node below a rejected one says nothing, so the chance of a bin is a plain frequency. A bin with few nodes follows all of them: a line
// of the log-odds (Platt, 1999), which begins as what the drafter says.
type Calibration struct {
	seen, accepted []float64
}

// NewCalibration returns a calibration that believes the drafter.
func NewCalibration() *Calibration {
	return &Calibration{make([]float64, tandem.AcceptBins()), make([]float64, tandem.AcceptBins())}
}

// Record takes a verified tree and the tokens committed after its root. If the text was cut off, nodes below
// its end do not count. A tree without LogProbs does not count.
func (c *Calibration) Record(t tandem.Tree, committed []tandem.Token) {
	if t.LogProbs == nil || t.Len() < 2 {
		return
	}
	t = t.Bare()
	for i := range c.seen {
		c.seen[i] *= Tuned.Forget
		c.accepted[i] *= Tuned.Forget
	}
	depth := make([]int, t.Len())    // of accepted nodes
	verdict := make([]int8, t.Len()) // accepted 1, rejected 0, unknown -1
	verdict[0] = 1
	for i := 1; i < t.Len(); i++ {
		switch parent := t.Parents[i]; {
		case verdict[parent] < 1:
			verdict[i] = verdict[parent]
		case depth[parent] >= len(committed):
			verdict[i] = -1
		case committed[depth[parent]] == t.Tokens[i]:
			verdict[i], depth[i] = 1, depth[parent]+1
		}
		if parent := t.Parents[i]; verdict[i] >= 0 && verdict[parent] == 1 {
			bin := tandem.AcceptBin(t.LogProbs[i] - t.LogProbs[parent])
			c.seen[bin]++
			c.accepted[bin] += float64(verdict[i])
		}
	}
}

// Accept returns the chance of each bin, never rising, for Plan.Accept. The slice is the caller's.
//
// The frequencies are made monotone by isotonic regression (pooling neighbours that violate the order), which
// keeps the evidence; running minima would let one unlucky bin push down all after it.
func (c *Calibration) Accept() []float32 {
	type pool struct {
		accepted, seen float64
		bins           int
	}
	pools := make([]pool, 0, len(c.seen))
	shift, slope := c.line()
	for i := range c.seen {
		prior := sigmoid(shift + slope*tandem.AcceptOdds(i))
		p := pool{c.accepted[i] + Prior*prior, c.seen[i] + Prior, 1}
		for len(pools) > 0 {
			last := pools[len(pools)-1]
			if last.accepted*p.seen >= p.accepted*last.seen {
				break
			}
			p = pool{last.accepted + p.accepted, last.seen + p.seen, last.bins + p.bins}
			pools = pools[:len(pools)-1]
		}
		pools = append(pools, p)
	}
	out := make([]float32, 0, len(c.seen))
	for _, p := range pools {
		for range p.bins {
			out = append(out, float32(p.accepted/p.seen))
		}
	}
	return out
}

// The slope is expected within half of the shift's standard deviation, so with four times its strength. steps of Newton's method are exact
// enough.
const steps = 1 << 3

// line returns the line of the log-odds that fits all bins best: shift + slope × what the drafter says. It stays near (0, 1) until there
// are nodes enough. Newton's method on the logarithm of the likelihood with a normal prior.
func (c *Calibration) line() (shift, slope float64) {
	slope = 1
	for range steps {
		g0, g1 := -Tuned.Shift*shift, -2*2*Tuned.Shift*(slope-1)
		h00, h01, h11 := Tuned.Shift, 0.0, 2*2*Tuned.Shift
		for i, n := range c.seen {
			if n == 0 {
				continue
			}
			x := tandem.AcceptOdds(i)
			p := sigmoid(shift + slope*x)
			off, w := c.accepted[i]-n*p, n*p*(1-p)+1e-9
			g0, g1 = g0+off, g1+off*x
			h00, h01, h11 = h00+w, h01+w*x, h11+w*x*x
		}
		det := h00*h11 - h01*h01
		shift += min(max((g0*h11-g1*h01)/det, -1), 1)
		slope += min(max((g1*h00-g0*h01)/det, -1), 1)
		slope = max(slope, 0)
	}
	return shift, slope
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
