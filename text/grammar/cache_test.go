package grammar

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

func TestCache(t *testing.T) {
	var c Cache
	get := func(tenant string, s Spec) *Grammar {
		g, err := c.Compile(tenant, s, Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	s := schema(`{"type": "object", "properties": {"a": {}}}`)
	first := get("a", s)
	if get("a", schema(`{"type":"object","properties":{"a":{}}}`)) != first {
		t.Error("white space makes another grammar")
	}
	if get("b", s) == first {
		t.Error("two tenants share a grammar")
	}
	var all sync.WaitGroup
	var got [20]*Grammar
	for i := range got {
		all.Go(func() { got[i], _ = c.Compile("c", s, Limits{}) })
	}
	all.Wait()
	for _, g := range got {
		if g == nil || g != got[0] {
			t.Fatal("who asks at once gets different grammars")
		}
	}
	for i := range 3 * tenantSpecs {
		get("a", Spec{Text: fmt.Sprint(i)})
	}
	for i := range 2 {
		if _, err := c.Compile("a", Spec{Regex: "("}, Limits{}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if len(c.entries) != tenantSpecs+2 {
		t.Errorf("%d entries are kept: want %d of one tenant, and one of each other", len(c.entries), tenantSpecs)
	}
	if g := get("a", s); g == first || g.Digest() != first.Digest() {
		t.Error("what was used longest ago is still there, or its successor is another grammar")
	}
	// Large ones, which are compiled elsewhere.
	for tenant := range 6 {
		for i := range 10 {
			c.now++
			key := cacheKey{fmt.Sprint("large", tenant), fmt.Sprint(i)}
			c.entries[key] = &cached{used: c.now, bytes: 3 << 20}
			c.shrink(key.tenant)
			if c.entries[key] == nil {
				t.Fatal("the newest is forgotten")
			}
		}
	}
	bytes, by := 0, map[string]int{}
	for key, it := range c.entries {
		bytes, by[key.tenant] = bytes+it.bytes, by[key.tenant]+it.bytes
	}
	if bytes > cacheBytes || bytes < cacheBytes/4 {
		t.Errorf("%d bytes are kept: want at most %d", bytes, cacheBytes)
	}
	for tenant, n := range by {
		if n > tenantBytes {
			t.Errorf("tenant %s has %d bytes", tenant, n)
		}
	}
}
