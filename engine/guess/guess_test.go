package guess

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/side"
)

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
