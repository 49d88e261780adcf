package token

import (
	"encoding/binary"
	"hash/fnv"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Fingerprint returns a hash of what the ids mean: pieces, their types, the special ids, and the merges
// and pre-tokenizer of a byte-level tokenizer. Vocabularies that Diff finds equal have equal fingerprints,
// on every machine.
func (v *Vocab) Fingerprint() uint64 {
	h := fnv.New64a()
	var b [8]byte
	word := func(n int64) {
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
	text := func(s string) {
		word(int64(len(s)))
		h.Write([]byte(s))
	}
	text(v.model)
	word(int64(len(v.pieces)))
	for i, p := range v.pieces {
		text(p)
		word(int64(v.kinds[i]))
	}
	word(int64(v.bos))
	word(int64(v.eos))
	for _, t := range v.ends {
		word(int64(t))
	}
	if v.bpe != nil {
		text(v.bpe.pre.names[0])
		word(int64(len(v.bpe.order)))
		for i := range v.bpe.order {
			left, right := v.mergeText(i)
			text(left)
			text(right)
		}
	}
	return h.Sum64()
}

// Diff returns nil if the ids of a and b mean the same, and otherwise an error of kind Invalid that names
// the first difference. Scores and the flags that only Encode uses do not count.
func Diff(a, b *Vocab) error {
	differ := func(format string, args ...any) error {
		return tandem.Errorf(op, tandem.Invalid, "vocabularies differ: "+format, args...)
	}
	if a.model != b.model {
		return differ("tokenizer %q and %q", a.model, b.model)
	}
	for i := range min(len(a.pieces), len(b.pieces)) {
		if a.pieces[i] != b.pieces[i] {
			return differ("token %d is %.80q and %.80q", i, a.pieces[i], b.pieces[i])
		}
		if a.kinds[i] != b.kinds[i] {
			return differ("token %d, %.80q, is of type %d and %d", i, a.pieces[i], a.kinds[i], b.kinds[i])
		}
	}
	if len(a.pieces) != len(b.pieces) {
		return differ("%d and %d tokens", len(a.pieces), len(b.pieces))
	}
	if a.bos != b.bos {
		return differ("the token that begins a text is %d and %d (-1: none)", a.bos, b.bos)
	}
	if a.eos != b.eos {
		return differ("the token that ends a text is %d and %d (-1: none)", a.eos, b.eos)
	}
	if !slices.Equal(a.ends, b.ends) {
		return differ("the tokens that end a generation are %d and %d", a.ends, b.ends)
	}
	if a.bpe == nil {
		return nil
	}
	if p, q := a.bpe.pre.names[0], b.bpe.pre.names[0]; p != q {
		return differ("pre-tokenizer %q and %q", p, q)
	}
	for i := range min(len(a.bpe.order), len(b.bpe.order)) {
		l, r := a.mergeText(i)
		if l2, r2 := b.mergeText(i); l != l2 || r != r2 {
			return differ("merge %d is %.80q and %.80q", i, []string{l, r}, []string{l2, r2})
		}
	}
	if p, q := len(a.bpe.order), len(b.bpe.order); p != q {
		return differ("%d and %d merges", p, q)
	}
	return nil
}
