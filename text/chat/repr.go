package chat

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"

	"github.com/tandem-llm/tandem"
)

// str is what {{ v }} prints, as Python's str.
func (r *run) str(v any) text {
	switch v := v.(type) {
	case text:
		return v
	case undefined:
		return text{}
	}
	b := builder{r: r}
	b.repr(v)
	return b.text()
}

// reprOf is Python's repr.
func (r *run) reprOf(v any) text {
	b := builder{r: r}
	b.repr(v)
	return b.text()
}

// repr writes v as Python's repr does.
func (b *builder) repr(v any) {
	b.r.enter()
	defer b.r.leave()
	switch v := v.(type) {
	case nil:
		b.lit("None")
	case bool:
		b.lit(map[bool]string{true: "True", false: "False"}[v])
	case int64:
		b.lit(strconv.FormatInt(v, 10))
	case *big.Int:
		b.lit(b.r.decimal(v))
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
	case *view:
		b.lit("dict_" + v.what + "([")
		b.reprs(b.r.items(v))
		b.lit("])")
	case *counting:
		step := ""
		if v.step != 1 {
			step = fmt.Sprintf(", %d", v.step)
		}
		b.lit(fmt.Sprintf("range(%d, %d%s)", v.from, v.end, step))
	case *namespace:
		b.lit("<Namespace ")
		b.reprDict(&v.vars)
		b.lit(">")
	case *loopState:
		b.lit(fmt.Sprintf("<LoopContext %d/%d>", v.index0+1, v.size()))
	case *macro:
		b.lit("<Macro ")
		if v.def.name == "" {
			b.lit("anonymous>")
		} else {
			b.repr(lit(v.def.name))
			b.lit(">")
		}
	case undefined:
		b.lit("Undefined")
	case *stream:
		b.lit("<generator object>") // Python has the address in memory behind it, as below
	case *method:
		b.lit("<method " + v.name + ">")
	default:
		b.lit("<function>")
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

func (b *builder) reprText(v text) {
	if v.safe {
		b.lit("Markup(")
	}
	quote := "'"
	if strings.Contains(v.s, "'") && !strings.Contains(v.s, `"`) {
		quote = `"`
	}
	b.lit(quote)
	b.add(v.remade(pyEscape(b.r, v.s, quote)))
	b.lit(quote)
	if v.safe {
		b.lit(")")
	}
}

// decimal writes a whole number in digits.
func (r *run) decimal(n *big.Int) string {
	r.step(1 + n.BitLen()/64*n.BitLen()/256)
	s := n.String()
	r.spend(len(s))
	if len(s) > maxDigits {
		r.fail(tandem.Invalid, "a number has %d digits: at most %d are written", len(s), maxDigits)
	}
	return s
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

// pyEscape writes what stands between the quotes of a repr.
func pyEscape(r *run, s, quote string) string {
	return rewrite(r, s, func(_ int, c rune) (string, bool) {
		switch {
		case c == rune(quote[0]), c == '\\':
			return `\` + string(c), true
		case c == '\n':
			return `\n`, true
		case c == '\r':
			return `\r`, true
		case c == '\t':
			return `\t`, true
		case unicode.IsPrint(c):
			return "", false
		}
		return pyCode(c), true
	}, nil)
}

// pyCode is Python's escape of a character by its number.
func pyCode(c rune) string {
	switch {
	case c <= 0xff:
		return fmt.Sprintf(`\x%02x`, c)
	case c <= 0xffff:
		return fmt.Sprintf(`\u%04x`, c)
	}
	return fmt.Sprintf(`\U%08x`, c)
}
