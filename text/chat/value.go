package chat

import (
	"math/big"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// The values of a template are none (nil), bool, int64, *big.Int (beyond 64 bits), float64 and these.
type (
	// text is a string that knows which of its bytes the caller supplied (user: ascending, disjoint, not
	// empty, not touching). Operations that cut or join keep this for each byte; others mark the whole result.
	text struct {
		s    string
		user []Span
		safe bool // MarkupSafe's Markup: what is joined to it with + is escaped
	}
	list struct {
		items []any
		tuple bool
		group bool // a tuple of groupby, whose items have the names grouper and list
	}
	// dict keeps the order in which keys came.
	dict struct {
		keys, vals []any
		at         map[any]int // plain(key) → index
	}
	view struct { // .keys(), .values() or .items() of a dict
		of   *dict
		what string
	}
	counting struct { // a range: n numbers
		from, step, n int64
		end           int64 // as it was given
	}
	stream    struct{ next func() (any, bool) } // a generator: it can be run through once
	namespace struct{ vars dict }
	undefined struct { // a missing value: empty, false, and an error in most other uses
		name string
		why  string // that the sandbox refuses it; "" for one that is just missing
	}
	function func(r *run, a args) any
	method   struct { // a method of a value, not called yet
		of   any
		name string
	}
	macro struct {
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
	return text{s: s, user: []Span{{0, len(s)}}}
}

// remade returns s as the result of rewriting t.
func (t text) remade(s string) text {
	out := lit(s)
	if len(t.user) > 0 {
		out = caller(s)
	}
	out.safe = t.safe
	return out
}

// plain returns t as a string that is not safe.
func (t text) plain() text {
	t.safe = false
	return t
}

// slice returns bytes [i, j).
func (t text) slice(i, j int) text {
	out := text{s: t.s[i:j], safe: t.safe}
	for k := sort.Search(len(t.user), func(k int) bool { return t.user[k].To > i }); k < len(t.user) && t.user[k].From < j; k++ {
		out.user = append(out.user, Span{max(t.user[k].From, i) - i, min(t.user[k].To, j) - i})
	}
	return out
}

// trimmed drops the characters of cut (white space for nil) at the left and right.
func (t text) trimmed(cut *text, left, right bool) text {
	in := isSpace
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

// builder joins texts.
type builder struct {
	r    *run
	b    strings.Builder
	user []Span
}

func (b *builder) add(t text) {
	b.r.work(len(t.s))
	if b == b.r.out && b.b.Len()+len(t.s) > b.r.limits.output {
		b.r.fail(tandem.Invalid, "%w prints more than %d bytes", errLimit, b.r.limits.output)
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

// pad writes a character n times.
func (b *builder) pad(c text, n int) {
	if n > 0 {
		b.r.spend(n * len(c.s))
		b.add(c.remade(strings.Repeat(c.s, n)))
	}
}

func (b *builder) text() text { return text{s: b.b.String(), user: b.user} }

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

// Bytes counted for a list item, a dict entry, a macro and a variable, with what they point to.
const perItem, perPair, perMacro, perName = 96, 192, 512, 96

func (r *run) push(l *list, v any) {
	r.spend(perItem)
	l.items = append(l.items, v)
}

func (r *run) listOf(items ...any) *list {
	r.spend(perItem * len(items))
	return &list{items: items}
}

func (r *run) tupleOf(items ...any) *list {
	l := r.listOf(items...)
	l.tuple = true
	return l
}

// textKey is the key of a tuple in a dictionary, listed beside those of its items.
type tupleKey string

// plain returns the Go map key for a dictionary's key. Keys that are equal in Python are the same.
func (r *run) plain(key any) any {
	switch k := key.(type) {
	case text:
		r.step(len(k.s) / 256) // it is hashed
		return k.s
	case nil, int64:
		return k
	case bool:
		return number(k)
	case *big.Int:
		r.spend(k.BitLen() / 4)
		return tupleKey("b" + k.Text(16))
	case float64:
		if n, ok := exact(k); ok {
			return r.plain(n)
		}
		return k
	case undefined:
		return undefined{}
	case *list:
		if k.tuple {
			return r.tupleKey(k)
		}
	case *counting:
		return r.tupleKey(&list{items: []any{k.n, k.from * min(k.n, 1), k.step * min(max(k.n, 1)-1, 1), lit("range")}})
	case *namespace, *macro, *loopState, *stream, *cycler, *joiner:
		return k
	}
	r.fail(tandem.Invalid, "%s cannot be a key", kind(key))
	return nil
}

func (r *run) tupleKey(l *list) any {
	r.enter()
	defer r.leave()
	var b strings.Builder
	for _, e := range l.items {
		var s string
		switch k := r.plain(e).(type) {
		case string:
			s = "s" + k
		case int64:
			s = "n" + strconv.FormatInt(k, 10)
		case float64:
			s = "f" + strconv.FormatFloat(k, 'g', -1, 64)
		case tupleKey:
			s = string(k)
		case nil:
			s = "0"
		case undefined:
			s = "u"
		default:
			r.fail(tandem.Unsupported, "a tuple with %s is not a key that tandem knows", kind(e))
		}
		r.spend(len(s) + 8)
		b.WriteString(strconv.Itoa(len(s)) + ":" + s)
	}
	return tupleKey("t" + b.String())
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
	case int64, *big.Int, float64:
		return "a number"
	case text:
		return "a string"
	case *list:
		if v.tuple {
			return "a tuple"
		}
		return "a list"
	case *dict:
		return "a dict"
	case *view:
		return "the " + v.what + " of a dict"
	case *counting:
		return "a range"
	case *stream:
		return "a generator (what map, select and the like give: want |list behind it)"
	case *namespace:
		return "a namespace"
	case *loopState:
		return "loop"
	case undefined:
		if v.why != "" {
			return v.why
		}
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
		return len(v.keys) > 0
	case *view:
		return len(v.of.keys) > 0
	case *counting:
		return v.n > 0
	}
	return true
}

// each returns a function that gives the elements of v one after the other.
func (r *run) each(v any) func() (any, bool) {
	switch v := v.(type) {
	case *stream:
		return func() (any, bool) {
			r.step(1)
			r.enter() // a generator may read another one
			e, ok := v.next()
			r.leave()
			return e, ok
		}
	case *counting:
		i := int64(0)
		return func() (any, bool) {
			if i == v.n {
				return nil, false
			}
			r.step(1)
			i++
			return v.from + (i-1)*v.step, true
		}
	case *loopState:
		return v.pull
	}
	items := r.items(v)
	return func() (any, bool) {
		if len(items) == 0 {
			return nil, false
		}
		r.step(1)
		v := items[0]
		items = items[1:]
		return v, true
	}
}

// items returns the elements of v. The caller does not change the slice.
func (r *run) items(v any) []any {
	switch v := v.(type) {
	case undefined:
		return nil
	case *list:
		return v.items
	case *dict:
		return v.keys
	case *view:
		switch v.what {
		case "keys":
			return v.of.keys
		case "values":
			return v.of.vals
		}
		return r.pairs(v.of)
	case text:
		r.spend(perItem * utf8.RuneCountInString(v.s))
		out := make([]any, 0, utf8.RuneCountInString(v.s))
		for i := 0; i < len(v.s); {
			_, n := utf8.DecodeRuneInString(v.s[i:])
			out = append(out, v.slice(i, i+n))
			i += n
		}
		return out
	case *stream, *counting, *loopState:
		var out []any
		next := r.each(v)
		for e, ok := next(); ok; e, ok = next() {
			r.spend(perItem)
			out = append(out, e)
		}
		return out
	}
	r.fail(tandem.Invalid, "%s cannot be looped over", kind(v))
	return nil
}

// pairs returns the entries of d as tuples.
func (r *run) pairs(d *dict) []any {
	r.spend(perItem * len(d.keys))
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = r.tupleOf(k, d.vals[i])
	}
	return out
}

// length is Python's len; false for what has none.
func (r *run) length(v any) (int64, bool) {
	switch v := v.(type) {
	case text:
		r.work(len(v.s))
		return int64(utf8.RuneCountInString(v.s)), true
	case *list:
		return int64(len(v.items)), true
	case *dict:
		return int64(len(v.keys)), true
	case *view:
		return int64(len(v.of.keys)), true
	case *counting:
		return v.n, true
	case *loopState:
		return v.size(), true
	case undefined:
		return 0, true
	}
	return 0, false
}
