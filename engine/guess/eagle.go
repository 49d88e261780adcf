package guess

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// eagle reads the state h of the position before and the embedding e of the next token side by side (Li et al., "EAGLE", 2024).
// Transformer blocks follow, and an output matrix:
//
//	x = fc [e; h] [+ b]
type eagle struct {
	embd, hidden kernels.W // the halves of fc
	bias         []float32
}

func (k *eagle) collect(c *tensors.Catalog, d *Draft) {
	n := d.Spec.Dim
	c.Matrix(&k.hidden, "fc.hidden.weight", true, n, n)
	c.Matrix(&k.embd, "fc.embd.weight", true, n, n)
	k.bias = c.Vector("fc.bias", false, n)
	d.collectTaps(c, false, side.TapMatrix)
}

func (k *eagle) enter(b *blocks.Planner, e, h kernels.Buf) {
	act, state := b.Act(b.Dim), b.Act(b.Dim)
	b.Feed(e, act)
	b.Feed(h, state)
	b.MatMul(k.embd, act, b.X, kernels.MatMulOpt{})
	b.MatMul(k.hidden, state, b.X, kernels.MatMulOpt{Add: true})
	b.Bias(b.X, k.bias)
}

// eagle3 reads several states of the target (Li et al., "EAGLE-3", 2025), with a width and a vocabulary of its own. The residual stream
// begins with the state h of the position before, and its one block makes q, k and v of [norm(e); norm(h)]. Write puts the own state, or
// the bias of fc, into h before the pass, and norms the taps if the draft wants that.
type eagle3 struct{}

func (k *eagle3) collect(c *tensors.Catalog, d *Draft) {
	d.collectTaps(c, true, func(i int) string { return fmt.Sprintf("fc.%d.weight", i) })
	norms := d.Spec.Draft.Norms
	for i := range d.Spec.Taps {
		if norms.States != "" {
			d.stateNorm = append(d.stateNorm, c.Vector(side.StateNorm(i), true, d.Spec.Dim)...)
		}
	}
	d.stateBias = c.Vector("fc.bias", false, d.Config.Dim)
	d.unnormed = !norms.Output
	norm := c.Vector("blk.0.hidden_norm.weight", true, d.Config.Dim)
	d.Weights.Second = &blocks.Second{Entrance: blocks.Normed(norm)}
	if norms.Residual {
		d.Weights.Second.Entrance = blocks.Staying(norm)
	}
}

func (k *eagle3) enter(b *blocks.Planner, e, _ kernels.Buf) {
	second := b.W.Second
	second.In = b.Act(b.Dim)
	b.RMSNorm(e, second.Norm, b.NormEps, second.In)
}
