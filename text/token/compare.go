package token

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Fingerprint returns a hash of the meaning of the ids: pieces, their types, the special ids, the merges
// and pre-tokenizer (which also says whether texts are composed) of a byte-level tokenizer, and the tokens that take white space
// with them. Scores and the flags that only Encode uses are left out. It is the same on every machine. It takes time once.
func (v *Vocab) Fingerprint() uint64 { return v.print() }

// fnv1a is the hash FNV-1a of 64 bits (Fowler, Noll and Vo), which hash/fnv computes in three times the time for small numbers: of a number
// in 8 bytes, each zero byte behind the others only multiplies.
type fnv1a uint64

const (
	fnvBasis fnv1a = 14695981039346656037
	fnvPrime fnv1a = 1099511628211
)

// zeros[n] is the factor of n bytes of zero.
var zeros = func() (of [9]fnv1a) {
	of[0] = 1
	for n := range 8 {
		of[n+1] = of[n] * fnvPrime
	}
	return of
}()

func (h *fnv1a) word(n int64) {
	left := 8
	for u := uint64(n); u != 0; u >>= 8 {
		*h = (*h ^ fnv1a(byte(u))) * fnvPrime
		left--
	}
	*h *= zeros[left]
}

func write[T string | []byte](h *fnv1a, s T) {
	h.word(int64(len(s)))
	for i := range len(s) {
		*h = (*h ^ fnv1a(s[i])) * fnvPrime
	}
}

func (v *Vocab) fingerprint() uint64 {
	h := fnvBasis
	text, word := func(s string) { write(&h, s) }, h.word
	text(v.model)
	word(int64(len(v.pieces)))
	for i, p := range v.pieces {
		text(p)
		word(int64(v.kinds[i]))
	}
	word(int64(v.bos))
	word(int64(v.eos))
	for _, t := range v.declared {
		word(int64(t))
	}
	if v.bpe != nil {
		text(v.bpe.pre.names[0])
		n := len(v.bpe.lines)
		if !v.byteLevel() {
			n = len(v.bpe.table().order)
		}
		word(int64(n))
		v.eachMerge(func(left, right []byte) {
			write(&h, left)
			write(&h, right)
		})
	}
	for _, t := range slices.Sorted(maps.Keys(v.strips)) {
		word(int64(t))
		word(int64(v.strips[t]))
	}
	return uint64(h)
}

// Listing is the part of a vocabulary that Compare needs.
type Listing struct {
	Tokenizer string       // Vocab.Model
	Size      int          // tokens in all
	Pieces    []string     // by id; may end early, but not before the end of the smaller of the two vocabularies
	Kinds     []byte       // types of the same tokens, by their numbers in the file
	EOS       tandem.Token // -1 for none
}

// Listing returns what Compare needs of v. Its pieces are v's: read-only.
func (v *Vocab) Listing() Listing {
	kinds := make([]byte, len(v.kinds))
	for i, k := range v.kinds {
		kinds[i] = byte(k)
	}
	return Listing{Tokenizer: v.model, Size: len(v.pieces), Pieces: v.pieces, Kinds: kinds, EOS: v.eos}
}

// Compare checks whether a model with the vocabulary draft can draft for one with target: every id in both must mean
// the same text. The note says in words what else differs, which can only lower acceptance; "" for nothing. Ids in only
// one of them, types, special ids and whatever only Encode uses may differ, and so may the names of
// entries that both leave unused. Errors: Invalid, naming the first id that differs and both texts.
func Compare(target, draft Listing) (note string, err error) {
	both := min(target.Size, draft.Size)
	for _, l := range []Listing{target, draft} {
		if n := len(l.Pieces); n < both || len(l.Kinds) != n {
			return "", tandem.Errorf(op, tandem.Invalid, "vocabulary of %d tokens lists %d and the types of %d: want %d of both", l.Size, n,
				len(l.Kinds), both)
		}
	}
	first, kinds := 0, 0
	for i := range both {
		if !target.same(draft, i) {
			return "", tandem.Errorf(op, tandem.Invalid, "vocabularies differ: token %d is %.80q in the target and %.80q in the draft",
				i, target.Pieces[i], draft.Pieces[i])
		}
		if target.Kinds[i] != draft.Kinds[i] {
			if kinds++; kinds == 1 {
				first = i
			}
		}
	}
	var notes []string
	if t, d := target.Size, draft.Size; d > t {
		notes = append(notes, fmt.Sprintf("it has %d tokens, the target %d: it never drafts the others", d, t))
	} else if d < t {
		notes = append(notes, fmt.Sprintf("it has %d tokens, the target %d: it reads a stand-in for the others", d, t))
	}
	if target.EOS != draft.EOS {
		notes = append(notes, fmt.Sprintf("its texts end with token %d, the target's with %d (-1: none)", draft.EOS, target.EOS))
	}
	if kinds > 0 {
		notes = append(notes, fmt.Sprintf("%d tokens have another type, the first is token %d, %.80q: type %d instead of %d",
			kinds, first, target.Pieces[first], draft.Kinds[first], target.Kinds[first]))
	}
	return strings.Join(notes, "; "), nil
}

// same reports whether token i means the same text in both listings: its pieces are equal, it prints the same, or neither uses it.
func (l Listing) same(m Listing, i int) bool {
	if l.Pieces[i] == m.Pieces[i] || kind(l.Kinds[i]) == unused && kind(m.Kinds[i]) == unused {
		return true
	}
	text := l.prints(i)
	return text != "" && text == m.prints(i)
}

// prints returns what token i prints.
func (l Listing) prints(i int) string {
	switch piece := l.Pieces[i]; kind(l.Kinds[i]) {
	case unknown, control:
		return ""
	case single:
		b, _ := parseByte(piece)
		return string([]byte{b})
	default:
		text, _ := printed(l.Tokenizer, kind(l.Kinds[i]), piece)
		return text
	}
}

// StandIn returns the token that a model reads in place of one that it lacks: the unknown token, else the end-of-text
// token, else the first.
func (v *Vocab) StandIn() tandem.Token {
	if i := slices.Index(v.kinds, unknown); i >= 0 {
		return tandem.Token(i)
	}
	return max(v.eos, 0)
}
