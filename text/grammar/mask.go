package grammar

import (
	"math/bits"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
)

// Mask returns the tokens that s allows: those whose bytes lead to a state that can be finished, and the ends if s is done. It is cached by
// state.
func (v *Vocabulary) Mask(s State) Mask {
	if s.g == nil {
		return v.all
	}
	w := walkers.Get().(*walker)
	defer walkers.Put(w)
	w.key = s.key(w.key[:0], longest)
	if m, ok := v.masks.get(w.key); ok {
		return m
	}
	m := v.walked(s)
	if !v.isSure(s.g) {
		for t := range tandem.Token(v.size) {
			if next, _ := s.Next(v.bytes(t)); m.Has(t) && !v.Finishes(next) {
				m[t>>6] &^= 1 << (t & 63)
			}
		}
	}
	if s.done {
		m.allow(v.ends)
	}
	v.masks.put(w.key, m)
	return m
}

// walked returns the tokens whose bytes s allows.
func (v *Vocabulary) walked(s State) Mask {
	w := walkers.Get().(*walker)
	defer walkers.Put(w)
	w.v, w.g, w.mask = v, s.g, make(Mask, len(v.all))
	w.set = set{confs: append(w.set.confs[:0], s.confs()...)}
	w.trie = &v.others
	w.walk(0)
	w.trie = &v.inside
	if !w.strings() {
		w.walk(0)
	}
	return w.mask
}

// walker walks a trie of tokens with the sets of configurations that its nodes lead to.
type walker struct {
	v    *Vocabulary
	trie *tokenTrie
	g    *Grammar
	set  set // the set of the node where the walk is, above those of the nodes on its path
	mask Mask
	key  []byte
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

func (m Mask) allow(tokens []tandem.Token) {
	for _, t := range tokens {
		m[t>>6] |= 1 << (t & 63)
	}
}

// How many states closed looks at: once for a mask, and for each node of a walk.
const manyStates, fewStates = 1 << 8, 1 << 4

// strings allows the tokens in v.inside if a configuration allows every text of such characters. It returns true if none is left to be
// walked to.
func (w *walker) strings() bool {
	for i := range w.set.confs {
		c := &w.set.confs[i]
		if c.n.kind != chars || c.dec != boundary {
			continue
		}
		far, states, ok := c.n.auto.closed(c.q, inStrings, len(w.v.shorter)-1, manyStates)
		if room := c.hi - far; ok && int(room) >= len(w.v.shorter)-1 {
			for k, word := range w.v.strings {
				w.mask[k] |= word
			}
			return true
		} else if ok && room >= 0 && states == 1 {
			w.mask.allow(w.v.byLength[:w.v.shorter[room]])
			w.set.confs = slices.Delete(w.set.confs, i, i+1)
			return len(w.set.confs) == 0
		}
	}
	return false
}

// walk puts the tokens below node i into the mask.
func (w *walker) walk(i int32) {
	nodes, base := w.trie.nodes, w.set.base
	top := len(w.set.confs)
	for c := i + 1; c < nodes[i].skip; c = nodes[c].skip {
		w.set.base, w.set.done = top, false
		w.g.step(w.set.confs[base:top], nodes[c].byte, &w.set)
		if len(w.set.confs) > top || w.set.done {
			n, last := &nodes[c], nodes[c].skip
			if !w.keeps(n) {
				last = c + 1
			}
			w.mask.allow(w.trie.ids[n.first:nodes[last].first])
			if last < n.skip && len(w.set.confs) > top {
				w.walk(c)
			}
		}
		w.set.confs = w.set.confs[:top]
	}
	w.set.base = base
}

// keeps reports whether a configuration of the set allows everything below n.
func (w *walker) keeps(n *trieNode) bool {
	if n.height == 0 {
		return true
	}
	below := w.v.groups[n.below]
	for i := w.set.base; i < len(w.set.confs); i++ {
		c := &w.set.confs[i]
		if c.n.kind != chars || c.dec != boundary || n.height == longest {
			continue
		}
		if c.n.mode == quoted && below&^inStrings != 0 || c.n.mode == plain && below>>brokenGroup&1 != 0 {
			continue
		}
		if far, _, ok := c.n.auto.closed(c.q, below, int(n.height), fewStates); ok && c.hi-int32(n.height) >= far {
			return true
		}
	}
	return false
}

// Allows reports whether s allows t, without a mask.
func (v *Vocabulary) Allows(s State, t tandem.Token) bool {
	_, ok := v.Next(s, t)
	return ok
}

// Next returns the state after t; after an end it is s. It returns false if s does not allow t.
func (v *Vocabulary) Next(s State, t tandem.Token) (State, bool) {
	if s.g == nil {
		return s, true
	}
	if t < 0 || int(t) >= v.size || v.begin[t] == v.begin[t+1] {
		return s, s.done && slices.Contains(v.ends, t)
	}
	next, ok := s.Next(v.bytes(t))
	return next, ok && (v.isSure(s.g) || v.Finishes(next))
}

// Single returns the token that s allows if it is the only one.
func (v *Vocabulary) Single(s State) (tandem.Token, bool) {
	if s.g == nil {
		return 0, false
	}
	if !v.isSure(s.g) {
		return v.Mask(s).single()
	}
	w := walkers.Get().(*walker)
	defer walkers.Put(w)
	w.g = s.g
	w.set = set{confs: append(w.set.confs[:0], s.confs()...)}
	var found []tandem.Token
	if s.done {
		found = append(found, v.ends...)
	}
	for _, w.trie = range []*tokenTrie{&v.inside, &v.others} {
		found = w.few(0, found)
	}
	if len(found) != 1 {
		return 0, false
	}
	return found[0], true
}

func (m Mask) single() (found tandem.Token, ok bool) {
	for i, word := range m {
		if word != 0 && (ok || word&(word-1) != 0) {
			return 0, false
		}
		if word != 0 {
			found, ok = tandem.Token(64*i+bits.TrailingZeros64(word)), true
		}
	}
	return found, ok
}

// few appends tokens below node i that are allowed, until there are two.
func (w *walker) few(i int32, found []tandem.Token) []tandem.Token {
	nodes, base := w.trie.nodes, w.set.base
	top := len(w.set.confs)
	for c := i + 1; c < nodes[i].skip && len(found) < 2; c = nodes[c].skip {
		w.set.base, w.set.done = top, false
		w.g.step(w.set.confs[base:top], nodes[c].byte, &w.set)
		if len(w.set.confs) > top || w.set.done {
			found = append(found, w.trie.ids[nodes[c].first:nodes[c+1].first]...)
		}
		if len(w.set.confs) > top {
			found = w.few(c, found)
		}
		w.set.confs = w.set.confs[:top]
	}
	w.set.base = base
	return found
}

// maskBytes bounds the masks that a vocabulary keeps, in each of two generations.
const maskBytes = 8 << 20

// maskCache keeps what was asked for lately: when the young generation is full, it becomes the old one.
type maskCache struct {
	mu         sync.Mutex
	young, old map[string]Mask
	bytes      int
}

func (c *maskCache) get(key []byte) (Mask, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, ok := c.young[string(key)]; ok {
		return m, true
	}
	m, ok := c.old[string(key)]
	if ok {
		c.keep(string(key), m)
	}
	return m, ok
}

func (c *maskCache) put(key []byte, m Mask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(string(key), m)
}

func (c *maskCache) keep(key string, m Mask) {
	size := len(m)*8 + len(key)
	if c.bytes += size; c.young == nil || c.bytes > maskBytes {
		c.young, c.old, c.bytes = map[string]Mask{}, c.young, size
	}
	c.young[key] = m
}
