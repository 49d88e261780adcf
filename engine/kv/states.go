package kv

import (
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// A recurrent layer has a state in place of keys and values, and a state is of one position only. So a sequence has a slot of its own, and
// prefixes keep states for a few positions only: the ends of texts, and the ends of pages that Mark names. A prefix is found up to such a
// position; pages behind it are computed again, because without states they are of no use.
//
// All slots are one pool. A sequence takes one when it is opened; the others keep states of prefixes. When none is free, the tenant with
// the most of them gives up one.
type slots struct {
	slotFree   []int32
	allSlots   int
	keepers    []*entry // with a state
	asked      uint64
	keptStates atomic.Int64 // copy of len(keepers); any goroutine may read it and the next
	lost       atomic.Int64 // states that were given up for others
}

// none stands for no slot.
const none = int32(-1)

// states are the slots of a sequence.
type states struct {
	home   int32  // none: the cache has no slots
	marks  []mark // positions behind which states are kept, before their pages are shared
	found  int32  // the slot of what find has found
	parted int    // where the text leaves pages that are kept but have no state there; 0: nowhere
}

type mark struct {
	at   int
	slot int32
}

var stateless = states{home: none, found: none}

func (s *slots) fill(n int) {
	s.allSlots = n
	for i := range n {
		s.slotFree = append(s.slotFree, int32(n-1-i))
	}
}

// KeptStates returns how many slots hold states of prefixes, LostStates how many such states were given up for others. Safe for concurrent
// use.
func (c *Cache) KeptStates() int   { return int(c.keptStates.Load()) }
func (c *Cache) LostStates() int64 { return c.lost.Load() }

// takeSlot returns a slot, for which a kept state may be given up; none if sequences have all.
func (c *Cache) takeSlot() int32 {
	if len(c.slotFree) == 0 && len(c.keepers) > 0 {
		c.giveUp()
	}
	n := len(c.slotFree)
	if n == 0 {
		return none
	}
	slot := c.slotFree[n-1]
	c.slotFree = c.slotFree[:n-1]
	return slot
}

// giveUp frees the slot of a kept state: of the tenant that has the most the one that is due first. What that means for pages (evict.go)
// holds here for what must be computed again without the state.
func (c *Cache) giveUp() {
	first := c.leastAsked()
	root, due := first.root, first.stateDue()
	for _, e := range c.keepers {
		if e.root != root {
			continue
		}
		if d := e.stateDue(); d < due || d == due && e.asked < first.asked {
			first, due = e, d
		}
	}
	root.stateClock = due
	c.lost.Add(1)
	c.forgetState(first)
}

// leastAsked returns the entry whose state was not used for longest, of the tenant that has the most states.
func (c *Cache) leastAsked() (first *entry) {
	of := map[*entry]int{}
	for _, e := range c.keepers {
		of[e.root]++
	}
	for _, e := range c.keepers {
		if first == nil || of[e.root] > of[first.root] || of[e.root] == of[first.root] && e.asked < first.asked {
			first = e
		}
	}
	return first
}

// stateDue returns what is compared: the pages from the last state before, but at least an eighth of the text. The end of a text often lies
// close behind another state, and is what will be asked for.
func (e *entry) stateDue() uint64 {
	all, behind := 0, 0
	for at := e; at.parent != nil; at = at.parent {
		if at != e && at.state != none && behind == 0 {
			behind = all
		}
		all++
	}
	if behind == 0 {
		behind = all
	}
	return e.askedAt + counts(max(behind, all/8))
}

func (c *Cache) forgetState(e *entry) {
	if e.state != none {
		c.slotFree = append(c.slotFree, e.state)
		c.keepers = slices.DeleteFunc(c.keepers, func(x *entry) bool { return x == e })
		c.keptStates.Add(-1)
		e.state = none
	}
}

// keepState makes slot the state of e, which has none.
func (c *Cache) keepState(e *entry, slot int32) {
	c.ask(e)
	e.state = slot
	c.keepers = append(c.keepers, e)
	c.keptStates.Add(1)
}

func (p *Pages) reserveSlot() error {
	c := p.cache
	if c.allSlots == 0 {
		return nil
	}
	if p.home = c.takeSlot(); p.home == none {
		return tandem.Errorf("kv", tandem.Exhausted, "a sequence of a recurrent model needs a slot for its states: all %d are in use",
			c.allSlots)
	}
	return nil
}

func (p *Pages) releaseSlot() {
	p.forgetMarks(-1)
	if p.home != none {
		p.cache.slotFree = append(p.cache.slotFree, p.home)
		p.home = none
	}
}

// Home returns the slot of p's own states; below 0 for a cache without.
func (p *Pages) Home() int32 { return p.home }

// Parted returns the position, a multiple of the page size, up to which pages of the text are kept although the prefix that was found ends
// before it, because no states are kept there. 0: there is no such position.
func (p *Pages) Parted() int { return p.parted }

// PartsAt raises the result of Parted to n.
func (p *Pages) PartsAt(n int) { p.parted = max(p.parted, n) }

// Mark returns a slot for the states behind position at-1; at is a multiple of the page size. Later sequences find them once the page
// before at is shared. It returns a number below 0 if there is no slot or nothing is shared.
func (p *Pages) Mark(at int) int32 {
	if p.root == nil || at%kernels.PageRows != 0 || at <= len(p.chain)*kernels.PageRows {
		return none
	}
	slot := p.cache.takeSlot()
	if slot != none {
		p.marks = append(p.marks, mark{at, slot})
	}
	return slot
}

// Unmark gives up the marks behind position n. Their slots are free again.
func (p *Pages) Unmark(n int) { p.forgetMarks(n) }

// forgetMarks gives up the marks behind position n.
func (p *Pages) forgetMarks(n int) {
	p.marks = slices.DeleteFunc(p.marks, func(m mark) bool {
		if m.at > n {
			p.cache.slotFree = append(p.cache.slotFree, m.slot)
		}
		return m.at > n
	})
}

// attach gives e, which ends at position at, the states of a mark.
func (p *Pages) attach(e *entry, at int) {
	p.marks = slices.DeleteFunc(p.marks, func(m mark) bool {
		switch {
		case m.at != at:
			return false
		case e.state == none:
			p.cache.keepState(e, m.slot)
		default:
			p.cache.slotFree = append(p.cache.slotFree, m.slot)
		}
		return true
	})
}

// handOver gives e, which ends where p does, the states of p, which ends.
func (p *Pages) handOver(e *entry) {
	if p.home != none && e.state == none && !e.condemned {
		p.cache.keepState(e, p.home)
		p.home = none
	}
}

// find is follow; with recurrent layers, as far as states are kept, and only if that is more than held positions.
func (p *Pages) find(tokens []tandem.Token, held int) (tail *entry, rows int) {
	if p.cache.allSlots == 0 {
		return p.follow(tokens)
	}
	path, at := []*entry{}, p.end()
	from := len(p.chain)
	left := func(level int) []tandem.Token {
		return tokens[min(len(tokens), (from+level)*kernels.PageRows):]
	}
	for {
		e, rows := at.child(left(len(path)))
		if rows < kernels.PageRows {
			break
		}
		path, at = append(path, e), e
	}
	if held == 0 {
		p.parted = (from + len(path)) * kernels.PageRows
	}
	for level := len(path); level >= 0; level-- {
		end := p.end()
		if level > 0 {
			end = path[level-1]
		}
		tail := end.tail(left(level))
		full := (from + level) * kernels.PageRows
		if tail != nil && full+len(tail.tokens) > held {
			p.useAll(path[:level])
			if tail.idle {
				p.cache.refresh(tail)
			}
			p.found = tail.state
			p.cache.ask(tail)
			return tail, len(tail.tokens)
		}
		if level > 0 && end.state != none && full > held {
			if p.useAll(path[:level]); level == len(path) {
				p.parted = 0
			}
			p.found = end.state
			p.cache.ask(end)
			return nil, 0
		}
	}
	return nil, 0
}

func (p *Pages) useAll(path []*entry) {
	for _, e := range path {
		p.use(e)
	}
}

// tail returns the child of e with states that is less than a page and holds the longest beginning of tokens; nil if none does.
func (e *entry) tail(tokens []tandem.Token) (best *entry) {
	for _, x := range e.children {
		n := len(x.tokens)
		if x.state != none && n < kernels.PageRows && common(x.tokens, tokens) == n && (best == nil || n > len(best.tokens)) {
			best = x
		}
	}
	return best
}

// ask notes that the states of e are kept or used.
func (c *Cache) ask(e *entry) {
	c.asked++
	e.asked, e.askedAt = c.asked, e.root.stateClock
}

// adopt copies the states that find has found to p's slot. Their entry may have been evicted since: nobody has written to the slot, unless
// it has become p's own.
func (p *Pages) adopt() {
	if p.home != none && p.found != none && p.found != p.home {
		p.cache.mem.CopyStates([]int32{p.home}, []int32{p.found})
	}
	p.found = none
}

// Rewind truncates p to the last position up to n behind which states are kept, or to 0. It copies these states to p's own and returns the
// position. Errors: Truncate's.
func (p *Pages) Rewind(n int) (int, error) {
	at, slot := 0, none
	for i, e := range p.chain {
		if end := (i + 1) * kernels.PageRows; end <= n && e.state != none {
			at, slot = end, e.state
		}
	}
	for _, m := range p.marks {
		if m.at <= n && m.at > at {
			at, slot = m.at, m.slot
		}
	}
	if err := p.Truncate(at); err != nil {
		return 0, err
	}
	p.forgetMarks(at)
	if slot != none {
		p.cache.mem.CopyStates([]int32{p.home}, []int32{slot})
	}
	return at, nil
}
