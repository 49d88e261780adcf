package blocks

import (
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// FeedForward is the feed-forward block of a layer:
//
//	n = In(x); x = Out(x, Wdown (act(Wgate n [+ b]) ∘ (Wup n [+ b])) [+ b])
type FeedForward struct {
	In Entrance
	Gated
	Out Exit
}

// Gated is a gated unit: Wdown (act(Wgate n [+ b]) ∘ (Wup n [+ b])) [+ b], act being Config.Curve.
type Gated struct {
	Products []Product // gate and up
	Down     Branch
	width    int
	raw      []Lines // biases
}

// FeedForward finds the tensors of a feed-forward block: one for each matrix, and the biases that the file has.
func (t *Tensors) FeedForward(in Entrance) *FeedForward {
	f := &FeedForward{In: in, Gated: t.gated("ffn_gate.weight", "ffn_up.weight", t.Shape.FFN), Out: t.exit()}
	f.bias(t.VecIf("ffn_gate.bias", f.width), t.VecIf("ffn_up.bias", f.width))
	t.down(f)
	return f
}

// gated finds the matrices of a unit of that width but for the last.
func (t *Tensors) gated(gate, up string, width int) Gated {
	g := unit(width)
	t.Mat(&g.Products[0].W, gate, width, t.C.Dim)
	t.Mat(&g.Products[1].W, up, width, t.C.Dim)
	return g
}

func unit(width int) Gated {
	return Gated{Products: []Product{{Out: "gate", Dim: width}, {Out: "up", Dim: width}}, width: width}
}

// bias adds the biases that a file has.
func (g *Gated) bias(gate, up []float32) {
	for i, values := range [][]float32{gate, up} {
		g.raw = append(g.raw, on(g.Products[i].Out, g.width, biased(values)...)...)
	}
}

func (t *Tensors) down(f *FeedForward) {
	t.Mat(&f.Down.W, "ffn_down.weight", t.C.Dim, f.width)
	f.Down.Then = biased(t.VecIf("ffn_down.bias", t.C.Dim))
}

// FusedFeedForward is FeedForward for files in which the tensor of up may hold gate too: gate's rows, then up's.
func (t *Tensors) FusedFeedForward(in Entrance) *FeedForward {
	if t.Has("ffn_gate.weight") {
		return t.FeedForward(in)
	}
	n := t.Shape.FFN
	f := &FeedForward{In: in, Gated: unit(n), Out: t.exit()}
	t.Stacked(t.Name("ffn_up.weight"), t.C.Dim, tensors.Rows(&f.Products[0].W, n), tensors.Rows(&f.Products[1].W, n))
	if all := t.VecIf("ffn_up.bias", 2*n); all != nil {
		f.bias(all[:n], all[n:])
	}
	t.down(f)
	return f
}

// PostNorm finds the norm of the block's output, (d), which is applied before that is added to the residual stream. It returns f.
func (f *FeedForward) PostNorm(t *Tensors) *FeedForward {
	f.Out = PostNormed(t.Vec("post_ffw_norm.weight", t.C.Dim))
	t.Traits |= PostNorms
	return f
}

// Lay implements Part.
func (f *FeedForward) Lay(b *Planner) {
	f.In.inStage(b)
	f.Down.Leave(b, f.Inner(b), f.Out)
}

// Inner lays out a unit but for its last product. It reads b.Normed and returns the input of that product: (rows, width).
func (g *Gated) Inner(b *Planner) kernels.Act {
	b.products(g.Products, b.Normed, false)
	b.lay(g.raw)
	out := b.ActOf("activated", g.width)
	b.Add(kernels.Gate{Curve: b.Curve, Gate: b.BufOf("gate", g.width), Up: b.BufOf("up", g.width), Out: out})
	return out
}
