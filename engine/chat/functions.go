package chat

import (
	"fmt"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
)

// globals are the functions that every template has. raise_exception and strftime_now are those of Hugging
// Face's transformers, for which templates are written.
var globals = map[string]function{
	"range":           makeRange,
	"namespace":       func(r *run, a args) any { d := r.dictOf(a); d.space = true; return d },
	"dict":            func(r *run, a args) any { return r.dictOf(a) },
	"raise_exception": raise,
	"strftime_now":    strftimeNow,
}

func raise(r *run, a args) any {
	r.take(a, 1, 1)
	message := r.str(a.pos[0]).s
	if len(message) > 500 {
		message = message[:500] + "…"
	}
	panic(failure{tandem.Errorf(op, tandem.Invalid, "the chat template refuses the conversation: %s", message)})
}

func makeRange(r *run, a args) any {
	r.take(a, 1, 3)
	from, to, step := 0, r.intArg(a, 0, "", 0), r.intArg(a, 2, "", 1)
	if len(a.pos) > 1 {
		from, to = to, r.intArg(a, 1, "", 0)
	}
	if step == 0 {
		r.fail(tandem.Invalid, "range with step 0")
	}
	n := (to - from + step - 1) / step
	if step < 0 {
		n = (to - from + step + 1) / step
	}
	n = max(n, 0)
	r.step(n)
	r.spend(perItem * n)
	l := &list{items: make([]any, n)}
	for i := range l.items {
		l.items[i] = int64(from + i*step)
	}
	return l
}

// dictOf is a dict of named values, after those of one given dict.
func (r *run) dictOf(a args) *dict {
	r.take(a, 0, 1)
	r.spend(perPair)
	d := &dict{}
	if len(a.pos) == 1 {
		from, ok := a.pos[0].(*dict)
		if !ok {
			r.fail(tandem.Invalid, "%s wants a dict, not %s", a.what, kind(a.pos[0]))
		}
		for i, k := range from.keys {
			r.put(d, k, from.vals[i])
		}
	}
	for _, name := range sortedNames(a) {
		r.put(d, lit(name), a.named[name])
	}
	return d
}

func strftimeNow(r *run, a args) any {
	r.take(a, 1, 1)
	t := r.textArg(a, 0, "format")
	b := builder{r: r}
	for s := t.s; s != ""; {
		i := strings.IndexByte(s, '%')
		if i < 0 || i+1 == len(s) {
			b.lit(s)
			break
		}
		b.lit(s[:i])
		part, ok := timePart(r.now, s[i+1])
		if !ok {
			r.fail(tandem.Unsupported, "strftime_now knows no %%%c", s[i+1])
		}
		b.lit(part)
		s = s[i+2:]
	}
	return t.remade(b.text().s)
}

func timePart(t time.Time, c byte) (string, bool) {
	if layout, ok := map[byte]string{'d': "02", 'B': "January", 'b': "Jan", 'Y': "2006", 'y': "06", 'm': "01", 'H': "15", 'I': "03",
		'M': "04", 'S': "05", 'p': "PM", 'A': "Monday", 'a': "Mon", 'F': "2006-01-02", 'T': "15:04:05", 'Z': "MST", 'z': "-0700",
	}[c]; ok {
		return t.Format(layout), true
	}
	switch c {
	case 'j':
		return fmt.Sprintf("%03d", t.YearDay()), true
	case '%':
		return "%", true
	}
	return "", false
}
