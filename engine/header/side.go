package header

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/text/token"
)

// SideOf describes the side file at path, or for side.MTPPath the draft inside a model's file. A model's file without the model's layers
// (guess.AloneMTP) counts as a side file. The zero Spec: the file is an ordinary model. Errors: Invalid (no such file, no draft inside it),
// Corrupt, Unsupported (tensors of no side file).
func SideOf(path string) (side.Spec, error) {
	f, s, err := Open(path)
	if err != nil {
		return side.Spec{}, err
	}
	return s, f.Close()
}

// Open opens the file at path, or for side.MTPPath the model's file, and describes it as SideOf does, with the same errors. The caller
// closes the file.
func Open(path string) (*gguf.File, side.Spec, error) {
	f, err := gguf.Open(side.FileOf(path))
	if err != nil {
		return nil, side.Spec{}, err
	}
	read := sideOf
	if side.IsMTPPath(path) {
		read = mtpOf
	}
	s, err := read(f)
	if err != nil {
		f.Close()
		return nil, s, err
	}
	return f, s, nil
}

// sideOf describes the side file f; the zero Spec: it is an ordinary model. Errors: side.Of's and mtpOf's.
func sideOf(f *gguf.File) (side.Spec, error) {
	s, err := side.Of(f)
	if err == nil && s.Kind == "" && guess.AloneMTP(f) {
		return mtpOf(f)
	}
	return s, err
}

// mtpOf describes the draft inside a model's file. Errors: Invalid if there is none.
func mtpOf(f *gguf.File) (side.Spec, error) {
	vocab, err := token.FromGGUF(f)
	if err != nil {
		return side.Spec{}, err
	}
	c, err := arch.Read(f, vocab.Size())
	if err != nil {
		return side.Spec{}, err
	}
	return guess.DescribeMTP(f, &c, fingerprint(vocab))
}

func fingerprint(v *token.Vocab) string { return fmt.Sprintf("%016x", v.Fingerprint()) }

// SideTarget returns the target that a side file must state to fit h. lineage is the model's; "": not known yet.
func (h *Header) SideTarget(lineage string) side.Target {
	return sideTarget(h.Path, lineage, h.Vocab, &h.Config)
}

func sideTarget(path, lineage string, vocab *token.Vocab, c *blocks.Config) side.Target {
	return side.Target{Path: path, Lineage: lineage, Vocabulary: fingerprint(vocab), Dim: c.Dim, Vocab: c.Vocab, Layers: c.Layers}
}
