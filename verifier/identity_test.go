package verifier_test

import (
	"context"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// A verifier tells what it is, takes sessions that begin or began with that, and refuses those of other identities and vocabularies by
// name: they are not held.
func TestSessionsOfOthers(t *testing.T) {
	r := newRig(t, rigOptions{})
	here, err := engine.Identify(t.Context(), targetFile, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := engine.Identify(t.Context(), targetFile, engine.Options{KVType: "q8_0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		identity   tandem.Identity
		vocabulary string
		refused    string
		parts      []string
	}{
		{"begins", "", "", "", nil},
		{"begins, its vocabulary told", "", here.Vocabulary, "", nil},
		{"goes on", here.Identity, here.Vocabulary, "", nil},
		{"began elsewhere", other.Identity, here.Vocabulary, "identity", []string{string(here.Identity), string(other.Identity),
			"differ in KV type"}},
		{"of a later release", here.Identity + "-more", "", "identity", []string{"differ in form"}},
		{"of another vocabulary", "", "00000000deadbeef", "vocabulary", []string{"00000000deadbeef", here.Vocabulary}},
	} {
		before := r.counters.Snapshot()["refused."+c.refused]
		s := &stream{rig: r, asked: asked{sampling: greedy}, id: tandem.NewSessionID(), text: []tandem.Token{1, 50, 60}}
		s.verdicts = r.expect(s.id)
		o := s.opening()
		o.Identity, o.Fingerprint = c.identity, c.vocabulary
		opened, err := r.v.Open(context.Background(), o)
		if got := tandem.Refusal(err); got != c.refused || got == "" && err != nil {
			t.Errorf("%s: error %v: want a refusal of %q", c.name, err, c.refused)
		}
		if opened.Identity != here.Identity {
			t.Errorf("%s: identity %q: want %q", c.name, opened.Identity, here.Identity)
		}
		for _, p := range c.parts {
			if !strings.Contains(err.Error(), p) {
				t.Errorf("%s: error %q does not say %q", c.name, err, p)
			}
		}
		if c.refused == "" {
			continue
		}
		if n := r.counters.Snapshot()["refused."+c.refused]; n != before+1 {
			t.Errorf("%s: counted %d refusals after %d", c.name, n, before)
		}
		if v := s.ask(tandem.Ticket{Session: s.id, Base: 3, Hash: tandem.EmptyPrefix.Add(s.text...),
			Tree: tandem.Root(60)}); v.Kind != tandem.UnknownSession {
			t.Errorf("%s: verdict %+v: want unknown session", c.name, v)
		}
	}
}
