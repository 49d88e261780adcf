package rolestest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// fed returns a request of the tiny target, whose context is 64 bytes.
func fed(n int, temperature float64, plain bool) client.Request {
	return client.Request{Prompt: strings.Repeat(fmt.Sprintf("prompt %d ", n), 1+n%3), Temperature: &temperature,
		Seed: new(uint64(n)), NoDraft: plain, MaxTokens: new(30), IgnoreEOS: true,
		Strategy: "fixed", Tree: &client.Tree{Nodes: 8, Depth: 4, Width: 3}}
}

// sum returns a counter of all processes of a role.
func (s *System) sum(role, name string) (n int64) {
	s.t.Helper()
	d, err := s.Client.Describe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range d.GetProcesses() {
		if p.GetRole() == role {
			n += p.GetCounters()[name]
		}
	}
	return n
}

// TestDraftsThatReadStates: drafts with different taps in a process of their own ask the verifier for the target's states, and the
// text stays that of plain decoding: with all, while several requests run, with a prompt that the verifier has in memory, after a
// restart of the verifier, and with a drafter that comes late.
func TestDraftsThatReadStates(t *testing.T) {
	s := StartTapped(t, filepath.Join(sides, "target.gguf"), []int{-1, 3, 1, 2})
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
				if got, _, _, err := s.Generate(fed(k.n, k.temperature, false)); err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: request %v: tokens %v, %v: want %v", what, k, got, err, want)
				}
			})
		}
		all.Wait()
	}
	up := func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	}
	end := s.Drafter("drafter", filepath.Join(sides, "dovetail.gguf"), filepath.Join(sides, "eagle3.gguf"),
		filepath.Join(sides, "dflash.gguf"))
	s.Await("the drafter", up)
	check("with drafts")
	s.await("features", func() bool {
		check("again, with prompts in memory")
		return s.sum("drafter", "features.came") > 0
	})
	if rows, came := s.sum("verifier", "features.rows"), s.sum("drafter", "features.came"); rows < came {
		t.Errorf("the verifier has handed out %d rows, and %d have come", rows, came)
	}
	t.Logf("%d calls for features of a round took %d µs; %d were late", s.sum("drafter", "features.asked"),
		s.sum("drafter", "features.waited_us"), s.sum("drafter", "features.late"))
	s.RestartVerifier()
	before := s.sum("drafter", "features.came")
	s.await("features of another verifier", func() bool {
		check("after a restart of the verifier")
		return s.sum("drafter", "features.came") > before
	})
	end()
	s.Drafter("late", filepath.Join(sides, "dovetail.gguf"), filepath.Join(sides, "eagle3.gguf"))
	s.Await("the next drafter", up)
	s.await("features for the next drafter", func() bool {
		check("with another drafter")
		return s.sum("drafter", "features.came") > 0
	})
	for _, bad := range []string{"features.corrupt", "faults", "tickets.invalid"} {
		if n := s.sum("drafter", bad) + s.sum("verifier", bad); n != 0 {
			t.Errorf("%s is %d", bad, n)
		}
	}
	if log := s.Log.String(); strings.Contains(log, "panic") {
		t.Errorf("logged %s", log)
	}
}
