package token

import (
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// Decode returns the text of tokens; bytes that are not UTF-8 stay as they are. If the model's
// texts begin with an added space, one leading space is left out: Decode undoes Encode.
func (v *Vocab) Decode(tokens []tandem.Token) string { return v.text(tokens, v.AppendBytes) }

// DecodeWritten is Decode with the written form of tokens that print nothing: it undoes EncodeWithControl.
func (v *Vocab) DecodeWritten(tokens []tandem.Token) string { return v.text(tokens, v.AppendWritten) }

// text returns tokens as add writes each, without the added space before the first that prints anything.
func (v *Vocab) text(tokens []tandem.Token, add func([]byte, tandem.Token) []byte) string {
	var out []byte
	begun := !v.spacePrefix
	for _, t := range tokens {
		n := len(out)
		out = add(out, t)
		if !begun && v.has(t) && v.prints[t] != "" {
			begun = true
			if out[n] == ' ' {
				out = append(out[:n], out[n+1:]...)
			}
		}
	}
	return string(out)
}

// AppendWritten appends the written form of t to dst: the text that it prints or, if it prints nothing, its name in the file, such as
// <|im_end|>. An id outside the vocabulary has no written form.
func (v *Vocab) AppendWritten(dst []byte, t tandem.Token) []byte {
	switch {
	case !v.has(t):
		return dst
	case v.prints[t] != "":
		return append(dst, v.prints[t]...)
	case v.byteLevel():
		return append(dst, v.pieces[t]...)
	}
	return append(dst, strings.ReplaceAll(v.pieces[t], space, " ")...)
}

// Texts returns the text of each token, as a decoder of the tokens behind prev prints it.
func (v *Vocab) Texts(prev ...tandem.Token) func(tandem.Token) string {
	return NewDecoder(v, false, prev...).Next
}

// Decoder turns a stream of tokens into text, character by character: an incomplete character waits
// for its other bytes, and what is not UTF-8 becomes U+FFFD as tandem.Lossy says, however the bytes are spread over tokens. Not safe
// for concurrent use.
type Decoder struct {
	v       *Vocab
	written bool
	begun   bool   // something was printed, so a leading space is no longer dropped
	pending []byte // the first bytes of a character
}

// NewDecoder returns a decoder for the tokens that follow prev. If prev prints anything, the next token
// keeps its leading space; a character that prev left incomplete comes out whole. written: tokens that print nothing show by their name.
func NewDecoder(v *Vocab, written bool, prev ...tandem.Token) *Decoder {
	d := &Decoder{v: v, begun: !v.spacePrefix}
	for _, t := range prev {
		d.add(t)
		d.pending = d.pending[whole(d.pending):]
	}
	d.pending = append([]byte(nil), d.pending...)
	d.written = written
	return d
}

// Next returns the text that t completes, which is valid UTF-8 and often empty.
func (d *Decoder) Next(t tandem.Token) string {
	d.add(t)
	n := whole(d.pending)
	text := tandem.Lossy(d.pending[:n])
	d.pending = d.pending[:copy(d.pending, d.pending[n:])]
	return text
}

// Flush returns what is left of an incomplete character, as U+FFFD.
func (d *Decoder) Flush() string {
	text := tandem.Lossy(d.pending)
	d.pending = d.pending[:0]
	return text
}

func (d *Decoder) add(t tandem.Token) {
	n := len(d.pending)
	d.pending = d.v.AppendBytes(d.pending, t)
	if d.written && len(d.pending) == n {
		d.pending = d.v.AppendWritten(d.pending, t)
		return
	}
	if !d.begun && len(d.pending) > n {
		d.begun = true
		if d.pending[0] == ' ' {
			d.pending = d.pending[1:]
		}
	}
}

// whole returns the length of the part of b that more bytes cannot change.
func whole(b []byte) int {
	for i := max(0, len(b)-utf8.UTFMax); i < len(b); i++ {
		if utf8.RuneStart(b[i]) && !utf8.FullRune(b[i:]) {
			return i
		}
	}
	return len(b)
}
