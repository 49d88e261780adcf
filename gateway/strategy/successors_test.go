package strategy

import (
	"cmp"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec"
)

// targetGuesses is the name of the target's own entry in a recording. Its tries hold the target's likeliest tokens after each place of the
// text, and after nodes beside it that drafts are likely to lead to. Recycling learns from them; no drafter has that name.
const targetGuesses = "target"

// besideReach is the probability, by whoever drafts it, of the least likely node beside the text whose successors are recorded. A row of
// the real pair's passes pays from about that on.
const besideReach = 0.2

// besideLevels is how far beside the text the target's successors are recorded, in tokens.
const besideLevels = 3

// recycling is the drafter in a replay that learns from the target's likeliest tokens.
const recycling = tandem.Recycling

// successorsOf returns the target's likeliest tokens at a trie of its own.
func successorsOf(n *trie) (list []tandem.Token) {
	for _, c := range n.list[:min(len(n.list), tandem.MostSuccessors)] {
		list = append(list, c.Token)
	}
	return list
}

// rank stands for a probability in the target's tries: only the order of the tokens counts.
func rank(i int) float32 { return -float32(i) / recordStep }

// target returns the target's tries; nil: they were not recorded.
func (r *recorded) target() *guessed { return r.by(targetGuesses) }

func (r *recorded) by(drafter string) *guessed {
	if at := slices.IndexFunc(r.of, func(g guessed) bool { return g.drafter == drafter }); at >= 0 {
		return &r.of[at]
	}
	return nil
}

// recycler replays recycling in one session, whose tenant has a table of its own.
type recycler struct {
	of        *recorded
	table     *spec.Successors
	chances   *spec.RankChances // of the gateway
	hindsight tandem.Hindsight
}

// pair returns the two tokens before place at of the text; the first is -1 if there is none.
func (r *recorded) pair(at int) (before, root tandem.Token) {
	token := func(i int) tandem.Token {
		switch all := len(r.prompt) + i; {
		case all < 0:
			return -1
		case i < 0:
			return r.prompt[all]
		}
		return r.text[i]
	}
	return token(at - 2), token(at - 1)
}

// tree drafts after text[:at].
func (d *recycler) tree(at int, p tandem.Proposal) tandem.Tree {
	before, root := d.of.pair(at)
	return d.table.Tree(before, root, d.chances, p.Bounds, p.Stop)
}

// look compares what would have been guessed with n committed tokens, as source.recycling does before it learns from their verdict.
func (d *recycler) look(at, n int) tandem.Hindsight {
	before, root := d.of.pair(at)
	for _, hit := range d.chances.Learn(d.table, before, root, d.of.text[at:at+n]) {
		d.hindsight.Tokens, d.hindsight.Hits = min(d.hindsight.Tokens+1, tandem.MaxHindsight), d.hindsight.Hits<<1
		if hit {
			d.hindsight.Hits |= 1
		}
	}
	return d.hindsight
}

// take learns from the verdict on a tree after text[:at]. Of nodes beside the recorded ones nothing is learned.
func (d *recycler) take(at int, t tandem.Tree) {
	g := d.of.target()
	before, root := d.of.pair(at)
	d.table.Learn(before, root, successorsOf(g.tries[at]))
	nodes := make([]*trie, t.Len())
	nodes[0] = g.tries[at]
	for i := 1; i < t.Len(); i++ {
		parent := t.Parents[i]
		if nodes[i] = g.step(nodes[parent], t.Tokens[i], d.of); nodes[i] != nil {
			d.table.Learn(t.Tokens[parent], t.Tokens[i], successorsOf(nodes[i]))
		}
	}
}

// step returns the trie after a node's token; nil: it was not recorded.
func (g *guessed) step(parent *trie, token tandem.Token, r *recorded) *trie {
	if parent == nil {
		return nil
	}
	if k, on := g.places[parent]; on && r.text[k] == token {
		if k+1 < len(g.tries) {
			return g.tries[k+1]
		}
		return nil
	}
	if i := slices.IndexFunc(parent.list, func(c spec.Candidate) bool { return c.Token == token }); i >= 0 {
		return parent.next[i]
	}
	return nil
}

// likeliest returns what the target finds likely along the text, and beside it where the recorded draft models, lookup or recycling lead.
func (r *recorded) likeliest(t *testing.T, m *engine.Model) guessed {
	t.Helper()
	g := guessed{drafter: targetGuesses, temper: 1, places: map[*trie]int{}}
	seq, err := m.NewSequence(len(r.prompt)+len(r.text)+besideDeep+1, 2048)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	for i := range r.text {
		g.tries = append(g.tries, &trie{})
		g.places[g.tries[i]] = i
	}
	for piece := range slices.Chunk(r.prompt, pairRows) {
		out := forward(t, m, tandem.MostSuccessors, engine.Part{Seq: seq, Extend: piece, Want: engine.WantTail})
		if seq.Len() == len(r.prompt) {
			g.tries[0].rank(out.Top(0))
		}
	}
	var level []growing
	for i, token := range r.text[:len(r.text)-1] {
		level = append(level, growing{token: token, parent: int32(i - 1), to: g.tries[i+1]})
	}
	rows := map[*trie]int32{g.tries[0]: -1}
	for depth := 0; len(level) > 0 && depth <= besideLevels; depth++ {
		r.run(t, m, seq, level, rows)
		level = g.lead(r, rows)
	}
	return g
}

// inTurn returns the first text of each kind, then the second of each, and so on: a recording that was broken off has some of each.
func inTurn(texts []*recorded) []*recorded {
	rank, kinds := map[*recorded]int{}, map[string]int{}
	for _, r := range texts {
		rank[r] = kinds[r.class]
		kinds[r.class]++
	}
	texts = slices.Clone(texts)
	slices.SortStableFunc(texts, func(a, b *recorded) int { return cmp.Compare(rank[a], rank[b]) })
	return texts
}

// rank sets the likeliest tokens after a node that has none.
func (n *trie) rank(top engine.Top) {
	for i, id := range top.IDs[:min(tandem.MostSuccessors, len(top.IDs))] {
		n.child(spec.Candidate{Token: tandem.Token(id), LogProb: rank(i)})
	}
}

// run runs nodes of a level and sets what the target finds likely after them.
func (r *recorded) run(t *testing.T, m *engine.Model, seq *engine.Sequence, level []growing, rows map[*trie]int32) {
	t.Helper()
	for piece := range slices.Chunk(level, pairRows) {
		part := engine.Part{Seq: seq, Want: engine.WantAll}
		for i, n := range piece {
			rows[n.to] = int32(seq.Nodes() + i)
			part.Nodes, part.Parents = append(part.Nodes, n.token), append(part.Parents, n.parent)
		}
		out := forward(t, m, tandem.MostSuccessors, part)
		for i, n := range piece {
			n.to.rank(out.Top(i))
		}
	}
}

// lead returns the nodes to run next, whose parents have been run and which drafts are likely to lead to.
func (g *guessed) lead(r *recorded, rows map[*trie]int32) (level []growing) {
	add := func(at int, tree tandem.Tree) {
		nodes := make([]*trie, tree.Len())
		nodes[0] = g.tries[at]
		for i := 1; i < tree.Len(); i++ {
			parent := nodes[tree.Parents[i]]
			if parent == nil || chanceOf(spec.Candidate{LogProb: tree.LogProbs[i]}) < besideReach {
				continue
			}
			if nodes[i] = g.step(parent, tree.Tokens[i], r); nodes[i] != nil {
				continue
			}
			if k, on := g.places[parent]; on && r.text[k] == tree.Tokens[i] {
				continue // the text ends
			}
			if row, ran := rows[parent]; ran {
				at := parent.child(spec.Candidate{Token: tree.Tokens[i], LogProb: rank(len(parent.list))})
				parent.next[at] = &trie{}
				level = append(level, growing{token: tree.Tokens[i], parent: row, to: parent.next[at]})
			}
		}
	}
	b := newBox()
	find, again := r.drafter(lookup, b), recycler{r, spec.NewSuccessors(), &spec.RankChances{}, tandem.Hindsight{}}
	bounds := tandem.Bounds{Nodes: 16, Depth: besideDeep, Width: 8}
	r.of = append(r.of, *g)
	for at := range r.text {
		for _, d := range r.of[:len(r.of)-1] {
			if d.drafter != targetGuesses {
				add(at, d.besides(at))
			}
		}
		find.follow(at)
		add(at, find.text.Continue(bounds))
		add(at, again.tree(at, tandem.Proposal{Bounds: bounds}))
		again.look(at, 1)
		again.take(at, tandem.Root(0))
	}
	r.of = r.of[:len(r.of)-1]
	return level
}

// besides returns the tree of what a draft model guesses beside the text at a place, as deep as it is recorded.
func (g *guessed) besides(at int) tandem.Tree {
	tree := tandem.Root(0)
	tree.LogProbs = []float32{0}
	var walk func(n *trie, node int32, off float32)
	walk = func(n *trie, node int32, off float32) {
		if n == nil {
			return
		}
		for i, c := range n.list {
			if lp := off + c.LogProb; chanceOf(spec.Candidate{LogProb: lp}) >= besideReach {
				child := int32(tree.Len())
				tree.Tokens, tree.Parents, tree.LogProbs = append(tree.Tokens, c.Token), append(tree.Parents, node),
					append(tree.LogProbs, lp)
				walk(n.next[i], child, lp)
			}
		}
	}
	walk(g.tries[at], 0, 0)
	return tree
}
