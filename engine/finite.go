package engine

import (
	"fmt"
	"math"
	"path/filepath"

	"github.com/tandem-llm/tandem"
)

// Sound returns nil if the best logit of wanted row i is a number. Else all that could be drawn from the row means nothing: the error,
// which is Corrupt, says so and names the tensor that gave the logits.
func (o *Output) Sound(i int) error {
	top := o.model.runner.Top(i)
	if len(top.Logits) == 0 || !math.IsInf(float64(top.Logits[0]), 0) && top.Logits[0] == top.Logits[0] {
		return nil
	}
	w, seen := &o.model.weights, "not a number"
	if math.IsInf(float64(top.Logits[0]), 1) {
		seen = fmt.Sprintf("infinite, token %d's first", o.model.outputs.token(int(top.IDs[0])))
	}
	return tandem.Errorf("engine", tandem.Corrupt, "model %s: the logits of tensor %q are %s: want finite numbers, so weights of the "+
		"model are damaged or too large", filepath.Base(o.model.path), o.model.matrices[w.Head].Tensor.Name, seen)
}
