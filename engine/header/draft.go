package header

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/text/token"
)

// ReadDraft reads the header of a draft with states and that of its target, whose file is of. The draft is in f: a file as SideOf describes
// it, or of itself. context is as Read's. Errors: Read's, and Invalid for a draft of another target.
func ReadDraft(f, of *gguf.File, context int) (*Header, error) {
	spec, err := sideOf(f)
	if err == nil && spec.Kind == "" {
		if spec, err = mtpOf(f); err == nil && f.Path() != of.Path() {
			err = tandem.Errorf("engine", tandem.Invalid, "mtp of %s: want that of the target, %s", f.Path(), of.Path())
		}
	}
	if err != nil {
		return nil, err
	}
	vocab, err := token.FromGGUF(of)
	if err != nil {
		return nil, err
	}
	target, err := arch.Read(of, vocab.Size())
	if err != nil {
		return nil, err
	}
	if err := CheckTarget(of.Path(), target); err != nil {
		return nil, err
	}
	var d *guess.Draft
	if spec.Lineage == "" { // inside the target's file, or alone
		fits := sideTarget(of.Path(), "", vocab, &target)
		if err = spec.Fits(f.Path(), fits); err == nil {
			d, err = guess.NewMTP(f, spec, of, target)
		}
	} else {
		d, err = sideDraft(f, of, spec, vocab, &target)
	}
	if err != nil {
		return nil, err
	}
	h := &Header{Path: f.Path(), Vocab: vocab, Config: d.Config, Weights: d.Weights, Matrices: d.Matrices, Draft: d, Borrowed: d.Borrowed}
	return h, h.bound(context)
}

// sideDraft plans the draft in a side file, which must have been made for the target in the file of.
func sideDraft(f, of *gguf.File, spec side.Spec, vocab *token.Vocab, target *blocks.Config) (*guess.Draft, error) {
	lineage, err := of.ReadLineage(context.Background())
	if err != nil {
		return nil, err
	}
	if err := spec.Fits(f.Path(), sideTarget(of.Path(), lineage, vocab, target)); err != nil {
		return nil, err
	}
	if spec.Kind == side.MTP {
		return guess.NewMTP(f, spec, of, *target)
	}
	return guess.NewDraft(f, spec, of, target, lineage)
}
