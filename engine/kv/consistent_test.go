package kv

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// consistent checks the invariants of pages, entries and cells.
func (r *rig) consistent() {
	c := r.cache
	where := map[int32]string{}
	put := func(page int32, place string) {
		if was, ok := where[page]; ok {
			r.Fatalf("page %d is %s and %s", page, was, place)
		}
		where[page] = place
	}
	for _, p := range c.free {
		put(p, "free")
	}
	users, roots := map[*entry]int{}, map[*entry]int{}
	for i, h := range r.open {
		for n, e := range h.chain {
			if users[e]++; h.Table[n] != e.page {
				r.Fatalf("sequence %d: page %d is in its table, its entry has %d", i, h.Table[n], e.page)
			}
			if n > 0 && e.parent != h.chain[n-1] {
				r.Fatalf("sequence %d: entry %d is no child of the one before", i, n)
			}
		}
		for _, p := range append(slices.Clone(h.Table[len(h.chain):]), h.nodes...) {
			put(p, fmt.Sprintf("sequence %d's", i))
		}
		if h.root != nil {
			roots[h.root]++
		}
		if err := h.check(); err != nil {
			r.Fatalf("sequence %d: %v", i, err)
		}
	}
	idle, entries := 0, map[*entry]bool{}
	var walk func(e *entry)
	walk = func(e *entry) {
		for _, k := range e.children {
			entries[k] = true
			put(k.page, "an entry's")
			if k.parent != e || k.condemned || k.users != users[k] || (k.users == 0) != k.idle ||
				len(k.tokens) < kernels.PageRows && k.users+len(k.children) > 0 {
				r.Fatalf("entry %+v: %d users", k, users[k])
			}
			if k.idle {
				idle++
			}
			walk(k)
		}
	}
	for tenant, root := range c.roots {
		if root.tenant != tenant || root.users != roots[root] || root.users+len(root.children) == 0 {
			r.Fatalf("root of %q: %+v, %d users", tenant, root, roots[root])
		}
		walk(root)
	}
	listed := 0
	for _, root := range c.roots {
		gone, last := map[*entry]bool{}, &entry{}
		for _, e := range inOrder(root) {
			if gone[e] = true; e.root != root || !e.idle || root.kept[e.place] != e || e.due < last.due ||
				e.due == last.due && e.at <= last.at {
				r.Fatalf("entry %+v is listed as idle for tenant %q after %+v", e, root.tenant, last)
			}
			last = e
			listed++
			for _, k := range e.children {
				if !gone[k] {
					r.Fatalf("entry %+v would go before its child %+v", e, k)
				}
			}
		}
	}
	for e := range users {
		if !entries[e] {
			if !e.condemned || e.users != users[e] {
				r.Fatalf("entry %+v is used and not in a tree", e)
			}
			put(e.page, "condemned")
		}
	}
	if len(where) != testPages || idle != c.idle || idle != listed || c.FreePages() != len(c.free)+idle || c.Kept() != idle ||
		c.most > 0 && idle > c.most {
		r.Fatalf("%d pages in all, %d entries idle and %d listed, %d free, %d kept, at most %d", len(where), idle, listed, c.FreePages(),
			c.Kept(), c.most)
	}
}
