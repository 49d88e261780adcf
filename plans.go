package tandem

import (
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
	Accept []float32       // probability that a node is accepted, by its AcceptBin; nil: as the draft model says
}

// acceptBins is the number of bins of Plan.Accept, each half a nat of cumulative log-probability wide.
const acceptBins = 24

// AcceptBin returns the bin of a node with that cumulative log-probability, 0 for the likeliest.
func AcceptBin(logProb float32) int {
	if !(logProb < 0) {
		return 0
	}
	return int(min(-2*logProb, acceptBins-1))
}

// AcceptBins returns the number of bins of Plan.Accept.
func AcceptBins() int { return acceptBins }
