package rolestest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/client"
)

const sides = "../../../engine/testdata/sides/"

// TestHeadsInOneProcess: a verifier with side files offers ways that requests may name, over the wire; the text stays the same with them,
// and they are gone with the next verifier.
func TestHeadsInOneProcess(t *testing.T) {
	s := Start(t, sides+"target.gguf")
	requests := []client.Request{{Tokens: []uint32{1, 70, 80, 90}, MaxTokens: new(40), Temperature: new(0.0), IgnoreEOS: true},
		{Tokens: []uint32{1, 75, 85, 95}, MaxTokens: new(40), Temperature: new(0.8), Seed: new(uint64(3)), IgnoreEOS: true}}
	want := make([][]uint32, len(requests))
	for i, r := range requests {
		var err error
		r.NoDraft = true
		if want[i], _, _, err = s.Generate(r); err != nil || len(want[i]) != 40 {
			t.Fatal(want[i], err)
		}
	}
	r := requests[0]
	r.Drafters = []string{"medusa"}
	if _, _, _, err := s.Generate(r); err == nil || !strings.Contains(err.Error(), "medusa") {
		t.Errorf("a way that nobody offers: %v", err)
	}
	s.Heads(sides+"medusa-shared.gguf", sides+"ppd-4.gguf")
	check := func(used bool) {
		t.Helper()
		for _, strategy := range []string{"fixed", "planner", "llmcad", "minions"} {
			for _, names := range [][]string{{"medusa"}, {"ppd"}, {"ppd", "medusa", "lookup"}} {
				for i, r := range requests {
					r.Strategy, r.Drafters = strategy, names
					got, _, done, err := s.Generate(r)
					if err != nil || !slices.Equal(got, want[i]) {
						t.Fatalf("%s %v: tokens %v, %v: want %v", strategy, names, got, err, want[i])
					}
					rounds := map[string]int{}
					for _, d := range done.Statistics.Drafters {
						rounds[d.Name] = int(d.Rounds)
					}
					if (rounds[names[0]] > 0) != used && strategy == "fixed" {
						t.Errorf("%s %v: rounds %v: want some of %s: %v", strategy, names, rounds, names[0], used)
					}
				}
			}
		}
	}
	s.await("the gateway to know the ways", func() bool {
		r := requests[0]
		r.Drafters = []string{"ppd"}
		_, _, done, err := s.Generate(r)
		return err == nil && fmt.Sprint(done.Statistics.Drafters) != "[]"
	})
	check(true)
	s.Heads()
	s.await("the gateway to know that they are gone", func() bool {
		r := requests[0]
		r.Drafters = []string{"medusa"}
		_, _, done, err := s.Generate(r)
		return err == nil && len(done.Statistics.Drafters) == 0
	})
	check(false)
}
