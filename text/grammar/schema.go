package grammar

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// schema makes the node of a JSON Schema.
//
// A unit is a list of schemas that hold at once. It is flattened: references and allOf add to the list, anyOf and oneOf make several lists
// of one. What the schemas of such a list say by themselves is put together in facts, of which values.go makes nodes. Units are known by
// the schemas in them, so recursion ends.
func (b *builder) schema(s *Spec) *node {
	indent := b.indent
	b.indent = indent || s.Indent
	it := b.unit([]*value{readJSON(s.Schema, b.limits.Depth, &b.values)})
	b.indent = indent
	return it
}

// unit returns the node of the values that satisfy all of list.
func (b *builder) unit(list []*value) *node {
	at, keyword := b.at, b.keyword
	var ids []int
	b.spend(64 * (1 + len(list)))
	for _, s := range list {
		if s.kind != truth && !(s.kind == object && len(s.keys) == 0) {
			ids = append(ids, int(s.id))
		}
	}
	slices.Sort(ids)
	key := fmt.Sprint(b.indent, slices.Compact(ids))
	if it, known := b.units[key]; known {
		return it
	}
	it := b.node(node{kind: choice})
	b.units[key] = it
	var parts []*node
	for _, f := range b.ways(list, nil) {
		parts = append(parts, b.leaf(f)...)
	}
	if len(parts) > maxAlternatives {
		panic(tooLarge("more than %d alternatives", maxAlternatives))
	}
	it.parts, b.at, b.keyword = parts, at, keyword
	return it
}

// ways returns the ways to satisfy the schemas in list and, besides, own's own keywords.
func (b *builder) ways(list, own []*value) (out []*facts) {
	for _, s := range list {
		b.progress(s)
	}
	b.flatten(list, way{own: own}, nil, func(w way) { out = append(out, b.facts(w)) })
	return out
}

// way is one way to satisfy a unit: what the schemas in own say beside $ref, allOf, anyOf and oneOf holds, and none of minus.
type way struct {
	own   []*value
	minus []*facts
}

// group is an anyOf or oneOf.
type group struct {
	at       *value
	keyword  string
	branches []*value
}

// flatten calls leaf with each way to satisfy w and the schemas in work and groups.
func (b *builder) flatten(work []*value, w way, groups []group, leaf func(way)) {
	w.own = slices.Clone(w.own)
	for len(work) > 0 {
		s := work[0]
		work = work[1:]
		b.spend(1 + len(w.own))
		switch {
		case s.kind == truth || slices.Contains(w.own, s):
			continue
		case s.kind == falsehood:
			return
		case s.kind != object:
			b.at, b.keyword = s, ""
			panic(invalid("a schema is an object, true or false"))
		}
		w.own = append(w.own, s)
		if target := b.reference(s); target != nil {
			if work = append([]*value{target}, work...); s.old() {
				continue
			}
		}
		work = append(slices.Clone(b.schemas(s, "allOf")), work...)
		for _, keyword := range []string{"anyOf", "oneOf"} {
			if branches := b.schemas(s, keyword); branches != nil {
				groups = append(slices.Clip(groups), group{s, keyword, branches})
			}
		}
	}
	if len(groups) == 0 {
		b.spend(1 << 10) // a leaf costs about as much
		leaf(w)
		return
	}
	g, minus := groups[0], [][]*facts(nil)
	if g.keyword == "oneOf" {
		minus = b.exclusive(g, w.own)
	}
	for i, branch := range g.branches {
		next := w
		if minus != nil {
			next.minus = append(slices.Clip(w.minus), minus[i]...)
		}
		b.flatten([]*value{branch}, next, groups[1:], leaf)
	}
}

// exclusive returns, for each branch of a oneOf, the ways of the other branches that share values with it. It refuses arrays and objects
// that two branches may share.
func (b *builder) exclusive(g group, own []*value) [][]*facts {
	sides, minus := make([][]*facts, len(g.branches)), make([][]*facts, len(g.branches))
	for i, branch := range g.branches {
		sides[i] = b.ways([]*value{branch}, own)
		for j := range i {
			for _, x := range sides[i] {
				for _, y := range sides[j] {
					common := b.overlap(x, y, 0)
					if common&(arrayType|objectType) != 0 && !(x.list && y.list) {
						b.at, b.keyword = g.at, g.keyword
						panic(unsupported("branches %d and %d may hold at once, as far as can be told", j, i))
					}
					if common != 0 {
						minus[i], minus[j] = append(minus[i], y), append(minus[j], x)
					}
				}
			}
		}
	}
	return minus
}

// schemas returns the schemas that a keyword of s lists, nil without it.
func (b *builder) schemas(s *value, keyword string) []*value {
	v := s.get(keyword)
	if v == nil {
		return nil
	}
	if v.kind != array || len(v.list) == 0 {
		b.at, b.keyword = s, keyword
		panic(invalid("it is a list of schemas"))
	}
	return v.list
}

// old reports whether s is written for a draft in which $ref replaces everything beside it.
func (v *value) old() bool {
	for v.up != nil {
		v = v.up
	}
	draft := v.get("$schema")
	return draft != nil && slices.ContainsFunc([]string{"draft-03", "draft-04", "draft-06", "draft-07"},
		func(name string) bool { return strings.Contains(draft.text, name) })
}

// reference returns what s's $ref refers to, nil without one.
func (b *builder) reference(s *value) *value {
	ref := s.get("$ref")
	if ref == nil {
		return nil
	}
	b.at, b.keyword = s, "$ref"
	base := s
	for ; base.up != nil; base = base.up {
		if id := base.get("$id"); id != nil && id.kind == text && !strings.HasPrefix(id.text, "#") && !(base == s && s.old()) {
			break
		}
	}
	path, local := strings.CutPrefix(ref.text, "#")
	path, err := url.PathUnescape(path)
	if ref.kind != text || !local || err != nil || path != "" && path[0] != '/' {
		panic(unsupported("%q: only references within the schema, such as #/$defs/name, can be followed", ref.text))
	}
	at := base
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		if path == "" {
			break
		}
		part = strings.NewReplacer("~1", "/", "~0", "~").Replace(part)
		next := at.get(part)
		if i, err := strconv.Atoi(part); err == nil && at.kind == array && i >= 0 && i < len(at.list) {
			next = at.list[i]
		}
		if at = next; at == nil {
			panic(invalid("%q refers to nothing", ref.text))
		}
	}
	return at
}

// progress refuses a schema that refers to itself without a step into a value.
func (b *builder) progress(s *value) {
	switch s.checked {
	case passed:
		return
	case entered:
		panic(unsupported("the schema refers to itself, and no part of a value is between"))
	}
	s.checked = entered
	b.spend(1)
	if target := b.reference(s); target != nil {
		b.progress(target)
	}
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		for _, part := range b.schemas(s, keyword) {
			b.at, b.keyword = s, keyword
			b.progress(part)
		}
	}
	s.checked = passed
}
