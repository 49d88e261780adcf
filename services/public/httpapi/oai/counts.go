package oai

import (
	"hash/maphash"
	"strings"
)

// What a body may hold in all. Decoded, an object in an array takes up to a hundred times the two bytes that it may have.
const (
	maxDepth  = 512      // objects and arrays inside one another
	maxNested = 64 << 10 // objects and arrays that are elements of arrays
	maxValues = 1 << 20  // values of fields and elements of arrays; numbers in arrays count only where tokens do not count by themselves
)

// Counts are what a body holds, by which the memory is known that it takes when it is decoded.
type Counts struct {
	Nested int // objects and arrays that are elements of arrays
	Values int // all values but numbers in arrays
}

// level is an object or array that is open.
type level struct {
	kind   byte   // '{' or '['
	at     int    // in path: where the name of the field under way begins
	n      int    // elements of an array that have begun
	object uint64 // its number
}

// names are the names of the fields of all objects so far, as hashes that nobody outside can know beforehand.
type names struct {
	seen map[uint64]struct{}
	seed maphash.Seed
}

// add adds a name of an object, and reports whether it is new.
func (n *names) add(object uint64, name []byte) bool {
	if n.seen == nil {
		n.seen, n.seed = map[uint64]struct{}{}, maphash.MakeSeed()
	}
	const odd = 0x9e3779b97f4a7c15 // spreads the numbers of objects
	hash := maphash.Bytes(n.seed, name) ^ object*odd
	before := len(n.seen)
	n.seen[hash] = struct{}{}
	return len(n.seen) > before
}

// count counts a value that begins.
func (g *grammar) count(c byte) error {
	if len(g.open) == 0 {
		return nil
	}
	top := &g.open[len(g.open)-1]
	inArray, number := top.kind == '[', c == '-' || '0' <= c && c <= '9'
	top.n++
	if !inArray || !number || g.numbers {
		g.counts.Values++
	}
	if inArray && (c == '{' || c == '[') {
		g.counts.Nested++
	}
	switch {
	case g.counts.Nested > maxNested:
		g.full = true
		return bad(g.first(), "the body has more than %d objects and arrays in arrays: %.100s is one too many", maxNested, g.where())
	case !inArray && top.n > maxNested:
		g.full = true
		return bad(g.first(), "an object of the body has more than %d fields: %.100s is one too many", maxNested, g.where())
	case g.counts.Values > maxValues:
		g.full = true
		return bad(g.first(), "the body has more than %d values: %.100s is one too many", maxValues, g.where())
	}
	return nil
}

// named ends the name of a field.
func (g *grammar) named() error {
	top := g.open[len(g.open)-1]
	if !g.names.add(top.object, g.path[top.at:]) {
		return bad(g.where(), "%.100s is there twice: want it once", g.where())
	}
	g.step = wantColon
	return nil
}

// where returns the place of the value under way, such as messages[3].role.
func (g *grammar) where() string {
	out := ""
	for i, l := range g.open {
		end := len(g.path)
		if i+1 < len(g.open) {
			end = g.open[i+1].at
		}
		if l.kind == '{' {
			out = join(out, string(g.path[l.at:min(end, l.at+maxName)]))
		} else {
			out = element(out, l.n-1)
		}
	}
	return out
}

// first returns the field of the body that is under way.
func (g *grammar) first() string {
	name, _, _ := strings.Cut(g.where(), ".")
	name, _, _ = strings.Cut(name, "[")
	return name
}

// spelled adds bytes to the name of a field, if one is under way.
func (g *grammar) spelled(c ...byte) {
	if g.key {
		g.path = append(g.path, c...)
	}
}
