package oai

import (
	"bytes"
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
	wantFirstKey
	wantKey
	wantColon
	wantFirstElement
	wantNext // a comma, or the end of the object or array
	inString
	inEscape
	inHex
	inLiteral
	inMinus // of a number, from here on
	inZero
	inInteger
	inPoint
	inFraction
	inExponent
	inSign
	inPower
	wantNothing // behind the value
)

// grammar checks, byte by byte, that a body is one JSON value in UTF-8, nests at most maxDepth deep, holds no more than may be decoded,
// names no field twice in one object, and escapes no lone UTF-16 surrogate, which Go would read as U+FFFD: another text than was sent.
type grammar struct {
	step    step
	at      int64   // bytes checked
	seen    bool    // something else than white space
	open    []level // objects and arrays, the outermost first
	key     bool    // the string under way is a field's name
	literal string  // the rest of true, false or null
	word    string  // the whole of it

	counts  Counts
	numbers bool   // those in arrays count as values
	full    bool   // the error is that the body holds too much
	path    []byte // the names of the fields under way, one behind another
	names   names
	objects uint64

	more   int // missing bytes of a character
	lo, hi byte
	rune0  int64 // where it begins

	digits  int   // of an escaped code, so far
	code    rune  // of those
	escape0 int64 // where the escape begins
	half    rune  // first half of a pair whose second must follow; 0 for none
	half0   int64
}

// check checks the next bytes and returns how many of them are right. Errors: Invalid, with the place.
func (g *grammar) check(p []byte) (int, error) {
	for i := 0; i < len(p); i++ {
		if g.step == inString && g.more == 0 && g.half == 0 { // most bytes are these
			n := inside(p[i:])
			if g.key {
				g.spell(p[i : i+n])
			}
			i += n
			if g.at += int64(n); i == len(p) {
				break
			}
		}
		if err := g.next(p[i]); err != nil {
			return i, err
		}
		g.at++
	}
	return len(p), nil
}

// inside returns how many bytes at the beginning of p are whole characters of a string and escapes that are right by themselves. Where it
// stops, the grammar goes on byte by byte: it also knows what is wrong.
func inside(p []byte) int {
	for i := 0; ; {
		for i < len(p) && p[i] >= ' ' && p[i] < utf8.RuneSelf && p[i] != '"' && p[i] != '\\' {
			i++
		}
		switch {
		case i == len(p):
			return i
		case p[i] >= utf8.RuneSelf:
			_, n := utf8.DecodeRune(p[i:])
			if n == 1 {
				return i // wrong, or the rest is still to come
			}
			i += n
		default:
			n := escapes(p[i:])
			if n == 0 {
				return i
			}
			i += n
		}
	}
}

// escapes returns how many bytes an escape at the beginning of p has, 0 for none, a wrong one, one that is cut or one of two halves.
func escapes(p []byte) int {
	if len(p) < 2 || p[0] != '\\' {
		return 0
	}
	if p[1] != 'u' {
		if strings.IndexByte("\"\\/bfnrt", p[1]) >= 0 {
			return 2
		}
		return 0
	}
	code, ok := hexCode(p)
	if !ok || utf16.IsSurrogate(code) {
		return 0
	}
	return 6
}

// hexCode reads \uXXXX at the beginning of p.
func hexCode(p []byte) (code rune, ok bool) {
	if len(p) < 6 {
		return 0, false
	}
	for _, c := range p[2:6] {
		d, ok := hexDigit(c)
		if !ok {
			return 0, false
		}
		code = code<<4 | d
	}
	return code, true
}

// spell adds what inside has passed to the name of a field.
func (g *grammar) spell(p []byte) {
	for {
		at := bytes.IndexByte(p, '\\')
		if at < 0 {
			g.path = append(g.path, p...)
			return
		}
		g.path = append(g.path, p[:at]...)
		p = p[at:]
		if n := escapes(p); n == 2 {
			g.path = append(g.path, unescaped(p[1]))
			p = p[n:]
		} else {
			code, _ := hexCode(p)
			g.path = utf8.AppendRune(g.path, code)
			p = p[n:]
		}
	}
}

// end checks that nothing is missing.
func (g *grammar) end() error {
	switch {
	case !g.seen:
		return bad("", "the body is empty: want a JSON object")
	case g.more > 0:
		return bad("", "the body is not valid UTF-8 at byte %d", g.rune0)
	case g.step == wantNothing:
		return nil
	case len(g.open) == 0 && (g.step == inZero || g.step == inInteger || g.step == inFraction || g.step == inPower):
		return nil
	}
	return bad("", "the body is not JSON: it ends at byte %d, inside of a value", g.at)
}

func (g *grammar) next(c byte) error {
	switch g.step {
	case inString:
		return g.character(c)
	case inEscape:
		return g.escape(c)
	case inHex:
		return g.hex(c)
	case inLiteral:
		if c != g.literal[0] {
			return g.notAValue(g.word[:len(g.word)-len(g.literal)]+string(rune(c)), g.at-int64(len(g.word)-len(g.literal)))
		}
		if g.literal = g.literal[1:]; g.literal == "" {
			g.ended()
		}
		return nil
	case inMinus, inZero, inInteger, inPoint, inFraction, inExponent, inSign, inPower:
		if inside, err := g.number(c); inside || err != nil {
			return err
		}
	}
	if c == ' ' || c == '\t' || c == '\n' || c == '\r' {
		return nil
	}
	g.seen = true
	switch g.step {
	case wantFirstElement:
		if c == ']' {
			g.close()
			return nil
		}
		return g.begin(c)
	case wantValue:
		return g.begin(c)
	case wantFirstKey, wantKey:
		if c == '}' && g.step == wantFirstKey {
			g.close()
			return nil
		}
		if c != '"' {
			return g.unexpected(c, "the name of a field in double quotes")
		}
		top := &g.open[len(g.open)-1]
		g.key, g.step, g.path = true, inString, g.path[:top.at]
	case wantColon:
		if c != ':' {
			return g.unexpected(c, "a colon")
		}
		g.step = wantValue
	case wantNext:
		return g.comma(c)
	case wantNothing:
		return bad("", "the body goes on at byte %d, after the end of the JSON value", g.at)
	}
	return nil
}

// begin begins a value.
func (g *grammar) begin(c byte) error {
	if err := g.count(c); err != nil {
		return err
	}
	switch {
	case c == '{' || c == '[':
		if len(g.open) == maxDepth {
			return bad("", "the body nests more than %d deep at byte %d", maxDepth, g.at)
		}
		g.objects++
		g.open = append(g.open, level{kind: c, at: len(g.path), object: g.objects})
		if g.step = wantFirstKey; c == '[' {
			g.step = wantFirstElement
		}
	case c == '"':
		g.key, g.step = false, inString
	case c == '-':
		g.step = inMinus
	case c == '0':
		g.step = inZero
	case '1' <= c && c <= '9':
		g.step = inInteger
	case c == 't':
		g.step, g.word, g.literal = inLiteral, "true", "rue"
	case c == 'f':
		g.step, g.word, g.literal = inLiteral, "false", "alse"
	case c == 'n':
		g.step, g.word, g.literal = inLiteral, "null", "ull"
	default:
		return g.notAValue(string(rune(c)), g.at)
	}
	return nil
}

// comma handles the byte after a value inside an object or array.
func (g *grammar) comma(c byte) error {
	in := g.open[len(g.open)-1].kind
	switch {
	case c == ',' && in == '{':
		g.step = wantKey
	case c == ',':
		g.step = wantValue
	case c == '}' && in == '{' || c == ']' && in == '[':
		g.close()
	case in == '{':
		return g.unexpected(c, "a comma or '}'")
	default:
		return g.unexpected(c, "a comma or ']'")
	}
	return nil
}

func (g *grammar) close() {
	last := len(g.open) - 1
	g.path, g.open = g.path[:g.open[last].at], g.open[:last]
	g.ended()
}

// ended goes on after a value.
func (g *grammar) ended() {
	if g.step = wantNext; len(g.open) == 0 {
		g.step = wantNothing
	}
}

// number handles a byte of a number; inside is false for a byte after it.
func (g *grammar) number(c byte) (inside bool, err error) {
	digit := '0' <= c && c <= '9'
	switch {
	case g.step == inMinus && c == '0':
		g.step = inZero
	case g.step == inMinus && digit, g.step == inInteger && digit:
		g.step = inInteger
	case (g.step == inZero || g.step == inInteger) && c == '.':
		g.step = inPoint
	case (g.step == inPoint || g.step == inFraction) && digit:
		g.step = inFraction
	case (g.step == inZero || g.step == inInteger || g.step == inFraction) && (c == 'e' || c == 'E'):
		g.step = inExponent
	case g.step == inExponent && (c == '+' || c == '-'):
		g.step = inSign
	case (g.step == inExponent || g.step == inSign || g.step == inPower) && digit:
		g.step = inPower
	case g.step == inMinus || g.step == inPoint || g.step == inExponent || g.step == inSign:
		return true, g.unexpected(c, "a digit")
	default:
		g.ended()
		return false, nil
	}
	return true, nil
}

// character handles a byte of a string.
func (g *grammar) character(c byte) error {
	switch {
	case g.half != 0 && c != '\\':
		return g.halfCharacter(g.half, g.half0)
	case g.more > 0:
		if c < g.lo || c > g.hi {
			return bad("", "the body is not valid UTF-8 at byte %d", g.rune0)
		}
		g.more--
		g.lo, g.hi = 0x80, 0xbf
		g.spelled(c)
	case c == '\\':
		g.step, g.escape0 = inEscape, g.at
	case c == '"' && g.key:
		return g.named()
	case c == '"':
		g.ended()
	case c < ' ':
		return bad("", "the body is not JSON: a control character in a string at byte %d: want \\u%04x", g.at, c)
	case c >= utf8.RuneSelf:
		g.spelled(c)
		return g.lead(c)
	}
	return nil
}

// lead begins a character of several bytes (table 3-7 of the Unicode standard).
func (g *grammar) lead(c byte) error {
	g.rune0, g.lo, g.hi = g.at, 0x80, 0xbf
	switch {
	case 0xc2 <= c && c <= 0xdf:
		g.more = 1
	case 0xe0 <= c && c <= 0xef:
		g.more = 2
	case 0xf0 <= c && c <= 0xf4:
		g.more = 3
	default:
		return bad("", "the body is not valid UTF-8 at byte %d", g.at)
	}
	switch c {
	case 0xe0:
		g.lo = 0xa0
	case 0xed:
		g.hi = 0x9f
	case 0xf0:
		g.lo = 0x90
	case 0xf4:
		g.hi = 0x8f
	}
	return nil
}

// escape handles the byte after a backslash.
func (g *grammar) escape(c byte) error {
	if g.half != 0 && c != 'u' {
		return g.halfCharacter(g.half, g.half0)
	}
	switch c {
	case 'u':
		g.step, g.digits, g.code = inHex, 0, 0
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		g.step = inString
		g.spelled(unescaped(c))
	default:
		return g.unexpected(c, "one of \"\\/bfnrtu behind a backslash")
	}
	return nil
}

// hex handles one of the four digits of an escaped code.
func (g *grammar) hex(c byte) error {
	d, ok := hexDigit(c)
	if !ok {
		return g.unexpected(c, "a hexadecimal digit")
	}
	g.code = g.code<<4 | d
	if g.digits++; g.digits < 4 {
		return nil
	}
	g.step = inString
	switch surrogate := utf16.IsSurrogate(g.code); {
	case g.half != 0:
		r := utf16.DecodeRune(g.half, g.code)
		if r == utf8.RuneError {
			return g.halfCharacter(g.half, g.half0)
		}
		g.half = 0
		g.spelled(utf8.AppendRune(nil, r)...)
	case surrogate && g.code >= 0xdc00:
		return g.halfCharacter(g.code, g.escape0)
	case surrogate:
		g.half, g.half0 = g.code, g.escape0
	default:
		g.spelled(utf8.AppendRune(nil, g.code)...)
	}
	return nil
}

// unescaped returns the character that stands for itself or for a control character behind a backslash.
func unescaped(c byte) byte {
	if i := strings.IndexByte("bfnrt", c); i >= 0 {
		return "\b\f\n\r\t"[i]
	}
	return c
}

func hexDigit(c byte) (rune, bool) {
	switch {
	case '0' <= c && c <= '9':
		return rune(c - '0'), true
	case 'a' <= c && c <= 'f':
		return rune(c-'a') + 10, true
	case 'A' <= c && c <= 'F':
		return rune(c-'A') + 10, true
	}
	return 0, false
}

func (g *grammar) halfCharacter(code rune, at int64) error {
	return bad("", "the body has half a character at byte %d: \\u%04x", at, code)
}

func (g *grammar) unexpected(c byte, want string) error {
	return bad("", "the body is not JSON: found %q at byte %d, want %s", c, g.at, want)
}

// notAValue is the error of a value that begins with a wrong word.
func (g *grammar) notAValue(word string, at int64) error {
	switch {
	case len(g.open) == 0 && word == "\u00ef": // the first byte of a byte order mark, and of no JSON
		return bad("", "the body is not JSON: it begins with a byte order mark or another character outside of ASCII: want \"{\" first")
	case len(g.open) == 0:
		return bad("", "the body is not JSON: it begins with %q at byte %d: want an object, such as {\"prompt\": \"hello\"}", word, at)
	}
	return bad("", "the body is not JSON: found %q at byte %d, want a value: an object, an array, a number, a text in double quotes, "+
		"true, false or null", word, at)
}

// checked is a reader of a body that passes on only what grammar has accepted.
type checked struct {
	from io.Reader
	g    grammar
	err  error
}

// Read implements io.Reader. Errors: those of the grammar, io.EOF after a complete body, and those of the reader below.
func (c *checked) Read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.from.Read(p)
	n, c.err = c.g.check(p[:n])
	switch {
	case c.err != nil: // a client that is still sending would see a broken connection, and no answer
		if err == nil {
			_, _ = io.Copy(io.Discard, c.from)
		}
	case errors.Is(err, io.EOF):
		if c.err = c.g.end(); c.err == nil {
			c.err = io.EOF
		}
	default:
		c.err = err
	}
	return n, c.err
}
