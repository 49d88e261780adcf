package chat

import (
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

func (r *run) eval(n expr, sc *scope) any {
	r.step(1)
	r.enter()
	v := r.evalNode(n, sc)
	r.leave()
	return v
}

func (r *run) evalNode(n expr, sc *scope) any {
	switch n := n.(type) {
	case *constant:
		return n.v
	case *variable:
		return sc.get(n.name)
	case *attribute:
		return r.attr(r.eval(n.of, sc), n.name)
	case *subscript:
		of := r.eval(n.of, sc)
		return r.item(of, r.eval(n.key, sc))
	case *slicing:
		return r.cut(n, sc)
	case *call:
		return r.call(n, sc)
	case *filtered:
		var v any = r.printed
		if n.of != nil {
			v = r.eval(n.of, sc)
		}
		return r.filter(n.name, v, r.args(n.name, &n.args, sc))
	case *tested:
		v := r.eval(n.of, sc)
		return r.test(n.name, v, r.args(n.name, &n.args, sc))
	case *binary:
		return r.binary(n, sc)
	case *comparison:
		return r.compare(n, sc)
	case *concat:
		return r.concat(n, sc)
	case *ternary:
		if truth(r.eval(n.cond, sc)) {
			return r.eval(n.yes, sc)
		}
		if n.no == nil {
			return undefined{name: "a condition without else"}
		}
		return r.eval(n.no, sc)
	case *negation:
		return !truth(r.eval(n.of, sc))
	case *signed:
		return r.sign(n.minus, r.eval(n.of, sc))
	case *listing:
		l := r.listOf(r.evalAll(n.items, sc)...)
		l.tuple = n.tuple
		return l
	case *mapping:
		r.spend(perPair)
		d := &dict{}
		for i, k := range n.keys {
			key := r.eval(k, sc)
			r.put(d, key, r.eval(n.vals[i], sc))
		}
		return d
	}
	panic("an expression that the parser does not make")
}

func (r *run) evalAll(in []expr, sc *scope) []any {
	if len(in) == 0 {
		return nil
	}
	out := make([]any, len(in))
	for i, e := range in {
		out[i] = r.eval(e, sc)
	}
	return out
}

// attr is v.name: an attribute of Python's, else an element.
func (r *run) attr(v any, name string) any {
	if a, ok := r.attribute(v, name); ok {
		return a
	}
	if e, ok := r.element(v, lit(name)); ok {
		return e
	}
	return undefined{name: name}
}

// item is v[key]: an element, else an attribute.
func (r *run) item(v, key any) any {
	if e, ok := r.element(v, key); ok {
		return e
	}
	if name, ok := key.(text); ok {
		if a, ok := r.attribute(v, name.s); ok {
			return a
		}
	}
	return undefined{name: nameOf(key)}
}

// nameOf shows a key in errors.
func nameOf(key any) string {
	switch k := key.(type) {
	case text:
		return k.s
	case int64:
		return strconv.FormatInt(k, 10)
	}
	return kind(key)
}

// element returns v[key] as Python has it; false if there is none.
func (r *run) element(v, key any) (any, bool) {
	i, isIndex := integer(key)
	switch v := v.(type) {
	case *dict:
		if !r.hashable(key) {
			return nil, false
		}
		return r.lookup(v, key)
	case undefined:
		r.refuse(v, nameOf(key))
	case *list:
		if i < 0 {
			i += int64(len(v.items))
		}
		if isIndex && i >= 0 && i < int64(len(v.items)) {
			return v.items[i], true
		}
	case *counting:
		if i < 0 {
			i += v.n
		}
		if isIndex && i >= 0 && i < v.n {
			return v.from + i*v.step, true
		}
	case text:
		if !isIndex {
			return nil, false
		}
		r.work(len(v.s))
		n := int64(utf8.RuneCountInString(v.s))
		if i < 0 {
			i += n
		}
		if i >= 0 && i < n {
			from := offset(v.s, int(i))
			return v.slice(from, from+offset(v.s[from:], 1)), true
		}
	}
	return nil, false
}

// refuse fails because something of an undefined value is asked for.
func (r *run) refuse(v undefined, what string) {
	if v.why != "" {
		r.fail(tandem.Unsupported, "%s", v.why)
	}
	r.fail(tandem.Invalid, "%s is undefined and has no %s", short(v.name), short(what))
}

// hashable reports whether key may be one of a dict.
func (r *run) hashable(key any) bool {
	r.step(1) // a tuple may hold another one many times
	switch k := key.(type) {
	case *list:
		r.enter()
		defer r.leave()
		return k.tuple && !slices.ContainsFunc(k.items, func(e any) bool { return !r.hashable(e) })
	case *dict, *view:
		return false
	}
	return true
}

// offset returns the byte at which character i of s begins.
func offset(s string, i int) int {
	if i == 0 {
		return 0
	}
	for at := range s {
		if i == 0 {
			return at
		}
		i--
	}
	return len(s)
}

// cut is v[from:to:step], as Python does it.
func (r *run) cut(n *slicing, sc *scope) any {
	v := r.eval(n.of, sc)
	bound := func(e expr) (int, bool) {
		if e == nil {
			return 0, false
		}
		switch v := number(r.eval(e, sc)).(type) {
		case nil:
			return 0, false
		case int64:
			return int(max(min(v, math.MaxInt32), -math.MaxInt32)), true
		case *big.Int:
			return v.Sign() * math.MaxInt32, true
		default:
			r.fail(tandem.Invalid, "a slice wants whole numbers, not %s", kind(v))
		}
		return 0, false
	}
	from, hasFrom := bound(n.from)
	to, hasTo := bound(n.to)
	step, hasStep := bound(n.step)
	if !hasStep {
		step = 1
	}
	if step == 0 {
		r.fail(tandem.Invalid, "a slice's step is 0")
	}
	switch v := v.(type) {
	case text:
		return r.cutText(v, from, to, step, hasFrom, hasTo)
	case *list:
		i, j := bounds(len(v.items), from, to, step, hasFrom, hasTo)
		out := &list{tuple: v.tuple}
		for ; step > 0 && i < j || step < 0 && i > j; i += step {
			r.push(out, v.items[i])
		}
		return out
	case *counting:
		i, j := bounds(int(v.n), from, to, step, hasFrom, hasTo)
		out := &counting{from: v.from + int64(i)*v.step, step: v.step * int64(step), end: v.from + int64(j)*v.step}
		out.n = max(0, int64((j-i+step-sign(step))/step))
		return out
	case undefined:
		r.refuse(v, "slice")
	}
	r.fail(tandem.Invalid, "%s cannot be sliced", kind(v))
	return nil
}

func sign(n int) int {
	if n < 0 {
		return -1
	}
	return 1
}

func (r *run) cutText(t text, from, to, step int, hasFrom, hasTo bool) text {
	r.spend(16 * len(t.user))
	r.work(len(t.s))
	count := utf8.RuneCountInString(t.s)
	i, j := bounds(count, from, to, step, hasFrom, hasTo)
	if step == 1 {
		start := offset(t.s, i)
		return t.slice(start, start+offset(t.s[start:], max(0, j-i)))
	}
	items := r.items(t)
	b := builder{r: r}
	for ; step > 0 && i < j || step < 0 && i > j; i += step {
		b.add(items[i].(text))
	}
	out := b.text()
	out.safe = t.safe
	return out
}

// bounds returns the first index of a slice of n items and the index at which it stops.
func bounds(n, from, to, step int, hasFrom, hasTo bool) (int, int) {
	low, high := 0, n
	if step < 0 {
		low, high = -1, n-1
	}
	place := func(i int) int {
		if i < 0 {
			i += n
		}
		return max(low, min(i, high))
	}
	start, stop := low, high
	if step < 0 {
		start, stop = high, low
	}
	if hasFrom {
		start = place(from)
	}
	if hasTo {
		stop = place(to)
	}
	return start, stop
}

// concat is a ~ b …: all as strings.
func (r *run) concat(n *concat, sc *scope) any {
	parts := make([]text, len(n.parts))
	for i, p := range n.parts {
		parts[i] = r.str(r.eval(p, sc))
	}
	return r.join(parts...)
}

// compare is a < b <= c …: what is compared is evaluated once, and no further than needed.
func (r *run) compare(n *comparison, sc *scope) any {
	left := r.eval(n.first, sc)
	for i, op := range n.ops {
		right := r.eval(n.rest[i], sc)
		if !r.relation(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (r *run) relation(op string, a, b any) bool {
	switch op {
	case "==":
		return r.equal(a, b)
	case "!=":
		return !r.equal(a, b)
	case "<":
		return r.less(a, b, false)
	case "<=":
		return r.less(a, b, true)
	case ">":
		return r.less(b, a, false)
	case ">=":
		return r.less(b, a, true)
	case "not in":
		return !r.contains(b, a)
	}
	return r.contains(b, a)
}

func (r *run) binary(n *binary, sc *scope) any {
	left := r.eval(n.left, sc)
	switch n.op {
	case "and":
		if !truth(left) {
			return left
		}
		return r.eval(n.right, sc)
	case "or":
		if truth(left) {
			return left
		}
		return r.eval(n.right, sc)
	}
	right := r.eval(n.right, sc)
	switch n.op {
	case "+":
		return r.plus(left, right)
	case "*":
		if v, ok := r.repeat(left, right); ok {
			return v
		}
	case "%":
		if t, ok := left.(text); ok {
			return r.percent(t, right)
		}
	}
	return r.arithmetic(n.op, left, right)
}

func (r *run) plus(left, right any) any {
	switch x := left.(type) {
	case text:
		if y, ok := right.(text); ok {
			if !x.safe && !y.safe {
				return r.join(x, y)
			}
			out := r.join(r.escape(x), r.escape(y))
			out.safe = true
			return out
		}
	case *list:
		if y, ok := right.(*list); ok && x.tuple == y.tuple {
			r.spend(perItem * (len(x.items) + len(y.items)))
			return &list{items: slices.Concat(x.items, y.items), tuple: x.tuple}
		}
	}
	return r.arithmetic("+", left, right)
}

// repeat is a string or list times a number, in either order.
func (r *run) repeat(v, times any) (any, bool) {
	n, ok := integer(times)
	if !ok {
		if n, ok = integer(v); !ok {
			return nil, false
		}
		v = times
	}
	n = max(0, min(n, math.MaxInt32)) // so that the products below stay within int64
	switch v := v.(type) {
	case text:
		r.spend(int(n) * (len(v.s) + 16*len(v.user)))
		return v.remade(strings.Repeat(v.s, int(n))), true
	case *list:
		r.spend(int(n) * perItem * len(v.items))
		return &list{items: slices.Repeat(v.items, int(n)), tuple: v.tuple}, true
	}
	return nil, false
}
