package kv

import (
	"container/list"
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// entry is a page whose rows are known to hold certain tokens: a node of its tenant's tree of prefixes. Its
// ancestors hold the tokens before them, so that a path from the root spells a prefix, page by page.
//
// An entry with PageRows tokens may stand in the tables of many sequences at a time, which read it and never write to it.
// One with fewer is a leaf that nobody reads in place: what another sequence can use of it is copied, and so
// are the first rows of a full page where texts part.
//
// What is shared, and when. A sequence puts each page into the tree once it is full and one more position is committed
// behind it (the last may be taken back, to be run again for its logits), and at its end the rows of the page it had begun. If
// the tree holds such a page already the sequence goes on with that and frees its own: the same tokens at the
// same positions have the same keys and values, bit for bit, whoever computed them and in whatever passes.
//
// Invariants:
//  1. Whoever uses an entry uses all its ancestors; so the descendants of an idle one are idle.
//  2. An entry that nobody uses is idle: its page counts as free, and the entry goes when the page is needed,
//     least recently used first. It was used whenever a descendant was, so the descendants have gone by then.
//  3. A condemned entry is in no tree: nobody finds it, and its page is free when its last user leaves.
//
// Nothing is shared between tenants, not even pages of equal tokens. Within a tenant the time that a prompt takes tells
// whether somebody has sent one that begins alike: whoever may not learn that must be another tenant, or the
// cache be off.
//
// A tree of pages with a scan of the children needs no hash, so there are no collisions to think of; as each entry
// is the child of one, a look-up compares no more pages than the arena has, and in practice as many as the prompt.
type entry struct {
	parent    *entry // nil: the root of a tenant, which has no page
	tenant    string // of a root
	children  []*entry
	tokens    []tandem.Token // of its rows
	page      int32
	users     int           // sequences that have it in their tables; of a root, that share with the tenant
	idle      *list.Element // its place in prefixes.idle
	condemned bool
}

// prefixes is what the cache keeps for later sequences.
type prefixes struct {
	roots   map[string]*entry // by tenant
	idle    list.List         // of *entry; least recently used first
	most    int               // idle pages to keep; 0 = all, negative = nothing is shared or kept
	evicted atomic.Int64
	kept    atomic.Int64 // idle.Len(), for anyone to read
}

// Bound sets how many pages may be kept that no sequence uses: 0 for all that are free, negative for none, nor any
// sharing between those that sequences use. Call it before anything is reserved.
func (c *Cache) Bound(pages int) { c.most = pages }

// Kept returns how many free pages hold prefixes, Evicted how many prefixes' pages were needed otherwise so far.
// Safe for concurrent use.
func (c *Cache) Kept() int      { return int(c.kept.Load()) }
func (c *Cache) Evicted() int64 { return c.evicted.Load() }

// Drop forgets all that is kept.
func (c *Cache) Drop() {
	for c.idle.Len() > 0 {
		c.remove(c.idle.Front().Value.(*entry))
	}
	c.counted()
}

// ReserveShared is Reserve for a sequence that will hold tokens and share pages with its tenant's others. The
// first found of the tokens, found ≤ len(tokens), are in its cells.
func (c *Cache) ReserveShared(tenant string, tokens []tandem.Token, capacity, nodes int) (p *Pages, found int, err error) {
	if c.most < 0 {
		p, err = c.Reserve(capacity, nodes)
		return p, 0, err
	}
	p = &Pages{cache: c}
	p.join(tenant)
	tokens = tokens[:min(len(tokens), capacity)]
	tail, rows := p.follow(tokens)
	if err := p.reserve(capacity, nodes); err != nil {
		p.leave(0)
		p.part()
		c.counted()
		return nil, 0, err
	}
	found = len(p.chain) * kernels.PageRows
	p.fill(tail, 0, rows)
	return p, found + rows, nil
}

// Resume looks for more of tokens, of which p holds the first held, and returns how many it holds then.
func (p *Pages) Resume(tokens []tandem.Token, held int) int {
	if p.root == nil {
		return held
	}
	c, had := p.cache, len(p.chain)
	tail, rows := p.follow(tokens)
	for i, e := range p.chain[had:] {
		c.free = append(c.free, p.Table[had+i])
		p.Table[had+i] = e.page
	}
	full := len(p.chain) * kernels.PageRows
	if full+rows > held {
		p.fill(tail, max(0, held-full), rows)
	}
	c.counted()
	return max(held, full+rows)
}

// Publish lets others find what p holds, which is tokens: its full pages but the one that ends with the last token.
func (p *Pages) Publish(tokens []tandem.Token) { p.publish(tokens, (len(tokens)-1)/kernels.PageRows) }

// Keep leaves what p holds, which is tokens, for later sequences, and releases p.
func (p *Pages) Keep(tokens []tandem.Token) {
	p.publish(tokens, len(tokens)/kernels.PageRows)
	if rest := tokens[min(len(tokens), len(p.chain)*kernels.PageRows):]; p.root != nil && len(rest) > 0 && len(rest) < kernels.PageRows {
		p.keepRest(rest)
	}
	p.Release()
}

// Distrust takes what p shares out of the tree, and all below it, and shares nothing of p any more: what a computation that
// failed has read may be the cause.
func (p *Pages) Distrust() {
	if len(p.chain) > 0 {
		p.cache.condemn(p.chain[0])
	}
	p.part()
	p.cache.counted()
}

// Truncate gives up the positions from n on. Shared pages among theirs are replaced by p's own; Exhausted if there are not
// enough, which cannot be where nobody else uses them; then nothing changes.
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
		return tandem.Errorf("kv", tandem.Exhausted, "%d shared pages to be written to: %d of %d are free to take their place", len(lost), free, c.total)
	}
	from, count := lost[0].page, len(lost)
	p.leave(keep)
	copy(p.Table[keep:], c.take(count))
	p.copyRows(from, keep, 0, n%kernels.PageRows)
	c.counted()
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
		p.root = &entry{tenant: tenant}
		c.roots[tenant] = p.root
	}
	p.root.users++
}

// SharesWith reports whether p will find what o publishes.
func (p *Pages) SharesWith(o *Pages) bool {
	return p.root != nil && p.root == o.root && !o.end().condemned
}

// part ends that; of a tenant that nobody shares with and nothing is kept of, nothing is left.
func (p *Pages) part() {
	if p.root != nil {
		p.root.users--
		p.cache.prune(p.root)
		p.root = nil
	}
}

// end returns the entry that p's next page is or would be a child of.
func (p *Pages) end() *entry {
	if n := len(p.chain); n > 0 {
		return p.chain[n-1]
	}
	return p.root
}

// use adds e to what p has in its table.
func (p *Pages) use(e *entry) {
	if e.users++; e.idle != nil {
		p.cache.idle.Remove(e.idle)
		e.idle = nil
	}
	p.chain = append(p.chain, e)
}

// leave ends p's use of all but the first keep entries, those that others need least first.
func (p *Pages) leave(keep int) {
	c := p.cache
	for i := len(p.chain) - 1; i >= keep; i-- {
		switch e := p.chain[i]; {
		case e.users > 1:
			e.users--
		case e.condemned:
			e.users = 0
			c.free = append(c.free, e.page)
		default:
			e.users = 0
			c.rest(e)
		}
	}
	p.chain = p.chain[:keep]
}

// follow uses all entries, from where p is, that hold tokens whole; the first rows rows of tail hold what comes next.
func (p *Pages) follow(tokens []tandem.Token) (tail *entry, rows int) {
	for {
		left := tokens[min(len(tokens), len(p.chain)*kernels.PageRows):]
		tail, rows = p.end().child(left)
		if rows < kernels.PageRows {
			break
		}
		p.use(tail)
	}
	if tail != nil && tail.idle != nil {
		p.cache.idle.MoveToBack(tail.idle) // if it must go even so, its rows stay long enough
	}
	return tail, rows
}

// fill copies rows [from, to) of tail to the page behind the shared ones.
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

// publish makes the first n pages of p, which holds tokens, entries that p uses.
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
	}
	if len(p.chain) > had {
		c.counted()
	}
}

// keepRest makes the page behind the shared ones, whose rows are for tokens, an idle entry.
func (p *Pages) keepRest(tokens []tandem.Token) {
	c, parent, i := p.cache, p.end(), len(p.chain)
	if parent.condemned {
		return
	}
	if e, rows := parent.child(tokens); rows == len(tokens) {
		if e.idle != nil {
			c.idle.MoveToBack(e.idle)
		}
		return
	}
	c.rest(c.add(parent, tokens, p.Table[i]))
	p.Table = slices.Delete(p.Table, i, i+1)
}

// add makes page a child of parent, in the place of those that hold less of the same.
func (c *Cache) add(parent *entry, tokens []tandem.Token, page int32) *entry {
	for _, old := range slices.Clone(parent.children) {
		if len(old.tokens) < kernels.PageRows && common(old.tokens, tokens) == len(old.tokens) {
			c.remove(old)
		}
	}
	e := &entry{parent: parent, tokens: slices.Clone(tokens), page: page}
	parent.children = append(parent.children, e)
	return e
}

// rest makes an entry that nobody uses the last one to go.
func (c *Cache) rest(e *entry) {
	e.idle = c.idle.PushBack(e)
	for c.most > 0 && c.idle.Len() > c.most {
		c.evict()
	}
}

// evict frees a page that is kept.
func (c *Cache) evict() {
	c.remove(c.idle.Front().Value.(*entry))
	c.evicted.Add(1)
}

// remove frees the page of an idle entry without children.
func (c *Cache) remove(e *entry) {
	c.idle.Remove(e.idle)
	e.idle = nil
	c.free = append(c.free, e.page)
	c.unlink(e)
}

// unlink takes e and what is below it out of the tree.
func (c *Cache) unlink(e *entry) {
	i := slices.Index(e.parent.children, e)
	e.parent.children = slices.Delete(e.parent.children, i, i+1)
	c.prune(e.parent)
}

// prune forgets a root that is not needed.
func (c *Cache) prune(e *entry) {
	if e.parent == nil && e.users == 0 && len(e.children) == 0 {
		delete(c.roots, e.tenant)
	}
}

// condemn sees to it that e and all below it are not found any more.
func (c *Cache) condemn(e *entry) {
	if e.condemned {
		return
	}
	c.unlink(e)
	for below := []*entry{e}; len(below) > 0; {
		e, below = below[0], append(below[1:], below[0].children...)
		e.condemned, e.children = true, nil
		if e.idle != nil {
			c.idle.Remove(e.idle)
			e.idle = nil
			c.free = append(c.free, e.page)
		}
	}
}

// child returns the child of e whose page begins with the most of tokens, and how many rows these are; nil, 0 if none does.
func (e *entry) child(tokens []tandem.Token) (best *entry, rows int) {
	for _, c := range e.children {
		if n := common(c.tokens, tokens); n > rows {
			best, rows = c, n
		}
	}
	return best, rows
}

// common returns how many tokens at the begin of a and b are the same.
func common(a, b []tandem.Token) (n int) {
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
