package chat

import (
	"math/big"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// attributesOf lists the attributes that values have in Python: methods that tandem runs, those that would change the value,
// which the sandbox of chat templates refuses (they count as undefined until used), and those that tandem does not have.
type attributesOf struct{ runs, changes, lacks string }

var (
	ofText = attributesOf{runs: " capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha " +
		"isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition " +
		"removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase " +
		"title upper zfill ", lacks: " encode maketrans translate "}
	ofDict = attributesOf{runs: " copy get items keys values ", changes: " clear pop popitem setdefault update ", lacks: " fromkeys "}
	ofList = attributesOf{runs: " copy count index ", changes: " append clear extend insert pop remove reverse sort "}
	ofPair = attributesOf{runs: " count index "}
	ofView = attributesOf{lacks: " isdisjoint mapping "}
	ofInt  = attributesOf{lacks: " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real to_bytes "}
	ofReal = attributesOf{runs: " is_integer ", lacks: " as_integer_ratio conjugate fromhex hex imag real "}
	ofGen  = attributesOf{lacks: " close send throw "}
)

func attributesOfValue(v any) attributesOf {
	switch v := v.(type) {
	case text:
		if v.safe {
			return attributesOf{runs: ofText.runs, lacks: ofText.lacks + "escape striptags unescape "}
		}
		return ofText
	case *dict:
		return ofDict
	case *list:
		if v.tuple {
			return ofPair
		}
		return ofList
	case *view:
		return ofView
	case *counting:
		return ofPair
	case int64, *big.Int, bool:
		return ofInt
	case float64:
		return ofReal
	case *stream:
		return ofGen
	}
	return attributesOf{}
}

// attribute returns the attribute of a value that Python has; false if there is none.
func (r *run) attribute(v any, name string) (any, bool) {
	switch v := v.(type) {
	case undefined:
		r.refuse(v, name)
	case *list:
		if i := slices.Index([]string{"grouper", "list"}, name); v.group && i >= 0 {
			return v.items[i], true
		}
	case *counting:
		if i := slices.Index([]string{"start", "stop", "step"}, name); i >= 0 {
			return []int64{v.from, v.end, v.step}[i], true
		}
	case *namespace:
		return r.lookup(&v.vars, lit(name))
	case *loopState:
		return v.attr(name)
	case *cycler:
		return v.attr(name)
	case *joiner:
		return v.attr(name)
	case *macro:
		return v.attr(r, name)
	}
	if strings.HasPrefix(name, "__") {
		return undefined{name, "the attribute " + short(name) + " is not one that templates may use"}, true
	}
	if len(name) > 30 || strings.Contains(name, " ") { // longer than any
		return nil, false
	}
	has, word := attributesOfValue(v), " "+name+" "
	switch {
	case strings.Contains(has.runs, word), strings.Contains(has.lacks, word): // method refuses the last
		return &method{v, name}, true
	case strings.Contains(has.changes, word):
		return undefined{name, "." + name + "() would change " + kind(v) + ", which templates may not"}, true
	}
	return nil, false
}

func (m *macro) attr(r *run, name string) (any, bool) {
	switch name {
	case "name":
		if m.def.name == "" {
			return nil, true
		}
		return lit(m.def.name), true
	case "arguments":
		l := r.tupleOf()
		for _, p := range m.def.params {
			r.push(l, lit(p))
		}
		return l, true
	case "catch_kwargs":
		return m.def.kwargs, true
	case "catch_varargs":
		return m.def.varargs, true
	case "caller":
		return m.def.caller, true
	}
	return nil, false
}

// method calls obj.name(a), where attribute found that method.
func (r *run) method(obj any, name string, a args) any {
	a.what = "." + name + "()"
	if has := attributesOfValue(obj); strings.Contains(has.lacks, " "+name+" ") {
		r.fail(tandem.Unsupported, "%s of %s is not something that tandem has", a.what, kind(obj))
	}
	switch obj := obj.(type) {
	case text:
		return r.textMethod(obj, name, a)
	case *dict:
		return r.dictMethod(obj, name, a)
	case *list:
		if name == "copy" {
			r.bind(a, 0)
			return r.listOf(slices.Clone(obj.items)...)
		}
		return r.find(obj.items, name, a)
	case *counting:
		return r.find(r.items(obj), name, a)
	case *loopState:
		return obj.call(r, name, a)
	case *cycler:
		return obj.call(r, name, a)
	case float64:
		r.bind(a, 0)
		_, ok := exact(obj)
		return ok
	}
	r.fail(tandem.Unsupported, "%s of %s is not something that tandem has", a.what, kind(obj))
	return nil
}

func (r *run) dictMethod(d *dict, name string, a args) any {
	switch name {
	case "get":
		p := r.bind(a, 1, "", "")
		if v, ok := r.lookup(d, p.vals[0]); ok {
			return v
		}
		return p.or(1, nil)
	case "copy":
		r.bind(a, 0)
		return r.copied(d)
	}
	r.bind(a, 0)
	return &view{d, name}
}

func (r *run) copied(d *dict) *dict {
	out := &dict{}
	r.spend(perPair)
	for i, k := range d.keys {
		r.put(out, k, d.vals[i])
	}
	return out
}

// find is .count(v) and .index(v, from, to) of a list.
func (r *run) find(items []any, name string, a args) any {
	if name == "count" {
		p := r.bind(a, 1, "")
		n := int64(0)
		for _, e := range items {
			if r.same(e, p.vals[0]) {
				n++
			}
		}
		return n
	}
	p := r.bind(a, 1, "", "", "")
	from, to := bounds(len(items), p.int(1, 0), p.int(2, len(items)), 1, true, true)
	for i := from; i < to; i++ {
		if r.same(items[i], p.vals[0]) {
			return int64(i)
		}
	}
	r.fail(tandem.Invalid, ".index(): the value is not in the list")
	return nil
}

// cycler and joiner are the objects that the template functions of the same names return.
type (
	cycler struct {
		items []any
		at    int
	}
	joiner struct {
		sep  any
		used bool
	}
)

func (c *cycler) attr(name string) (any, bool) {
	switch name {
	case "current":
		return c.items[c.at], true
	case "next", "reset":
		return &method{c, name}, true
	case "pos":
		return int64(c.at), true
	}
	return nil, false
}

func (c *cycler) call(r *run, name string, a args) any {
	r.bind(a, 0)
	if name == "reset" {
		c.at = 0
		return nil
	}
	v := c.items[c.at]
	c.at = (c.at + 1) % len(c.items)
	return v
}

func (j *joiner) attr(name string) (any, bool) {
	switch name {
	case "sep":
		return j.sep, true
	case "used":
		return j.used, true
	}
	return nil, false
}

func (j *joiner) call() any {
	if !j.used {
		j.used = true
		return text{}
	}
	return j.sep
}
