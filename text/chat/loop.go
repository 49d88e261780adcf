package chat

import (
	"github.com/tandem-llm/tandem"
)

// loop runs a for statement.
func (r *run) loop(n *loop, up *scope) flow {
	over := r.eval(n.over, up)
	if n.recursive {
		text, _ := r.recursion(n, up, over, 0)
		r.out.add(text)
		return onward
	}
	return r.turns(n, up, &loopState{r: r}, over)
}

// recursion runs a recursive loop and returns what it prints.
func (r *run) recursion(n *loop, up *scope, over any, depth int) (text, flow) {
	outer := r.out
	b := &builder{r: r}
	r.out = b
	r.enter()
	state := &loopState{r: r, depth0: depth}
	state.recurse = func(v any) text {
		out, _ := r.recursion(n, up, v, depth+1)
		return out
	}
	to := r.turns(n, up, state, over)
	r.leave()
	r.out = outer
	return b.text(), to
}

// turns runs the body for each element of over that passes the condition. Elements are taken, and the condition is evaluated,
// turn by turn, as in Jinja.
func (r *run) turns(n *loop, up *scope, state *loopState, over any) flow {
	state.next = r.each(over)
	state.length = -1
	if _, generator := over.(*stream); !generator && n.cond == nil {
		state.length, _ = r.length(over)
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
		sc.set("loop", state)
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
			sc := r.newScope(up, nil)
			r.unpack(n.to, item, sc)
			if truth(r.eval(n.cond, sc)) {
				return r.packed(n.to, item, sc), true
			}
		}
	}
}

// packed returns an element that passed a condition: where several variables took it apart, they are put together as a tuple.
func (r *run) packed(to target, item any, sc *scope) any {
	if !to.several {
		return item
	}
	l := r.tupleOf()
	items := r.items(item)
	if len(items) != len(to.parts) { // a generator: the variables have what it gave
		items = make([]any, len(to.parts))
	}
	for i, part := range to.parts {
		v := items[i]
		if !part.several {
			v = sc.get(part.name)
		}
		r.push(l, r.packed(part, v, sc))
	}
	return l
}

// loopState is the variable loop. It is never copied: as in Jinja it always describes the current turn.
type loopState struct {
	r       *run
	next    func() (any, bool)
	recurse func(v any) text // nil if the loop is not recursive
	depth0  int
	index0  int64 // -1 before the first turn is counted from 0 on by turns
	length  int64 // -1: not known yet

	turns           int64 // taken
	ahead           []any // elements taken from next before their turn
	ended           bool  // next has no more
	before, current any
	changed         []any // what loop.changed was last called with
	asked           bool  // it was called
}

// advance begins the next turn.
func (l *loopState) advance() (any, bool) {
	item, ok := l.pull()
	if !ok {
		return nil, false
	}
	l.index0 = l.turns
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
	l.r.step(1)
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
			l.r.spend(perItem)
			item, ok := l.next()
			if !ok {
				break
			}
			l.ahead = append(l.ahead, item)
		}
		l.ended = true
		l.length = l.index0 + 1 + int64(len(l.ahead))
	}
	return l.length
}

func (l *loopState) attr(name string) (any, bool) {
	switch name {
	case "index":
		return l.index0 + 1, true
	case "index0":
		return l.index0, true
	case "revindex":
		return l.size() - l.index0, true
	case "revindex0":
		return l.size() - l.index0 - 1, true
	case "first":
		return l.index0 == 0, true
	case "last":
		_, more := l.peek()
		return !more, true
	case "length":
		return l.size(), true
	case "depth":
		return int64(l.depth0 + 1), true
	case "depth0":
		return int64(l.depth0), true
	case "previtem":
		if l.index0 == 0 {
			return undefined{name: "loop.previtem"}, true
		}
		return l.before, true
	case "nextitem":
		if item, more := l.peek(); more {
			return item, true
		}
		return undefined{name: "loop.nextitem"}, true
	case "cycle", "changed":
		return &method{l, name}, true
	}
	return nil, false
}

// call is loop(v), loop.cycle(…) and loop.changed(…).
func (l *loopState) call(r *run, name string, a args) any {
	switch name {
	case "cycle":
		r.noNames(a)
		if len(a.pos) == 0 {
			r.fail(tandem.Invalid, "loop.cycle wants values")
		}
		return a.pos[l.index0%int64(len(a.pos))]
	case "changed":
		r.noNames(a)
		if l.asked && r.equal(&list{items: l.changed}, &list{items: a.pos}) {
			return false
		}
		l.asked, l.changed = true, a.pos
		return true
	}
	r.noNames(a)
	r.take(a, 1, 1)
	if l.recurse == nil {
		r.fail(tandem.Invalid, "loop is called in a loop without \"recursive\"")
	}
	return l.recurse(a.pos[0])
}
