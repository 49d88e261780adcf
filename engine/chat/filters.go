package chat

import (
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

func sortedNames(a args) []string { return slices.Sorted(maps.Keys(a.named)) }

// filter is v|name(a).
func (r *run) filter(name string, v any, a args) any {
	switch name {
	case "default", "d":
		_, missing := v.(undefined)
		if missing || truth(a.or(1, "boolean", false)) && !truth(v) {
			return a.or(0, "default_value", text{})
		}
		return v
	case "tojson":
		return r.toJSON(v, a)
	case "string":
		return r.str(v)
	case "safe":
		return v
	case "length", "count":
		return r.length(v)
	case "int":
		return r.toInt(v, a)
	case "float":
		return r.toFloat(v, a)
	case "abs":
		if x, ok := v.(float64); ok {
			return math.Abs(x)
		}
		if x, ok := v.(int64); ok && x < 0 {
			return -x
		}
		return r.sign(false, v)
	case "items":
		if _, ok := v.(undefined); ok {
			return &list{}
		}
		if out, ok := r.method(v, "items", a); ok {
			return out
		}
		r.fail(tandem.Invalid, "items wants a dict, not %s", kind(v))
	case "trim":
		out, _ := r.method(r.str(v), "strip", a)
		return out
	case "title":
		t := r.str(v)
		r.spend(2 * len(t.s))
		return t.remade(titleWords(t.s))
	case "lower", "upper", "capitalize", "replace":
		out, _ := r.method(r.str(v), name, a)
		return out
	case "indent":
		return r.indent(r.textArg(args{what: name, pos: []any{v}}, 0, ""), a)
	case "join":
		return r.joined(v, a)
	case "dictsort":
		return r.dictsort(v)
	}
	return r.listFilter(name, v, a)
}

// listFilter holds the filters that loop over their input.
func (r *run) listFilter(name string, v any, a args) any {
	if strings.HasPrefix(name, "select") || strings.HasPrefix(name, "reject") || name == "map" {
		if !truth(v) { // Jinja does not look into false values
			v = &list{}
		}
	}
	switch name {
	case "list":
		items := r.items(v)
		return r.listOf(slices.Clone(items)...)
	case "first", "last":
		items := r.items(v)
		if len(items) == 0 {
			return undefined{name}
		}
		return items[map[string]int{"first": 0, "last": len(items) - 1}[name]]
	case "reverse":
		items := slices.Clone(r.items(v))
		r.spend(perItem * len(items))
		slices.Reverse(items)
		if _, ok := v.(text); ok {
			return r.joined(&list{items: items}, args{})
		}
		return &list{items: items}
	case "map":
		return r.mapped(v, a)
	case "select", "reject", "selectattr", "rejectattr":
		return r.selected(v, a, strings.HasSuffix(name, "attr"), name[0] == 's')
	case "unique", "sort", "min", "max", "sum":
		return r.folded(name, v, a)
	}
	r.fail(tandem.Unsupported, "filter %s is not one that tandem knows", short(name))
	return nil
}

func (r *run) length(v any) any {
	switch v := v.(type) {
	case text:
		r.work(len(v.s))
		return int64(utf8.RuneCountInString(v.s))
	case *list:
		return int64(len(v.items))
	case *dict:
		return int64(len(v.keys))
	case undefined:
		return int64(0)
	}
	r.fail(tandem.Invalid, "%s has no length", kind(v))
	return nil
}

func (r *run) toInt(v any, a args) any {
	switch v := v.(type) {
	case int64, bool:
		i, _ := integer(v)
		return i
	case float64:
		if math.Abs(v) < 1<<62 {
			return int64(v)
		}
	case undefined:
		r.fail(tandem.Invalid, "%s is no number", kind(v))
	case text:
		r.work(len(v.s))
		s := strings.TrimSpace(v.s)
		if i, err := strconv.ParseInt(s, r.intArg(a, 1, "base", 10), 64); err == nil {
			return i
		}
		if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
			return int64(f)
		}
	}
	return a.or(0, "default", int64(0))
}

func (r *run) toFloat(v any, a args) any {
	if f, ok := number(v); ok {
		return f
	}
	switch v := v.(type) {
	case undefined:
		r.fail(tandem.Invalid, "%s is no number", kind(v))
	case text:
		r.work(len(v.s))
		if f, err := strconv.ParseFloat(strings.TrimSpace(v.s), 64); err == nil {
			return f
		}
	}
	return a.or(0, "default", 0.0)
}

// indent puts spaces (or the given string) before every line, the first only when first is given, empty ones when blank is.
func (r *run) indent(t text, a args) any {
	pad, ok := a.or(0, "width", int64(4)).(text)
	if !ok {
		n := r.intArg(a, 0, "width", 4)
		r.spend(max(n, 0))
		pad = lit(strings.Repeat(" ", max(n, 0)))
	}
	first, blank := truth(a.or(1, "first", false)), truth(a.or(2, "blank", false))
	b := builder{r: r}
	for i, line := range r.split(t, lit("\n"), -1, false) {
		if i > 0 {
			b.lit("\n")
		}
		if l := line.(text); i == 0 && first || i > 0 && (blank || l.s != "") {
			b.add(pad)
		}
		b.add(line.(text))
	}
	return b.text()
}

func (r *run) joined(v any, a args) any {
	r.take(a, 0, 2)
	sep := r.str(a.or(0, "d", text{}))
	attr := a.or(1, "attribute", nil)
	b := builder{r: r}
	for i, item := range r.items(v) {
		if i > 0 {
			b.add(sep)
		}
		if attr != nil {
			item = r.path(item, attr)
		}
		b.add(r.str(item))
	}
	return b.text()
}

// path follows an attribute like "function.name".
func (r *run) path(v, attr any) any {
	name, ok := attr.(text)
	if !ok {
		return r.item(v, attr)
	}
	r.work(len(name.s))
	for part := range strings.SplitSeq(name.s, ".") {
		r.step(1)
		if i, err := strconv.Atoi(part); err == nil {
			v = r.item(v, int64(i))
		} else {
			v = r.item(v, lit(part))
		}
	}
	return v
}

// mapped is map(filter, …) or map(attribute=…).
func (r *run) mapped(v any, a args) any {
	attr, byAttr := a.get(-1, "attribute")
	out := &list{}
	for _, item := range r.items(v) {
		r.step(1)
		if byAttr {
			item = r.path(item, attr)
			if _, missing := item.(undefined); missing {
				item = a.or(-1, "default", item)
			}
		} else {
			name := r.textArg(a, 0, "filter")
			item = r.filter(name.s, item, args{what: name.s, pos: a.pos[1:], named: a.named})
		}
		r.push(out, item)
	}
	return out
}

// selected is select, reject, selectattr and rejectattr: [attribute,] [test, its values…].
func (r *run) selected(v any, a args, byAttr, want bool) any {
	rest := a.pos
	var attr any
	if byAttr {
		r.take(a, 1, len(a.pos)+1)
		attr, rest = rest[0], rest[1:]
	}
	out := &list{}
	for _, item := range r.items(v) {
		r.step(1)
		tested := item
		if byAttr {
			tested = r.path(item, attr)
		}
		got := truth(tested)
		if len(rest) > 0 {
			name := r.textArg(args{what: a.what, pos: rest}, 0, "test")
			got = truth(r.test(name.s, tested, args{what: name.s, pos: rest[1:]}))
		}
		if got == want {
			r.push(out, item)
		}
	}
	return out
}

// folded is unique, sort, min, max and sum, each by an attribute if one is given.
func (r *run) folded(name string, v any, a args) any {
	attr := a.or(-1, "attribute", nil)
	exact := truth(a.or(-1, "case_sensitive", false))
	by := func(item any) any {
		if attr != nil {
			item = r.path(item, attr)
		}
		return r.folding(item, exact)
	}
	items := slices.Clone(r.items(v))
	r.spend(perItem * len(items))
	switch {
	case name == "sum":
		var total any = a.or(-1, "start", int64(0))
		for _, item := range items {
			r.step(1)
			total = r.arithmetic("+", total, by(item))
		}
		return total
	case name == "unique":
		seen := map[any]bool{}
		out := &list{}
		for _, item := range items {
			k := r.plain(by(item))
			if !seen[k] {
				r.spend(perPair)
				seen[k] = true
				r.push(out, item)
			}
		}
		return out
	}
	slices.SortStableFunc(items, func(x, y any) int {
		r.step(1)
		return r.compare(by(x), by(y))
	})
	switch {
	case name == "sort":
		if truth(a.or(0, "reverse", false)) {
			slices.Reverse(items)
		}
		return &list{items: items}
	case len(items) == 0:
		return undefined{name}
	case name == "min":
		return items[0]
	}
	return items[len(items)-1]
}

// folding returns the key that v is sorted by: strings in lower case unless exact.
func (r *run) folding(v any, exact bool) any {
	if t, ok := v.(text); ok && !exact {
		r.spend(2 * len(t.s))
		return lit(strings.ToLower(t.s))
	}
	return v
}

func (r *run) dictsort(v any) any {
	d, ok := v.(*dict)
	if !ok {
		r.fail(tandem.Invalid, "dictsort wants a dict, not %s", kind(v))
	}
	pairs := r.pairs(d)
	sort.SliceStable(pairs.items, func(i, j int) bool {
		r.step(1)
		return r.compare(r.folding(pairs.items[i].(*list).items[0], false), r.folding(pairs.items[j].(*list).items[0], false)) < 0
	})
	return pairs
}

func (r *run) pairs(d *dict) *list {
	out := &list{}
	for i, k := range d.keys {
		pair := r.listOf(k, d.vals[i])
		pair.tuple = true
		r.push(out, pair)
	}
	return out
}

// test is "v is name a".
func (r *run) test(name string, v any, a args) any {
	_, missing := v.(undefined)
	switch name {
	case "defined":
		return !missing
	case "undefined":
		return missing
	case "none", "None":
		return v == nil
	case "true", "True":
		return v == true
	case "false", "False":
		return v == false
	case "boolean":
		_, ok := v.(bool)
		return ok
	case "string":
		_, ok := v.(text)
		return ok
	case "number":
		_, ok := number(v)
		return ok
	case "integer":
		_, ok := v.(int64)
		return ok
	case "float":
		_, ok := v.(float64)
		return ok
	case "mapping":
		_, ok := v.(*dict)
		return ok
	case "sequence", "iterable":
		switch v.(type) {
		case text, *list, *dict, undefined:
			return true
		}
		return false
	case "callable":
		switch v.(type) {
		case function, *macro:
			return true
		}
		return false
	case "odd", "even":
		return r.equal(r.arithmetic("%", v, int64(2)), map[string]int64{"odd": 1, "even": 0}[name])
	}
	if t, ok := v.(text); ok && (name == "upper" || name == "lower") {
		r.work(len(t.s))
		return is(t.s, "is"+name)
	}
	if len(a.pos) != 1 {
		r.fail(tandem.Unsupported, "test %s with %d values is not one that tandem knows", short(name), len(a.pos))
	}
	switch x := a.pos[0]; name {
	case "in":
		return r.contains(x, v)
	case "eq", "equalto", "==", "sameas":
		return r.equal(v, x)
	case "ne", "!=":
		return !r.equal(v, x)
	case "lt", "lessthan", "<":
		return r.compare(v, x) < 0
	case "le", "<=":
		return r.compare(v, x) <= 0
	case "gt", "greaterthan", ">":
		return r.compare(v, x) > 0
	case "ge", ">=":
		return r.compare(v, x) >= 0
	case "divisibleby":
		return r.equal(r.arithmetic("%", v, x), int64(0))
	}
	r.fail(tandem.Unsupported, "test %s is not one that tandem knows", short(name))
	return nil
}
