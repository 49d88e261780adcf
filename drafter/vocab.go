package drafter

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec"
)

// A draft model may have more tokens than its target, or fewer; those that both have mean the same (token.Compare).
// Tokens that only the draft model has are never guessed: best leaves them out. Tokens that only the target has may be
// committed: the draft model reads its stand-in for them, which only costs acceptance. Its cache and the shared prefixes
// hold what it read, so two such tokens may share memory; hashes and trees hold the true tokens.

// known returns tokens with stand-ins for those that the draft model lacks; tokens itself if it has them all.
func (s *session) known(tokens []tandem.Token) []tandem.Token {
	lacks := func(t tandem.Token) bool { return int(t) >= s.own }
	if s.Vocab <= s.own || !slices.ContainsFunc(tokens, lacks) {
		return tokens
	}
	out := slices.Clone(tokens)
	for i, t := range out {
		if lacks(t) {
			out[i] = s.standIn
		}
	}
	return out
}

// guesses returns the best width tokens after a wanted row, among those that the target has: what the target is likeliest to draw
// at position pos. With a temperature that is what its noise leans to (sample.Coupled), and bias counts; penalties and filters do not.
func (s *session) guesses(out *engine.Output, row, width int, pos tandem.Position) []spec.Candidate {
	if s.sampling.Temperature > 0 || len(s.sampling.Bias) > 0 {
		return s.coupled(out, row, width, pos)
	}
	return candidates(s.best(out, row, width), width)
}

// coupled is guesses for a target that draws. The probability of token i is e^y of the sum over all tokens, where y = logit +
// temperature · noise: without noise that is the model's own, and the larger the noise of a token, the surer is its draw. The sum
// is exact for the tokens with the best y; of the others the model's own probability counts.
func (s *session) coupled(out *engine.Output, row, width int, pos tandem.Position) []spec.Candidate {
	logits := out.Logits(row)
	logits = s.d.sampler.Shape(logits[:min(s.Vocab, len(logits))], tandem.Sampling{Bias: s.sampling.Bias}, nil)
	ids, scores := s.d.sampler.Coupled(logits, s.sampling, pos, max(width, leastWidth))
	top := s.best(out, row, 1)
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
func (s *session) best(out *engine.Output, row, width int) engine.Top {
	top := out.Top(row)
	if s.Vocab >= s.own || !slices.ContainsFunc(top.IDs[:min(width, len(top.IDs))], func(id int32) bool { return int(id) >= s.Vocab }) {
		return top
	}
	return out.TopBelow(row, width, s.Vocab)
}
