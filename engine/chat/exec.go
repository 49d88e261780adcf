package chat

import (
	"github.com/nikolalohinski/gonja/v2/nodes"

	"github.com/tandem-llm/tandem"
)

// scope holds the variables of a loop's or macro's body; if and generation have no scope of their own.
type scope struct {
	vars map[string]any
	up   *scope
}

func newScope(up *scope) *scope { return &scope{map[string]any{}, up} }

func (s *scope) get(name string) any {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[name]; ok {
			return v
		}
	}
	if f, ok := globals[name]; ok {
		return f
	}
	return undefined{name}
}

func (r *run) exec(body []nodes.Node, sc *scope) flow {
	r.enter()
	defer r.leave()
	for _, n := range body {
		r.step(1)
		switch n := n.(type) {
		case *nodes.Data:
			r.out.lit(n.Data.Val)
		case *nodes.Output:
			r.line = n.Start.Line
			r.out.add(r.str(r.eval(n.Expression, sc)))
		case *nodes.ControlStructureBlock:
			r.line = n.Location.Line
			if to := r.statement(n.ControlStructure, sc); to != onward {
				return to
			}
		}
	}
	return onward
}

func (r *run) statement(n nodes.ControlStructure, sc *scope) flow {
	switch n := n.(type) {
	case *ifBlock:
		for _, b := range n.branches {
			if b.cond == nil || truth(r.eval(b.cond, sc)) {
				return r.exec(b.body, sc)
			}
		}
	case *forLoop:
		return r.loop(n, sc)
	case *set:
		r.assign(n, sc)
	case *macroDef:
		r.spend(perMacro) // with the scope that it keeps
		sc.vars[n.name] = &macro{n, sc}
	case *block:
		return r.exec(n.body, sc)
	case *jump:
		return n.to
	}
	return onward
}

func (r *run) loop(n *forLoop, up *scope) flow {
	all := r.items(r.eval(n.over, up))
	chosen := all
	if n.cond != nil {
		chosen = nil
		for _, item := range all {
			sc := newScope(up)
			r.unpack(n.targets, item, sc)
			if truth(r.eval(n.cond, sc)) {
				r.spend(perItem)
				chosen = append(chosen, item)
			}
		}
	}
	if len(chosen) == 0 {
		return r.exec(n.none, up)
	}
	state := &loopState{items: chosen}
	for i, item := range chosen {
		r.step(1)
		state.index = i
		sc := newScope(up)
		sc.vars["loop"] = state
		r.unpack(n.targets, item, sc)
		if r.exec(n.body, sc) == breaks {
			break
		}
	}
	return onward
}

// loopState is the variable loop. It is never copied: as in Jinja it always describes the current turn.
type loopState struct {
	items []any
	index int
}

func (l *loopState) attr(name string) any {
	i, n := l.index, len(l.items)
	switch name {
	case "index":
		return int64(i + 1)
	case "index0":
		return int64(i)
	case "revindex":
		return int64(n - i)
	case "revindex0":
		return int64(n - i - 1)
	case "first":
		return i == 0
	case "last":
		return i == n-1
	case "length":
		return int64(n)
	case "previtem":
		if i > 0 {
			return l.items[i-1]
		}
	case "nextitem":
		if i < n-1 {
			return l.items[i+1]
		}
	}
	return undefined{"loop." + name}
}

// unpack assigns v to a single name, or its items to several.
func (r *run) unpack(names []string, v any, sc *scope) {
	if len(names) == 1 {
		sc.vars[names[0]] = v
		return
	}
	items := r.items(v)
	if len(items) != len(names) {
		r.fail(tandem.Invalid, "%d names for %d values", len(names), len(items))
	}
	for i, name := range names {
		sc.vars[name] = items[i]
	}
}

func (r *run) assign(n *set, sc *scope) {
	var v any
	if n.value != nil {
		v = r.eval(n.value, sc)
	} else {
		v = r.capture(n.body, sc)
	}
	if n.attr == "" {
		r.unpack(n.targets, v, sc)
		return
	}
	space, ok := sc.get(n.targets[0]).(*dict)
	if !ok || !space.space {
		r.fail(tandem.Invalid, "set %s.%s: %s is %s, not a namespace", n.targets[0], n.attr, n.targets[0], kind(sc.get(n.targets[0])))
	}
	r.put(space, lit(n.attr), v)
}

// capture returns what body prints. Its set statements have no effect outside it.
func (r *run) capture(body []nodes.Node, sc *scope) text {
	outer := r.out
	b := &builder{r: r}
	r.out = b
	r.exec(body, newScope(sc))
	r.out = outer
	return b.text()
}

// call runs a macro.
func (r *run) call(m *macro, a args) any {
	sc := newScope(m.scope)
	if len(a.pos) > len(m.def.params) {
		r.fail(tandem.Invalid, "macro %s takes %d values, not %d", m.def.name, len(m.def.params), len(a.pos))
	}
	used := 0
	for i, name := range m.def.params {
		v, ok := a.get(i, name)
		switch {
		case ok:
			used++
		case m.def.values[i] != nil:
			v = r.eval(m.def.values[i], sc)
		default:
			v = undefined{name}
		}
		sc.vars[name] = v
	}
	if used != len(a.pos)+len(a.named) {
		r.fail(tandem.Invalid, "macro %s was given a value that it has no name for, or one twice", m.def.name)
	}
	line := r.line
	out := r.capture(m.def.body, sc)
	r.line = line
	return out
}
