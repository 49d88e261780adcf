package chat

import (
	"slices"
	"strconv"
	"strings"
)

// filter is one of Jinja2's, with tojson as transformers has it: it gets the value before the bar and its own values.
type filter func(v any, a args) any

var filters map[string]filter

func init() { // not an initial value: map calls filters by name
	filters = map[string]filter{
		"batch": batch, "capitalize": onText(capitalize), "count": lengthFilter, "d": defaultFilter, "default": defaultFilter,
		"dictsort": dictsort, "first": first, "format": formatFilter, "groupby": groupby, "indent": indent, "int": toInt,
		"items": itemsFilter, "join": joined, "last": last, "length": lengthFilter, "list": listFilter, "lower": onText(lower),
		"map": mapped, "max": extreme(true), "min": extreme(false), "reject": selected(false, false),
		"rejectattr": selected(true, false), "replace": replaceFilter, "round": round, "safe": safe, "select": selected(false, true),
		"selectattr": selected(true, true), "sort": sorted, "string": stringFilter, "title": titleFilter, "tojson": toJSON,
		"trim": trim, "unique": unique, "upper": onText(upper),
	}
}

func noFilter(name string) string { return "filter " + short(name) + " is not one that tandem knows" }

// applyFilter is v|name(a).
func applyFilter(name string, v any, a args) any {
	f := filters[name]
	if f == nil {
		a.m.refused(noFilter(name))
	}
	a.what = name
	return f(v, a)
}

func defaultFilter(v any, a args) any {
	p := a.bind(0, "default_value", "boolean")
	if isUndefined(v) || p.truth(1) && !truth(v) {
		return p.or(0, text{})
	}
	return v
}

func lengthFilter(v any, a args) any {
	a.bind(0)
	return length(a.m, v)
}

func listFilter(v any, a args) any {
	a.bind(0)
	return newList(a.m, slices.Clone(items(a.m, v))...)
}

func first(v any, a args) any {
	a.bind(0)
	if e, ok := each(a.m, v)(); ok {
		return e
	}
	return undefined{name: "the first element of an empty list"}
}

func last(v any, a args) any {
	a.bind(0)
	if _, ok := v.(*stream); ok {
		a.m.invalid("%s cannot be read from its end", kind(v))
	}
	if all := items(a.m, v); len(all) > 0 {
		return all[len(all)-1]
	}
	return undefined{name: "the last element of an empty list"}
}

// lazily returns a generator of what f makes of the elements of v, and keeps. It begins when the first is taken.
func lazily(m *meter, v any, begin func() func(e any) (made any, keep bool)) *stream {
	var next func() (any, bool)
	var f func(e any) (any, bool)
	return &stream{func() (any, bool) {
		if next == nil {
			next, f = each(m, v), begin()
		}
		for {
			e, ok := next()
			if !ok {
				return nil, false
			}
			if made, keep := f(e); keep {
				return made, true
			}
		}
	}}
}

// orNone is v, or an empty list for what is false.
func orNone(v any) any {
	if truth(v) {
		return v
	}
	return &list{}
}

func itemsFilter(v any, a args) any {
	a.bind(0)
	if d, ok := v.(*dict); ok {
		v = &view{d, "items"}
	} else if !isUndefined(v) {
		a.m.invalid("items wants a dict, not %s", kind(v))
	}
	return &stream{each(a.m, v)}
}

// mapped is map(filter, …) or map(attribute=…).
func mapped(v any, a args) any {
	return lazily(a.m, orNone(v), func() func(any) (any, bool) {
		f := mapper(a)
		return func(e any) (any, bool) { return f(e), true }
	})
}

func mapper(a args) func(any) any {
	if _, ok := a.named("attribute"); ok && len(a.pos) == 0 {
		p := a.bind(0, "attribute", "default")
		path := pathOf(a.m, p.vals[0])
		return func(v any) any { return path.follow(a.m, v, p.or(1, nil)) }
	}
	name := a.first("map wants the name of a filter or attribute=")
	a.pos = a.pos[1:]
	return func(v any) any {
		a.m.enter()
		defer a.m.leave()
		return applyFilter(name, v, a)
	}
}

// first returns the first value, which must be a string.
func (a args) first(want string) string {
	if len(a.pos) > 0 {
		if t, ok := a.pos[0].(text); ok {
			return t.s
		}
	}
	a.m.invalid("%s", want)
	return ""
}

// selected is select, reject, selectattr and rejectattr: [attribute,] [test, its values…].
func selected(byAttr, want bool) filter {
	return func(v any, a args) any {
		return lazily(a.m, orNone(v), func() func(any) (any, bool) {
			test := a
			var by path
			if byAttr {
				a.m.invalidIf(len(a.pos) == 0, "%s wants an attribute", a.what)
				by, test.pos = pathOf(a.m, a.pos[0]), a.pos[1:]
			}
			return func(e any) (any, bool) { return e, passes(by.follow(a.m, e, nil), test) == want }
		})
	}
}

// passes tests v: its truth if no test is named.
func passes(v any, a args) bool {
	if len(a.pos) == 0 {
		return truth(v)
	}
	name := a.first(a.what + " wants the name of a test")
	a.pos = a.pos[1:]
	return applyTest(name, v, a)
}

// onText is the filter that rewrites a string; other values are made strings.
func onText(f func(*meter, string) string) filter {
	return func(v any, a args) any {
		a.bind(0)
		t := str(a.m, v)
		return t.remade(f(a.m, t.s))
	}
}

func titleFilter(v any, a args) any { return onText(titleWords)(str(a.m, v).plain(), a) }

func stringFilter(v any, a args) any {
	a.bind(0)
	return str(a.m, v)
}

func trim(v any, a args) any { return str(a.m, v).strip(a.bind(0, "chars"), true, true) }

func replaceFilter(v any, a args) any {
	p := a.bind(2, "old", "new", "count")
	n := -1
	if p.or(2, nil) != nil {
		n = p.int(2, -1)
	}
	return str(a.m, v).plain().replace(a.m, str(a.m, p.vals[0]), str(a.m, p.vals[1]), n)
}

func formatFilter(v any, a args) any {
	a.m.unknownIf(len(a.names) > 0, "the filter format with names")
	return percent(a.m, str(a.m, v), newTuple(a.m, a.pos...))
}

func joined(v any, a args) any {
	p := a.bind(0, "d", "attribute")
	sep, by := str(a.m, p.or(0, text{})), pathOf(a.m, p.or(1, nil))
	b := builder{m: a.m}
	next := each(a.m, v)
	for i := 0; ; i++ {
		e, ok := next()
		if !ok {
			return b.text()
		}
		if i > 0 {
			b.add(sep)
		}
		b.add(str(a.m, by.follow(a.m, e, nil)))
	}
}

// indent puts spaces before every line, the first only when first is given, empty ones when blank is.
func indent(v any, a args) any {
	p := a.bind(0, "width", "first", "blank")
	t, ok := v.(text)
	a.m.invalidIf(!ok, "indent wants a string, not %s", kind(v))
	if _, ok := p.or(0, nil).(text); ok || t.safe {
		a.m.unknown("indent by a string, or of a safe one")
	}
	b := builder{m: a.m}
	for i, line := range join(a.m, t, lit("\n")).lines(a.m, false) {
		if i > 0 {
			b.lit("\n")
		}
		if l := line.(text); i == 0 && p.truth(1) || i > 0 && (p.truth(2) || l.s != "") {
			b.pad(lit(" "), p.int(0, 4))
		}
		b.add(line.(text))
	}
	return b.text()
}

func safe(v any, a args) any {
	a.bind(0)
	t := str(a.m, v)
	t.safe = true
	return t
}

func toInt(v any, a args) any {
	p := a.bind(0, "default", "base")
	base := p.int(1, 10)
	a.m.unknownIf(base != 10 && base != 16, "int with base %d", base)
	switch v := number(v).(type) {
	case int64, wide:
		return v
	case float64:
		return truncated(a.m, v)
	case undefined:
		v.refuse(a.m, "number")
	case text:
		s := readable(a.m, v.s)
		if base == 16 {
			s = strings.TrimPrefix(strings.ToLower(s), "0x")
		}
		if n, ok := parseInt(s, base); ok {
			return n
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && strings.Trim(s, "+-.eE0123456789") == "" {
			return truncated(a.m, f)
		}
	}
	return p.or(0, int64(0))
}
