package grammar

import (
	"slices"
	"strings"
)

// leaf returns the nodes of the values that satisfy f, by type.
func (b *builder) leaf(f *facts) (parts []*node) {
	if f.list {
		return b.enumeration(f.among)
	}
	b.refuse(f, f.types)
	var words []*value
	for _, kind := range []valueKind{null, truth, falsehood} {
		if v := (&value{kind: kind}); v.typeOf()&f.types != 0 && !b.excluded(f, v) {
			words = append(words, v)
		}
	}
	parts = b.enumeration(words)
	if f.types&numberType != 0 {
		parts = append(parts, b.chars(b.numberOf(f), plain))
	}
	if f.types&stringType != 0 {
		parts = append(parts, b.stringOf(f))
	}
	if f.types&arrayType != 0 {
		parts = append(parts, b.arrayOf(f))
	}
	if f.types&objectType != 0 {
		parts = append(parts, b.objectOf(f))
	}
	return parts
}

// enumeration is one of these values: those without white space in one automaton.
func (b *builder) enumeration(list []*value) (parts []*node) {
	var words []string
	for _, v := range list {
		if v.kind == array || v.kind == object {
			parts = append(parts, b.marked(b.written(v)))
		} else {
			words = append(words, b.written(v))
		}
	}
	if len(words) > 0 {
		parts = append(parts, b.chars(b.words(words, true), raw))
	}
	return parts
}

// written writes v with marks where white space may stand.
func (b *builder) written(v *value) string {
	colon, comma, bracket := b.behind()
	switch v.kind {
	case null:
		return "null"
	case falsehood:
		return "false"
	case truth:
		return "true"
	case number: // 1.0 is an integer, which not every reader of one takes
		if plain := v.canonical(); len(plain) <= maxDigits {
			return plain
		}
		return v.text
	case text:
		return quote(v.text)
	}
	var parts []string
	for i, part := range v.list {
		s := b.written(part)
		if v.kind == object {
			s = quote(v.keys[i]) + ":" + colon + s
		}
		parts = append(parts, s)
	}
	s := bracket + strings.Join(parts, ","+comma) + bracket
	if len(parts) == 0 {
		s = ""
	}
	if v.kind == object {
		return "{" + s + "}"
	}
	return "[" + s + "]"
}

// numberOf returns the automaton of f's numbers, nil if there are none.
func (b *builder) numberOf(f *facts) *automaton {
	form := integers
	if f.types&fractionType != 0 {
		form = fractions
	}
	if form == fractions && f.interval == (interval{}) && len(f.multiples)+len(f.minus) == 0 {
		return b.anyNumber()
	}
	a := b.within(f, form)
	for _, m := range f.minus {
		form := wholes
		if m.types&fractionType != 0 {
			form = fractions
		}
		if !m.list && m.types&numberType != 0 {
			a = b.merge(a, b.within(m, form), onlyFirst)
		}
		for _, v := range m.among {
			if v.kind == number {
				it := bound{set: true, at: readDecimal(v.text)}
				a = b.merge(a, b.numbers(interval{it, it}, fractions), onlyFirst)
			}
		}
	}
	return a
}

// within returns the automaton of the numbers that f's bounds and multiples allow.
func (b *builder) within(f *facts, form numberForm) *automaton {
	a := b.numbers(f.interval, form)
	for _, d := range f.multiples {
		a = b.merge(a, b.multiples(d), both)
	}
	return a
}

// pattern returns the automaton of the texts that match all of f's patterns and formats, nil if there are none.
func (b *builder) pattern(f *facts) *automaton {
	all := slices.Compact(slices.Sorted(slices.Values(f.patterns)))
	return b.automaton("pattern\x00"+strings.Join(all, "\x00"), func() (a *automaton) {
		for i, e := range all {
			next := b.automaton("search\x00"+e, func() *automaton { return b.regex(e, search) })
			if i == 0 {
				a = next
			} else {
				a = b.merge(a, next, both)
			}
			if a == nil {
				return nil
			}
		}
		return a
	})
}

// stringOf is a string that satisfies f. The fewest characters are part of the automaton, if it has a pattern; the most are counted.
func (b *builder) stringOf(f *facts) *node {
	if len(f.minus) > 0 {
		a := b.texts(f)
		for _, m := range f.minus {
			a = b.merge(a, b.texts(m), onlyFirst)
		}
		return b.chars(a, quoted)
	}
	if len(f.patterns) == 0 {
		it := b.chars(b.anyString(), quoted)
		it.lo, it.hi = f.length.least, f.length.most
		return it
	}
	a := b.pattern(f)
	if a != nil && f.length.least > a.far[0] {
		a = b.merge(a, b.lengths(f.length.least, unbounded), both)
	}
	it := b.chars(a, quoted)
	it.hi = f.length.most
	return it
}

// texts returns the automaton of all strings that f allows, nil if there are none.
func (b *builder) texts(f *facts) *automaton {
	if f.list {
		var list []string
		for _, v := range f.among {
			if v.kind == text {
				list = append(list, v.text)
			}
		}
		return b.words(list, false)
	}
	b.refuse(f, stringType)
	if f.types&stringType == 0 {
		return nil
	}
	a := b.anyString()
	if len(f.patterns) > 0 {
		a = b.pattern(f)
	}
	if a != nil && f.length != (span{0, unbounded}) {
		a = b.merge(a, b.lengths(f.length.least, f.length.most), both)
	}
	return a
}

// names returns the automaton of the names that f allows.
func (b *builder) names(f *facts) (a *automaton) {
	if len(f.names) == 0 {
		return b.anyString()
	}
	for _, way := range b.ways(f.names, nil) {
		a = b.merge(a, b.texts(way), either)
	}
	return a
}

// tuple returns the schemas of the first elements and of the rest, if s says something of them.
func (s *value) tuple() (first []*value, rest *value) {
	if items := s.get("items"); items != nil && items.kind == array { // before draft 2020-12
		return items.list, s.get("additionalItems")
	}
	if prefix := s.get("prefixItems"); prefix != nil {
		first = prefix.list
	}
	return first, s.get("items")
}

// element returns the schemas of element i.
func (f *facts) element(i int) (list []*value) {
	for _, s := range f.arrays {
		if first, rest := s.tuple(); i < len(first) {
			list = append(list, first[i])
		} else if rest != nil {
			list = append(list, rest)
		}
	}
	return list
}

// arrayOf is an array: first the elements that have schemas of their own, then others.
func (b *builder) arrayOf(f *facts) *node {
	own := 0
	for _, s := range f.arrays {
		first, _ := s.tuple()
		own = max(own, len(first))
	}
	others := b.unit(f.element(own))
	if own == 0 || f.count.least > f.count.most { // the latter is nothing
		return b.array(others, f.count.least, f.count.most)
	}
	_, comma, bracket := b.behind()
	separator, most := b.marked(","+comma), f.count.most
	if most != unbounded {
		most = max(0, most-int32(own))
	}
	tail := b.node(node{kind: repeat, parts: []*node{b.sequence(separator, others)}, lo: max(0, f.count.least-int32(own)), hi: most})
	for i := int32(own) - 1; i >= 0; i-- {
		parts := []*node{separator, b.unit(f.element(int(i))), tail}
		if i == 0 {
			parts = parts[1:]
		}
		switch tail = b.sequence(parts...); {
		case i >= f.count.most:
			tail = b.text("")
		case i >= f.count.least:
			tail = b.choice(b.text(""), tail)
		}
	}
	return b.sequence(b.marked("["+bracket), tail, b.marked(bracket+"]"))
}

// objectOf is an object: its members in the order of the schemas' properties, then those that are only required, then others.
func (b *builder) objectOf(f *facts) *node {
	names, fields, seen, known := b.names(f), []field(nil), []string(nil), map[string]bool{}
	add := func(name string) {
		if known[name] {
			return
		}
		seen, known[name] = append(seen, name), true
		b.spend(len(f.required) + len(f.objects))
		required := slices.Contains(f.required, name)
		if names != nil && names.matches(name) {
			fields = append(fields, b.named(name, b.unit(f.member(name)), required))
		} else if required {
			fields = append(fields, b.named(name, b.choice(), true)) // which nothing satisfies
		}
	}
	for _, s := range f.objects {
		if properties := s.get("properties"); properties != nil {
			for _, name := range properties.keys {
				add(name)
			}
		}
	}
	for _, name := range f.required {
		add(name)
	}
	if len(seen) > 0 && names != nil {
		names = b.merge(names, b.words(seen, false), onlyFirst)
	}
	var extra *field
	if others := f.others(); !slices.ContainsFunc(others, func(s *value) bool { return s.kind == falsehood }) {
		it := b.field(b.chars(names, quoted), b.unit(others))
		extra = &it
	}
	return b.object(fields, extra)
}

// member returns the schemas of the member called name.
func (f *facts) member(name string) (list []*value) {
	for _, s := range f.objects {
		var own *value
		if properties := s.get("properties"); properties != nil {
			own = properties.get(name)
		}
		if own == nil {
			own = s.get("additionalProperties")
		}
		if own != nil {
			list = append(list, own)
		}
	}
	return list
}

// others returns the schemas of members that no schema names.
func (f *facts) others() (list []*value) {
	for _, s := range f.objects {
		if it := s.get("additionalProperties"); it != nil {
			list = append(list, it)
		}
	}
	return list
}
