package oai

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

const (
	maxFields = 1024     // of one object
	maxName   = 4 << 10  // bytes of a field's name
	maxSmall  = 64 << 10 // bytes of a value other than a prompt's text; a longer one is cut, and then refused
	window    = 8 << 10  // bytes
)

// Limits bound what is kept of a body, and say what becomes of fields without an effect.
type Limits struct {
	Text    int               // bytes of one prompt, or of all messages
	Tokens  int               // positions of a session; a prompt needs fewer
	Whole   bool              // a prompt may have all positions: nothing is generated
	Strict  bool              // refuse fields that would be ignored
	Ignored func(name string) // is called with the name of each field that is ignored, perhaps several times; may be nil

	Reads func(name string) bool // whether the chat template reads a variable; nil: not known
	Names map[string]string      // what the client calls fields, where the body was made of another API's
}

// most returns how many tokens a prompt may have.
func (l Limits) most() int {
	if l.Whole {
		return l.Tokens
	}
	return l.Tokens - 1
}

// ignore notes a field that is ignored.
func (l Limits) ignore(name string) {
	if l.Ignored != nil {
		l.Ignored(or(l.Names[name], name))
	}
}

// source reads a body once, from front to back, while it arrives, and keeps only what it is asked for. Its methods
// are called where a value begins and end after it. Once the body ends or is wrong they find nothing more; the reader
// asks for outcome in the end.
type source struct {
	in     checked
	limits Limits
	buf    []byte // the bytes read last
	at     int    // position in buf: what is before is used
	err    error  // why nothing follows buf
	kept   []byte // of raw
	unseen unseen // of the message that is read
}

func newSource(body io.Reader, l Limits) *source {
	return &source{in: checked{from: body}, limits: l, buf: make([]byte, 0, window)}
}

// outcome reads the rest of the body and returns what is wrong with it as a whole, else err, which is what was found in it.
func (s *source) outcome(err error) error {
	own := err != nil && (s.err == nil || s.at < len(s.buf)) // it was not found because the body ends here
	for s.err == nil {
		s.buf, s.at = s.buf[:0], 0
		s.fill()
	}
	if errors.Is(s.err, io.EOF) || s.in.g.full && own {
		return err
	}
	return s.err
}

// fill reads more after the rest of buf.
func (s *source) fill() {
	n := copy(s.buf[:cap(s.buf)], s.buf[s.at:])
	s.buf, s.at = s.buf[:n], 0
	if s.err == nil {
		n, s.err = s.in.Read(s.buf[n:cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
	}
}

// have reports whether n more bytes are there, reading if need be.
func (s *source) have(n int) bool {
	for len(s.buf)-s.at < n && s.err == nil {
		s.fill()
	}
	return len(s.buf)-s.at >= n
}

// peek returns the next byte that is not white space, 0 if none comes.
func (s *source) peek() byte {
	for s.have(1) {
		switch c := s.buf[s.at]; c {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return c
		}
	}
	return 0
}

// kind returns the kind of the next value, in words.
func (s *source) kind() string {
	switch s.peek() {
	case 0:
		return "nothing"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

func (s *source) isNull() bool { return s.kind() == "null" }

// raw returns the next value as written, valid until the next call. If it is longer than most bytes, raw returns the
// beginning followed by "…", which is not JSON.
func (s *source) raw(most int) []byte {
	s.kept = s.kept[:0]
	depth, inString, cut := 0, false, false
	for first := s.peek(); s.have(1); first = 0 {
		c := s.buf[s.at]
		if depth == 0 && !inString && first == 0 && strings.IndexByte(",]} \t\r\n", c) >= 0 {
			break // behind a number, true, false or null
		}
		n := 1
		switch {
		case inString && c == '\\':
			s.have(2)
			n = min(2, len(s.buf)-s.at)
			fallthrough
		case inString && c != '"':
			n = max(n, stringRun(s.buf[s.at:]))
		case c == '"':
			inString = !inString
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if !cut {
			keep := min(n, most-len(s.kept))
			s.kept = append(s.kept, s.buf[s.at:s.at+keep]...)
			cut = keep < n
		}
		s.at += n
		if depth == 0 && !inString && (c == '"' || c == '}' || c == ']') {
			break
		}
	}
	if cut {
		s.kept = append(s.kept[:whole(s.kept)], "…"...)
	}
	return s.kept
}

// unescapedRun returns how many bytes of a string come before an escape or its end.
func unescapedRun(p []byte) int {
	for i, c := range p {
		if c == '"' || c == '\\' {
			return i
		}
	}
	return len(p)
}

// stringRun returns how many bytes of a string come before its end or an escape that is cut.
func stringRun(p []byte) int {
	for i := 0; ; {
		i += unescapedRun(p[i:])
		if i+1 >= len(p) || p[i] == '"' {
			return min(i, len(p))
		}
		i += 2
	}
}

// whole returns how many bytes of b are complete characters.
func whole(b []byte) int {
	for n := len(b); n > 0 && len(b)-n < utf8.UTFMax; n-- {
		if r, size := utf8.DecodeLastRune(b[:n]); r != utf8.RuneError || size > 1 {
			return n
		}
	}
	return len(b)
}

// digits reads the next value if it is a short number of digits alone that is in buf already, as most are.
func (s *source) digits() (n int, ok bool) {
	s.peek()
	for i, c := range s.buf[s.at:] {
		switch {
		case '0' <= c && c <= '9' && i < 9:
			n = 10*n + int(c-'0')
		case i > 0 && (c == ',' || c == ']' || c == '}'):
			s.at += i
			return n, true
		default:
			return 0, false
		}
	}
	return 0, false
}

// skip passes the next value.
func (s *source) skip() { s.raw(0) }

// unknown passes the value of a field that is not known; if it has one, the field is ignored under a name without the numbers of elements.
// Errors: Unsupported, if the server is strict.
func (s *source) unknown(full, name string) error {
	if s.limits.Strict {
		return unsupported(full, "unknown field %.100q: tandem does not support it", full)
	}
	if !s.isNull() {
		s.limits.ignore(name)
	}
	s.skip()
	return nil
}

// show returns the next value for an error message.
func (s *source) show() string { return show(s.raw(maxSmall)) }

// show returns a value for an error message.
func show(raw []byte) string {
	const most = 50
	if raw = bytes.TrimSpace(raw); len(raw) <= most {
		return string(raw)
	}
	return string(raw[:whole(raw[:most])]) + "…"
}

// text returns the next value, which is a string, and its length in bytes; if it is longer than most, only the length.
func (s *source) text(most int) (string, int) {
	var b strings.Builder
	n := s.textTo(&b, most)
	if n > most {
		return "", n
	}
	return b.String(), n
}

// textTo appends the next value, which is a string, to b, unless it is longer than most, and returns its length in bytes.
func (s *source) textTo(b *strings.Builder, most int) (n int) {
	put := func(p []byte) {
		if n += len(p); n <= most {
			b.Write(p)
		}
	}
	s.peek()
	for s.at++; s.have(1); {
		rest := s.buf[s.at:]
		end := unescapedRun(rest)
		switch {
		case end == len(rest):
			put(rest)
			s.at = len(s.buf)
		case rest[end] == '"':
			put(rest[:end])
			s.at += end + 1
			return n
		default:
			put(rest[:end])
			s.at += end
			var one [utf8.UTFMax]byte
			put(utf8.AppendRune(one[:0], s.escaped()))
		}
	}
	return n
}

// escaped returns the character that is written as an escape.
func (s *source) escaped() rune {
	if !s.have(2) {
		s.at = len(s.buf) // the body ends here
		return utf8.RuneError
	}
	c := s.buf[s.at+1]
	if c != 'u' {
		s.at += 2
		return rune(unescaped(c))
	}
	r := s.code()
	if utf16.IsSurrogate(r) {
		r = utf16.DecodeRune(r, s.code())
	}
	return r
}

// code returns the code of \uXXXX.
func (s *source) code() (r rune) {
	if !s.have(6) {
		s.at = len(s.buf)
		return utf8.RuneError
	}
	r, _ = hexCode(s.buf[s.at:])
	s.at += 6
	return r
}

// object calls each at the value of every field of the next value, in their order. param is the value's own name, "" for
// the body.
func (s *source) object(param string, each func(name string) error) error {
	if s.kind() != "an object" {
		return bad(param, "%s is %s: want an object", param, s.show())
	}
	seen := 0
	for s.at++; ; {
		switch s.peek() {
		case '}':
			s.at++
			return nil
		case ',':
			s.at++
			continue
		case 0:
			return nil // outcome says why
		}
		name, n := s.text(maxName)
		switch {
		case n > maxName:
			return bad(param, "%s has a field with a name of %d bytes: at most %d allowed", or(param, "the body"), n, maxName)
		case seen == maxFields:
			return bad(param, "%s has more than %d fields", or(param, "the body"), maxFields)
		}
		seen++
		s.peek()
		s.at++ // the colon
		if s.peek() == 0 {
			return nil
		}
		if err := each(name); err != nil {
			return err
		}
	}
}

// array calls each at every element of the next value, at most most of them.
func (s *source) array(param string, most int, each func(i int) error) error {
	if s.kind() != "an array" {
		return bad(param, "%s is %s: want an array", param, s.show())
	}
	s.at++
	for i := 0; ; {
		switch s.peek() {
		case ']':
			s.at++
			return nil
		case ',':
			s.at++
			continue
		case 0:
			return nil // outcome says why
		}
		if i == most {
			return bad(param, "%s has more than %d elements", param, most)
		}
		if err := each(i); err != nil {
			return err
		}
		i++
	}
}

// read reads a body; field returns the reader of a field, nil for none, and the needed field must be present. A field that is
// null counts as missing. Errors: Invalid and Unsupported, with the field; *Error; those of the reader.
func read(body io.Reader, l Limits, needed string, field func(name string) func(string, *source) error) error {
	s := newSource(body, l)
	if kind := s.kind(); kind != "an object" {
		return s.outcome(bad("", "the body is %s: want a JSON object", kind))
	}
	missing := true
	err := s.object("", func(name string) error {
		f := field(name)
		switch {
		case f == nil:
			return s.unknown(name, name)
		case s.isNull():
			s.skip()
			return nil
		}
		missing = missing && name != needed
		return f(name, s)
	})
	if err == nil && missing {
		err = bad(needed, "%s is missing", needed)
	}
	return s.outcome(err)
}

// tooLarge is the error of a text that is longer than may be kept.
func tooLarge(param, what string, n, most int) error {
	e := Refusal(413, "prompt_too_large", "%s has %d bytes: at most %d allowed", what, n, most)
	e.Param = param
	return e
}

// TooLong is the error of a prompt with that many tokens, or more if not exact, which the context does not hold. It begins with OpenAI's
// words: programs find the two numbers by them.
func TooLong(param string, tokens int, exact bool, context int) error {
	least, what := "", "prompt"
	if !exact {
		least = "at least "
	}
	if param == "messages" {
		what = param
	}
	e := Refusal(400, "context_length_exceeded",
		"This model's maximum context length is %d tokens. However, your %s resulted in %s%d tokens. "+
			"At least one token must be left to generate: shorten the %s.", context, what, least, tokens, what)
	e.Param, e.TooLong = param, Excess{tokens, context}
	return e
}

// InputTooLong is the same of a text that is embedded.
func InputTooLong(param string, tokens int, exact bool, context int) error {
	least := ""
	if !exact {
		least = "at least "
	}
	e := Refusal(400, "context_length_exceeded",
		"This model's maximum context length is %d tokens. However, your %s resulted in %s%d tokens: shorten it.", context, param, least,
		tokens)
	e.Param, e.TooLong = param, Excess{tokens, context}
	return e
}

// readTokens reads an array of token ids without checking them against the vocabulary. Ids beyond most are counted, not kept.
func readTokens(name string, s *source, most int) (ids []tandem.Token, n int, err error) {
	ids = []tandem.Token{}
	err = s.array(name, maxPromptTokens, func(i int) error {
		t, err := readToken(name, i, s)
		if n++; n <= most {
			ids = append(ids, t)
		}
		return err
	})
	return ids, n, err
}

func readToken(name string, i int, s *source) (tandem.Token, error) {
	id, err := integerIn(s)
	if err != nil {
		return 0, bad(element(name, i), "%s is %w", element(name, i), err)
	}
	return tandem.Token(id), nil
}
