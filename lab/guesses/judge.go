package guesses

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/shape"
)

// tally counts rounds and the tokens that they decided, the target's own included.
type tally struct {
	rounds, tokens int
	foretold       float64 // the tokens that the trees' chances added up to
}

func (t *tally) add(o tally) {
	t.rounds, t.tokens, t.foretold = t.rounds+o.rounds, t.tokens+o.tokens, t.foretold+o.foretold
}

// length returns the acceptance length τ: tokens per round, 1 without rounds.
func (t tally) length() float64 {
	if t.rounds == 0 {
		return 1
	}
	return float64(t.tokens) / float64(t.rounds)
}

// of returns the texts of a domain, all for "".
func of(texts []*text, domain string) (out []*text) {
	for _, x := range texts {
		if domain == "" || x.domain == domain {
			out = append(out, x)
		}
	}
	return out
}

// samples returns a way's samples of texts.
func samples(texts []*text, way string) (out [][]shape.Sample) {
	for _, x := range texts {
		out = append(out, x.samples[way])
	}
	return out
}

// shaped returns what rounds with one shape decide in texts.
func shaped(s shape.Shape, texts [][]shape.Sample) (t tally) {
	for _, text := range texts {
		rounds := shape.Replay(s, text)
		t.add(tally{rounds: len(rounds), tokens: int(math.Round(shape.Measured(s, rounds) * float64(len(rounds))))})
	}
	return t
}

// sparse returns what rounds with a sparse tree decide in texts.
func sparse(sp *shape.Sparse, texts [][]shape.Sample) (t tally) {
	for _, text := range texts {
		rounds, tokens := sp.Replay(text)
		t.add(tally{rounds: len(rounds), tokens: tokens})
	}
	return t
}

// maker makes the trees of the rounds of a text.
type maker interface {
	// begin is called before the first round of a text.
	begin(x *text)
	// tree returns the tree below the root at that place.
	tree(root int) tandem.Tree
	// ended is called after the round of t: its path ended at node, and the tokens in committed followed the root.
	ended(t tandem.Tree, node int32, committed []tandem.Token)
}

// replay decodes a text with the trees of m, by the rule of acceptance. A round counts if the text covers its whole tree.
func replay(x *text, m maker) (out tally) {
	m.begin(x)
	for root := x.Prompt - 1; ; {
		t := m.tree(root)
		if _, deepest := t.Bare().Depths(); root+deepest+1 >= len(x.Text) {
			return out
		}
		at := root
		path, tokens := spec.Accept(t, func(int32) tandem.Token {
			at++
			return x.Text[at]
		})
		for _, lp := range t.Bare().LogProbs {
			out.foretold += math.Exp(float64(lp))
		}
		node := int32(0)
		if len(path) > 0 {
			node = path[len(path)-1]
		}
		m.ended(t, node, tokens)
		out.rounds, out.tokens = out.rounds+1, out.tokens+len(tokens)
		root += len(tokens)
	}
}

// replayAll is replay of several texts.
func replayAll(texts []*text, m maker) (out tally) {
	for _, x := range texts {
		out.add(replay(x, m))
	}
	return out
}

// merged makes one tree of the guesses of several ways and drafts, as the gateway does: of one alone it takes the likeliest nodes, of
// several what spec.Mix has learned that is likely. ppd has prompt nodes in at most half of the nodes.
type merged struct {
	nodes   int
	ways    []wayTable
	drafts  []string
	mix     *spec.Mix
	x       *text
	levels  int // of ppd's guess that are there: the prompt tokens behind the node where the round before has ended
	said    []spec.DrafterTree
	lengths []float64 // f(T_i) of ppd
}

// wayTable is a way with what was counted of it on calibration texts.
type wayTable struct {
	tandem.SelfDraft
	table *shape.Accuracy
}

// promptSpots is how many nodes get all their prompt nodes, as far as there is room. The gateway has the same.
const promptSpots = 4

func (m *merged) begin(x *text) {
	m.x = x
	if w, is := m.ppd(); is {
		m.levels = w.Levels
	}
}

func (m *merged) ppd() (wayTable, bool) {
	i := slices.IndexFunc(m.ways, func(w wayTable) bool { return w.Members > 0 })
	if i < 0 {
		return wayTable{}, false
	}
	return m.ways[i], true
}

func (m *merged) tree(root int) tandem.Tree {
	place := root - m.x.Prompt + 1
	ppd, prompted := m.ppd()
	reserve := 0
	if prompted {
		n := min(promptSpots*ppd.Levels*ppd.Members, m.nodes/2, m.nodes-2)
		reserve = max(n/ppd.Members*ppd.Members, 0)
	}
	room := m.nodes - reserve
	m.said = m.said[:0]
	for _, w := range m.ways {
		g := m.x.Guesses[w.Name][place]
		if w.Members > 0 {
			g.Levels = g.Levels[:min(len(g.Levels), m.levels)]
		}
		m.said = append(m.said, spec.DrafterTree{Drafter: w.Name, Tree: shape.Adaptive(m.x.Text[root], g, w.table.Corrected(g), room)})
	}
	for _, d := range m.drafts {
		t := tandem.Root(m.x.Text[root])
		t.LogProbs = []float32{0}
		if place < len(m.x.trees[d]) {
			t = head(m.x.trees[d][place], room)
		}
		m.said = append(m.said, spec.DrafterTree{Drafter: d, Tree: t})
	}
	t := m.said[0].Tree
	if len(m.said) > 1 {
		t = m.mix.Merge(m.said, room)
	}
	if rows := m.nodes - t.Len(); prompted && rows >= ppd.Members {
		t = shape.Prompt(t, shape.Allot(t, m.lengths, ppd.SelfDraft, rows), ppd.SelfDraft)
	}
	return t
}

func (m *merged) ended(t tandem.Tree, node int32, committed []tandem.Token) {
	if len(m.said) > 1 {
		m.mix.Record(m.said, committed)
	}
	m.levels = promptsBehind(t, node)
}

// promptsBehind returns how many prompt tokens a node has: the length of the chain of its first member.
func promptsBehind(t tandem.Tree, node int32) (n int) {
	for i := t.Guesses(); i < t.Len(); i++ {
		if t.Parents[i] == node && int(t.Tokens[i]) == n {
			node, n = int32(i), n+1
		}
	}
	return n
}
