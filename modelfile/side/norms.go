package side

import (
	"fmt"

	"github.com/tandem-llm/tandem"
)

// Norms before a draft's fc: of the target's states.
const (
	NormEach = "each" // every state by itself (EAGLE-3.1; fc_norm in published configurations)
	NormAll  = "all"  // all states side by side as one vector (norm_before_fc)
)

// Norms3 says where a draft of EAGLE-3 has norms beside those that all have. The zero value is EAGLE-3 as in its paper.
type Norms3 struct {
	States   string // "", NormEach or NormAll
	Residual bool   // the residual stream begins with the hidden state after its norm (norm_before_residual)
	Output   bool   // the state for the next position is taken after the output norm (norm_output)
}

// StateNorm names the weights of the norm of tap i.
func StateNorm(i int) string { return fmt.Sprintf("fc.%d.norm.weight", i) }

const (
	keyStates   = "state_norm"
	keyResidual = "norm_before_residual"
	keyOutput   = "norm_output"
)

func (n *Norms3) read(r *reader) {
	var err error
	n.States, err = r.file.StringOr(r.key(keyStates), "")
	if r.keep(err); n.States != "" && n.States != NormEach && n.States != NormAll {
		r.fail(tandem.Corrupt, "key %q is %.40q: want %q or %q", r.key(keyStates), n.States, NormEach, NormAll)
	}
	n.Residual, err = r.file.BoolOr(r.key(keyResidual), false)
	r.keep(err)
	n.Output, err = r.file.BoolOr(r.key(keyOutput), false)
	r.keep(err)
}

func (n *Norms3) set(set func(string, any)) {
	if n.States != "" {
		set(keyStates, n.States)
	}
	if n.Residual {
		set(keyResidual, true)
	}
	if n.Output {
		set(keyOutput, true)
	}
}
