package chat

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// method is obj.name(a), for the methods of Python's str, dict and list that templates use; ok is false if there
// is no such method. No method changes obj, as in the sandbox that chat templates are written for.
func (r *run) method(obj any, name string, a args) (v any, ok bool) {
	switch obj := obj.(type) {
	case text:
		return r.textMethod(obj, name, a)
	case *dict:
		return r.dictMethod(obj, name, a)
	case *list:
		if name == "count" {
			r.take(a, 1, 1)
			n := int64(0)
			for _, e := range obj.items {
				if r.equal(e, a.pos[0]) {
					n++
				}
			}
			return n, true
		}
	case undefined:
		r.fail(tandem.Invalid, "%s is undefined and has no %s", short(obj.name), a.what)
	}
	return nil, false
}

func (r *run) dictMethod(d *dict, name string, a args) (v any, ok bool) {
	switch name {
	case "items":
		r.take(a, 0, 0)
		return r.pairs(d), true
	case "keys":
		r.take(a, 0, 0)
		return r.listOf(d.keys...).copied(), true
	case "values":
		r.take(a, 0, 0)
		return r.listOf(d.vals...).copied(), true
	case "get":
		r.take(a, 1, 2)
		if v, ok := r.lookup(d, a.pos[0]); ok {
			return v, true
		}
		return a.or(1, "default", nil), true
	}
	return nil, false
}

// copied detaches a list from the dict whose slice it shares.
func (l *list) copied() *list { return &list{items: append([]any(nil), l.items...)} }

func (r *run) textMethod(t text, name string, a args) (v any, ok bool) {
	r.work(len(t.s))
	r.spend(16 * len(t.user)) // spans of the parts
	switch name {
	case "strip", "lstrip", "rstrip":
		r.take(a, 0, 1)
		var cut *text
		if len(a.pos) == 1 && a.pos[0] != nil {
			c := r.textArg(a, 0, "")
			r.step(len(c.s) * (1 + len(t.s)/256)) // each character is looked for in c
			cut = &c
		}
		return t.trimmed(cut, name != "rstrip", name != "lstrip"), true
	case "upper":
		r.spend(2 * len(t.s))
		return t.remade(strings.ToUpper(t.s)), true
	case "lower":
		r.spend(2 * len(t.s))
		return t.remade(strings.ToLower(t.s)), true
	case "title":
		r.spend(2 * len(t.s))
		return t.remade(title(t.s)), true
	case "capitalize":
		r.spend(4 * len(t.s))
		first := offset(t.s, 1)
		return t.remade(strings.ToUpper(t.s[:first]) + strings.ToLower(t.s[first:])), true
	case "startswith", "endswith":
		return r.affix(t, name, a), true
	case "removeprefix", "removesuffix":
		fix := r.textArg(a, 0, "").s
		switch {
		case name == "removeprefix" && strings.HasPrefix(t.s, fix):
			return t.slice(len(fix), len(t.s)), true
		case name == "removesuffix" && strings.HasSuffix(t.s, fix):
			return t.slice(0, len(t.s)-len(fix)), true
		}
		return t, true
	case "replace":
		return r.replace(t, r.textArg(a, 0, "old"), r.textArg(a, 1, "new"), r.intArg(a, 2, "count", -1)), true
	case "split", "rsplit":
		r.take(a, 0, 2)
		sep, most := a.or(0, "sep", nil), r.intArg(a, 1, "maxsplit", -1)
		if sep == nil {
			return &list{items: r.fields(t, most, name == "rsplit")}, true
		}
		s, ok := sep.(text)
		if !ok || s.s == "" {
			r.fail(tandem.Invalid, "%s wants a separator, not %s", a.what, kind(sep))
		}
		return &list{items: r.split(t, s, most, name == "rsplit")}, true
	case "partition", "rpartition":
		return r.partition(t, r.textArg(a, 0, "sep"), name == "rpartition"), true
	case "splitlines":
		r.spend(len(t.s))
		lines := r.split(text{strings.ReplaceAll(t.s, "\r", "\n"), t.user}, lit("\n"), -1, false)
		if last := len(lines) - 1; lines[last].(text).s == "" {
			lines = lines[:last]
		}
		return &list{items: lines}, true
	case "find", "count", "index":
		return r.find(t, name, a), true
	case "join":
		r.take(a, 1, 1)
		return r.joined(a.pos[0], args{what: a.what, pos: []any{t}}), true
	case "isdigit", "isnumeric", "isalpha", "isalnum", "isspace", "isupper", "islower":
		return is(t.s, name), true
	}
	return nil, false
}

// affix is startswith and endswith, of one string or any of a tuple.
func (r *run) affix(t text, name string, a args) any {
	r.take(a, 1, 1)
	fixes := []any{a.pos[0]}
	if l, ok := a.pos[0].(*list); ok {
		fixes = l.items
	}
	for _, f := range fixes {
		s := r.textArg(args{what: a.what, pos: []any{f}}, 0, "").s
		r.work(len(s))
		if name == "startswith" && strings.HasPrefix(t.s, s) || name == "endswith" && strings.HasSuffix(t.s, s) {
			return true
		}
	}
	return false
}

func (r *run) find(t text, name string, a args) any {
	r.take(a, 1, 1)
	part := r.textArg(a, 0, "").s
	if name == "count" {
		return int64(strings.Count(t.s, part))
	}
	i := strings.Index(t.s, part)
	if i >= 0 {
		return int64(utf8.RuneCountInString(t.s[:i]))
	}
	if name == "index" {
		r.fail(tandem.Invalid, ".index(): %s is not in the string", short(part))
	}
	return int64(-1)
}

// replace puts with for the first n occurrences of old, for all when n is negative.
func (r *run) replace(t, old, with text, n int) text {
	if old.s == "" {
		r.fail(tandem.Invalid, ".replace(): the string to replace is empty")
	}
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
	}
	b.add(t.slice(from, len(t.s)))
	return b.text()
}

// split cuts t at sep, at most times (all when negative), from the right if last.
func (r *run) split(t, sep text, most int, last bool) []any {
	var ends []int // where the separators begin
	for from := 0; ; {
		i := strings.Index(t.s[from:], sep.s)
		if i < 0 {
			break
		}
		r.spend(perItem)
		ends = append(ends, from+i)
		from += i + len(sep.s)
	}
	if most >= 0 && len(ends) > most {
		if last {
			ends = ends[len(ends)-most:]
		} else {
			ends = ends[:most]
		}
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

// fields cuts t at runs of white space.
func (r *run) fields(t text, most int, last bool) []any {
	if last && most >= 0 {
		r.fail(tandem.Unsupported, ".rsplit() at white space with a maximum is not something that tandem does")
	}
	out := []any{}
	for t = t.trimmed(nil, true, false); t.s != ""; t = t.trimmed(nil, true, false) {
		r.spend(perItem + 16*len(t.user))
		end := strings.IndexFunc(t.s, unicode.IsSpace)
		if end < 0 || most >= 0 && len(out) == most {
			return append(out, t)
		}
		out = append(out, t.slice(0, end))
		t = t.slice(end, len(t.s))
	}
	return out
}

// partition cuts t at the first or last sep: before, sep, behind.
func (r *run) partition(t, sep text, last bool) *list {
	if sep.s == "" {
		r.fail(tandem.Invalid, ".partition(): the separator is empty")
	}
	i := strings.Index(t.s, sep.s)
	if last {
		i = strings.LastIndex(t.s, sep.s)
	}
	var l *list
	switch {
	case i >= 0:
		l = r.listOf(t.slice(0, i), t.slice(i, i+len(sep.s)), t.slice(i+len(sep.s), len(t.s)))
	case last:
		l = r.listOf(text{}, text{}, t)
	default:
		l = r.listOf(t, text{}, text{})
	}
	l.tuple = true
	return l
}

// titleWords is the filter title. Unlike Python's method it begins words after white space and - ( { [ <.
func titleWords(s string) string {
	first := true
	return strings.Map(func(c rune) rune {
		was := first
		first = unicode.IsSpace(c) || strings.ContainsRune("-({[<", c)
		if was {
			return unicode.ToUpper(c)
		}
		return unicode.ToLower(c)
	}, s)
}

// title is the method .title().
func title(s string) string {
	inWord := false
	return strings.Map(func(c rune) rune {
		first := !inWord
		inWord = unicode.IsLetter(c)
		if first {
			return unicode.ToTitle(c)
		}
		return unicode.ToLower(c)
	}, s)
}

// is tests that s has characters and all are of a class; isupper and islower look only at letters.
func is(s, class string) bool {
	found := false
	for _, c := range s {
		letter, digit := unicode.IsLetter(c), unicode.IsDigit(c)
		ok := true
		switch class {
		case "isdigit", "isnumeric":
			ok = digit
		case "isalpha":
			ok = letter
		case "isalnum":
			ok = letter || digit
		case "isspace":
			ok = unicode.IsSpace(c)
		case "isupper":
			ok = !unicode.IsLower(c)
			letter = unicode.IsUpper(c)
		case "islower":
			ok = !unicode.IsUpper(c)
			letter = unicode.IsLower(c)
		}
		if !ok {
			return false
		}
		found = found || letter || class != "isupper" && class != "islower"
	}
	return found
}
