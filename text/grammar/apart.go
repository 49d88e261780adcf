package grammar

import "slices"

// maxApart bounds how deep apart looks into the members of objects.
const maxApart = 8

// apart reports whether surely no value satisfies both f and o: only then is "exactly one of them" the same as "one of them".
func (b *builder) apart(f, o *facts, depth int) bool {
	b.spend(1 << 8)
	if !f.list {
		f, o = o, f
	}
	if f.list {
		return !slices.ContainsFunc(f.among, func(v *value) bool {
			if o.list {
				return slices.ContainsFunc(o.among, func(w *value) bool { return v.canonical() == w.canonical() })
			}
			return b.fits(o, v)
		})
	}
	common := f.types & o.types
	if common&numberType != 0 && f.interval.apart(o.interval) {
		common &^= numberType
	}
	if common&stringType != 0 && (f.length.apart(o.length) || b.patternsApart(f, o)) {
		common &^= stringType
	}
	if common&arrayType != 0 && (f.count.apart(o.count) ||
		f.count.least > 0 && o.count.least > 0 && b.schemasApart(f.items, o.items, depth)) {
		common &^= arrayType
	}
	if common&objectType != 0 && (b.membersApart(f, o, depth) || b.membersApart(o, f, depth)) {
		common &^= objectType
	}
	return common == 0
}

func (s span) apart(o span) bool { return max(s.least, o.least) > min(s.most, o.most) }

func (b *builder) patternsApart(f, o *facts) bool {
	return len(f.patterns) > 0 && len(o.patterns) > 0 && b.merge(b.pattern(f), b.pattern(o), both) == nil
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
			if !b.apart(f, o, depth+1) {
				return false
			}
		}
	}
	return true
}
