// Package header reads what the files of a model say without its weights: vocabulary, shape, and which tensor holds which weights; whether
// a file is a model, a draft with states, or a side file; and the names that a model has by its tensors and its shape.
package header

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/text/token"
)

// Header is what the file of a model says without its weights; of a draft with states, what its file and its target's say. Nothing is
// written to it once it is read.
type Header struct {
	Path     string // of the file, for messages
	Vocab    *token.Vocab
	Config   blocks.Config
	Weights  blocks.Weights   // vectors, and the handles of Matrices
	Matrices []tensors.Matrix // by their handle in the program of a pass
	Draft    *guess.Draft     // nil: a model that reads tokens alone
	Borrowed []*gguf.Tensor   // of a draft with states: those tensors of Matrices and of its embeddings that are in the target's file
}

// Read reads the header of the model in f. context bounds the positions of a sequence, and chooses LongRoPE's factors; 0: the model's own.
// Errors: Invalid (a side file, a context below 0), Corrupt, Unsupported.
func Read(f *gguf.File, context int) (*Header, error) {
	if err := refuseSide(f); err != nil {
		return nil, err
	}
	h := &Header{Path: f.Path()}
	var err error
	if h.Vocab, err = token.FromGGUF(f); err != nil {
		return nil, err
	}
	if h.Config, err = arch.Read(f, h.Vocab.Size()); err != nil {
		return nil, err
	}
	if err := h.bound(context); err != nil {
		return nil, err
	}
	c := blocks.Finder{Catalog: tensors.New(f), C: &h.Config, W: &h.Weights}
	c.Collect()
	h.Matrices = c.Matrices
	return h, c.Err
}

// refuseSide returns Invalid for a side file.
func refuseSide(f *gguf.File) error {
	s, err := side.Of(f)
	if err != nil || s.Kind == "" {
		return err
	}
	return tandem.Errorf("engine", tandem.Invalid, "%s is a side file (%s): it is opened together with its target", f.Path(), s)
}

// bound lowers the context to the one that is asked for.
func (h *Header) bound(context int) error {
	c := &h.Config
	if context < 0 {
		return tandem.Errorf("engine", tandem.Invalid, "context of %d positions: want at least 1, or 0 for the model's %d", context,
			c.Context)
	} else if context > 0 {
		c.Context = min(c.Context, context)
	}
	return nil
}

// CheckTarget returns Invalid for a model of shape c that cannot be a target: its file is trimmed, so it cannot say every token. name is
// the file's, for the message.
func CheckTarget(name string, c blocks.Config) error {
	if c.Outputs == nil {
		return nil
	}
	return trimmed(name, &c, "a target must be able to say all of them: want the model that it was made from")
}

// CheckWhole returns Invalid for a trimmed model. No side file can be opened beside it, because side files guess among all tokens. file is
// the side file's path, for the message.
func (h *Header) CheckWhole(file string) error {
	if h.Config.Outputs == nil {
		return nil
	}
	return trimmed(h.Path, &h.Config, "side file "+file+" needs the model that it was made from")
}

// trimmed returns Invalid for a trimmed model where a whole one is needed; want says why, and what would be right.
func trimmed(name string, c *blocks.Config, want string) error {
	return tandem.Errorf("engine", tandem.Invalid, "%s is trimmed to %d of %d tokens (tandem model trim): %s", name, len(c.Outputs),
		c.Vocab, want)
}
