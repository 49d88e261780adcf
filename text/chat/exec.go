package chat

import (
	"github.com/tandem-llm/tandem"
)

// scope holds the variables of a body; conditions have no scope of their own.
type scope struct {
	names []string
	vals  []any
	at    map[string]int // of names, when there are many
	up    *scope
}

const manyNames = 12

// newScope returns a scope that hides some names of those around it.
func (r *run) newScope(up *scope, hides []string) *scope {
	r.names(len(hides))
	s := &scope{up: up}
	for _, name := range hides {
		s.set(name, undefined{name: name})
	}
	return s
}

// names counts variables that a new scope begins with; many of them are in a map.
func (r *run) names(n int) {
	if n > manyNames {
		r.spend(perName * n)
	}
	r.spend(perName * n)
}

func (s *scope) index(name string) int {
	if s.at != nil {
		if i, ok := s.at[name]; ok {
			return i
		}
		return -1
	}
	for i, n := range s.names {
		if n == name {
			return i
		}
	}
	return -1
}

func (s *scope) get(name string) any {
	for ; s != nil; s = s.up {
		if i := s.index(name); i >= 0 {
			return s.vals[i]
		}
	}
	if f, ok := globals[name]; ok {
		return f
	}
	return undefined{name: name}
}

func (s *scope) set(name string, v any) {
	if i := s.index(name); i >= 0 {
		s.vals[i] = v
		return
	}
	s.names, s.vals = append(s.names, name), append(s.vals, v)
	switch {
	case s.at != nil:
		s.at[name] = len(s.names) - 1
	case len(s.names) > manyNames:
		s.at = map[string]int{}
		for i, n := range s.names {
			s.at[n] = i
		}
	}
}

func (r *run) exec(body []statement, sc *scope) flow {
	r.enter()
	defer r.leave()
	for _, n := range body {
		r.step(1)
		if to := r.statement(n, sc); to != onward {
			return to
		}
	}
	return onward
}

func (r *run) statement(n statement, sc *scope) flow {
	switch n := n.(type) {
	case *data:
		r.out.lit(n.text)
	case *output:
		r.line = n.line
		for _, e := range n.values {
			r.out.add(r.str(r.eval(e, sc)))
		}
	case *branching:
		r.line = n.line
		for _, b := range n.branches {
			if b.cond == nil || truth(r.eval(b.cond, sc)) {
				return r.exec(b.body, sc)
			}
		}
	case *loop:
		r.line = n.line
		return r.loop(n, sc)
	case *assignment:
		r.line = n.line
		return r.assign(n, sc)
	case *macroDef:
		r.spend(perMacro) // with the scope that it keeps
		sc.set(n.name, &macro{n, sc})
	case *callBlock:
		r.line = n.line
		r.spend(perMacro)
		r.caller = &macro{n.def, sc}
		r.print(r.eval(n.call, sc))
	case *filterBlock:
		r.line = n.line
		inner := r.newScope(sc, n.hides)
		out, to := r.capture(n.body, inner)
		if to != onward {
			return to
		}
		r.print(r.filterPrinted(n.chain, out, inner))
	case *with:
		r.line = n.line
		inner := r.newScope(sc, n.hides)
		for i, e := range n.values {
			r.unpack(n.to[i], r.eval(e, sc), inner)
		}
		return r.exec(n.body, inner)
	case *plainBlock:
		return r.exec(n.body, r.newScope(sc, n.hides))
	case *jump:
		return n.to
	}
	return onward
}

// print prints what a block gave, which in Jinja must be a string.
func (r *run) print(v any) {
	t, ok := v.(text)
	if !ok {
		r.fail(tandem.Invalid, "a block gave %s: want a string", kind(v))
	}
	r.out.add(t)
}

// filterPrinted returns text through filters; text itself if chain is nil.
func (r *run) filterPrinted(chain expr, printed text, sc *scope) any {
	if chain == nil {
		return printed
	}
	outer := r.printed
	r.printed = printed
	v := r.eval(chain, sc)
	r.printed = outer
	return v
}

// capture returns what body prints and how it ended.
func (r *run) capture(body []statement, sc *scope) (text, flow) {
	outer := r.out
	b := &builder{r: r}
	r.out = b
	to := r.exec(body, sc)
	r.out = outer
	return b.text(), to
}

func (r *run) assign(n *assignment, sc *scope) flow {
	if n.value != nil {
		r.unpack(n.to, r.eval(n.value, sc), sc)
		return onward
	}
	inner := r.newScope(sc, n.hides)
	out, to := r.capture(n.body, inner)
	if to == onward {
		r.unpack(n.to, r.filterPrinted(n.chain, out, inner), sc)
	}
	return to
}

// unpack assigns v to a variable, to an attribute of a namespace, or its elements to several.
func (r *run) unpack(to target, v any, sc *scope) {
	switch {
	case to.several:
		r.step(1)
		items := r.items(v)
		if len(items) != len(to.parts) {
			r.fail(tandem.Invalid, "%d names for %d values", len(to.parts), len(items))
		}
		for i, part := range to.parts {
			r.unpack(part, items[i], sc)
		}
	case to.attr != "":
		space, ok := sc.get(to.name).(*namespace)
		if !ok {
			r.fail(tandem.Invalid, "set %s.%s: %s is %s, not a namespace", to.name, to.attr, to.name, kind(sc.get(to.name)))
		}
		r.put(&space.vars, lit(to.attr), v)
	default:
		r.spend(perName)
		sc.set(to.name, v)
	}
}

// macroCall runs a macro.
func (r *run) macroCall(m *macro, a args) text {
	def := m.def
	sc := r.newScope(m.scope, nil)
	r.names(len(def.params) + len(def.hides))
	pos := a.pos[:min(len(a.pos), len(def.params))]
	used := 0
	missing := make([]bool, len(def.params))
	for i, name := range def.params {
		v, ok := r.named(a, name)
		switch {
		case i < len(pos):
			v = pos[i]
		case ok:
			used++
		default:
			v, missing[i] = undefined{name: name}, true
		}
		sc.set(name, v)
	}
	used += r.specials(m, a, sc)
	if more := len(a.pos) - len(def.params); more > 0 && !def.varargs {
		r.fail(tandem.Invalid, "macro %s takes %d values, not %d", def.name, len(def.params), len(a.pos))
	}
	if used < len(a.names) && !def.kwargs {
		r.fail(tandem.Invalid, "macro %s was given a value that it has no name for, or one twice", def.name)
	}
	for _, name := range def.hides {
		sc.set(name, undefined{name: name})
	}
	line := r.line
	r.enter()
	for i, e := range def.values {
		if at := len(def.params) - len(def.values) + i; missing[at] {
			sc.set(def.params[at], r.eval(e, sc))
		}
	}
	out, _ := r.capture(def.body, sc)
	r.leave()
	r.line = line
	return out
}

// specials sets caller, kwargs and varargs where the macro's body reads them, and returns how many named values it took.
func (r *run) specials(m *macro, a args, sc *scope) (used int) {
	def := m.def
	own := func(name string) bool { return sc.index(name) >= 0 }
	if def.caller && !own("caller") {
		v, ok := r.named(a, "caller")
		if ok {
			used++
		}
		if !ok || v == nil {
			v = undefined{name: "caller"}
		}
		sc.set("caller", v)
	}
	if def.kwargs {
		d := &dict{}
		for i, name := range a.names {
			if j := sc.index(name); name == "caller" && def.caller || j >= len(a.pos) && j < len(def.params) && j >= 0 {
				continue
			}
			r.put(d, lit(name), a.vals[i])
		}
		sc.set("kwargs", d)
	}
	if def.varargs {
		sc.set("varargs", r.tupleOf(a.pos[min(len(a.pos), len(def.params)):]...))
	}
	return used
}
