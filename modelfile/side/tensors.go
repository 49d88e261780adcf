package side

import (
	"fmt"
	"slices"

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
	s.Kind.layout().tensors(l, s)
	return l.all
}

// slots collects slots.
type slots struct{ all []Slot }

func (l *slots) add(name string, g Growth, shape ...int) {
	l.all = append(l.all, Slot{Name: name, Shape: shape, Growth: g})
}

func (l *slots) maybe(name string, g Growth, shape ...int) {
	l.all = append(l.all, Slot{Name: name, Shape: shape, Growth: g, Optional: true})
}

// Complete returns an error if a tensor that the file must hold is missing; has reports whether there is one of that name. s must be a spec
// that Check accepts. The error has no kind: the caller knows whose mistake it is.
func (s *Spec) Complete(has func(name string) bool) error {
	for _, slot := range s.Slots() {
		if !slot.Optional && !has(slot.Name) {
			return fmt.Errorf("tensor %q is missing", slot.Name)
		}
	}
	if l := s.Kind.layout(); l.complete != nil {
		return l.complete(s, has)
	}
	return nil
}

// checkTensors refuses a file that lacks a tensor, or has one of another shape or without a place.
func (s *Spec) checkTensors(f *gguf.File) error {
	fail := func(k tandem.Kind, format string, args ...any) error {
		return tandem.Errorf(op, k, "%s: %w", f.Path(), fmt.Errorf(format, args...))
	}
	known, others := map[string]bool{}, s.Kind.layout().others
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
	if err := s.Complete(func(name string) bool { return f.Tensor(name) != nil }); err != nil {
		return fail(tandem.Corrupt, "%w", err)
	}
	for i := range f.Tensors() {
		if name := f.Tensors()[i].Name; !known[name] && (others == nil || !others(name)) {
			return fail(tandem.Unsupported, "tensor %.80q has no place in a side file of %s", name, s.Kind)
		}
	}
	return nil
}

func int32s(values []int) []int32 {
	out := make([]int32, len(values))
	for i, v := range values {
		out[i] = int32(v)
	}
	return out
}
