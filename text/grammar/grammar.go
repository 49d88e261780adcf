// Package grammar says which bytes may come next in a text that must follow a JSON schema, a regular expression or another Spec, and which
// tokens of a vocabulary are made of such bytes.
//
// A Spec is compiled once. The grammar is a graph of nodes, which may contain themselves (machine.go). A State is a set of configurations:
// each is a place in a literal or in an automaton over characters (automaton.go, chars.go), and a stack of what follows it. So a state is
// a function of the bytes read, whatever tokens they came in, and copying it forks it. Nothing that cannot be finished is ever in a state:
// automata are trimmed when they are made, and a node is entered only if its shortest text fits below the limit of nesting.
//
// A Vocabulary walks the trie of a model's tokens with a state, and takes whole the subtrees of which an automaton allows everything
// (mask.go). A byte-level parser over a trie of tokens is llguidance's design as its documentation says it, but here is no separate lexer.
package grammar

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// Version changes when the language of a Spec does, and is part of a session's identity.
const Version = 1

// Spec says a constraint. Exactly one of its kinds is set. Its canonical form is its JSON.
type Spec struct {
	Schema  json.RawMessage `json:"schema,omitempty"`  // a JSON Schema; true and {} are any JSON
	Object  bool            `json:"object,omitempty"`  // any JSON object
	Regex   string          `json:"regex,omitempty"`   // the whole text matches; RE2's syntax. No text has a byte 0
	Choices []string        `json:"choices,omitempty"` // one of these texts
	Text    string          `json:"text,omitempty"`    // this text
	Seq     []Spec          `json:"seq,omitempty"`     // one after the other
	Any     []Spec          `json:"any,omitempty"`     // one of them
	Repeat  *Repeat         `json:"repeat,omitempty"`
	Until   *Until          `json:"until,omitempty"`
	Indent  bool            `json:"indent,omitempty"` // of Schema and Object: indented forms are allowed as well
}

// Repeat is a text of Of, several times.
type Repeat struct {
	Of        Spec   `json:"of"` // may not be the empty text
	Separator string `json:"separator,omitempty"`
	Min       int    `json:"min,omitempty"`
	Max       int    `json:"max,omitempty"` // 0: any number
}

// Until is free bytes up to the first of the markers, the marker, and what follows it. If a marker begins another one, the text may be
// either; of markers that end at different places the first to end counts.
type Until struct {
	Markers []string `json:"markers,omitempty"`
	End     bool     `json:"end,omitempty"`   // the text may end before a marker
	Then    []Spec   `json:"then,omitempty"`  // by marker; none: nothing follows
	Again   bool     `json:"again,omitempty"` // behind that the same Until begins again
}

// Limits bound what Compile takes. Zero fields are DefaultLimits'.
type Limits struct {
	Bytes   int // of the Spec as JSON
	Depth   int // of the Spec and of a schema's JSON
	Nodes   int // of the grammar
	States  int // of all automata: ways, in units of 256
	Work    int // steps of compilation, of about 10 ns
	Nesting int // frames of a text: two or three for each level of a JSON text
}

// DefaultLimits bound a grammar to about 20 MB and its compilation to about a second.
var DefaultLimits = Limits{Bytes: 256 << 10, Depth: 64, Nodes: 1 << 16, States: 1 << 14, Work: 1 << 26, Nesting: 1 << 8}

// What errors.Is finds in an Error of Compile.
var (
	ErrInvalid     = errors.New("invalid")     // no Spec, no schema, or one that no text satisfies
	ErrUnsupported = errors.New("unsupported") // what this room cannot do
	ErrTooLarge    = errors.New("too large")   // beyond Limits
)

// Error is why a Spec cannot be compiled.
type Error struct {
	At      string // JSON pointer into the schema; "" for its root, or if there is none
	Keyword string // of the schema, or the kind of Spec; may be ""
	Why     string
	Kind    error // ErrInvalid, ErrUnsupported or ErrTooLarge
}

func (e *Error) Error() string {
	where := "the constraint"
	if e.Keyword != "" {
		where = e.Keyword
	}
	if e.At != "" {
		where += " at " + e.At
	}
	return fmt.Sprintf("%s: %v: %s", where, e.Kind, e.Why)
}

func (e *Error) Unwrap() error { return e.Kind }

func tooLarge(format string, args ...any) *Error {
	return &Error{Kind: ErrTooLarge, Why: fmt.Sprintf(format, args...)}
}

func unsupported(format string, args ...any) *Error {
	return &Error{Kind: ErrUnsupported, Why: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) *Error {
	return &Error{Kind: ErrInvalid, Why: fmt.Sprintf(format, args...)}
}

// Grammar is a compiled Spec. It is safe for concurrent use.
type Grammar struct {
	frames
	nodes   []*node
	start   State
	nesting int32
	digest  [sha256.Size]byte
	id      uint64 // of this process: see the cache of masks
}

// budget counts what a compilation has used. Its methods panic with an *Error.
type budget struct {
	limits       Limits
	work, states int
}

func (b *budget) spend(work int) {
	if b.work += work; b.work > b.limits.Work {
		panic(tooLarge("more than %d steps of compilation", b.limits.Work))
	}
}

// state counts a state of an automaton with so many ways.
func (b *budget) state(ways int) {
	const unit, other = 256, 32 // other: what a state costs beside its ways
	if b.states += ways + other; b.states > b.limits.States*unit {
		panic(tooLarge("automata with more than %d states of %d ways", b.limits.States, unit))
	}
}

func (l Limits) withDefaults() Limits {
	for _, p := range []struct {
		of       *int
		standard int
	}{{&l.Bytes, DefaultLimits.Bytes}, {&l.Depth, DefaultLimits.Depth}, {&l.Nodes, DefaultLimits.Nodes}, {&l.States, DefaultLimits.States},
		{&l.Work, DefaultLimits.Work}, {&l.Nesting, DefaultLimits.Nesting}} {
		if *p.of == 0 {
			*p.of = p.standard
		}
	}
	return l
}

// Compile makes the grammar of s. An error is an *Error.
func Compile(s Spec, l Limits) (g *Grammar, err error) {
	b := &builder{budget: budget{limits: l.withDefaults()}, units: map[string]*node{}, automata: map[string]*automaton{}}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			if e.At == "" && e.Keyword == "" {
				e.At, e.Keyword = b.place()
			}
			g, err = nil, e
		}
	}()
	text, e := json.Marshal(s)
	if e != nil {
		panic(invalid("%v", e))
	}
	if len(text) > b.limits.Bytes {
		panic(tooLarge("%d bytes: at most %d are allowed", len(text), b.limits.Bytes))
	}
	root := b.spec(&s, 0)
	b.at, b.keyword = nil, ""
	b.measure()
	g = &Grammar{nodes: b.nodes, nesting: int32(b.limits.Nesting), id: grammars.Add(1)}
	g.digest = sha256.Sum256(strconv.AppendInt(append(text, '\n'), Version, 10))
	if root.height > g.nesting {
		if root.height < infinite {
			panic(tooLarge("even the shortest text is nested too deeply"))
		}
		panic(invalid("no text satisfies it"))
	}
	var first set
	g.enter(&first, root, nil)
	g.start = g.state(&first)
	return g, nil
}

// measure finds the height of every node: the least solution, which grows from the literals.
func (b *builder) measure() {
	for changed := true; changed; {
		changed = false
		for i := len(b.nodes) - 1; i >= 0; i-- {
			n := b.nodes[i]
			h := n.measured()
			b.spend(1 + len(n.parts) + len(n.fields))
			if h < n.height {
				n.height, changed = h, true
			}
		}
	}
}

func (n *node) measured() int32 {
	h := int32(0)
	switch n.kind {
	case chars:
		if n.auto == nil || n.lo > n.hi || n.auto.far[0] > n.hi {
			return infinite
		}
		for _, part := range n.parts {
			if n.again {
				part = part.parts[0]
			}
			h = max(h, part.height)
		}
		return h
	case sequence:
		for _, part := range n.parts {
			h = max(h, part.height+1)
		}
	case choice:
		h = infinite
		for _, part := range n.parts {
			h = min(h, part.height)
		}
	case repeat:
		if n.lo > n.hi {
			return infinite
		}
		for i := 0; n.lo > 0 && i < len(n.parts); i++ {
			h = max(h, n.parts[i].height+1)
		}
	case members:
		for i := range n.fields {
			if n.fields[i].required {
				h = max(h, n.fields[i].first.height+1, n.fields[i].next.height+1)
			}
		}
	}
	return min(h, infinite)
}

// Digest identifies the Spec and this room's Version.
func (g *Grammar) Digest() [sha256.Size]byte { return g.digest }

// Start is the state before the first byte.
func (g *Grammar) Start() State { return g.start }
