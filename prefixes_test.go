package tandem

import (
	"slices"
	"testing"
)

// TestPrefixSummaries: a summary tells who has the key how much of a text is kept, to the power of two of pages, for its tenant and
// identity alone.
func TestPrefixSummaries(t *testing.T) {
	const page, identity = 4, Identity("i-1")
	key := PrefixKey{1}
	text := make([]Token, 23) // five full pages
	for i := range text {
		text[i] = Token(i * 7)
	}
	prefix := func(tenant string, pages int) Prefix {
		return Prefix{Tenant: tenant, Pages: pages, Hash: EmptyPrefix.Add(text[:pages*page]...)}
	}
	summary := key.Summary(identity, []Prefix{prefix("a", 1), prefix("a", 2), prefix("a", 4)})
	other := slices.Clone(text)
	other[page*2] = 1
	for name, c := range map[string]struct {
		key      PrefixKey
		identity Identity
		tenant   string
		tokens   []Token
		want     int
	}{
		"the whole text":             {key, identity, "a", text, 16},
		"its first four pages":       {key, identity, "a", text[:16], 16},
		"three pages":                {key, identity, "a", text[:15], 8},
		"the same for two pages":     {key, identity, "a", other, 8},
		"less than a page":           {key, identity, "a", text[:3], 0},
		"no text":                    {key, identity, "a", nil, 0},
		"another text":               {key, identity, "a", text[1:], 0},
		"the text of another tenant": {key, identity, "b", text, 0},
		"another identity":           {key, "i-2", "a", text, 0},
		"another key":                {PrefixKey{2}, identity, "a", text, 0},
		"no key":                     {PrefixKey{}, identity, "a", text, 0},
	} {
		if got := c.key.Query(c.identity, c.tenant, page, c.tokens).Longest(summary); got != c.want {
			t.Errorf("%s: %d tokens, want %d", name, got, c.want)
		}
	}
	if got := (PrefixKey{}).Summary(identity, []Prefix{prefix("a", 1)}); got != nil {
		t.Errorf("without a key the summary is %x: want none", got)
	}
	if got := key.Summary(identity, make([]Prefix, MostPrefixes+9)); len(got) != MostPrefixes {
		t.Errorf("a summary of %d: want %d", len(got), MostPrefixes)
	}
	if got := key.Query(identity, "a", 0, text).Longest(summary); got != 0 {
		t.Errorf("pages without a size: %d tokens", got)
	}
	// A tenant and an identity cannot be read as another pair.
	if key.Hash("ab", Prefix{Tenant: "c"}) == key.Hash("a", Prefix{Tenant: "bc"}) {
		t.Error("two pairs of identity and tenant have one hash")
	}
}

// BenchmarkPrefixQuery measures what it takes to look for a prompt of 8,192 tokens in what a verifier keeps.
func BenchmarkPrefixQuery(b *testing.B) {
	key := PrefixKey{1}
	tokens := make([]Token, 8192)
	kept := make([]uint64, 256)
	for b.Loop() {
		key.Query("x", "tenant", 64, tokens).Longest(kept)
	}
}
