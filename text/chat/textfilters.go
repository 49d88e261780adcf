package chat

import (
	"fmt"
	"math"
	"strings"
	"unicode"

	"github.com/tandem-llm/tandem"
)

// asText is the filter of a method of strings; other values are made strings.
func asText(method string) func(r *run, v any, a args) any {
	return func(r *run, v any, a args) any {
		r.bind(a, 0)
		return r.textMethod(r.str(v), method, a)
	}
}

func stringFilter(r *run, v any, a args) any {
	r.bind(a, 0)
	return r.str(v)
}

func trim(r *run, v any, a args) any {
	return r.strip(r.str(v), "strip", r.bind(a, 0, "chars"))
}

func titleFilter(r *run, v any, a args) any {
	r.bind(a, 0)
	t := r.str(v).plain()
	return t.remade(titleWords(r, t.s))
}

func center(r *run, v any, a args) any {
	width := r.bind(a, 0, "width").or(0, int64(80))
	return r.padded(r.str(v), "center", args{what: "center", pos: []any{width}})
}

func replaceFilter(r *run, v any, a args) any {
	p := r.bind(a, 2, "old", "new", "count")
	n := -1
	if p.or(2, nil) != nil {
		n = p.int(2, -1)
	}
	return r.replace(r.str(v).plain(), r.str(p.vals[0]), r.str(p.vals[1]), n)
}

func joined(r *run, v any, a args) any {
	p := r.bind(a, 0, "d", "attribute")
	sep, path := r.str(p.or(0, text{})), r.path(p.or(1, nil))
	b := builder{r: r}
	next := r.each(v)
	for i := 0; ; i++ {
		e, ok := next()
		if !ok {
			return b.text()
		}
		if i > 0 {
			b.add(sep)
		}
		b.add(r.str(r.follow(e, path, nil)))
	}
}

// indent puts spaces (or the given string) before every line, the first only when first is given, empty ones when blank is.
func indent(r *run, v any, a args) any {
	p := r.bind(a, 0, "width", "first", "blank")
	t, ok := v.(text)
	if !ok {
		r.fail(tandem.Invalid, "indent wants a string, not %s", kind(v))
	}
	pad, ok := p.or(0, int64(4)).(text)
	if !ok {
		b := builder{r: r}
		b.pad(lit(" "), p.int(0, 4))
		pad = b.text()
	}
	if t.safe {
		pad = r.escape(pad)
	}
	b := builder{r: r}
	for i, line := range r.lines(r.join(t, lit("\n")), false) {
		if i > 0 {
			b.lit("\n")
		}
		if l := line.(text); i == 0 && p.truth(1) || i > 0 && (p.truth(2) || l.s != "") {
			b.add(pad)
		}
		b.add(line.(text))
	}
	out := b.text()
	out.safe = t.safe
	return out
}

func truncate(r *run, v any, a args) any {
	p := r.bind(a, 0, "length", "killwords", "end", "leeway")
	end := p.or(2, lit("..."))
	most, leeway := p.int(0, 255), 5
	if p.or(3, nil) != nil {
		leeway = p.int(3, 5)
	}
	ends, measured := r.length(end)
	size, ok := r.length(v)
	t, isText := v.(text)
	switch {
	case !ok || !measured:
		r.fail(tandem.Invalid, "truncate wants strings, not %s and %s", kind(v), kind(end))
	case most < int(ends) || leeway < 0:
		r.fail(tandem.Invalid, "truncate: length %d and leeway %d: want at least %d and 0", most, leeway, ends)
	case int(size) <= most+leeway:
		return v
	case !isText:
		r.fail(tandem.Invalid, "truncate wants a string, not %s", kind(v))
	}
	cut := r.cutText(t, 0, most-int(ends), 1, false, true)
	if !p.truth(1) {
		r.spend(16 * len(cut.user))
		if i := strings.LastIndexByte(cut.s, ' '); i >= 0 {
			cut = cut.slice(0, i)
		}
	}
	return r.plus(cut, end)
}

func wordcount(r *run, v any, a args) any {
	r.bind(a, 0)
	t := r.str(v)
	r.step(1 + len(t.s)/64)
	n, in := int64(0), false
	for _, c := range t.s {
		word := c == '_' || unicode.IsLetter(c) || isDigit(c) || isNumeric(c)
		if word && !in {
			n++
		}
		in = word
	}
	return n
}

// escape returns t with the characters that mean something in HTML replaced, unless it is safe already.
func (r *run) escape(t text) text {
	if !t.safe {
		r.spend(6 * len(t.s))
		if strings.ContainsAny(t.s, "&<>'\"") {
			t = r.escaped(t)
		}
		t.safe = true
	}
	return t
}

var entities = map[byte]string{'&': "&amp;", '<': "&lt;", '>': "&gt;", '\'': "&#39;", '"': "&#34;"}

func (r *run) escaped(t text) text {
	b := builder{r: r}
	from := 0
	for i := range len(t.s) {
		if to, ok := entities[t.s[i]]; ok {
			b.add(t.slice(from, i))
			b.add(t.slice(i, i+1).remade(to))
			from = i + 1
		}
	}
	b.add(t.slice(from, len(t.s)))
	return b.text()
}

func escapeFilter(r *run, v any, a args) any {
	r.bind(a, 0)
	return r.escape(r.str(v))
}

func forceEscape(r *run, v any, a args) any {
	r.bind(a, 0)
	return r.escape(r.str(v).plain())
}

func safe(r *run, v any, a args) any {
	r.bind(a, 0)
	t := r.str(v)
	t.safe = true
	return t
}

func xmlattr(r *run, v any, a args) any {
	p := r.bind(a, 0, "autospace")
	d, ok := v.(*dict)
	if !ok {
		r.fail(tandem.Invalid, "xmlattr wants a dict, not %s", kind(v))
	}
	b := builder{r: r}
	for i, k := range d.keys {
		_, missing := d.vals[i].(undefined)
		if missing || d.vals[i] == nil {
			continue
		}
		key, ok := k.(text)
		if !ok || strings.ContainsAny(key.s, " \t\n\r\f\v/>=") {
			r.fail(tandem.Invalid, "xmlattr: %s cannot be the name of an attribute", short(r.str(k).s))
		}
		if b.b.Len() > 0 || !p.has(0) || p.truth(0) {
			b.lit(" ")
		}
		b.add(r.escape(key))
		b.lit(`="`)
		b.add(r.escape(r.str(d.vals[i])))
		b.lit(`"`)
	}
	return b.text()
}

func urlencode(r *run, v any, a args) any {
	r.bind(a, 0)
	if _, ok := v.(text); ok || !iterable(v) {
		return r.quoted(r.str(v), false)
	}
	pairs := v
	if d, ok := v.(*dict); ok {
		pairs = &view{d, "items"}
	}
	b := builder{r: r}
	for i, pair := range r.items(pairs) {
		kv := r.items(pair)
		if len(kv) != 2 {
			r.fail(tandem.Invalid, "urlencode wants pairs, not %d values", len(kv))
		}
		if i > 0 {
			b.lit("&")
		}
		b.add(r.quoted(r.str(kv[0]), true))
		b.lit("=")
		b.add(r.quoted(r.str(kv[1]), true))
	}
	return b.text()
}

// quoted writes t as a part of an URL, or of its query.
func (r *run) quoted(t text, query bool) text {
	r.spend(3 * len(t.s))
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(t.s) {
		switch c := t.s[i]; {
		case digitValue(rune(c)) < 36 || strings.IndexByte("_.-~", c) >= 0 || c == '/' && !query:
			b.WriteByte(c)
		case c == ' ' && query:
			b.WriteByte('+')
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return t.plain().remade(b.String())
}

func filesize(r *run, v any, a args) any {
	p := r.bind(a, 0, "binary")
	f, base, unit := r.toFraction(v), 1000.0, "kMGTPEZY"
	after := "B"
	if p.truth(0) {
		base, unit, after = 1024, "KMGTPEZY", "iB"
	}
	switch {
	case f == 1:
		return lit("1 Byte")
	case f < base:
		return r.join(r.str(toInt(r, f, args{})), lit(" Bytes"))
	}
	scale := base
	for i := range len(unit) {
		scale *= base
		if f < scale || i == len(unit)-1 {
			return lit(fmt.Sprintf("%.1f %c%s", base*f/scale, unit[i], after))
		}
	}
	return math.NaN()
}
