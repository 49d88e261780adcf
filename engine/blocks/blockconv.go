package blocks

import (
	"github.com/tandem-llm/tandem/kernels"
)

// blockConv is the two convolutions over the rows of a block that DFlash2 has around attention, and around feed-forward: of what goes
// in, n = norm(x), and of what comes out. Their weights are base + P n, of both from the same n.
type blockConv struct {
	norm    []float32    // (dim), of x
	base    [2][]float32 // before and behind: (taps, dim)
	project kernels.W    // P: for both, one after the other
}

// BlockConvs puts a convolution before and one behind a part of a layer, by changing in and out; part is its name in the file. A model
// without convolutions stays as it is.
func (t *Tensors) BlockConvs(part string, in *Entrance, out *Exit) {
	s := t.C.BlockConv
	if s.Taps == 0 {
		return
	}
	c, n := &blockConv{norm: t.Vec(part+"_norm.weight", t.C.Dim)}, s.Taps*t.C.Dim
	t.Mat(&c.project, part+"_conv_proj.weight", 2*s.weights(t.C.Dim), t.C.Dim)
	if all := t.Vec(part+"_conv_base", 2*n); all != nil {
		c.base = [2][]float32{all[:n], all[n:]}
	}
	join := out.Join
	*in, *out = c.enter, joined(func(b *Planner, y kernels.Buf) {
		convolved := b.BufOf("convolved", b.Dim)
		c.convolve(b, 1, y, convolved)
		join(b, convolved)
	})
}

// enter fills b.Normed with norm(x), convolved. It leaves the weights for the convolution behind the part.
func (c *blockConv) enter(b *Planner, begin func()) {
	n, in, out := b.BufOf("normed", b.Dim), b.ActOf("normed", b.Dim), b.BufOf("convolved", b.Dim)
	begin()
	b.Copy(b.X, n)
	b.HeadNorm(n, 1, c.norm, b.NormEps)
	b.Feed(n, in)
	b.MatMul(c.project, in, b.convWeights(), kernels.MatMulOpt{})
	c.convolve(b, 0, n, out)
	b.Feed(out, b.Normed)
}

func (b *Planner) convWeights() kernels.Buf {
	return b.BufOf("weights of convolutions", 2*b.BlockConv.weights(b.Dim))
}

func (c *blockConv) convolve(b *Planner, side int, in, out kernels.Buf) {
	b.Add(kernels.BlockConv{In: in, Base: c.base[side], Weights: b.convWeights(), From: side * b.BlockConv.weights(b.Dim),
		Group: b.BlockConv.Group, Out: out})
}
