// Package sequence keeps what sessions hold of a model's passes: the rows of committed tokens and of token trees, in the pages of its
// cache, and the states of recurrent layers.
//
// A Cache has the memory, and makes sequences in it. A Sequence is one session's prefix and tree. A Part is what a pass adds to a sequence:
// it says in which cells the new rows go and what they see, and the sequence holds them once the pass has run.
package sequence

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/kernels"
)

// Cache is the memory for the sequences of a model: pages of keys and values, and places for the states of recurrent layers. One goroutine
// at a time may use it and its sequences.
type Cache struct {
	config   *blocks.Config
	sizes    plan.Sizes
	stateful bool // the model reads states of positions: it is a draft with states
	memory   kernels.Cache
	pages    *kv.Cache
	records  *records           // nil: no recurrent layers
	open     map[*Sequence]bool // not closed
	shared   int                // sequences with NewShared so far
}

// NewCache returns an empty cache. memory is what the device has allocated for a model of shape c and passes of sizes s. stateful says that
// the model is a draft with states. The caller frees memory, after the last use of the cache.
func NewCache(c *blocks.Config, s plan.Sizes, memory kernels.Cache, stateful bool) *Cache {
	cache := &Cache{config: c, sizes: s, stateful: stateful, memory: memory, pages: kv.New(memory, s.Slots(c)),
		open: map[*Sequence]bool{}}
	if c.Recurrent() {
		cache.records = newRecords(s.Records(c))
	}
	return cache
}

// FreePages returns how many pages no sequence has reserved, also those that keep prefixes; Pages returns how many there are. FreePages is
// safe for concurrent use.
func (c *Cache) FreePages() int { return c.pages.FreePages() }
func (c *Cache) Pages() int     { return c.memory.Pages() }

// Prefixes are the pages of the KV cache that no sequence uses, kept for sequences that begin as those before did. All but Bound, Drop
// and Summary are safe for concurrent use.
type Prefixes interface {
	// Bound sets how many pages may be kept: 0 for all free ones, negative for none, and then sequences share nothing. Call it before
	// the first shared sequence.
	Bound(pages int)
	Drop()             // forgets all prefixes
	Kept() int         // how many of FreePages hold prefixes
	Evicted() int64    // how many such pages were given up so far, for sequences or because of the bound
	KeptStates() int   // how many states of recurrent layers are kept behind prefixes
	LostStates() int64 // how many such states were given up for others
	// Summary returns prefixes of texts that a later sequence may find, at most most, the most recently used first.
	Summary(most int) []tandem.Prefix
}

// Prefixes returns the kept prefixes, a view of c.
func (c *Cache) Prefixes() Prefixes { return c.pages }

// Copies gives kept prefixes out as bytes and takes them back: see kv.Copies. nil if nothing is kept, or if the memory for keys and
// values is a GPU's or divided between devices. Call it after Prefixes().Bound.
func (c *Cache) Copies() *kv.Copies { return c.pages.Copies() }

// HeldRows returns how many tree rows each sequence may hold between passes so that passes never lack places for records of recurrent
// layers, if no more than Options.Sequences sequences are open. ok is false for a model without such layers, which has no such bound.
func (c *Cache) HeldRows() (rows int, ok bool) {
	return c.sizes.Records(c.config)/c.sizes.Sequences - 2, c.config.Recurrent()
}

// NewSequence reserves KV memory for capacity committed positions and nodes tree rows. Close the sequence. Errors: Exhausted if the cache
// has too few free pages, Invalid for a capacity beyond the model's context.
func (c *Cache) NewSequence(capacity, nodes int) (*Sequence, error) {
	if err := c.check(capacity, nodes); err != nil {
		return nil, err
	}
	pages, err := c.pages.Reserve(capacity, nodes)
	if err != nil {
		return nil, err
	}
	return c.enter(&Sequence{pages: pages, capacity: capacity, maxNodes: nodes}), nil
}

// NewShared returns a sequence as NewSequence does, with the same errors, that will hold prompt and shares memory with the other shared
// sequences of its tenant, also closed ones. It begins with as much of the prompt as they have computed (Len), and later sequences find
// what it computes. Results are the same, bit for bit, as without sharing. Tenants share nothing with each other. Within a tenant the time
// that a prompt takes shows whether an earlier one began alike.
//
// Memory is reserved for the prompt and one position more. A pass takes what the sequence needs beyond that (Reserve).
func (c *Cache) NewShared(tenant string, prompt []tandem.Token, capacity, nodes int) (*Sequence, error) {
	if err := c.check(capacity, nodes); err != nil {
		return nil, err
	}
	prompt = prompt[:min(len(prompt), capacity)]
	pages, found, err := c.pages.ReserveShared(tenant, prompt, min(len(prompt)+1, capacity), 0)
	if err != nil {
		return nil, err
	}
	c.shared++
	s := c.enter(&Sequence{pages: pages, born: c.shared, capacity: capacity, maxNodes: nodes, length: found,
		tokens: slices.Clone(prompt[:found]), prompt: slices.Clone(prompt)})
	s.at = found
	return s, nil
}

// NewWindowed returns a sequence as NewShared does, with the same errors, whose rows see their text through w. It never reads tokens that
// no row behind the prompt sees. Local layers see no less than without w: w.Last is raised to their window. Others share its pages only if
// they leave out the same part of the same text, and only until it gives up pages, which it does as it grows. Further errors, all Invalid:
// a model with recurrent layers, a draft with states, a window that is not as Window says, more tree rows than w.Last.
func (c *Cache) NewWindowed(tenant string, prompt []tandem.Token, capacity, nodes int, w Window) (*Sequence, error) {
	w.Last = max(w.Last, c.config.Window)
	switch {
	case c.config.Recurrent() || c.stateful:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a window on the texts of %s: its layers keep more than keys and values of "+
			"tokens", c.config.Name)
	case !w.valid(nodes):
		return nil, tandem.Errorf("engine", tandem.Invalid, "a window on the first %d and the last %d positions, in steps of %d: want "+
			"multiples of %d, but any number of last ones from that of tree rows on, %d", w.First, w.Last, w.Step, kernels.PageRows, nodes)
	}
	if err := c.check(capacity, nodes); err != nil {
		return nil, err
	}
	prompt = prompt[:min(len(prompt), capacity)]
	from := w.From(len(prompt) - 1)
	gap := from - w.First
	if gap > 0 {
		prompt = slices.Concat(prompt[:w.First], prompt[from:])
	}
	// to leave out another part is to be another tenant
	s, err := c.NewShared(fmt.Sprintf("%d %s", gap, tenant), prompt, capacity-gap, nodes)
	if err == nil {
		s.view = view{window: w, gap: gap}
	}
	return s, err
}

// enter makes s one of the sequences of c.
func (c *Cache) enter(s *Sequence) *Sequence {
	s.memory, s.open, s.records, s.taken = c.memory, c.open, c.records, make([]bool, s.maxNodes)
	c.open[s] = true
	return s
}

// check refuses sequences that the model cannot have.
func (c *Cache) check(capacity, nodes int) error {
	const op = "engine"
	if capacity < 1 || capacity > c.config.Context {
		return tandem.Errorf(op, tandem.Invalid, "a sequence of %d positions: %s has a context of %d", capacity, c.config.Name,
			c.config.Context)
	}
	if nodes < 0 {
		return tandem.Errorf(op, tandem.Invalid, "a sequence with %d tree rows: want 0 or more", nodes)
	}
	return nil
}
