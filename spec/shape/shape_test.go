package shape

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

// all calls f with every shape of at most that many nodes.
func all(nodes, levels, ranks int, f func(Shape)) {
	var grow func(s Shape)
	grow = func(s Shape) {
		f(s)
		if s.Len() == nodes {
			return
		}
		depths, _ := s.Depths()
		last := s.Len() - 1
		for p := int(max(s.Parents[last], 0)); p < s.Len(); p++ { // in one order: by parent, then by rank
			for j := range ranks {
				if depths[p] < levels && (p > int(s.Parents[last]) || last == 0 || j > int(s.Ranks[last])) {
					grow(Shape{append(slices.Clone(s.Parents), int32(p)), append(slices.Clone(s.Ranks), int8(j))})
				}
			}
		}
	}
	grow(root())
}

// rates draws a table of chances.
func rates(t *rapid.T, levels, ranks int) Rate {
	const sums = 8
	table := make([]float64, levels*sums*ranks)
	for k := range levels * sums {
		left := 1.0
		for j := range ranks {
			table[k*ranks+j] = left * rapid.Float64Range(0, 1).Draw(t, fmt.Sprint("rate ", k, j))
			left -= table[k*ranks+j]
		}
	}
	return func(level, above, rank int) float64 { return table[(level*sums+min(above, sums-1))*ranks+rank] }
}

// TestGreedyIsBest: no shape has a greater expected length, and Head gives the smaller ones.
func TestGreedyIsBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const levels, ranks = 3, 2
		nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
		rate := rates(t, levels, ranks)
		best := 0.0
		all(nodes, levels, ranks, func(s Shape) { best = max(best, s.Length(rate)) })
		got := Greedy(rate, nodes, levels, ranks)
		if err := got.Validate(nodes); err != nil {
			t.Fatal(err)
		}
		if math.Abs(got.Length(rate)-best) > 1e-9 {
			t.Fatalf("greedy has %v with %v: want %v", got.Length(rate), got, best)
		}
		larger := Greedy(rate, nodes+5, levels, ranks)
		if got.String() != larger.Head(nodes).String() {
			t.Fatalf("%v does not begin with %v", larger, got)
		}
	})
}

func TestFullAndRandom(t *testing.T) {
	if got := Full([]int{2, 2}, 100).String(); got != "0.0 0.1 1.0 1.1" {
		t.Errorf("full 2×2 is %q", got)
	}
	if got := Full([]int{3, 2}, 6).String(); got != "1 2 0.0 0.1" {
		t.Errorf("full 3×2 of 6 nodes is %q", got)
	}
	seen := map[string]bool{}
	for seed := range uint64(50) {
		s := Random(seed, 12, 3, 4)
		if err := s.Validate(12); err != nil || s.Len() != 12 || s.String() != Random(seed, 12, 3, 4).String() {
			t.Fatalf("seed %d: %v, %v", seed, s, err)
		}
		seen[s.String()] = true
	}
	if len(seen) < 45 {
		t.Errorf("50 seeds give %d shapes", len(seen))
	}
	src := newSource(5, 4, 6)
	samples := src.text(5000)
	rate := tableOf(t, 4, 6, samples).Rate()
	greedy := Measured(Greedy(rate, 21, 4, 6), samples)
	full, random := Measured(Full([]int{4, 4}, 21), samples), Measured(Random(1, 21, 4, 6), samples)
	t.Logf("21 nodes: greedy %.3f, full %.3f, random %.3f", greedy, full, random)
	if greedy <= full || greedy <= random {
		t.Errorf("greedy %v, full %v, random %v: want greedy the longest", greedy, full, random)
	}
}

// TestImprove: the search returns what judge says of its shape, never less than at the start; and on samples the best shape of the
// level sizes, if that is one move away.
func TestImprove(t *testing.T) {
	src := newSource(7, 4, 4)
	samples := src.text(300) // few: the table does not know them well
	rate := tableOf(t, 4, 4, samples).Rate()
	judge := func(s Shape) float64 { return Measured(s, samples) }
	for _, w := range []int{1, 2, 4, 8, 16, 32} {
		s := Greedy(rate, w, 4, 4)
		calls := 0
		better, v := Improve(s, rate, 4, func(s Shape) float64 {
			calls++
			if err := s.Validate(w); err != nil {
				t.Fatal(err)
			}
			return judge(s)
		}, 500)
		if err := better.Validate(w); err != nil || better.Len() != s.Len() || v != judge(better) || v < judge(s) || calls > 500 {
			t.Errorf("W %d: %v from %v to %v in %d calls, %v", w, better, judge(s), v, calls, err)
		}
		t.Logf("W %d: %.4f, after %d calls %.4f", w, judge(s), calls, v)
		best := 0.0
		if w <= 4 {
			all(w, 2, 4, func(s Shape) { best = max(best, judge(s)) })
			if v < 0.98*best {
				t.Errorf("W %d: %v: the best shape has %v", w, v, best)
			}
		}
	}
}

// TestReplay: Replay decodes a text as rounds with trees do.
func TestReplay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const levels, ranks, vocab = 3, 3, 5
		text := rapid.SliceOfN(rapid.Int32Range(0, vocab-1), 8, 40).Draw(t, "text")
		var tokens []tandem.Token
		for _, x := range text {
			tokens = append(tokens, tandem.Token(x))
		}
		var guesses []tandem.Guess
		var samples []Sample
		for i := range tokens {
			g := tandem.Guess{}
			for k := range levels {
				order := rapid.Permutation([]tandem.Token{0, 1, 2, 3, 4}).Draw(t, fmt.Sprint("guess ", i, k))
				g.Levels = append(g.Levels, nil)
				for _, x := range order[:ranks] {
					g.Levels[k] = append(g.Levels[k], tandem.TopLogprob{Token: x, LogProb: -1})
				}
			}
			if err := g.Validate(vocab); err != nil {
				t.Fatal(err)
			}
			guesses, samples = append(guesses, g), append(samples, Look(g, tokens[i+1:]))
		}
		s := Random(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 12).Draw(t, "nodes"), levels, ranks)
		_, deepest := s.Depths()
		rate := rates(t, levels, ranks)
		rounds, decided := 0, 0
		for i := 0; i+deepest < len(tokens); {
			tree := s.Tree(tokens[i], guesses[i], rate)
			if err := tree.Validate(12, vocab); err != nil || tree.Len() != s.Len() {
				t.Fatal(tree, err)
			}
			at := i
			path, _ := spec.Accept(tree, func(int32) tandem.Token {
				if at++; at >= len(tokens) {
					return vocab
				}
				return tokens[at]
			})
			rounds, decided, i = rounds+1, decided+len(path)+1, i+len(path)+1
		}
		got := Replay(s, samples)
		if len(got) != rounds || rounds > 0 && math.Abs(Measured(s, got)-float64(decided)/float64(rounds)) > 1e-12 {
			t.Fatalf("%d rounds with %v tokens each: want %d with %d in all", len(got), Measured(s, got), rounds, decided)
		}
	})
}

// TestAdaptive: the tree holds the likeliest paths of the guess.
func TestAdaptive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g tandem.Guess
		for k := range rapid.IntRange(0, 3).Draw(t, "levels") {
			g.Levels = append(g.Levels, nil)
			left := 1.0
			for j := range rapid.IntRange(0, 3).Draw(t, "ranks") {
				p := left * rapid.Float64Range(0.01, 0.9).Draw(t, "p")
				left -= p
				g.Levels[k] = append(g.Levels[k], tandem.TopLogprob{Token: tandem.Token(j), LogProb: float32(math.Log(p))})
			}
		}
		nodes := rapid.IntRange(1, 20).Draw(t, "nodes")
		tree := Adaptive(9, g, (*Accuracy)(nil).Corrected(g), nodes)
		if err := tree.Validate(nodes, 10); err != nil {
			t.Fatal(err)
		}
		var want []float64
		var paths func(k int, lp float64)
		paths = func(k int, lp float64) {
			if k > 0 {
				want = append(want, lp)
			}
			if k < len(g.Levels) {
				total := 0.0
				for _, c := range g.Levels[k] {
					total += math.Exp(float64(c.LogProb))
				}
				for _, c := range g.Levels[k] {
					paths(k+1, lp+float64(c.LogProb)-max(math.Log(total/worth.MostCertain), 0))
				}
			}
		}
		paths(0, 0)
		slices.Sort(want)
		slices.Reverse(want)
		if tree.Len() != min(len(want)+1, nodes) {
			t.Fatalf("%d nodes: want %d", tree.Len(), min(len(want)+1, nodes))
		}
		for i, lp := range tree.LogProbs[1:] {
			if math.Abs(float64(lp)-want[i]) > 1e-4 {
				t.Fatalf("node %d has log-probability %v: want %v", i+1, lp, want[i])
			}
		}
	})
}

// TestMissingCandidates: nodes without a candidate are left out, with what is below them.
func TestMissingCandidates(t *testing.T) {
	s := Full([]int{3, 2}, 10)
	g := tandem.Guess{Levels: [][]tandem.TopLogprob{{{Token: 4}, {Token: 5}}, {{Token: 6}}}}
	half := func(_, _, _ int) float64 { return 0.5 }
	tree := s.Tree(1, g, half)
	if got := fmt.Sprint(tree.Tokens, tree.Parents); got != "[1 4 5 6 6] [-1 0 0 1 2]" {
		t.Errorf("tree %s", got)
	}
	if lp := float64(tree.LogProbs[3]); math.Abs(lp-math.Log(0.25)) > 1e-6 {
		t.Errorf("log-probability %v: want that of 1/4", lp)
	}
	if tree = s.Tree(1, tandem.Guess{}, half); tree.Len() != 1 || tree.Validate(1, 2) != nil {
		t.Errorf("without levels: %v", tree)
	}
}

func BenchmarkGreedy(b *testing.B) {
	a := tableOf(b, 5, 16, newSource(1, 5, 16).text(1000))
	for b.Loop() {
		Greedy(a.Rate(), 256, 5, 16)
	}
}

func BenchmarkTree(b *testing.B) {
	src := newSource(1, 5, 16)
	a := tableOf(b, 5, 16, src.text(1000))
	s, g := Greedy(a.Rate(), 64, 5, 16), guessOf(src.sample())
	b.Run("shape", func(b *testing.B) {
		for b.Loop() {
			s.Tree(1, g, a.Rate())
		}
	})
	b.Run("adaptive", func(b *testing.B) {
		for b.Loop() {
			Adaptive(1, g, a.Corrected(g), 64)
		}
	})
}

func BenchmarkTable(b *testing.B) {
	c := tableOf(b, 5, 16, newSource(1, 5, 16).text(1000)).Counts(1000)
	for b.Loop() {
		c.Table()
	}
}

// Validate returns an error if s is no shape of at most that many nodes, or exceeds the levels and candidates of a guess. It reads no
// entry that it has not checked.
func (s Shape) Validate(nodes int) error {
	if n := s.Len(); n == 0 || n > nodes || len(s.Ranks) != n || s.Parents[0] != -1 || s.Ranks[0] != 0 {
		return fmt.Errorf("%d parents and %d ranks: want 1 to %d of both, the root with parent -1 and rank 0",
			n, len(s.Ranks), nodes)
	}
	depths := make([]int, s.Len())
	seen := map[[2]int32]bool{}
	for i := 1; i < s.Len(); i++ {
		p, r := s.Parents[i], s.Ranks[i]
		if p < 0 || int(p) >= i || r < 0 || int(r) >= tandem.MostCandidates || seen[[2]int32{p, int32(r)}] {
			return fmt.Errorf("node %d has parent %d and rank %d: want a parent from 0 to %d, and a rank from 0 to "+
				"%d that no other child of it has", i, p, r, i-1, tandem.MostCandidates-1)
		}
		seen[[2]int32{p, int32(r)}] = true
		if depths[i] = depths[p] + 1; depths[i] > tandem.MostLevels {
			return fmt.Errorf("node %d has depth %d: want at most %d", i, depths[i], tandem.MostLevels)
		}
	}
	return nil
}

// String lists the paths of the leaves, such as "0.0 0.1 1".
func (s Shape) String() string {
	inner := make([]bool, s.Len())
	paths := make([]string, s.Len())
	for i := 1; i < s.Len(); i++ {
		inner[s.Parents[i]] = true
		if paths[i] = fmt.Sprint(s.Ranks[i]); s.Parents[i] > 0 {
			paths[i] = paths[s.Parents[i]] + "." + paths[i]
		}
	}
	out := ""
	for i, p := range paths {
		if !inner[i] && i > 0 {
			out += " " + p
		}
	}
	return out[min(1, len(out)):]
}
