package guess

import (
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// prompts is what self-drafts of sort Prompts have, such as PPD: prompt tokens (Chen et al., "Hardware-Aware Parallel Prompt Decoding",
// 2024): rows with trained embeddings that go through the target's own passes behind a node of a tree. With n members h_j of an ensemble,
// level i guesses
//
//	logits = O (1/n Σ_j norm(h_ji))
//
// h_ji being the hidden state of prompt token i of member j. Products are linear, so that is the mean of the members' logits, for one
// product instead of one for each member.
type prompts struct{ rows []float32 } // (members·levels, d)

func planPrompts(p *planning) (Guesser, error) {
	c, s := tensors.New(p.file), &p.Spec
	n := s.Levels * s.Members
	var w kernels.W
	if c.Matrix(&w, s.Prompts(), true, n, s.Dim); c.Err != nil {
		return nil, c.Err
	}
	t := c.Matrices[w].Tensor
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	g := &prompts{rows: make([]float32, n*s.Dim)}
	for i, size := 0, len(data)/n; i < n; i++ {
		ref.Dequantize(uint32(t.Type), data[i*size:(i+1)*size], g.rows[i*s.Dim:(i+1)*s.Dim])
	}
	if c.CheckFinite(s.Prompts(), g.rows); c.Err != nil {
		return nil, c.Err
	}
	return g, p.needOutput()
}

// Embeddings returns the embeddings that passes take for prompt rows: (Members·Levels, d). They are only to be read.
func (g *prompts) Embeddings() []float32 { return g.rows }

func (g *prompts) guess(r *round, asks []*ask) error {
	for _, a := range asks {
		for level := range a.guess.Levels {
			r.state(mean(a.states, level, len(a.guess.Levels)), &a.guess.Levels[level])
		}
	}
	return nil
}

// mean returns the mean of a level's states: their sum in order of members, times 1/members.
func mean(states [][]float32, level, levels int) []float32 {
	sum, members := states[level], len(states)/levels
	for j := 1; j < members; j++ {
		for i, v := range states[j*levels+level] {
			sum[i] += v
		}
	}
	for i, share := 0, 1/float32(members); i < len(sum) && members > 1; i++ {
		sum[i] *= share
	}
	return sum
}
