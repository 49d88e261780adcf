package spec

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

func TestMixMergesTrees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := NewMix()
		var all []DrafterTree
		for _, d := range []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "drafters")] {
			tree := treeOf(t, d)
			tree.Tokens[0] = 0
			all = append(all, DrafterTree{d, tree})
		}
		for range rapid.IntRange(0, 3).Draw(t, "rounds") {
			m.Record(all, []tandem.Token{tandem.Token(rapid.IntRange(0, 7).Draw(t, "next")), 1})
		}
		nodes := rapid.IntRange(1, 20).Draw(t, "nodes")
		merged := m.Merge(all, nodes)
		if err := merged.Validate(nodes, 8); err != nil {
			t.Fatal(err)
		}
		sums := make([]float64, merged.Len())
		for i := 1; i < merged.Len(); i++ {
			sums[merged.Parents[i]] += math.Exp(float64(merged.LogProbs[i] - merged.LogProbs[merged.Parents[i]]))
		}
		for i, sum := range sums {
			if sum > 1+1e-5 {
				t.Fatalf("the children of node %d have a chance of %v together", i, sum)
			}
		}
	})
	if got := NewMix().Merge(nil, 4); got.Len() != 0 {
		t.Errorf("no drafters: %d nodes", got.Len())
	}
}

// TestMixLearnsWhom gives one drafter that is always right, whatever it says of itself, and one that is sure and always wrong.
func TestMixLearnsWhom(t *testing.T) {
	m, r := NewMix(), rand.New(rand.NewPCG(1, 2))
	round := func() ([]DrafterTree, tandem.Token) {
		right := tandem.Token(1 + r.IntN(5))
		return []DrafterTree{{"knows", chainOf(-2, right)}, {"boasts", chainOf(-0.01, right+1)}}, right
	}
	all, _ := round()
	if first := m.Merge(all, 2); first.Tokens[1] != all[1].Tree.Tokens[1] {
		t.Error("at first the surer drafter is not believed")
	}
	for range 60 {
		all, right := round()
		m.Record(all, []tandem.Token{right, 9})
	}
	all, right := round()
	merged := m.Merge(all, 2)
	if p := math.Exp(float64(merged.LogProbs[1])); merged.Tokens[1] != right || p < 0.6 {
		t.Errorf("after 60 rounds: token %d with a chance of %.2f, want %d", merged.Tokens[1], p, right)
	}
	if m.Len() != 2 {
		t.Errorf("%d drafters are known: want 2", m.Len())
	}
	other := m.Clone()
	for range 60 {
		all, right := round()
		other.Record(all, []tandem.Token{right + 1})
	}
	if m.Merge(all, 2).Tokens[1] != right {
		t.Error("what a copy learns changes the original")
	}
}

// TestMixBelievesTwo checks that a guess of two drafters is likelier than either of them alone says.
func TestMixBelievesTwo(t *testing.T) {
	m, tree := NewMix(), chainOf(-0.5, 3)
	both := m.Merge([]DrafterTree{{"a", tree}, {"b", tree}}, 2).LogProbs[1]
	if one := m.Merge([]DrafterTree{{"a", tree}, {"b", tandem.Root(tree.Tokens[0])}}, 2).LogProbs[1]; both <= one {
		t.Errorf("log-probability of a guess of two %v, of one %v", both, one)
	}
}

func BenchmarkMix3x32(b *testing.B) {
	m, all := NewMix(), []DrafterTree{{"a", wide(32)}, {"b", wide(32)}, {"c", wide(32)}}
	for b.Loop() {
		m.Merge(all, 16)
	}
}
