package chat

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// path is the parts of an attribute like "function.name" or 0.
type path []any

// pathOf returns an attribute's parts; none for nil.
func pathOf(m *meter, attr any) path {
	name, ok := attr.(text)
	switch {
	case attr == nil:
		return nil
	case !ok:
		return path{attr}
	}
	m.work(len(name.s))
	var parts path
	for part := range strings.SplitSeq(name.s, ".") {
		m.spend(perItem)
		if i, err := strconv.ParseInt(part, 10, 64); err == nil && part[0] >= '0' && part[0] <= '9' {
			parts = append(parts, i)
		} else {
			parts = append(parts, lit(part))
		}
	}
	return parts
}

// follow returns the element of v that the path leads to; def, unless nil, stands for each that is undefined.
func (p path) follow(m *meter, v, def any) any {
	for _, part := range p {
		m.step(1)
		v = item(m, v, part)
		if isUndefined(v) && def != nil {
			v = def
		}
	}
	return v
}

// sortKey returns what elements are sorted by: an attribute or themselves, strings in lower case unless exact.
func sortKey(m *meter, attr, def any, exact bool) func(any) any {
	by := pathOf(m, attr)
	return func(v any) any { return folding(m, by.follow(m, v, def), exact) }
}

func folding(m *meter, v any, exact bool) any {
	if t, ok := v.(text); ok && !exact {
		return lit(lower(m, t.s))
	}
	return v
}

// sortedBy returns items in the order of their keys; equal ones keep their order, also in reverse.
func sortedBy(m *meter, items []any, key func(any) any, backwards bool) []any {
	type entry struct{ key, item any }
	m.spend(2 * perItem * len(items))
	entries := make([]entry, len(items))
	for i, e := range items {
		entries[i] = entry{key(e), e}
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		if backwards {
			a, b = b, a
		}
		switch {
		case less(m, a.key, b.key, false):
			return -1
		case less(m, b.key, a.key, false):
			return 1
		}
		return 0
	})
	out := make([]any, len(items))
	for i, e := range entries {
		out[i] = e.item
	}
	return out
}

func sorted(v any, a args) any {
	p := a.bind(0, "reverse", "case_sensitive", "attribute")
	attrs := []any{p.or(2, nil)}
	if t, ok := attrs[0].(text); ok {
		attrs = nil
		for part := range strings.SplitSeq(t.s, ",") {
			a.m.spend(2*perItem + len(part)) // with its path
			attrs = append(attrs, lit(part))
		}
	}
	var keys []func(any) any
	for _, attr := range attrs {
		keys = append(keys, sortKey(a.m, attr, nil, p.truth(1)))
	}
	key := func(v any) any {
		l := &list{}
		for _, k := range keys {
			l.push(a.m, k(v))
		}
		return l
	}
	return &list{items: sortedBy(a.m, items(a.m, v), key, p.flag(0))}
}

// flag returns a parameter of Python's sorted, which wants a number.
func (p params) flag(i int) bool {
	v := p.or(i, false)
	p.m.invalidIf(!isWhole(v), "%s: reverse is %s: want true or false", p.what, kind(v))
	return truth(v)
}

func dictsort(v any, a args) any {
	p := a.bind(0, "case_sensitive", "by", "reverse")
	by, ok := p.or(1, lit("key")).(text)
	a.m.invalidIf(!ok || by.s != "key" && by.s != "value", "dictsort: by is %s: want \"key\" or \"value\"", kind(p.or(1, nil)))
	d, ok := v.(*dict)
	a.m.invalidIf(!ok, "dictsort wants a dict, not %s", kind(v))
	at := 0
	if by.s == "value" {
		at = 1
	}
	key := func(v any) any { return folding(a.m, v.(*list).items[at], p.truth(0)) }
	return &list{items: sortedBy(a.m, d.pairs(a.m), key, p.flag(2))}
}

func groupby(v any, a args) any {
	p := a.bind(1, "attribute", "default", "case_sensitive")
	key := sortKey(a.m, p.vals[0], p.or(1, nil), p.truth(2))
	shown := sortKey(a.m, p.vals[0], p.or(1, nil), true)
	out := &list{}
	var current any
	for _, e := range sortedBy(a.m, items(a.m, v), key, false) {
		k := key(e)
		if len(out.items) == 0 || !same(a.m, current, k) {
			group := newTuple(a.m, shown(e), &list{})
			group.group = true
			out.push(a.m, group)
			current = k
		}
		out.items[len(out.items)-1].(*list).items[1].(*list).push(a.m, e)
	}
	return out
}

func unique(v any, a args) any {
	p := a.bind(0, "case_sensitive", "attribute")
	key := sortKey(a.m, p.or(1, nil), nil, p.truth(0))
	return lazily(a.m, v, func() func(any) (any, bool) {
		seen := map[any]bool{}
		return func(e any) (any, bool) {
			k := hashed(a.m, key(e))
			if seen[k] {
				return nil, false
			}
			a.m.spend(perPair)
			seen[k] = true
			return e, true
		}
	})
}

// extreme is max, or min: the first of the largest or smallest.
func extreme(most bool) filter {
	return func(v any, a args) any {
		p := a.bind(0, "case_sensitive", "attribute")
		key := sortKey(a.m, p.or(1, nil), nil, p.truth(0))
		next := each(a.m, v)
		best, ok := next()
		if !ok {
			return undefined{name: "the " + a.what + " of an empty list"}
		}
		bestKey := key(best)
		for {
			e, ok := next()
			if !ok {
				return best
			}
			k := key(e)
			if most && less(a.m, bestKey, k, false) || !most && less(a.m, k, bestKey, false) {
				best, bestKey = e, k
			}
		}
	}
}

// batch cuts a list into lists of n elements.
func batch(v any, a args) any {
	p := a.bind(1, "linecount", "fill_with")
	n := p.int(0, 0)
	a.m.unknownIf(n < 1 || p.or(1, nil) != nil, "batch with a fill, or of fewer than 1")
	next := each(a.m, v)
	return &stream{func() (any, bool) {
		l := &list{}
		for e, ok := next(); ok; e, ok = next() {
			if l.push(a.m, e); len(l.items) == n {
				break
			}
		}
		return l, len(l.items) > 0
	}}
}

// round rounds to digits behind the point, halves to the even neighbour, as Python's round.
func round(v any, a args) any {
	p := a.bind(0, "precision", "method")
	a.m.invalidIf(!isNumber(v), "round wants a number, not %s", kind(v))
	digits, ok := integer(p.or(0, int64(0)))
	a.m.unknownIf(!ok || digits < 0 || digits > 15 || p.has(1), "round to anything but 0 to 15 digits, or with a method")
	f, ok := v.(float64)
	if ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
		return f
	}
	return number(v)
}
