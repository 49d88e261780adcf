package bodies

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

// counts are what a body holds, by which the memory is known that it takes when it is decoded.
type counts struct {
	nested int // objects and arrays that are elements of arrays
	values int // all values but numbers in arrays
}

// level is an object or array that is open.
type level struct {
	kind   byte   // '{' or '['
	at     int    // where the name of the field under way begins in path
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

// count counts a value that begins; false: it is one too many.
func (s *source) count(c byte) bool {
	if len(s.open) == 0 {
		return true
	}
	top := &s.open[len(s.open)-1]
	inArray, number := top.kind == '[', c == '-' || '0' <= c && c <= '9'
	top.n++
	if !inArray || !number || s.limits.numbers {
		s.counts.values++
	}
	if inArray && (c == '{' || c == '[') {
		if s.counts.nested++; s.limits.numbers && s.limits.Nested != nil {
			s.limits.Nested(int64(s.counts.nested))
		}
	}
	what, most := "", 0
	switch {
	case s.counts.nested > maxNested:
		what, most = "the body has more than %d objects and arrays in arrays: %.100s is one too many", maxNested
	case !inArray && top.n > maxNested:
		what, most = "an object of the body has more than %d fields: %.100s is one too many", maxNested
	case s.counts.values > maxValues:
		what, most = "the body has more than %d values: %.100s is one too many", maxValues
	default:
		return true
	}
	s.full = true
	where := s.where()
	first, _, _ := strings.Cut(where, ".")
	first, _, _ = strings.Cut(first, "[")
	s.fail(bad(first, what, most, where))
	return false
}

// where returns the place of the value under way, such as messages[3].role.
func (s *source) where() string {
	out := ""
	for i, l := range s.open {
		end := len(s.path)
		if i+1 < len(s.open) {
			end = s.open[i+1].at
		}
		if l.kind == '{' {
			out = join(out, string(s.path[l.at:min(end, l.at+maxName)]))
		} else {
			out = element(out, l.n-1)
		}
	}
	return out
}
