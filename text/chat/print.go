package chat

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// str is what {{ v }} prints, as Python's str.
func str(m *meter, v any) text {
	switch v := v.(type) {
	case text:
		return v
	case undefined:
		return text{}
	}
	b := builder{m: m}
	b.repr(v)
	return b.text()
}

// repr writes v as Python's repr does.
func (b *builder) repr(v any) {
	b.m.enter()
	defer b.m.leave()
	switch v := v.(type) {
	case nil:
		b.lit("None")
	case bool:
		b.lit(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.lit(strconv.FormatInt(v, 10))
	case wide:
		b.lit(string(v))
	case float64:
		b.lit(pyFloat(v))
	case text:
		b.reprText(v)
	case *list:
		brackets := "[]"
		if v.tuple {
			brackets = "()"
		}
		b.lit(brackets[:1])
		b.reprs(v.items)
		if v.tuple && len(v.items) == 1 {
			b.lit(",")
		}
		b.lit(brackets[1:])
	case *dict:
		b.reprDict(v)
	case undefined:
		b.lit("Undefined")
	default: // Python prints the address in memory of most
		b.m.unknown("printing %s", kind(v))
	}
}

func (b *builder) reprs(items []any) {
	for i, e := range items {
		if i > 0 {
			b.lit(", ")
		}
		b.repr(e)
	}
}

func (b *builder) reprDict(d *dict) {
	b.lit("{")
	for i, k := range d.keys {
		if i > 0 {
			b.lit(", ")
		}
		b.repr(k)
		b.lit(": ")
		b.repr(d.vals[i])
	}
	b.lit("}")
}

func (b *builder) reprText(t text) {
	quote := "'"
	if strings.Contains(t.s, "'") && !strings.Contains(t.s, `"`) {
		quote = `"`
	}
	if t.safe {
		b.lit("Markup(")
		defer b.lit(")")
	}
	b.lit(quote)
	b.add(t.remade(rewrite(b.m, t.s, func(c rune) string {
		switch {
		case c == rune(quote[0]), c == '\\':
			return `\` + string(c)
		case c == '\n':
			return `\n`
		case c == '\r':
			return `\r`
		case c == '\t':
			return `\t`
		case unicode.IsPrint(c):
			return string(c)
		case c <= 0xff:
			return fmt.Sprintf(`\x%02x`, c)
		case c <= 0xffff:
			return fmt.Sprintf(`\u%04x`, c)
		}
		return fmt.Sprintf(`\U%08x`, c)
	})))
	b.lit(quote)
}

func pyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// rewrite returns s with each character replaced by what f returns. What it reads and writes is counted piece by piece, so that it
// ends within the limits.
func rewrite(m *meter, s string, f func(c rune) string) string {
	const piece = 4 << 10 // bytes
	b := builder{m: m}
	b.grow(len(s))
	next := 0
	for i, c := range s {
		if i >= next {
			m.step(min(piece, len(s)-i) / 64)
			next = i + piece
		}
		if b.b.Cap()-b.b.Len() < 12 { // what f returns has at most 12 bytes
			b.grow(12)
		}
		b.b.WriteString(f(c))
	}
	return b.b.String()
}
