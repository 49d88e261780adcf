package chat

import (
	"fmt"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// number takes a whole number or a fraction. Behind a dot only whole numbers stand.
func (l *lexer) number() {
	from := l.pos
	end, fraction := digits(l.src, from, 10), false
	if from == 0 || l.src[from-1] != '.' {
		if l.at(end) == '.' {
			if to := digits(l.src, end+1, 10); to > end+1 {
				end, fraction = to, true
			}
		}
		if e := l.at(end); e == 'e' || e == 'E' {
			i := end + 1
			if s := l.at(i); s == '+' || s == '-' {
				i++
			}
			if to := digits(l.src, i, 10); to > i {
				end, fraction = to, true
			}
		}
	}
	if fraction {
		f, _ := strconv.ParseFloat(strings.ReplaceAll(l.src[from:end], "_", ""), 64) // too large: infinite
		l.emit(tok{kind: "number", num: f}, from)
		l.pos = end
		return
	}
	base := 10
	if l.src[from] == '0' {
		base = map[byte]int{'b': 2, 'o': 8, 'x': 16}[l.at(from+1)|0x20]
		end = from + 1
		if base == 0 { // zeros alone
			for base = 10; l.at(end) == '0' || l.at(end) == '_' && l.at(end+1) == '0'; {
				end++
			}
		} else if to := prefixed(l.src, from+2, base); to > from+2 {
			end = to
		} else {
			base = 10
		}
	}
	written := strings.ReplaceAll(l.src[from:end], "_", "")
	if base != 10 {
		written = written[2:]
	}
	n, ok := parseInt(written, base)
	if !ok {
		l.fail(tandem.Invalid, from, "number %s is too long: want at most %d digits", short(written), maxDigits)
	}
	l.emit(tok{kind: "number", num: n}, from)
	l.pos = end
}

// digits returns where the digits that begin at i end; single underscores may stand between them.
func digits(s string, i, base int) int {
	isDigit := func(i int) bool { return i < len(s) && digitValue(rune(s[i])) < base }
	for ; isDigit(i); i++ {
		if i+1 < len(s) && s[i+1] == '_' && isDigit(i+2) {
			i++
		}
	}
	return i
}

// prefixed is digits behind 0x and the like, where the first may have an underscore before it.
func prefixed(s string, i, base int) int {
	if i < len(s) && s[i] == '_' {
		if end := digits(s, i+1, base); end > i+1 {
			return end
		}
		return i
	}
	return digits(s, i, base)
}

// digitValue returns the value of an ASCII digit or letter in numbers, 99 for others.
func digitValue(c rune) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'z':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'Z':
		return int(c-'A') + 10
	}
	return 99
}

// maxDigits bounds how many digits are read or written of a whole number, as Python does.
const maxDigits = 4300

// parseInt reads digits; false if there are too many.
func parseInt(s string, base int) (any, bool) {
	if n, err := strconv.ParseInt(s, base, 64); err == nil {
		return n, true
	}
	if base == 10 && len(s) > maxDigits || len(s) > maxBits/(bits.Len(uint(base))-1) {
		return nil, false
	}
	n, ok := new(big.Int).SetString(s, base)
	return whole(n), ok && n.BitLen() <= maxBits
}

var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", 'b': "\b", 'f': "\f", 'v': "\v", 'a': "\a",
	'\\': "\\", '\'': "'", '"': "\"", '\n': ""}

// str takes a string literal, with Python's escapes.
func (l *lexer) str(quote byte) {
	var b strings.Builder
	for i := l.pos + 1; ; {
		if i >= len(l.src) {
			l.fail(tandem.Invalid, l.pos, "a string has no end: want %q", quote)
		}
		switch c := l.src[i]; {
		case c == quote:
			l.emit(tok{kind: "string", val: b.String()}, l.pos)
			l.pos = i + 1
			return
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
	c := l.src[i]
	if plain, ok := escapes[c]; ok {
		b.WriteString(plain)
		return 2
	}
	switch {
	case '0' <= c && c <= '7':
		n := 1
		for n < 3 && l.at(i+n) >= '0' && l.at(i+n) <= '7' {
			n++
		}
		code, _ := strconv.ParseUint(l.src[i:i+n], 8, 32)
		b.WriteRune(rune(code))
		return 1 + n
	case c == 'N':
		l.fail(tandem.Unsupported, i, "\\N, a character by its name, is not something that tandem knows: want \\u and its code")
	case c == 'x' || c == 'u' || c == 'U':
		n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		written := l.src[i+1 : min(i+1+n, len(l.src))]
		code, err := strconv.ParseUint(written, 16, 32)
		if err != nil || len(written) < n || code > unicode.MaxRune || 0xd800 <= code && code < 0xe000 {
			l.fail(tandem.Invalid, i, "\\%c%s is no character", c, written)
		}
		b.WriteRune(rune(code))
		return 2 + n
	}
	// Python keeps an escape that it does not know; Jinja writes a character beyond ASCII behind a backslash as its code
	r, n := utf8.DecodeRuneInString(l.src[i:])
	b.WriteByte('\\')
	switch {
	case r < utf8.RuneSelf:
		b.WriteRune(r)
	case r <= 0xff:
		fmt.Fprintf(b, "x%02x", r)
	case r <= 0xffff:
		fmt.Fprintf(b, "u%04x", r)
	default:
		fmt.Fprintf(b, "U%08x", r)
	}
	return 1 + n
}
