package chat

import (
	"strings"
)

// tests are those of Jinja2.
var tests = map[string]func(v any, a args) bool{
	"defined":   is0(func(_ *meter, v any) bool { return !isUndefined(v) }),
	"undefined": is0(func(_ *meter, v any) bool { return isUndefined(v) }),
	"none":      is0(func(_ *meter, v any) bool { return v == nil }),
	"true":      is0(func(_ *meter, v any) bool { return v == true }),
	"false":     is0(func(_ *meter, v any) bool { return v == false }),
	"boolean":   is0(func(_ *meter, v any) bool { return v == true || v == false }),
	"string":    is0(func(_ *meter, v any) bool { _, ok := v.(text); return ok }),
	"number":    is0(func(_ *meter, v any) bool { return isNumber(v) }),
	"integer":   is0(func(_ *meter, v any) bool { return isWhole(v) && v != true && v != false }),
	"float":     is0(func(_ *meter, v any) bool { _, ok := v.(float64); return ok }),
	"mapping":   is0(func(_ *meter, v any) bool { _, ok := v.(*dict); return ok }),
	"sequence":  is0(isSequence),
	"iterable":  is0(func(_ *meter, v any) bool { return iterable(v) }),
	"callable":  is0(isCallable),
	"odd":       is0(func(m *meter, v any) bool { return equal(m, modulo(m, v, int64(2)), int64(1)) }),
	"even":      is0(func(m *meter, v any) bool { return equal(m, modulo(m, v, int64(2)), int64(0)) }),

	"divisibleby": is1("num", func(m *meter, v, x any) bool { return equal(m, modulo(m, v, x), int64(0)) }),
	"sameas":      is1("other", sameas),
	"in":          is1("seq", func(m *meter, v, x any) bool { return contains(m, x, v) }),
}

func init() {
	for op, names := range map[string]string{"==": "eq equalto", "!=": "ne", "<": "lt lessthan", "<=": "le", ">": "gt greaterthan",
		">=": "ge"} {
		for _, name := range append(strings.Fields(names), op) {
			tests[name] = is1("", func(m *meter, v, x any) bool { return relation(m, op, v, x) })
		}
	}
}

// is0 and is1 are tests without and with a value of their own.
func is0(f func(m *meter, v any) bool) func(any, args) bool {
	return func(v any, a args) bool {
		a.bind(0)
		return f(a.m, v)
	}
}

func is1(name string, f func(m *meter, v, x any) bool) func(any, args) bool {
	return func(v any, a args) bool { return f(a.m, v, a.bind(1, name).vals[0]) }
}

func noTest(name string) string { return "test " + short(name) + " is not one that tandem knows" }

// applyTest is "v is name a".
func applyTest(name string, v any, a args) bool {
	f := tests[name]
	if f == nil {
		a.m.refused(noTest(name))
	}
	a.what = name
	return f(v, a)
}

func isUndefined(v any) bool {
	_, ok := v.(undefined)
	return ok
}

func iterable(v any) bool {
	switch v.(type) {
	case text, *list, *dict, *view, *counting, *stream, *loopState, undefined:
		return true
	}
	return false
}

func isSequence(_ *meter, v any) bool {
	switch v.(type) {
	case text, *list, *dict, *counting, undefined:
		return true
	}
	return false
}

func isCallable(_ *meter, v any) bool {
	switch v.(type) {
	case function, *macro, *method, *loopState, undefined:
		return true
	}
	return false
}

// sameas is Python's "is". Two equal numbers or strings may or may not be the same object there: here they are.
func sameas(m *meter, a, b any) bool {
	switch x := a.(type) {
	case int64, float64:
		return a == b
	case text:
		y, ok := b.(text)
		return ok && equal(m, x, y)
	}
	return identical(a, b)
}
