package chat

import (
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// The values of a template are none (nil), bool, int64, float64 and these.
type (
	// text is a string that knows which of its bytes the caller supplied (user: ascending, disjoint, not
	// empty, not touching). Operations that cut or join keep this for each byte; others mark the whole result.
	text struct {
		s    string
		user []Span
	}
	list struct {
		items []any
		tuple bool // prints in parentheses, the only difference from a list
	}
	// dict keeps the order in which keys came. space: a namespace, which set may change.
	dict struct {
		keys, vals []any
		at         map[any]int // plain(key) → index
		space      bool
	}
	undefined struct{ name string } // a missing value: empty, false, and an error in any other use
	function  func(r *run, a args) any
	macro     struct {
		def   *macroDef
		scope *scope // where it was defined
	}
)

func lit(s string) text { return text{s: s} }

// caller returns s as a text supplied wholly by the caller.
func caller(s string) text {
	if s == "" {
		return text{}
	}
	return text{s, []Span{{0, len(s)}}}
}

// remade returns s as the result of rewriting t.
func (t text) remade(s string) text {
	if len(t.user) > 0 {
		return caller(s)
	}
	return lit(s)
}

// slice returns bytes [i, j).
func (t text) slice(i, j int) text {
	out := text{s: t.s[i:j]}
	for k := sort.Search(len(t.user), func(k int) bool { return t.user[k].To > i }); k < len(t.user) && t.user[k].From < j; k++ {
		out.user = append(out.user, Span{max(t.user[k].From, i) - i, min(t.user[k].To, j) - i})
	}
	return out
}

// builder joins texts.
type builder struct {
	r    *run
	b    strings.Builder
	user []Span
}

func (b *builder) add(t text) {
	b.r.work(len(t.s))
	if b == b.r.out && b.b.Len()+len(t.s) > b.r.limits.output {
		b.r.fail(tandem.Invalid, "the template prints more than %d bytes", b.r.limits.output)
	}
	if room := b.b.Cap() - b.b.Len(); room < len(t.s) {
		b.grow(len(t.s))
	}
	at := b.b.Len()
	b.b.WriteString(t.s)
	if len(t.user) > 0 {
		b.r.spend(32 * len(t.user))
	}
	for _, s := range t.user {
		if n := len(b.user); n > 0 && b.user[n-1].To == at+s.From {
			b.user[n-1].To = at + s.To
		} else {
			b.user = append(b.user, Span{at + s.From, at + s.To})
		}
	}
}

// grow makes room for n more bytes, and counts all the new room as spent.
func (b *builder) grow(n int) {
	b.r.spend(2*b.b.Cap() + n) // as strings.Builder grows
	b.b.Grow(n)
}

func (b *builder) lit(s string) { b.add(lit(s)) }

func (b *builder) text() text { return text{b.b.String(), b.user} }

func (r *run) join(parts ...text) text {
	b := builder{r: r}
	n := 0
	for _, p := range parts {
		n += len(p.s)
	}
	b.grow(n)
	for _, p := range parts {
		b.add(p)
	}
	return b.text()
}

// Bytes counted for a list item, a dict entry and a macro, with what they point to.
const perItem, perPair, perMacro = 96, 192, 512

func (r *run) push(l *list, v any) {
	r.spend(perItem)
	l.items = append(l.items, v)
}

func (r *run) listOf(items ...any) *list {
	r.spend(perItem * len(items))
	return &list{items: items}
}

// plain returns the Go map key for a dictionary's key.
func (r *run) plain(key any) any {
	switch k := key.(type) {
	case text:
		r.step(len(k.s) / 256) // it is hashed
		return k.s
	case nil, bool, int64, float64:
		return k
	}
	r.fail(tandem.Invalid, "%s cannot be a key", kind(key))
	return nil
}

func (r *run) put(d *dict, key, v any) {
	k := r.plain(key)
	if i, ok := d.at[k]; ok {
		d.vals[i] = v
		return
	}
	r.spend(perPair)
	if d.at == nil {
		d.at = map[any]int{}
	}
	d.at[k] = len(d.keys)
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
}

func (r *run) lookup(d *dict, key any) (any, bool) {
	if i, ok := d.at[r.plain(key)]; ok {
		return d.vals[i], true
	}
	return nil, false
}

// kind names the type of v in errors.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case bool:
		return "a bool"
	case int64, float64:
		return "a number"
	case text:
		return "a string"
	case *list:
		return "a list"
	case *dict:
		if v.space {
			return "a namespace"
		}
		return "a dict"
	case undefined:
		return short(v.name) + ", which is undefined,"
	}
	return "a function"
}

func short(s string) string {
	if len(s) <= 60 {
		return strconv.Quote(s)
	}
	return strconv.Quote(s[:60]) + "…"
}

func truth(v any) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case text:
		return v.s != ""
	case *list:
		return len(v.items) > 0
	case *dict:
		return len(v.keys) > 0 || v.space
	}
	return true
}

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
	case float64:
		b.lit(pyFloat(v))
	case text:
		b.r.spend(2 * len(v.s))
		quote := "'"
		if strings.Contains(v.s, "'") && !strings.Contains(v.s, `"`) {
			quote = `"`
		}
		b.lit(quote)
		b.add(v.remade(pyEscape(v.s, quote)))
		b.lit(quote)
	case *list:
		brackets := "[]"
		if v.tuple {
			brackets = "()"
		}
		b.lit(brackets[:1])
		for i, e := range v.items {
			if i > 0 {
				b.lit(", ")
			}
			b.repr(e)
		}
		if v.tuple && len(v.items) == 1 {
			b.lit(",")
		}
		b.lit(brackets[1:])
	case *dict:
		b.lit("{")
		for i, k := range v.keys {
			if i > 0 {
				b.lit(", ")
			}
			b.repr(k)
			b.lit(": ")
			b.repr(v.vals[i])
		}
		b.lit("}")
	case undefined:
		b.lit("Undefined")
	default:
		b.r.fail(tandem.Invalid, "%s cannot be printed", kind(v))
	}
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

func pyEscape(s, quote string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == rune(quote[0]) || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case c < ' ' || c == 0x7f:
			b.WriteString(`\x` + string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15]))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// equal compares as Python's ==.
func (r *run) equal(a, b any) bool {
	r.step(1)
	r.enter()
	defer r.leave()
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case text:
		b, ok := b.(text)
		if !ok || len(a.s) != len(b.s) {
			return false
		}
		r.work(len(a.s))
		return a.s == b.s
	case *list:
		b, ok := b.(*list)
		if !ok || len(a.items) != len(b.items) {
			return false
		}
		for i := range a.items {
			if !r.equal(a.items[i], b.items[i]) {
				return false
			}
		}
		return true
	case *dict:
		b, ok := b.(*dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for i, k := range a.keys {
			if v, ok := r.lookup(b, k); !ok || !r.equal(a.vals[i], v) {
				return false
			}
		}
		return true
	}
	return false // functions
}

// number returns the value of a number or, as in Python, of a bool.
func number(v any) (float64, bool) {
	if f, ok := v.(float64); ok {
		return f, true
	}
	i, ok := integer(v)
	return float64(i), ok
}

// integer returns the value of a whole number or a bool.
func integer(v any) (int64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return v, true
	}
	return 0, false
}

// compare orders numbers and strings.
func (r *run) compare(a, b any) int {
	x, xok := number(a)
	y, yok := number(b)
	if xok && yok {
		switch {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	}
	s, sok := a.(text)
	t, tok := b.(text)
	if !sok || !tok {
		r.fail(tandem.Invalid, "%s and %s have no order", kind(a), kind(b))
	}
	r.work(min(len(s.s), len(t.s)))
	return strings.Compare(s.s, t.s)
}

// contains is Python's needle in hay.
func (r *run) contains(hay, needle any) bool {
	switch h := hay.(type) {
	case undefined:
		return false
	case text:
		n, ok := needle.(text)
		if !ok {
			r.fail(tandem.Invalid, "%s cannot be in a string", kind(needle))
		}
		r.work(len(h.s))
		return strings.Contains(h.s, n.s)
	case *list:
		return slices.ContainsFunc(h.items, func(e any) bool { return r.equal(e, needle) })
	case *dict:
		if _, missing := needle.(undefined); missing {
			return false
		}
		_, ok := r.lookup(h, needle)
		return ok
	}
	r.fail(tandem.Invalid, "nothing can be in %s", kind(hay))
	return false
}

// items returns what a loop over v yields. The caller does not change it.
func (r *run) items(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case *list:
		return v.items
	case *dict:
		return v.keys
	case text:
		r.spend(perItem * utf8.RuneCountInString(v.s))
		out := make([]any, 0, len(v.s))
		for i := 0; i < len(v.s); {
			_, n := utf8.DecodeRuneInString(v.s[i:])
			out = append(out, v.slice(i, i+n))
			i += n
		}
		return out
	}
	r.fail(tandem.Invalid, "%s cannot be looped over", kind(v))
	return nil
}

// trimmed drops the characters of cut (white space for nil) at the left and right.
func (t text) trimmed(cut *text, left, right bool) text {
	in := unicode.IsSpace
	if cut != nil {
		in = func(c rune) bool { return strings.ContainsRune(cut.s, c) }
	}
	i, j := 0, len(t.s)
	if left {
		i = j - len(strings.TrimLeftFunc(t.s, in))
	}
	if right {
		j = i + len(strings.TrimRightFunc(t.s[i:], in))
	}
	return t.slice(i, j)
}
