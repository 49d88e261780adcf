package kv

import (
	"cmp"
	"maps"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Summary returns prefixes that a later sequence may find, at most most, the most recently used first: of each text the first 1, 2, 4 …
// full pages. With recurrent layers a sequence can go on only where a state is kept, so a prefix counts if there is one at its end or
// behind it.
func (c *Cache) Summary(most int) []tandem.Prefix {
	if c.most < 0 {
		return nil
	}
	type found struct {
		*entry
		pages int
	}
	var all []found
	level := slices.Collect(maps.Values(c.roots))
	for pages := 1; len(level) > 0; pages++ {
		var next []*entry
		for _, parent := range level {
			for _, e := range parent.children {
				if len(e.tokens) < kernels.PageRows {
					continue
				}
				next = append(next, e)
				if pages&(pages-1) == 0 && (c.allSlots == 0 || e.stateful()) {
					all = append(all, found{e, pages})
				}
			}
		}
		level = next
	}
	slices.SortStableFunc(all, func(a, b found) int { return b.latest(a.entry) })
	var out []tandem.Prefix
	for _, f := range all[:min(len(all), most)] {
		out = append(out, tandem.Prefix{Tenant: f.root.tenant, Pages: f.pages, Hash: f.hash})
	}
	return out
}

// latest compares how recently two entries were used: one in use is later than any that is idle.
func (e *entry) latest(o *entry) int {
	if e.idle != o.idle {
		if o.idle {
			return 1
		}
		return -1
	}
	if !e.idle {
		return 0
	}
	return cmp.Compare(e.at, o.at)
}

// stateful reports whether the states of recurrent layers are kept at the end of e or of an entry below it.
func (e *entry) stateful() bool {
	return e.state != none || slices.ContainsFunc(e.children, (*entry).stateful)
}
