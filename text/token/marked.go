package token

import (
	"strings"

	"github.com/tandem-llm/tandem"
)

// Grammars are over bytes, and a control token prints none. So a grammar knows it by its written form between two bytes 0, which no text
// has: a control token never matches by its text alone, nor a text by that of a control token.
const bracket = "\x00"

// AppendMarked appends the bytes by which a grammar knows t to dst: those that it prints or, if it prints none, its written form between
// two bytes 0. ok is false for a token that no grammar can know: one that prints a byte 0.
func (v *Vocab) AppendMarked(dst []byte, t tandem.Token) (out []byte, ok bool) {
	switch {
	case !v.has(t) || strings.Contains(v.prints[t], bracket):
		return dst, false
	case v.prints[t] != "":
		return append(dst, v.prints[t]...), true
	}
	return append(v.AppendWritten(append(dst, bracket...), t), bracket...), true
}

// Mark returns a text that a template or a model writes as a grammar knows it: each control token in it between two bytes 0.
func (v *Vocab) Mark(text string) string {
	var b strings.Builder
	for {
		at, _, n := v.control.find(text)
		b.WriteString(text[:at])
		if n == 0 {
			return b.String()
		}
		b.WriteString(bracket + text[at:at+n] + bracket)
		text = text[at+n:]
	}
}

// EncodeMarked returns the tokens of a text that continues another one, as a grammar knows it. more: the text goes on, in a way that is not
// known, so only those of its tokens are returned that stay the same whatever follows.
func (v *Vocab) EncodeMarked(text string, more bool) (out []tandem.Token) {
	for {
		plain, rest, marked := strings.Cut(text, bracket)
		name, behind, closed := strings.Cut(rest, bracket)
		if !marked || !closed {
			if more || marked {
				return append(out, v.Firm(plain)...)
			}
			return append(out, v.EncodeNext(plain)...)
		}
		out = append(out, v.EncodeNext(plain)...)
		at, id, n := v.control.find(name)
		if at != 0 || n != len(name) {
			return out
		}
		out, text = append(out, id), behind
	}
}
