// Package kv manages the pages of a model's key-value cache. The memory is a device's and has a fixed number of pages, one pool
// for all sequences and for kept prefixes; sequences reserve whole pages.
//
// A page holds PageRows positions of all layers (kernels.Cache). A sequence uses pages in two
// roles: its table maps positions 0, 1, 2 … to cells in order; its node pages hold tree rows in any order.
//
// Invariants: (1) a page that is written to belongs to one sequence; full pages of committed positions may be in the tables of several
// (see entry); (2) before a pass a sequence reserves all pages that the pass writes to, and those to which it may have to move
// rows afterwards (Grow), so nothing can run out of memory half-way; (3) committed cells are not written again until a truncation
// gives them up.
//
// Siblings in a tree share a position, and only acceptance decides which of them gets it. The rows of first children are stored at their
// final positions, the other rows in node pages; those are copied if they are accepted. The dimensions of a key lie a cache line apart, so
// copying even one row of a large model touches most of two pages: a millisecond for 16 layers of 16 heads.
package kv

import (
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Cache holds the pages of a device's cache: those in use, the free ones, and prefixes of earlier sequences that are kept in
// pages nobody needs. Not safe for concurrent use.
type Cache struct {
	mem   kernels.Cache
	free  []int32
	total int
	prefixes
	slots

	spare atomic.Int64 // pages that a sequence can reserve; any goroutine may read it
}

// PagesFor returns how many pages hold n rows.
func PagesFor(n int) int { return (n + kernels.PageRows - 1) / kernels.PageRows }

// New returns a cache of the pages of mem, which has this many slots for the states of recurrent layers. The caller frees mem, after the
// last use of the cache.
func New(mem kernels.Cache, slots int) *Cache {
	pages := mem.Pages()
	c := &Cache{mem: mem, total: pages, free: make([]int32, pages)}
	for i := range c.free {
		c.free[i] = int32(pages - 1 - i) // low pages go first
	}
	c.slots.fill(slots)
	c.counted()
	return c
}

// FreePages returns how many pages no sequence has reserved, including those that keep earlier prefixes. Safe for
// concurrent use.
func (c *Cache) FreePages() int { return int(c.spare.Load()) }

// available is FreePages for the owner, exact also while a call is changing it.
func (c *Cache) available() int { return len(c.free) + c.idle }

// counted publishes the new counts.
func (c *Cache) counted() {
	c.spare.Store(int64(c.available()))
	c.kept.Store(int64(c.idle))
}

// Pages are the cells of one sequence: those of its positions and those of its tree rows. Release or Keep them.
type Pages struct {
	cache *Cache
	Table []int32  // pages of committed positions, in order
	nodes []int32  // pages of tree rows
	root  *entry   // the tenant's; nil if p does not share
	chain []*entry // entries of the first pages of Table, which are shared and must not be written to
	states
}

// Reserve takes pages for capacity committed positions and nodes tree rows, in whole pages. Errors: Exhausted if too few are free; then
// nothing is taken.
func (c *Cache) Reserve(capacity, nodes int) (*Pages, error) {
	p := &Pages{cache: c, states: stateless}
	if err := p.reserve(capacity, nodes); err != nil {
		return nil, err
	}
	return p, nil
}

// reserve takes the pages that p does not share.
func (p *Pages) reserve(capacity, nodes int) error {
	for _, e := range p.chain {
		p.Table = append(p.Table, e.page)
	}
	err := p.lack(capacity, nodes)
	if err == nil {
		err = p.reserveSlot()
	}
	if err != nil {
		p.Table = nil
		return err
	}
	return p.Grow(capacity, nodes)
}

// Grow makes sure that p has pages for this many committed positions and tree rows. Errors: Exhausted if too few are free; then nothing
// changes.
func (p *Pages) Grow(positions, nodes int) error {
	table, extra := p.lacks(positions, nodes)
	if table+extra == 0 {
		return nil
	}
	if err := p.lack(positions, nodes); err != nil {
		return err
	}
	p.Table, p.nodes = append(p.Table, p.cache.take(table)...), append(p.nodes, p.cache.take(extra)...)
	p.cache.counted()
	return nil
}

// lacks returns how many pages p lacks for so many committed positions and tree rows.
func (p *Pages) lacks(positions, nodes int) (table, extra int) {
	return max(0, PagesFor(positions)-len(p.Table)), max(0, PagesFor(nodes)-len(p.nodes))
}

// lack returns Exhausted if fewer pages are available than p lacks.
func (p *Pages) lack(positions, nodes int) error {
	table, extra := p.lacks(positions, nodes)
	if free := p.cache.available(); table+extra > free {
		return tandem.Errorf("kv", tandem.Exhausted,
			"a sequence of %d positions and %d tree rows needs %d more pages of %d rows: %d of %d are free",
			positions, nodes, table+extra, kernels.PageRows, free, p.cache.total)
	}
	return nil
}

// Count returns how many pages p has, shared ones included.
func (p *Pages) Count() int { return len(p.Table) + len(p.nodes) }

// take returns n of the available pages, empty ones first. A kept page holds its old rows until somebody writes
// to it.
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
	p.releaseSlot()
	c.counted()
}

// Capacity returns how many committed positions the pages of p hold, and how many tree rows.
func (p *Pages) Capacity() (positions, nodes int) {
	return len(p.Table) * kernels.PageRows, len(p.nodes) * kernels.PageRows
}

// At returns the cell of position i, which must be below the capacity.
func (p *Pages) At(i int) kernels.Cell { return cell(p.Table, i) }

// Node returns the cell of node i, counted through the node pages; it must be below the capacity.
func (p *Pages) Node(i int) kernels.Cell { return cell(p.nodes, i) }

// Copy copies the contents of cells src to cells dst, which are as many, in order.
func (p *Pages) Copy(dst, src []kernels.Cell) {
	if len(dst) > 0 {
		p.cache.mem.Copy(dst, src)
	}
}

func cell(pages []int32, i int) kernels.Cell {
	return kernels.Cell(int(pages[i/kernels.PageRows])*kernels.PageRows + i%kernels.PageRows)
}
