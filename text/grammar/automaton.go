package grammar

import (
	"slices"
	"unicode/utf8"
)

// alphabet divides the characters into classes: those in [from[i], from[i+1]) are of class[i]. An automaton does not tell the characters
// of a class apart.
type alphabet struct {
	from  []rune
	class []uint16
	first []rune // the first character of each class
}

// surrogates are no characters: they stand in a class of their own, which no automaton has a way for.
const (
	firstSurrogate, lastSurrogate = 0xD800, 0xDFFF
	lowSurrogate                  = 0xDC00
)

// everything has one class for all characters.
func everything() alphabet {
	return alphabet{from: []rune{0, firstSurrogate, lastSurrogate + 1}, class: []uint16{0, 1, 0}, first: []rune{0, firstSurrogate}}
}

// divide returns a with its classes divided further, so that characters between which key tells a difference are of different classes.
// key gets a class of a and a character, and a character after which nothing changes up to the end of the interval.
func (a alphabet) divide(b *budget, cuts []rune, key func(class uint16, r rune) uint32) alphabet {
	from := append(slices.Clone(a.from), cuts...)
	slices.Sort(from)
	from = slices.Compact(from)
	type name struct {
		class uint16
		key   uint32
	}
	names := map[name]uint16{}
	var out alphabet
	for i, r := range from {
		if r > utf8.MaxRune {
			break
		}
		n := name{a.classOf(r), key(a.classOf(r), r)}
		c, known := names[n]
		if !known {
			if c = uint16(len(names)); len(names) == maxClasses {
				panic(tooLarge("more than %d classes of characters", maxClasses))
			}
			names[n], out.first = c, append(out.first, r)
		}
		if i == 0 || c != out.class[len(out.class)-1] {
			out.from, out.class = append(out.from, r), append(out.class, c)
		}
	}
	b.spend(len(from))
	return out
}

// maxClasses bounds the classes of an alphabet, and with them the memory of a state.
const maxClasses = 1 << 12

// cut divides a by a set of characters: sorted pairs, first and last.
func (a alphabet) cut(b *budget, set []rune) alphabet {
	cuts := make([]rune, 0, len(set))
	for i := 0; i < len(set); i += 2 {
		cuts = append(cuts, set[i], set[i+1]+1)
	}
	return a.divide(b, cuts, func(_ uint16, r rune) uint32 {
		i, found := slices.BinarySearch(set, r)
		if found || i%2 == 1 {
			return 1
		}
		return 0
	})
}

func (a alphabet) classOf(r rune) uint16 {
	i, found := slices.BinarySearch(a.from, r)
	if !found {
		i--
	}
	return a.class[i]
}

// meet returns the alphabet that tells apart what a or o does.
func (a alphabet) meet(b *budget, o alphabet) alphabet {
	return a.divide(b, o.from, func(_ uint16, r rune) uint32 { return uint32(o.classOf(r)) })
}

// automaton is a deterministic finite automaton over characters; in a node whose mode is raw, over bytes. State 0 is the start. From every
// state that can be reached an accepting one can be reached.
type automaton struct {
	alphabet
	ascii    [utf8.RuneSelf]uint16 // classes
	next     []int32               // [state × classes + class]; -1: not allowed
	accept   []bool
	far      []int32  // the fewest characters to a goal
	onward   []int32  // the same, but one at least; infinite if nothing may follow
	furthest int32    // the greatest of far, of states that can be reached and left
	groups   []uint64 // of each class, the groups that its characters are of: see groupOf
}

// explore makes the automaton whose states are the keys that step reaches from start. It returns nil if it accepts nothing. goal says which
// states must be reachable: the accepting ones, and those where something else takes over.
func explore[K comparable](b *budget, al alphabet, start K, step func(K, rune) (K, bool), goal func(K) bool) (*automaton, []K) {
	a := &automaton{alphabet: al}
	ids, keys := map[K]int32{start: 0}, []K{start}
	for i := 0; i < len(keys); i++ {
		b.spend(len(al.first))
		for _, r := range al.first {
			to := int32(-1)
			if k, ok := step(keys[i], r); ok && (r < firstSurrogate || r > lastSurrogate) {
				id, known := ids[k]
				if !known {
					b.state(len(al.first))
					id = int32(len(keys))
					ids[k], keys = id, append(keys, k)
				}
				to = id
			}
			a.next = append(a.next, to)
		}
		a.accept = append(a.accept, goal(keys[i]))
	}
	if a.trim(); a.far[0] == infinite {
		return nil, nil
	}
	a.finish()
	return a, keys
}

// trim takes away the ways to states from which no goal can be reached, and finds how far the goals are.
func (a *automaton) trim() {
	classes, states := len(a.first), len(a.accept)
	begin := make([]int32, states+1) // of the ways into each state, in ways
	for _, to := range a.next {
		if to >= 0 {
			begin[to+1]++
		}
	}
	for i := range states {
		begin[i+1] += begin[i]
	}
	ways, fill := make([]int32, begin[states]), slices.Clone(begin)
	for i, to := range a.next {
		if to >= 0 {
			ways[fill[to]] = int32(i / classes)
			fill[to]++
		}
	}
	a.far = make([]int32, states)
	var reached []int32
	for q, goal := range a.accept {
		if a.far[q] = infinite; goal {
			a.far[q] = 0
			reached = append(reached, int32(q))
		}
	}
	for i := 0; i < len(reached); i++ {
		to := reached[i]
		for _, from := range ways[begin[to]:begin[to+1]] {
			if a.far[from] == infinite {
				a.far[from] = a.far[to] + 1
				reached = append(reached, from)
			}
		}
	}
	for i, to := range a.next {
		if to >= 0 && a.far[to] == infinite {
			a.next[i] = -1
		}
	}
}

// finish fills what is derived from the ways.
func (a *automaton) finish() {
	for r := range a.ascii {
		a.ascii[r] = a.classOf(rune(r))
	}
	classes := len(a.first)
	a.onward, a.groups = make([]int32, len(a.accept)), make([]uint64, classes)
	for q := range a.accept {
		ways := a.next[q*classes : (q+1)*classes]
		a.onward[q] = infinite
		for _, to := range ways {
			if to >= 0 {
				a.onward[q] = min(a.onward[q], a.far[to]+1)
			}
		}
		a.furthest = max(a.furthest, a.far[q])
	}
	for r, class := range a.ascii {
		a.groups[class] |= 1 << groupOf[r]
	}
	for i := len(a.from) - 1; i >= 0; i-- {
		if a.from[i] != firstSurrogate {
			a.groups[a.class[i]] |= 1<<wideGroup | 1<<brokenGroup
		}
		if a.from[i] <= utf8.RuneSelf {
			break
		}
	}
}

// closed reports whether every text of at most length characters of these groups is allowed in q and reaches at most so many states: far is
// how far a goal may then be, and states is how many there are.
func (a *automaton) closed(q int32, groups uint64, length, most int) (far int32, states int, ok bool) {
	var few [fewStates]int32
	reached, level := append(few[:0], q), 1 // level: where the states begin that are reached one character later
	for i := 0; i < len(reached); i++ {
		far = max(far, a.far[reached[i]])
		if i == level {
			length, level = length-1, len(reached)
		}
		if length <= 0 {
			continue
		}
		for class, of := range a.groups {
			if of&groups == 0 {
				continue
			}
			to := a.next[int(reached[i])*len(a.first)+class]
			if to < 0 {
				return 0, 0, false
			}
			if !slices.Contains(reached, to) {
				if len(reached) == most {
					return 0, 0, false
				}
				reached = append(reached, to)
			}
		}
	}
	return far, len(reached), true
}

// move returns the state after r, -1 if r is not allowed.
func (a *automaton) move(q int32, r rune) int32 {
	if r < utf8.RuneSelf {
		return a.next[int(q)*len(a.first)+int(a.ascii[r])]
	}
	return a.next[int(q)*len(a.first)+int(a.classOf(r))]
}

// any reports whether one of the characters from first to last is allowed in q, if at most so many characters may follow in all.
func (a *automaton) any(q int32, first, last rune, most int32) bool {
	i, found := slices.BinarySearch(a.from, first)
	if !found {
		i--
	}
	for ; i < len(a.from) && a.from[i] <= last; i++ {
		if to := a.next[int(q)*len(a.first)+int(a.class[i])]; to >= 0 && a.far[to] < most {
			return true
		}
	}
	return false
}

// matches reports whether a accepts text; nil accepts nothing.
func (a *automaton) matches(text string) bool {
	if a == nil {
		return false
	}
	q := int32(0)
	for _, r := range text {
		if q = a.move(q, r); q < 0 {
			return false
		}
	}
	return a.accept[q]
}

// merge returns the automaton of the texts of which keep says so: by whether x and y accept them. It is nil if there are none.
func (b *budget) merge(x, y *automaton, keep func(inX, inY bool) bool) *automaton {
	move := func(a *automaton, q int32, r rune) int32 {
		if a == nil || q < 0 {
			return -1
		}
		return a.move(q, r)
	}
	al := everything()
	for _, a := range []*automaton{x, y} {
		if a != nil {
			al = al.meet(b, a.alphabet)
		}
	}
	in := func(a *automaton, q int32) bool { return a != nil && q >= 0 && a.accept[q] }
	one, other := keep(true, false), keep(false, true)
	a, _ := explore(b, al, [2]int32{}, func(q [2]int32, r rune) ([2]int32, bool) {
		q = [2]int32{move(x, q[0], r), move(y, q[1], r)}
		return q, (q[0] >= 0 || other) && (q[1] >= 0 || one) && (q[0] >= 0 || q[1] >= 0)
	}, func(q [2]int32) bool { return keep(in(x, q[0]), in(y, q[1])) })
	return a
}

func both(x, y bool) bool      { return x && y }
func either(x, y bool) bool    { return x || y }
func onlyFirst(x, y bool) bool { return x && !y }

// lengths returns the automaton of all texts of least to most characters.
func (b *budget) lengths(least, most int32) *automaton {
	a, _ := explore(b, everything(), 0, func(n int32, _ rune) (int32, bool) {
		if most == unbounded {
			return min(n+1, least), true
		}
		return n + 1, n < most
	}, func(n int32) bool { return n >= least })
	return a
}

// words returns the automaton of a list of texts: of their characters, or of their bytes.
func (b *budget) words(list []string, bytes bool) *automaton {
	t := b.trie(list, bytes)
	a, _ := explore(b, t.alphabet, 0, t.child, func(n int32) bool { return len(t.ends[n]) > 0 })
	return a
}

// trie is a tree of texts; node 0 is the root.
type trie struct {
	alphabet
	children []map[rune]int32
	ends     [][]int32 // the texts that end at each node, by their index
}

func (b *budget) trie(list []string, bytes bool) *trie {
	t := &trie{children: []map[rune]int32{{}}, ends: [][]int32{nil}}
	var used []rune
	for i, text := range list {
		n := int32(0)
		b.spend(len(text))
		for _, r := range runesOf(text, bytes) {
			to, ok := t.children[n][r]
			if !ok {
				to = int32(len(t.children))
				t.children[n][r] = to
				t.children, t.ends, used = append(t.children, map[rune]int32{}), append(t.ends, nil), append(used, r)
			}
			n = to
		}
		t.ends[n] = append(t.ends[n], int32(i))
	}
	slices.Sort(used)
	used = slices.Compact(used)
	cuts := make([]rune, 0, 2*len(used))
	for _, r := range used {
		cuts = append(cuts, r, r+1)
	}
	t.alphabet = everything().divide(b, cuts, func(_ uint16, r rune) uint32 {
		if i, found := slices.BinarySearch(used, r); found {
			return uint32(i) + 1
		}
		return 0
	})
	return t
}

func (t *trie) child(n int32, r rune) (int32, bool) {
	to, ok := t.children[n][r]
	return to, ok
}

func runesOf(text string, bytes bool) []rune {
	if !bytes {
		return []rune(text)
	}
	out := make([]rune, len(text))
	for i := range len(text) {
		out[i] = rune(text[i])
	}
	return out
}
