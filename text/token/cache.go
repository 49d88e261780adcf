package token

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
)

const (
	cacheSlots = 1 << 13
	cacheWord  = 32 // bytes; longer words seldom come again
)

// cache remembers the tokens of words, since words are repeated. Each word has one slot, which holds the last word
// entered there; entries never change, so readers need no lock. It stays below 2 MiB.
type cache struct {
	seed  maphash.Seed
	slots [cacheSlots]atomic.Pointer[cached]
}

type cached struct {
	word   string
	tokens []tandem.Token
}

func newCache() *cache { return &cache{seed: maphash.MakeSeed()} }

func (c *cache) slot(word string) *atomic.Pointer[cached] {
	return &c.slots[maphash.String(c.seed, word)%cacheSlots]
}

// newCached returns an entry with copies of word and tokens.
func newCached(word string, tokens []tandem.Token) *cached {
	return &cached{word: strings.Clone(word), tokens: append([]tandem.Token(nil), tokens...)}
}
