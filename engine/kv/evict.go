package kv

import "container/heap"

// Which of a tenant's idle entries is evicted first is decided by their due: the tenant's clock when they became idle, plus what the text
// counts whose part they are. The clock is the due of the last one that was evicted (GreedyDual, Young 1991). So a text counts by what it
// takes to compute it again and by how long ago it was used: while the other pages are replaced by those of short texts again and again, a
// text of n pages stays for n such rounds, and goes if it was not used meanwhile. Without the first, a few short texts would cost the end
// of a long one; without the second, what is long would stay for ever.
//
// Short texts count alike, so among them the least recently used goes first.

// shortText is the number of pages below which texts count alike.
const shortText = 8

// counts returns what a text of so many pages counts.
func counts(pages int) uint64 {
	if pages < shortText {
		return 1
	}
	return uint64(pages)
}

// idleEntries are a tenant's, a heap by due and at.
type idleEntries []*entry

func (h idleEntries) Len() int { return len(h) }

func (h idleEntries) Less(i, j int) bool {
	return h[i].due < h[j].due || h[i].due == h[j].due && h[i].at < h[j].at
}

func (h idleEntries) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *idleEntries) Push(x any) {
	e := x.(*entry)
	e.place = len(*h)
	*h = append(*h, e)
}

func (h *idleEntries) Pop() any {
	n := len(*h) - 1
	e := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return e
}

// rest makes an unused entry idle. It was in use for a text of so many pages.
func (c *Cache) rest(e *entry, pages int) {
	e.pages = pages
	for _, below := range e.children {
		e.pages = max(e.pages, below.pages) // so that it is due after them
	}
	e.idle = true
	c.idle++
	c.stamp(e)
	heap.Push(&e.root.kept, e)
	for c.most > 0 && c.idle > c.most {
		c.evict()
	}
}

// refresh notes that an idle entry was used.
func (c *Cache) refresh(e *entry) {
	c.stamp(e)
	heap.Fix(&e.root.kept, e.place)
}

func (c *Cache) stamp(e *entry) {
	c.rested++
	e.at, e.due = c.rested, e.root.clock+counts(e.pages)
}

// unrest ends an entry's idleness.
func (c *Cache) unrest(e *entry) {
	if e.idle {
		heap.Remove(&e.root.kept, e.place)
		e.idle = false
		c.idle--
	}
}

// next returns the idle entry to evict first: of the tenant that has the most the one that is due. Among tenants with equally many it is
// the least recently used of these. There must be one. Each call scans all tenants; there are no more of them than keys.
func (c *Cache) next() (first *entry) {
	for _, root := range c.roots {
		if len(root.kept) == 0 {
			continue
		}
		e := root.kept[0]
		if first == nil || len(root.kept) > len(first.root.kept) || len(root.kept) == len(first.root.kept) && e.at < first.at {
			first = e
		}
	}
	return first
}

// evict frees a kept page.
func (c *Cache) evict() {
	e := c.next()
	e.root.clock = e.due
	c.remove(e)
	c.evicted.Add(1)
}

// remove frees the page of an idle entry without children.
func (c *Cache) remove(e *entry) {
	c.unrest(e)
	c.forgetState(e)
	c.free = append(c.free, e.page)
	c.unlink(e)
}
