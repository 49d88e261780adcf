package enlist

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// A drafter of another arithmetic than the verifier's is used, counted and named once, whichever of the two is known first.
func TestOtherArithmetic(t *testing.T) {
	b := new(book)
	m, vocab, log, counters := members(t, b)
	defer m.Close()
	drafter := func(name string, arithmetic int) Drafter {
		return Drafter{Name: name, Vocab: vocab.Size(), Fingerprint: fingerprint,
			Identity: tandem.IdentityParts{Tensors: "t", Shape: "s", Rope: "r", KV: "f16", Arithmetic: arithmetic}.Identity()}
	}
	p := Process{Addr: "a", Instance: 1, Link: new(process), Up: true,
		Drafters: []Drafter{drafter("go", 1), drafter("py", 2), {Name: "lookup"}}}
	m.Update([]Process{p})
	if log.Len() != 0 {
		t.Errorf("logged before the verifier is known: %s", log)
	}
	for range 3 {
		m.TargetIs(drafter("", 1).Identity, nil)
		m.Update([]Process{p})
	}
	b.want(t, "all are used", "+go", "+py", "+lookup")
	if got := log.String(); strings.Count(got, "another arithmetic") != 1 || !strings.Contains(got, "drafter=py") {
		t.Errorf("logged %q: want a word about py, once", got)
	}
	m.TargetIs(drafter("", 2).Identity, nil)
	if n := counters.Snapshot()["drafters.other_arithmetic"]; n != 2 || !strings.Contains(log.String(), "drafter=go") {
		t.Errorf("counted %d, logged %q: want go too, for another verifier", n, log)
	}
}
