package grammar

import "slices"

// maxApart bounds how deep overlap looks into members and elements, and at how many elements.
const maxApart = 8

// overlap returns the types of which a value may satisfy both f and o. Of the other types surely none does.
func (b *builder) overlap(f, o *facts, depth int) (common types) {
	b.spend(1 << 8)
	if !f.list {
		f, o = o, f
	}
	if f.list {
		for _, v := range f.among {
			if b.allows(o, v) {
				common |= v.typeOf()
			}
		}
		return common
	}
	common = f.types & o.types
	if common&numberType != 0 && f.interval.apart(o.interval) {
		common &^= numberType
	}
	if common&stringType != 0 && (f.length.apart(o.length) || b.patternsApart(f, o)) {
		common &^= stringType
	}
	if common&arrayType != 0 && (f.count.apart(o.count) ||
		b.elementsApart(f, o, depth)) {
		common &^= arrayType
	}
	if common&objectType != 0 && (b.membersApart(f, o, depth) || b.membersApart(o, f, depth)) {
		common &^= objectType
	}
	return common
}

// allows reports whether v satisfies f, but for what f excludes.
func (b *builder) allows(f *facts, v *value) bool {
	if f.list {
		return f.known[v.canonical()]
	}
	return b.fits(f, v)
}

func (s span) apart(o span) bool { return max(s.least, o.least) > min(s.most, o.most) }

func (b *builder) patternsApart(f, o *facts) bool {
	return len(f.patterns) > 0 && len(o.patterns) > 0 && b.merge(b.pattern(f), b.pattern(o), both) == nil
}

// elementsApart reports whether one of the first elements cannot be what both want of it.
func (b *builder) elementsApart(f, o *facts, depth int) bool {
	for i := range min(f.count.least, o.count.least, maxApart) {
		if b.schemasApart(f.element(int(i)), o.element(int(i)), depth) {
			return true
		}
	}
	return false
}

// membersApart reports whether a member that f requires cannot be what o wants of it.
func (b *builder) membersApart(f, o *facts, depth int) bool {
	return slices.ContainsFunc(f.required, func(name string) bool { return b.schemasApart(f.member(name), o.member(name), depth) })
}

// schemasApart reports whether surely no value satisfies all schemas of x and of y.
func (b *builder) schemasApart(x, y []*value, depth int) bool {
	if depth == maxApart {
		return false
	}
	others := b.ways(y, nil)
	for _, f := range b.ways(x, nil) {
		for _, o := range others {
			if b.overlap(f, o, depth+1) != 0 {
				return false
			}
		}
	}
	return true
}
