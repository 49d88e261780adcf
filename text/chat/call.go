package chat

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// args are the values that a function, filter or test is called with.
type args struct {
	what  string // its name
	pos   []any
	names []string // of vals, in the order in which they were written
	vals  []any
}

func (r *run) args(what string, n *callArgs, sc *scope) args {
	a := args{what: what, pos: r.evalAll(n.pos, sc), names: n.names, vals: r.evalAll(n.vals, sc)}
	if n.list != nil {
		more := r.items(r.eval(n.list, sc))
		r.spend(perItem * len(more))
		a.pos = slices.Concat(a.pos, more)
	}
	if n.pairs != nil {
		d, ok := r.eval(n.pairs, sc).(*dict)
		if !ok {
			r.fail(tandem.Invalid, "** wants a dict")
		}
		a.names = slices.Clone(a.names)
		r.spend(perPair * len(d.keys))
		r.step(len(d.keys) * len(n.names) / 16)
		for i, k := range d.keys {
			name, ok := k.(text)
			if !ok || slices.Contains(n.names, name.s) {
				r.fail(tandem.Invalid, "%s cannot be the name of a value, or is given twice", short(r.str(k).s))
			}
			a.names, a.vals = append(a.names, name.s), append(a.vals, d.vals[i])
		}
	}
	return a
}

// named returns the value of that name.
func (r *run) named(a args, name string) (any, bool) {
	r.step(len(a.names) / 16)
	if i := slices.Index(a.names, name); i >= 0 {
		return a.vals[i], true
	}
	return nil, false
}

// take checks that there are least to most values by position.
func (r *run) take(a args, least, most int) {
	if len(a.pos) < least || len(a.pos) > most {
		r.fail(tandem.Invalid, "%s takes %d to %d values, not %d", a.what, least, most, len(a.pos))
	}
}

func (r *run) noNames(a args) {
	if len(a.names) > 0 {
		r.fail(tandem.Invalid, "%s takes no value with the name %s", a.what, short(a.names[0]))
	}
}

// params are the values of a call by the parameters of what is called.
type params struct {
	r    *run
	what string
	vals []any // absent{} where none was given
}

type absent struct{}

// bind assigns values to parameters. The first least must be there. A parameter whose name is "" takes no named value.
func (r *run) bind(a args, least int, names ...string) params {
	p := params{r, a.what, make([]any, len(names))}
	if len(a.pos) > len(names) {
		r.fail(tandem.Invalid, "%s takes at most %d values, not %d", a.what, len(names), len(a.pos))
	}
	for i := range p.vals {
		p.vals[i] = absent{}
	}
	copy(p.vals, a.pos)
	for i, name := range a.names {
		at := slices.Index(names, name)
		if at < 0 || name == "" || at < len(a.pos) {
			r.fail(tandem.Invalid, "%s takes no value with the name %s, or it is given twice", a.what, short(name))
		}
		p.vals[at] = a.vals[i]
	}
	for i := range least {
		if !p.has(i) {
			r.fail(tandem.Invalid, "%s wants %d values", a.what, least)
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
	if !ok {
		p.r.fail(tandem.Invalid, "%s wants a string, not %s", p.what, kind(p.or(i, nil)))
	}
	return t
}

// int returns a parameter that is a whole number of 32 bits; larger ones are cut.
func (p params) int(i int, def int) int {
	v := p.or(i, int64(def))
	n := large(v)
	if n == nil {
		p.r.fail(tandem.Invalid, "%s wants a whole number, not %s", p.what, kind(v))
	}
	if !n.IsInt64() {
		return n.Sign() * math.MaxInt32
	}
	return int(min(max(n.Int64(), -math.MaxInt32), math.MaxInt32))
}

// call evaluates a call. Inside {% call %} the outermost call is given caller.
func (r *run) call(n *call, sc *scope) any {
	block := r.caller
	r.caller = nil
	what := "the function"
	var f any
	switch of := n.of.(type) {
	case *attribute:
		f, what = r.attr(r.eval(of.of, sc), of.name), "."+of.name+"()"
	case *variable:
		f, what = sc.get(of.name), of.name
	default:
		f = r.eval(n.of, sc)
	}
	a := r.args(what, &n.args, sc)
	if block != nil {
		if _, twice := r.named(a, "caller"); twice {
			r.fail(tandem.Invalid, "caller is given twice")
		}
		a.names, a.vals = append(slices.Clip(a.names), "caller"), append(slices.Clip(a.vals), block)
	}
	return r.apply(f, a)
}

func (r *run) apply(f any, a args) any {
	switch f := f.(type) {
	case function:
		return f(r, a)
	case *macro:
		return r.macroCall(f, a)
	case *method:
		return r.method(f.of, f.name, a)
	case *loopState:
		return f.call(r, "", a)
	case *joiner:
		r.take(a, 0, 0)
		r.noNames(a)
		return f.call()
	case undefined:
		if f.why != "" {
			r.fail(tandem.Unsupported, "%s", f.why)
		}
		r.fail(tandem.Unsupported, "%s is called, which tandem does not know", short(a.what))
	}
	r.fail(tandem.Invalid, "%s is called, which is %s", short(a.what), kind(f))
	return nil
}
