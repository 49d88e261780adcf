package rolestest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles/pair"
)

// TestForeignVocabularies: drafts whose ids mean other texts draft for the shipped target, alone and beside one that shares its vocabulary.
// The text is that of plain decoding at any temperature, guesses of each are accepted, and what it costs is told.
func TestForeignVocabularies(t *testing.T) {
	s := Start(t, target)
	plain := map[float64][]uint32{}
	for _, temperature := range []float64{0, 0.8} {
		var err error
		if plain[temperature], _, _, err = s.Generate(ask(temperature, true)); err != nil {
			t.Fatal(err)
		}
	}
	s.Drafter("native", draft)
	for _, path := range []string{Turned(t, draft, "turned"), Bytewise(t, draft, "bytewise")} {
		name := strings.TrimSuffix(filepath.Base(path), ".gguf")
		var notes []string
		p := pair.Pair{Target: target, Drafts: []string{path}, Options: engine.Options{Device: testdevice.CPU(t, 1)}}
		if err := p.Check("", func(note string) { notes = append(notes, note) }); err != nil || len(notes) != 1 ||
			!strings.Contains(notes[0], path+" has another vocabulary than the target: it drafts in its own tokens") ||
			!strings.Contains(notes[0], "vocabularies differ: token 0 is") {
			t.Errorf("%s: told %q, %v", name, notes, err)
		}
		stop := s.Drafter(name, path)
		for round := range 2 {
			s.awaitEnlisted(name)
			for _, drafters := range [][]string{{name}, {name, draftName}} {
				for _, strategy := range []string{"fixed", "planner"} {
					for temperature, want := range plain {
						r := ask(temperature, false)
						r.Strategy, r.Drafters = strategy, drafters
						if len(drafters) > 1 {
							r.Vote = "tree"
						}
						s.await(fmt.Sprintf("%v, %s, temperature %v: an accepted draft", drafters, strategy, temperature), func() bool {
							got, _, done, err := s.Generate(r)
							if err != nil || !slices.Equal(got, want) {
								t.Fatalf("%v, %s, temperature %v: tokens %v, %v: want %v", drafters, strategy, temperature, got, err, want)
							}
							t.Logf("%v, %s, temperature %v: %d accepted in %d rounds", drafters, strategy, temperature,
								done.Statistics.Accepted, done.Statistics.Rounds)
							return done.Statistics.Accepted > 0 || strategy == "planner"
						})
					}
				}
			}
			if round == 0 { // its successor knows nothing of the target until it is told
				stop()
				stop = s.Drafter(name, path)
			}
		}
		stop()
		if n := strings.Count(s.Log.String(), "has another vocabulary than the target: it drafts in its own tokens"); n < 1 {
			t.Errorf("%s: nothing is logged of it: %s", name, s.Log)
		}
	}
}
