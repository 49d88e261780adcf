package grow

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/spec"
)

// leastWidth is how many candidates of a node are held at least.
const leastWidth = 1 << 3

// Vocabulary is the draft model's vocabulary beside the target's, and how the target draws from it.
//
// A draft model may have more tokens than its target, or fewer; those that both have mean the same (token.Compare).
// Tokens that only the draft model has are never guessed: best leaves them out. Tokens that only the target has may be
// committed: the draft model reads its stand-in for them, which only costs acceptance. Its cache and the shared prefixes
// hold what it read, so two such tokens may share memory; hashes and trees hold the true tokens.
type Vocabulary struct {
	Target   int // tokens of the target
	Sampling tandem.Sampling
	own      int          // tokens of the draft model
	standIn  tandem.Token // of the draft model, for tokens that it lacks
	sampler  *sample.Sampler
}

// Known returns tokens with the stand-in for each that the draft model lacks; tokens itself if it has them all.
func (v *Vocabulary) Known(tokens []tandem.Token) []tandem.Token {
	lacks := func(t tandem.Token) bool { return int(t) >= v.own }
	if v.Target <= v.own || !slices.ContainsFunc(tokens, lacks) {
		return tokens
	}
	out := slices.Clone(tokens)
	for i, t := range out {
		if lacks(t) {
			out[i] = v.standIn
		}
	}
	return out
}

// Guesses returns what the target is likeliest to draw at position pos, after the token of a wanted row of out: at most width tokens that
// the target has, best first. With a temperature the noise of the target's draw counts (sample.Coupled), and so does bias; penalties and
// filters do not. The list is the caller's.
func (v *Vocabulary) Guesses(out *engine.Output, row, width int, pos tandem.Position) []spec.Candidate {
	if v.Sampling.Temperature > 0 || len(v.Sampling.Bias) > 0 {
		return v.coupled(out, row, width, pos)
	}
	return v.likeliest(out, row, width)
}

// greedy reports whether Guesses are the best tokens of a row as the engine finds them.
func (v *Vocabulary) greedy() bool {
	return !(v.Sampling.Temperature > 0) && len(v.Sampling.Bias) == 0 && v.Target >= v.own
}

// likeliest returns what the draft model itself finds likeliest after a wanted row, whatever the target draws.
func (v *Vocabulary) likeliest(out *engine.Output, row, width int) []spec.Candidate {
	return candidates(v.best(out, row, width), width)
}

// coupled is Guesses for a target that draws. The probability of token i is e^y of the sum over all tokens, where y = logit +
// temperature · noise: without noise that is the model's own, and the larger the noise of a token, the surer is its draw. The sum
// is exact for the tokens with the best y; of the others the model's own probability counts.
func (v *Vocabulary) coupled(out *engine.Output, row, width int, pos tandem.Position) []spec.Candidate {
	logits := out.Logits(row)
	logits = v.sampler.Shape(logits[:min(v.Target, len(logits))], tandem.Sampling{Bias: v.Sampling.Bias}, nil)
	ids, scores := v.sampler.Coupled(logits, v.Sampling, pos, max(width, leastWidth))
	top := v.best(out, row, 1)
	others, sum := float64(top.Sum), 0.0 // in units of e^top.Max
	for i, id := range ids {
		others -= math.Exp(float64(logits[id] - top.Max))
		sum += math.Exp(float64(scores[i] - top.Max))
	}
	norm := top.Max + float32(math.Log(sum+max(others, 0)))
	list := make([]spec.Candidate, 0, width)
	for i, id := range ids[:min(width, len(ids))] {
		list = append(list, spec.Candidate{Token: id, LogProb: scores[i] - norm})
	}
	return list
}

// best returns at least the best width tokens of a wanted row among those that the target has.
func (v *Vocabulary) best(out *engine.Output, row, width int) engine.Top {
	top := out.Top(row)
	if v.Target >= v.own || !slices.ContainsFunc(top.IDs[:min(width, len(top.IDs))], func(id int32) bool { return int(id) >= v.Target }) {
		return top
	}
	return out.TopBelow(row, width, v.Target)
}

// candidates turns the best tokens of a row into guesses.
func candidates(top engine.Top, width int) []spec.Candidate {
	norm := top.Max + float32(math.Log(float64(top.Sum)))
	list := make([]spec.Candidate, 0, width)
	for i, id := range top.IDs[:min(width, len(top.IDs))] {
		list = append(list, spec.Candidate{Token: tandem.Token(id), LogProb: top.Logits[i] - norm})
	}
	return list
}
