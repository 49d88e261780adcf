package guess

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Target is what a model gives to what guesses beside it.
type Target struct {
	side.Target                  // Lineage "": not known yet
	Config      *blocks.Config   // of the model
	Weights     *blocks.Weights  // of the model
	Plan        *kernels.Program // of the model's passes
	Device      kernels.Device   // of the model's passes
	File        *gguf.File       // the model's, open while a side file is planned and loaded
	Near        kernels.Device   // for weights that stay in memory: Device, unless that streams
	Store       kernels.Store    // the model's weights; nil while the model is only measured
	Cache       kernels.Cache    // the model's keys and values; nil as Store
	Draft       bool             // the model is itself a draft with states, beside which nothing guesses

	// Fill reads matrices of f into a store.
	Fill func(f *gguf.File, matrices []tensors.Matrix, to kernels.Store) error
}

// Ask asks one self-draft of a target for what follows.
type Ask struct {
	SelfDraft string
	// Hidden is what engine.Output.Hidden returned: the row of the last accepted node; for ppd the rows of its prompt tokens in the order
	// of their embeddings, Members·Levels of them. They are only read.
	Hidden [][]float32
	// For an assistant: what lies in the cache up to the row of Hidden, and the token behind it. Path are tree rows of Seq, the first a
	// child of the prefix, each the parent of the next.
	Seq   Sequence
	Path  []int32
	Token tandem.Token
}

// Sequence tells what its rows see.
type Sequence interface {
	// Seen returns what a row behind a path of tree rows sees: see Ask.Path. Errors: Invalid for rows that are not such a path.
	Seen(path []int32) (Seen, error)
}

// Seen is the part of the cache that a row sees.
type Seen struct {
	Cache  kernels.Cache
	Prefix int            // committed positions
	Pages  []int32        // of the sequence, in the order of positions
	Path   []kernels.Cell // tree rows behind the prefix
}

// Normed returns a copy of a hidden state, (d), after the target's final norm.
func (t *Target) Normed(h []float32) []float32 {
	out := make([]float32, len(h))
	ref.RMSNorm(h, t.Weights.OutputNorm, t.Config.NormEps, out)
	return out
}
