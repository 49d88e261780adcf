package chat

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// tok is a token of a template's source. Its kind is "text" (between tags), "name", "string", "number", "end" (of the source), or
// what is written: a delimiter of a tag or an operator.
type tok struct {
	kind string
	val  string // of text, name and string, with escapes resolved
	num  any    // of number: int64, wide or float64
	line int
}

// lexer splits a template's source into tokens. White space follows the settings that chat templates are written for: trim_blocks and
// lstrip_blocks on, one line break at the end dropped. Tokens of text hold what will be printed; comments are dropped. Panics
// with a failure.
type lexer struct {
	src       string
	pos       int
	lineStart bool // the tag before pos took a line break away, or pos is the beginning
	out       []tok
	brackets  []byte // closing brackets still to come

	line, counted int // line number at byte counted
}

func lex(src string) []tok {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), lineStart: true, line: 1}
	for l.pos < len(l.src) {
		l.text()
	}
	l.emit(tok{kind: "end"}, l.pos)
	return l.out
}

func (l *lexer) fail(k tandem.Kind, pos int, format string, args ...any) {
	(&meter{line: 1 + strings.Count(l.src[:pos], "\n")}).fail(k, format, args...)
}

func (l *lexer) emit(t tok, pos int) {
	if len(l.out) == maxTokens {
		l.fail(tandem.Invalid, pos, "the template has more than %d tokens", maxTokens)
	}
	if pos > l.counted {
		l.line, l.counted = l.line+strings.Count(l.src[l.counted:pos], "\n"), pos
	}
	t.line = l.line
	l.out = append(l.out, t)
}

func (l *lexer) emitText(s string, pos int) {
	if s != "" {
		l.emit(tok{kind: "text", val: s}, pos)
	}
}

var (
	tagBegins   = regexp.MustCompile(`\{[{%#]`)
	rawBegins   = regexp.MustCompile(`^\{%[-+]?[\s\v]*raw[\s\v]*(-?)%\}`)
	rawEnds     = regexp.MustCompile(`\{%([-+]?)[\s\v]*endraw[\s\v]*([-+]?)%\}`)
	nameToken   = regexp.MustCompile(`^[_\pL][_\pL\p{Nd}\pM]*`)
	stringToken = regexp.MustCompile(`(?s)^(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')`)
	escapes     = regexp.MustCompile(`(?s)\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)`)
	wholeToken  = regexp.MustCompile(`^(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|[0-9]+)`)
	fractToken  = regexp.MustCompile(`^[0-9]+(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)`)
	operator    = regexp.MustCompile(`^(?:\*\*|//|==|!=|<=|>=|[-+*/%~<>=|,:.()[\]{};])`)
)

// text takes the text up to the next tag, and the tag.
func (l *lexer) text() {
	from := l.pos
	found := tagBegins.FindStringIndex(l.src[from:])
	if found == nil {
		l.emitText(l.src[from:], from)
		l.pos = len(l.src)
		return
	}
	at := from + found[0]
	sign := l.at(at + 2)
	l.emitText(l.before(l.src[from:at], sign, l.src[at+1] != '{'), from)
	l.pos = at + 2
	if sign == '-' || sign == '+' {
		l.pos++
	}
	switch l.src[at+1] {
	case '#':
		l.comment(at)
	case '{':
		l.emit(tok{kind: "{{"}, at)
		l.expression("}}")
	default:
		if raw := rawBegins.FindStringSubmatch(l.src[at:]); raw != nil {
			l.raw(at, len(raw[0]), raw[1])
			return
		}
		l.emit(tok{kind: "{%"}, at)
		l.expression("%}")
	}
}

// before returns text without the white space that the tag behind it takes away.
func (l *lexer) before(text string, sign byte, block bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign != '+' && block: // lstrip_blocks
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.lineStart) && strings.TrimFunc(text[line:], isSpace) == "" {
			return text[:line]
		}
	}
	return text
}

func (l *lexer) at(i int) byte {
	if i < len(l.src) {
		return l.src[i]
	}
	return 0
}

// closed removes the white space after a tag that the end of the tag takes away. trim: the tag takes a line break away.
func (l *lexer) closed(sign byte, trim bool) {
	switch {
	case sign == '-':
		l.spaces()
	case trim && sign != '+' && l.at(l.pos) == '\n': // trim_blocks
		l.pos++
	}
	l.lineStart = l.src[l.pos-1] == '\n'
}

func (l *lexer) spaces() { l.pos = len(l.src) - len(strings.TrimLeftFunc(l.src[l.pos:], isSpace)) }

func (l *lexer) comment(at int) {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		l.fail(tandem.Invalid, at, "a comment has no end: want #}")
	}
	sign := byte(0)
	if i > 0 {
		sign = l.src[l.pos+i-1]
	}
	l.pos += i + 2
	l.closed(sign, true)
}

// raw takes a {% raw %} block as text. Its first tag has n bytes and ends with a sign.
func (l *lexer) raw(at, n int, sign string) {
	l.pos = at + n
	l.closed((sign + " ")[0], false)
	end := rawEnds.FindStringSubmatchIndex(l.src[l.pos:])
	if end == nil {
		l.fail(tandem.Invalid, at, "{%% raw %%} has no {%% endraw %%}")
	}
	body, tag := l.src[l.pos:l.pos+end[0]], l.src[l.pos:]
	l.emitText(l.before(body, (tag[end[2]:end[3]] + " ")[0], true), l.pos)
	l.pos += end[1]
	l.closed((tag[end[4]:end[5]] + " ")[0], true)
}

// expression takes the tokens of a tag and its end.
func (l *lexer) expression(end string) {
	begin := l.pos
	for {
		if l.spaces(); l.pos == len(l.src) {
			l.fail(tandem.Invalid, begin, "a tag has no end: want %s", end)
		}
		if len(l.brackets) == 0 {
			sign := l.src[l.pos]
			at := l.pos
			if sign == '-' || sign == '+' && end == "%}" {
				at++
			} else {
				sign = 0
			}
			if strings.HasPrefix(l.src[at:], end) {
				l.emit(tok{kind: end}, l.pos)
				l.pos = at + 2
				l.closed(sign, end == "%}")
				return
			}
		}
		l.token()
	}
}

// token takes one token of a tag.
func (l *lexer) token() {
	rest := l.src[l.pos:]
	t, n := tok{}, 0
	switch c := rest[0]; {
	case c == '"' || c == '\'':
		if n = len(stringToken.FindString(rest)); n == 0 {
			l.fail(tandem.Invalid, l.pos, "a string has no end: want %q", c)
		}
		t = tok{kind: "string", val: escapes.ReplaceAllStringFunc(rest[1:n-1], l.escape)}
	case c >= '0' && c <= '9':
		t.kind = "number"
		t.num, n = l.number(rest)
	default:
		if n = len(nameToken.FindString(rest)); n > maxName {
			l.fail(tandem.Invalid, l.pos, "a name has %d bytes: want at most %d", n, maxName)
		} else if n > 0 {
			t = tok{kind: "name", val: rest[:n]}
			break
		}
		if n = len(operator.FindString(rest)); n == 0 {
			c, _ := utf8.DecodeRuneInString(rest)
			l.fail(tandem.Invalid, l.pos, "character %q cannot stand in a tag", c)
		}
		t.kind = rest[:n]
		l.bracket(c)
	}
	l.emit(t, l.pos)
	l.pos += n
}

// bracket keeps the stack of open brackets.
func (l *lexer) bracket(c byte) {
	if i := strings.IndexByte("([{", c); i >= 0 {
		if len(l.brackets) == maxNest {
			l.fail(tandem.Invalid, l.pos, "more than %d brackets inside one another", maxNest)
		}
		l.brackets = append(l.brackets, ")]}"[i])
		return
	}
	if strings.IndexByte(")]}", c) < 0 {
		return
	}
	n := len(l.brackets)
	if n == 0 || l.brackets[n-1] != c {
		l.fail(tandem.Invalid, l.pos, "%q closes no bracket", c)
	}
	l.brackets = l.brackets[:n-1]
}

// number reads a whole number or a fraction and returns its length. Behind a dot only whole numbers stand.
func (l *lexer) number(s string) (any, int) {
	written := wholeToken.FindString(s)
	f := fractToken.FindString(s)
	if l.pos > 0 && l.src[l.pos-1] == '.' {
		f = ""
	}
	n := max(len(written), len(f))
	if n < len(s) && s[n] == '_' {
		l.fail(tandem.Unsupported, l.pos, "tandem does not know _ in the number %s", short(s[:n]))
	}
	if f != "" {
		v, _ := strconv.ParseFloat(f, 64) // too large: infinite
		return v, n
	}
	base := 0
	if strings.Trim(written, "0123456789") == "" {
		base = 10
		if written[0] == '0' && strings.Trim(written, "0") != "" {
			l.fail(tandem.Invalid, l.pos, "number %s begins with 0", short(written))
		}
	}
	v, ok := parseInt(written, base)
	if !ok {
		l.fail(tandem.Unsupported, l.pos, "number %s is too long: want at most %d decimal digits, or 64 bits", short(written), maxDigits)
	}
	return v, n
}

// maxDigits bounds how many digits are read of a whole number, as Python does.
const maxDigits = 4300

// parseInt reads a whole number that may have a sign; false if it is none, or too long.
func parseInt(s string, base int) (any, bool) {
	n, err := strconv.ParseInt(s, base, 64)
	if err == nil {
		return n, true
	}
	digits, minus := strings.CutPrefix(strings.TrimPrefix(s, "+"), "-")
	digits = strings.TrimLeft(digits, "0")
	if base != 10 || len(digits) > maxDigits || digits == "" || strings.Trim(digits, "0123456789") != "" {
		return nil, false
	}
	if minus {
		digits = "-" + digits
	}
	return wide(digits), true
}

var plainEscapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", 'b': "\b", 'f': "\f", 'v': "\v", 'a': "\a",
	'\\': "\\", '\'': "'", '"': "\"", '\n': ""}

// escape returns the character of one of Python's escapes in a string. Python keeps a backslash that begins none.
func (l *lexer) escape(e string) string {
	c := e[1]
	if plain, ok := plainEscapes[c]; ok {
		return plain
	}
	base, digits := 16, e[2:]
	switch {
	case '0' <= c && c <= '7':
		base, digits = 8, e[1:]
	case c == 'N' || c >= utf8.RuneSelf:
		l.fail(tandem.Unsupported, l.pos, "tandem does not know %s in a string: want \\u and the character's code", e)
	case c != 'x' && c != 'u' && c != 'U':
		return e
	}
	code, err := strconv.ParseUint(digits, base, 32)
	if err != nil || code > unicode.MaxRune || 0xd800 <= code && code < 0xe000 {
		l.fail(tandem.Invalid, l.pos, "%s is no character", e)
	}
	return string(rune(code))
}
