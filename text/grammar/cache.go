package grammar

import (
	"encoding/json"
	"sync"
	"unsafe"
)

// What a Cache keeps: the bytes of all grammars, of a tenant's, and how many Specs of one tenant, refused ones included.
const (
	cacheBytes, tenantBytes = 64 << 20, 16 << 20
	tenantSpecs             = 32
)

// Cache keeps compiled grammars by tenant and Spec, the latest used. Whoever asks for one that is being compiled waits for it. The zero
// Cache is ready. It is safe for concurrent use.
type Cache struct {
	mu      sync.Mutex
	entries map[cacheKey]*cached
	now     uint64 // counts uses
}

type cacheKey struct{ tenant, spec string }

type cached struct {
	once  sync.Once
	g     *Grammar
	err   error
	used  uint64
	bytes int
}

// Compile is the function Compile with memory: errors are remembered too. l is the same in every call.
func (c *Cache) Compile(tenant string, s Spec, l Limits) (*Grammar, error) {
	text, err := json.Marshal(s)
	if l = l.withDefaults(); err != nil || len(text) > l.Bytes {
		return Compile(s, l)
	}
	key := cacheKey{tenant, string(text)}
	c.mu.Lock()
	it, known := c.entries[key]
	if !known {
		it = &cached{bytes: len(text)}
		if c.entries == nil {
			c.entries = map[cacheKey]*cached{}
		}
		c.entries[key] = it
	}
	c.now++
	it.used = c.now
	c.mu.Unlock()
	it.once.Do(func() {
		g, err := Compile(s, l)
		c.mu.Lock()
		defer c.mu.Unlock()
		it.g, it.err = g, err
		if g != nil {
			it.bytes += g.size()
		}
		c.shrink(tenant)
	})
	return it.g, it.err
}

// shrink forgets the entries used longest ago: of tenant while it has too much, then of the tenant that has most.
func (c *Cache) shrink(tenant string) {
	for {
		bytes, specs, all := map[string]int{}, 0, 0
		for key, it := range c.entries {
			bytes[key.tenant] += it.bytes
			if all += it.bytes; key.tenant == tenant {
				specs++
			}
		}
		of := tenant
		if bytes[tenant] <= tenantBytes && specs <= tenantSpecs {
			if all <= cacheBytes {
				return
			}
			for other := range bytes {
				if bytes[other] > bytes[of] {
					of = other
				}
			}
		}
		var oldest cacheKey
		for key, it := range c.entries {
			if key.tenant == of && (oldest == cacheKey{} || it.used < c.entries[oldest].used) {
				oldest = key
			}
		}
		delete(c.entries, oldest)
	}
}

// size is about how many bytes g takes.
func (g *Grammar) size() int {
	n := len(g.nodes) * int(unsafe.Sizeof(node{}))
	seen := map[*automaton]bool{}
	for _, it := range g.nodes {
		n += len(it.text) + 8*len(it.parts) + len(it.fields)*int(unsafe.Sizeof(field{})) + 32*len(it.exits)
		if a := it.auto; a != nil && !seen[a] {
			seen[a] = true
			n += int(unsafe.Sizeof(*a)) + 4*len(a.next) + 9*len(a.accept) + 6*len(a.from) + 12*len(a.first)
		}
	}
	return n
}
