package bodies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

const (
	maxFields = 1024     // fields of one object
	maxName   = 4 << 10  // bytes of a field's name
	maxSmall  = 64 << 10 // bytes of a value other than a prompt's text; a longer one is cut, and then refused
	maxNumber = 1 << 10  // bytes of the longest number that is read
)

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

func (s *source) isNull() bool { return s.peek() == 'n' }

// skip passes the next value.
func (s *source) skip() {
	for depth := len(s.open); s.peek() != 0; {
		if s.token(); len(s.open) <= depth {
			return
		}
	}
}

// raw returns the next value as written, valid until the next call. If it is longer than most bytes, raw returns the
// beginning followed by "…", which is not JSON.
func (s *source) raw(most int) []byte {
	raw, _ := s.taking(most, func() error {
		s.skip()
		return nil
	})
	if s.cut {
		raw = append(raw[:whole(raw)], "…"...)
	}
	return raw
}

// taking returns what read passes as it is written, at most most bytes; cut says that there were more. Within another taking, what is cut
// is cut for both.
func (s *source) taking(most int, read func() error) ([]byte, error) {
	s.peek()
	outer := s.keep
	if outer < 0 {
		s.kept, s.cut = s.kept[:0], false
	}
	from := len(s.kept)
	if s.keep = from + most; outer >= 0 {
		s.keep = min(s.keep, outer)
	}
	err := read()
	s.keep = outer
	return s.kept[from:], err
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

// json returns the next value as written, for longer than the next call. Errors: too large.
func (s *source) json(field, name string, most int) (json.RawMessage, error) {
	raw := s.raw(most)
	if s.cut {
		return nil, tooLarge(field, name, len(raw), most)
	}
	return bytes.Clone(raw), nil
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

// digits reads the next value if it is a short number of digits alone that is in buf already, as most are.
func (s *source) digits() (n int, ok bool) {
	if c := s.peek(); c < '0' || c > '9' {
		return 0, false
	}
	for i, c := range s.buf[s.at:] {
		switch {
		case '0' <= c && c <= '9' && i < 9 && (i == 0 || s.buf[s.at] != '0'):
			n = 10*n + int(c-'0')
		case c == ',' || c == ']' || c == '}':
			if !s.count('0') {
				return 0, true
			}
			s.pass(i)
			s.ended()
			return n, true
		default:
			return 0, false
		}
	}
	return 0, false
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
	if s.peek() != '"' || !s.count('"') {
		return 0
	}
	s.pass(1)
	for p := s.piece(); len(p) > 0; p = s.piece() {
		if n += len(p); n <= most {
			b.Write(p)
		}
	}
	s.ended()
	return n
}

// object calls each at the value of every field of the next value, in their order. param is the value's own name, "" for
// the body.
func (s *source) object(param string, each func(name string) error) error {
	if s.kind() != "an object" {
		return bad(param, "%s is %s: want an object", param, s.show())
	}
	seen := 0
	for s.token(); s.peek() == '"'; seen++ {
		name := string(s.name())
		switch {
		case s.peek() == 0:
			return nil // outcome says why
		case len(name) > maxName:
			return bad(param, "%s has a field with a name of %d bytes: at most %d allowed", or(param, "the body"), len(name), maxName)
		case seen == maxFields:
			return bad(param, "%s has more than %d fields", or(param, "the body"), maxFields)
		}
		if err := each(name); err != nil {
			return err
		}
	}
	s.token()
	return nil
}

// array calls each at every element of the next value, at most most of them.
func (s *source) array(param string, most int, each func(i int) error) error {
	if s.kind() != "an array" {
		return bad(param, "%s is %s: want an array", param, s.show())
	}
	s.token()
	for i := 0; s.peek() != ']' && s.peek() != 0; i++ {
		if i == most {
			return bad(param, "%s has more than %d elements", param, most)
		}
		if err := each(i); err != nil {
			return err
		}
	}
	s.token()
	return nil
}

// fields reads an object whose fields these readers know; those of "" are heard, and ask for nothing. Others are ignored, under a path
// without the numbers of elements. Errors: those of the readers; a name that is another one in other capitals.
func (s *source) fields(at, path string, known readers) error {
	return s.object(at, func(name string) error {
		full := join(at, name)
		switch read, there := known[name]; {
		case there && (read == nil || s.isNull()):
			s.skip()
			return nil
		case there:
			return read(full)
		}
		for right := range known {
			if err := misspelt(full, name, right); err != nil {
				return err
			}
		}
		return s.unknown(full, join(path, name))
	})
}

// misspelt refuses a name that is right but for its capitals.
func misspelt(full, name, right string) error {
	if name != right && strings.EqualFold(name, right) {
		return bad(full, "unknown field %.100s: want %s, in small letters", full, right)
	}
	return nil
}

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

// readers read the fields of an object, by their names.
type readers map[string]func(name string) error

func (s *source) textAt(to *string) func(string) error {
	return func(name string) error { return readText(name, s, to) }
}

func (s *source) longAt(to *string) func(string) error {
	return func(name string) (err error) {
		*to, err = readLong(name, s)
		return err
	}
}

func (s *source) boolAt(to *bool) func(string) error {
	return func(name string) error { return readBool(name, s, to) }
}

func (s *source) jsonAt(to *json.RawMessage) func(string) error {
	return func(name string) (err error) {
		*to, err = s.json(name, name, s.limits.Text)
		return err
	}
}

// readText reads a string other than a prompt.
func readText(param string, s *source, to *string) error {
	if s.kind() != "a string" {
		return bad(param, "%s is %s: want a string", param, s.show())
	}
	text, n := s.text(maxSmall)
	if n > maxSmall {
		return bad(param, "%s has %d bytes: want at most %d", param, n, maxSmall)
	}
	*to = text
	return nil
}

// readLong reads a string as long as a prompt.
func readLong(name string, s *source) (string, error) {
	if s.kind() != "a string" {
		return "", bad(name, "%s is %s: want a string", name, s.show())
	}
	text, n := s.text(s.limits.Text)
	if n > s.limits.Text {
		return "", tooLarge(name, name, n, s.limits.Text)
	}
	return text, nil
}

func readBool(param string, s *source, to *bool) error {
	if s.kind() != "a boolean" {
		return bad(param, "%s is %s: want true or false", param, s.show())
	}
	*to = bytes.HasPrefix(s.raw(maxNumber), []byte("t"))
	return nil
}

func readFloat(param string, s *source, to *float64) error {
	number := s.kind() == "a number"
	raw := s.raw(maxNumber)
	f, err := strconv.ParseFloat(string(raw), 64)
	if !number || err != nil {
		return bad(param, "%s is %s: want a number", param, show(raw))
	}
	*to = f
	return nil
}

// readInt reads an integer of 32 bits, the size on the wire between processes. 16.0 is accepted too.
func readInt(param string, s *source, to *int) error {
	n, err := integerIn(s)
	if err != nil {
		return bad(param, "%s is %w", param, err)
	}
	*to = n
	return nil
}

// integerIn reads the same without a field name. Its error begins with the value.
func integerIn(s *source) (int, error) {
	if n, ok := s.digits(); ok {
		return n, nil
	}
	if s.kind() != "a number" {
		return 0, fmt.Errorf("%s: want an integer", s.show())
	}
	raw := s.raw(maxNumber)
	f, err := strconv.ParseFloat(string(raw), 64)
	switch {
	case err != nil || f != math.Trunc(f):
		return 0, fmt.Errorf("%s: want an integer", show(raw))
	case f < math.MinInt32 || f > math.MaxInt32:
		return 0, fmt.Errorf("%s: want an integer from %d to %d", show(raw), math.MinInt32, math.MaxInt32)
	}
	return int(f), nil
}

// readSeed reads an integer of 64 bits, with a sign or without; -1 and null ask for a random one (ok is false), as in llama.cpp and vLLM.
// 1.0 and 1e3 are integers too.
func readSeed(param string, s *source) (seed uint64, ok bool, err error) {
	number := s.kind() == "a number"
	raw := string(s.raw(maxNumber))
	if n, err := strconv.ParseUint(raw, 10, 64); err == nil {
		return n, true, nil
	}
	if n, err := strconv.ParseInt(raw, 10, 64); err == nil {
		return uint64(n), n != -1, nil
	}
	f, err := strconv.ParseFloat(raw, 64)
	switch {
	case !number || err != nil || !strings.ContainsAny(raw, ".eE") || f != math.Trunc(f) || f < math.MinInt64 || f >= 1<<64:
		return 0, false, bad(param, "%s is %s: want an integer from %d to %d, or none for a random one", param, show([]byte(raw)),
			math.MinInt64, uint64(math.MaxUint64))
	case f < 0:
		return uint64(int64(f)), f != -1, nil
	}
	return uint64(f), true, nil
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

// bad returns the error of a field: what it is, and what would be right.
func bad(param, format string, args ...any) error {
	return &tandem.Error{Op: "", Kind: tandem.Invalid, Field: param, Err: fmt.Errorf(format, args...)}
}

// unsupported returns the error of a field that asks for what tandem does not do.
func unsupported(param, format string, args ...any) error {
	return &tandem.Error{Op: "", Kind: tandem.Unsupported, Field: param, Err: fmt.Errorf(format, args...)}
}

func join(param, name string) string {
	if param == "" {
		return name
	}
	return param + "." + name
}

func element(name string, i int) string { return fmt.Sprintf("%s[%d]", name, i) }

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// compact returns raw without white space outside of strings.
func compact(raw []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return string(raw)
	}
	return b.String()
}

// list returns alternatives as text.
func list(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values[:len(values)-1], ", ") + " or " + values[len(values)-1]
}
