package engine

import (
	"context"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/text/token"
)

// State is the hidden state of the position before a row's: see package guess.
type State = guess.State

// OpenDraft loads the model in the file at path, which may be a draft with states: a side file of kind dovetail, eagle, eagle3, dflash or
// mtp, or side.MTPPath of the target. Then the output matrix, unless the file has one, comes from the file of its target: the rows of those
// tokens that the draft knows. The embedding matrix is not loaded: passes read rows of it from that file, and fail if somebody has written
// to it (Corrupt). A plain model opens as by Open, and target is not used. Errors: Open's, and Invalid for a side file of another target or
// kind.
//
// Rows of such a draft depend on the states that they are given, not on tokens alone. So the pages that shared sequences hand on
// (NewShared) are as good as the states that they were made with: that costs acceptance at most, since a draft only guesses.
func OpenDraft(path, target string, o Options) (*Model, error) {
	m := &Model{}
	err := withFiles(path, target, func(f, of *gguf.File) error {
		err := opening{m}.load(f, of, o)
		if d := m.draft; err == nil && d != nil {
			own := d.SelectorTables()
			if d.EmbedIn == f {
				own = append(own, d.Embed.Tensor())
			} else {
				m.files = append(m.files, of.Keep(d.Embed.Tensor()))
			}
			m.files = append(m.files, f.Keep(own...))
		}
		return err
	})
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// MeasureDraft is Measure for what OpenDraft opens.
func MeasureDraft(path, target string, o Options) (memory.Footprint, error) {
	m := opening{&Model{}}
	err := withFiles(path, target, func(f, of *gguf.File) error {
		if err := m.outline(f, of, o); err != nil {
			return err
		}
		_, err := m.layOut(f.Path())
		return err
	})
	return m.footprint, err
}

// withFiles calls use with the file at path and, if that is a draft with states, its target's; else nil.
func withFiles(path, target string, use func(f, of *gguf.File) error) error {
	f, s, err := openSide(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if !s.Kind.IsDraft() {
		return use(f, nil)
	}
	of, err := gguf.Open(target)
	if err != nil {
		return err
	}
	defer of.Close()
	return use(f, of)
}

// outlineDraft reads the headers of a draft with states and of its target.
func (m opening) outlineDraft(f, of *gguf.File) error {
	spec, err := side.Of(f)
	if err == nil && spec.Kind == "" {
		if spec, err = mtpOf(f); err == nil && f.Path() != of.Path() {
			err = tandem.Errorf("engine", tandem.Invalid, "mtp of %s: want that of the target, %s", f.Path(), of.Path())
		}
	}
	if err != nil {
		return err
	}
	if m.vocab, err = token.FromGGUF(of); err != nil {
		return err
	}
	target, err := arch.Read(of, m.vocab.Size())
	if err != nil {
		return err
	}
	if err := CheckTarget(of.Path(), target); err != nil {
		return err
	}
	if spec.Lineage == "" { // inside the target's file
		m.draft, err = guess.NewMTP(f, spec, of, target)
	} else {
		m.draft, err = m.sideDraft(f, of, spec, &target)
	}
	if err != nil {
		return err
	}
	d := m.draft
	m.config, m.weights, m.matrices, m.borrowed = d.Config, d.Weights, d.Matrices, d.Borrowed
	return nil
}

// sideDraft plans the draft in a side file, which must have been made for the target in the file of.
func (m opening) sideDraft(f, of *gguf.File, spec side.Spec, target *blocks.Config) (*guess.Draft, error) {
	lineage, err := of.ReadLineage(context.Background())
	if err != nil {
		return nil, err
	}
	t := side.Target{Path: of.Path(), Lineage: lineage, Vocabulary: fingerprint(m.vocab), Dim: target.Dim, Vocab: target.Vocab,
		Layers: target.Layers}
	if err := spec.Fits(f.Path(), t); err != nil {
		return nil, err
	}
	if spec.Kind == side.MTP {
		return guess.NewMTP(f, spec, of, *target)
	}
	return guess.NewDraft(f, spec, of, target, lineage)
}

// give writes the embeddings and states of a draft's rows in a part, the first of which is row `at` of the pass, to the inputs. Those of a
// block draft are checked alone: runBlocks writes them.
func (f running) give(part *Part, at int) error {
	switch d := f.draft; {
	case f.Block().Rows > 0:
		return d.CheckContext(part.States, len(part.Extend)+len(part.Nodes))
	case d != nil:
		return d.Write(f.runner, at, slices.Concat(part.Extend, part.Nodes), part.States)
	case part.States != nil:
		return tandem.Errorf("engine", tandem.Invalid, "%d states for %s, which reads none", len(part.States), f.config.Name)
	}
	return nil
}
