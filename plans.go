package tandem

import (
	"math"
	"time"
)

// Cost is the time that a pass of a model takes on this machine.
type Cost struct {
	Rows    int // all with logits
	Context int // committed positions before them
	Time    time.Duration
	Experts int           // that they used, counted layer by layer; 0: a model without experts, or not known
	Expert  time.Duration // what one more of them costs a pass of so many rows; 0: not known
}

// Valid reports whether a pass can cost that.
func (c Cost) Valid() bool {
	return c.Rows > 0 && c.Context >= 0 && c.Time > 0 && c.Experts >= 0 && c.Experts <= MostUsed && c.Expert >= 0
}

// MostUsed bounds the experts that a pass uses, counted layer by layer.
const MostUsed = 1 << 24

// Experts counts the experts that the first 1, 2, 4 … rows of a pass used together, and last those of all rows. An expert of a layer counts
// once, however many rows chose it. nil: not known.
type Experts []int32

// CountExperts returns the Experts of a pass, of which row i used added[i] experts that no row before it had used.
func CountExperts(added []int) Experts {
	var e Experts
	used := 0
	for i, n := range added {
		used += n
		if rows := i + 1; rows&(rows-1) == 0 || rows == len(added) {
			e = append(e, int32(used))
		}
	}
	return e
}

// All returns the number of experts that all rows used.
func (e Experts) All() int {
	if len(e) == 0 {
		return 0
	}
	return int(e[len(e)-1])
}

// Validate returns Corrupt if e cannot be of a pass of so many rows: each row uses as many as the first, and adds those that no row before
// it has used.
func (e Experts) Validate(rows int) error {
	if e == nil {
		return nil
	}
	want := 0 // numbers
	for n := 1; n < rows; n *= 2 {
		want++
	}
	if want++; rows < 1 || len(e) != want {
		return Errorf("experts", Corrupt, "%d numbers of experts for %d rows: want those of 1, 2, 4 … rows and of all", len(e), rows)
	}
	before := int32(1)
	for i, used := range e {
		n := min(1<<i, rows)
		if most := min(MostUsed, int64(e[0])*int64(n)); used < before || int64(used) > most {
			return Errorf("experts", Corrupt, "%d rows used %d experts: want %d to %d", n, used, before, most)
		}
		before = used
	}
	return nil
}

// Plan holds costs and probabilities. The drafter of a tree keeps the nodes that maximise expected tokens
// per time (spec.Cut).
type Plan struct {
	Verify []time.Duration // Verify[w-1]: time of a target pass in which this tree has w rows; nil: no plan
	Round  time.Duration   // the rest of a round, without drafting
	Others float64         // tokens that other sessions gain from the same pass
	// Accept is the probability that a node is accepted once its parent is, by the AcceptBin of what the drafter says of it, never rising;
	// nil: as the drafter says. The chance of a node is the product along its path.
	Accept []float32
}

// Bins of Plan.Accept: each is a factor of two of the odds p/(1-p) wide, so that there are as many near 1 as near 0. A draft that is
// wrong once in a hundred tokens makes much longer chains than one that is wrong once in ten.
const (
	acceptBins = 25
	bestOdds   = 16 // the first bin's odds are at least 2 to the power of this
)

// AcceptBin returns the bin of a guess that has that log-probability after its parent, 0 for the likeliest.
func AcceptBin(logProb float32) int {
	if logProb != logProb {
		return acceptBins - 1
	}
	odds := -math.Log2(math.Expm1(-min(float64(logProb), 0)))
	return int(min(max(math.Ceil(bestOdds-odds), 0), acceptBins-1))
}

// AcceptBins returns the number of bins of Plan.Accept.
func AcceptBins() int { return acceptBins }

// AcceptOdds returns the natural logarithm of the odds in the middle of a bin.
func AcceptOdds(bin int) float64 { return (bestOdds + 0.5 - float64(bin)) * math.Ln2 }
