package chat

// Jinja2 decides before it runs a template which variable a name means in a scope: one that the scope assigns to before it
// reads it, and that no scope around it names, is undefined until then, even if the caller has given a variable of that name. So
//
//	{% for m in messages %}{{ x }}{% endfor %}{% set x = 1 %}
//
// never prints the caller's x. The parser notes in a names what each scope reads and assigns to; resolve finds the names that are set to
// undefined when a scope begins.
type names struct {
	up       *names
	mentions []mention       // in the order of the source
	seen     map[string]bool // read, assigned to, or a parameter
	own      map[string]bool // parameters, and those that hides has
	hides    *[]string
	inner    []*names // the scopes inside this one, which follow when it is complete
}

// mention is a name that is read or assigned to. maybe: assigned in a condition, where Jinja takes the caller's variable until then.
type mention struct {
	name         string
	store, maybe bool
}

func newNames(up *names, hides *[]string) *names {
	n := &names{up: up, seen: map[string]bool{}, own: map[string]bool{}, hides: hides}
	if up != nil {
		up.inner = append(up.inner, n)
	}
	return n
}

func (n *names) read(name string) { n.mentions = append(n.mentions, mention{name: name}) }
func (n *names) store(name string, maybe bool) {
	n.mentions = append(n.mentions, mention{name, true, maybe})
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

// resolve finds what this scope and those inside it hide, and adds to all the names that may be the caller's variables.
func (n *names) resolve(all map[string]bool) {
	for _, m := range n.mentions {
		owned, known := n.around(m.name)
		switch {
		case !m.store && !owned:
			all[m.name] = true
			n.seen[m.name] = n.seen[m.name] || !known
		case m.store && !n.seen[m.name]:
			n.seen[m.name] = true
			if !known && !m.maybe {
				n.own[m.name] = true
				*n.hides = append(*n.hides, m.name)
			}
		}
	}
	for _, in := range n.inner {
		in.resolve(all)
	}
}

// around reports whether this scope or one around it owns a name, and whether one has seen it.
func (n *names) around(name string) (owned, known bool) {
	for s := n; s != nil; s = s.up {
		owned = owned || s.own[name]
		known = known || s.seen[name]
	}
	return owned, known
}
