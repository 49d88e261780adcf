package engine

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/text/token"
)

// GuessAsk asks one of the target's self-drafts for what follows: see package guess.
type GuessAsk = guess.Ask

// SideOf describes the side file at path, or for side.MTPPath the draft inside a model's file; the zero Spec: it is an ordinary model.
// Errors: Invalid (no such file), Corrupt, Unsupported (tensors of no side file).
func SideOf(path string) (side.Spec, error) {
	f, s, err := openSide(path)
	if err != nil {
		return side.Spec{}, err
	}
	return s, f.Close()
}

// openSide opens the file at path and reads what it is as a side file.
func openSide(path string) (*gguf.File, side.Spec, error) {
	f, err := gguf.Open(side.FileOf(path))
	if err != nil {
		return nil, side.Spec{}, err
	}
	read := side.Of
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

// refuseSide returns Invalid for a side file.
func refuseSide(f *gguf.File) error {
	s, err := side.Of(f)
	if err != nil || s.Kind == "" {
		return err
	}
	return tandem.Errorf("engine", tandem.Invalid, "%s is a side file (%s): it is opened together with its target", f.Path(), s)
}

// sideError gives a device's error its kind; others have one.
func sideError(path string, err error) error {
	if own := (*tandem.Error)(nil); errors.As(err, &own) {
		return err
	}
	return deviceError(path, err)
}

// measureSide adds what a side file will need to the footprint of a model that is laid out.
func (m opening) measureSide(path string) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := m.planSide(f)
	if err != nil {
		return err
	}
	m.addSide(s)
	return nil
}

// planSide plans a side file. A trimmed model has none: what they guess is of all tokens.
func (m opening) planSide(f *gguf.File) (*guess.File, error) {
	if m.config.Outputs != nil {
		return nil, trimmed(m.path, &m.config, "side file "+f.Path()+" needs the model that it was made from")
	}
	s, err := m.beside.Plan(f, m.target())
	if err != nil {
		return nil, sideError(f.Path(), err)
	}
	return s, nil
}

// addSide makes a side file the model's.
func (m opening) addSide(s *guess.File) {
	m.beside.Add(s)
	m.footprint = m.footprint.With(s.Footprint)
}

// target returns what guesses beside m need of it.
func (m opening) target() *guess.Target {
	return &guess.Target{
		Target: side.Target{Path: m.path, Lineage: m.names.Lineage, Vocabulary: fingerprint(m.vocab), Dim: m.config.Dim,
			Vocab: m.config.Vocab, Layers: m.config.Layers},
		Config: &m.config, Weights: &m.weights, Plan: m.plan, Device: m.device, Near: m.near(), Store: m.store, Cache: m.memory,
		Draft: m.draft != nil, Fill: m.fillSide}
}

// fillSide reads the matrices of a side file into its store.
func (m opening) fillSide(f *gguf.File, matrices []tensors.Matrix, store kernels.Store) error {
	for i := range matrices {
		if matrices[i].Order != nil { // whose rows lie apart
			if err := tensors.Warm(matrices[i].Tensor); err != nil {
				return err
			}
		}
	}
	to := tensors.Into(store)
	to.Add = f.NewDigest().Add
	if err := tensors.Fill(matrices, to, nil); err != nil {
		return err
	}
	if m.options.Forget {
		f.Forget()
	}
	if !m.options.Lock {
		return nil
	}
	return lockAll(store)
}

// Seen implements guess.Sequence.
func (s *Sequence) Seen(path []int32) (guess.Seen, error) {
	if s == nil {
		return guess.Seen{}, nil
	}
	if s.length+len(path) == 0 {
		return guess.Seen{}, tandem.Errorf("engine", tandem.Invalid, "a guess by %s behind an empty prefix", tandem.Assistant)
	}
	out, above := guess.Seen{Cache: s.model.memory, Prefix: s.length, Pages: s.pages.Table}, int32(-1)
	for i, n := range path {
		if n < 0 || int(n) >= len(s.parents) || s.parents[n] != above || s.rows[n] < 0 {
			return guess.Seen{}, tandem.Errorf("engine", tandem.Invalid,
				"a guess by %s behind tree rows %v: entry %d is not a child of the one before", tandem.Assistant, path, i)
		}
		out.Path, above = append(out.Path, s.places[n].cell), n
	}
	return out, nil
}
