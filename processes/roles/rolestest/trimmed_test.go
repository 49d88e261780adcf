package rolestest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/trim"
	"github.com/tandem-llm/tandem/processes/roles/pair"
)

// TestTrimmedDraft: with a draft that can say half of its tokens the text is that of plain decoding at any temperature, and guesses are
// accepted. As a target it is refused, before a process is started and by the gateway's and the verifier's own checks.
func TestTrimmedDraft(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trimmed.gguf")
	if _, err := trim.Run(t.Context(), trim.Config{In: draft, Out: path, Type: "q4_0"}); err != nil {
		t.Fatal(err)
	}
	on := engine.Options{Device: testdevice.CPU(t, 1)}
	if err := (&pair.Pair{Target: target, Drafts: []string{path}, Options: on}).Check("", func(note string) {
		t.Errorf("told %q of a trimmed draft", note)
	}); err != nil {
		t.Error(err)
	}
	err := (&pair.Pair{Target: path, Options: on}).Check("", func(string) {})
	if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "is trimmed to 2048 of 4096 tokens") {
		t.Errorf("a trimmed target: %v", err)
	}
	s := Start(t, target)
	plain := map[float64][]uint32{}
	for _, temperature := range []float64{0, 0.8} {
		if plain[temperature], _, _, err = s.Generate(ask(temperature, true)); err != nil {
			t.Fatal(err)
		}
	}
	s.Drafter("trimmed", path)
	s.awaitEnlisted("trimmed")
	for temperature, want := range plain {
		r := ask(temperature, false)
		r.Strategy, r.Drafters = "fixed", []string{"trimmed"}
		s.await(fmt.Sprintf("temperature %v: an accepted draft", temperature), func() bool {
			got, _, done, err := s.Generate(r)
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("temperature %v: tokens %v, %v: want %v", temperature, got, err, want)
			}
			return done.Statistics.Accepted > 0
		})
	}
}
