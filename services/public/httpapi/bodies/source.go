package bodies

import (
	"errors"
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// step says what may follow in a body.
type step uint8

const (
	wantValue step = iota
	wantFirstElement
	wantFirstKey
	wantKey
	wantNext    // a comma, or the end of the object or array
	wantNothing // behind the value
)

// source reads a body once, from front to back, while it arrives, and keeps only what it is asked for. It takes one JSON value in UTF-8
// that nests at most maxDepth deep, holds no more than may be decoded, names no field twice in one object, and escapes no lone UTF-16
// surrogate, which Go would read as U+FFFD: another text than was sent. Its methods are called where a value begins and end after it. Once
// the body ends or is wrong they find nothing more; the reader asks for outcome in the end.
type source struct {
	from   io.Reader
	limits Limits
	buf    []byte // the bytes read last
	at     int    // position in buf: what is before is used
	before int64  // bytes of the body in front of buf
	err    error  // why nothing follows buf
	one    []byte // a character that was written as an escape
	unseen unseen // parts of the message under way that are no text

	want    step
	open    []level // objects and arrays, the outermost first
	path    []byte  // the names of the fields under way, one behind another
	names   names
	objects uint64
	counts  counts
	full    bool // the error is that the body holds too much

	keep int    // most bytes in kept; below 0: nothing is kept
	kept []byte // the value that is read, as it is written
	cut  bool   // kept is not all of it
}

const window = 8 << 10 // bytes

func newSource(body io.Reader, l Limits) *source {
	return &source{from: body, limits: l, buf: make([]byte, 0, window), keep: -1}
}

// outcome reads the rest of the body and returns what is wrong with it as a whole, else err, which is what was found in it.
func (s *source) outcome(err error) error {
	own := err != nil && s.err == nil || err != nil && s.at < len(s.buf) // it was not found because the body ends here
	for s.keep = -1; s.peek() != 0; {
		s.token()
	}
	if errors.Is(s.err, io.EOF) || s.full && own && !s.limits.numbers {
		return err
	}
	return s.err
}

// have reports whether n more bytes are there, reading if need be.
func (s *source) have(n int) bool {
	for len(s.buf)-s.at < n && s.err == nil {
		s.before += int64(s.at)
		rest := copy(s.buf[:cap(s.buf)], s.buf[s.at:])
		s.buf, s.at = s.buf[:rest], 0
		n, err := s.from.Read(s.buf[rest:cap(s.buf)])
		s.buf, s.err = s.buf[:rest+n], err
	}
	return len(s.buf)-s.at >= n
}

// offset returns how many bytes stand before the next one.
func (s *source) offset() int64 { return s.before + int64(s.at) }

// pass goes on behind n bytes, and keeps them if that is asked for.
func (s *source) pass(n int) {
	if s.keep >= 0 {
		keep := min(n, s.keep-len(s.kept))
		s.kept = append(s.kept, s.buf[s.at:s.at+keep]...)
		s.cut = s.cut || keep < n
	}
	s.at += n
}

// fail ends the reading: err is what is wrong with the body. The rest of it is read: a client that is still sending would see a broken
// connection, and no answer.
func (s *source) fail(err error) {
	if s.err == nil {
		_, _ = io.Copy(io.Discard, s.from)
	}
	s.buf, s.at, s.err = s.buf[:0], 0, err
}

// ends fails because the body ends within a value, unless it could not be read.
func (s *source) ends() {
	if at := s.before + int64(len(s.buf)); errors.Is(s.err, io.EOF) {
		s.fail(bad("", "the body is not JSON: it ends at byte %d, inside of a value", at))
	}
	s.at = len(s.buf)
}

func (s *source) unexpected(c byte, want string) {
	s.fail(bad("", "the body is not JSON: found %q at byte %d, want %s", c, s.offset(), want))
}

// notAValue fails because of a value that begins with a wrong word.
func (s *source) notAValue(word string) {
	switch {
	case len(s.open) == 0 && word == "\u00ef": // the first byte of a byte order mark, and of no JSON
		s.fail(bad("", "the body is not JSON: it begins with a byte order mark or another character outside of ASCII: want \"{\" first"))
	case len(s.open) == 0:
		s.fail(bad("", "the body is not JSON: it begins with %q at byte %d: want an object, such as {\"prompt\": \"hello\"}", word,
			s.offset()))
	default:
		s.fail(bad("", "the body is not JSON: found %q at byte %d, want a value: an object, an array, a number, a text in double quotes, "+
			"true, false or null", word, s.offset()))
	}
}

// peek returns the first byte of what comes next: of a value, of the name of a field, or the end of an object or array. 0: nothing comes.
func (s *source) peek() byte {
	for {
		if !s.have(1) {
			switch {
			case s.want == wantValue && len(s.open) == 0 && errors.Is(s.err, io.EOF):
				s.fail(bad("", "the body is empty: want a JSON object"))
			case s.want != wantNothing:
				s.ends()
			}
			return 0
		}
		c := s.buf[s.at]
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			s.pass(1)
			continue
		case s.want == wantNext && c == ',':
			s.pass(1)
			if s.want = wantValue; s.open[len(s.open)-1].kind == '{' {
				s.want = wantKey
			}
			continue
		case s.fits(c):
			return c
		}
		return 0
	}
}

// fits checks what comes next by its first byte.
func (s *source) fits(c byte) bool {
	object := len(s.open) > 0 && s.open[len(s.open)-1].kind == '{'
	switch s.want {
	case wantNothing:
		s.fail(bad("", "the body goes on at byte %d, after the end of the JSON value", s.offset()))
		return false
	case wantNext:
		switch {
		case c == '}' && object || c == ']' && !object:
			return true
		case object:
			s.unexpected(c, "a comma or '}'")
		default:
			s.unexpected(c, "a comma or ']'")
		}
		return false
	case wantFirstKey, wantKey:
		if c == '"' || c == '}' && s.want == wantFirstKey {
			return true
		}
		s.unexpected(c, "the name of a field in double quotes")
		return false
	}
	if strings.IndexByte(`{["tfn-0123456789`, c) >= 0 || c == ']' && s.want == wantFirstElement {
		return true
	}
	s.notAValue(string(rune(c)))
	return false
}

// ended goes on behind a value.
func (s *source) ended() {
	if s.want = wantNext; len(s.open) == 0 {
		s.want = wantNothing
	}
}

// token passes what comes next: the begin or the end of an object or array, the name of a field with its colon, or any other value.
func (s *source) token() {
	switch c := s.peek(); {
	case c == 0:
	case c == '}' || c == ']':
		s.pass(1)
		last := len(s.open) - 1
		s.path, s.open = s.path[:s.open[last].at], s.open[:last]
		s.ended()
	case s.want == wantFirstKey || s.want == wantKey:
		s.name()
	case !s.count(c):
	case c == '{' || c == '[':
		if len(s.open) == maxDepth {
			s.fail(bad("", "the body nests more than %d deep at byte %d", maxDepth, s.offset()))
			return
		}
		s.pass(1)
		s.objects++
		s.open = append(s.open, level{kind: c, at: len(s.path), object: s.objects})
		if s.want = wantFirstKey; c == '[' {
			s.want = wantFirstElement
		}
	case c == '"':
		for s.pass(1); len(s.piece()) > 0; {
		}
		s.ended()
	case c == 't':
		s.literal("true")
	case c == 'f':
		s.literal("false")
	case c == 'n':
		s.literal("null")
	default:
		s.number()
	}
}

// name reads the name of a field, and the colon behind it.
func (s *source) name() (name []byte) {
	top := s.open[len(s.open)-1]
	s.path = s.path[:top.at]
	s.pass(1)
	for p := s.piece(); len(p) > 0; p = s.piece() {
		s.path = append(s.path, p...)
	}
	name = s.path[top.at:]
	if s.ended(); s.have(1) && !s.names.add(top.object, name) {
		s.fail(bad(s.where(), "%.100s is there twice: want it once", s.where()))
	}
	for s.have(1) && strings.IndexByte(" \t\r\n", s.buf[s.at]) >= 0 {
		s.pass(1)
	}
	switch {
	case !s.have(1):
		s.ends()
	case s.buf[s.at] != ':':
		s.unexpected(s.buf[s.at], "a colon")
	default:
		s.pass(1)
		s.want = wantValue
	}
	return name
}

// piece returns some characters of the string under way, valid until the next call; none behind its end, which it passes.
func (s *source) piece() []byte {
	if !s.have(1) {
		s.ends()
		return nil
	}
	rest := s.buf[s.at:]
	if n := plainRun(rest); n > 0 {
		s.pass(n)
		return rest[:n]
	}
	switch c := rest[0]; {
	case c == '"':
		s.pass(1)
	case c == '\\':
		return s.escape()
	case c < ' ':
		s.fail(bad("", "the body is not JSON: a control character in a string at byte %d: want \\u%04x", s.offset(), c))
	case !s.have(utf8.UTFMax) && !utf8.FullRune(s.buf[s.at:]) && !errors.Is(s.err, io.EOF):
		s.at = len(s.buf) // the rest of the character could not be read
	case plainRun(s.buf[s.at:]) > 0:
		return s.piece()
	default:
		s.fail(bad("", "the body is not valid UTF-8 at byte %d", s.offset()))
	}
	return nil
}

// plainRun returns how many bytes at the beginning of p are whole characters of a string other than escapes.
func plainRun(p []byte) int {
	for i := 0; ; {
		for i < len(p) && p[i] >= ' ' && p[i] < utf8.RuneSelf && p[i] != '"' && p[i] != '\\' {
			i++
		}
		if i == len(p) || p[i] < utf8.RuneSelf {
			return i
		}
		_, n := utf8.DecodeRune(p[i:])
		if n == 1 {
			return i // wrong, or the rest is still to come
		}
		i += n
	}
}

// escape returns the character that is written as an escape.
func (s *source) escape() []byte {
	if !s.have(2) {
		s.ends()
		return nil
	}
	c := s.buf[s.at+1]
	if at := strings.IndexByte(`"\/bfnrt`, c); at >= 0 {
		s.pass(2)
		s.one = append(s.one[:0], "\"\\/\b\f\n\r\t"[at])
		return s.one
	}
	if c != 'u' {
		s.at++
		s.unexpected(c, "one of \"\\/bfnrtu behind a backslash")
		return nil
	}
	at := s.offset()
	r, ok := s.code()
	if ok && utf16.IsSurrogate(r) {
		half := r
		if first := half < 0xdc00; first && !s.have(2) && (!s.have(1) || s.buf[s.at] == '\\') {
			s.ends()
			return nil
		} else if r = utf8.RuneError; first && s.buf[s.at] == '\\' && s.buf[s.at+1] == 'u' {
			var second rune
			second, ok = s.code()
			r = utf16.DecodeRune(half, second)
		}
		if ok && r == utf8.RuneError {
			s.fail(bad("", "the body has half a character at byte %d: \\u%04x", at, half))
			return nil
		}
	}
	if !ok {
		return nil
	}
	s.one = utf8.AppendRune(s.one[:0], r)
	return s.one
}

// code passes \uXXXX.
func (s *source) code() (code rune, ok bool) {
	whole := s.have(6)
	for i, c := range s.buf[s.at+2 : min(s.at+6, len(s.buf))] {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if d < 0 || c < '0' {
			s.at += 2 + i
			s.unexpected(c, "a hexadecimal digit")
			return 0, false
		}
		code = code<<4 | rune(d)
	}
	if !whole {
		s.ends()
		return 0, false
	}
	s.pass(6)
	return code, true
}

// literal passes true, false or null.
func (s *source) literal(word string) {
	for i := 1; i < len(word); i++ {
		switch {
		case !s.have(i + 1):
			s.ends()
			return
		case s.buf[s.at+i] != word[i]:
			s.notAValue(word[:i] + string(rune(s.buf[s.at+i])))
			return
		}
	}
	s.pass(len(word))
	s.ended()
}

// number passes a number.
func (s *source) number() {
	next := func(of string) bool { // passes one of these characters
		if s.have(1) && strings.IndexByte(of, s.buf[s.at]) >= 0 {
			s.pass(1)
			return true
		}
		return false
	}
	digits := func() bool { // passes one digit or more
		if next("0123456789") {
			for next("0123456789") {
			}
			return true
		}
		if s.have(1) {
			s.unexpected(s.buf[s.at], "a digit")
		} else {
			s.ends()
		}
		return false
	}
	next("-")
	if !next("0") && !digits() || next(".") && !digits() {
		return
	}
	if next("eE") {
		if next("+-"); !digits() {
			return
		}
	}
	s.ended()
}
