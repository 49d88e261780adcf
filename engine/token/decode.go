package token

import (
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// Decode returns the text of tokens; bytes that are not UTF-8 stay as they are. If the model's
// texts begin with an added space, one leading space is left out: Decode undoes Encode.
func (v *Vocab) Decode(tokens []tandem.Token) string {
	var out []byte
	for _, t := range tokens {
		out = v.AppendBytes(out, t)
	}
	if v.spacePrefix && len(out) > 0 && out[0] == ' ' {
		out = out[1:]
	}
	return string(out)
}

// Decoder turns a stream of tokens into text, character by character: an incomplete character waits
// for its other bytes, and each byte that is not UTF-8 becomes U+FFFD. Not safe for concurrent
// use.
type Decoder struct {
	v       *Vocab
	begun   bool   // something was printed, so a leading space is no longer dropped
	pending []byte // the first bytes of a character
}

// NewDecoder returns a decoder for the tokens that follow prev. If prev prints anything, the next token
// keeps its leading space; a character that prev left incomplete comes out whole.
func NewDecoder(v *Vocab, prev ...tandem.Token) *Decoder {
	d := &Decoder{v: v, begun: !v.spacePrefix}
	for _, t := range prev {
		d.add(t)
		d.pending = d.pending[whole(d.pending):]
	}
	d.pending = append([]byte(nil), d.pending...)
	return d
}

// Next returns the text that t completes, which is valid UTF-8 and often empty.
func (d *Decoder) Next(t tandem.Token) string {
	d.add(t)
	n := whole(d.pending)
	text := valid(d.pending[:n])
	d.pending = d.pending[:copy(d.pending, d.pending[n:])]
	return text
}

// Flush returns what is left of an incomplete character, as U+FFFD.
func (d *Decoder) Flush() string {
	text := valid(d.pending)
	d.pending = d.pending[:0]
	return text
}

func (d *Decoder) add(t tandem.Token) {
	n := len(d.pending)
	d.pending = d.v.AppendBytes(d.pending, t)
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

// valid returns b as text, with U+FFFD for each byte that is not part of a character.
func valid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}
