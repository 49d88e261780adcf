package spec

import (
	"cmp"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// model is a made-up language model over a small vocabulary: everything depends on the whole prefix.
type model struct {
	seed  uint64
	vocab int
}

func (m model) rng(prefix []tandem.Token) *rand.Rand {
	h := fnv.New64a()
	for _, t := range prefix {
		_, _ = h.Write([]byte{byte(t), byte(t >> 8)})
	}
	return rand.New(rand.NewPCG(m.seed, h.Sum64()))
}

func (m model) next(prefix []tandem.Token) tandem.Token {
	return tandem.Token(m.rng(prefix).IntN(m.vocab))
}

// candidates returns the likeliest k tokens after prefix, probabilities often equal, sometimes 1.
func (m model) candidates(prefix []tandem.Token, k int) []Candidate {
	r := m.rng(prefix)
	list := make([]Candidate, m.vocab)
	for i, t := range r.Perm(m.vocab) {
		list[i] = Candidate{tandem.Token(t), -float32(r.IntN(8)) / 4}
	}
	slices.SortFunc(list, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.LogProb, a.LogProb), cmp.Compare(a.Token, b.Token))
	})
	return list[:min(k, len(list))]
}

// grow runs b to its end and checks the rows it asks for.
func grow(t interface{ Fatalf(string, ...any) }, b Grower, m model, room int) Draft {
	paths := [][]tandem.Token{} // of each row
	for rows := b.Pending(room); len(rows) > 0; rows = b.Pending(room - len(paths)) {
		var lists [][]Candidate
		old := len(paths)
		for _, r := range rows {
			path := []tandem.Token{r.Token} // the root
			if r.Depth > 0 {
				if int(r.Parent) >= old {
					t.Fatalf("row %+v has a parent that was not run before", r)
				}
				path = []tandem.Token{0}
				if r.Parent >= 0 {
					path = paths[r.Parent]
				}
				path = append(slices.Clone(path), r.Token)
				paths = append(paths, path)
			}
			if len(path) != r.Depth+1 {
				t.Fatalf("row %+v has a path of %d tokens", r, len(path))
			}
			lists = append(lists, m.candidates(path, m.vocab))
		}
		b.Absorb(lists)
	}
	d := b.Draft()
	for i, row := range d.Rows {
		if row >= 0 && !slices.Equal(paths[row], pathOf(d.Tree, int32(i))) {
			t.Fatalf("node %d: row %d holds the path %v, the tree says %v", i, row, paths[row], pathOf(d.Tree, int32(i)))
		}
		if p := d.Tree.Parents[i]; row >= 0 && p > 0 && d.Rows[p] < 0 {
			t.Fatalf("node %d has a row, its parent has none", i)
		}
	}
	return d
}

func pathOf(t tandem.Tree, node int32) (path []tandem.Token) {
	for ; node >= 0; node = t.Parents[node] {
		path = append(path, t.Tokens[node])
	}
	slices.Reverse(path)
	return path
}

// levelsByTheBook is the algorithm without any shortcut: every level run in full, everything recorded.
func levelsByTheBook(m model, root tandem.Token, p tandem.Bounds) tandem.Tree {
	type rec struct {
		node
		path []tandem.Token
	}
	id := int32(0)
	expand := func(parent rec) (out []rec) {
		for _, c := range m.candidates(parent.path, p.Width) {
			id++
			out = append(out, rec{node{id: id, parent: parent.id, depth: parent.depth + 1, token: c.Token,
				score: parent.score + c.LogProb}, append(slices.Clone(parent.path), c.Token)})
		}
		return out
	}
	byRank := func(a, b rec) int { return better(a.node, b.node) }
	level := expand(rec{path: []tandem.Token{root}})
	all := slices.Clone(level)
	for range p.Depth - 1 {
		slices.SortFunc(level, byRank)
		run := slices.Clone(level[:min(p.Width, len(level))])
		level = nil
		for _, n := range run {
			level = append(level, expand(n)...)
		}
		all = append(all, level...)
	}
	slices.SortFunc(all, byRank)
	all = all[:min(len(all), p.Nodes-1)]
	slices.SortFunc(all, func(a, b rec) int { return cmp.Compare(a.id, b.id) })
	t := tandem.Root(root)
	t.LogProbs = []float32{0}
	place := map[int32]int32{}
	for i, n := range all {
		place[n.id] = int32(i + 1)
		t.Tokens = append(t.Tokens, n.token)
		t.Parents = append(t.Parents, place[n.parent])
		t.LogProbs = append(t.LogProbs, n.score)
	}
	return t
}

func genBounds(r *rapid.T) tandem.Bounds {
	return tandem.Bounds{Nodes: rapid.IntRange(2, 40).Draw(r, "nodes"),
		Depth: rapid.IntRange(1, 8).Draw(r, "depth"), Width: rapid.IntRange(1, 10).Draw(r, "width")}
}

func genChance(r *rapid.T) float64 {
	return rapid.SampledFrom([]float64{0, 1e-3, 0.05, 0.3, 0.6, 1}).Draw(r, "chance")
}

func genModel(r *rapid.T) model {
	return model{rapid.Uint64().Draw(r, "model"), rapid.IntRange(1, 12).Draw(r, "vocab")}
}

func TestLevelsEqualTheBook(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m, p := genModel(r), genBounds(r)
		got := grow(r, newBuilder(tandem.GrowLevels, 0, p), m, math.MaxInt).Tree
		if want := levelsByTheBook(m, 0, p); !reflect.DeepEqual(got, want) {
			r.Fatalf("%v:\n got %v\nwant %v", p, got, want)
		}
	})
}

func TestTreesAreValid(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m, p := genModel(r), genBounds(r)
		room := rapid.IntRange(0, 60).Draw(r, "room")
		for _, b := range []Grower{newBuilder(tandem.GrowLevels, 0, p), newBuilder(tandem.GrowBest, 0, p),
			NewPacer(0, p, genChance(r), genChance(r))} {
			tree := grow(r, b, m, room).Tree
			if err := tree.Validate(p.Nodes, m.vocab); err != nil {
				r.Fatal(err)
			}
			if _, deepest := tree.Depths(); deepest > p.Depth {
				r.Fatalf("depth %d of a %v tree", deepest, p)
			}
			for i, parent := range tree.Parents[1:] {
				if tree.LogProbs[i+1] > tree.LogProbs[parent] {
					r.Fatalf("node %d is likelier than its parent: %v", i+1, tree)
				}
			}
		}
	})
}

func TestAbsorbWantsOneListPerRow(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Absorb took two lists for one row")
		}
	}()
	b := newBuilder(tandem.GrowLevels, 0, tandem.Bounds{Nodes: 4, Depth: 2, Width: 2})
	b.Pending(9)
	b.Absorb(make([][]Candidate, 2))
}

type rule func(tandem.Tree, func(int32) tandem.Token) ([]int32, []tandem.Token)

func genTree(r *rapid.T, m model, root tandem.Token) tandem.Tree {
	t := tandem.Root(root)
	for range rapid.IntRange(0, 30).Draw(r, "nodes") {
		parent := int32(rapid.IntRange(0, t.Len()-1).Draw(r, "parent"))
		tok := tandem.Token(rapid.IntRange(0, m.vocab-1).Draw(r, "token"))
		if child(t, parent, tok) < 0 {
			t.Tokens, t.Parents = append(t.Tokens, tok), append(t.Parents, parent)
		}
	}
	return t
}

// differs decodes with random trees and returns what is wrong with the rule, "" if it is plain decoding.
func differs(r *rapid.T, accept rule) string {
	m := genModel(r)
	text := []tandem.Token{0}
	for range rapid.IntRange(1, 6).Draw(r, "rounds") {
		tree := genTree(r, m, text[len(text)-1])
		visits := map[int32]int{}
		path, tokens := accept(tree, func(n int32) tandem.Token {
			visits[n]++
			return m.next(append(slices.Clone(text[:len(text)-1]), pathOf(tree, n)...))
		})
		if len(tokens) != len(path)+1 {
			return "tokens and path do not match"
		}
		at := int32(0)
		for i, n := range path {
			if tree.Parents[n] != at || tree.Tokens[n] != tokens[i] {
				return "path is not a path of these tokens"
			}
			at = n
		}
		if child(tree, at, tokens[len(path)]) >= 0 {
			return "stopped although the token was drafted"
		}
		for n, v := range visits {
			if v != 1 || n != 0 && !slices.Contains(path, n) {
				return "drew twice, or off the path"
			}
		}
		for _, tok := range tokens {
			if want := m.next(text); tok != want {
				return "another token than plain decoding"
			}
			text = append(text, tok)
		}
	}
	return ""
}

func TestAcceptIsPlainDecoding(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		if wrong := differs(r, Accept); wrong != "" {
			r.Fatal(wrong)
		}
	})
}

// TestBrokenRulesAreCaught shows that the property above is able to fail.
func TestBrokenRulesAreCaught(t *testing.T) {
	top2 := func(t tandem.Tree, draw func(int32) tandem.Token) (path []int32, tokens []tandem.Token) {
		for at := int32(0); ; {
			x := draw(at)
			next := child(t, at, x)
			if next < 0 {
				next = child(t, at, x+1) // what a lenient rule would call good enough
			}
			if next < 0 {
				return path, append(tokens, x)
			}
			path, tokens, at = append(path, next), append(tokens, t.Tokens[next]), next
		}
	}
	parentsDraw := func(t tandem.Tree, draw func(int32) tandem.Token) (path []int32, tokens []tandem.Token) {
		for at := int32(0); ; {
			x := draw(at)
			next := child(t, at, x)
			if next < 0 {
				return path, append(tokens, x)
			}
			path, tokens, at = append(path, next), append(tokens, x), next
			if !slices.Contains(t.Parents, at) { // a leaf: emits what led to it
				return path, append(tokens, x)
			}
		}
	}
	drawsTwice := func(t tandem.Tree, draw func(int32) tandem.Token) ([]int32, []tandem.Token) {
		draw(0)
		return Accept(t, draw)
	}
	stopsEarly := func(t tandem.Tree, draw func(int32) tandem.Token) ([]int32, []tandem.Token) {
		return nil, []tandem.Token{draw(0)}
	}
	for name, broken := range map[string]rule{"top 2": top2, "parent's draw at a leaf": parentsDraw,
		"draws twice": drawsTwice, "stops early": stopsEarly} {
		caught := false
		for seed := range 50 {
			caught = caught || rapid.Custom(func(r *rapid.T) string { return differs(r, broken) }).Example(seed) != ""
		}
		if !caught {
			t.Errorf("%s: not caught", name)
		}
	}
}

func BenchmarkLevels(b *testing.B) {
	m := model{1, 64}
	p := tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}
	lists := make([][]Candidate, 10)
	for i := range lists {
		lists[i] = m.candidates([]tandem.Token{tandem.Token(i)}, 10)
	}
	for b.Loop() {
		t := newBuilder(tandem.GrowLevels, 0, p)
		for rows := t.Pending(999); len(rows) > 0; rows = t.Pending(999) {
			t.Absorb(lists[:len(rows)])
		}
		t.Draft()
	}
}

func TestTemper(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := genModel(r)
		weights, sum := make([]float64, rapid.IntRange(1, 9).Draw(r, "candidates")), 0.0
		for i := range weights {
			weights[i] = rapid.Float64Range(1e-6, 1).Draw(r, "weight")
			sum += weights[i]
		}
		slices.SortFunc(weights, func(a, b float64) int { return cmp.Compare(b, a) })
		share := rapid.Float64Range(0.05, 1).Draw(r, "share") // of the probability that the candidates have
		var list []Candidate
		for i, w := range weights {
			list = append(list, Candidate{tandem.Token(i % m.vocab), float32(math.Log(share * w / sum))})
		}
		cold := Temper(list, rapid.Float64Range(0.1, 0.99).Draw(r, "temperature"))
		total := 0.0
		for i, c := range cold {
			total += chance(c.LogProb)
			if c.Token != list[i].Token || i > 0 && c.LogProb > cold[i-1].LogProb {
				r.Fatalf("%v became %v: another order", list, cold)
			}
		}
		if total > 1+1e-5 {
			r.Fatalf("%v became %v: %v in all", list, cold, total)
		}
		if first := list[0].LogProb; chance(first) > 0.5 && cold[0].LogProb < first-1e-5 {
			r.Fatalf("%v became %v: the favourite counts for less", list, cold)
		}
	})
	list := []Candidate{{1, -0.5}, {2, -1.5}}
	for _, t0 := range []float64{0, 1, 2, -1, math.NaN()} {
		if got := Temper(list, t0); !slices.Equal(got, list) {
			t.Errorf("temperature %v: %v", t0, got)
		}
	}
}

// newBuilder returns a grower that runs the likeliest nodes, in one of their two orders.
func newBuilder(order tandem.Growth, root tandem.Token, p tandem.Bounds) Grower {
	return NewGrower(root, tandem.Proposal{Bounds: p, Growth: order})
}
