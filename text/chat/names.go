package chat

import "slices"

// Jinja2 decides before it runs a template which variable a name means in a scope: one that the scope assigns to before it
// reads it, and that no scope around it names, is undefined until then, even if the caller has given a variable of that name. So
//
//	{% for m in messages %}{{ x }}{% endfor %}{% set x = 1 %}
//
// never prints the caller's x. names finds these names; they are set to undefined when a scope begins.
type names struct {
	up    *names
	seen  map[string]bool // read, assigned to, or a parameter
	own   map[string]bool // parameters, and those that hides has
	hides []string
	all   map[string]bool // read in any scope where they may be the caller's
	inner []func()        // the scopes inside this one, which follow when it is complete
}

// hidden returns the names that the outermost scope hides, and notes in body those of the scopes inside. reads are the caller's
// variables that some scope reads.
func hidden(body []statement) (hides []string, reads map[string]bool) {
	n := &names{seen: map[string]bool{}, own: map[string]bool{}, all: map[string]bool{}}
	hides = n.scope(func() { n.body(body, false) })
	return hides, n.all
}

// scope looks through a scope and then through those inside it.
func (n *names) scope(look func()) []string {
	look()
	for _, f := range n.inner {
		f()
	}
	return n.hides
}

// within notes a scope inside n.
func (n *names) within(to *[]string, look func(*names)) {
	n.inner = append(n.inner, func() {
		in := &names{up: n, seen: map[string]bool{}, own: map[string]bool{}, all: n.all}
		*to = in.scope(func() { look(in) })
	})
}

func (n *names) read(name string) {
	known := false
	for s := n; s != nil; s = s.up {
		if s.own[name] {
			return
		}
		known = known || s.seen[name]
	}
	n.all[name] = true
	if !known {
		n.seen[name] = true
	}
}

// store notes an assignment. maybe: in a condition, where Jinja2 takes the caller's variable until then.
func (n *names) store(name string, maybe bool) {
	if n.seen[name] {
		return
	}
	n.seen[name] = true
	for s := n.up; s != nil; s = s.up {
		if s.seen[name] {
			return
		}
	}
	if !maybe {
		n.own[name] = true
		n.hides = append(n.hides, name)
	}
}

// param notes a variable that the scope begins with.
func (n *names) param(name string) { n.seen[name], n.own[name] = true, true }

// target notes what is assigned to; params: the names begin the scope.
func (n *names) target(t target, params, maybe bool) {
	switch {
	case t.several:
		for _, part := range t.parts {
			n.target(part, params, maybe)
		}
	case t.attr != "":
		n.read(t.name)
	case params:
		n.param(t.name)
	default:
		n.store(t.name, maybe)
	}
}

func (n *names) body(body []statement, maybe bool) {
	for _, s := range body {
		n.statement(s, maybe)
	}
}

func (n *names) statement(s statement, maybe bool) {
	switch s := s.(type) {
	case *output:
		n.exprs(s.values...)
	case *branching:
		for _, b := range s.branches {
			n.exprs(b.cond)
			n.body(b.body, true)
		}
	case *loop:
		n.exprs(s.over)
		n.within(new([]string), func(in *names) {
			in.target(s.to, true, false)
			in.exprs(s.cond)
		})
		n.within(&s.hides, func(in *names) {
			in.param("loop")
			in.target(s.to, true, false)
			in.body(s.body, false)
		})
		n.within(&s.noneHides, func(in *names) { in.body(s.none, false) })
	case *assignment:
		n.exprs(s.value)
		n.target(s.to, false, maybe)
		if s.value == nil {
			n.within(&s.hides, func(in *names) { in.body(s.body, false) })
		}
	case *macroDef:
		n.store(s.name, maybe)
		n.macro(s)
	case *callBlock:
		n.exprs(s.call)
		n.macro(s.def)
	case *filterBlock:
		n.exprs(s.chain)
		n.within(&s.hides, func(in *names) {
			in.body(s.body, false)
			in.exprs(s.chain)
		})
	case *with:
		n.exprs(s.values...)
		n.within(&s.hides, func(in *names) {
			for _, t := range s.to {
				in.target(t, true, false)
			}
			in.body(s.body, false)
		})
	case *plainBlock:
		n.within(&s.hides, func(in *names) { in.body(s.body, false) })
	}
}

func (n *names) macro(m *macroDef) {
	n.within(&m.hides, func(in *names) {
		for _, name := range slices.Concat(m.params, []string{"caller", "kwargs", "varargs"}) {
			in.param(name)
		}
		in.exprs(m.values...)
		in.body(m.body, false)
	})
}

// exprs notes the names that expressions read.
func (n *names) exprs(in ...expr) {
	for _, e := range in {
		switch e := e.(type) {
		case *variable:
			n.read(e.name)
		case *listing:
			n.exprs(e.items...)
		case *mapping:
			n.exprs(e.keys...)
			n.exprs(e.vals...)
		case *attribute:
			n.exprs(e.of)
		case *subscript:
			n.exprs(e.of, e.key)
		case *slicing:
			n.exprs(e.of, e.from, e.to, e.step)
		case *call:
			n.exprs(e.of)
			n.args(&e.args)
		case *filtered:
			n.exprs(e.of)
			n.args(&e.args)
		case *tested:
			n.exprs(e.of)
			n.args(&e.args)
		case *negation:
			n.exprs(e.of)
		case *signed:
			n.exprs(e.of)
		case *binary:
			n.exprs(e.left, e.right)
		case *comparison:
			n.exprs(e.first)
			n.exprs(e.rest...)
		case *concat:
			n.exprs(e.parts...)
		case *ternary:
			n.exprs(e.yes, e.cond, e.no)
		}
	}
}

func (n *names) args(a *callArgs) {
	n.exprs(a.pos...)
	n.exprs(a.vals...)
	n.exprs(a.list, a.pairs)
}
