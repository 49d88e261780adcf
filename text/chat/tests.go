package chat

import (
	"github.com/tandem-llm/tandem"
)

// tests are those of Jinja2.
var tests map[string]func(r *run, v any, a args) bool

func init() { // not an initial value: the parser, which they do not call, reads them
	tests = map[string]func(r *run, v any, a args) bool{
		"defined":   is0(func(_ *run, v any) bool { return !isUndefined(v) }),
		"undefined": is0(func(_ *run, v any) bool { return isUndefined(v) }),
		"none":      is0(func(_ *run, v any) bool { return v == nil }),
		"true":      is0(func(_ *run, v any) bool { return v == true }),
		"false":     is0(func(_ *run, v any) bool { return v == false }),
		"boolean":   is0(func(_ *run, v any) bool { return v == true || v == false }),
		"string":    is0(func(_ *run, v any) bool { _, ok := v.(text); return ok }),
		"number":    is0(func(_ *run, v any) bool { return isNumber(v) }),
		"integer":   is0(func(_ *run, v any) bool { return isWhole(v) && v != true && v != false }),
		"float":     is0(func(_ *run, v any) bool { _, ok := v.(float64); return ok }),
		"mapping":   is0(func(_ *run, v any) bool { _, ok := v.(*dict); return ok }),
		"sequence":  is0(isSequence),
		"iterable":  is0(func(_ *run, v any) bool { return iterable(v) }),
		"callable":  is0(isCallable),
		"escaped":   is0(func(_ *run, v any) bool { t, ok := v.(text); return ok && t.safe }),
		"upper":     is0(func(r *run, v any) bool { return is(r.str(v).s, "isupper") }),
		"lower":     is0(func(r *run, v any) bool { return is(r.str(v).s, "islower") }),
		"odd":       is0(func(r *run, v any) bool { return r.equal(r.modulo(v, int64(2)), int64(1)) }),
		"even":      is0(func(r *run, v any) bool { return r.equal(r.modulo(v, int64(2)), int64(0)) }),
		"filter":    is0(func(r *run, v any) bool { return filters[r.hashed(v)] != nil }),
		"test":      is0(func(r *run, v any) bool { return tests[r.hashed(v)] != nil }),

		"divisibleby": is1("num", func(r *run, v, x any) bool { return r.equal(r.modulo(v, x), int64(0)) }),
		"sameas":      is1("other", sameas),
		"in":          is1("seq", func(r *run, v, x any) bool { return r.contains(x, v) }),
	}
	for op, names := range map[string][]string{"==": {"eq", "equalto"}, "!=": {"ne"}, "<": {"lt", "lessthan"}, "<=": {"le"},
		">": {"gt", "greaterthan"}, ">=": {"ge"}} {
		for _, name := range append(names, op) {
			tests[name] = is1("", func(r *run, v, x any) bool { return r.relation(op, v, x) })
		}
	}
}

// is0 and is1 are tests without and with a value of their own.
func is0(f func(r *run, v any) bool) func(*run, any, args) bool {
	return func(r *run, v any, a args) bool {
		r.bind(a, 0)
		if t, ok := v.(text); ok {
			r.work(len(t.s))
		}
		return f(r, v)
	}
}

func is1(name string, f func(r *run, v, x any) bool) func(*run, any, args) bool {
	return func(r *run, v any, a args) bool { return f(r, v, r.bind(a, 1, name).vals[0]) }
}

func noTest(name string) string { return "test " + short(name) + " is not one that tandem knows" }

// test is "v is name a".
func (r *run) test(name string, v any, a args) bool {
	f := tests[name]
	if f == nil {
		r.fail(tandem.Unsupported, "%s", noTest(name))
	}
	a.what = name
	return f(r, v, a)
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

func isSequence(_ *run, v any) bool {
	switch v.(type) {
	case text, *list, *dict, *counting, undefined:
		return true
	}
	return false
}

func isCallable(_ *run, v any) bool {
	switch v.(type) {
	case function, *macro, *method, *loopState, *joiner, undefined:
		return true
	}
	return false
}

// modulo is v % x, which also formats strings.
func (r *run) modulo(v, x any) any {
	if t, ok := v.(text); ok {
		return r.percent(t, x)
	}
	return r.arithmetic("%", v, x)
}

// hashed returns the name of a filter or test that is asked for, "" for a value that is none.
func (r *run) hashed(v any) string {
	r.plain(v)
	t, _ := v.(text)
	return t.s
}

// sameas is Python's "is". Two equal numbers or strings may or may not be the same object there: here they are.
func sameas(r *run, a, b any) bool {
	switch x := a.(type) {
	case int64:
		y, ok := b.(int64)
		return ok && x == y
	case float64:
		y, ok := b.(float64)
		return ok && x == y
	case text:
		y, ok := b.(text)
		return ok && r.equal(x, y)
	}
	return identical(a, b)
}
