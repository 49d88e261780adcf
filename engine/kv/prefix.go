package kv

import (
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// entry is a page whose rows are known to hold certain tokens: a node of its tenant's tree of prefixes. Its
// ancestors hold the tokens before them, so that a path from the root spells a prefix, page by page.
//
// An entry with PageRows tokens may be in the tables of many sequences at a time, which read it and never write to it.
// One with fewer is a leaf that nobody reads in place: the rows that another sequence can use are copied. So are the
// first rows of a full page if the texts differ within it.
//
// What is shared, and when. A sequence puts each page into the tree once it is full and one more position is committed
// after it (the last may be taken back, to be run again for its logits). When it ends, it adds the page it had begun. If
// the tree already holds such a page, the sequence uses that one and frees its own: the same tokens at the same
// positions have the same keys and values, bit for bit, whichever sequence and passes computed them.
//
// Invariants:
//  1. Whoever uses an entry uses all its ancestors; so the descendants of an idle one are idle.
//  2. An entry that nobody uses is idle: its page counts as free, and the entry is evicted when the page is needed. The
//     tenant with the most idle pages loses the one that is due first (see due). So a tenant that keeps no more than the
//     others loses nothing to them, whatever they do. Descendants are evicted before their ancestors.
//  3. A condemned entry is in no tree: nobody finds it, and its page is free when its last user leaves.
//
// Nothing is shared between tenants, not even pages of equal tokens. So the time that a tenant's own prompts take tells it
// nothing of other tenants' prompts; losing pages tells it only that all together need much memory. Within a tenant the
// time that a prompt takes shows whether somebody has sent one that begins alike. Users who must not learn that need
// different tenants, or the cache switched off.
//
// A tree of pages whose children are scanned needs no hash, so there are no collisions. As each entry has one parent, a
// look-up compares at most as many pages as the arena has, and in practice as many as the prompt has.
type entry struct {
	parent     *entry      // nil: the root of a tenant, which has no page
	root       *entry      // of its tenant; itself for a root
	tenant     string      // of a root
	kept       idleEntries // of a root: the tenant's
	clock      uint64      // of a root: see evict.go; stateClock is that of its states
	stateClock uint64
	children   []*entry
	tokens     []tandem.Token    // of its rows
	hash       tandem.PrefixHash // of the tokens of its ancestors and its own
	page       int32
	users      int // sequences that have it in their tables; for a root, sequences that share within the tenant
	idle       bool
	place      int    // in its root's kept
	pages      int    // of the longest text that is kept and that it is a part of, as of when it last became idle
	due        uint64 // of its tenant's idle entries the one with the lowest is evicted first: see evict.go
	at         uint64 // value of prefixes.rested when it became idle or was refreshed
	condemned  bool
	state      int32  // slot with the states of recurrent layers behind the last of tokens; none: nobody has kept them
	asked      uint64 // value of slots.asked when the state was kept or last used
	askedAt    uint64 // its root's stateClock then
}

// prefixes are the pages that the cache keeps for later sequences.
type prefixes struct {
	roots   map[string]*entry // by tenant
	idle    int               // idle entries
	rested  uint64            // how often entries became idle or were refreshed
	most    int               // idle pages to keep; 0 = all, negative = nothing is shared or kept
	evicted atomic.Int64
	kept    atomic.Int64 // copy of idle; any goroutine may read it
}

// Bound sets how many unused pages may keep prefixes. 0: all free ones. A negative number switches keeping and sharing off. Call it before
// the first Reserve.
func (c *Cache) Bound(pages int) { c.most = pages }

// Kept returns how many free pages hold prefixes, Evicted how many pages with prefixes were evicted so far.
// Safe for concurrent use.
func (c *Cache) Kept() int      { return int(c.kept.Load()) }
func (c *Cache) Evicted() int64 { return c.evicted.Load() }

// Drop forgets all kept prefixes that no sequence uses.
func (c *Cache) Drop() {
	for c.idle > 0 {
		c.remove(c.next())
	}
	c.counted()
}

// ReserveShared is Reserve, with the same errors, for a sequence that will hold tokens and shares pages with others of its tenant. Its
// cells already hold the first found tokens, found ≤ len(tokens). Tokens beyond capacity are ignored.
func (c *Cache) ReserveShared(tenant string, tokens []tandem.Token, capacity, nodes int) (p *Pages, found int, err error) {
	if c.most < 0 {
		p, err = c.Reserve(capacity, nodes)
		return p, 0, err
	}
	p = &Pages{cache: c, states: stateless}
	p.join(tenant)
	tokens = tokens[:min(len(tokens), capacity)]
	tail, rows := p.find(tokens, 0)
	if err := p.reserve(capacity, nodes); err != nil {
		p.leave(0)
		p.part()
		c.counted()
		return nil, 0, err
	}
	found = len(p.chain) * kernels.PageRows
	p.fill(tail, 0, rows)
	p.adopt()
	return p, found + rows, nil
}

// Resume takes over pages that others have published since. p holds the first held of tokens; Resume returns how many of them it then
// holds.
func (p *Pages) Resume(tokens []tandem.Token, held int) int {
	if p.root == nil {
		return held
	}
	c, had := p.cache, len(p.chain)
	tail, rows := p.find(tokens, held)
	for i, e := range p.chain[had:] {
		c.free = append(c.free, p.Table[had+i])
		p.Table[had+i] = e.page
	}
	full := len(p.chain) * kernels.PageRows
	if full+rows > held {
		p.fill(tail, max(0, held-full), rows)
		p.adopt()
	}
	c.counted()
	return max(held, full+rows)
}

// Publish makes p's full pages available to others, except one that ends with the last token. tokens are all that p holds. It does nothing
// if p does not share.
func (p *Pages) Publish(tokens []tandem.Token) { p.publish(tokens, (len(tokens)-1)/kernels.PageRows) }

// Keep keeps the pages of p for later sequences, if p shares, and releases p. tokens are all that p holds.
func (p *Pages) Keep(tokens []tandem.Token) {
	p.publish(tokens, len(tokens)/kernels.PageRows)
	if n := len(p.chain); p.root != nil && n > 0 && n*kernels.PageRows == len(tokens) {
		p.handOver(p.chain[n-1])
	}
	if rest := tokens[min(len(tokens), len(p.chain)*kernels.PageRows):]; p.root != nil && len(rest) > 0 && len(rest) < kernels.PageRows {
		p.keepRest(rest)
	}
	p.Release()
}

// Distrust makes sure that nobody finds the pages that p shares, nor those that continue them, and ends p's sharing. It is for a failed
// computation, whose cause may be in the pages that it read.
func (p *Pages) Distrust() {
	if len(p.chain) > 0 {
		p.cache.condemn(p.chain[0])
	}
	p.part()
	p.forgetMarks(-1)
	p.cache.counted()
}

// Private ends p's sharing. Pages that it has published stay shared; it publishes no more.
func (p *Pages) Private() {
	p.part()
	p.forgetMarks(-1)
	p.cache.counted()
}

// Truncate gives up the positions from n on. p gets pages of its own in place of the shared ones among theirs. Errors: Exhausted if too
// few are free; then nothing changes. That cannot happen if nobody else uses the shared pages.
func (p *Pages) Truncate(n int) error {
	keep := n / kernels.PageRows
	if len(p.chain) <= keep {
		return nil
	}
	c, lost, alone := p.cache, p.chain[keep:], 0
	for _, e := range lost {
		if e.users == 1 {
			alone++
		}
	}
	if free := c.available() + alone; len(lost) > free {
		return tandem.Errorf("kv", tandem.Exhausted, "%d shared pages to be written to: %d of %d are free to take their place", len(lost),
			free, c.total)
	}
	from, count := lost[0].page, len(lost)
	p.leave(keep)
	copy(p.Table[keep:], c.take(count))
	p.copyRows(from, keep, 0, n%kernels.PageRows)
	c.counted()
	return nil
}

// Leave gives up the n pages of p's table that follow the first ones. p then shares no page behind these: it gets copies of those that it
// shared, and publishes no more. Errors: Exhausted if too few pages are free for the copies; then nothing changes.
func (p *Pages) Leave(first, n int) error {
	c, shared := p.cache, p.chain[min(first+n, len(p.chain)):]
	if free := c.available(); len(shared) > free {
		return tandem.Errorf("kv", tandem.Exhausted, "%d shared pages to be copied: %d of %d are free", len(shared), free, c.total)
	}
	for i, page := range c.take(len(shared)) {
		from := p.Table[first+n+i]
		p.Table[first+n+i] = page
		p.copyRows(from, first+n+i, 0, kernels.PageRows)
	}
	c.free = append(c.free, p.Table[max(first, min(len(p.chain), first+n)):first+n]...)
	p.leave(min(first, len(p.chain)))
	p.Table = slices.Delete(p.Table, first, first+n)
	p.Private()
	return nil
}

// join makes p one of those that share with tenant.
func (p *Pages) join(tenant string) {
	c := p.cache
	p.root = c.roots[tenant]
	if p.root == nil {
		if c.roots == nil {
			c.roots = map[string]*entry{}
		}
		p.root = &entry{tenant: tenant, hash: tandem.EmptyPrefix}
		p.root.root = p.root
		c.roots[tenant] = p.root
	}
	p.root.users++
}

// Shares reports whether p shares pages with others.
func (p *Pages) Shares() bool { return p.root != nil }

// SharesWith reports whether p can use pages that o will publish: both share with one tenant, and o's pages are trusted.
func (p *Pages) SharesWith(o *Pages) bool {
	return p.root != nil && p.root == o.root && !o.end().condemned
}

// part undoes join. The root of a tenant without users and kept pages is removed.
func (p *Pages) part() {
	if p.root != nil {
		p.root.users--
		p.cache.prune(p.root)
		p.root = nil
	}
}

// end returns the parent of p's next page in the tree.
func (p *Pages) end() *entry {
	if n := len(p.chain); n > 0 {
		return p.chain[n-1]
	}
	return p.root
}

// use adds e to the entries in p's table.
func (p *Pages) use(e *entry) {
	e.users++
	p.cache.unrest(e)
	p.chain = append(p.chain, e)
}

// leave ends p's use of all but the first keep entries, the last first.
func (p *Pages) leave(keep int) {
	c, pages := p.cache, len(p.chain)
	for i := pages - 1; i >= keep; i-- {
		switch e := p.chain[i]; {
		case e.users > 1:
			e.users--
		case e.condemned:
			e.users = 0
			c.free = append(c.free, e.page)
		default:
			e.users = 0
			c.rest(e, pages)
		}
	}
	p.chain = p.chain[:keep]
}

// follow uses all further entries whose whole pages hold tokens. The first rows rows of tail hold the tokens after them.
func (p *Pages) follow(tokens []tandem.Token) (tail *entry, rows int) {
	for {
		left := tokens[min(len(tokens), len(p.chain)*kernels.PageRows):]
		tail, rows = p.end().child(left)
		if rows < kernels.PageRows {
			break
		}
		p.use(tail)
	}
	if tail != nil && tail.idle {
		p.cache.refresh(tail) // even if it is evicted, its rows stay long enough
	}
	return tail, rows
}

// fill copies rows [from, to) of tail to the page after the shared ones.
func (p *Pages) fill(tail *entry, from, to int) {
	if from < to {
		p.copyRows(tail.page, len(p.chain), from, to)
	}
}

// copyRows copies rows [from, to) of a page to those of p's own i-th.
func (p *Pages) copyRows(page int32, i, from, to int) {
	var dst, src []kernels.Cell
	for row := from; row < to; row++ {
		dst, src = append(dst, cell(p.Table[i:], row)), append(src, cell([]int32{page}, row))
	}
	p.Copy(dst, src)
}

// publish makes the first n pages of p entries that p uses. tokens are those p holds.
func (p *Pages) publish(tokens []tandem.Token, n int) {
	c, had := p.cache, len(p.chain)
	for p.root != nil && len(p.chain) < n && !p.end().condemned {
		i := len(p.chain)
		piece := tokens[i*kernels.PageRows : (i+1)*kernels.PageRows]
		e, rows := p.end().child(piece)
		if rows == kernels.PageRows {
			c.free = append(c.free, p.Table[i])
			p.Table[i] = e.page
		} else {
			e = c.add(p.end(), piece, p.Table[i])
		}
		p.use(e)
		p.attach(e, len(p.chain)*kernels.PageRows)
	}
	if len(p.chain) > had {
		c.counted()
	}
}

// keepRest makes the page after the shared ones, whose rows hold tokens, an idle entry.
func (p *Pages) keepRest(tokens []tandem.Token) {
	c, parent, i := p.cache, p.end(), len(p.chain)
	if parent.condemned {
		return
	}
	if e, rows := parent.child(tokens); rows == len(tokens) {
		if e.idle {
			c.refresh(e)
		}
		if rows == len(e.tokens) {
			p.handOver(e)
		}
		return
	}
	e := c.add(parent, tokens, p.Table[i])
	p.handOver(e)
	c.rest(e, i+1)
	p.Table = slices.Delete(p.Table, i, i+1)
}

// add makes page a child of parent. It replaces children that hold only a beginning of tokens.
func (c *Cache) add(parent *entry, tokens []tandem.Token, page int32) *entry {
	for _, old := range slices.Clone(parent.children) {
		if len(old.tokens) < kernels.PageRows && common(old.tokens, tokens) == len(old.tokens) {
			c.remove(old)
		}
	}
	e := &entry{parent: parent, root: parent.root, tokens: slices.Clone(tokens), hash: parent.hash.Add(tokens...), page: page, state: none}
	parent.children = append(parent.children, e)
	return e
}

// unlink removes e and all below it from the tree.
func (c *Cache) unlink(e *entry) {
	i := slices.Index(e.parent.children, e)
	e.parent.children = slices.Delete(e.parent.children, i, i+1)
	c.prune(e.parent)
}

// prune forgets a root without users and entries.
func (c *Cache) prune(e *entry) {
	if e.parent == nil && e.users == 0 && len(e.children) == 0 {
		delete(c.roots, e.tenant)
	}
}

// condemn makes sure that e and all below it are not found any more.
func (c *Cache) condemn(e *entry) {
	if e.condemned {
		return
	}
	c.unlink(e)
	for below := []*entry{e}; len(below) > 0; {
		e, below = below[0], append(below[1:], below[0].children...)
		e.condemned, e.children = true, nil
		c.forgetState(e)
		if e.idle {
			c.unrest(e)
			c.free = append(c.free, e.page)
		}
	}
}

// child returns the child of e that shares the longest beginning with tokens, and its length in rows; nil, 0 if none does.
func (e *entry) child(tokens []tandem.Token) (best *entry, rows int) {
	for _, c := range e.children {
		if n := common(c.tokens, tokens); n > rows {
			best, rows = c, n
		}
	}
	return best, rows
}

// common returns how many tokens at the start of a and b are the same.
func common(a, b []tandem.Token) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
