package spec

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// treeOf draws a valid tree below root 7 over few tokens, with log-probabilities that may rise, be equal, or
// be no numbers.
func treeOf(t *rapid.T, name string) tandem.Tree {
	tree := tandem.Root(7)
	tree.LogProbs = []float32{0}
	for i := range rapid.IntRange(0, 12).Draw(t, name+" nodes") {
		parent := int32(rapid.IntRange(0, tree.Len()-1).Draw(t, fmt.Sprint(name, " parent ", i)))
		token := tandem.Token(rapid.IntRange(0, 3).Draw(t, fmt.Sprint(name, " token ", i)))
		if child(tree, parent, token) >= 0 {
			continue
		}
		lp := float32(rapid.IntRange(-6, 1).Draw(t, fmt.Sprint(name, " logprob ", i))) / 2
		if rapid.IntRange(0, 20).Draw(t, fmt.Sprint(name, " odd ", i)) == 0 {
			lp = float32(math.NaN())
		}
		tree.Tokens, tree.Parents = append(tree.Tokens, token), append(tree.Parents, parent)
		tree.LogProbs = append(tree.LogProbs, lp)
	}
	if rapid.IntRange(0, 5).Draw(t, name+" unknown") == 0 {
		tree.LogProbs = nil
	}
	return tree
}

// paths returns all nodes of a tree by their paths from the root, and the chance of each: the least on the way.
func paths(tree tandem.Tree) map[string]float64 {
	out, least := map[string]float64{}, make([]float64, tree.Len())
	for i := range tree.Tokens {
		least[i] = 1
		if i > 0 {
			least[i] = least[tree.Parents[i]]
			if tree.LogProbs != nil {
				p := math.Exp(float64(tree.LogProbs[i]))
				if math.IsNaN(p) {
					p = 0
				}
				least[i] = min(least[i], p)
			}
		}
		out[fmt.Sprint(pathOf(tree, int32(i)))] = least[i]
	}
	return out
}

func TestVotesByTheBook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ballots []Ballot
		total := 0.0
		for d := range rapid.IntRange(1, 4).Draw(t, "ballots") {
			w := float64(rapid.IntRange(1, 3).Draw(t, fmt.Sprint("weight ", d)))
			ballots = append(ballots, Ballot{treeOf(t, fmt.Sprint(d)), w})
			total += w
		}
		confidence, weight, support := map[string]float64{}, map[string]float64{}, map[string]uint32{}
		for d, b := range ballots {
			for path, p := range paths(b.Tree) {
				confidence[path] += b.Weight * p / total
				weight[path] += b.Weight
				support[path] |= 1 << d
			}
		}
		nodes := rapid.IntRange(1, 30).Draw(t, "nodes")
		merged, held := Merge(ballots, nodes)
		if err := merged.Validate(nodes, 8); err != nil {
			t.Fatal(err)
		}
		if want := min(nodes, len(confidence)); merged.Len() != want {
			t.Fatalf("%d nodes, want %d", merged.Len(), want)
		}
		least := 1.0
		for i := range merged.Tokens {
			path := fmt.Sprint(pathOf(merged, int32(i)))
			if got, want := math.Exp(float64(merged.LogProbs[i])), confidence[path]; math.Abs(got-want) > 1e-5 {
				t.Fatalf("%s: confidence %v, want %v", path, got, want)
			}
			if held[i] != support[path] {
				t.Fatalf("%s: held by %b, want %b", path, held[i], support[path])
			}
			least = min(least, confidence[path])
			delete(confidence, path)
		}
		for path, c := range confidence {
			if c > least+1e-9 {
				t.Fatalf("%s with %v was left out, one with %v kept", path, c, least)
			}
		}

		chain, voted := Majority(ballots)
		if err := chain.Validate(100, 8); err != nil {
			t.Fatal(err)
		}
		for i := range chain.Tokens {
			here := fmt.Sprint(pathOf(chain, int32(i)))
			if i < chain.Len()-1 {
				here = fmt.Sprint(pathOf(chain, int32(i+1)))
			}
			best := 0.0
			prefix := strings.TrimSuffix(fmt.Sprint(pathOf(chain, int32(i))), "]") + " "
			for path, w := range weight {
				if rest, ok := strings.CutPrefix(path, prefix); ok && !strings.Contains(rest, " ") {
					best = max(best, w)
				}
			}
			if i == chain.Len()-1 && best > 0 {
				t.Fatalf("the chain ends at %s, which has children", here)
			}
			if i < chain.Len()-1 && weight[here] != best {
				t.Fatalf("%s weighs %v, a sibling %v", here, weight[here], best)
			}
		}
		last := support[fmt.Sprint(pathOf(chain, int32(chain.Len()-1)))]
		for d, b := range ballots {
			if last>>d&1 != 0 && (b.Weight > ballots[voted].Weight || last>>voted&1 == 0) {
				t.Fatalf("ballot %d was voted, %d goes the way and weighs %v", voted, d, b.Weight)
			}
		}
	})
}

func chainOf(logProb float32, tokens ...tandem.Token) tandem.Tree {
	t := tandem.Root(7)
	t.LogProbs = []float32{0}
	for i, x := range tokens {
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, x), append(t.Parents, int32(i)), append(t.LogProbs, logProb*float32(i+1))
	}
	return t
}

func TestMajority(t *testing.T) {
	paper := []Ballot{{chainOf(-1, 1, 2), 1}, {chainOf(-1, 1, 3), 0.9}, {chainOf(-0.1, 4, 5), 1.5}} // as in the paper's figure 5
	for _, c := range []struct {
		name    string
		ballots []Ballot
		chain   []tandem.Token
		voted   int
	}{
		{"two outweigh one", paper, []tandem.Token{7, 1, 2}, 0},
		{"tie: the more confident", []Ballot{{chainOf(-1, 1), 1}, {chainOf(-0.5, 2), 1}}, []tandem.Token{7, 2}, 1},
		{"tie: the first", []Ballot{{chainOf(-1, 2), 1}, {chainOf(-1, 1), 1}}, []tandem.Token{7, 2}, 0},
		{"no vote", []Ballot{{chainOf(-1, 2), math.NaN()}, {chainOf(-9, 1), 0.1}, {chainOf(0, 3), math.Inf(1)}}, []tandem.Token{7, 1}, 1},
		{"roots", []Ballot{{chainOf(0), 1}, {chainOf(0), 2}}, []tandem.Token{7}, 1},
		{"no ballots", nil, nil, -1},
	} {
		chain, voted := Majority(c.ballots)
		if !slices.Equal(chain.Tokens, c.chain) || voted != c.voted {
			t.Errorf("%s: %v by %d, want %v by %d", c.name, chain.Tokens, voted, c.chain, c.voted)
		}
	}
	if merged, support := Merge(nil, 5); merged.Len() != 0 || support != nil {
		t.Errorf("no ballots merged: %v", merged)
	}
	for _, c := range []struct {
		committed []tandem.Token
		want      int
	}{{nil, 0}, {[]tandem.Token{1, 2, 9}, 2}, {[]tandem.Token{2}, 0}, {[]tandem.Token{1, 9, 2}, 1}} {
		if got := Held(paper[0].Tree, c.committed); got != c.want {
			t.Errorf("%v: %d held, want %d", c.committed, got, c.want)
		}
	}
}
