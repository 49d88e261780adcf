package token

import (
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// AtLeast returns a lower bound on the number of tokens of text. It looks at each byte once and allocates nothing, so that
// a text that is far too long is cheap to refuse.
//
// A byte adds one over the length of the longest token that contains it. A token of n bytes covers n bytes that each add at
// most 1/n, so together they add at most one.
//
// Characters that may be composed with others, and white space that a token beside it may take with it, add nothing.
func (v *Vocab) AtLeast(text string) int {
	var sum float64
	add := func(part string) {
		for i := range len(part) {
			sum += v.share[part[i]]
		}
	}
	words := add
	if v.strips != nil {
		words = func(part string) {
			for word := range strings.FieldsFuncSeq(part, unicode.IsSpace) {
				add(word)
			}
		}
	}
	if !v.composes() {
		words(text)
		text = ""
	}
	for text != "" {
		n, _ := norm.NFC.SpanString(text, true)
		words(text[:n])
		if text = text[n:]; text != "" {
			text = text[max(norm.NFC.NextBoundaryInString(text, true), 1):]
		}
	}
	return int(sum * (1 - 1e-9)) // sums are rounded
}

// shareOut fills share. If pieces write a space as U+2581, a text may hold either. So the lengths of pieces count with
// spaces for the byte of a space, and with U+2581, which makes them no shorter, for all other bytes.
func (v *Vocab) shareOut() {
	var longest [256]int
	enter := func(piece string) {
		for i := range len(piece) {
			longest[piece[i]] = max(longest[piece[i]], len(piece))
		}
		if n := strings.Count(piece, space); !v.byteLevel() && n > 0 {
			longest[' '] = max(longest[' '], len(piece)-n*(len(space)-1))
		}
	}
	for t := range v.pieces {
		enter(v.becomes(t))
	}
	if v.written != nil {
		for _, w := range v.written.list {
			enter(w.text)
		}
	}
	if !v.byteLevel() {
		enter(space) // without a piece for it, a space is a token of one byte
	}
	for b := range longest {
		if v.share[b] = 0; v.bytes[b] >= 0 { // others may become nothing
			v.share[b] = 1 / float64(max(longest[b], 1))
		}
	}
}
