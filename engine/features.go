package engine

import (
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

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
			ref.RMSNorm(m.runner.Row(m.residual, at), m.weights.OutputNorm, m.config.NormEps, to)
		}
	}
}
