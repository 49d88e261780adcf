package chat

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

func formatFilter(r *run, v any, a args) any {
	if len(a.pos) > 0 && len(a.names) > 0 {
		r.fail(tandem.Invalid, "format takes values or named values, not both")
	}
	if len(a.names) > 0 {
		d := &dict{}
		for i, name := range a.names {
			r.put(d, lit(name), a.vals[i])
		}
		return r.percent(r.str(v), d)
	}
	return r.percent(r.str(v), r.tupleOf(a.pos...))
}

// percenter is one t % v under way.
type percenter struct {
	*builder
	safe  bool
	pos   []any // a tuple's items, or the one value
	named any   // what %(name) is looked up in; nil if v has no elements
	next  int
}

// percent is Python's t % v.
func (r *run) percent(t text, v any) text {
	r.work(len(t.s))
	b := &builder{r: r}
	p := percenter{builder: b, safe: t.safe, pos: []any{v}}
	switch v := v.(type) {
	case *list:
		if v.tuple {
			p.pos = v.items
		} else {
			p.named = v
		}
	case *dict, undefined, *counting:
		p.named = v
	}
	from := 0
	for from < len(t.s) {
		i := strings.IndexByte(t.s[from:], '%')
		if i < 0 {
			break
		}
		b.add(t.slice(from, from+i))
		from = p.spec(t, from+i+1)
	}
	b.add(t.slice(from, len(t.s)))
	if p.next < len(p.pos) && p.named == nil {
		r.fail(tandem.Invalid, "%s %% …: %d values, of which %d are used", short(t.s), len(p.pos), p.next)
	}
	out := b.text()
	out.safe = t.safe
	return out
}

func (p *percenter) take(what string) any {
	if p.next >= len(p.pos) {
		p.r.fail(tandem.Invalid, "%s wants more values than there are", short(what))
	}
	p.next++
	return p.pos[p.next-1]
}

// spec formats one value by what follows the % at i-1 and returns where that ends.
func (p *percenter) spec(t text, i int) int {
	s, begin := t.s, i-1
	bad := func(why string) {
		p.r.fail(tandem.Invalid, "%s: %s", short(s[begin:min(len(s), begin+20)]), why)
	}
	var v any
	named := false
	if strings.HasPrefix(s[i:], "(") {
		end, open := i+1, 1
		for ; end < len(s) && open > 0; end++ {
			switch s[end] {
			case '(':
				open++
			case ')':
				open--
			}
		}
		if open > 0 || p.named == nil {
			bad("want a dict, and a ) behind the name")
		}
		e, ok := p.r.element(p.named, t.slice(i+1, end-1))
		if !ok {
			bad("there is no such name")
		}
		v, named, i = e, true, end
	}
	f := numberFormat{precision: -1, fill: lit(" "), align: '>'}
	for ; i < len(s) && strings.IndexByte("-+ #0", s[i]) >= 0; i++ {
		f.flag(s[i])
	}
	size := func() (n int, star bool) {
		if i < len(s) && s[i] == '*' {
			if i++; named {
				bad("want no * with names")
			}
			w, ok := p.take(s[begin:i]).(int64)
			if !ok || w > math.MaxInt32 || w < -math.MaxInt32 {
				bad("want a whole number for *")
			}
			return int(w), true
		}
		for i < len(s) && s[i] >= '0' && s[i] <= '9' && n < math.MaxInt32/10 {
			n = 10*n + int(s[i]-'0')
			i++
		}
		return n, false
	}
	if f.width, _ = size(); f.width < 0 {
		f.width, f.align = -f.width, '<'
	}
	if i < len(s) && s[i] == '.' {
		i++
		f.precision, _ = size()
		f.precision = max(0, f.precision)
	}
	for i < len(s) && strings.IndexByte("hlL", s[i]) >= 0 {
		i++
	}
	if i >= len(s) {
		bad("the format is incomplete")
	}
	c, n := utf8.DecodeRuneInString(s[i:])
	if c == '%' {
		p.lit("%")
		return i + n
	}
	if !named {
		v = p.take(s[begin : i+n])
	}
	if n > 1 || strings.IndexByte("diouxXeEfFgGcrsa", s[i]) < 0 {
		bad("the format is not one that there is")
	}
	p.value(s[i], f, v)
	return i + n
}

// value writes v in the format of a letter.
func (p *percenter) value(c byte, f numberFormat, v any) {
	r := p.r
	if strings.IndexByte("sarc", c) >= 0 && f.align == '=' { // zeros are for numbers
		f.fill, f.align = lit(" "), '>'
	}
	switch c {
	case 's', 'r', 'a':
		t := p.shown(c, v)
		if f.precision >= 0 {
			t = r.cutText(t, 0, f.precision, 1, false, true)
		}
		f.alignment(p.builder, t, 0)
	case 'c':
		t, ok := v.(text)
		if n, whole := integer(v); whole && n >= 0 && n <= utf8.MaxRune {
			t, ok = lit(string(rune(n))), true
		}
		if !ok || utf8.RuneCountInString(t.s) != 1 {
			r.fail(tandem.Invalid, "%%c wants a character, not %s", kind(v))
		}
		f.alignment(p.builder, t, 0)
	case 'd', 'i', 'u':
		f.whole(p.builder, r.truncate(v), 10, false)
	case 'o', 'x', 'X':
		if !isWhole(v) {
			r.fail(tandem.Invalid, "%%%c wants a whole number, not %s", c, kind(v))
		}
		f.whole(p.builder, large(v), map[byte]int{'o': 8, 'x': 16, 'X': 16}[c], c == 'X')
	default:
		if f.precision < 0 {
			f.precision = 6
		}
		if !isNumber(v) {
			r.fail(tandem.Invalid, "%%%c wants a number, not %s", c, kind(v))
		}
		f.fraction(p.builder, r.float(v), c)
	}
}

// shown is str, repr or ascii of v; escaped in a safe string.
func (p *percenter) shown(c byte, v any) text {
	t := text{}
	switch c {
	case 's':
		t = p.r.str(v)
	case 'r':
		t = p.r.reprOf(v)
	case 'a':
		t = p.r.reprOf(v)
		t = t.remade(pyEscapeASCII(p.r, t.s))
	}
	if p.safe {
		t = p.r.escape(t)
	}
	return t
}

// truncate is the whole number of a number.
func (r *run) truncate(v any) *big.Int {
	if f, ok := v.(float64); ok && !math.IsInf(f, 0) && !math.IsNaN(f) {
		v = truncated(f)
	}
	n := large(v)
	if n == nil {
		r.fail(tandem.Invalid, "%%d wants a number, not %s", kind(v))
	}
	return n
}

// numberFormat is what % and .format have in common.
type numberFormat struct {
	fill      text
	align     byte // < > ^ =
	sign      byte // + or space, 0 for none
	alt, zero bool
	width     int
	precision int  // -1: not given
	group     byte // between thousands, 0 for none
	dotZero   bool // of a fraction without a letter: as Python prints it
}

func (f *numberFormat) flag(c byte) {
	switch c {
	case '-':
		f.align = '<'
	case '+':
		f.sign = '+'
	case ' ':
		if f.sign == 0 {
			f.sign = ' '
		}
	case '#':
		f.alt = true
	case '0':
		f.zero = true
	}
	if f.zero && f.align != '<' {
		f.fill, f.align = lit("0"), '='
	} else if f.align == '<' {
		f.fill = lit(" ")
	}
}

// alignment writes t within the width. The first prefix bytes stay at the left where zeros fill up.
func (f *numberFormat) alignment(b *builder, t text, prefix int) {
	missing := f.width - utf8.RuneCountInString(t.s)
	if missing <= 0 {
		b.add(t)
		return
	}
	left := 0
	switch f.align {
	case '>':
		left = missing
	case '^':
		left = missing / 2
	case '=':
		b.add(t.slice(0, prefix))
		t, left = t.slice(prefix, len(t.s)), missing
	}
	b.pad(f.fill, left)
	b.add(t)
	b.pad(f.fill, missing-left)
}

func (f *numberFormat) signOf(minus bool) string {
	switch {
	case minus:
		return "-"
	case f.sign != 0:
		return string(f.sign)
	}
	return ""
}

// whole writes a whole number.
func (f *numberFormat) whole(b *builder, n *big.Int, base int, upperCase bool) {
	var s string
	if base == 10 {
		s = strings.TrimPrefix(b.r.decimal(n), "-")
	} else {
		b.r.spend(2 * n.BitLen())
		s = strings.TrimPrefix(n.Text(base), "-")
	}
	if f.precision > len(s) { // only of %
		b.r.spend(2 * f.precision) // s, and with what stands around it
		s = strings.Repeat("0", f.precision-len(s)) + s
	}
	prefix := f.signOf(n.Sign() < 0)
	if f.alt {
		prefix += map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]
	}
	if upperCase {
		s, prefix = strings.ToUpper(s), strings.ToUpper(prefix)
	}
	every := 3
	if base != 10 {
		every = 4
	}
	f.digits(b, prefix, s, "", every)
}

// digits writes a number's sign, digits and what follows them, with separators between groups.
func (f *numberFormat) digits(b *builder, prefix, whole, rest string, every int) {
	if f.group != 0 {
		if f.align == '=' && f.fill.s == "0" { // the zeros are grouped too
			b.r.spend(max(0, f.width))
			whole = strings.Repeat("0", max(0, ungrouped(f.width-len(prefix)-len(rest), every)-len(whole))) + whole
		}
		b.r.spend(3 * len(whole))
		var s strings.Builder
		for i := range len(whole) {
			if i > 0 && (len(whole)-i)%every == 0 {
				s.WriteByte(f.group)
			}
			s.WriteByte(whole[i])
		}
		whole = s.String()
	}
	f.alignment(b, lit(prefix+whole+rest), len(prefix))
}

// ungrouped returns how many digits fill a width, with a separator between groups; the last may make it one wider, as in Python.
func ungrouped(width, every int) int {
	n := width - width/(every+1)
	if width%(every+1) == 0 {
		n++
	}
	return n
}

// fraction writes a number in the format of e, E, f, F, g or G.
func (f *numberFormat) fraction(b *builder, v float64, c byte) {
	prefix := f.signOf(math.Signbit(v) && !math.IsNaN(v))
	v = math.Abs(v)
	if math.IsInf(v, 0) || math.IsNaN(v) {
		s := map[bool]string{true: "inf", false: "nan"}[math.IsInf(v, 0)]
		if c == 'E' || c == 'F' || c == 'G' {
			s = strings.ToUpper(s)
		}
		f.alignment(b, lit(prefix+s), len(prefix))
		return
	}
	if f.precision > 1<<16 {
		b.r.fail(tandem.Invalid, "a precision of %d: want at most %d", f.precision, 1<<16)
	}
	b.r.step(1 + f.precision)
	b.r.spend(f.precision)
	s := f.written(v, c|0x20)
	if c < 'a' {
		s = strings.ToUpper(s)
	}
	end := strings.IndexFunc(s, func(c rune) bool { return c < '0' || c > '9' })
	if end < 0 {
		end = len(s)
	}
	f.digits(b, prefix, s[:end], s[end:], 3)
}

// written returns a number that is not negative.
func (f *numberFormat) written(v float64, c byte) string {
	if c != 'g' {
		s := strconv.FormatFloat(v, c, f.precision, 64)
		if f.alt && f.precision == 0 {
			at := len(s)
			if e := strings.IndexByte(s, 'e'); e >= 0 {
				at = e
			}
			s = s[:at] + "." + s[at:]
		}
		return s
	}
	most := max(f.precision, 1)
	e := strconv.FormatFloat(v, 'e', most-1, 64)
	at := strings.IndexByte(e, 'e')
	exponent, _ := strconv.Atoi(e[at+1:])
	limit := most
	if f.dotZero {
		limit--
	}
	s, tail := e[:at], e[at:]
	if v == 0 {
		exponent = 0
	}
	if exponent >= -4 && exponent < limit || v == 0 && limit > 0 {
		s, tail = strconv.FormatFloat(v, 'f', max(0, most-1-exponent), 64), ""
	}
	switch {
	case f.alt && !strings.Contains(s, "."):
		s += "."
	case !f.alt && strings.Contains(s, "."):
		s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
	}
	if f.dotZero && tail == "" && !strings.Contains(s, ".") {
		s += ".0"
	}
	return s + tail
}
