package grammar

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// types is a set of JSON's types. Numbers are integers and others.
type types uint8

const (
	nullType types = 1 << iota
	booleanType
	integerType
	fractionType
	stringType
	arrayType
	objectType
	numberType = integerType | fractionType
	allTypes   = 1<<iota - 1
)

var typeNames = map[string]types{"null": nullType, "boolean": booleanType, "integer": integerType, "number": numberType,
	"string": stringType, "array": arrayType, "object": objectType}

// facts are what a list of schemas says, put together.
type facts struct {
	types types
	list  bool            // values are all that may be:
	among []*value        // of enum and const,
	known map[string]bool // and the same, as canonical writes them

	length, count span // of a string in characters, of an array in elements
	patterns      []string
	interval      interval
	multiples     []decimal
	arrays        []*value // the schemas that say something of elements
	objects       []*value // and of members
	required      []string
	names         []*value  // schemas of members' names
	refused       []refusal // what cannot be done
	minus         []*facts  // what may not hold
}

type span struct{ least, most int32 }

func (s *span) narrow(o span) { s.least, s.most = max(s.least, o.least), min(s.most, o.most) }

// refusal is a keyword that cannot be done, and the types of values of which it says something.
type refusal struct {
	at      *value
	keyword string
	types   types
}

// refusable are the keywords that are refused, unless their value says nothing.
var refusable = map[string]types{"not": allTypes, "if": allTypes, "$dynamicRef": allTypes, "$recursiveRef": allTypes,
	"uniqueItems": arrayType, "contains": arrayType, "unevaluatedItems": arrayType,
	"patternProperties": objectType, "minProperties": objectType, "maxProperties": objectType, "dependentRequired": objectType,
	"dependentSchemas": objectType, "dependencies": objectType, "unevaluatedProperties": objectType}

// saysNothing reports whether a refusable keyword of s has no effect.
func saysNothing(s *value, keyword string, v *value) bool {
	switch keyword {
	case "not":
		return v.kind == falsehood
	case "if":
		return s.get("then") == nil && s.get("else") == nil
	case "uniqueItems":
		return v.kind == falsehood
	case "minProperties":
		return v.kind == number && readDecimal(v.text) == decimal{}
	case "unevaluatedItems", "unevaluatedProperties":
		return v.kind == truth || v.kind == object && len(v.keys) == 0
	}
	return v.kind == object && len(v.keys) == 0 && keyword != "contains"
}

// facts puts together what w says. Keywords that no draft of JSON Schema uses to refuse a value are ignored.
func (b *builder) facts(w way) *facts {
	f := &facts{types: allTypes, length: span{0, unbounded}, count: span{0, unbounded}, minus: w.minus}
	for _, s := range w.own {
		b.at = s
		for i, keyword := range s.keys {
			if s.old() && s.get("$ref") != nil {
				break
			}
			b.keyword = keyword
			v := s.list[i]
			b.spend(16)
			if kinds, ok := refusable[keyword]; ok && !saysNothing(s, keyword, v) {
				f.refused = append(f.refused, refusal{s, keyword, kinds})
			}
			b.fact(f, s, keyword, v)
		}
		if s.get("items") != nil || s.get("prefixItems") != nil {
			f.arrays = append(f.arrays, s)
		}
		if s.get("properties") != nil || s.get("additionalProperties") != nil {
			f.objects = append(f.objects, s)
		}
	}
	if f.list {
		f.among = slices.DeleteFunc(f.among, func(v *value) bool { return !b.fits(f, v) || b.excluded(f, v) })
		f.known = map[string]bool{}
		for _, v := range f.among {
			f.known[v.canonical()] = true
		}
	}
	return f
}

func (b *builder) fact(f *facts, s *value, keyword string, v *value) {
	switch keyword {
	case "type":
		f.types &= b.typesOf(v)
	case "enum":
		b.want(v, array)
		f.narrow(v.list)
	case "const":
		f.narrow([]*value{v})
	case "minLength":
		f.length.narrow(span{b.count(v), unbounded})
	case "maxLength":
		f.length.narrow(span{0, b.count(v)})
	case "minItems":
		f.count.narrow(span{b.count(v), unbounded})
	case "maxItems":
		f.count.narrow(span{0, b.count(v)})
	case "pattern":
		b.want(v, text)
		f.patterns = append(f.patterns, v.text)
	case "format":
		b.want(v, text)
		f.format(v.text)
	case "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum":
		b.limit(f, s, keyword, v)
	case "multipleOf":
		b.want(v, number)
		f.multiples = append(f.multiples, readDecimal(v.text))
	case "prefixItems":
		b.want(v, array)
	case "properties":
		b.want(v, object)
	case "propertyNames":
		f.names = append(f.names, v)
	case "required":
		b.want(v, array|truth|falsehood) // a boolean: draft 3, which no other keyword here follows
		for _, name := range v.list {
			b.want(name, text)
			if !slices.Contains(f.required, name.text) {
				f.required = append(f.required, name.text)
			}
		}
	}
}

// want refuses a keyword whose value is of another kind.
func (b *builder) want(v *value, kinds valueKind) {
	if v.kind&kinds == 0 {
		panic(invalid("its value is of another type"))
	}
}

func (b *builder) typesOf(v *value) (out types) {
	names := []*value{v}
	if v.kind == array {
		names = v.list
	}
	for _, name := range names {
		is, known := typeNames[name.text]
		if name.kind != text || !known {
			panic(invalid("%q is no type", name.text))
		}
		out |= is
	}
	return out
}

// count reads a number of characters or elements.
func (b *builder) count(v *value) int32 {
	b.want(v, number)
	d := readDecimal(v.text)
	if d.negative || d.part != "" {
		panic(invalid("%s is no count", v.text))
	}
	n, err := strconv.ParseUint("0"+d.whole, 10, 32)
	if err != nil || n > unbounded {
		return unbounded
	}
	return int32(n)
}

func (b *builder) limit(f *facts, s *value, keyword string, v *value) {
	open := keyword[0] == 'e'
	if open && v.kind != number {
		b.want(v, truth|falsehood) // draft 4: it changes the bound beside it
		return
	}
	b.want(v, number)
	if beside := s.get("exclusiveM" + keyword[1:]); !open && beside != nil && beside.kind == truth {
		open = true
	}
	it := bound{true, open, readDecimal(v.text)}
	if keyword == "minimum" || keyword == "exclusiveMinimum" {
		f.interval.low.narrow(it, 1)
	} else {
		f.interval.high.narrow(it, -1)
	}
}

// narrow keeps the values that are in list as well.
func (f *facts) narrow(list []*value) {
	var kept []*value
	seen := map[string]bool{}
	for _, v := range f.among {
		seen[v.canonical()] = true
	}
	for _, v := range list {
		if key := v.canonical(); seen[key] == f.list {
			kept, seen[key] = append(kept, v), !f.list
		}
	}
	f.list, f.among = true, kept
}

// canonical writes v so that equal values are written alike.
func (v *value) canonical() string {
	switch v.kind {
	case number:
		return readDecimal(v.text).String()
	case text:
		return quote(v.text)
	case array, object:
		var parts []string
		for i, part := range v.list {
			if v.kind == object {
				parts = append(parts, quote(v.keys[i])+part.canonical())
			} else {
				parts = append(parts, part.canonical())
			}
		}
		if v.kind == object {
			slices.Sort(parts)
		}
		return fmt.Sprint(v.kind, parts)
	}
	return fmt.Sprint("kind ", v.kind)
}

// typeOf returns v's type.
func (v *value) typeOf() types {
	switch v.kind {
	case null:
		return nullType
	case falsehood, truth:
		return booleanType
	case number:
		if readDecimal(v.text).part != "" {
			return fractionType
		}
		return integerType
	case text:
		return stringType
	case array:
		return arrayType
	}
	return objectType
}

// fits reports whether v, of an enum or const, satisfies the rest of f.
func (b *builder) fits(f *facts, v *value) bool {
	is := v.typeOf()
	b.refuse(f, is)
	switch {
	case is&f.types == 0:
		return false
	case is&numberType != 0:
		return f.interval.has(readDecimal(v.text)) && !slices.ContainsFunc(f.multiples, func(d decimal) bool {
			return !b.multiples(d).matches(readDecimal(v.text).String())
		})
	case is == stringType:
		n := int32(min(len([]rune(v.text)), math.MaxInt32))
		if n < f.length.least || n > f.length.most {
			return false
		}
		return len(f.patterns) == 0 || b.pattern(f).matches(v.text)
	case is == arrayType && (len(f.arrays) > 0 || f.count != span{0, unbounded}),
		is == objectType && (len(f.objects) > 0 || len(f.required) > 0 || len(f.names) > 0):
		panic(unsupported("it lists arrays or objects, and other keywords say something of them"))
	}
	return true
}

// excluded reports whether f excludes v.
func (b *builder) excluded(f *facts, v *value) bool {
	return slices.ContainsFunc(f.minus, func(m *facts) bool { return b.allows(m, v) })
}

// refuse refuses what f cannot do for values of these types.
func (b *builder) refuse(f *facts, kinds types) {
	for _, r := range f.refused {
		if r.types&kinds != 0 && f.types&kinds != 0 {
			b.at, b.keyword = r.at, r.keyword
			panic(unsupported("this keyword"))
		}
	}
}
