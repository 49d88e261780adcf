package start

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestUnnamed: of the drafts that were found for a target the first that fits is used. One that is damaged, made for another model, of
// another vocabulary, too large or not expected to pay is left, with a line that says why, and the target runs.
func TestUnnamed(t *testing.T) {
	const target, good, medusa, large = "../../models/gopher-draft-go-f16.gguf", "../../models/gopher-draft-all-f16.gguf",
		"../../models/gopher-medusa-q8_0.gguf", "../../models/gopher-19m-q8_0.gguf"
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(t.TempDir(), "damaged.gguf")
	if err := os.WriteFile(damaged, b[:len(b)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	foreign, lookup := family.Random("qwen3", 6).Write(t, t.TempDir()), []string{drafter.Lookup}
	for name, c := range map[string]struct {
		candidates []find.Candidate
		target     string
		budget     settings.Size
		drafts     []string
		heads      int
		says       []string
	}{
		"good": {[]find.Candidate{{File: good}}, target, 0, []string{good}, 0, []string{"draft " + good + ": it lies beside"}},
		"damaged": {[]find.Candidate{{File: damaged}, {File: good}}, target, 0, []string{good}, 0,
			[]string{damaged + " is left: ", good + ": it"}},
		"gone": {[]find.Candidate{{File: "none.gguf"}}, target, 0, lookup, 0,
			[]string{"none.gguf is left: ", "no draft is known to pay"}},
		"another vocabulary": {[]find.Candidate{{File: foreign}}, target, 0, lookup, 0,
			[]string{foreign + " is left: it has another vocabulary", "no draft is known to pay"}},
		"another model's heads": {[]find.Candidate{{File: medusa}}, target, 0, lookup, 0,
			[]string{medusa + " is left: ", "no draft is known"}},
		"heads": {[]find.Candidate{{File: medusa}}, large, 0, lookup, 1, []string{medusa + ": it lies beside"}},
		"too large": {[]find.Candidate{{File: large}}, target, 160 << 20, lookup, 0,
			[]string{large + " is left: draft gopher-19m-q8_0 is not loaded", "no draft is known"}},
		"measured to be too slow": {[]find.Candidate{{File: good, Sibling: "Gophers", Gain: 1.01}}, target, 0, lookup, 0,
			[]string{good + " is left: 1.01 × plain is what it would bring, measured", "no draft is known"}},
		"computed to be too slow": {[]find.Candidate{{File: large, Sibling: "Gophers"}}, target, 0, lookup, 0,
			[]string{large + " is left: 1.00 × plain is what it would bring, computed", "no draft is known"}},
		"measured": {[]find.Candidate{{File: good, Sibling: "Gophers", Gain: 1.44}}, target, 0, []string{good}, 0,
			[]string{good + ": the small model of Gophers; 1.4 × plain, measured"}},
	} {
		var said []string
		env := Env{Stderr: os.Stderr, Version: version, GPUs: gpu.Chips}
		env.Say = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
		s := Setup{Group: settings.Default[settings.Group](), TargetFile: c.target, DraftFiles: lookup, Candidates: c.candidates,
			Unknown: true, AtOnce: 1}
		if s.Cache, s.Plan = t.TempDir(), "off"; c.budget > 0 {
			s.MemoryBudget = &c.budget
		}
		s, err := s.Checked(env, tandem.Request{})
		if err != nil || !slices.Equal(s.DraftFiles, c.drafts) || len(s.Heads) != c.heads || s.late != !slices.Equal(c.drafts, lookup) ||
			len(said) != len(c.says) {
			t.Errorf("%s: drafts %q, late %v, heads %q, %v, said %q", name, s.DraftFiles, s.late, s.Heads, err, said)
			continue
		}
		for i, line := range said {
			if !strings.Contains(line, c.says[i]) {
				t.Errorf("%s: said %q: want %q", name, line, c.says[i])
			}
		}
	}
}

// TestPays: of a model that is not here yet the header says whether it would draft for the target.
func TestPays(t *testing.T) {
	const target, small = "../../models/gopher-19m-q8_0.gguf", "../../models/gopher-draft-all-f16.gguf"
	s := Setup{Group: settings.Default[settings.Group](), TargetFile: target}
	s.Plan = "off"
	if err := s.Pays(Env{}, small); err != nil {
		t.Error(err)
	}
	for draft, says := range map[string]string{target: "1.00 × plain",
		family.Random("qwen3", 6).Write(t, t.TempDir()): "another vocabulary", "none.gguf": "none.gguf"} {
		if err := s.Pays(Env{}, draft); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v: want %q", draft, err, says)
		}
	}
}
