package side

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Growth says what a tensor becomes in a side file for an expanded target: its values stay in one corner.
type Growth uint8

const (
	Zeros  Growth = iota // around them are zeros
	Random               // zeros right of them, and additional outputs with random weights, which do real work
	Norm                 // the weights of a norm: zeros after them, and all multiplied by √(old width/new width)
)

// Slot is a tensor that a side file may hold.
type Slot struct {
	Name     string
	Shape    []int // (inputs, outputs) of a matrix
	Optional bool
	Growth   Growth
}

// Slots lists the tensors that a side file of these keys may hold, in a fixed order which does not depend on their sizes. The spec must
// be one that Check accepts.
func (s *Spec) Slots() []Slot {
	l := &slots{}
	d := s.Dim
	switch s.Kind {
	case Medusa:
		for k := range s.Heads {
			for b := range s.Residual {
				l.add(fmt.Sprintf("medusa.%d.%d.weight", k, b), Zeros, d, d)
				l.maybe(fmt.Sprintf("medusa.%d.%d.bias", k, b), Zeros, d)
			}
		}
		for k := range s.Heads {
			l.maybe(outputOf(k), Zeros, d, s.Vocab)
		}
		return l.all
	case PPD:
		l.add("ppd.embd.weight", Zeros, d, s.Tokens*s.Ensemble)
		return l.all
	case Dovetail:
		for _, name := range []string{"fuse.hidden", "fuse.embd", "fuse.gate.hidden", "fuse.gate.embd"} {
			l.add(name+".weight", Zeros, d, d)
		}
		for _, name := range []string{"fuse.hidden", "fuse.embd", "fuse.gate"} {
			l.maybe(name+".bias", Zeros, d)
		}
	case Eagle:
		l.add("fc.embd.weight", Zeros, d, d)
		l.add("fc.hidden.weight", Zeros, d, d)
		l.maybe("fc.bias", Zeros, d)
	case Eagle3:
		for i := range s.Taps {
			l.add(fmt.Sprintf("fc.%d.weight", i), Zeros, d, s.Draft.Width)
		}
		l.add("output.weight", Zeros, s.Draft.Width, len(s.Draft.IDs))
		l.maybe("token_embd.weight", Zeros, s.Draft.Width, s.Vocab)
	}
	for i := range s.Draft.Blocks {
		l.block(s, i)
	}
	if s.Kind == Eagle3 {
		l.add("output_norm.weight", Norm, s.Draft.Width)
	} else {
		l.maybe("output_norm.weight", Norm, s.Draft.Width)
	}
	return l.all
}

// outputOf names a medusa head's own output matrix.
func outputOf(head int) string { return fmt.Sprintf("medusa.%d.output.weight", head) }

// slots collects slots.
type slots struct{ all []Slot }

func (l *slots) add(name string, g Growth, shape ...int) {
	l.all = append(l.all, Slot{Name: name, Shape: shape, Growth: g})
}

func (l *slots) maybe(name string, g Growth, shape ...int) {
	l.all = append(l.all, Slot{Name: name, Shape: shape, Growth: g, Optional: true})
}

// block adds block i of a draft. That of eagle3 reads the embedding and the hidden state side by side, each after a norm of its own.
func (l *slots) block(s *Spec, i int) {
	d := &s.Draft
	q, kv := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	name := func(n string) string { return fmt.Sprintf("blk.%d.%s", i, n) }
	if i == 0 && s.Kind != Eagle3 {
		l.maybe(name("attn_norm.weight"), Norm, d.Width)
	} else {
		l.add(name("attn_norm.weight"), Norm, d.Width)
	}
	if s.Kind == Eagle3 {
		l.add(name("hidden_norm.weight"), Norm, d.Width)
	}
	for _, m := range []struct {
		name string
		rows int
	}{{"attn_q", q}, {"attn_k", kv}, {"attn_v", kv}} {
		if s.Kind == Eagle3 {
			l.add(name(m.name+".embd.weight"), Random, d.Width, m.rows)
			l.add(name(m.name+".hidden.weight"), Random, d.Width, m.rows)
		} else {
			l.add(name(m.name+".weight"), Random, d.Width, m.rows)
		}
		l.maybe(name(m.name+".bias"), Zeros, m.rows)
	}
	l.add(name("attn_output.weight"), Zeros, q, d.Width)
	l.maybe(name("attn_output.bias"), Zeros, d.Width)
	l.add(name("ffn_norm.weight"), Norm, d.Width)
	l.add(name("ffn_gate.weight"), Random, d.Width, d.FFN)
	l.add(name("ffn_up.weight"), Random, d.Width, d.FFN)
	l.add(name("ffn_down.weight"), Zeros, d.FFN, d.Width)
}

// Complete refuses a set of tensors that lacks one. The error has no kind: who calls knows whom to blame.
func (s *Spec) Complete(has func(name string) bool) error {
	outputs := 0
	for _, slot := range s.Slots() {
		switch there := has(slot.Name); {
		case !there && !slot.Optional:
			return fmt.Errorf("tensor %q is missing", slot.Name)
		case there && s.Kind == Medusa && strings.HasSuffix(slot.Name, ".output.weight"):
			outputs++
		}
	}
	if outputs > 0 && outputs < s.Heads {
		return fmt.Errorf("%d of %d heads have an output matrix: want all or none", outputs, s.Heads)
	}
	if s.Kind == Eagle3 && s.Draft.Width != s.Dim && !has("token_embd.weight") {
		return fmt.Errorf("a draft of width %d has no \"token_embd.weight\", and the target's embeddings have %d", s.Draft.Width, s.Dim)
	}
	return nil
}

// checkTensors refuses a file that lacks a tensor, or has one of another shape or without a place.
func (s *Spec) checkTensors(f *gguf.File) error {
	fail := func(k tandem.Kind, format string, args ...any) error {
		return tandem.Errorf(op, k, "%s: %w", f.Path(), fmt.Errorf(format, args...))
	}
	known := map[string]bool{}
	for _, slot := range s.Slots() {
		known[slot.Name] = true
		t := f.Tensor(slot.Name)
		switch {
		case t == nil:
		case !slices.Equal(t.Shape, slot.Shape):
			return fail(tandem.Corrupt, "tensor %q has shape %d: the keys want %d", slot.Name, t.Shape, slot.Shape)
		case len(t.Shape) == 1 && t.Type != gguf.F32:
			return fail(tandem.Corrupt, "tensor %q is %s: want f32 for a vector", slot.Name, t.Type)
		}
	}
	for i := range f.Tensors() {
		if name := f.Tensors()[i].Name; !known[name] {
			return fail(tandem.Unsupported, "tensor %.80q has no place in a side file of %s", name, s.Kind)
		}
	}
	if err := s.Complete(func(name string) bool { return f.Tensor(name) != nil }); err != nil {
		return fail(tandem.Corrupt, "%w", err)
	}
	return nil
}

// SetKeys writes the spec's keys to w.
func (s *Spec) SetKeys(w *gguf.Writer) {
	set := func(name string, v any) { w.Set(string(s.Kind)+"."+name, v) }
	w.Set("general.architecture", string(s.Kind))
	w.Set(LineageKey, s.Lineage)
	w.Set(VocabularyKey, s.Vocabulary)
	set("embedding_length", uint32(s.Dim))
	set("vocab_size", uint32(s.Vocab))
	if s.Kind != PPD {
		set("taps", int32s(s.Taps))
	}
	switch s.Kind {
	case Medusa:
		set("head_count", uint32(s.Heads))
		set("block_count", uint32(s.Residual))
		return
	case PPD:
		set("token_count", uint32(s.Tokens))
		set("ensemble_count", uint32(s.Ensemble))
		return
	}
	d := &s.Draft
	set("block_count", uint32(d.Blocks))
	set("context_length", uint32(d.Context))
	set("feed_forward_length", uint32(d.FFN))
	set("attention.head_count", uint32(d.Heads))
	set("attention.head_count_kv", uint32(d.KVHeads))
	if d.Heads*d.HeadDim != d.Width {
		set("attention.key_length", uint32(d.HeadDim))
		set("attention.value_length", uint32(d.HeadDim))
	}
	set("attention.layer_norm_rms_epsilon", float32(d.Eps))
	set("rope.freq_base", float32(d.RopeBase))
	set("rope.dimension_count", uint32(d.RopeDim))
	if s.Kind == Eagle3 {
		set("draft_length", uint32(d.Width))
		set("draft_vocab_size", uint32(len(d.IDs)))
		set("d2t", int32s(d.IDs))
	}
}

func int32s(values []int) []int32 {
	out := make([]int32, len(values))
	for i, v := range values {
		out[i] = int32(v)
	}
	return out
}
