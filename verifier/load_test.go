package verifier

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// TestLoad: a running verifier tells its sessions, its free pages, and how much of a text it keeps, also when the session has ended; who
// asks with the text and the tenant finds it.
func TestLoad(t *testing.T) {
	b := newBench(t)
	all := b.cfg.Model.Pages()
	if l := b.Load(); l.Sessions != 0 || l.FreePages != all || l.Waiting != 0 || len(l.Prefixes) != 0 {
		t.Errorf("idle: %+v", l)
	}
	text := counting(1, 5*engine.PageTokens)
	b.openOf("a", 1, text)
	b.fill()
	b.load.count()
	l := b.Load()
	if l.Sessions != 1 || l.FreePages >= all {
		t.Errorf("with a session: %+v", l)
	}
	key, identity := tandem.PrefixKey{7}, b.cfg.Model.Names().Identity
	found := func(tenant string, tokens []tandem.Token) int {
		return key.Query(identity, tenant, engine.PageTokens, tokens).Longest(key.Summary(identity, b.Load().Prefixes))
	}
	if n := found("a", text); n != 4*engine.PageTokens {
		t.Errorf("found %d tokens of a running session: want 4 pages of %d", n, engine.PageTokens)
	}
	b.dropAll(1)
	b.load.count()
	if l := b.Load(); l.Sessions != 0 || l.FreePages != all {
		t.Errorf("when it has ended: %+v", l)
	}
	for tenant, want := range map[string]int{"a": 4 * engine.PageTokens, "b": 0} {
		if n := found(tenant, slices.Concat(text, counting(9, 99))); n != want {
			t.Errorf("tenant %s finds %d tokens: want %d", tenant, n, want)
		}
	}
}
