package chat

import "strings"

// equal compares as Python's ==.
func equal(m *meter, a, b any) bool {
	m.step(1)
	m.enter()
	defer m.leave()
	if isNumber(a) {
		return isNumber(b) && sameNumber(m, a, b)
	}
	switch a := a.(type) {
	case undefined:
		_, ok := b.(undefined)
		return ok
	case text:
		b, ok := b.(text)
		if !ok || len(a.s) != len(b.s) {
			return false
		}
		m.work(len(a.s))
		return a.s == b.s
	case *list:
		b, ok := b.(*list)
		if !ok || len(a.items) != len(b.items) || a.tuple != b.tuple {
			return false
		}
		for i := range a.items {
			if !same(m, a.items[i], b.items[i]) {
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
			if v, ok := b.lookup(m, k); !ok || !same(m, a.vals[i], v) {
				return false
			}
		}
		return true
	case *view, *counting, *method:
		m.unknownIf(a != b && kind(a) == kind(b), "comparing %s with another", kind(a))
	}
	return identical(a, b)
}

// same is how Python looks for an element: an object is the same as itself, else they are compared.
func same(m *meter, a, b any) bool {
	m.step(1)
	return identical(a, b) || equal(m, a, b)
}

// identical is Python's "is", where that is certain: for what is changed or kept by reference.
func identical(a, b any) bool {
	switch a := a.(type) {
	case nil, bool, *list, *dict, *view, *counting, *stream, *namespace, *macro, *loopState:
		return a == b
	}
	return false
}

// less is Python's a < b, and with orEqual a <= b.
func less(m *meter, a, b any, orEqual bool) bool {
	m.step(1)
	if isNumber(a) && isNumber(b) {
		o := order(m, a, b)
		return o == -1 || orEqual && o == 0
	}
	switch x := a.(type) {
	case text:
		if y, ok := b.(text); ok {
			m.work(min(len(x.s), len(y.s)))
			o := strings.Compare(x.s, y.s)
			return o < 0 || orEqual && o == 0
		}
	case *list:
		if y, ok := b.(*list); ok && x.tuple == y.tuple {
			m.enter()
			defer m.leave()
			for i := range min(len(x.items), len(y.items)) {
				if !same(m, x.items[i], y.items[i]) {
					return less(m, x.items[i], y.items[i], orEqual)
				}
			}
			return len(x.items) < len(y.items) || orEqual && len(x.items) == len(y.items)
		}
	}
	m.invalid("%s and %s have no order", kind(a), kind(b))
	return false
}

// contains is Python's needle in hay.
func contains(m *meter, hay, needle any) bool {
	switch h := hay.(type) {
	case text:
		n, ok := needle.(text)
		m.invalidIf(!ok, "%s cannot be in a string", kind(needle))
		seek(m, h.s, n.s, false)
		return strings.Contains(h.s, n.s)
	case *dict:
		_, ok := h.lookup(m, needle)
		return ok
	case *view:
		if h.what == "keys" {
			return contains(m, h.of, needle)
		}
	}
	next := each(m, hay)
	for e, ok := next(); ok; e, ok = next() {
		if same(m, e, needle) {
			return true
		}
	}
	return false
}

// relation is a op b.
func relation(m *meter, op string, a, b any) bool {
	switch op {
	case "==":
		return equal(m, a, b)
	case "!=":
		return !equal(m, a, b)
	case "<":
		return less(m, a, b, false)
	case "<=":
		return less(m, a, b, true)
	case ">":
		return less(m, b, a, false)
	case ">=":
		return less(m, b, a, true)
	case "not in":
		return !contains(m, b, a)
	}
	return contains(m, b, a)
}
