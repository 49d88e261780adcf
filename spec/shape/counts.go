package shape

import (
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	rightPrior = 2               // samples that the prior of Right counts for
	givenPrior = worth.Prior     // samples that the rates of the wider condition count for, where a narrower one is counted
	linePrior  = 2 * worth.Prior // candidates that a line's prior counts for, as the ridge of its fit
	ownBins    = mostLogit << 2  // of logits, half a unit wide
)

// Counts counts samples and makes tables of them. The first few samples change little: rates begin with a prior that falls with the
// rank, and each condition begins with the rates of the wider one. Not safe for concurrent use.
//
// To learn the rates of rounds, count only places where rounds begin: after a wrong guess the text is harder than elsewhere. A sample
// must be as long as its guess, whatever the round accepted, or the lower levels are counted in easy places only.
type Counts struct {
	ranks   int
	samples float64
	levels  []level
}

// level is what Counts knows of one level.
type level struct {
	seen  float64            // samples that reach so far
	right []float64          // by rank
	after [classes]float64   // samples in which all levels above were right, by the class of that path
	given [classes][]float64 // of those, by rank
	own   [ownBins]ownBin    // candidates below right paths, by own probability
	prior Line
}

type ownBin struct{ seen, right, logits float64 }

// NewCounts returns counts of a way with that many levels and candidates in each.
func NewCounts(levels, ranks int) (*Counts, error) {
	if levels < 1 || levels > tandem.MostLevels || ranks < 1 || ranks > tandem.MostCandidates {
		return nil, tandem.Errorf("accuracy", tandem.Invalid, "%d levels of %d candidates: want 1 to %d of 1 to %d", levels, ranks,
			tandem.MostLevels, tandem.MostCandidates)
	}
	c := &Counts{ranks: ranks, levels: make([]level, levels)}
	for k := range c.levels {
		l := &c.levels[k]
		l.prior, l.right = Line{Slope: 1}, make([]float64, ranks)
		for i := range l.given {
			l.given[i] = make([]float64, ranks)
		}
	}
	return c, nil
}

// Counts returns counts as if that many samples had made the table. a must be valid.
func (a *Accuracy) Counts(samples float64) *Counts {
	c, err := NewCounts(a.Levels(), a.Ranks())
	if err != nil {
		panic("shape: " + err.Error()) // not a valid table
	}
	c.samples = samples
	rate := a.Rate()
	paths := map[int]float64{0: samples} // right paths so far, by the sum of their ranks
	for k := range c.levels {
		l := &c.levels[k]
		l.seen = samples
		if a.Own != nil {
			l.prior = a.Own[k]
		}
		for j, p := range a.Right[k] {
			l.right[j] = samples * p
		}
		next := map[int]float64{}
		for above := 0; above <= k*tandem.MostCandidates; above++ { // in order: sums of floats depend on it
			n, class := paths[above], classOf(above)
			l.after[class] += n
			for j := range c.ranks {
				hits := n * rate(k, above, j)
				l.given[class][j] += hits
				next[above+j] += hits
			}
		}
		paths = next
	}
	return c
}

// Believe makes corrections begin with lines, one a level, which another table of the same way has learned; few samples change them little.
// It ignores lines that are not valid or of levels that c does not have.
func (c *Counts) Believe(lines []Line) {
	for k := range min(len(lines), len(c.levels)) {
		if lines[k].Valid() {
			c.levels[k].prior = lines[k]
		}
	}
}

// Lines returns the corrections counted so far, one a level: Table's Own.
func (c *Counts) Lines() []Line {
	lines := make([]Line, len(c.levels))
	for k := range c.levels {
		lines[k] = c.levels[k].line()
	}
	return lines
}

// Add counts one sample. Levels and ranks beyond c's count as wrong.
func (c *Counts) Add(s Sample) {
	c.samples++
	path, above := true, 0
	for k := range min(len(s.Ranks), len(c.levels)) {
		l, r := &c.levels[k], int(s.Ranks[k])
		if r >= c.ranks {
			r = -1
		}
		l.seen++
		if r >= 0 {
			l.right[r]++
		}
		if path {
			l.after[classOf(above)]++
			if r >= 0 {
				l.given[classOf(above)][r]++
			}
			if k < len(s.LogProbs) {
				l.weigh(s.LogProbs[k], r)
			}
		}
		path, above = path && r >= 0, above+max(r, 0)
	}
}

// weigh counts the own probabilities of a level's candidates.
func (l *level) weigh(logProbs []float32, right int) {
	for j, lp := range logProbs {
		if lp != lp {
			continue
		}
		x := logit(lp)
		b := &l.own[min(int(2*(x+mostLogit)), ownBins-1)]
		b.seen, b.logits = b.seen+1, b.logits+x
		if j == right {
			b.right++
		}
	}
}

// Fade multiplies all counts by a factor (0 to 1), so that newer samples count for more.
func (c *Counts) Fade(factor float64) {
	c.samples *= factor
	for k := range c.levels {
		l := &c.levels[k]
		l.seen *= factor
		scale(l.right, factor)
		scale(l.after[:], factor)
		for i := range l.given {
			scale(l.given[i], factor)
		}
		for i := range l.own {
			b := &l.own[i]
			b.seen, b.right, b.logits = b.seen*factor, b.right*factor, b.logits*factor
		}
	}
}

func scale(list []float64, by float64) {
	for i := range list {
		list[i] *= by
	}
}

// Table returns the accuracy counted so far.
func (c *Counts) Table() *Accuracy {
	n := len(c.levels)
	a := &Accuracy{Samples: c.samples, Right: make([][]float64, n), Given: make([][][]float64, n), Own: make([]Line, n)}
	prior := make([]float64, c.ranks)
	for j := range prior {
		prior[j] = 1 / float64(2*(j+1)*(j+2)) // half of the chance, and a quarter of it for the likeliest
	}
	for k := range c.levels {
		l := &c.levels[k]
		a.Right[k] = smooth(l.right, l.seen, prior, rightPrior)
		wide := make([]float64, c.ranks)
		for i := range l.given {
			for j, v := range l.given[i] {
				wide[j] += v
			}
		}
		wider := smooth(wide, sum(l.after[:]), a.Right[k], givenPrior)
		a.Given[k] = make([][]float64, classes)
		for i := range l.given {
			a.Given[k][i] = smooth(l.given[i], l.after[i], wider, givenPrior)
		}
		a.Own[k] = l.line()
	}
	return a
}

// smooth returns the rates of hits among seen, after a prior that counts for some more.
func smooth(hits []float64, seen float64, prior []float64, weight float64) []float64 {
	out := make([]float64, len(hits))
	for j, h := range hits {
		out[j] = (h + weight*prior[j]) / (seen + weight)
	}
	return out
}

// line fits the level's line: logistic regression by Newton's method, with a ridge around the prior.
func (l *level) line() Line {
	at := l.prior
	for range 1 << 5 {
		ds, db := linePrior*(at.Slope-l.prior.Slope), linePrior*(at.Bias-l.prior.Bias) // gradient
		hss, hsb, hbb := float64(linePrior), 0.0, float64(linePrior)                   // Hessian
		for _, b := range l.own {
			if b.seen <= 0 {
				continue
			}
			x := b.logits / b.seen
			p := 1 / (1 + math.Exp(-at.Slope*x-at.Bias))
			miss, w := b.seen*p-b.right, b.seen*p*(1-p)
			ds, db = ds+miss*x, db+miss
			hss, hsb, hbb = hss+w*x*x, hsb+w*x, hbb+w
		}
		det := hss*hbb - hsb*hsb
		slope, bias := (hbb*ds-hsb*db)/det, (hss*db-hsb*ds)/det
		at.Slope = max(min(at.Slope-bounded(slope), tandem.MostSlope), 1./(1<<4))
		at.Bias = max(min(at.Bias-bounded(bias), tandem.MostBias), -tandem.MostBias)
		if math.Abs(slope)+math.Abs(bias) < 1e-9 {
			break
		}
	}
	return at
}

// bounded keeps a step of Newton's method where the quadratic holds.
func bounded(step float64) float64 { return max(min(step, 1), -1) }
