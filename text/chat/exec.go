package chat

import "slices"

// scope holds the variables of a body; conditions have no scope of their own.
type scope struct {
	names []string
	vals  []any
	up    *scope
}

// newScope returns a scope that hides some names of those around it.
func (r *run) newScope(up *scope, hides []string) *scope {
	s := &scope{up: up}
	for _, name := range hides {
		r.add(s, name, undefined{name: name})
	}
	return s
}

// add adds a variable that is not there yet.
func (r *run) add(s *scope, name string, v any) {
	r.spend(perName)
	s.names, s.vals = append(s.names, name), append(s.vals, v)
}

// index returns the place of a variable in its scope, -1 if it is not there.
func (r *run) index(s *scope, name string) int {
	if len(s.names) > 64 {
		r.step(len(s.names) / 64)
	}
	return slices.Index(s.names, name)
}

// get returns a variable.
func (r *run) get(name string, s *scope) any {
	for ; s != nil; s = s.up {
		if i := r.index(s, name); i >= 0 {
			return s.vals[i]
		}
	}
	if f, ok := globals[name]; ok {
		return f
	}
	return undefined{name: name}
}

func (r *run) set(s *scope, name string, v any) {
	if i := r.index(s, name); i >= 0 {
		s.vals[i] = v
		return
	}
	r.add(s, name, v)
}

func (r *run) exec(body []statement, sc *scope) flow {
	r.enter()
	defer r.leave()
	for _, n := range body {
		r.step(1)
		if to := n.exec(r, sc); to != onward {
			return to
		}
	}
	return onward
}

func (n *data) exec(r *run, _ *scope) flow {
	r.out.lit(n.text)
	return onward
}

func (n *output) exec(r *run, sc *scope) flow {
	r.line = n.line
	r.out.add(str(r.meter, r.eval(n.value, sc)))
	return onward
}

func (n *branching) exec(r *run, sc *scope) flow {
	r.line = n.line
	for _, b := range n.branches {
		if b.cond == nil || truth(r.eval(b.cond, sc)) {
			return r.exec(b.body, sc)
		}
	}
	return onward
}

func (n *macroDef) exec(r *run, sc *scope) flow {
	r.spend(perMacro) // with the scope that it keeps
	r.set(sc, n.name, &macro{n, sc})
	return onward
}

func (n *callBlock) exec(r *run, sc *scope) flow {
	r.line = n.line
	r.spend(perMacro)
	r.caller = &macro{n.def, sc}
	r.print(r.eval(n.call, sc))
	return onward
}

func (n *filterBlock) exec(r *run, sc *scope) flow {
	r.line = n.line
	v, to := n.block.printed(r, sc)
	if to == onward {
		r.print(v)
	}
	return to
}

func (n *with) exec(r *run, sc *scope) flow {
	r.line = n.line
	inner := r.newScope(sc, n.hides)
	for i, e := range n.values {
		r.unpack(n.to[i], r.eval(e, sc), inner)
	}
	return r.exec(n.body, inner)
}

func (n *plainBlock) exec(r *run, sc *scope) flow { return r.exec(n.body, r.newScope(sc, n.hides)) }
func (n *jump) exec(*run, *scope) flow            { return n.to }

func (n *assignment) exec(r *run, sc *scope) flow {
	r.line = n.line
	var v any
	to := onward
	if n.value != nil {
		v = r.eval(n.value, sc)
	} else {
		v, to = n.block.printed(r, sc)
	}
	if to == onward {
		r.unpack(n.to, v, sc)
	}
	return to
}

// printed returns what a block prints, through its filters, and how it ended.
func (n *printedBlock) printed(r *run, sc *scope) (any, flow) {
	inner := r.newScope(sc, n.hides)
	out, to := r.capture(n.body, inner)
	if n.chain == nil || to != onward {
		return out, to
	}
	outer := r.printed
	r.printed = out
	v := r.eval(n.chain, inner)
	r.printed = outer
	return v, onward
}

// print prints what a block gave, which in Jinja must be a string.
func (r *run) print(v any) {
	t, ok := v.(text)
	r.invalidIf(!ok, "a block gave %s: want a string", kind(v))
	r.out.add(t)
}

// capture returns what body prints and how it ended.
func (r *run) capture(body []statement, sc *scope) (text, flow) {
	outer := r.out
	b := &builder{m: r.meter}
	r.out = b
	to := r.exec(body, sc)
	r.out = outer
	return b.text(), to
}

// unpack assigns v to a variable, to an attribute of a namespace, or its elements to several.
func (r *run) unpack(to target, v any, sc *scope) {
	switch {
	case to.several:
		r.step(1)
		all := items(r.meter, v)
		r.invalidIf(len(all) != len(to.parts), "%d names for %d values", len(to.parts), len(all))
		for i, part := range to.parts {
			r.unpack(part, all[i], sc)
		}
	case to.attr != "":
		of := r.get(to.name, sc)
		space, ok := of.(*namespace)
		r.invalidIf(!ok, "set %s.%s: %s is %s, not a namespace", to.name, to.attr, to.name, kind(of))
		space.vars.put(r.meter, lit(to.attr), v)
	default:
		r.set(sc, to.name, v)
	}
}
