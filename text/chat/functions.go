package chat

import (
	"cmp"

	"github.com/tandem-llm/tandem"
)

// globals are the functions that every template has, but for strftime_now, which knows the time of the rendering. raise_exception is that
// of Hugging Face's transformers, for which templates are written.
var globals = map[string]function{
	"range":           makeRange,
	"dict":            func(a args) any { return dictOf(a) },
	"namespace":       func(a args) any { return &namespace{*dictOf(a)} },
	"raise_exception": raise,

	// names that Jinja2 gives a meaning
	"cycler": notHad("cycler"), "joiner": notHad("joiner"), "lipsum": notHad("lipsum"), "self": notHad("self"),
}

func notHad(name string) function {
	return func(a args) any {
		a.m.unknown("the function %s of Jinja", name)
		return nil
	}
}

func raise(a args) any {
	message := str(a.m, a.bind(1, "message").vals[0]).s
	if len(message) > 500 {
		message = message[:500] + "…"
	}
	panic(failure{tandem.Errorf(op, tandem.Invalid, "the chat template refuses the conversation: %s", message)})
}

const maxRange = 100_000 // numbers, as in the sandbox that chat templates are written for

func makeRange(a args) any {
	p := a.bind(1, "", "", "")
	from, to, step := 0, p.int(0, 0), p.int(2, 1)
	if p.has(1) {
		from, to = to, p.int(1, 0)
	}
	a.m.invalidIf(step == 0, "range with step 0")
	n := max(0, (to-from+step-cmp.Compare(step, 0))/step)
	a.m.invalidIf(n > maxRange, "range of %d numbers: want at most %d", n, maxRange)
	return &counting{int64(from), int64(step), int64(n), int64(to)}
}

// dictOf is a dict of named values, after those of a given dict.
func dictOf(a args) *dict {
	d := &dict{}
	a.m.spend(perPair)
	if len(a.pos) > 0 {
		from, ok := a.pos[0].(*dict)
		a.m.unknownIf(!ok || len(a.pos) > 1, "%s of anything but one dict and names", a.what)
		for i, k := range from.keys {
			d.put(a.m, k, from.vals[i])
		}
	}
	for i, name := range a.names {
		d.put(a.m, lit(name), a.vals[i])
	}
	return d
}
