package chat

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// path returns the parts of an attribute like "function.name" or 0; none for nil.
func (r *run) path(attr any) []any {
	name, ok := attr.(text)
	switch {
	case attr == nil:
		return nil
	case !ok:
		return []any{attr}
	}
	r.work(len(name.s))
	var parts []any
	for part := range strings.SplitSeq(name.s, ".") {
		r.spend(perItem)
		if i, err := strconv.ParseInt(part, 10, 64); err == nil && part[0] >= '0' && part[0] <= '9' {
			parts = append(parts, i)
		} else {
			parts = append(parts, lit(part))
		}
	}
	return parts
}

// follow returns the element of v that a path leads to; def, unless nil, stands for each that is undefined.
func (r *run) follow(v any, path []any, def any) any {
	for _, part := range path {
		r.step(1)
		v = r.item(v, part)
		if _, missing := v.(undefined); missing && def != nil {
			v = def
		}
	}
	return v
}

// sortKey returns what elements are sorted by: an attribute or themselves, strings in lower case unless exact.
func (r *run) sortKey(attr, def any, exact bool) func(any) any {
	path := r.path(attr)
	return func(v any) any { return r.folding(r.follow(v, path, def), exact) }
}

func (r *run) folding(v any, exact bool) any {
	if t, ok := v.(text); ok && !exact {
		return lit(lower(r, t.s))
	}
	return v
}

// sortedBy returns items in the order of their keys; equal ones keep their order, also in reverse.
func (r *run) sortedBy(items []any, key func(any) any, backwards bool) []any {
	type entry struct{ key, item any }
	r.spend(2 * perItem * len(items))
	entries := make([]entry, len(items))
	for i, e := range items {
		entries[i] = entry{key(e), e}
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		if backwards {
			a, b = b, a
		}
		switch {
		case r.less(a.key, b.key, false):
			return -1
		case r.less(b.key, a.key, false):
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

func sorted(r *run, v any, a args) any {
	p := r.bind(a, 0, "reverse", "case_sensitive", "attribute")
	var attrs []any
	if t, ok := p.or(2, nil).(text); ok {
		for part := range strings.SplitSeq(t.s, ",") {
			r.spend(2*perItem + len(part)) // with its path
			attrs = append(attrs, lit(part))
		}
	} else {
		attrs = []any{p.or(2, nil)}
	}
	var keys []func(any) any
	for _, attr := range attrs {
		keys = append(keys, r.sortKey(attr, nil, p.truth(1)))
	}
	key := func(v any) any {
		l := &list{}
		for _, k := range keys {
			r.push(l, k(v))
		}
		return l
	}
	return &list{items: r.sortedBy(r.items(v), key, r.flag(p, 0))}
}

// flag returns a parameter of Python's sorted, which wants a number.
func (r *run) flag(p params, i int) bool {
	v := p.or(i, false)
	if !isWhole(v) {
		r.fail(tandem.Invalid, "%s: reverse is %s: want true or false", p.what, kind(v))
	}
	return truth(v)
}

func dictsort(r *run, v any, a args) any {
	p := r.bind(a, 0, "case_sensitive", "by", "reverse")
	by, ok := p.or(1, lit("key")).(text)
	if !ok || by.s != "key" && by.s != "value" {
		r.fail(tandem.Invalid, "dictsort: by is %s: want \"key\" or \"value\"", kind(p.or(1, nil)))
	}
	var d *dict
	switch v := v.(type) {
	case *dict:
		d = v
	case *namespace:
		return r.apply(r.attr(v, "items"), args{what: ".items()"})
	default:
		r.fail(tandem.Invalid, "dictsort wants a dict, not %s", kind(v))
	}
	at := 0
	if by.s == "value" {
		at = 1
	}
	key := func(v any) any { return r.folding(v.(*list).items[at], p.truth(0)) }
	return &list{items: r.sortedBy(r.pairs(d), key, r.flag(p, 2))}
}

func groupby(r *run, v any, a args) any {
	p := r.bind(a, 1, "attribute", "default", "case_sensitive")
	key := r.sortKey(p.vals[0], p.or(1, nil), p.truth(2))
	shown := r.sortKey(p.vals[0], p.or(1, nil), true)
	out := &list{}
	var current any
	for _, e := range r.sortedBy(r.items(v), key, false) {
		k := key(e)
		if len(out.items) == 0 || !r.same(current, k) {
			group := r.tupleOf(shown(e), &list{})
			group.group = true
			r.push(out, group)
			current = k
		}
		r.push(out.items[len(out.items)-1].(*list).items[1].(*list), e)
	}
	return out
}

func unique(r *run, v any, a args) any {
	p := r.bind(a, 0, "case_sensitive", "attribute")
	key := r.sortKey(p.or(1, nil), nil, p.truth(0))
	return lazily(func() func() (any, bool) {
		seen := map[any]bool{}
		next := r.each(v)
		return func() (any, bool) {
			for {
				e, ok := next()
				if !ok {
					return nil, false
				}
				if k := r.plain(key(e)); !seen[k] {
					r.spend(perPair)
					seen[k] = true
					return e, true
				}
			}
		}
	})
}

// extreme is max, or min: the first of the largest or smallest.
func extreme(most bool) func(r *run, v any, a args) any {
	return func(r *run, v any, a args) any {
		p := r.bind(a, 0, "case_sensitive", "attribute")
		key := r.sortKey(p.or(1, nil), nil, p.truth(0))
		next := r.each(v)
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
			if most && r.less(bestKey, k, false) || !most && r.less(k, bestKey, false) {
				best, bestKey = e, k
			}
		}
	}
}

func sum(r *run, v any, a args) any {
	p := r.bind(a, 0, "attribute", "start")
	path := r.path(p.or(0, nil))
	total := p.or(1, int64(0))
	if _, ok := total.(text); ok {
		r.fail(tandem.Invalid, "sum does not add strings: want join")
	}
	next := r.each(v)
	for {
		e, ok := next()
		if !ok {
			return total
		}
		total = r.plus(total, r.follow(e, path, nil))
	}
}

// batch and sliced cut a list into lists: of n elements, and n of about the same length.
func batch(r *run, v any, a args) any {
	p := r.bind(a, 1, "linecount", "fill_with")
	return lazily(func() func() (any, bool) {
		next := r.each(v)
		l, ended := &list{}, false
		return func() (any, bool) {
			for !ended {
				item, more := next()
				if ended = !more; ended {
					break
				}
				full := l
				cut := r.equal(int64(len(l.items)), p.vals[0])
				if cut {
					l = &list{}
				}
				if r.push(l, item); cut {
					return full, true
				}
			}
			rest := l
			l = &list{}
			if fill := p.or(1, nil); fill != nil && len(rest.items) > 0 {
				for n := p.int(0, 0); len(rest.items) < n; {
					r.push(rest, fill)
				}
			}
			return rest, len(rest.items) > 0
		}
	})
}

func sliced(r *run, v any, a args) any {
	p := r.bind(a, 1, "slices", "fill_with")
	return lazily(func() func() (any, bool) {
		items := r.items(v)
		n := p.int(0, 0)
		if n == 0 {
			r.fail(tandem.Invalid, "slice: division by zero")
		}
		each, extra, at, i := len(items)/max(n, 1), len(items)%max(n, 1), 0, 0
		return func() (any, bool) {
			if i >= n {
				return nil, false
			}
			size := each
			if i < extra {
				size++
			}
			l := r.listOf(slices.Clone(items[at : at+size])...)
			at += size
			if fill := p.or(1, nil); fill != nil && i >= extra {
				r.push(l, fill)
			}
			i++
			return l, true
		}
	})
}
