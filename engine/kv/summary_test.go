package kv

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// numbered returns n tokens that begin with first.
func numbered(first, n int) []tandem.Token {
	out := make([]tandem.Token, n)
	for i := range out {
		out[i] = tandem.Token(first + i)
	}
	return out
}

// TestSummary: of each kept text the first 1, 2, 4 … full pages are told, with its tenant; those in use first, then the last used.
func TestSummary(t *testing.T) {
	const page = kernels.PageRows
	c := newCache(24)
	hold := func(tenant string, tokens []tandem.Token) *Pages {
		t.Helper()
		p, _, err := c.ReserveShared(tenant, tokens, len(tokens)+1, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	prefix := func(tenant string, tokens []tandem.Token, pages int) tandem.Prefix {
		return tandem.Prefix{Tenant: tenant, Pages: pages, Hash: tandem.EmptyPrefix.Add(tokens[:pages*page]...)}
	}
	long, short := numbered(1, 5*page+3), numbered(9000, page)
	if got := c.Summary(9); got != nil {
		t.Errorf("an empty cache: %v", got)
	}
	hold("a", long).Keep(long)
	hold("b", short).Keep(short)
	ofLong := []tandem.Prefix{prefix("a", long, 1), prefix("a", long, 2), prefix("a", long, 4)}
	want := slices.Concat([]tandem.Prefix{prefix("b", short, 1)}, ofLong)
	if got := c.Summary(9); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if got := c.Summary(2); !slices.Equal(got, want[:2]) {
		t.Errorf("two of them: got %v, want %v", got, want[:2])
	}
	user := hold("a", long)
	want = slices.Concat(ofLong, []tandem.Prefix{prefix("b", short, 1)})
	if got := c.Summary(9); !slices.Equal(got, want) {
		t.Errorf("in use: got %v\nwant %v", got, want)
	}
	user.Release()
	c.Drop()
	if got := c.Summary(9); len(got) != 0 {
		t.Errorf("dropped: %v", got)
	}
	none := newCache(4)
	none.Bound(-1)
	p, _, err := none.ReserveShared("a", short, 2*page, 0)
	if err != nil {
		t.Fatal(err)
	}
	p.Keep(short)
	if got := none.Summary(9); got != nil {
		t.Errorf("a cache that keeps nothing: %v", got)
	}
}

// TestSummaryOfStates: with recurrent layers only what leads to a kept state is told.
func TestSummaryOfStates(t *testing.T) {
	root := &entry{tenant: "a", hash: tandem.EmptyPrefix, state: none}
	c := &Cache{}
	c.roots, c.allSlots = map[string]*entry{"a": root}, 2
	first := c.add(root, numbered(1, kernels.PageRows), 0)
	second := c.add(first, numbered(100, kernels.PageRows), 1)
	other := c.add(root, numbered(500, kernels.PageRows), 2)
	first.root, second.root, other.root = root, root, root
	second.state = 0
	got := c.Summary(9)
	if len(got) != 2 || got[0].Hash != first.hash || got[1].Hash != second.hash {
		t.Errorf("got %v: want %v and %v", got, first.hash, second.hash)
	}
}
