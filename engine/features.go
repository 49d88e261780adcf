package engine

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// Features copies the hidden states that Options.Taps names, one after the other, of a row of a part (its Extend rows, then its Nodes) to
// dst: (FeatureWidth). The state after the final norm is computed here: a norm of one row takes some microseconds, and
// most rows of a pass are asked for by nobody.
func (o *Output) Features(part, row int, dst []float32) {
	m, at := o.model, o.row(part, row)
	for i, b := range m.taps {
		if to := dst[i*m.config.Dim : (i+1)*m.config.Dim]; b != kernels.None {
			copy(to, m.runner.Row(b, at))
		} else {
			o.Final(part, row, to)
		}
	}
}

// Final computes the state after the final norm of a row of a part (its Extend rows, then its Nodes), and puts it into dst: (d).
// It needs no Options.Taps.
func (o *Output) Final(part, row int, dst []float32) {
	m := o.model
	ref.RMSNorm(m.runner.Row(m.residual, o.row(part, row)), m.weights.OutputNorm, m.config.NormEps, dst)
}

// Hidden returns the residual stream after the last layer, before the final norm, of a row of a part: its Extend rows, then its Nodes.
// Of a draft with states it is the draft's own state, State.Own of the next position. (d) numbers, valid until the model's next Forward;
// do not change them.
func (o *Output) Hidden(part, row int) []float32 {
	x := o.model.runner.Row(o.model.residual, o.row(part, row))
	if d := o.model.draft; d != nil {
		return d.OwnState(x)
	}
	return x
}

// row returns where a row of a part is in the pass.
func (o *Output) row(part, row int) int {
	if at := o.begin[part] + row; row >= 0 && at < o.begin[part+1] {
		return at
	}
	panic(fmt.Sprintf("engine: row %d of part %d, which has %d", row, part, o.begin[part+1]-o.begin[part]))
}

// mostTaps bounds the hidden states that a model hands out.
const mostTaps = 16

// checkTaps refuses hidden states that a model of so many layers does not have.
func checkTaps(who string, taps []int, layers int) error {
	if len(taps) > mostTaps {
		return tandem.Errorf("engine", tandem.Invalid, "%s: %d hidden states asked for: want at most %d", who, len(taps), mostTaps)
	}
	for _, n := range taps {
		if n != -1 && (n < 1 || n > layers) {
			return tandem.Errorf("engine", tandem.Invalid,
				"%s: the hidden state after %d layers: want 1 to its %d, or -1 for the state after the final norm", who, n, layers)
		}
	}
	return nil
}
