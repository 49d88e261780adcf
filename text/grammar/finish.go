package grammar

import (
	"sync"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// A state can always be finished byte by byte. Some vocabularies have no tokens for some bytes, mostly of control characters. There a
// state may be a dead end: no token leads on from it to an end. Such states are taken away by a search, which is made only if a grammar
// may need a byte that is missing.

// finishes is what a vocabulary knows of dead ends.
type finishes struct {
	has    [256]bool // bytes that are tokens,
	all    bool      // and whether that is all of them
	mu     sync.Mutex
	sure   map[uint64]bool // by grammar: no byte that is missing is ever needed
	states map[string]bool // by state's key: whether it can be finished
}

// maxKnown bounds what finishes remembers, maxSearched how many states a search goes on from, and maxRead how many tokens it reads. Dead
// ends are few states: one whose search is broken off is taken for one that can be finished.
const maxKnown, maxSearched, maxRead = 1 << 12, 1 << 4, 1 << 12

// Finishes reports whether tokens of v can lead from s to an end. The state of Start must be asked once; Mask, Allows and Next leave out
// what leads to a dead end.
func (v *Vocabulary) Finishes(s State) bool {
	if s.g == nil || s.done || v.isSure(s.g) {
		return true
	}
	key := string(s.key(nil, longest))
	f := &v.finishes
	f.mu.Lock()
	is, known := f.states[key]
	f.mu.Unlock()
	if known {
		return is
	}
	seen, work, tokens := map[string]bool{key: true}, []State{s}, 0
	for searched := 0; len(work) > 0 && !is; searched++ {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		if is = searched == maxSearched; is {
			break
		}
		m := v.walked(at)
		for t := tandem.Token(0); int(t) < v.size && !is; t++ {
			if !m.Has(t) {
				continue
			}
			next, _ := at.Next(v.bytes(t))
			if tokens++; next.done || tokens > maxRead {
				is = true
			} else if k := string(next.key(nil, longest)); !seen[k] {
				seen[k] = true
				work = append(work, next)
			}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.states == nil || len(f.states) > maxKnown {
		f.states = map[string]bool{}
	}
	if f.states[key] = is; !is {
		for k := range seen { // nor can what was reached from it
			f.states[k] = false
		}
	}
	return is
}

// isSure reports whether every state of g can be finished without the bytes that are missing.
func (v *Vocabulary) isSure(g *Grammar) bool {
	f := &v.finishes
	if f.all {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	sure, known := f.sure[g.id]
	if known {
		return sure
	}
	sure = true
	for _, n := range g.nodes {
		if sure = f.suffice(n); !sure {
			break
		}
	}
	if f.sure == nil || len(f.sure) > maxKnown {
		f.sure = map[uint64]bool{}
	}
	f.sure[g.id] = sure
	return sure
}

// suffice reports whether the bytes that are tokens suffice to finish n from every place in it, in as few characters.
func (f *finishes) suffice(n *node) bool {
	all := func(first, last byte) bool {
		for c := int(first); c <= int(last); c++ {
			if !f.has[c] {
				return false
			}
		}
		return true
	}
	switch {
	case n.kind == literal:
		for i := range len(n.text) {
			if !f.has[n.text[i]] && !(n.marked && n.text[i] >= breakMark) {
				return false
			}
		}
		return true
	case n.kind != chars || n.auto == nil:
		return true
	case n.mode == quoted: // every character can be written with these
		return all(' ', '~') && all(0x80, 0xBF)
	case n.mode == plain && !all(0x80, 0xBF):
		return false
	}
	a := n.auto
	usable := make([]bool, len(a.first))
	for r, class := range a.ascii {
		usable[class] = usable[class] || f.has[r]
	}
	for i, r := range a.from {
		text := utf8.AppendRune(nil, r)
		if n.mode == raw {
			text = []byte{byte(r)}
		}
		has := r <= 0xFF || n.mode != raw
		for _, c := range text {
			has = has && f.has[c]
		}
		usable[a.class[i]] = usable[a.class[i]] || has
	}
	for q, far := range a.far {
		if far == 0 || far == infinite {
			continue
		}
		nearer := false
		for class, ok := range usable {
			to := a.next[q*len(usable)+class]
			nearer = nearer || ok && to >= 0 && a.far[to] < far
		}
		if !nearer {
			return false
		}
	}
	return true
}
