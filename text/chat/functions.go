package chat

import (
	"github.com/tandem-llm/tandem"
)

// globals are the functions that every template has. raise_exception and strftime_now are those of Hugging
// Face's transformers, for which templates are written.
var globals = map[string]function{
	"range":           makeRange,
	"dict":            func(r *run, a args) any { return r.dictOf(a) },
	"namespace":       func(r *run, a args) any { return &namespace{*r.dictOf(a)} },
	"cycler":          makeCycler,
	"joiner":          makeJoiner,
	"raise_exception": raise,
	"strftime_now":    strftimeNow,

	// names that Jinja2 gives a meaning
	"lipsum": refused("lipsum"), "self": refused("self"),
}

func refused(name string) function {
	return func(r *run, _ args) any {
		r.fail(tandem.Unsupported, "the function %s of Jinja is not one that tandem has", name)
		return nil
	}
}

func raise(r *run, a args) any {
	message := r.str(r.bind(a, 1, "message").vals[0]).s
	if len(message) > 500 {
		message = message[:500] + "…"
	}
	panic(failure{tandem.Errorf(op, tandem.Invalid, "the chat template refuses the conversation: %s", message)})
}

const maxRange = 100_000 // numbers, as in the sandbox that chat templates are written for

func makeRange(r *run, a args) any {
	r.noNames(a)
	r.take(a, 1, 3)
	p := r.bind(a, 1, "", "", "")
	from, to, step := 0, p.int(0, 0), p.int(2, 1)
	if p.has(1) {
		from, to = to, p.int(1, 0)
	}
	if step == 0 {
		r.fail(tandem.Invalid, "range with step 0")
	}
	n := max(0, (to-from+step-sign(step))/step)
	if n > maxRange {
		r.fail(tandem.Invalid, "range of %d numbers: want at most %d", n, maxRange)
	}
	return &counting{int64(from), int64(step), int64(n), int64(to)}
}

// dictOf is a dict of named values, after those of one given dict or list of pairs.
func (r *run) dictOf(a args) *dict {
	r.take(a, 0, 1)
	r.spend(perPair)
	d := &dict{}
	if len(a.pos) == 1 {
		switch from := a.pos[0].(type) {
		case *dict:
			d = r.copied(from)
		case undefined:
			r.refuse(from, "keys")
		default:
			for _, pair := range r.items(a.pos[0]) {
				kv := r.items(pair)
				if len(kv) != 2 {
					r.fail(tandem.Invalid, "%s wants a dict or pairs, not %d values", a.what, len(kv))
				}
				r.put(d, kv[0], kv[1])
			}
		}
	}
	for i, name := range a.names {
		r.put(d, lit(name), a.vals[i])
	}
	return d
}

func makeCycler(r *run, a args) any {
	r.noNames(a)
	if len(a.pos) == 0 {
		r.fail(tandem.Invalid, "cycler wants values")
	}
	return &cycler{items: a.pos}
}

func makeJoiner(r *run, a args) any {
	return &joiner{sep: r.bind(a, 0, "sep").or(0, lit(", "))}
}
