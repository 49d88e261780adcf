// Package plan lays a model's pass out: the operations, where a device leaves their results, and the least work that they are.
package plan

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// Sizes say how much a pass and its cache may hold.
type Sizes struct {
	Rows      int            // in a pass
	Wanted    int            // rows with logits in a pass
	Sequences int            // for which a recurrent model has places
	KV        kernels.KVType // of keys and values in the cache
	Taps      []int          // hidden states to keep: after so many layers, or -1, after the final norm
}

// Slots returns how many places for states the cache of a model of shape c has; 0 without recurrent layers.
func (s *Sizes) Slots(c *blocks.Config) int {
	if !c.Recurrent() {
		return 0
	}
	return memory.SlotsEach * s.Sequences
}

// Records returns how many places for records that cache has: one for each row of a pass, and some for each sequence.
func (s *Sizes) Records(c *blocks.Config) int {
	if !c.Recurrent() {
		return 0
	}
	return s.Rows + memory.RecordsEach*s.Sequences
}

// Bounds of what may be asked for.
const (
	mostTaps      = 16
	mostSequences = 1 << 13
)

// Check returns Invalid if the passes of the model h cannot have sizes s. They are as a user has given them: 0 stands for a default.
func (s *Sizes) Check(h *header.Header) error {
	if s.Sequences < 0 || s.Sequences > mostSequences {
		return tandem.Errorf("engine", tandem.Invalid, "memory for the states of %d sequences: want 1 to %d, or 0 for the default",
			s.Sequences, mostSequences)
	}
	if h.Draft != nil && len(s.Taps) > 0 {
		return tandem.Errorf("engine", tandem.Invalid, "%s: hidden states of a draft with states asked for: want none", h.Path)
	}
	if len(s.Taps) > mostTaps {
		return tandem.Errorf("engine", tandem.Invalid, "%s: %d hidden states asked for: want at most %d", h.Path, len(s.Taps), mostTaps)
	}
	for _, n := range s.Taps {
		if n != -1 && (n < 1 || n > h.Config.Layers) {
			return tandem.Errorf("engine", tandem.Invalid,
				"%s: the hidden state after %d layers: want 1 to its %d, or -1 for the state after the final norm",
				h.Path, n, h.Config.Layers)
		}
	}
	return nil
}

// Pass is the plan of a model's passes. It is only read once it is laid out.
type Pass struct {
	*kernels.Program
	Logits   kernels.Buf   // (wanted, tokens of the output matrix)
	Residual kernels.Buf   // (rows, d): what the last layer leaves
	States   []kernels.Buf // (rows, d), for each of Sizes.Taps; None for -1, which is computed of Residual
}

// New lays out the pass of the model h for a device that wants weights in these layouts. Each layer's products and attention are a stage;
// the norm before them is at the end of the previous stage, where it can be chained with the operation that made its input. Errors:
// Unsupported for a pass that no device computes.
func New(h *header.Header, s Sizes, layout func(kernels.Type) kernels.Layout) (*Pass, error) {
	c := &h.Config
	b := blocks.NewPlanner(kernels.NewProgram(s.Rows, s.Wanted), c, &h.Weights)
	b.KV.Type = s.KV
	tensors.AddTo(b.Program, h.Matrices, layout)
	b.Stage("the embedding")
	b.X, b.Normed = b.Buf(c.Dim), b.Act(c.Dim)
	outputs := c.Vocab
	if c.Outputs != nil {
		outputs = len(c.Outputs)
	}
	p := &Pass{Program: b.Program, Logits: b.WantedBuf(outputs), Residual: b.X}
	if h.Draft != nil {
		h.Draft.Enter(b)
	} else {
		b.Embed(b.W.Embed, b.X)
	}
	if c.EmbedScale != 1 {
		b.Scale(b.X, c.EmbedScale)
	}
	if c.Family.Enter != nil {
		c.Family.Enter(b)
	}
	for i := range c.Layers {
		b.W.Layers[i].Lay(b)
		b.Tap(i+1, s.Taps)
	}
	if len(b.KV.States) > 0 {
		b.KV.Slots, b.KV.Records = s.Slots(c), s.Records(c)
	}
	p.States = b.TapsAt(s.Taps)
	last, lastNorm := b.WantedBuf(c.Dim), b.WantedAct(c.Dim)
	b.Gather(b.X, last)
	b.Norm(last, b.W.OutputNorm, lastNorm)
	b.Stage("the output")
	b.MatMul(b.W.Head, lastNorm, p.Logits, kernels.MatMulOpt{})
	if h.Draft != nil {
		h.Draft.Leave(b, lastNorm)
	}
	c.Finish(b.Program, p.Logits)
	b.TopK(p.Logits)
	if err := p.Check(); err != nil {
		return nil, tandem.Errorf("engine", tandem.Unsupported, "%s: %w", h.Path, err)
	}
	return p, nil
}
