package blocks

import (
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// FeedForward finds the matrices of the feed-forward block, and their biases, which may be missing.
func (t *Tensors) FeedForward() {
	n := t.Shape.FFN
	t.Mat(&t.Gate, "ffn_gate.weight", n, t.C.Dim)
	t.Mat(&t.Up, "ffn_up.weight", n, t.C.Dim)
	t.GateBias, t.UpBias = t.VecIf("ffn_gate.bias", n), t.VecIf("ffn_up.bias", n)
	t.down()
}

func (t *Tensors) down() {
	t.Mat(&t.Down, "ffn_down.weight", t.C.Dim, t.Shape.FFN)
	t.DownBias = t.VecIf("ffn_down.bias", t.C.Dim)
}

// FusedFeedForward is FeedForward for files in which one tensor may hold gate and up.
func (t *Tensors) FusedFeedForward() {
	n := t.Shape.FFN
	if t.Has("ffn_gate.weight") {
		t.FeedForward()
		return
	}
	t.Stacked(t.Name("ffn_up.weight"), t.C.Dim, tensors.Rows(&t.Gate, n), tensors.Rows(&t.Up, n))
	if all := t.VecIf("ffn_up.bias", 2*n); all != nil {
		t.GateBias, t.UpBias = all[:n], all[n:]
	}
	t.down()
}

// FeedForward lays out the feed-forward block of layer i:
//
//	n = norm(x); x += [norm or scale] (Wdown (act(Wgate n [+ b]) ∘ (Wup n [+ b])) [+ b])
func (b *Planner) FeedForward(i int) {
	l := &b.W.Layers[i]
	inner := b.Inner(i)
	if l.FFNConv != nil {
		b.convolveOut(l.FFNConv, l.Down, inner, l.DownBias)
		return
	}
	b.AddBranch(l.Down, inner, l.DownBias, l.FFNPost)
}

// Inner lays out a feed-forward block up to its last product, whose input it returns.
func (b *Planner) Inner(i int) kernels.Act {
	l, n := &b.W.Layers[i], b.Shapes[i].FFN
	gate, up, out := b.BufOf("gate", n), b.BufOf("up", n), b.ActOf("activated", n)
	if l.FFNConv != nil {
		b.convolveIn(l.FFNConv, l.FFNNorm)
	} else {
		b.RMSNorm(b.X, l.FFNNorm, b.NormEps, b.Normed)
	}
	b.MatMul(l.Gate, b.Normed, gate, Concurrent)
	b.MatMul(l.Up, b.Normed, up, kernels.MatMulOpt{})
	b.Bias(gate, l.GateBias)
	b.Bias(up, l.UpBias)
	b.Add(kernels.Gate{Curve: b.Curve, Gate: gate, Up: up, Out: out})
	return out
}
