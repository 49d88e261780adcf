package chat

import (
	"strings"

	"github.com/tandem-llm/tandem"
)

// equal compares as Python's ==.
func (r *run) equal(a, b any) bool {
	r.step(1)
	r.enter()
	defer r.leave()
	if isNumber(a) {
		return isNumber(b) && r.order(a, b) == 0
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
		if !ok || len(a.items) != len(b.items) || a.tuple != b.tuple {
			return false
		}
		for i := range a.items {
			if !r.same(a.items[i], b.items[i]) {
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
			if v, ok := r.lookup(b, k); !ok || !r.same(a.vals[i], v) {
				return false
			}
		}
		return true
	case *view:
		b, ok := b.(*view)
		return ok && (a == b || r.equalViews(a, b))
	case *counting:
		b, ok := b.(*counting)
		return ok && a.n == b.n && (a.n == 0 || a.from == b.from && (a.n == 1 || a.step == b.step))
	case *method:
		b, ok := b.(*method)
		return ok && a.name == b.name && identical(a.of, b.of)
	}
	return identical(a, b)
}

// equalViews compares keys or items as sets.
func (r *run) equalViews(a, b *view) bool {
	if a.what == "values" || b.what == "values" || len(a.of.keys) != len(b.of.keys) {
		return false
	}
	for _, e := range r.items(a) {
		if !r.contains(b, e) {
			return false
		}
	}
	return true
}

// same is how Python looks for an element: an object is the same as itself, else they are compared.
func (r *run) same(a, b any) bool {
	r.step(1)
	return identical(a, b) || r.equal(a, b)
}

// identical is Python's "is", where that is certain: for what is changed or kept by reference.
func identical(a, b any) bool {
	switch a := a.(type) {
	case nil, bool, *list, *dict, *view, *counting, *stream, *namespace, *macro, *loopState, *cycler, *joiner:
		return a == b
	}
	return false
}

// less is Python's a < b, and with orEqual a <= b.
func (r *run) less(a, b any, orEqual bool) bool {
	r.step(1)
	if isNumber(a) && isNumber(b) {
		o := r.order(a, b)
		return o == -1 || orEqual && o == 0
	}
	switch x := a.(type) {
	case text:
		if y, ok := b.(text); ok {
			r.work(min(len(x.s), len(y.s)))
			o := strings.Compare(x.s, y.s)
			return o < 0 || orEqual && o == 0
		}
	case *list:
		if y, ok := b.(*list); ok && x.tuple == y.tuple {
			r.enter()
			defer r.leave()
			for i := range min(len(x.items), len(y.items)) {
				if !r.same(x.items[i], y.items[i]) {
					return r.less(x.items[i], y.items[i], orEqual)
				}
			}
			return len(x.items) < len(y.items) || orEqual && len(x.items) == len(y.items)
		}
	}
	r.fail(tandem.Invalid, "%s and %s have no order", kind(a), kind(b))
	return false
}

// contains is Python's needle in hay.
func (r *run) contains(hay, needle any) bool {
	switch h := hay.(type) {
	case text:
		n, ok := needle.(text)
		if !ok {
			r.fail(tandem.Invalid, "%s cannot be in a string", kind(needle))
		}
		r.seek(h.s, n.s, false)
		return strings.Contains(h.s, n.s)
	case *dict:
		_, ok := r.lookup(h, needle)
		return ok
	case *view:
		if h.what == "keys" {
			return r.contains(h.of, needle)
		}
	case *counting:
		n, ok := integer(needle)
		if f, fraction := needle.(float64); fraction {
			v, whole := exact(f)
			n, ok = v.(int64)
			ok = ok && whole
		}
		if !ok || h.n == 0 {
			return false
		}
		i := n - h.from
		if h.n == 1 { // a slice of a slice may have any step then, even 0
			return i == 0
		}
		return i%h.step == 0 && i/h.step >= 0 && i/h.step < h.n
	}
	next := r.each(hay)
	for e, ok := next(); ok; e, ok = next() {
		if r.same(e, needle) {
			return true
		}
	}
	return false
}
