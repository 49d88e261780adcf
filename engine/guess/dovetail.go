package guess

import (
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// dovetail mixes the state h of the position before and the embedding e of the next token by a gate (Zhang et al., "Dovetail", 2024:
// dynamic gating fusion). Transformer blocks follow, and an output matrix:
//
//	x = g∘h1 + (1-g)∘h2, h1 = W1 h [+ b], h2 = W2 e [+ b], g = σ(Wg [h1; h2] [+ b])
type dovetail struct {
	hidden, embd         kernels.W // W1, W2
	gateHidden, gateEmbd kernels.W // the halves of Wg
	hiddenBias, embdBias []float32
	gateBias             []float32
}

func (k *dovetail) collect(c *tensors.Catalog, d *Draft) {
	n := d.Spec.Dim
	c.Matrix(&k.hidden, "fuse.hidden.weight", true, n, n)
	c.Matrix(&k.embd, "fuse.embd.weight", true, n, n)
	c.Matrix(&k.gateHidden, "fuse.gate.hidden.weight", true, n, n)
	c.Matrix(&k.gateEmbd, "fuse.gate.embd.weight", true, n, n)
	k.hiddenBias, k.embdBias = c.Vector("fuse.hidden.bias", false, n), c.Vector("fuse.embd.bias", false, n)
	k.gateBias = c.Vector("fuse.gate.bias", false, n)
	d.collectTaps(c, false, side.TapMatrix)
}

func (k *dovetail) enter(b *blocks.Planner, e, h kernels.Buf) {
	act, state := b.Act(b.Dim), b.Act(b.Dim)
	b.Feed(e, act)
	b.Feed(h, state)
	h1, gate := b.Buf(b.Dim), b.Buf(b.Dim)
	b.MatMul(k.hidden, state, h1, blocks.Concurrent)
	b.MatMul(k.embd, act, b.X, kernels.MatMulOpt{})
	b.Bias(h1, k.hiddenBias)
	b.Bias(b.X, k.embdBias)
	b.Feed(h1, state)
	b.Feed(b.X, act)
	b.MatMul(k.gateHidden, state, gate, kernels.MatMulOpt{})
	b.MatMul(k.gateEmbd, act, gate, kernels.MatMulOpt{Add: true})
	b.Bias(gate, k.gateBias)
	b.Blend(gate, h1, b.X)
}
