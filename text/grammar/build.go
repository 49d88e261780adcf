package grammar

import "slices"

// builder makes the nodes of a Spec. Its methods panic with an *Error.
type builder struct {
	budget
	nodes    []*node
	units    map[string]*node      // schemas, by the places of what holds at once
	automata map[string]*automaton // by what they were made of
	indent   bool
	values   int32  // JSON values read so far
	at       *value // the schema that is being read,
	keyword  string // and its keyword or, without a schema, the Spec's kind
}

func (b *builder) place() (at, keyword string) {
	if b.at != nil {
		at = b.at.pointer()
	}
	return at, b.keyword
}

// node adds n to the grammar.
func (b *builder) node(n node) *node {
	if len(b.nodes) == b.limits.Nodes {
		panic(tooLarge("a grammar of more than %d nodes", b.limits.Nodes))
	}
	it := &n
	it.id, it.height = int32(len(b.nodes)), infinite
	b.nodes = append(b.nodes, it)
	return it
}

func (b *builder) text(s string) *node { return b.node(node{kind: literal, text: s}) }

// marked is a literal in which blankMark and breakMark stand for white space.
func (b *builder) marked(s string) *node { return b.node(node{kind: literal, text: s, marked: true}) }

func (b *builder) sequence(parts ...*node) *node { return b.node(node{kind: sequence, parts: parts}) }

func (b *builder) choice(parts ...*node) *node {
	if len(parts) > maxAlternatives {
		panic(tooLarge("more than %d alternatives", maxAlternatives))
	}
	return b.node(node{kind: choice, parts: parts})
}

// chars is what a accepts, of any length; nothing if a is nil.
func (b *builder) chars(a *automaton, m mode) *node {
	return b.node(node{kind: chars, auto: a, mode: m, hi: unbounded})
}

// automaton returns the automaton called name, which it makes only once.
func (b *builder) automaton(name string, make func() *automaton) *automaton {
	a, known := b.automata[name]
	if !known {
		a = make()
		b.automata[name] = a
	}
	return a
}

// spec makes the node of s.
func (b *builder) spec(s *Spec, depth int) *node {
	if depth > b.limits.Depth {
		panic(tooLarge("more than %d levels", b.limits.Depth))
	}
	b.at, b.keyword = nil, ""
	type form struct {
		keyword string
		set     bool
		build   func() *node
	}
	var found *form
	for _, f := range []form{
		{"schema", s.Schema != nil, func() *node { return b.schema(s) }},
		{"object", s.Object, func() *node { return b.schema(&Spec{Schema: []byte(`{"type":"object"}`), Indent: s.Indent}) }},
		{"regex", s.Regex != "", func() *node { return b.chars(b.regex(s.Regex, whole), plain) }},
		{"choices", s.Choices != nil, func() *node { return b.chars(b.words(s.Choices, true), raw) }},
		{"text", s.Text != "", func() *node { return b.text(s.Text) }},
		{"seq", s.Seq != nil, func() *node { return b.sequence(b.specs(s.Seq, depth)...) }},
		{"any", s.Any != nil, func() *node { return b.choice(b.specs(s.Any, depth)...) }},
		{"repeat", s.Repeat != nil, func() *node { return b.repeat(s.Repeat, depth) }},
		{"until", s.Until != nil, func() *node { return b.until(s.Until, depth) }},
	} {
		if f.set && found != nil {
			panic(invalid("%s and %s are both set", found.keyword, f.keyword))
		}
		if f.set {
			found = &f
		}
	}
	if found == nil {
		panic(invalid("nothing is asked for"))
	}
	b.keyword = found.keyword
	return found.build()
}

func (b *builder) specs(list []Spec, depth int) []*node {
	var out []*node
	for i := range list {
		out = append(out, b.spec(&list[i], depth+1))
	}
	return out
}

func (b *builder) repeat(r *Repeat, depth int) *node {
	parts := []*node{b.spec(&r.Of, depth+1)}
	if r.Separator != "" {
		parts = append(parts, b.text(r.Separator))
	}
	b.keyword = "repeat"
	if r.Min < 0 || r.Max < 0 || r.Max > 0 && r.Min > r.Max || r.Min >= unbounded {
		panic(invalid("%d to %d times", r.Min, r.Max))
	}
	if parts[0].mayBeEmpty(map[*node]bool{}) {
		panic(unsupported("what is repeated may be the empty text"))
	}
	most := int32(unbounded)
	if r.Max > 0 {
		most = int32(min(r.Max, unbounded))
	}
	return b.node(node{kind: repeat, parts: parts, lo: int32(r.Min), hi: most})
}

// mayBeEmpty reports whether n has the empty text. JSON values never have; what made only of them is not looked at twice.
func (n *node) mayBeEmpty(seen map[*node]bool) bool {
	if seen[n] {
		return false
	}
	seen[n] = true
	empty := func(part *node) bool { return part.mayBeEmpty(seen) }
	switch n.kind {
	case literal:
		return n.optionalFrom(0)
	case chars:
		return n.mode != quoted && n.lo == 0 && n.auto != nil && (n.auto.accept[0] || n.exits != nil && len(n.exits[0]) > 0)
	case sequence:
		return !slices.ContainsFunc(n.parts, func(part *node) bool { return !part.mayBeEmpty(map[*node]bool{}) })
	case choice:
		return slices.ContainsFunc(n.parts, empty)
	case repeat:
		return n.lo == 0
	}
	return true
}

// until makes the automaton of Aho and Corasick (1975) over bytes. Where a marker ends, what follows it takes over; the automaton goes on
// there only as far as the text may become a longer marker.
func (b *builder) until(u *Until, depth int) *node {
	if len(u.Then) != 0 && len(u.Then) != len(u.Markers) || len(u.Markers) == 0 && !u.End {
		panic(invalid("%d markers with %d texts behind them", len(u.Markers), len(u.Then)))
	}
	parts := b.specs(u.Then, depth)
	for range len(u.Markers) - len(parts) {
		parts = append(parts, b.text(""))
	}
	b.keyword = "until"
	if slices.Contains(u.Markers, "") {
		panic(invalid("a marker is empty"))
	}
	t := b.trie(u.Markers, true)
	fail, bound := make([]int32, len(t.children)), make([]bool, len(t.children))
	order := []int32{0}
	for i := 0; i < len(order); i++ {
		n := order[i]
		b.spend(1 + len(t.children[n]))
		bound[n] = bound[n] || len(t.ends[n]) > 0
		for _, r := range t.sorted(n) {
			child := t.children[n][r]
			bound[child] = bound[n]
			if n != 0 {
				fail[child] = t.after(fail, fail[n], r)
			}
			t.ends[child] = append(t.ends[child], t.ends[fail[child]]...)
			order = append(order, child)
		}
	}
	a, nodes := explore(&b.budget, t.alphabet, 0, func(n int32, r rune) (int32, bool) {
		if bound[n] {
			return t.child(n, r)
		}
		return t.after(fail, n, r), true
	}, func(n int32) bool { return len(t.ends[n]) > 0 || u.End && !bound[n] })
	exits := make([][]int32, len(nodes))
	for q, n := range nodes {
		exits[q] = t.ends[n]
		a.accept[q] = a.accept[q] && len(t.ends[n]) == 0
	}
	it := b.chars(a, raw)
	if it.again = u.Again; u.Again {
		for i := range parts {
			parts[i] = b.sequence(parts[i], it)
		}
	}
	it.parts, it.exits = parts, exits
	return it
}

// after returns the node of the longest suffix of n's text and r that is in t.
func (t *trie) after(fail []int32, n int32, r rune) int32 {
	for {
		if to, ok := t.children[n][r]; ok {
			return to
		}
		if n == 0 {
			return 0
		}
		n = fail[n]
	}
}

func (t *trie) sorted(n int32) []rune {
	var out []rune
	for r := range t.children[n] {
		out = append(out, r)
	}
	slices.Sort(out)
	return out
}
