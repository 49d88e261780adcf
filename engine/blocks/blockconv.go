package blocks

import (
	"github.com/tandem-llm/tandem/kernels"
)

// BlockConvShape gives the sizes of a block draft's convolutions: Taps rows, and weights that Group neighbouring columns share.
type BlockConvShape struct{ Taps, Group int }

// weights returns how many weights one convolution has for each row of so many columns, beside its base.
func (s BlockConvShape) weights(columns int) int { return s.Taps * (columns / s.Group) }

// BlockConv holds the two convolutions over the rows of a block that DFlash2 has around attention, and around feed-forward: of what goes
// in, n = norm(x), and of what comes out. Their weights are base + P n, of both from the same n.
type BlockConv struct {
	Base    [2][]float32 // before and behind: (taps, dim)
	Project kernels.W    // P: for both, one after the other
}

// BlockConvs finds the convolutions of a layer, if the model has some.
func (t *Tensors) BlockConvs() {
	if s := t.C.BlockConv; s.Taps > 0 {
		t.AttnConv, t.FFNConv = t.blockConv("attn", s), t.blockConv("ffn", s)
	}
}

func (t *Tensors) blockConv(part string, s BlockConvShape) *BlockConv {
	c, n := &BlockConv{}, s.Taps*t.C.Dim
	t.Mat(&c.Project, part+"_conv_proj.weight", 2*s.weights(t.C.Dim), t.C.Dim)
	if all := t.Vec(part+"_conv_base", 2*n); all != nil {
		c.Base = [2][]float32{all[:n], all[n:]}
	}
	return c
}

// convolveIn fills Normed with norm(x), convolved: the input of attention or of feed-forward. It leaves the weights for convolveOut.
func (b *Planner) convolveIn(c *BlockConv, norm []float32) {
	n, in, out := b.BufOf("normed", b.Dim), b.ActOf("normed", b.Dim), b.BufOf("convolved", b.Dim)
	b.Copy(b.X, n)
	b.HeadNorm(n, 1, norm, b.NormEps)
	b.Feed(n, in)
	b.MatMul(c.Project, in, b.convWeights(), kernels.MatMulOpt{})
	b.convolve(c, 0, n, out)
	b.Feed(out, b.Normed)
}

// convolveOut adds w·in + bias, convolved, to the residual stream.
func (b *Planner) convolveOut(c *BlockConv, w kernels.W, in kernels.Act, bias []float32) {
	branch, out := b.BufOf("branch", b.Dim), b.BufOf("convolved", b.Dim)
	b.MatMul(w, in, branch, kernels.MatMulOpt{})
	b.Bias(branch, bias)
	b.convolve(c, 1, branch, out)
	b.Join(out, nil)
}

func (b *Planner) convWeights() kernels.Buf {
	return b.BufOf("weights of convolutions", 2*b.BlockConv.weights(b.Dim))
}

func (b *Planner) convolve(c *BlockConv, side int, in, out kernels.Buf) {
	b.Add(kernels.BlockConv{In: in, Base: c.Base[side], Weights: b.convWeights(), From: side * b.BlockConv.weights(b.Dim),
		Group: b.BlockConv.Group, Out: out})
}
