package tandem

import (
	"time"
)

// Cost is the time that a pass of a model takes on this machine.
type Cost struct {
	Rows    int // all with logits
	Context int // committed positions before them
	Time    time.Duration
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
