package guess

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// selector scores the steps from a token to the candidates after it (DFlash2; dflash/model.py of z-lab/dflash). With y the state of the
// candidates' row after the final norm, and tables of numbers for tokens before and after a step:
//
//	score of token j behind token i = logit_j + Σ after_j ∘ before_i ∘ (H y)
//
// The tables stay in the file, since a block needs some hundred rows of them.
type selector struct {
	hidden        kernels.W // H
	before, after *tensors.Lookup
	state         kernels.Buf // (maxWanted, rank): H y
	rank          int
}

func collectSelector(c *tensors.Catalog, s *side.Spec) *selector {
	n := s.Draft.Block.Rank
	x := &selector{rank: n}
	c.Matrix(&x.hidden, side.SelectorHidden, true, n, s.Draft.Width)
	if t := c.Lookup(side.SelectorBefore, true, s.Vocab, n); t != nil {
		x.before = tensors.NewLookup(t)
	}
	if t := c.Lookup(side.SelectorAfter, true, s.Vocab, n); t != nil {
		x.after = tensors.NewLookup(t)
	}
	return x
}

// tables returns the tensors that steps reads.
func (s *selector) tables() []*gguf.Tensor {
	return []*gguf.Tensor{s.before.Tensor(), s.after.Tensor()}
}

// leave lays out H y for the rows y.
func (s *selector) leave(b *blocks.Planner, y kernels.Act) {
	s.state = b.WantedBuf(s.rank)
	b.MatMul(s.hidden, y, s.state, kernels.MatMulOpt{})
}

// steps is Draft.Steps.
func (s *selector) steps(r kernels.Runner, i int, before, after []tandem.Token) ([][]float32, error) {
	state := r.Row(s.state, i)
	next := make([]float32, len(after)*s.rank)
	for j, token := range after {
		if err := s.after.Read(int(token), next[j*s.rank:][:s.rank]); err != nil {
			return nil, err
		}
	}
	from := make([]float32, s.rank)
	all := make([][]float32, len(before))
	for b, token := range before {
		if err := s.before.Read(int(token), from); err != nil {
			return nil, err
		}
		for k := range from {
			from[k] *= state[k]
		}
		for j := range after {
			sum := float32(0)
			for k, v := range next[j*s.rank:][:s.rank] {
				sum += v * from[k]
			}
			all[b] = append(all[b], sum)
		}
	}
	return all, nil
}
