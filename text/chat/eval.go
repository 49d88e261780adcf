package chat

import (
	"math"
	"slices"
	"strings"
)

// run is one rendering in progress: what evaluates expressions and runs statements. Values and what they can do know only its meter.
type run struct {
	*meter
	out     *builder
	printed text   // what a filter block printed, while its filters run
	caller  *macro // of {% call %}, until its call begins
}

func (r *run) eval(n expr, sc *scope) any {
	r.step(1)
	r.enter()
	v := n.eval(r, sc)
	r.leave()
	return v
}

func (r *run) all(in []expr, sc *scope) []any {
	if len(in) == 0 {
		return nil
	}
	out := make([]any, len(in))
	for i, e := range in {
		out[i] = r.eval(e, sc)
	}
	return out
}

func (n *constant) eval(*run, *scope) any       { return n.v }
func (n *variable) eval(r *run, sc *scope) any  { return r.get(n.name, sc) }
func (n *attribute) eval(r *run, sc *scope) any { return attr(r.meter, r.eval(n.of, sc), n.name) }
func (n *negation) eval(r *run, sc *scope) any  { return !truth(r.eval(n.of, sc)) }
func (n *minus) eval(r *run, sc *scope) any     { return signed(r.meter, n.minus, r.eval(n.of, sc)) }

func (n *subscript) eval(r *run, sc *scope) any {
	of := r.eval(n.of, sc)
	return item(r.meter, of, r.eval(n.key, sc))
}

func (n *applied) eval(r *run, sc *scope) any {
	var v any = r.printed
	if n.of != nil {
		v = r.eval(n.of, sc)
	}
	a := r.args(n.name, &n.args, sc)
	if n.test {
		return applyTest(n.name, v, a)
	}
	return applyFilter(n.name, v, a)
}

func (n *ternary) eval(r *run, sc *scope) any {
	switch {
	case truth(r.eval(n.cond, sc)):
		return r.eval(n.yes, sc)
	case n.no == nil:
		return undefined{name: "a condition without else"}
	}
	return r.eval(n.no, sc)
}

func (n *listing) eval(r *run, sc *scope) any {
	l := newList(r.meter, r.all(n.items, sc)...)
	l.tuple = n.tuple
	return l
}

func (n *mapping) eval(r *run, sc *scope) any {
	r.spend(perPair)
	d := &dict{}
	for i, k := range n.keys {
		key := r.eval(k, sc)
		d.put(r.meter, key, r.eval(n.vals[i], sc))
	}
	return d
}

// eval is v[from:to:step], as Python does it.
func (n *slicing) eval(r *run, sc *scope) any {
	v := r.eval(n.of, sc)
	bound := func(e expr) (int, bool) {
		if e == nil {
			return 0, false
		}
		v := r.eval(e, sc)
		i, ok := integer(v)
		switch {
		case v == nil:
			return 0, false
		case !ok && isWhole(v):
			tooWide(r.meter)
		case !ok:
			r.invalid("a slice wants whole numbers, not %s", kind(v))
		}
		return int(max(min(i, math.MaxInt32), -math.MaxInt32)), true
	}
	by, hasStep := span{}, false
	by.from, by.hasFrom = bound(n.from)
	by.to, by.hasTo = bound(n.to)
	if by.step, hasStep = bound(n.step); !hasStep {
		by.step = 1
	}
	r.invalidIf(by.step == 0, "a slice's step is 0")
	switch v := v.(type) {
	case text:
		return v.cut(r.meter, by)
	case *list:
		return v.cut(r.meter, by)
	case *counting:
		r.unknown("a slice of a range")
	case undefined:
		v.refuse(r.meter, "slice")
	}
	r.invalid("%s cannot be sliced", kind(v))
	return nil
}

// eval is a ~ b …: all as strings.
func (n *concat) eval(r *run, sc *scope) any {
	parts := make([]text, len(n.parts))
	for i, p := range n.parts {
		parts[i] = str(r.meter, r.eval(p, sc))
	}
	return join(r.meter, parts...)
}

// eval is a < b <= c …: what is compared is evaluated once, and no further than needed.
func (n *comparison) eval(r *run, sc *scope) any {
	left := r.eval(n.first, sc)
	for i, op := range n.ops {
		right := r.eval(n.rest[i], sc)
		if !relation(r.meter, op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func (n *binary) eval(r *run, sc *scope) any {
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
		return plus(r.meter, left, right)
	case "%":
		return modulo(r.meter, left, right)
	case "*":
		if v, ok := repeat(r.meter, left, right); ok {
			return v
		}
	}
	return arithmetic(r.meter, n.op, left, right)
}

func plus(m *meter, left, right any) any {
	switch x := left.(type) {
	case text:
		if y, ok := right.(text); ok {
			if !x.safe && !y.safe {
				return join(m, x, y)
			}
			out := join(m, x.escape(m), y.escape(m))
			out.safe = true
			return out
		}
	case *list:
		if y, ok := right.(*list); ok && x.tuple == y.tuple {
			m.spend(perItem * (len(x.items) + len(y.items)))
			return &list{items: slices.Concat(x.items, y.items), tuple: x.tuple}
		}
	}
	return arithmetic(m, "+", left, right)
}

// repeat is a string or list times a number, in either order.
func repeat(m *meter, v, times any) (any, bool) {
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
		m.spend(int(n) * (len(v.s) + 16*len(v.user)))
		return v.remade(strings.Repeat(v.s, int(n))), true
	case *list:
		m.spend(int(n) * perItem * len(v.items))
		return &list{items: slices.Repeat(v.items, int(n)), tuple: v.tuple}, true
	}
	return nil, false
}
