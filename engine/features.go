package engine

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// tap keeps the residual stream after n layers if it is wanted. That after the last layer stays in its buffer anyway.
func (b *planner) tap(n int, wanted []int) {
	if n == b.Layers {
		b.tapped[n] = b.x
	} else if slices.Contains(wanted, n) {
		b.tapped[n] = b.Buf(b.Dim)
		b.Copy(b.x, b.tapped[n])
		b.Taps = append(b.Taps, kernels.Tap{Layer: n - 1, Buf: b.tapped[n]})
	}
}

// tapsAt returns where the wanted hidden states are.
func (b *planner) tapsAt(wanted []int) (at []kernels.Buf) {
	for _, n := range wanted {
		if n < 0 {
			at = append(at, kernels.None)
		} else {
			at = append(at, b.tapped[n])
		}
	}
	return at
}

// FeatureWidth returns how many numbers a row of features has: the hidden size for each of Options.Taps.
func (m *Model) FeatureWidth() int { return len(m.taps) * m.config.Dim }

// Features copies the hidden states that Options.Taps names, one after the other, of a row of a part (its Extend rows, then its Nodes) to
// dst: (FeatureWidth). The state after the final norm is computed here: a norm of one row takes some microseconds, and
// most rows of a pass are asked for by nobody.
func (o *Output) Features(part, row int, dst []float32) {
	m, at := o.model, o.row(part, row)
	for i, b := range m.taps {
		if to := dst[i*m.config.Dim : (i+1)*m.config.Dim]; b != kernels.None {
			copy(to, m.runner.Row(b, at))
		} else {
			ref.RMSNorm(m.runner.Row(m.residual, at), m.weights.outputNorm, m.config.NormEps, to)
		}
	}
}
