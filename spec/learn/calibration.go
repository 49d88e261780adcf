package learn

import (
	"math"

	"github.com/tandem-llm/tandem"
)

// Calibration learns the chance that a drafter's node is accepted, by the AcceptBin of the cumulative
// log-probability that the drafter gave it. Counts fade; in bins with few nodes the drafter is believed. Not
// safe for concurrent use.
//
// A verified tree says for every node whether it was accepted, also for nodes below a rejected one. So the
// cumulative chance of a bin is a plain frequency: nothing has to be multiplied along paths.
type Calibration struct {
	t              CalibrationTuning
	seen, accepted []float64
}

// NewCalibration returns a calibration that believes the drafter.
func NewCalibration(t CalibrationTuning) *Calibration {
	return &Calibration{t, make([]float64, tandem.AcceptBins()), make([]float64, tandem.AcceptBins())}
}

// Record takes a verified tree and the tokens committed after its root. If the text was cut off, nodes below
// its end do not count. A tree without LogProbs does not count.
func (c *Calibration) Record(t tandem.Tree, committed []tandem.Token) {
	if t.LogProbs == nil || t.Len() < 2 {
		return
	}
	t = t.Bare()
	for i := range c.seen {
		c.seen[i] *= c.t.Forget
		c.accepted[i] *= c.t.Forget
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
		if verdict[i] >= 0 {
			bin := tandem.AcceptBin(t.LogProbs[i])
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
	step := math.Exp(-0.5)
	prior := math.Exp(-0.25) / step // at the middle of a bin
	for i := range c.seen {
		prior *= step
		p := pool{c.accepted[i] + c.t.Prior*prior, c.seen[i] + c.t.Prior, 1}
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

// Inherit returns an independent calibration that begins with c's counts, multiplied by share (0 to 1).
func (c *Calibration) Inherit(share float64) *Calibration {
	out := NewCalibration(c.t)
	for i := range c.seen {
		out.seen[i], out.accepted[i] = share*c.seen[i], share*c.accepted[i]
	}
	return out
}
