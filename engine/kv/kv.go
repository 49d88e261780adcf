// Package kv is the paged key-value cache of one model: an arena of pages, sized once, that sequences
// reserve whole pages from.
//
// A page holds PageRows positions of all layers (kernels.KVShape). A sequence uses pages in two
// roles: its table maps positions 0, 1, 2 … to cells in order; its node pages hold tree rows in any order.
//
// Invariants: (1) a page that is written to belongs to one sequence; full pages of committed positions may be in the tables of several
// (see entry); (2) pages are reserved when a sequence is
// opened, for all it may ever need, so no pass can run out of memory half-way; (3) committed cells are never written again
// before a truncation gives them up.
//
// A tree's siblings share positions, and only after acceptance is it known which of them a position belongs to. The likeliest
// line of a tree lies where its positions will be, the other rows in node pages; what is accepted of those is copied. A key's dimensions lie a line of
// the cache apart, so copying even one row of a large model passes over most of two pages: a millisecond for 16 layers of 16 heads.
package kv

import (
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// Cache is the arena, its free pages, and what is kept of earlier sequences in pages that nobody needs. Not safe for
// concurrent use.
type Cache struct {
	shape kernels.KVShape
	mem   *kernels.Memory
	free  []int32
	total int
	prefixes

	spare atomic.Int64 // pages that a sequence can have, for anyone to read
}

// PagesFor returns how many pages hold n rows.
func PagesFor(n int) int { return (n + kernels.PageRows - 1) / kernels.PageRows }

// New reserves an arena of pages. The kernel provides memory as pages are first written. Errors: Unsupported (a
// shape that the kernels do not have), Exhausted.
func New(shape kernels.KVShape, pages int) (*Cache, error) {
	if err := shape.Check(); err != nil {
		return nil, tandem.Errorf("kv", tandem.Unsupported, "%w", err)
	}
	mem, err := kernels.Alloc(pages * shape.PageBytes())
	if err != nil {
		return nil, tandem.Errorf("kv", tandem.Exhausted, "cache of %d pages of %d bytes: %w", pages, shape.PageBytes(), err)
	}
	c := &Cache{shape: shape, mem: mem, total: pages, free: make([]int32, pages)}
	for i := range c.free {
		c.free[i] = int32(pages - 1 - i) // low pages go first
	}
	c.counted()
	return c, nil
}

// Free gives the arena back; no page may be used afterwards.
func (c *Cache) Free() { c.mem.Free() }

// Lock keeps the arena in memory.
func (c *Cache) Lock() error { return c.mem.Lock() }

// Bytes is the arena, for the kernels.
func (c *Cache) Bytes() []byte { return c.mem.Bytes() }

// Shape returns the geometry of a page.
func (c *Cache) Shape() kernels.KVShape { return c.shape }

// FreePages returns how many pages no sequence has reserved; those kept of earlier ones are among them. Safe for
// concurrent use.
func (c *Cache) FreePages() int { return int(c.spare.Load()) }

// available is FreePages for the owner, in the middle of things.
func (c *Cache) available() int { return len(c.free) + c.idle.Len() }

// counted tells the world what has changed.
func (c *Cache) counted() {
	c.spare.Store(int64(c.available()))
	c.kept.Store(int64(c.idle.Len()))
}

// Pages are a sequence's cells.
type Pages struct {
	cache *Cache
	Table []int32  // pages of committed positions, in order
	nodes []int32  // pages of tree rows
	root  *entry   // the tenant's, as long as p shares; or nil
	chain []*entry // whose pages are the first of Table: not p's own, not to be written to
}

// Reserve takes pages for capacity committed positions and nodes tree rows; Exhausted if too few are
// free, in which case nothing is taken.
func (c *Cache) Reserve(capacity, nodes int) (*Pages, error) {
	p := &Pages{cache: c}
	if err := p.reserve(capacity, nodes); err != nil {
		return nil, err
	}
	return p, nil
}

// reserve takes what p does not share.
func (p *Pages) reserve(capacity, nodes int) error {
	c, table, extra := p.cache, PagesFor(capacity)-len(p.chain), PagesFor(nodes)
	if free := c.available(); table+extra > free {
		return tandem.Errorf("kv", tandem.Exhausted,
			"a sequence of %d positions and %d tree rows needs %d pages of %d rows: %d of %d are free",
			capacity, nodes, table+extra, kernels.PageRows, free, c.total)
	}
	for _, e := range p.chain {
		p.Table = append(p.Table, e.page)
	}
	p.Table, p.nodes = append(p.Table, c.take(table)...), c.take(extra)
	c.counted()
	return nil
}

// take returns n of the available pages, those first that hold nothing. What a kept page held stays in it until
// somebody writes to it.
func (c *Cache) take(n int) []int32 {
	for len(c.free) < n {
		c.evict()
	}
	at := len(c.free) - n
	pages := append([]int32(nil), c.free[at:]...)
	c.free = c.free[:at]
	return pages
}

// Release gives all pages back; p is empty afterwards. Releasing twice is harmless.
func (p *Pages) Release() {
	c := p.cache
	own := p.Table[min(len(p.chain), len(p.Table)):]
	c.free = append(append(c.free, own...), p.nodes...)
	p.leave(0)
	p.Table, p.nodes = nil, nil
	p.part()
	c.counted()
}

// Capacity returns how many committed positions p holds, and how many tree rows.
func (p *Pages) Capacity() (positions, nodes int) {
	return len(p.Table) * kernels.PageRows, len(p.nodes) * kernels.PageRows
}

// At returns the cell of position i.
func (p *Pages) At(i int) kernels.Cell { return cell(p.Table, i) }

// Node returns cell i of the node pages.
func (p *Pages) Node(i int) kernels.Cell { return cell(p.nodes, i) }

// Copy copies what cells src hold to cells dst, in order.
func (p *Pages) Copy(dst, src []kernels.Cell) {
	if len(dst) > 0 {
		p.cache.shape.CopyCells(p.cache.mem.Bytes(), dst, src)
	}
}

func cell(pages []int32, i int) kernels.Cell {
	return kernels.Cell(int(pages[i/kernels.PageRows])*kernels.PageRows + i%kernels.PageRows)
}
