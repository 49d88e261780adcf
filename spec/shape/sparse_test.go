package shape

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// check fails if sp is no sparse tree within those rows, or its figures are not those of its states.
func check(t interface{ Fatalf(string, ...any) }, sp Sparse, rate Rate, rows int) {
	if len(sp.States) != sp.Way.Levels+1 || len(sp.Lengths) != len(sp.States) || len(sp.Steady) != len(sp.States) {
		t.Fatalf("%d states, %d lengths, %d chances: want %d", len(sp.States), len(sp.Lengths), len(sp.Steady), sp.Way.Levels+1)
	}
	into := make([]float64, len(sp.States))
	for i, st := range sp.States {
		_, deepest := st.Shape.Depths()
		if err := st.Shape.Validate(rows); err != nil || deepest > i || st.Rows(sp.Way.Members) > rows {
			t.Fatalf("state %d: %v, depth %d, %d rows: want at most %d", i, err, deepest, st.Rows(sp.Way.Members), rows)
		}
		if math.Abs(st.Shape.Length(rate)-sp.Lengths[i]) > 1e-9 {
			t.Fatalf("state %d: length %v: want %v", i, sp.Lengths[i], st.Shape.Length(rate))
		}
		for node, p := range ends(st.Shape.Parents, st.Shape.Chances(rate)) {
			if n := st.Prompts[node]; n < 1 || int(n) > sp.Way.Levels {
				t.Fatalf("state %d: %d prompt tokens behind node %d", i, n, node)
			}
			into[st.Prompts[node]] += sp.Steady[i] * p
		}
	}
	for i, p := range into {
		if math.Abs(p-sp.Steady[i]) > 1e-6 {
			t.Fatalf("state %d has chance %v, and after a round %v", i, sp.Steady[i], p)
		}
	}
	if math.Abs(sum(sp.Steady)-1) > 1e-6 {
		t.Fatalf("the chances of the states add up to %v", sum(sp.Steady))
	}
}

// simulate runs rounds: the right ranks are drawn by rate, and the next state is that of the last accepted node.
func simulate(sp Sparse, rate Rate, ranks, rounds int) float64 {
	draw := rand.New(rand.NewPCG(3, 3))
	var finders []finder
	for _, st := range sp.States {
		finders = append(finders, st.Shape.finder())
	}
	state, tokens := 0, 0
	for range rounds {
		var right []int8
		above := 0
	levels:
		for k := range state {
			u := draw.Float64()
			for j := range ranks {
				if u -= rate(k, above, j); u < 0 {
					right, above = append(right, int8(j)), above+j
					continue levels
				}
			}
			break
		}
		node, depth := finders[state].walk(right)
		tokens, state = tokens+depth+1, int(sp.States[state].Prompts[node])
	}
	return float64(tokens) / float64(rounds)
}

// TestSparseLength: rounds with sparse trees take as many tokens as expected; dynamic trees take more than static and random ones.
func TestSparseLength(t *testing.T) {
	src := newSource(11, 3, 10)
	rate := tableOf(t, 3, 10, src.text(5000)).Rate()
	for _, members := range []int{1, 4} {
		way := tandem.SelfDraft{Name: tandem.PPD, Levels: 3, Members: members}
		for _, rows := range []int{8, 16, 32, 64, 128, 256} {
			dynamic, err := Split(rate, way, 10, rows)
			if err != nil {
				t.Fatal(err)
			}
			check(t, dynamic, rate, rows)
			candidates := dynamic.States[len(dynamic.States)-1].Shape.Len()
			random, err := RandomSparse(1, rate, way, 10, candidates, rows)
			if err != nil {
				t.Fatal(err)
			}
			check(t, random, rate, rows)
			static, err := Static(rate, way, 10, rows)
			if err == nil {
				check(t, static, rate, rows)
			} else if rows > 3*members {
				t.Fatal(err)
			}
			measured := simulate(dynamic, rate, 10, 200000)
			t.Logf("%d members, %3d rows: %2d candidates, expected %.3f, measured %.3f; static %.3f, random %.3f", members, rows,
				candidates, dynamic.Length, measured, static.Length, random.Length)
			if math.Abs(measured/dynamic.Length-1) > 0.01 {
				t.Errorf("expected %v, measured %v", dynamic.Length, measured)
			}
			if dynamic.Length < static.Length || dynamic.Length < random.Length {
				t.Errorf("dynamic %v, static %v, random %v: want none longer than dynamic", dynamic.Length, static.Length, random.Length)
			}
		}
	}
}

// TestRemovalNearBest: greedy removal, tried against all ways to spend the rows.
func TestRemovalNearBest(t *testing.T) {
	worst, mean, n := 1.0, 0.0, 0
	rapid.Check(t, func(t *rapid.T) {
		const levels, ranks, candidates = 2, 2, 3
		rate := rates(t, levels, ranks)
		way := tandem.SelfDraft{Levels: levels, Members: 1}
		rows := rapid.IntRange(2*candidates, 3*candidates).Draw(t, "rows")
		got, err := Dynamic(rate, way, ranks, candidates, rows)
		if err != nil {
			t.Fatal(err)
		}
		check(t, got, rate, rows)
		best := 0.0
		for a := range 1 << candidates { // which nodes of states 1 and 2 have two prompt tokens, not one
			for b := range 1 << candidates {
				sp := Sparse{Way: way, Lengths: got.Lengths}
				for i, bits := range []int{1<<candidates - 1, a, b} {
					st := State{got.States[i].Shape, nil}
					for node := range st.Shape.Len() {
						st.Prompts = append(st.Prompts, int8(1+bits>>node&1))
					}
					sp.States = append(sp.States, st)
				}
				if sp.States[1].Rows(1) <= rows && sp.States[2].Rows(1) <= rows {
					sp.settle(rate)
					best = max(best, sp.Length)
				}
			}
		}
		share := got.Length / best
		worst, mean, n = min(worst, share), mean+share, n+1
		if share < 0.97 {
			t.Fatalf("%v: the best has %v", got.Length, best)
		}
	})
	t.Logf("of the best removal's length: %.4f at worst, %.5f in the mean of %d", worst, mean/float64(n), n)
}

// TestSplitIsBest: the coarse search for a split is as good as trying all.
func TestSplitIsBest(t *testing.T) {
	rate := tableOf(t, 3, 10, newSource(12, 3, 10).text(3000)).Rate()
	for _, rows := range []int{2, 3, 7, 40, 256} {
		way := tandem.SelfDraft{Levels: 3, Members: 1}
		got, err := Split(rate, way, 10, rows)
		if err != nil {
			t.Fatal(err)
		}
		best := 0.0
		for n := 1; n <= rows/2; n++ {
			sp, err := Dynamic(rate, way, 10, n, rows)
			if err != nil {
				t.Fatal(err)
			}
			best = max(best, sp.Length)
		}
		if got.Length < best*0.999 {
			t.Errorf("%d rows: %v: the best split has %v", rows, got.Length, best)
		}
	}
}

// TestSparseTime: the mean time of a pass is that of its states' rows, by how often the text is in each state.
func TestSparseTime(t *testing.T) {
	rate := tableOf(t, 3, 10, newSource(13, 3, 10).text(3000)).Rate()
	sp, err := Split(rate, tandem.SelfDraft{Levels: 3, Members: 1}, 10, 40)
	if err != nil {
		t.Fatal(err)
	}
	if got := sp.Time(func(int) time.Duration { return time.Millisecond }); got < time.Millisecond-9 || got > time.Millisecond {
		t.Errorf("%v where every pass takes 1ms", got)
	}
	rows := 0.0
	for i, p := range sp.Steady {
		rows += p * float64(sp.States[i].Rows(1))
	}
	got := sp.Time(func(rows int) time.Duration { return time.Duration(rows) * time.Millisecond })
	if want := rows * float64(time.Millisecond); math.Abs(float64(got)-want) > 9 || rows < 10 {
		t.Errorf("%v where a row takes 1ms: %v rows", got, rows)
	}
}

// TestSparseTree: prompt nodes are chains of each member behind their candidates, numbered as the side file has them.
func TestSparseTree(t *testing.T) {
	src := newSource(14, 3, 4)
	rate := tableOf(t, 3, 4, src.text(1000)).Rate()
	for _, members := range []int{1, 3} {
		way := tandem.SelfDraft{Levels: 3, Members: members}
		sp, err := Split(rate, way, 4, 48)
		if err != nil {
			t.Fatal(err)
		}
		for levels := range 6 {
			g := guessOf(src.sample())
			g.Levels = append(g.Levels, g.Levels...)[:levels]
			for k := range g.Levels {
				g.Levels[k] = g.Levels[k][:4-k%2] // a candidate is missing
			}
			tree := sp.Tree(7, g, rate)
			if err := tree.Validate(48, 1000); err != nil {
				t.Fatal(err)
			}
			_, deepest := tandem.Tree{Tokens: tree.Tokens[:tree.Guesses()], Parents: tree.Parents[:tree.Guesses()]}.Depths()
			if deepest > min(levels, 3) || tree.LogProbs == nil || levels == 0 && tree.Guesses() != 1 {
				t.Errorf("%d levels: %d candidates of depth %d", levels, tree.Guesses(), deepest)
			}
			behind := make([]int, tree.Guesses())
			for i := tree.Guesses(); i < tree.Len(); i++ {
				member, level, parent := int(tree.Tokens[i])/3, int(tree.Tokens[i])%3, tree.Parents[i]
				if level == 0 {
					behind[parent]++
				} else if int(parent) < tree.Guesses() || int(tree.Tokens[parent]) != member*3+level-1 || tree.LogProbs[i] != 0 {
					t.Errorf("prompt node %d of member %d, level %d, has parent %d", i, member, level, parent)
				}
			}
			if slices.Min(behind) != members || slices.Max(behind) != members {
				t.Errorf("%v chains begin behind the candidates: want %d", behind, members)
			}
		}
	}
}

// TestAllot: trees of any origin get prompt tokens where their paths end, within the rows.
func TestAllot(t *testing.T) {
	tree := tandem.Tree{Tokens: []tandem.Token{1, 2, 3, 4}, Parents: []int32{-1, 0, 1, 1},
		LogProbs: []float32{0, float32(math.Log(0.9)), float32(math.Log(0.8)), float32(math.Log(0.05))}}
	lengths := []float64{1, 1.6, 1.9, 2} // ends: 0.1, 0.05, 0.8, 0.05
	way := tandem.SelfDraft{Levels: 3, Members: 2}
	for rows, want := range map[int]string{100: "[3 3 3 3]", 8: "[1 0 3 0]", 6: "[0 0 3 0]", 2: "[0 0 1 0]", 1: "[0 0 0 0]"} {
		if got := fmt.Sprint(Allot(tree, lengths, way, rows)); got != want {
			t.Errorf("%d rows: %s: want %s", rows, got, want)
		}
	}
	tree.LogProbs = nil
	if got := fmt.Sprint(Allot(tree, lengths, way, 12)); got != "[0 0 3 3]" {
		t.Errorf("without log-probabilities: %s: want those of the leaves", got)
	}
	prompted := Prompt(tree, []int8{1, 0, 2, 0}, way)
	again := Prompt(prompted, []int8{1, 0, 2, 0}, way)
	if got := fmt.Sprint(prompted.Tokens, prompted.Parents, prompted.Prompts); got != "[1 2 3 4 0 3 0 1 3 4] [-1 0 1 1 0 0 2 6 2 8] 6" ||
		fmt.Sprint(again) != fmt.Sprint(prompted) {
		t.Errorf("%s, and again %v", got, again)
	}
}

func TestSparseErrors(t *testing.T) {
	half := func(_, _, _ int) float64 { return 0.1 }
	for name, f := range map[string]func() error{
		"levels":     func() error { _, err := Split(half, tandem.SelfDraft{Levels: 0, Members: 1}, 4, 8); return err },
		"members":    func() error { _, err := Split(half, tandem.SelfDraft{Levels: 2, Members: 513}, 4, 8); return err },
		"ranks":      func() error { _, err := Split(half, tandem.SelfDraft{Levels: 2, Members: 1}, 17, 8); return err },
		"rows":       func() error { _, err := Split(half, tandem.SelfDraft{Levels: 2, Members: 4}, 4, 4); return err },
		"candidates": func() error { _, err := Dynamic(half, tandem.SelfDraft{Levels: 2, Members: 1}, 4, 5, 9); return err },
		"none":       func() error { _, err := Dynamic(half, tandem.SelfDraft{Levels: 2, Members: 1}, 4, 0, 9); return err },
		"static":     func() error { _, err := Static(half, tandem.SelfDraft{Levels: 2, Members: 1}, 4, 2); return err },
	} {
		if err := f(); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v: want Invalid", name, err)
		}
	}
}

func BenchmarkSparse(b *testing.B) {
	rate := tableOf(b, 3, 16, newSource(1, 3, 16).text(1000)).Rate()
	way := tandem.SelfDraft{Levels: 3, Members: 1}
	b.Run("dynamic", func(b *testing.B) {
		for b.Loop() {
			if _, err := Dynamic(rate, way, 16, 100, 256); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("split", func(b *testing.B) {
		for b.Loop() {
			if _, err := Split(rate, way, 16, 256); err != nil {
				b.Fatal(err)
			}
		}
	})
}
