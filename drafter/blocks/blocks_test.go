package blocks_test

import (
	"cmp"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// guessed returns the three best tokens that the draft guesses at each distance behind text.
func guessed(f *draftertest.States, text []tandem.Token) (levels [][]int32) {
	f.T.Helper()
	block(f, text, 3, func(out *engine.Output) {
		for i := range out.Len() {
			levels = append(levels, out.Top(i).IDs)
		}
	})
	return levels
}

// block calls use with what one pass of its own computes of a block behind text, and the best tokens of each row.
func block(f *draftertest.States, text []tandem.Token, best int, use func(out *engine.Output)) {
	f.T.Helper()
	seq, err := f.Model.NewSequence(60, 10)
	if err != nil {
		f.T.Fatal(err)
	}
	defer seq.Close()
	b, n := f.Model.Block(), len(text)
	part := engine.Part{Seq: seq, Extend: text[1:], Nodes: text[n-1:], Parents: []int32{-1}, Want: engine.WantTail}
	part.States = make([]engine.State, n-1+b.Rows)
	width := f.Oracle.Target.FeatureWidth() / len(f.Oracle.Taps)
	x := make([]float32, f.Oracle.Target.FeatureWidth())
	for p := range n - 1 {
		half.Unpack(x, f.Oracle.Row(text, p))
		for _, tap := range f.Side.Taps {
			at := slices.Index(f.Oracle.Taps, tap) * width
			part.States[p].Target = append(part.States[p].Target, x[at:at+width]...)
		}
	}
	for i := range b.Rows - 1 {
		part.Nodes, part.Parents = append(part.Nodes[:i+1:i+1], tandem.Token(b.Mask)), append(part.Parents, int32(i))
	}
	out, err := f.Model.Forward([]engine.Part{part}, best)
	if err != nil {
		f.T.Fatal(err)
	}
	use(out)
}

// TestBlockTrees: a tree is made of what one pass guesses: a chain of the best tokens, or of the best of each level below those of the one
// before. A tree's pass has the whole block, whatever its draftertest.Bounds.
func TestBlockTrees(t *testing.T) {
	f := draftertest.NewStates(t, "dflash", drafter.Config{Chunk: 5})
	text := draftertest.RandomTokens(rand.New(rand.NewPCG(1, 2)), 30)
	f.BeginText(1, "", text, 20)
	passes := func() int64 { return f.Counters.Snapshot()["passes"] }
	before := passes()
	chain := f.Tree(1, 20, 20, 1)
	wide := f.Tree(1, 20, 20, 3) // costs nothing more
	if n := passes() - before; n != 2 {
		t.Errorf("%d passes for two trees at the same place: want 2, of the text's last row and of the block", n)
	}
	before = passes()
	f.Tree(1, 24, 20, 3)
	if n := passes() - before; n != 2 {
		t.Errorf("%d passes for a tree four tokens on: want 2", n)
	}
	if err := f.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	levels := guessed(f, text[:20])
	if len(levels) != 5 || chain.Len() != 5 {
		t.Fatalf("%d levels, and a chain of %d nodes: want 5 and 5, the root and a depth of 4", len(levels), chain.Len())
	}
	for i, token := range chain.Tokens[1:] {
		if token != tandem.Token(levels[i][0]) || chain.Parents[i+1] != int32(i) {
			t.Errorf("node %d of the chain is %d below %d: want %d", i+1, token, chain.Parents[i+1], levels[i][0])
		}
	}
	depths, deepest := wide.Depths()
	if wide.Len() != 12 || deepest < 2 {
		t.Errorf("tree of %d nodes, %d deep: want 12, at least 2", wide.Len(), deepest)
	}
	for i, token := range wide.Tokens[1:] {
		if level := levels[depths[i+1]-1]; !slices.Contains(level, int32(token)) {
			t.Errorf("node %d at depth %d is %d: want one of %d", i+1, depths[i+1], token, level)
		}
	}
}

// TestBlocksLearn: a level whose guesses are always wrong is believed less, so that trees stop there.
func TestBlocksLearn(t *testing.T) {
	f := draftertest.NewStates(t, "dflash", drafter.Config{Chunk: 8})
	text := draftertest.RandomTokens(rand.New(rand.NewPCG(3, 4)), 62)
	f.BeginText(1, "", text, 5)
	var first, last float32
	for n := 5; n+2 < 60; n += 2 {
		tree := f.Tree(1, n, max(n-2, 5), 1)
		text[n] = tree.Tokens[1] // the first guess is right, the second wrong
		if last = tree.LogProbs[2]; first == 0 {
			first = last
		}
		if text[n+1] == tree.Tokens[2] {
			text[n+1]++
		}
	}
	if !(last < first-1) {
		t.Errorf("log probability of a second guess: %.2f at first, %.2f at last: want it at least 1 less", first, last)
	}
}

// TestBlocksNeedRoom: a drafter whose passes are smaller than a block is refused.
func TestBlocksNeedRoom(t *testing.T) {
	f := draftertest.NewStates(t, "dflash", drafter.Config{})
	_, err := drafter.New(drafter.Config{Model: f.Model, Pool: f.Pool, Counters: f.Counters, Taps: f.Side.Taps, TreeRows: 5})
	if tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("5 tree rows for blocks of 6: %v", err)
	}
}

// TestSelectorTrees: a draft with a selector (DFlash2) guesses the path of the best steps between the candidates of its levels, and a wide
// tree goes on from each node with what the selector finds likeliest there.
func TestSelectorTrees(t *testing.T) {
	target := family.Read(t, filepath.Join(draftertest.Sides, "target.gguf"))
	path := family.Draft(family.DraftShape{Kind: "dflash", Taps: []int{2, 3}, Two: true}, target, "dd9a29545807bb2b924edc09679dc0eb",
		"934910ae626e7b3f", 5).Write(t, t.TempDir())
	f := draftertest.NewStates(t, path, drafter.Config{Chunk: 5})
	text := draftertest.RandomTokens(rand.New(rand.NewPCG(1, 2)), 30)
	f.BeginText(1, "", text, 20)
	chain := f.Tree(1, 20, 20, 1)
	wide := f.Tree(1, 20, 20, 3)
	if err := f.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	best := f.Model.Block().Best
	steps := map[int]map[tandem.Token][]tandem.Token{} // by level and the token before: candidates, best first
	unary := 0
	block(f, text[:20], best, func(out *engine.Output) {
		before := []tandem.Token{text[19]}
		for i := range out.Len() {
			var list []tandem.Token
			for _, id := range out.Top(i).IDs {
				list = append(list, tandem.Token(id))
			}
			added, err := out.Steps(i, before, list)
			if err != nil {
				t.Fatal(err)
			}
			steps[i] = map[tandem.Token][]tandem.Token{}
			for b, token := range before {
				score := map[tandem.Token]float32{}
				for j, candidate := range list {
					score[candidate] = out.Logits(i)[candidate] + added[b][j]
				}
				sorted := slices.Clone(list)
				slices.SortFunc(sorted, func(x, y tandem.Token) int { return cmp.Compare(score[y], score[x]) })
				if steps[i][token] = sorted; sorted[0] != list[0] {
					unary++
				}
			}
			before = list
		}
	})
	if unary == 0 {
		t.Fatal("the selector changes no order: the test shows nothing")
	}
	token := text[19]
	for i, next := range chain.Tokens[1:] {
		if want := steps[i][token][0]; next != want {
			t.Fatalf("node %d of the chain is %d behind %d: want %d", i+1, next, token, want)
		}
		token = next
	}
	depths, deepest := wide.Depths()
	if chain.Len() != 5 || wide.Len() != 12 || deepest < 2 {
		t.Errorf("a chain of %d nodes and a tree of %d, %d deep: want 5, 12 and at least 2", chain.Len(), wide.Len(), deepest)
	}
	for i, next := range wide.Tokens[1:] {
		parent := wide.Tokens[wide.Parents[i+1]]
		if list := steps[int(depths[i+1])-1][parent]; !slices.Contains(list, next) {
			t.Errorf("node %d is %d behind %d: want one of %d", i+1, next, parent, list)
		}
	}
}
