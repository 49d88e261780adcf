package guess

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// TestHold: a draft that looks embeddings up itself still borrows its target's output matrix, which stays the last.
func TestHold(t *testing.T) {
	tensor := func() *gguf.Tensor { return &gguf.Tensor{Shape: []int{32, 2}} }
	own, output, embeddings := tensor(), tensor(), tensor()
	for name, embedded := range map[string]*gguf.Tensor{"apart": embeddings, "the same": output} {
		d := &Draft{Matrices: []tensors.Matrix{{Tensor: own}, {Tensor: output}}, Borrowed: []*gguf.Tensor{output},
			Embed: tensors.NewLookup(embedded)}
		d.Weights.Head = 1
		w, all := d.Hold()
		if d.Borrows() == nil || all[w.Head].Tensor != output || all[w.Embed].Tensor != embedded || w.Head != kernels.W(len(all)-1) {
			t.Errorf("embeddings %s: borrows %v, output matrix %d and embeddings %d of %d", name, d.Borrows(), w.Head, w.Embed, len(all))
		}
	}
}

// TestKinds: what a side file can be, what a model can open and the names that are reserved are the same.
func TestKinds(t *testing.T) {
	var names []string
	for _, k := range side.All() {
		switch plan, entrance := sorts[k.Sort()], entrances[k]; {
		case (plan != nil) != k.InVerifier() || (entrance != nil) != k.IsDraft():
			t.Errorf("%s: opened beside a target: %v, as a draft: %v; want %v and %v", k, plan != nil, entrance != nil, k.InVerifier(),
				k.IsDraft())
		case plan != nil:
			names = append(names, side.Spec{Kind: k}.SelfDraft().Name)
		}
	}
	if len(side.All()) != len(names)+len(entrances) {
		t.Errorf("%d and %d kinds are opened, side files are of %v", len(names), len(entrances), side.All())
	}
	if want := tandem.SelfDrafts(); !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(want))) {
		t.Errorf("self-drafts %v: want %v", names, want)
	}
}
