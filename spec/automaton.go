package spec

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Automaton is a suffix automaton over a growing sequence of tokens: a state for every set of substrings
// that end at the same places. Appending is amortised O(1) hash operations a token, memory at most 2 states
// and 3 edges a token (Blumer et al., 1985). Not safe for concurrent use.
//
// After each token, last is the state of the whole text. Its link leads to the longest suffix that has also ended somewhere before: the
// edges of that state are the tokens that followed it there. All substrings of a state end at the same places, so the edges from there on
// spell out text that really followed an earlier occurrence of that suffix.
type Automaton struct {
	states []state
	edges  []edge
	index  map[uint64]int32 // edges of states with more than few: (state, token)
	last   int32
	tokens int
	newest tandem.Token
	copies Copies
}

type state struct {
	length int32 // of its longest substring
	link   int32 // the state of the longest suffix that belongs to another state, -1 at the root
	first  int32 // its newest edge, -1 if none
	degree int32
}

type edge struct {
	token tandem.Token
	to    int32
	next  int32 // the state's next edge, -1 at the end
	count int32 // how often it was taken; a lower bound, since not all suffixes are walked
	at    int32 // number of tokens when it was last taken
}

const (
	// few is how many edges a state has before they are looked up by hash.
	few = 1 << 3
	// countLinks is how many suffixes, longest first, count the token that follows them: all would not be O(1).
	countLinks = 1 << 3
)

// NewAutomaton returns the automaton of the empty text.
func NewAutomaton() *Automaton {
	return &Automaton{states: []state{{link: -1, first: -1}}, index: map[uint64]int32{}}
}

// Append adds tokens to the end of the text.
func (a *Automaton) Append(tokens ...tandem.Token) {
	for _, t := range tokens {
		a.append(t)
	}
}

func (a *Automaton) append(t tandem.Token) {
	a.tokens++
	a.newest = t
	// For suffixes that were seen before, the token is counted if they have an edge for it.
	for s, n := a.states[a.last].link, 0; s >= 0 && n < countLinks; s, n = a.states[s].link, n+1 {
		if e := a.find(s, t); e >= 0 {
			a.edges[e].count++
			a.edges[e].at = int32(a.tokens)
		}
	}
	added := a.state(state{length: int32(a.tokens), link: 0, first: -1})
	s, e := a.last, int32(-1)
	for s >= 0 {
		if e = a.find(s, t); e >= 0 {
			break
		}
		a.connect(s, edge{token: t, to: added, count: 1, at: int32(a.tokens)})
		s = a.states[s].link
	}
	if s >= 0 {
		a.states[added].link = a.split(s, e)
	}
	a.last = added
}

// split returns the state for the suffix that ends with edge e of state s: the state that e leads to, if that
// has no longer substrings, else a new copy of it for the shorter ones.
func (a *Automaton) split(s, e int32) int32 {
	old := a.edges[e].to
	if a.states[old].length == a.states[s].length+1 {
		return old
	}
	part := a.state(state{length: a.states[s].length + 1, link: a.states[old].link, first: -1})
	for x := a.states[old].first; x >= 0; x = a.edges[x].next {
		a.connect(part, a.edges[x])
	}
	a.states[old].link = part
	token := a.edges[e].token
	for s >= 0 {
		if e = a.find(s, token); e < 0 || a.edges[e].to != old {
			break
		}
		a.edges[e].to = part
		s = a.states[s].link
	}
	return part
}

func (a *Automaton) state(s state) int32 {
	a.states = append(a.states, s)
	return int32(len(a.states) - 1)
}

func (a *Automaton) connect(s int32, e edge) {
	from := &a.states[s]
	at := int32(len(a.edges))
	e.next = from.first
	a.edges = append(a.edges, e)
	from.first = at
	if from.degree++; from.degree == few+1 {
		for x := at; x >= 0; x = a.edges[x].next {
			a.index[key(s, a.edges[x].token)] = x
		}
	} else if from.degree > few {
		a.index[key(s, e.token)] = at
	}
}

func (a *Automaton) find(s int32, t tandem.Token) int32 {
	if a.states[s].degree > few {
		if e, ok := a.index[key(s, t)]; ok {
			return e
		}
		return -1
	}
	e := a.states[s].first
	for e >= 0 && a.edges[e].token != t {
		e = a.edges[e].next
	}
	return e
}

func key(s int32, t tandem.Token) uint64 { return uint64(s)<<32 | uint64(uint32(t)) }

// guess is a possible next node of the tree that Continue grows.
type guess struct {
	parent  int32 // node
	state   int32 // after it
	token   tandem.Token
	matched int32 // tokens that agree with the earlier place, this one included
	depth   int
	logProb float32
	at      int32          // as in edge; 0 in an earlier text
	rest    []tandem.Token // of an earlier text: what follows the token there; state is then -1
}

// Continue returns a tree below the newest token, within p, likeliest guesses first: the tokens that followed the longest suffixes of the
// text that had occurred before. Every path from the root followed an earlier occurrence of some suffix of the text, at least one token
// long. Copies says how likely the text goes on as after the longest suffix. The tokens that followed it share this probability by how
// often each did. Shorter suffixes share the rest in the same way and may add to the same guesses. Each guessed token makes the match one
// longer. If no suffix has occurred before, the tree is the root alone; without any tokens there is no root and the tree is empty.
//
// Matches in earlier texts, longest first, count like places in this text. Longer matches go first; of two equally long ones, the one in
// this text does.
func (a *Automaton) Continue(p tandem.Bounds, earlier ...Match) tandem.Tree {
	if a.tokens == 0 {
		return tandem.Tree{}
	}
	t := tandem.Root(a.newest)
	t.LogProbs = []float32{0}
	if p.Plain() {
		return t
	}
	open := a.first(p.Width, earlier)
	for t.Len() < p.Nodes && len(open) > 0 {
		at := 0
		for i := range open {
			if likelier(open[i], open[at]) {
				at = i
			}
		}
		g := open[at]
		open = slices.Delete(open, at, at+1)
		node := int32(t.Len())
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, g.token), append(t.Parents, g.parent), append(t.LogProbs, g.logProb)
		if g.depth == p.Depth {
			continue
		}
		list, kind := a.after(g, p.Width)
		sure := float32(math.Log(a.copies.chance(false, kind, g.matched)))
		for _, c := range list {
			c.parent, c.depth, c.logProb = node, g.depth+1, g.logProb+sure+c.logProb
			open = append(open, c)
		}
	}
	return t
}

// first returns the guesses for the next token, at most width.
func (a *Automaton) first(width int, earlier []Match) (open []guess) {
	left, shorter := 1.0, false
	for s := a.states[a.last].link; (s > 0 || len(earlier) > 0) && left > worth.LeastChance; {
		var m int32
		var level []guess
		kind := 0
		if s > 0 && (len(earlier) == 0 || int(a.states[s].length) >= earlier[0].Length) {
			m = a.states[s].length
			level, kind = a.follow(s, m, width), a.kind(s)
			s = a.states[s].link
		} else {
			m = int32(earlier[0].Length)
			level, kind, earlier = quote(earlier)
		}
		sure := left * a.copies.chance(shorter, kind, m)
		shorter = true
		for _, g := range level {
			g.logProb += float32(math.Log(sure))
			if i := slices.IndexFunc(open, func(o guess) bool { return o.token == g.token }); i >= 0 {
				both := math.Exp(float64(open[i].logProb)) + math.Exp(float64(g.logProb))
				open[i].logProb = float32(math.Log(min(both, 1)))
			} else if len(open) < width {
				open = append(open, g)
			}
		}
		left -= sure
	}
	return open
}

// quote returns the guesses of the first matches, as many as are of one length, with their shares of all, their kind, and the other
// matches.
func quote(earlier []Match) (level []guess, kind int, others []Match) {
	n, total := 0, 0
	for ; n < len(earlier) && earlier[n].Length == earlier[0].Length; n++ {
		total += earlier[n].Count
	}
	for _, m := range earlier[:n] {
		level = append(level, guess{state: -1, token: m.Next[0], rest: m.Next[1:], matched: int32(m.Length) + 1, depth: 1,
			logProb: float32(math.Log(float64(m.Count) / float64(total)))})
	}
	return level, copyOf(n, total), earlier[n:]
}

// after returns the guesses for the token after g, and the kind of the places that they come from.
func (a *Automaton) after(g guess, width int) (list []guess, kind int) {
	switch {
	case g.state >= 0:
		return a.follow(g.state, g.matched, width), a.kind(g.state)
	case len(g.rest) == 0:
		return nil, followedOnce
	}
	return []guess{{state: -1, token: g.rest[0], rest: g.rest[1:], matched: g.matched + 1}}, followedOnce
}

func likelier(a, b guess) bool {
	return cmp.Or(cmp.Compare(a.logProb, b.logProb), cmp.Compare(a.at, b.at), cmp.Compare(b.token, a.token)) > 0
}

// follow returns what followed the last matched tokens of a state, the most frequent first, then the
// latest, at most width, with their shares of all.
func (a *Automaton) follow(s, matched int32, width int) []guess {
	var list []guess
	total := 0.0
	for e := a.states[s].first; e >= 0; e = a.edges[e].next {
		x := a.edges[e]
		total += float64(x.count)
		list = append(list, guess{state: x.to, token: x.token, matched: matched + 1, depth: 1, at: x.at, logProb: float32(x.count)})
	}
	slices.SortFunc(list, func(a, b guess) int {
		return cmp.Or(cmp.Compare(b.logProb, a.logProb), cmp.Compare(b.at, a.at), cmp.Compare(a.token, b.token))
	})
	list = list[:min(len(list), width)]
	for i := range list {
		list[i].logProb = float32(math.Log(float64(list[i].logProb) / total))
	}
	return list
}
