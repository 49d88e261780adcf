package shape

import (
	"math"
	"math/bits"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// classes is how many classes of paths Accuracy tells apart, by the sum of the ranks above: 0, 1, 2 to 3, 4 to 7, 8 and more.
const classes = 1<<2 + 1

func classOf(above int) int {
	return min(bits.Len(uint(max(above, 0))), classes-1)
}

// Accuracy says how often a way's candidates are right. It is plain values, for files and for messages.
//
// Levels are not independent: where the first is easy, the next is easier too. So Given holds the rates under the condition that the
// path above is right, by the class of that path. The path of likeliest candidates has a class of its own, so its chance is exact; other
// classes are means over their paths. Right holds the rates whatever is above, as the papers multiply them.
type Accuracy struct {
	Samples float64       `json:"samples"`         // that it was counted from
	Right   [][]float64   `json:"right"`           // [level][rank]
	Given   [][][]float64 `json:"given,omitempty"` // [level][class of the path above][rank]; nil: as Right
	Own     []Line        `json:"own,omitempty"`   // [level]: corrects the way's own probabilities; nil: they are believed
}

// Line corrects a way's own probabilities.
type Line = tandem.Line

// Levels returns the number of levels.
func (a *Accuracy) Levels() int { return len(a.Right) }

// Ranks returns the number of candidates in a level.
func (a *Accuracy) Ranks() int {
	if len(a.Right) == 0 {
		return 0
	}
	return len(a.Right[0])
}

// Validate returns Invalid if a is no table: wrong sizes, no numbers, or rates that are no chances.
func (a *Accuracy) Validate() error {
	const op = "accuracy"
	if n := a.Levels(); n == 0 || n > tandem.MostLevels || a.Given != nil && len(a.Given) != n || a.Own != nil && len(a.Own) != n {
		return tandem.Errorf(op, tandem.Invalid, "%d levels, %d with conditions, %d lines: want 1 to %d, and all or none of the others", n,
			len(a.Given), len(a.Own), tandem.MostLevels)
	}
	if n := a.Ranks(); n == 0 || n > tandem.MostCandidates {
		return tandem.Errorf(op, tandem.Invalid, "%d candidates in a level: want 1 to %d", n, tandem.MostCandidates)
	}
	if !(a.Samples >= 0 && a.Samples <= math.MaxInt64) {
		return tandem.Errorf(op, tandem.Invalid, "%v samples: want 0 or more", a.Samples)
	}
	for k := range a.Right {
		rows := [][]float64{a.Right[k]}
		if a.Given != nil {
			if len(a.Given[k]) != classes {
				return tandem.Errorf(op, tandem.Invalid, "level %d has %d classes: want %d", k, len(a.Given[k]), classes)
			}
			rows = append(rows, a.Given[k]...)
		}
		for _, row := range rows {
			if err := a.checkRates(k, row); err != nil {
				return err
			}
		}
	}
	for k, l := range a.Own {
		if !l.Valid() {
			return tandem.Errorf(op, tandem.Invalid, "level %d has slope %v and bias %v: want a slope above 0, at most %v, and a bias "+
				"from %v to %v", k, l.Slope, l.Bias, tandem.MostSlope, -tandem.MostBias, tandem.MostBias)
		}
	}
	return nil
}

// checkRates checks one row of a table: the rates of a level's candidates.
func (a *Accuracy) checkRates(level int, row []float64) error {
	const op = "accuracy"
	if len(row) != a.Ranks() {
		return tandem.Errorf(op, tandem.Invalid, "level %d has %d candidates: want %d, as level 0", level, len(row), a.Ranks())
	}
	total := 0.0
	for j, p := range row {
		if !(p >= 0 && p <= 1) {
			return tandem.Errorf(op, tandem.Invalid, "level %d, candidate %d: rate %v: want 0 to 1", level, j, p)
		}
		total += p
	}
	if total > 1+1e-6 {
		return tandem.Errorf(op, tandem.Invalid, "the rates of level %d add up to %v: want at most 1", level, total)
	}
	return nil
}

// Rate returns the rates under the condition that the path above is right; those of Independent if there are none.
func (a *Accuracy) Rate() Rate {
	if a.Given == nil {
		return a.Independent()
	}
	return func(level, above, rank int) float64 {
		if level >= len(a.Given) || rank >= a.Ranks() {
			return 0
		}
		return a.Given[level][classOf(above)][rank]
	}
}

// Independent returns the rates as if levels were independent (the papers' product of accuracies).
func (a *Accuracy) Independent() Rate {
	return func(level, _, rank int) float64 {
		if level >= a.Levels() || rank >= a.Ranks() {
			return 0
		}
		return a.Right[level][rank]
	}
}

// Corrected returns the rates by g's own probabilities, corrected by a. A nil a, and one without lines, believes g; so it does beyond
// a's levels.
func (a *Accuracy) Corrected(g tandem.Guess) Rate {
	rates := make([][]float64, len(g.Levels))
	for k, level := range g.Levels {
		rates[k] = make([]float64, len(level))
		for j, c := range level {
			if a != nil && k < len(a.Own) {
				rates[k][j] = chance(a.Own[k], c.LogProb)
			} else {
				rates[k][j] = min(math.Exp(float64(c.LogProb)), 1)
			}
		}
		if total := sum(rates[k]); total > worth.MostCertain {
			for j := range rates[k] {
				rates[k][j] *= worth.MostCertain / total
			}
		}
	}
	return func(level, _, rank int) float64 {
		if level >= len(rates) || rank >= len(rates[level]) {
			return 0
		}
		return rates[level][rank]
	}
}

func chance(l Line, logProb float32) float64 {
	return 1 / (1 + math.Exp(-l.Slope*logit(logProb)-l.Bias))
}

// mostLogit bounds the logits of own probabilities.
const mostLogit = 1 << 4

// logit returns log(p/(1−p)), bounded.
func logit(logProb float32) float64 {
	p := math.Exp(min(float64(logProb), 0))
	return max(min(math.Log(p)-math.Log1p(-p), mostLogit), -mostLogit)
}

// Sample is one place of a text: how right a guess was there. The root of a round is at the place; level k guesses the token
// k + 1 places after it.
type Sample struct {
	Ranks    []int8      // per level: the rank of the right token, −1 if it was not among the candidates; shorter where the text ends
	LogProbs [][]float32 // per level and rank, the guess's own (nats); nil if unknown
}

// Look compares g with the tokens that came after the root.
func Look(g tandem.Guess, next []tandem.Token) Sample {
	n := min(len(g.Levels), len(next))
	s := Sample{make([]int8, n), make([][]float32, n)}
	for k := range n {
		s.Ranks[k] = int8(slices.IndexFunc(g.Levels[k], func(c tandem.TopLogprob) bool { return c.Token == next[k] }))
		for _, c := range g.Levels[k] {
			s.LogProbs[k] = append(s.LogProbs[k], c.LogProb)
		}
	}
	return s
}
