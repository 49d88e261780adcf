package kv

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// inOrder returns the idle entries of a root in the order in which they are evicted.
func inOrder(root *entry) []*entry {
	return slices.SortedFunc(slices.Values(root.kept), func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.at, b.at))
	})
}

// left returns the kept pages by tenant after n evictions: each takes the page of a tenant that has the most that is due first, among
// short texts the least recently used one.
func left(c *Cache, n int) map[int32]string {
	var all []*entry
	for _, root := range c.roots {
		all = append(all, inOrder(root)...)
	}
	for ; n > 0; n-- {
		count := map[string]int{}
		for _, e := range all {
			count[e.root.tenant]++
		}
		slices.SortFunc(all, func(a, b *entry) int {
			return cmp.Or(count[b.root.tenant]-count[a.root.tenant], cmp.Compare(a.at, b.at))
		})
		all = all[1:]
	}
	out := map[int32]string{}
	for _, e := range all {
		out[e.page] = e.root.tenant
	}
	return out
}

// A tenant that fills the cache again and again replaces its own pages, not those of a modest tenant, which finds its pages
// however long ago it used them. A third tenant gets its part from the one that has the most.
func TestEvictionIsFair(t *testing.T) {
	const pages = 16
	c := newCache(pages)
	modest := prefix(1, 4*kernels.PageRows)
	put(t, c, "modest", modest)
	for n := range 20 {
		put(t, c, "greedy", prefix(2+n, 5*kernels.PageRows))
	}
	kept := func(tenant string) int {
		if root := c.roots[tenant]; root != nil {
			return len(root.kept)
		}
		return 0
	}
	if m, g := kept("modest"), kept("greedy"); m != 4 || g < pages/2 || c.Evicted() == 0 {
		t.Errorf("the modest tenant keeps %d pages, the greedy one %d of %d, %d were evicted: want 4, and most of the rest used", m, g,
			pages, c.Evicted())
	}
	if found := put(t, c, "modest", modest); found != len(modest) {
		t.Errorf("the modest tenant finds %d of its %d tokens", found, len(modest))
	}
	if found := put(t, c, "third", modest); found != 0 {
		t.Errorf("a tenant finds %d tokens that another has sent", found)
	}
	if m, third, g := kept("modest"), kept("third"), kept("greedy"); m != 4 || third != 4 || g > pages-8 {
		t.Errorf("the tenants keep %d, %d and %d pages: want the third's from the one that has the most", m, third, g)
	}
	c.Drop()
	for n := range 20 { // three that want more than there is share it
		put(t, c, fmt.Sprint(n%3), prefix(100+n, 5*kernels.PageRows))
	}
	for tenant := range 3 {
		if n := kept(fmt.Sprint(tenant)); n < 3 {
			t.Errorf("tenant %d of three equal ones keeps %d pages of %d", tenant, n, pages)
		}
	}
}
