package chat

import (
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
	num  any    // of number: int64, *big.Int or float64
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
	(&run{line: l.lineOf(pos)}).fail(k, format, args...)
}

func (l *lexer) lineOf(pos int) int {
	if pos > l.counted {
		l.line += strings.Count(l.src[l.counted:pos], "\n")
		l.counted = pos
	}
	return l.line
}

func (l *lexer) emit(t tok, pos int) {
	if len(l.out) == maxTokens {
		l.fail(tandem.Invalid, pos, "the template has more than %d tokens", maxTokens)
	}
	t.line = l.lineOf(pos)
	l.out = append(l.out, t)
}

func (l *lexer) emitText(s string, pos int) {
	if s != "" {
		l.emit(tok{kind: "text", val: s}, pos)
	}
}

// text takes the text up to the next tag, and the tag.
func (l *lexer) text() {
	from, at := l.pos, l.nextTag(l.pos)
	if at == len(l.src) {
		l.emitText(l.src[from:], from)
		l.pos = at
		return
	}
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
		if l.raw(at) {
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

// nextTag returns where the next "{{", "{%" or "{#" begins at or after from.
func (l *lexer) nextTag(from int) int {
	for at := from; ; at++ {
		i := strings.IndexByte(l.src[at:], '{')
		if i < 0 {
			return len(l.src)
		}
		at += i
		if c := l.at(at + 1); c == '{' || c == '%' || c == '#' {
			return at
		}
	}
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
		l.pos = l.spaces(l.pos)
	case trim && sign != '+' && l.at(l.pos) == '\n': // trim_blocks
		l.pos++
	}
	l.lineStart = l.src[l.pos-1] == '\n'
}

// spaces returns where the white space that begins at i ends.
func (l *lexer) spaces(i int) int {
	return len(l.src) - len(strings.TrimLeftFunc(l.src[i:], isSpace))
}

func (l *lexer) comment(at int) {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		l.fail(tandem.Invalid, at, "a comment has no end: want #}")
	}
	end, sign := l.pos+i, byte(0)
	if i > 0 {
		sign = l.src[end-1]
	}
	l.pos = end + 2
	l.closed(sign, true)
}

// raw takes a whole {% raw %} block, whose name would come next, as text; false if the tag is another one.
func (l *lexer) raw(at int) bool {
	name, ok := strings.CutPrefix(l.src[l.spaces(l.pos):], "raw")
	if !ok {
		return false
	}
	rest := strings.TrimLeftFunc(name, isSpace)
	sign := byte(0)
	if strings.HasPrefix(rest, "-") {
		sign, rest = '-', rest[1:]
	}
	if !strings.HasPrefix(rest, "%}") {
		return false
	}
	l.pos = len(l.src) - len(rest) + 2
	l.closed(sign, false)
	for from := l.pos; ; {
		i := strings.Index(l.src[from:], "{%")
		if i < 0 {
			l.fail(tandem.Invalid, at, "{%% raw %%} has no {%% endraw %%}")
		}
		begin := from + i
		from = begin + 2
		left, right, end := l.endraw(from)
		if end < 0 {
			continue
		}
		l.emitText(l.before(l.src[l.pos:begin], left, true), l.pos)
		l.pos = end
		l.closed(right, true)
		return true
	}
}

// endraw looks for the rest of {% endraw %} behind its first two characters and returns its signs and end, -1 if it is not there.
func (l *lexer) endraw(at int) (left, right byte, end int) {
	if c := l.at(at); c == '-' || c == '+' {
		left, at = c, at+1
	}
	tag, ok := strings.CutPrefix(l.src[l.spaces(at):], "endraw")
	if !ok {
		return 0, 0, -1
	}
	tag = strings.TrimLeftFunc(tag, isSpace)
	if tag != "" && (tag[0] == '-' || tag[0] == '+') {
		right, tag = tag[0], tag[1:]
	}
	if !strings.HasPrefix(tag, "%}") {
		return 0, 0, -1
	}
	return left, right, len(l.src) - len(tag) + 2
}

// expression takes the tokens of a tag and its end.
func (l *lexer) expression(end string) {
	begin := l.pos
	for {
		if l.pos = l.spaces(l.pos); l.pos == len(l.src) {
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

// operators of two characters and of one.
var (
	two = map[string]bool{"**": true, "//": true, "==": true, "!=": true, "<=": true, ">=": true}
	one = "+-*/%~<>=|,:.()[]{};"
)

// token takes one token of a tag.
func (l *lexer) token() {
	rest := l.src[l.pos:]
	c, _ := utf8.DecodeRuneInString(rest)
	switch {
	case c == '"' || c == '\'':
		l.str(rest[0])
	case c >= '0' && c <= '9':
		l.number()
	case c == '_' || unicode.IsLetter(c):
		n := strings.IndexFunc(rest, func(r rune) bool {
			return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.M, r)
		})
		if n < 0 {
			n = len(rest)
		}
		if n > maxName {
			l.fail(tandem.Invalid, l.pos, "a name has %d bytes: want at most %d", n, maxName)
		}
		l.emit(tok{kind: "name", val: rest[:n]}, l.pos)
		l.pos += n
	case len(rest) > 1 && two[rest[:2]]:
		l.emit(tok{kind: rest[:2]}, l.pos)
		l.pos += 2
	case strings.IndexByte(one, rest[0]) >= 0:
		l.bracket(rest[0])
		l.emit(tok{kind: rest[:1]}, l.pos)
		l.pos++
	default:
		l.fail(tandem.Invalid, l.pos, "character %q cannot stand in a tag", c)
	}
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
