package calls

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// scan follows a JSON value byte by byte, says where it ends or goes wrong, and repairs what models write and JSON lacks, where it can be
// read in one way only:
//
//   - Line breaks, tabs and other control characters within strings become escapes.
//   - A backslash that begins no escape is a backslash: "\d" is a backslash and a d. A string in which others begin one is read in no way:
//     who writes C:\Users\new has escaped nothing, and who writes \d+\n may have.
//   - A comma behind the last member is dropped; True, False and None are true, false and null.
type scan struct {
	stack            []byte // '{' or '['
	expect           expectation
	comma            bool   // the last byte that is no space is one
	quoted           bool   // within a string
	key              bool   // which is a key
	escape           int    // bytes of an escape that are still to come; of \u negative
	escaped, literal bool   // the string has an escape other than \", a backslash that is none
	word             []byte // a number or literal
}

// expectation is what may come next.
type expectation uint8

const (
	aValue expectation = iota
	aValueOrEnd
	aKey
	aKeyOrEnd
	aColon
	aCommaOrEnd
	nothing // the value is complete
)

// step takes the next byte; out is how it is written. bad: it cannot be there.
func (s *scan) step(c byte, out []byte) (_ []byte, bad bool) {
	if s.quoted {
		return s.inString(c, out)
	}
	if len(s.word) > 0 {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == 'E' || c == '+' || c == '-' || c == '.' {
			s.word = append(s.word, c)
			return append(out, c), len(s.word) > maxWord || !begins(s.word)
		}
		if out, bad = s.ends(out); bad {
			return out, true
		}
	}
	if s.comma && (c == '}' || c == ']') {
		out = append(bytes.TrimRight(out, ","+space), out[len(bytes.TrimRight(out, space)):]...)
		s.expect = aCommaOrEnd
	}
	if s.between(c) {
		return out, true
	}
	s.comma = c == ',' || s.comma && strings.IndexByte(space, c) >= 0
	return append(out, c), false
}

// ends takes the end of a number or literal. bad: it is none.
func (s *scan) ends(out []byte) (_ []byte, bad bool) {
	w, ok := word(string(s.word))
	out = append(out[:len(out)-len(s.word)], w...)
	s.word = s.word[:0]
	s.closed()
	return out, !ok
}

// repaired returns a value in JSON, false if it is none that can be repaired.
func repaired(v string) (string, bool) {
	var s scan
	v = strings.TrimRight(v, space)
	out, bad := make([]byte, 0, len(v)), false
	for i := 0; i < len(v) && !bad; i++ {
		out, bad = s.step(v[i], out)
	}
	if !bad && len(s.word) > 0 {
		out, bad = s.ends(out)
	}
	return string(out), !bad && s.done()
}

// between takes a byte outside of strings and words; true: it cannot be there.
func (s *scan) between(c byte) (bad bool) {
	switch c {
	case ' ', '\n', '\r', '\t':
		return s.expect == nothing
	case '{', '[':
		if s.expect != aValue && s.expect != aValueOrEnd || len(s.stack) == maxDepth {
			return true
		}
		s.stack = append(s.stack, c)
		s.expect = aValueOrEnd
		if c == '{' {
			s.expect = aKeyOrEnd
		}
	case '}', ']':
		open, n := c-2, len(s.stack) // of ASCII: both pairs are two apart
		ends := s.expect == aCommaOrEnd || s.expect == aKeyOrEnd || s.expect == aValueOrEnd
		if !ends || n == 0 || s.stack[n-1] != open {
			return true
		}
		s.stack = s.stack[:n-1]
		s.closed()
	case '"':
		switch s.expect {
		case aValue, aValueOrEnd:
			s.key = false
		case aKey, aKeyOrEnd:
			s.key = true
		default:
			return true
		}
		s.quoted, s.escaped, s.literal = true, false, false
	case ':':
		if s.expect != aColon {
			return true
		}
		s.expect = aValue
	case ',':
		if s.expect != aCommaOrEnd || len(s.stack) == 0 {
			return true
		}
		s.expect = aValue
		if s.stack[len(s.stack)-1] == '{' {
			s.expect = aKey
		}
	default:
		if s.expect != aValue && s.expect != aValueOrEnd {
			return true
		}
		if s.word = append(s.word, c); !begins(s.word) {
			return true
		}
	}
	return false
}

const (
	maxDepth = 200
	maxWord  = 400 // bytes of a number
)

// inString takes a byte within a string.
func (s *scan) inString(c byte, out []byte) (_ []byte, bad bool) {
	hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
	switch {
	case s.escape == 1 && c == 'u':
		s.escape = -4
		return append(out, c), false
	case s.escape == 1 && strings.IndexByte(`"\/bfnrt`, c) >= 0:
		s.escape, s.escaped = 0, s.escaped || c != '"'
		return append(out, c), s.escaped && s.literal
	case s.escape < 0 && hex:
		s.escape++
		s.escaped = s.escaped || s.escape == 0
		return append(out, c), s.escaped && s.literal
	case s.escape != 0: // it was none
		at := len(out)
		if s.escape < 0 {
			at -= 5 + s.escape // behind the backslash: u and the digits so far
		}
		out = slices.Insert(out, at, '\\')
		if s.escape, s.literal = 0, true; s.escaped {
			return out, true
		}
	}
	switch {
	case c == '\\':
		s.escape = 1
	case c == '"':
		s.quoted = false
		if s.expect = aColon; !s.key {
			s.closed()
		}
	case c == '\n':
		return append(out, `\n`...), false
	case c == '\t':
		return append(out, `\t`...), false
	case c < ' ':
		return fmt.Appendf(out, `\u%04x`, c), false
	}
	return append(out, c), false
}

// closed notes the end of a value.
func (s *scan) closed() {
	if s.expect = aCommaOrEnd; len(s.stack) == 0 {
		s.expect = nothing
	}
}

// done reports whether the value, which is no number and no literal, is complete.
func (s *scan) done() bool { return s.expect == nothing }

var literals = []string{"true", "false", "null", "True", "False", "None"}

// begins reports whether a number or a literal may begin so.
func begins(w []byte) bool {
	for _, l := range literals {
		if len(w) <= len(l) && l[:len(w)] == string(w) {
			return true
		}
	}
	return number(w, false)
}

// number reports whether w is a JSON number or, if it need not be whole, the beginning of one.
func number(w []byte, whole bool) bool {
	i := 0
	digits := func() (n int) {
		for ; i < len(w) && w[i] >= '0' && w[i] <= '9'; i++ {
			n++
		}
		return n
	}
	if i < len(w) && w[i] == '-' {
		i++
	}
	at := i
	n := digits()
	if n == 0 || n > 1 && w[at] == '0' {
		return n == 0 && !whole && i == len(w)
	}
	if i < len(w) && w[i] == '.' {
		i++
		if digits() == 0 {
			return !whole && i == len(w)
		}
	}
	if i < len(w) && (w[i] == 'e' || w[i] == 'E') {
		if i++; i < len(w) && (w[i] == '+' || w[i] == '-') {
			i++
		}
		if digits() == 0 {
			return !whole && i == len(w)
		}
	}
	return i == len(w)
}
