package start

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/processes/roles/drafter"
)

// TestRoute: --draft takes side files of the verifier too, and they become heads.
func TestRoute(t *testing.T) {
	const medusa, draft = "../../models/gopher-medusa-q8_0.gguf", "../../models/gopher-draft-all-f16.gguf"
	for _, c := range []struct {
		drafts, want []string
		lookup       bool
		heads        []string
	}{
		{[]string{draft, medusa}, []string{draft}, true, []string{medusa}},
		{[]string{medusa}, []string{drafter.Lookup}, true, []string{medusa}},
		{[]string{medusa}, nil, false, []string{medusa}},
		{[]string{draft, drafter.Lookup}, []string{draft, drafter.Lookup}, true, nil},
		{nil, nil, true, nil},
	} {
		s := Setup{DraftFiles: c.drafts}
		s.Lookup = c.lookup
		if err := s.route(); err != nil || !slices.Equal(s.DraftFiles, c.want) || !slices.Equal(s.Heads, c.heads) {
			t.Errorf("%q: drafts %q, heads %q, %v", c.drafts, s.DraftFiles, s.Heads, err)
		}
	}
	if err := (&Setup{DraftFiles: []string{"none.gguf"}}).route(); err == nil {
		t.Error("a file that is not there is no error")
	}
}
