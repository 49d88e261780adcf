package guess

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// eagle reads the target's state h and the embedding e of the next token side by side (Li et al., "EAGLE", 2024). Transformer blocks
// follow, and the target's output matrix:
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
}

func (k *eagle) enter(b *blocks.Planner, e kernels.Buf, states []kernels.Buf) {
	act, state := b.Act(b.Dim), b.Act(b.Dim)
	b.Feed(e, act)
	b.Feed(states[0], state)
	b.MatMul(k.embd, act, b.X, kernels.MatMulOpt{})
	b.MatMul(k.hidden, state, b.X, kernels.MatMulOpt{Add: true})
	b.Bias(b.X, k.bias)
}

// eagle3 reads several states of the target (Li et al., "EAGLE-3", 2025), with a width and a vocabulary of its own. Its one block makes
// q, k and v of [norm(e); norm(x)]:
//
//	x = Σ fc.i tap.i + own
//
// The target's taps count where the target has been, elsewhere the draft's own state, which x holds when the pass begins.
type eagle3 struct {
	fc    []kernels.W
	width int // of the target
}

func (k *eagle3) collect(c *tensors.Catalog, d *Draft) {
	k.fc, k.width = make([]kernels.W, len(d.Spec.Taps)), d.Spec.Dim
	for i := range k.fc {
		c.Matrix(&k.fc[i], fmt.Sprintf("fc.%d.weight", i), true, d.Config.Dim, d.Spec.Dim)
	}
	d.Weights.Second = &blocks.Second{Norm: c.Vector("blk.0.hidden_norm.weight", true, d.Config.Dim)}
}

func (k *eagle3) enter(b *blocks.Planner, e kernels.Buf, states []kernels.Buf) {
	tap := b.Act(k.width)
	for i, w := range k.fc {
		b.Feed(states[i], tap)
		b.MatMul(w, tap, b.X, kernels.MatMulOpt{Add: true})
	}
	second := b.W.Second
	second.In = b.Act(b.Dim)
	b.RMSNorm(e, b.W.Layers[0].AttnNorm, b.NormEps, second.In)
}
