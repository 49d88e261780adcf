package chat

import (
	"math"
	"strings"
	"unicode/utf8"
)

// textMethods are methods of Python's str.
var textMethods = map[string]func(t text, a args) any{
	"upper":      func(t text, a args) any { return t.recased(a, upper) },
	"lower":      func(t text, a args) any { return t.recased(a, lower) },
	"title":      func(t text, a args) any { return t.recased(a, title) },
	"capitalize": func(t text, a args) any { return t.recased(a, capitalize) },
	"strip":      func(t text, a args) any { return t.strip(a.bind(0, ""), true, true) },
	"lstrip":     func(t text, a args) any { return t.strip(a.bind(0, ""), true, false) },
	"rstrip":     func(t text, a args) any { return t.strip(a.bind(0, ""), false, true) },
	"startswith": func(t text, a args) any { return t.affix(a, strings.HasPrefix) },
	"endswith":   func(t text, a args) any { return t.affix(a, strings.HasSuffix) },
	"replace": func(t text, a args) any {
		p := a.bind(2, "", "", "")
		return t.replace(a.m, p.text(0), p.text(1), p.int(2, -1))
	},
	"split":      func(t text, a args) any { return t.split(a) },
	"splitlines": func(t text, a args) any { return &list{items: t.lines(a.m, a.bind(0, "keepends").truth(0))} },
	"find":       func(t text, a args) any { return t.search(a, strings.Index) },
	"rfind":      func(t text, a args) any { return t.search(a, strings.LastIndex) },
	"join":       func(t text, a args) any { return t.join(a) },
	"format":     func(t text, a args) any { return format(t, a) },
}

// textMethod calls a method of t.
func textMethod(t text, name string, a args) any {
	a.m.unknownIf(t.safe, ".%s() of a safe string", name)
	a.m.work(len(t.s))
	a.m.spend(16 * len(t.user)) // spans of the parts
	return textMethods[name](t, a)
}

func (t text) recased(a args, to func(*meter, string) string) text {
	a.bind(0)
	return t.remade(to(a.m, t.s))
}

func (t text) strip(p params, left, right bool) text {
	var cut *text
	p.m.spend(16 * len(t.user))
	if p.or(0, nil) != nil {
		c := p.text(0)
		p.m.step(len(c.s) * (1 + len(t.s)/256)) // each character is looked for in c
		cut = &c
	}
	return t.trimmed(cut, left, right)
}

// within returns the bytes of t that the parameters from and to mean, as slices have them; false if they mean none at all.
func (t text) within(p params) (i, j int, ok bool) {
	count := utf8.RuneCountInString(t.s)
	by := span{to: math.MaxInt32, step: 1, hasFrom: true, hasTo: true}
	if p.or(1, nil) != nil {
		by.from = p.int(1, 0)
	}
	if p.or(2, nil) != nil {
		by.to = p.int(2, 0)
	}
	from, to := by.of(count)
	if by.from > count || to < from {
		return 0, 0, false
	}
	i = offset(t.s, from)
	return i, i + offset(t.s[i:], to-from), true
}

// affix is startswith and endswith, of one string or any of a tuple.
func (t text) affix(a args, has func(s, fix string) bool) any {
	p := a.bind(1, "", "", "")
	fixes := []any{p.vals[0]}
	if l, ok := p.vals[0].(*list); ok && l.tuple {
		fixes = l.items
	}
	i, j, ok := t.within(p)
	for _, f := range fixes {
		fix, isText := f.(text)
		a.m.invalidIf(!isText, "%s wants a string or a tuple of strings, not %s", p.what, kind(f))
		a.m.work(len(fix.s))
		if ok && has(t.s[i:j], fix.s) {
			return true
		}
	}
	return false
}

// seek counts looking for part in s. From the end, and for a long part, each byte is hashed.
func seek(m *meter, s, part string, last bool) {
	if m.work(len(s)); last || len(part) > 32 {
		m.step((len(s) + len(part)) / 32)
	}
}

// search is find and rfind, within a part of t.
func (t text) search(a args, find func(s, part string) int) any {
	p := a.bind(1, "", "", "")
	part := p.text(0).s
	seek(a.m, t.s, part, true)
	if i, j, ok := t.within(p); ok {
		if at := find(t.s[i:j], part); at >= 0 {
			return int64(utf8.RuneCountInString(t.s[:i+at]))
		}
	}
	return int64(-1)
}

// replace puts with for the first n occurrences of old, for all when n is negative. An empty old is before each character and at
// the end.
func (t text) replace(m *meter, old, with text, n int) text {
	seek(m, t.s, old.s, false)
	b := builder{m: m}
	from := 0
	for ; n != 0; n-- {
		i := strings.Index(t.s[from:], old.s)
		if i < 0 {
			break
		}
		b.add(t.slice(from, from+i))
		b.add(with)
		from += i + len(old.s)
		if old.s == "" {
			if from == len(t.s) {
				break
			}
			_, width := utf8.DecodeRuneInString(t.s[from:])
			b.add(t.slice(from, from+width))
			if from += width; from == len(t.s) && n != 1 {
				b.add(with)
				break
			}
		}
	}
	b.add(t.slice(from, len(t.s)))
	return b.text()
}

// split is .split(sep, maxsplit): at sep, or at runs of white space.
func (t text) split(a args) *list {
	p := a.bind(0, "sep", "maxsplit")
	most := p.int(1, -1)
	out := &list{}
	if p.or(0, nil) == nil {
		for t = t.trimmed(nil, true, false); t.s != ""; t = t.trimmed(nil, true, false) {
			a.m.spend(16 * len(t.user))
			end := strings.IndexFunc(t.s, isSpace)
			if end < 0 || most >= 0 && len(out.items) == most {
				end = len(t.s)
			}
			out.push(a.m, t.slice(0, end))
			t = t.slice(end, len(t.s))
		}
		return out
	}
	sep := p.text(0)
	a.m.invalidIf(sep.s == "", "%s wants a separator that is not empty", a.what)
	seek(a.m, t.s, sep.s, false)
	from := 0
	for most < 0 || len(out.items) < most {
		i := strings.Index(t.s[from:], sep.s)
		if i < 0 {
			break
		}
		out.push(a.m, t.slice(from, from+i))
		from += i + len(sep.s)
	}
	out.push(a.m, t.slice(from, len(t.s)))
	return out
}

// lines cuts t behind line breaks, with them if keep. A break at the end begins no further line.
func (t text) lines(m *meter, keep bool) []any {
	out := []any{}
	for from := 0; from < len(t.s); {
		i := strings.IndexFunc(t.s[from:], isBreak)
		end, next := len(t.s), len(t.s)
		if i >= 0 {
			end = from + i
			_, n := utf8.DecodeRuneInString(t.s[end:])
			if next = end + n; strings.HasPrefix(t.s[end:], "\r\n") {
				next++
			}
		}
		if keep {
			end = next
		}
		m.spend(perItem)
		out = append(out, t.slice(from, end))
		from = next
	}
	return out
}

func isBreak(c rune) bool {
	return c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

// join is .join(v), where all elements are strings.
func (t text) join(a args) text {
	b := builder{m: a.m}
	next := each(a.m, a.bind(1, "").vals[0])
	for i := 0; ; i++ {
		e, ok := next()
		if !ok {
			return b.text()
		}
		part, isText := e.(text)
		a.m.invalidIf(!isText, ".join() wants strings, not %s", kind(e))
		if i > 0 {
			b.add(t)
		}
		b.add(part)
	}
}
