package chat

// exec runs a for statement. Elements are taken, and its condition is evaluated, turn by turn, as in Jinja.
func (n *loop) exec(r *run, up *scope) flow {
	r.line = n.line
	over := r.eval(n.over, up)
	state := &loopState{m: r.meter, next: each(r.meter, over), length: -1, unpacked: n.cond != nil && n.to.several}
	if _, generator := over.(*stream); !generator && n.cond == nil {
		state.length = length(r.meter, over)
	}
	if n.cond != nil {
		state.next = r.chosen(n, up, state.next)
	}
	none := true
	for {
		item, ok := state.advance()
		if !ok {
			break
		}
		sc := r.newScope(up, n.hides)
		sc.names, sc.vals = append(sc.names, "loop"), append(sc.vals, state)
		r.unpack(n.to, item, sc)
		to := r.exec(n.body, sc)
		if to == breaks {
			break
		}
		none = none && to == continues // Jinja's else follows also when every turn ended in continue
	}
	if n.hasElse && none {
		return r.exec(n.none, r.newScope(up, n.noneHides))
	}
	return onward
}

// chosen gives the elements of next that pass the loop's condition.
func (r *run) chosen(n *loop, up *scope, next func() (any, bool)) func() (any, bool) {
	return func() (any, bool) {
		for {
			item, ok := next()
			if !ok {
				return nil, false
			}
			if _, once := item.(*stream); once && n.to.several {
				r.unknown("a condition behind a loop over generators")
			}
			sc := r.newScope(up, nil)
			r.unpack(n.to, item, sc)
			if truth(r.eval(n.cond, sc)) {
				return item, true
			}
		}
	}
}

// loopState is the variable loop. It is never copied: as in Jinja it always describes the current turn.
type loopState struct {
	m      *meter
	next   func() (any, bool)
	length int64 // -1: not known yet

	turns           int64 // begun
	ahead           []any // elements taken from next before their turn
	ended           bool  // next has no more
	before, current any
	changed         []any // what loop.changed was last called with
	asked           bool  // it was called

	unpacked bool // a condition took elements apart: Jinja puts them together as tuples
}

// advance begins the next turn.
func (l *loopState) advance() (any, bool) {
	item, ok := l.pull()
	if !ok {
		return nil, false
	}
	l.turns++
	l.before, l.current = l.current, item
	return item, true
}

// pull takes the next element.
func (l *loopState) pull() (any, bool) {
	if len(l.ahead) > 0 {
		item := l.ahead[0]
		l.ahead = l.ahead[1:]
		return item, true
	}
	if l.ended {
		return nil, false
	}
	l.m.step(1)
	item, ok := l.next()
	l.ended = !ok
	return item, ok
}

// peek looks at the next element.
func (l *loopState) peek() (any, bool) {
	if len(l.ahead) == 0 {
		item, ok := l.pull()
		if !ok {
			return nil, false
		}
		l.ahead = append(l.ahead, item)
	}
	return l.ahead[0], true
}

// size returns the number of turns; it takes all elements if that is not known otherwise.
func (l *loopState) size() int64 {
	if l.length < 0 {
		for {
			l.m.spend(perItem)
			item, ok := l.next()
			if !ok {
				break
			}
			l.ahead = append(l.ahead, item)
		}
		l.ended = true
		l.length = l.turns + int64(len(l.ahead))
	}
	return l.length
}

func (l *loopState) attr(name string) (any, bool) {
	switch name {
	case "index":
		return l.turns, true
	case "index0":
		return l.turns - 1, true
	case "revindex":
		return l.size() - l.turns + 1, true
	case "revindex0":
		return l.size() - l.turns, true
	case "first":
		return l.turns == 1, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "length":
		return l.size(), true
	case "depth":
		return int64(1), true
	case "depth0":
		return int64(0), true
	case "cycle", "changed":
		return &method{l, name}, true
	case "previtem", "nextitem":
		l.m.unknownIf(l.unpacked, "loop.%s of a loop over several names with a condition", name)
	}
	switch name {
	case "previtem":
		if l.turns > 1 {
			return l.before, true
		}
		return undefined{name: "loop.previtem"}, true
	case "nextitem":
		if item, more := l.peek(); more {
			return item, true
		}
		return undefined{name: "loop.nextitem"}, true
	}
	return nil, false
}

// call is loop.cycle(…) and loop.changed(…).
func (l *loopState) call(name string, a args) any {
	a.m.invalidIf(len(a.names) > 0, "%s takes no names", a.what)
	if name == "cycle" {
		a.m.invalidIf(len(a.pos) == 0, "loop.cycle wants values")
		return a.pos[(l.turns-1)%int64(len(a.pos))]
	}
	if l.asked && equal(a.m, &list{items: l.changed}, &list{items: a.pos}) {
		return false
	}
	l.asked, l.changed = true, a.pos
	return true
}
