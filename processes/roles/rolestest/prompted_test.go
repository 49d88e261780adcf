package rolestest

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestDraftWithPromptTokens: a draft model with prompt tokens of its own drafts; the text stays that of plain decoding, with several
// requests at once, after the drafter was killed, and with one that comes late.
func TestDraftWithPromptTokens(t *testing.T) {
	target := filepath.Join(sides, "target.gguf")
	s := Start(t, target)
	type key struct {
		n           int
		temperature float64
	}
	want := map[key][]uint32{}
	for n := range 4 {
		for _, temperature := range []float64{0, 0.8} {
			tokens, _, _, err := s.Generate(fed(n, temperature, true))
			if err != nil || len(tokens) != 30 {
				t.Fatal(tokens, err)
			}
			want[key{n, temperature}] = tokens
		}
	}
	check := func(what string) {
		t.Helper()
		var all sync.WaitGroup
		for k, want := range want {
			all.Go(func() {
				for _, strategy := range []string{"fixed", "planner", "llmcad", "minions"} {
					r := fed(k.n, k.temperature, false)
					r.Strategy = strategy
					if got, _, _, err := s.Generate(r); err != nil || !slices.Equal(got, want) {
						t.Errorf("%s, %s: request %v: tokens %v, %v: want %v", what, strategy, k, got, err, want)
					}
				}
			})
		}
		all.Wait()
	}
	counter := func(name string) (n int64) {
		t.Helper()
		d, err := s.Client.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range d.GetProcesses() {
			if p.GetRole() == "drafter" {
				n += p.GetCounters()[name]
			}
		}
		return n
	}
	up := func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	}
	for i, name := range []string{"drafter", "late"} {
		end := s.DrafterWith(name, map[string][]string{target: {filepath.Join(sides, []string{"ppd-4.gguf", "ppd-1.gguf"}[i])}}, target)
		s.Await("the drafter", up)
		s.await("prompt rows", func() bool {
			check(name)
			return counter("prompts.rows") > 0
		})
		for _, bad := range []string{"faults", "prompts.failed", "tickets.invalid"} {
			if n := counter(bad); n != 0 {
				t.Errorf("%s: %s is %d", name, bad, n)
			}
		}
		if i == 0 {
			var all sync.WaitGroup
			all.Go(func() { check("while the drafter ends") })
			end()
			all.Wait()
		}
	}
	if log := s.Log.String(); strings.Contains(log, "panic") {
		t.Errorf("logged %s", log)
	}
}
