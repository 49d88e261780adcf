package spec

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// TestAcceptTypicalByTheBook compares with a twin that looks at every path of the tree by itself.
func TestAcceptTypicalByTheBook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tree := treeOf(t, "tree")
		n := tree.Len()
		p, entropy := make([]float64, n), make([]float64, n)
		for i := range n {
			p[i] = float64(rapid.IntRange(0, 8).Draw(t, fmt.Sprint("p ", i))) / 8
			entropy[i] = float64(rapid.IntRange(0, 6).Draw(t, fmt.Sprint("entropy ", i))) / 2
		}
		for range rapid.IntRange(0, 3).Draw(t, "prompts") {
			tree.Tokens, tree.Parents = append(tree.Tokens, tandem.Token(tree.Prompts)), append(tree.Parents, int32(n-1))
			if tree.LogProbs != nil {
				tree.LogProbs = append(tree.LogProbs, 0)
			}
			tree.Prompts++
		}
		epsilon := rapid.SampledFrom([]float64{0.09, 0.25, 1}).Draw(t, "epsilon")
		delta := rapid.SampledFrom([]float64{0.3, 1}).Draw(t, "delta")
		var want []int32
		bestSum := 0.0
	nodes:
		for i := range int32(n) {
			sum := 0.0
			var path []int32
			for node := i; node > 0; node = tree.Parents[node] {
				path = slices.Insert(path, 0, node)
			}
			for _, node := range path {
				parent := tree.Parents[node]
				if p[node] <= epsilon && p[node] <= delta*math.Exp(-entropy[parent]) {
					continue nodes
				}
				sum += math.Log(p[node])
			}
			if len(path) > len(want) || len(path) == len(want) && sum > bestSum {
				want, bestSum = path, sum
			}
		}
		got := AcceptTypical(tree, epsilon, delta, func(node int32, kids []int32) (out []float64, _ float64) {
			for _, kid := range kids {
				if int(kid) >= n || tree.Parents[kid] != node {
					t.Fatalf("node %d is asked for as a child of %d", kid, node)
				}
				out = append(out, p[kid])
			}
			return out, entropy[node]
		})
		if !slices.Equal(got, want) {
			t.Fatalf("path %v: want %v", got, want)
		}
	})
}

// TestAcceptTypicalThresholds: the thresholds by hand.
func TestAcceptTypicalThresholds(t *testing.T) {
	tree := tandem.Tree{Tokens: []tandem.Token{0, 1, 2}, Parents: []int32{-1, 0, 0}}
	for _, tc := range []struct {
		p       []float64
		entropy float64
		want    []int32
	}{
		{[]float64{1, 0}, 0, []int32{1}},            // certain: that token alone
		{[]float64{0, 0}, 0, nil},                   // certain of another
		{[]float64{0.09, 0.1}, 0, []int32{2}},       // epsilon, exclusive
		{[]float64{0.5, 0.4}, 0.7, []int32{1}},      // both: the likelier
		{[]float64{0.011, 0.01}, 3.3, nil},          // delta·e^−3.3 = 0.01106: 0.011 is not above
		{[]float64{0.0111, 0.01}, 3.31, []int32{1}}, // 0.01095: it is
	} {
		after := func(int32, []int32) ([]float64, float64) { return tc.p, tc.entropy }
		got := AcceptTypical(tree, tandem.DefaultEpsilon, tandem.DefaultDelta, after)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%v with entropy %v: path %v: want %v", tc.p, tc.entropy, got, tc.want)
		}
	}
}
