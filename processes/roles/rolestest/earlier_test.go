package rolestest

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/services/public/access"
)

// most is how many rounds asked may take if its text came before: 7, or more where lookup opens it late. Lookup without earlier texts
// takes 99, since at that temperature the text does not repeat itself, and a busy machine only adds to them.
const most = 50

// asked is a request for 100 tokens.
func asked(plain bool) client.Request {
	r := ask(1.5, plain)
	r.IgnoreEOS, r.MaxTokens, r.Tree = true, new(100), &client.Tree{Nodes: 16, Depth: 15, Width: 2}
	return r
}

// rounds runs asked, whose tokens must be want, and returns its rounds.
func (s *System) rounds(what string, want []uint32) int {
	s.t.Helper()
	got, _, done, err := s.Generate(asked(false))
	if err != nil || !slices.Equal(got, want) {
		s.t.Fatalf("%s: tokens %v, %v: want %v", what, got, err, want)
	}
	return done.Statistics.Rounds
}

// wantNew runs asked, which must not be drafted from an earlier text.
func (s *System) wantNew(what string, want []uint32) {
	s.t.Helper()
	if n := s.rounds(what, want); n <= most {
		s.t.Errorf("%s: %d tokens took %d rounds: want more than %d", what, len(want), n, most)
	}
}

// awaitEarlier runs asked until it is drafted from an earlier text: on a busy machine it may end before lookup has opened it.
func (s *System) awaitEarlier(what string, want []uint32) {
	s.t.Helper()
	s.await(what, func() bool { return s.rounds(what, want) <= most })
}

// withKeys starts a system for two tenants, whose earlier texts are kept, and returns the tokens of asked, which the first tenant had.
func withKeys(t *testing.T) (first, second *System, want []uint32) {
	t.Helper()
	keys, err := access.New([]string{Key, "second"})
	if err != nil {
		t.Fatal(err)
	}
	s := Start(t, target, func(c *gateway.Setup) { c.Keys, c.EarlierTexts = keys, "8192" })
	want, _, _, err = s.Generate(asked(true))
	if err != nil || len(want) != 100 {
		t.Fatal(want, err)
	}
	return s, s.As("second"), want
}

// TestEarlierTextsOfTenants: a text that one tenant had is drafted from there for that tenant, and not for another one until it had the
// text itself.
func TestEarlierTextsOfTenants(t *testing.T) {
	first, second, want := withKeys(t)
	first.awaitEarlier("the tenant that had the text", want)
	second.wantNew("a tenant that did not have the text", want)
	second.awaitEarlier("the tenant that has now had the text", want)
}

// TestLookupAfterRestart: the successor of a gateway drafts by lookup, and has none of the earlier texts until they come again.
func TestLookupAfterRestart(t *testing.T) {
	s, _, want := withKeys(t)
	s.awaitEarlier("before the restart", want)
	s.Restart()
	other := client.Request{Prompt: "a a a a a a a", MaxTokens: new(48), IgnoreEOS: true}
	s.await("a request drafted by lookup after the restart", func() bool {
		_, _, done, err := s.Generate(other)
		if err != nil {
			t.Fatal(err)
		}
		all := done.Statistics.Drafters
		return len(all) == 1 && all[0].Name == "lookup" && all[0].Accepted > 0
	})
	s.wantNew("after the restart", want)
	s.awaitEarlier("after the text came again", want)
}
