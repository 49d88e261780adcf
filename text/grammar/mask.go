package grammar

import (
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
)

// Mask returns the tokens that s allows: those whose bytes lead to another state, and the ends if s is done. It is cached by state.
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
	m := make(Mask, len(v.all))
	w.v, w.g, w.mask = v, s.g, m
	w.set = set{confs: append(w.set.confs[:0], s.confs()...)}
	w.walk(0)
	if s.done {
		for _, t := range v.ends {
			m[t>>6] |= 1 << (t & 63)
		}
	}
	v.masks.put(w.key, m)
	return m
}

// walker walks a vocabulary's trie with the sets of configurations that its nodes lead to.
type walker struct {
	v    *Vocabulary
	g    *Grammar
	set  set // the set of the node where the walk is, above those of the nodes on its path
	mask Mask
	key  []byte
}

var walkers = sync.Pool{New: func() any { return new(walker) }}

// walk puts the tokens below node i into the mask.
func (w *walker) walk(i int32) {
	v, base := w.v, w.set.base
	top := len(w.set.confs)
	for c := i + 1; c < v.nodes[i].skip; c = v.nodes[c].skip {
		w.set.base, w.set.done = top, false
		w.g.step(w.set.confs[base:top], v.nodes[c].byte, &w.set)
		if len(w.set.confs) > top || w.set.done {
			n, last := &v.nodes[c], v.nodes[c].skip
			if !w.keeps(n) {
				last = c + 1
			}
			for _, t := range v.ids[n.first:v.nodes[last].first] {
				w.mask[t>>6] |= 1 << (t & 63)
			}
			if last < n.skip && len(w.set.confs) > top {
				w.walk(c)
			}
		}
		w.set.confs = w.set.confs[:top]
	}
	w.set.base = base
}

// keeps reports whether a configuration of the set stays where it is with everything below n, so that all of it is allowed.
func (w *walker) keeps(n *trieNode) bool {
	below := w.v.groups[n.below]
	for i := w.set.base; i < len(w.set.confs); i++ {
		c := &w.set.confs[i]
		if c.n.kind != chars || c.dec != boundary || n.height == longest || c.hi-int32(n.height) < c.n.auto.far[c.q] {
			continue
		}
		stay := c.n.auto.stay[c.q]
		switch c.n.mode {
		case quoted:
			stay &= inStrings
		case plain:
			stay &^= 1 << brokenGroup
		}
		if below&^stay == 0 {
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
	return s.Next(v.bytes(t))
}

// Single returns the token that s allows if it is the only one.
func (v *Vocabulary) Single(s State) (tandem.Token, bool) {
	if s.g == nil {
		return 0, false
	}
	w := walkers.Get().(*walker)
	defer walkers.Put(w)
	w.v, w.g = v, s.g
	w.set = set{confs: append(w.set.confs[:0], s.confs()...)}
	var found []tandem.Token
	if s.done {
		found = append(found, v.ends...)
	}
	if len(found) < 2 {
		found = w.few(0, found)
	}
	if len(found) != 1 {
		return 0, false
	}
	return found[0], true
}

// few appends tokens below node i that are allowed, until there are two.
func (w *walker) few(i int32, found []tandem.Token) []tandem.Token {
	v, base := w.v, w.set.base
	top := len(w.set.confs)
	for c := i + 1; c < v.nodes[i].skip && len(found) < 2; c = v.nodes[c].skip {
		w.set.base, w.set.done = top, false
		w.g.step(w.set.confs[base:top], v.nodes[c].byte, &w.set)
		if len(w.set.confs) > top || w.set.done {
			found = append(found, v.ids[v.nodes[c].first:v.nodes[c+1].first]...)
		}
		if len(w.set.confs) > top {
			found = w.few(c, found)
		}
		w.set.confs = w.set.confs[:top]
	}
	w.set.base = base
	return found
}

// cacheBytes bounds the masks that a vocabulary keeps, in each of two generations.
const cacheBytes = 8 << 20

// cache keeps what was asked for lately: when the young generation is full, it becomes the old one.
type cache struct {
	mu         sync.Mutex
	young, old map[string]Mask
	bytes      int
}

func (c *cache) get(key []byte) (Mask, bool) {
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

func (c *cache) put(key []byte, m Mask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(string(key), m)
}

func (c *cache) keep(key string, m Mask) {
	size := len(m)*8 + len(key)
	if c.bytes += size; c.young == nil || c.bytes > cacheBytes {
		c.young, c.old, c.bytes = map[string]Mask{}, c.young, size
	}
	c.young[key] = m
}
