package chat

import (
	"slices"

	"github.com/tandem-llm/tandem"
)

// filters are those of Jinja2, with tojson as transformers has it. Each gets the value before the bar and its own values.
var filters map[string]func(r *run, v any, a args) any

// noFilters are filters of Jinja2 that tandem refuses by name.
var noFilters = map[string]bool{"pprint": true, "random": true, "striptags": true, "urlize": true, "wordwrap": true}

func init() { // not an initial value: map calls filters by name
	filters = map[string]func(r *run, v any, a args) any{
		"abs": absolute, "attr": attrFilter, "batch": batch, "capitalize": asText("capitalize"), "center": center, "count": lengthFilter,
		"d": defaultFilter, "default": defaultFilter, "dictsort": dictsort, "e": escapeFilter, "escape": escapeFilter,
		"filesizeformat": filesize, "first": first, "float": toFloat, "forceescape": forceEscape, "format": formatFilter,
		"groupby": groupby, "indent": indent, "int": toInt, "items": itemsFilter, "join": joined, "last": last,
		"length": lengthFilter, "list": listFilter, "lower": asText("lower"), "map": mapped, "max": extreme(true), "min": extreme(false),
		"reject": selected(false, false), "rejectattr": selected(true, false), "replace": replaceFilter, "reverse": reverseFilter,
		"round": roundFilter, "safe": safe, "select": selected(false, true), "selectattr": selected(true, true), "slice": sliced,
		"sort": sorted, "string": stringFilter, "sum": sum, "title": titleFilter, "tojson": (*run).toJSON, "trim": trim,
		"truncate": truncate, "unique": unique, "upper": asText("upper"), "urlencode": urlencode, "wordcount": wordcount,
		"xmlattr": xmlattr,
	}
}

func noFilter(name string) string {
	if noFilters[name] {
		return "filter " + short(name) + " of Jinja is not one that tandem has"
	}
	return "filter " + short(name) + " is not one that tandem knows"
}

// filter is v|name(a).
func (r *run) filter(name string, v any, a args) any {
	f := filters[name]
	if f == nil {
		r.fail(tandem.Unsupported, "%s", noFilter(name))
	}
	a.what = name
	return f(r, v, a)
}

func defaultFilter(r *run, v any, a args) any {
	p := r.bind(a, 0, "default_value", "boolean")
	_, missing := v.(undefined)
	if missing || p.truth(1) && !truth(v) {
		return p.or(0, text{})
	}
	return v
}

func attrFilter(r *run, v any, a args) any {
	name := r.bind(a, 1, "name").text(0)
	if got, ok := r.attribute(v, name.s); ok {
		return got
	}
	return undefined{name: name.s}
}

func lengthFilter(r *run, v any, a args) any {
	r.bind(a, 0)
	n, ok := r.length(v)
	if !ok {
		r.fail(tandem.Invalid, "%s has no length", kind(v))
	}
	return n
}

func listFilter(r *run, v any, a args) any {
	r.bind(a, 0)
	return r.listOf(slices.Clone(r.items(v))...)
}

func first(r *run, v any, a args) any {
	r.bind(a, 0)
	if e, ok := r.each(v)(); ok {
		return e
	}
	return undefined{name: "the first element of an empty list"}
}

func last(r *run, v any, a args) any {
	r.bind(a, 0)
	r.reversible(v)
	if items := r.items(v); len(items) > 0 {
		return items[len(items)-1]
	}
	return undefined{name: "the last element of an empty list"}
}

func (r *run) reversible(v any) {
	switch v.(type) {
	case *stream, *loopState:
		r.fail(tandem.Invalid, "%s cannot be read from its end", kind(v))
	case undefined: // it has a length of 0 and no element, so there is nothing to read
	}
}

func reverseFilter(r *run, v any, a args) any {
	r.bind(a, 0)
	items := slices.Clone(r.items(v))
	r.spend(perItem * len(items))
	slices.Reverse(items)
	if t, ok := v.(text); ok {
		b := builder{r: r}
		for _, e := range items {
			b.add(e.(text))
		}
		out := b.text()
		out.safe = t.safe
		return out
	}
	if _, ok := v.(*stream); ok {
		return &list{items: items}
	}
	return r.stream(items)
}

// stream is a generator of these elements.
func (r *run) stream(items []any) *stream {
	return &stream{r.each(&list{items: items})}
}

// lazily returns a generator whose elements begin to be made when the first is taken.
func lazily(begin func() func() (any, bool)) *stream {
	var next func() (any, bool)
	ended := false
	return &stream{func() (any, bool) {
		if ended {
			return nil, false
		}
		if next == nil {
			next = begin()
		}
		v, ok := next()
		ended = !ok
		return v, ok
	}}
}

func itemsFilter(r *run, v any, a args) any {
	r.bind(a, 0)
	return lazily(func() func() (any, bool) {
		switch v := v.(type) {
		case *dict:
			return r.each(&view{v, "items"})
		case undefined:
			return r.each(&list{})
		}
		r.fail(tandem.Invalid, "items wants a dict, not %s", kind(v))
		return nil
	})
}

// mapped is map(filter, …) or map(attribute=…).
func mapped(r *run, v any, a args) any {
	return lazily(func() func() (any, bool) {
		if !truth(v) {
			return r.each(&list{})
		}
		f := r.mapper(a)
		next := r.each(v)
		return func() (any, bool) {
			e, ok := next()
			if !ok {
				return nil, false
			}
			return f(e), true
		}
	})
}

func (r *run) mapper(a args) func(any) any {
	if _, ok := r.named(a, "attribute"); ok && len(a.pos) == 0 {
		p := r.bind(a, 0, "attribute", "default")
		path := r.path(p.vals[0])
		return func(v any) any { return r.follow(v, path, p.or(1, nil)) }
	}
	if len(a.pos) == 0 {
		r.fail(tandem.Invalid, "map wants the name of a filter or attribute=")
	}
	name, ok := a.pos[0].(text)
	if !ok {
		r.fail(tandem.Invalid, "map wants the name of a filter, not %s", kind(a.pos[0]))
	}
	a.pos = a.pos[1:]
	return func(v any) any {
		r.enter()
		defer r.leave()
		return r.filter(name.s, v, a)
	}
}

// selected is select, reject, selectattr and rejectattr: [attribute,] [test, its values…].
func selected(byAttr, want bool) func(r *run, v any, a args) any {
	return func(r *run, v any, a args) any {
		return lazily(func() func() (any, bool) {
			if !truth(v) {
				return r.each(&list{})
			}
			rest := a.pos
			var path []any
			if byAttr {
				r.take(a, 1, len(a.pos)+1)
				path, rest = r.path(rest[0]), rest[1:]
			}
			next := r.each(v)
			return func() (any, bool) {
				for {
					e, ok := next()
					if !ok {
						return nil, false
					}
					tested := e
					if byAttr {
						tested = r.follow(e, path, nil)
					}
					if r.passes(tested, rest, a) == want {
						return e, true
					}
				}
			}
		})
	}
}

// passes tests v: its truth if no test is named.
func (r *run) passes(v any, test []any, a args) bool {
	if len(test) == 0 {
		return truth(v)
	}
	name, ok := test[0].(text)
	if !ok {
		r.fail(tandem.Invalid, "%s wants the name of a test, not %s", a.what, kind(test[0]))
	}
	return truth(r.test(name.s, v, args{what: name.s, pos: test[1:], names: a.names, vals: a.vals}))
}
