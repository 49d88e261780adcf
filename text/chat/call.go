package chat

import (
	"math"
	"slices"
)

// args are the values that a function, filter, test or method is called with.
type args struct {
	m     *meter
	what  string // its name
	pos   []any
	names []string // of vals, in the order in which they were written
	vals  []any
}

// named returns the value of that name.
func (a args) named(name string) (any, bool) {
	a.m.step(len(a.names) / 16)
	if i := slices.Index(a.names, name); i >= 0 {
		return a.vals[i], true
	}
	return nil, false
}

// params are the values of a call by the parameters of what is called.
type params struct {
	m    *meter
	what string
	vals []any // absent{} where none was given
}

type absent struct{}

// bind assigns values to parameters. The first least must be there. A parameter whose name is "" takes no named value.
func (a args) bind(least int, names ...string) params {
	p := params{a.m, a.what, make([]any, len(names))}
	if len(a.pos) > len(names) {
		a.m.invalid("%s takes at most %d values, not %d", a.what, len(names), len(a.pos))
	}
	for i := range p.vals {
		p.vals[i] = absent{}
	}
	copy(p.vals, a.pos)
	for i, name := range a.names {
		at := slices.Index(names, name)
		if at < 0 || name == "" || at < len(a.pos) {
			a.m.invalid("%s takes no value with the name %s, or it is given twice", a.what, short(name))
		}
		p.vals[at] = a.vals[i]
	}
	for i := range least {
		if !p.has(i) {
			a.m.invalid("%s wants %d values", a.what, least)
		}
	}
	return p
}

func (p params) has(i int) bool { return p.vals[i] != absent{} }

func (p params) or(i int, def any) any {
	if p.has(i) {
		return p.vals[i]
	}
	return def
}

func (p params) truth(i int) bool { return truth(p.or(i, false)) }

// text returns a parameter that is a string.
func (p params) text(i int) text {
	t, ok := p.vals[i].(text)
	p.m.invalidIf(!ok, "%s wants a string, not %s", p.what, kind(p.or(i, nil)))
	return t
}

// int returns a parameter that is a whole number of 32 bits; larger ones are cut.
func (p params) int(i int, def int) int {
	v := p.or(i, int64(def))
	n, ok := integer(v)
	if !ok {
		if isWhole(v) {
			tooWide(p.m)
		}
		p.m.invalid("%s wants a whole number, not %s", p.what, kind(v))
	}
	return int(min(max(n, -math.MaxInt32), math.MaxInt32))
}

// args evaluates what stands in the parentheses of a call.
func (r *run) args(what string, n *callArgs, sc *scope) args {
	a := args{m: r.meter, what: what, pos: r.all(n.pos, sc), names: n.names, vals: r.all(n.vals, sc)}
	if n.list != nil {
		more := items(r.meter, r.eval(n.list, sc))
		r.spend(perItem * len(more))
		a.pos = slices.Concat(a.pos, more)
	}
	if n.pairs != nil {
		d, ok := r.eval(n.pairs, sc).(*dict)
		r.invalidIf(!ok, "** wants a dict")
		a.names = slices.Clone(a.names)
		r.spend(perPair * len(d.keys))
		r.step(len(d.keys) * len(n.names) / 16)
		for i, k := range d.keys {
			name, ok := k.(text)
			if !ok || slices.Contains(n.names, name.s) {
				r.invalid("%s cannot be the name of a value, or is given twice", short(str(r.meter, k).s))
			}
			a.names, a.vals = append(a.names, name.s), append(a.vals, d.vals[i])
		}
	}
	return a
}

// eval calls a function. Inside {% call %} the outermost call is given caller.
func (n *call) eval(r *run, sc *scope) any {
	block := r.caller
	r.caller = nil
	what := "the function"
	var f any
	switch of := n.of.(type) {
	case *attribute:
		f, what = attr(r.meter, r.eval(of.of, sc), of.name), "."+of.name+"()"
	case *variable:
		f, what = r.get(of.name, sc), of.name
	default:
		f = r.eval(n.of, sc)
	}
	a := r.args(what, &n.args, sc)
	if block != nil {
		if _, twice := a.named("caller"); twice {
			r.invalid("caller is given twice")
		}
		a.names, a.vals = append(slices.Clip(a.names), "caller"), append(slices.Clip(a.vals), block)
	}
	switch f := f.(type) {
	case function:
		return f(a)
	case *macro:
		return r.expand(f, a)
	case *method:
		a.what = "." + f.name + "()"
		return callMethod(f.of, f.name, a)
	case undefined:
		if f.why != "" {
			r.refused(f.why)
		}
		r.refused(short(what) + " is called, which tandem does not know")
	case *loopState:
		r.unknown("loop() of a recursive loop")
	}
	r.invalid("%s is called, which is %s", short(what), kind(f))
	return nil
}

// expand runs a macro.
func (r *run) expand(f *macro, a args) text {
	def := f.def
	sc := r.newScope(f.scope, nil)
	pos := a.pos[:min(len(a.pos), len(def.params))]
	used := 0
	missing := make([]bool, len(def.params))
	for i, name := range def.params {
		v, ok := a.named(name)
		switch {
		case i < len(pos):
			v = pos[i]
		case ok:
			used++
		default:
			v, missing[i] = undefined{name: name}, true
		}
		r.add(sc, name, v)
	}
	if def.caller && r.index(sc, "caller") < 0 {
		v, ok := a.named("caller")
		if ok {
			used++
		}
		if !ok || v == nil {
			v = undefined{name: "caller"}
		}
		r.add(sc, "caller", v)
	}
	r.invalidIf(len(a.pos) > len(def.params), "macro %s takes %d values, not %d", def.name, len(def.params), len(a.pos))
	if used < len(a.names) {
		r.invalid("macro %s was given a value that it has no name for, or one twice", def.name)
	}
	for _, name := range def.hides {
		r.add(sc, name, undefined{name: name})
	}
	line := r.line
	r.enter()
	for i, e := range def.values {
		if at := len(def.params) - len(def.values) + i; missing[at] {
			r.set(sc, def.params[at], r.eval(e, sc))
		}
	}
	out, _ := r.capture(def.body, sc)
	r.leave()
	r.line = line
	return out
}
