package chat

import (
	"strconv"
	"unicode/utf8"
)

// The values of a template are none (nil), bool, int64, wide (beyond 64 bits), float64, text and these.
type (
	list struct {
		items []any
		tuple bool
		group bool // a tuple of groupby, whose items have the names grouper and list
	}
	// dict keeps the order in which keys came.
	dict struct {
		keys, vals []any
		at         map[any]int // hashed(key) → index
	}
	view struct { // .keys(), .values() or .items() of a dict
		of   *dict
		what string
	}
	counting  struct{ from, step, n, end int64 } // a range of n numbers; end as it was given
	stream    struct{ next func() (any, bool) }  // a generator: it can be run through once
	namespace struct{ vars dict }
	undefined struct { // a missing value: empty, false, and an error in most other uses
		name string
		why  string // that the sandbox refuses it; "" for one that is just missing
	}
	function func(a args) any
	method   struct { // a method of a value, not called yet
		of   any
		name string
	}
	macro struct {
		def   *macroDef
		scope *scope // where it was defined
	}
)

// Bytes counted for a list item, a dict entry, a macro and a variable, with what they point to.
const perItem, perPair, perMacro, perName = 96, 192, 512, 96

func (l *list) push(m *meter, v any) {
	m.spend(perItem)
	l.items = append(l.items, v)
}

func newList(m *meter, items ...any) *list {
	m.spend(perItem * len(items))
	return &list{items: items}
}

func newTuple(m *meter, items ...any) *list {
	l := newList(m, items...)
	l.tuple = true
	return l
}

// cut is l[from:to:step].
func (l *list) cut(m *meter, by span) *list {
	i, j := by.of(len(l.items))
	out := &list{tuple: l.tuple}
	for ; by.step > 0 && i < j || by.step < 0 && i > j; i += by.step {
		out.push(m, l.items[i])
	}
	return out
}

// span is what from:to:step means; step is never 0.
type span struct {
	from, to, step int
	hasFrom, hasTo bool
}

// of returns the first index of a slice of n items and the index at which it stops.
func (by span) of(n int) (int, int) {
	low, high := 0, n
	if by.step < 0 {
		low, high = -1, n-1
	}
	place := func(i int) int {
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	start, stop := low, high
	if by.step < 0 {
		start, stop = high, low
	}
	if by.hasFrom {
		start = place(by.from)
	}
	if by.hasTo {
		stop = place(by.to)
	}
	return start, stop
}

// hashed returns the Go map key for a dictionary's key. Keys that are equal in Python are the same.
func hashed(m *meter, key any) any {
	switch k := key.(type) {
	case text:
		m.step(len(k.s) / 256) // it is hashed
		return k.s
	case nil, int64, wide:
		return k
	case bool:
		return number(k)
	case float64:
		if n, ok := exact(k); ok {
			return n
		}
		return k
	case undefined:
		return undefined{}
	}
	if !hashable(key) {
		m.invalid("%s cannot be a key", kind(key))
	}
	m.unknown("%s as a key", kind(key))
	return nil
}

func hashable(key any) bool {
	switch k := key.(type) {
	case *list:
		return k.tuple
	case *dict, *view:
		return false
	}
	return true
}

func (d *dict) put(m *meter, key, v any) {
	k := hashed(m, key)
	if i, ok := d.at[k]; ok {
		d.vals[i] = v
		return
	}
	m.spend(perPair)
	if d.at == nil {
		d.at = map[any]int{}
	}
	d.at[k] = len(d.keys)
	d.keys, d.vals = append(d.keys, key), append(d.vals, v)
}

func (d *dict) lookup(m *meter, key any) (any, bool) {
	if i, ok := d.at[hashed(m, key)]; ok {
		return d.vals[i], true
	}
	return nil, false
}

// pairs returns the entries of d as tuples.
func (d *dict) pairs(m *meter) []any {
	m.spend(perItem * len(d.keys))
	out := make([]any, len(d.keys))
	for i, k := range d.keys {
		out[i] = newTuple(m, k, d.vals[i])
	}
	return out
}

// kind names the type of v in errors.
func kind(v any) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case bool:
		return "a bool"
	case int64, wide, float64:
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
	case *macro:
		return "a macro"
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
	case nil:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case text:
		return v.s != ""
	}
	n, ok := size(v)
	return n > 0 || !ok
}

// size is the number of elements of what has several; false for other values.
func size(v any) (int, bool) {
	switch v := v.(type) {
	case *list:
		return len(v.items), true
	case *dict:
		return len(v.keys), true
	case *view:
		return len(v.of.keys), true
	case *counting:
		return int(v.n), true
	}
	return 0, isUndefined(v)
}

// each returns a function that gives the elements of v one after the other.
func each(m *meter, v any) func() (any, bool) {
	switch v := v.(type) {
	case *stream:
		return func() (any, bool) {
			m.step(1)
			m.enter() // a generator may read another one
			e, ok := v.next()
			m.leave()
			return e, ok
		}
	case *counting:
		i := int64(0)
		return func() (any, bool) {
			if i == v.n {
				return nil, false
			}
			m.step(1)
			i++
			return v.from + (i-1)*v.step, true
		}
	}
	left := items(m, v)
	return func() (any, bool) {
		if len(left) == 0 {
			return nil, false
		}
		m.step(1)
		v := left[0]
		left = left[1:]
		return v, true
	}
}

// items returns the elements of v. The caller does not change the slice.
func items(m *meter, v any) []any {
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
		return v.of.pairs(m)
	case text:
		return v.characters(m)
	case *stream, *counting:
		var out []any
		next := each(m, v)
		for e, ok := next(); ok; e, ok = next() {
			m.spend(perItem)
			out = append(out, e)
		}
		return out
	case *loopState:
		m.unknown("loop as a list")
	}
	m.invalid("%s cannot be looped over", kind(v))
	return nil
}

// length is Python's len.
func length(m *meter, v any) int64 {
	if t, ok := v.(text); ok {
		m.work(len(t.s))
		return int64(utf8.RuneCountInString(t.s))
	}
	n, ok := size(v)
	if _, isLoop := v.(*loopState); !ok && isLoop {
		m.unknown("the length of loop")
	}
	m.invalidIf(!ok, "%s has no length", kind(v))
	return int64(n)
}
