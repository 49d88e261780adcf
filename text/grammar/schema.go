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
	b.flatten(list, own, nil, func(own []*value) { out = append(out, b.facts(own)) })
	return out
}

// group is an anyOf or oneOf.
type group struct {
	at       *value
	keyword  string
	branches []*value
}

// flatten calls leaf with each way to satisfy the schemas in work and groups: a list of schemas whose own keywords hold, but $ref, allOf,
// anyOf and oneOf. own is what the list has so far.
func (b *builder) flatten(work, own []*value, groups []group, leaf func(own []*value)) {
	for len(work) > 0 {
		s := work[0]
		work = work[1:]
		b.spend(1 + len(own))
		switch {
		case s.kind == truth || slices.Contains(own, s):
			continue
		case s.kind == falsehood:
			return
		case s.kind != object:
			b.at, b.keyword = s, ""
			panic(invalid("a schema is an object, true or false"))
		}
		own = append(slices.Clip(own), s)
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
		leaf(own)
		return
	}
	g := groups[0]
	if g.keyword == "oneOf" {
		b.oneOf(g, own)
	}
	for _, branch := range g.branches {
		b.flatten([]*value{branch}, own, groups[1:], leaf)
	}
}

// oneOf refuses branches that may hold at once.
func (b *builder) oneOf(g group, own []*value) {
	sides := make([][]*facts, len(g.branches))
	for i, branch := range g.branches {
		sides[i] = b.ways([]*value{branch}, own)
		for j := range i {
			for _, x := range sides[i] {
				for _, y := range sides[j] {
					if !b.apart(x, y, 0) {
						b.at, b.keyword = g.at, g.keyword
						panic(unsupported("branches %d and %d may hold at once, as far as can be told", j, i))
					}
				}
			}
		}
	}
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
