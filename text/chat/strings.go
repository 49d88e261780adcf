package chat

import (
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// textMethod is a method of Python's str. Of a safe string most give safe strings.
func (r *run) textMethod(t text, name string, a args) any {
	r.work(len(t.s))
	r.spend(16 * len(t.user)) // spans of the parts
	switch name {
	case "upper", "lower", "title", "capitalize", "swapcase", "casefold":
		r.bind(a, 0)
		return t.remade(recase[name](r, t.s))
	case "strip", "lstrip", "rstrip":
		return r.strip(t, name, r.bind(a, 0, ""))
	case "startswith", "endswith":
		return r.affix(t, name, r.bind(a, 1, "", "", ""))
	case "removeprefix", "removesuffix":
		fix := r.bind(a, 1, "").text(0).s
		switch {
		case name == "removeprefix" && strings.HasPrefix(t.s, fix):
			return t.slice(len(fix), len(t.s))
		case name == "removesuffix" && strings.HasSuffix(t.s, fix):
			return t.slice(0, len(t.s)-len(fix))
		}
		return t
	case "replace":
		p := r.bind(a, 2, "", "", "")
		with := p.text(1)
		if t.safe {
			with = r.escape(with)
		}
		return r.replace(t, p.text(0), with, p.int(2, -1))
	case "split", "rsplit":
		p := r.bind(a, 0, "sep", "maxsplit")
		if p.or(0, nil) == nil {
			return &list{items: r.fields(t, p.int(1, -1), name == "rsplit")}
		}
		if p.text(0).s == "" {
			r.fail(tandem.Invalid, "%s wants a separator that is not empty", a.what)
		}
		return &list{items: r.split(t, p.text(0), p.int(1, -1), name == "rsplit")}
	case "partition", "rpartition":
		return r.partition(t, r.bind(a, 1, "").text(0), name == "rpartition")
	case "splitlines":
		return &list{items: r.lines(t, r.bind(a, 0, "keepends").truth(0))}
	case "find", "rfind", "index", "rindex", "count":
		return r.search(t, name, r.bind(a, 1, "", "", ""))
	case "join":
		return r.joinStrings(t, r.bind(a, 1, "").vals[0])
	case "center", "ljust", "rjust", "zfill", "expandtabs":
		return r.padded(t, name, a)
	case "format":
		return r.format(t, a)
	case "format_map":
		p := r.bind(a, 1, "")
		return r.formatWith(t, nil, func(name string) (any, bool) { return r.element(p.vals[0], lit(name)) })
	}
	r.bind(a, 0)
	r.step(len(t.s) / 64)
	return is(t.s, name)
}

var recase = map[string]func(*run, string) string{"upper": upper, "lower": lower, "title": title, "capitalize": capitalize,
	"swapcase": swapcase, "casefold": casefold}

func (r *run) strip(t text, name string, p params) text {
	var cut *text
	r.spend(16 * len(t.user))
	if p.or(0, nil) != nil {
		c := p.text(0)
		r.step(len(c.s) * (1 + len(t.s)/256)) // each character is looked for in c
		cut = &c
	}
	return t.trimmed(cut, name != "rstrip", name != "lstrip")
}

// span returns the bytes of t that the parameters from and to mean, as slices have them; false if they mean none at all.
func (r *run) span(t text, p params) (i, j int, ok bool) {
	count := utf8.RuneCountInString(t.s)
	start, stop := 0, math.MaxInt32
	if p.or(1, nil) != nil {
		start = p.int(1, 0)
	}
	if p.or(2, nil) != nil {
		stop = p.int(2, 0)
	}
	if start > count {
		return 0, 0, false
	}
	from, to := bounds(count, start, stop, 1, true, true)
	if to < from {
		return 0, 0, false
	}
	i = offset(t.s, from)
	return i, i + offset(t.s[i:], to-from), true
}

// affix is startswith and endswith, of one string or any of a tuple.
func (r *run) affix(t text, name string, p params) any {
	fixes := []any{p.vals[0]}
	if l, ok := p.vals[0].(*list); ok && l.tuple {
		fixes = l.items
	}
	i, j, ok := r.span(t, p)
	for _, f := range fixes {
		fix, isText := f.(text)
		if !isText {
			r.fail(tandem.Invalid, "%s wants a string or a tuple of strings, not %s", p.what, kind(f))
		}
		r.work(len(fix.s))
		if ok && (name == "startswith" && strings.HasPrefix(t.s[i:j], fix.s) || name == "endswith" && strings.HasSuffix(t.s[i:j], fix.s)) {
			return true
		}
	}
	return false
}

// seek counts looking for part in s. From the end, and for a long part, each byte is hashed.
func (r *run) seek(s, part string, last bool) {
	if r.work(len(s)); last || len(part) > 32 {
		r.step((len(s) + len(part)) / 32)
	}
}

// search is find, rfind, index, rindex and count, within a part of t.
func (r *run) search(t text, name string, p params) any {
	part := p.text(0).s
	r.seek(t.s, part, name[0] == 'r')
	i, j, ok := r.span(t, p)
	if name == "count" {
		if !ok {
			return int64(0)
		}
		return int64(strings.Count(t.s[i:j], part))
	}
	at := -1
	if ok {
		if at = strings.Index(t.s[i:j], part); name[0] == 'r' {
			at = strings.LastIndex(t.s[i:j], part)
		}
	}
	switch {
	case at >= 0:
		return int64(utf8.RuneCountInString(t.s[:i+at]))
	case strings.HasSuffix(name, "index"):
		r.fail(tandem.Invalid, "%s: %s is not in the string", p.what, short(part))
	}
	return int64(-1)
}

// replace puts with for the first n occurrences of old, for all when n is negative. An empty old is before each character and at
// the end.
func (r *run) replace(t, old, with text, n int) text {
	r.seek(t.s, old.s, false)
	b := builder{r: r}
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
	out := b.text()
	out.safe = t.safe
	return out
}

// split cuts t at sep, at most times (all when negative), from the right if last.
func (r *run) split(t, sep text, most int, last bool) []any {
	r.seek(t.s, sep.s, last)
	var ends []int // where the separators begin
	for from, to := 0, len(t.s); most < 0 || len(ends) < most; {
		i := 0
		if last {
			i = strings.LastIndex(t.s[:to], sep.s)
			to = i
		} else if i = strings.Index(t.s[from:], sep.s); i >= 0 {
			i += from
			from = i + len(sep.s)
		}
		if i < 0 {
			break
		}
		r.spend(perItem)
		ends = append(ends, i)
	}
	if last {
		reverse(ends)
	}
	r.spend(perItem)
	out := make([]any, 0, len(ends)+1)
	from := 0
	for _, end := range ends {
		out = append(out, t.slice(from, end))
		from = end + len(sep.s)
	}
	return append(out, t.slice(from, len(t.s)))
}

// fields cuts t at runs of white space, at most times (all when negative), from the right if last.
func (r *run) fields(t text, most int, last bool) []any {
	out := []any{}
	for t = t.trimmed(nil, !last, last); t.s != ""; t = t.trimmed(nil, !last, last) {
		r.spend(perItem + 16*len(t.user))
		if most >= 0 && len(out) == most {
			out = append(out, t)
			break
		}
		i, j := 0, strings.IndexFunc(t.s, isSpace)
		if last {
			i, j = lastSpace(t.s), len(t.s)
		} else if j < 0 {
			j = len(t.s)
		}
		out = append(out, t.slice(i, j))
		if last {
			t = t.slice(0, i)
		} else {
			t = t.slice(j, len(t.s))
		}
	}
	if last {
		reverse(out)
	}
	return out
}

// lastSpace returns where the characters behind the last white space of s begin.
func lastSpace(s string) int {
	i := strings.LastIndexFunc(s, isSpace)
	if i < 0 {
		return 0
	}
	_, n := utf8.DecodeRuneInString(s[i:])
	return i + n
}

func reverse[E any](s []E) {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
}

// lines cuts t behind line breaks, with them if keep. A break at the end begins no further line.
func (r *run) lines(t text, keep bool) []any {
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
		r.spend(perItem)
		out = append(out, t.slice(from, end))
		from = next
	}
	return out
}

func isBreak(c rune) bool {
	return c >= '\n' && c <= '\r' || c >= 0x1c && c <= 0x1e || c == 0x85 || c == 0x2028 || c == 0x2029
}

// partition cuts t at the first or last sep: before, sep, behind.
func (r *run) partition(t, sep text, last bool) *list {
	if sep.s == "" {
		r.fail(tandem.Invalid, ".partition(): the separator is empty")
	}
	r.seek(t.s, sep.s, last)
	i := strings.Index(t.s, sep.s)
	if last {
		i = strings.LastIndex(t.s, sep.s)
	}
	none := text{safe: t.safe}
	switch {
	case i >= 0:
		return r.tupleOf(t.slice(0, i), t.slice(i, i+len(sep.s)), t.slice(i+len(sep.s), len(t.s)))
	case last:
		return r.tupleOf(none, none, t)
	}
	return r.tupleOf(t, none, none)
}

// joinStrings is .join(v), where all elements are strings.
func (r *run) joinStrings(sep text, v any) text {
	b := builder{r: r}
	next := r.each(v)
	for i := 0; ; i++ {
		e, ok := next()
		if !ok {
			break
		}
		t, isText := e.(text)
		switch {
		case sep.safe:
			t = r.escape(r.str(e))
		case !isText:
			r.fail(tandem.Invalid, ".join() wants strings, not %s", kind(e))
		}
		if i > 0 {
			b.add(sep)
		}
		b.add(t)
	}
	out := b.text()
	out.safe = sep.safe
	return out
}

// padded is center, ljust, rjust, zfill and expandtabs.
func (r *run) padded(t text, name string, a args) text {
	if name == "expandtabs" {
		return r.expandTabs(t, r.bind(a, 0, "tabsize").int(0, 8))
	}
	fill := lit(" ")
	names := []string{"", ""}
	if name == "zfill" {
		names = names[:1]
	}
	p := r.bind(a, 1, names...)
	if len(a.pos) == 2 {
		if fill = p.text(1); utf8.RuneCountInString(fill.s) != 1 {
			r.fail(tandem.Invalid, "%s wants one character to fill with, not %s", a.what, short(fill.s))
		}
	}
	width := p.int(0, 0)
	missing := width - utf8.RuneCountInString(t.s)
	if missing <= 0 {
		return t
	}
	b := builder{r: r}
	left := 0
	switch name {
	case "center":
		left = missing/2 + missing&width&1
	case "rjust":
		left = missing
	case "zfill":
		left, fill = missing, lit("0")
		if t.s != "" && (t.s[0] == '-' || t.s[0] == '+') {
			b.add(t.slice(0, 1))
			t = t.slice(1, len(t.s))
		}
	}
	b.pad(fill, left)
	b.add(t)
	b.pad(fill, missing-left)
	out := b.text()
	out.safe = t.safe
	return out
}

func (r *run) expandTabs(t text, size int) text {
	b := builder{r: r}
	column, from := 0, 0
	for i, c := range t.s {
		switch c {
		case '\t':
			b.add(t.slice(from, i))
			from = i + 1
			if size > 0 {
				n := size - column%size
				b.pad(lit(" "), n)
				column += n
			}
		case '\n', '\r':
			column = 0
		default:
			column++
		}
	}
	b.add(t.slice(from, len(t.s)))
	out := b.text()
	out.safe = t.safe
	return out
}
