package chat

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// methods lists what values have in Python: methods that tandem runs, those that would change the value, which the sandbox of chat
// templates refuses (they count as undefined until used), and attributes that tandem does not have.
func methods(v any) (runs, changes, lacks string) {
	switch v := v.(type) {
	case text:
		return " capitalize endswith find format join lower lstrip replace rfind rstrip split splitlines startswith strip title upper ", "",
			" casefold center count encode expandtabs format_map index isalnum isalpha isascii isdecimal isdigit isidentifier islower " +
				"isnumeric isprintable isspace istitle isupper ljust maketrans partition removeprefix removesuffix rindex rjust " +
				"rpartition rsplit swapcase translate zfill "
	case *dict:
		return " get items keys values ", " clear pop popitem setdefault update ", " copy fromkeys "
	case *list:
		if v.tuple {
			return " count index ", "", ""
		}
		return " count index ", " append clear extend insert pop remove reverse sort ", " copy "
	case int64, wide, bool, float64:
		return "", "", " as_integer_ratio bit_count bit_length conjugate denominator imag is_integer numerator real to_bytes "
	case *counting:
		return "", "", " count index start step stop "
	case *macro:
		return "", "", " name arguments catch_kwargs catch_varargs caller "
	}
	return "", "", ""
}

// attributeOf returns the attribute of a value that Python has; false if there is none.
func attributeOf(m *meter, v any, name string) (any, bool) {
	switch v := v.(type) {
	case undefined:
		v.refuse(m, name)
	case *list:
		if i := slices.Index([]string{"grouper", "list"}, name); v.group && i >= 0 {
			return v.items[i], true
		}
	case *namespace:
		return v.vars.lookup(m, lit(name))
	case *loopState:
		return v.attr(name)
	}
	if strings.HasPrefix(name, "__") {
		return undefined{name, "the attribute " + short(name) + " is not one that templates may use"}, true
	}
	if len(name) > 30 || strings.Contains(name, " ") { // longer than any
		return nil, false
	}
	runs, changes, lacks := methods(v)
	switch word := " " + name + " "; {
	case strings.Contains(runs, word):
		return &method{v, name}, true
	case strings.Contains(changes, word):
		return undefined{name, "." + name + "() would change " + kind(v) + ", which templates may not"}, true
	case strings.Contains(lacks, word):
		m.unknown(".%s of %s", name, kind(v))
	}
	return nil, false
}

// attr is v.name: an attribute of Python's, else an element.
func attr(m *meter, v any, name string) any {
	if a, ok := attributeOf(m, v, name); ok {
		return a
	}
	if e, ok := element(m, v, lit(name)); ok {
		return e
	}
	return undefined{name: name}
}

// item is v[key]: an element, else an attribute.
func item(m *meter, v, key any) any {
	if e, ok := element(m, v, key); ok {
		return e
	}
	if name, ok := key.(text); ok {
		if a, ok := attributeOf(m, v, name.s); ok {
			return a
		}
	}
	return undefined{name: nameOf(key)}
}

// nameOf shows a key in errors.
func nameOf(key any) string {
	switch k := key.(type) {
	case text:
		return k.s
	case int64:
		return strconv.FormatInt(k, 10)
	}
	return kind(key)
}

// element returns v[key] as Python has it; false if there is none.
func element(m *meter, v, key any) (any, bool) {
	i, isIndex := integer(key)
	at := func(n int64) bool { // whether i is an index of n elements
		if i < 0 {
			i += n
		}
		return isIndex && i >= 0 && i < n
	}
	switch v := v.(type) {
	case *dict:
		if hashable(key) {
			return v.lookup(m, key)
		}
	case undefined:
		v.refuse(m, nameOf(key))
	case *list:
		if at(int64(len(v.items))) {
			return v.items[i], true
		}
	case *counting:
		if at(v.n) {
			return v.from + i*v.step, true
		}
	case text:
		if !isIndex {
			return nil, false
		}
		m.work(len(v.s))
		if at(int64(utf8.RuneCountInString(v.s))) {
			from := offset(v.s, int(i))
			return v.slice(from, from+offset(v.s[from:], 1)), true
		}
	}
	return nil, false
}

// refuse fails because something of an undefined value is asked for.
func (v undefined) refuse(m *meter, what string) {
	if v.why != "" {
		m.refused(v.why)
	}
	m.invalid("%s is undefined and has no %s", short(v.name), short(what))
}

// callMethod calls v.name(a), where attributeOf found that method.
func callMethod(v any, name string, a args) any {
	switch v := v.(type) {
	case text:
		return textMethod(v, name, a)
	case *dict:
		if name == "get" {
			p := a.bind(1, "", "")
			if e, ok := v.lookup(a.m, p.vals[0]); ok {
				return e
			}
			return p.or(1, nil)
		}
		a.bind(0)
		return &view{v, name}
	case *list:
		return v.find(name, a)
	}
	return v.(*loopState).call(name, a)
}

// find is .count(v) and .index(v, from, to) of a list.
func (l *list) find(name string, a args) any {
	if name == "count" {
		p := a.bind(1, "")
		n := int64(0)
		for _, e := range l.items {
			if same(a.m, e, p.vals[0]) {
				n++
			}
		}
		return n
	}
	p := a.bind(1, "", "", "")
	from, to := span{p.int(1, 0), p.int(2, len(l.items)), 1, true, true}.of(len(l.items))
	for i := from; i < to; i++ {
		if same(a.m, l.items[i], p.vals[0]) {
			return int64(i)
		}
	}
	a.m.invalid(".index(): the value is not in the list")
	return nil
}
