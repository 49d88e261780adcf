package kv

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Copies gives kept prefixes out as bytes, and takes them back as if they had been computed. The owner of its Cache uses it. Bytes that
// are put back must be those that were given out for the same tokens, by the cache of a model that computes the same bits.
type Copies struct {
	cache *Cache
	mem   kernels.HostCache
}

// Copies returns the Copies of c. nil: its memory is not this process's, or nothing is kept. Call it after Bound.
func (c *Cache) Copies() *Copies {
	mem, ok := c.mem.(kernels.HostCache)
	if !ok || c.most < 0 {
		return nil
	}
	return &Copies{c, mem}
}

// Form names the order of the bytes in pages and states; only caches of one form can take over each other's: see kernels.HostCache.
func (x *Copies) Form() string { return x.mem.Form() }

// PageBytes returns the size of a page in bytes.
func (x *Copies) PageBytes() int { return len(x.mem.Page(0)) }

// StateBytes returns the size in bytes of the states of recurrent layers behind one position; 0: the model has none.
func (x *Copies) StateBytes() int {
	if x.cache.allSlots == 0 {
		return 0
	}
	return len(x.mem.Slot(0))
}

// Visit calls visit for each whole page of a tenant's text that is kept or in use, from page 0 on, until it returns false. rows are the
// bytes of the page, state those of the states behind it; nil: none are kept there. They are the cache's: read them during the call only.
func (x *Copies) Visit(tenant string, tokens []tandem.Token, visit func(page int, rows, state []byte) bool) {
	at := x.cache.roots[tenant]
	for page := 0; at != nil && len(tokens) >= kernels.PageRows; page++ {
		e, rows := at.child(tokens[:kernels.PageRows])
		if rows < kernels.PageRows {
			return
		}
		var state []byte
		if e.state != none {
			state = x.mem.Slot(e.state)
		}
		if !visit(page, x.mem.Page(e.page), state) {
			return
		}
		at, tokens = e, tokens[kernels.PageRows:]
	}
}

// Import takes over the beginning of a text whose pages come from elsewhere. The owner calls Begin, Room, Put and at last Close; between
// Room and Put any goroutine may fill in the bytes. What an Import holds is in use, so it is not evicted.
type Import struct {
	copies *Copies
	pages  *Pages
	tokens []tandem.Token
	slot   int32 // of a state; none
}

// Begin returns an Import of a tenant's text, which holds the pages of it that the cache has already. tokens are the text; do not change
// them. Close the Import.
func (x *Copies) Begin(tenant string, tokens []tandem.Token) *Import {
	p := &Pages{cache: x.cache, states: stateless}
	p.join(tenant)
	p.follow(tokens)
	for _, e := range p.chain {
		p.Table = append(p.Table, e.page)
	}
	x.cache.counted()
	return &Import{x, p, tokens, none}
}

// Held returns how many pages i holds that others can find.
func (i *Import) Held() int { return len(i.pages.chain) }

// Usable returns how many of the held pages a sequence can begin with: all of them, or of a recurrent model those up to the last with a
// state.
func (i *Import) Usable() int {
	n := len(i.pages.chain)
	for i.copies.cache.allSlots > 0 && n > 0 && i.pages.chain[n-1].state == none {
		n--
	}
	return n
}

// Room takes the pages that i lacks to hold n, and, if state is set, a place for the state behind the last of them. It returns their bytes
// for the caller to fill in; the first page is page Held. Errors: Exhausted if there are too few or if fewer than spare pages would be
// left; then nothing is taken.
func (i *Import) Room(n, spare int, state bool) (pages [][]byte, behind []byte, err error) {
	p, c := i.pages, i.pages.cache
	held := len(p.chain)
	if err := p.lack((n+spare)*kernels.PageRows, 0); err != nil {
		return nil, nil, err
	}
	if state {
		if i.slot = c.takeSlot(); i.slot == none {
			return nil, nil, tandem.Errorf("kv", tandem.Exhausted, "all %d slots for states are in use", c.allSlots)
		}
		behind = i.copies.mem.Slot(i.slot)
	}
	if err := p.Grow(n*kernels.PageRows, 0); err != nil {
		return nil, nil, err
	}
	for _, page := range p.Table[held:] {
		pages = append(pages, i.copies.mem.Page(page))
	}
	return pages, behind, nil
}

// Put lets others find the first n pages of i, whose bytes are filled in. state says that the state behind the n-th, for which Room gave a
// place, is filled in too.
func (i *Import) Put(n int, state bool) {
	p := i.pages
	if state && i.slot != none {
		p.marks = append(p.marks, mark{n * kernels.PageRows, i.slot})
		i.slot = none
	}
	p.publish(i.tokens, n)
	if n > 0 && len(p.chain) >= n && !p.chain[n-1].condemned {
		p.attach(p.chain[n-1], n*kernels.PageRows) // if the page was there before
	}
}

// Close ends the use of what i holds. What was put stays as a kept prefix; the rest is free.
func (i *Import) Close() {
	if i.slot != none {
		i.pages.cache.slotFree = append(i.pages.cache.slotFree, i.slot)
		i.slot = none
	}
	i.pages.Release()
}
