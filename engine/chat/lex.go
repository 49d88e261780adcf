package chat

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nikolalohinski/gonja/v2/tokens"

	"github.com/tandem-llm/tandem"
)

// lexer splits a template's source into gonja's tokens. White space follows the settings that chat templates are written
// for: trim_blocks and lstrip_blocks on, one line break at the end dropped. Tokens of text between tags hold it as it will
// be printed; comments are dropped. Panics with a failure.
type lexer struct {
	src       string
	pos       int
	lineStart bool // nothing before pos on its line is in the output
	out       []*tokens.Token
	brackets  []byte // closing brackets still to come

	line, counted int // line number at byte counted
}

func lex(src string) []*tokens.Token {
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	l := &lexer{src: strings.TrimSuffix(src, "\n"), lineStart: true, line: 1}
	for l.pos < len(l.src) {
		l.data()
	}
	l.emit(tokens.EOF, "", l.pos)
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

func (l *lexer) emit(t tokens.Type, val string, pos int) {
	if len(l.out) == maxTokens {
		l.fail(tandem.Invalid, pos, "the template has more than %d tokens", maxTokens)
	}
	l.out = append(l.out, &tokens.Token{Type: t, Val: val, Pos: pos, Line: l.lineOf(pos)})
}

// data takes the text up to the next tag, and the tag.
func (l *lexer) data() {
	from, at := l.pos, l.nextTag(l.pos)
	text := l.src[from:at]
	if at == len(l.src) {
		l.text(text, from)
		l.pos = at
		return
	}
	sign := l.at(at + 2)
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	case sign != '+' && l.src[at+1] != '{': // lstrip_blocks
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.lineStart) && strings.TrimSpace(text[line:]) == "" {
			text = text[:line]
		}
	}
	l.text(text, from)
	l.pos = at + 2
	if sign == '-' || sign == '+' {
		l.pos++
	}
	switch l.src[at+1] {
	case '#':
		l.comment(at)
	case '{':
		l.emit(tokens.VariableBegin, "{{", at)
		l.expression("}}", tokens.VariableEnd)
	default:
		l.emit(tokens.BlockBegin, "{%", at)
		first := len(l.out)
		l.expression("%}", tokens.BlockEnd)
		if l.out[first].Val == "raw" && l.out[first].Type == tokens.Name {
			l.out = l.out[:first-1]
			l.raw(at)
		}
	}
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

func (l *lexer) text(s string, pos int) {
	if s != "" {
		l.emit(tokens.Data, s, pos)
	}
}

// closed removes the white space after a tag that the end of the tag takes away.
func (l *lexer) closed(sign byte, block bool) {
	l.lineStart = false
	switch {
	case sign == '-':
		rest := strings.TrimLeftFunc(l.src[l.pos:], unicode.IsSpace)
		l.pos = len(l.src) - len(rest)
		l.lineStart = l.src[l.pos-1] == '\n'
	case block && sign != '+' && l.at(l.pos) == '\n': // trim_blocks
		l.pos++
		l.lineStart = true
	}
}

func (l *lexer) comment(at int) {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		l.fail(tandem.Invalid, at, "a comment has no end: want #}")
	}
	end := l.pos + i
	l.pos = end + 2
	l.closed(l.src[end-1], true)
}

// raw takes everything up to {% endraw %} as text.
func (l *lexer) raw(at int) {
	for from := l.pos; ; {
		i := strings.Index(l.src[from:], "{%")
		if i < 0 {
			l.fail(tandem.Invalid, at, "{%% raw %%} has no {%% endraw %%}")
		}
		begin := from + i
		from = begin + 2
		left := l.at(from)
		tag := strings.TrimLeft(strings.TrimLeft(l.src[from:], "-+"), " \t\n")
		tag, ok := strings.CutPrefix(tag, "endraw")
		if !ok {
			continue
		}
		tag = strings.TrimLeft(tag, " \t\n")
		right := byte(0)
		if tag != "" && (tag[0] == '-' || tag[0] == '+') {
			right, tag = tag[0], tag[1:]
		}
		tag, ok = strings.CutPrefix(tag, "%}")
		if !ok {
			continue
		}
		text := l.src[l.pos:begin]
		if left == '-' {
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		}
		l.text(text, l.pos)
		l.pos = len(l.src) - len(tag)
		l.closed(right, true)
		return
	}
}

// expression takes the tokens of a tag and its end.
func (l *lexer) expression(end string, endType tokens.Type) {
	begin := l.pos
	for {
		for l.pos < len(l.src) && strings.IndexByte(" \t\n\f\v", l.src[l.pos]) >= 0 {
			l.pos++
		}
		if l.pos == len(l.src) {
			l.fail(tandem.Invalid, begin, "a tag has no end: want %s", end)
		}
		if len(l.brackets) == 0 {
			sign := l.src[l.pos]
			width := len(end)
			if sign == '-' || sign == '+' && endType == tokens.BlockEnd {
				width++
			} else {
				sign = 0
			}
			if strings.HasPrefix(l.src[l.pos+width-len(end):], end) {
				l.emit(endType, end, l.pos)
				l.pos += width
				l.closed(sign, endType == tokens.BlockEnd)
				return
			}
		}
		l.token()
	}
}

var symbols = map[string]tokens.Type{
	"**": tokens.Power, "//": tokens.FloorDivision, "==": tokens.Equals, "!=": tokens.Ne, "<=": tokens.LowerThanOrEqual,
	">=": tokens.GreaterThanOrEqual, "+": tokens.Addition, "-": tokens.Subtraction, "*": tokens.Multiply, "/": tokens.Division,
	"%": tokens.Modulo, "~": tokens.Tilde, "<": tokens.LowerThan, ">": tokens.GreaterThan, "=": tokens.Assign, "|": tokens.Pipe,
	",": tokens.Comma, ":": tokens.Colon, ".": tokens.Dot, "(": tokens.LeftParenthesis, ")": tokens.RightParenthesis,
	"[": tokens.LeftBracket, "]": tokens.RightBracket, "{": tokens.LeftBrace, "}": tokens.RightBrace,
}

var words = map[string]tokens.Type{"and": tokens.And, "or": tokens.Or, "not": tokens.Not, "in": tokens.In, "is": tokens.Is}

// token takes one token of a tag.
func (l *lexer) token() {
	rest := l.src[l.pos:]
	c, width := utf8.DecodeRuneInString(rest)
	afterDot := l.out[len(l.out)-1].Type == tokens.Dot
	switch {
	case c == '"' || c == '\'':
		l.str(rest[0])
		return
	case c >= '0' && c <= '9':
		l.number(afterDot)
		return
	case c == '_' || unicode.IsLetter(c):
		n := strings.IndexFunc(rest, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
		if n < 0 {
			n = len(rest)
		}
		t, keyword := words[rest[:n]]
		if !keyword || afterDot {
			t = tokens.Name
		}
		l.emit(t, rest[:n], l.pos)
		l.pos += n
		return
	}
	if len(rest) > 1 {
		if t, ok := symbols[rest[:2]]; ok {
			l.emit(t, rest[:2], l.pos)
			l.pos += 2
			return
		}
	}
	t, ok := symbols[rest[:width]]
	if !ok {
		l.fail(tandem.Invalid, l.pos, "character %q cannot stand in a tag", c)
	}
	l.bracket(rest[0])
	l.emit(t, rest[:1], l.pos)
	l.pos++
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
	if last := len(l.out) - 1; c == '}' && l.out[last].Type == tokens.Comma { // gonja takes no {'a': 1,}
		l.out = slices.Delete(l.out, last, last+1)
	}
}

func (l *lexer) number(afterDot bool) {
	digits := func(i int) int {
		for l.at(i) >= '0' && l.at(i) <= '9' || l.at(i) == '_' {
			i++
		}
		return i
	}
	t, end := tokens.Integer, digits(l.pos)
	if !afterDot && l.at(end) == '.' && l.at(end+1) >= '0' && l.at(end+1) <= '9' {
		t, end = tokens.Float, digits(end+1)
	}
	if e := l.at(end); !afterDot && (e == 'e' || e == 'E') {
		i := end + 1
		if s := l.at(i); s == '+' || s == '-' {
			i++
		}
		if l.at(i) >= '0' && l.at(i) <= '9' {
			t, end = tokens.Float, digits(i)
		}
	}
	val := strings.ReplaceAll(l.src[l.pos:end], "_", "")
	if t == tokens.Integer && len(val) > 1 {
		if val = strings.TrimLeft(val, "0"); val == "" { // gonja reads 010 as octal
			val = "0"
		}
	}
	l.emit(t, val, l.pos)
	l.pos = end
}

var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", 'b': "\b", 'f': "\f", 'v': "\v", 'a': "\a", '0': "\x00",
	'\\': "\\", '\'': "'", '"': "\"", '\n': ""}

// str takes a string literal, with Python's escapes; neighbours become one.
func (l *lexer) str(quote byte) {
	var b strings.Builder
	begin, i := l.pos, l.pos+1
	for {
		if i >= len(l.src) {
			l.fail(tandem.Invalid, begin, "a string has no end: want %q", quote)
		}
		switch c := l.src[i]; {
		case c == quote:
			i++
			next := strings.TrimLeft(l.src[i:], " \t\n")
			if next == "" || next[0] != '"' && next[0] != '\'' {
				// gonja's parser halves backslashes
				l.emit(tokens.String, strings.ReplaceAll(b.String(), `\`, `\\`), begin)
				l.pos = i
				return
			}
			quote = next[0]
			i = len(l.src) - len(next) + 1
		case c == '\\' && i+1 < len(l.src):
			i += l.escape(&b, i+1)
		default:
			b.WriteByte(c)
			i++
		}
	}
}

// escape writes the character for the escape whose letter is at i and returns the escape's length with the backslash.
func (l *lexer) escape(b *strings.Builder, i int) int {
	if plain, ok := escapes[l.src[i]]; ok {
		b.WriteString(plain)
		return 2
	}
	n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[l.src[i]]
	if n == 0 || i+n >= len(l.src) {
		b.WriteString(l.src[i-1 : i+1]) // Python keeps an escape that it does not know
		return 2
	}
	code, err := strconv.ParseUint(l.src[i+1:i+1+n], 16, 32)
	if err != nil || code > unicode.MaxRune {
		l.fail(tandem.Invalid, i, "\\%s is no character", l.src[i:i+1+n])
	}
	b.WriteRune(rune(code))
	return 2 + n
}
