package spec

import (
	"math"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// TestSuccessorsKeepTheLatest: the pair's list comes before the token's, the latest list replaces an older one, and a token that stood
// behind nothing is found without the one before it.
func TestSuccessorsKeepTheLatest(t *testing.T) {
	x := NewSuccessors()
	first := func(before, token, want tandem.Token) {
		t.Helper()
		if got, known := x.First(before, token); got != want || known != (want > 0) {
			t.Errorf("after %d %d: %d, %v: want %d", before, token, got, known, want)
		}
	}
	first(1, 2, 0)
	x.Learn(1, 2, []tandem.Token{3, 4})
	x.Learn(9, 2, []tandem.Token{5})
	first(1, 2, 3)
	first(9, 2, 5)
	first(7, 2, 5)
	x.Learn(-1, 2, []tandem.Token{6})
	first(-1, 2, 6)
	first(1, 2, 3)
	x.Learn(1, 2, nil) // says nothing
	first(1, 2, 3)
	x.Learn(1, 2, []tandem.Token{8, 3})
	first(1, 2, 8)
	if _, kind := x.after(1, 2); kind != mostSteady+1 {
		t.Errorf("kind %d of a pair whose likeliest has just changed: want %d", kind, mostSteady+1)
	}
	for range 9 {
		x.Learn(1, 2, []tandem.Token{8})
	}
	if _, kind := x.after(1, 2); kind != rankKinds-1 {
		t.Errorf("kind %d of a pair whose likeliest stays the same: want %d", kind, rankKinds-1)
	}
}

// TestSuccessorsAreBounded: a table never takes more than its bound; what was learned last is there, and what was learned first is gone.
func TestSuccessorsAreBounded(t *testing.T) {
	if n := unsafe.Sizeof(successors{}); n != successorBytes {
		t.Errorf("an entry takes %d bytes: want %d", n, successorBytes)
	}
	x := NewSuccessors()
	const pairs = 4 * mostEntries
	for i := range tandem.Token(pairs) {
		x.Learn(i, i+1, []tandem.Token{i + 2})
	}
	if x.Bytes() > MostSuccessorBytes || len(x.entries) != mostEntries {
		t.Errorf("%d entries in %d bytes: want %d in at most %d", len(x.entries), x.Bytes(), mostEntries, MostSuccessorBytes)
	}
	for i := range tandem.Token(100) {
		if got, _ := x.First(pairs-1-i, pairs-i); got != pairs-i+1 {
			t.Errorf("the %d. pair from the last is followed by %d: want %d", i+1, got, pairs-i+1)
		}
		if got, known := x.First(i, i+1); known {
			t.Errorf("pair %d of the first is still followed by %d", i, got)
		}
	}
}

// TestSuccessorsAgainstMaps: as long as the table is not full, it holds what maps hold.
func TestSuccessorsAgainstMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, pairs, tokens := NewSuccessors(), map[[2]tandem.Token][]tandem.Token{}, map[tandem.Token][]tandem.Token{}
		token := rapid.Custom(func(t *rapid.T) tandem.Token { return tandem.Token(rapid.IntRange(0, 60).Draw(t, "token")) })
		for range rapid.IntRange(0, 400).Draw(t, "lists") {
			a, b := token.Draw(t, "before"), token.Draw(t, "token")
			list := rapid.SliceOfNDistinct(token, 1, tandem.MostSuccessors, func(x tandem.Token) tandem.Token { return x }).Draw(t, "list")
			x.Learn(a, b, list)
			pairs[[2]tandem.Token{a, b}], tokens[b] = list, list
		}
		a, b := token.Draw(t, "before"), token.Draw(t, "token")
		want, of := tokens[b], 0
		if list := pairs[[2]tandem.Token{a, b}]; list != nil {
			want, of = list, 1
		}
		if got, kind := x.after(a, b); !slices.Equal(got, want) || kind/(mostSteady+1) != of {
			t.Fatalf("after %d %d: %v of kind %d: want %v, of the pair %d", a, b, got, kind, want, of)
		}
		bounds := tandem.Bounds{Nodes: rapid.IntRange(1, 40).Draw(t, "nodes"), Depth: rapid.IntRange(0, 9).Draw(t, "depth"),
			Width: rapid.IntRange(0, 9).Draw(t, "width")}
		tree := x.Tree(a, b, new(RankChances), bounds, 0)
		if err := tree.Validate(bounds.Nodes, 61); err != nil {
			t.Fatal(err)
		}
		if _, deepest := tree.Depths(); deepest > bounds.Depth {
			t.Fatalf("depth %d: want at most %d", deepest, bounds.Depth)
		}
		for i := 1; i < tree.Len(); i++ {
			if p := tree.LogProbs[i]; p > tree.LogProbs[i-1] || p > tree.LogProbs[tree.Parents[i]] {
				t.Fatalf("node %d is likelier than the one before it, or its parent: %v", i, tree.LogProbs)
			}
		}
	})
}

// TestRankChancesFollowWhatComes: ranks that are never right become worthless, those that always are become sure, deeper ones follow those
// above until they are known themselves, and a list of another kind is not touched.
func TestRankChancesFollowWhatComes(t *testing.T) {
	x, c := NewSuccessors(), new(RankChances)
	x.Learn(1, 2, []tandem.Token{3, 4})
	before := c.chance(1, 0, 0)
	_, kind := x.after(1, 2)
	for range 100 {
		if hits := c.Learn(x, 1, 2, []tandem.Token{4, 9}); !slices.Equal(hits, []bool{false, false}) {
			t.Fatalf("hits %v: the second of the list was chosen", hits)
		}
	}
	if first, second := c.chance(1, kind, 0), c.chance(1, kind, 1); first > .1 || second < .9 {
		t.Errorf("chances %v and %v of the first, which is never right, and the second, which always is", first, second)
	}
	if deep := c.chance(rankDepths+3, kind, 1); math.Abs(float64(deep-c.chance(1, kind, 1))) > .01 {
		t.Errorf("chance %v at a depth of which nothing is known: want that at the first, %v", deep, c.chance(1, kind, 1))
	}
	if now := c.chance(1, 0, 0); now != before {
		t.Errorf("chance of another kind went from %v to %v", before, now)
	}
	if hits := c.Learn(x, 1, 2, []tandem.Token{3}); !slices.Equal(hits, []bool{true}) {
		t.Errorf("hits %v: the first of the list was chosen", hits)
	}
}

// TestRecyclingMeetsLookup: the trees of both become one, in which equal nodes are there once and count for more than either alone.
func TestRecyclingMeetsLookup(t *testing.T) {
	a := NewAutomaton()
	a.Append(5, 1, 2, 3, 7, 5, 1, 2)
	x := NewSuccessors()
	x.Learn(1, 2, []tandem.Token{3, 4})
	x.Learn(2, 3, []tandem.Token{9})
	b := tandem.Bounds{Nodes: 8, Depth: 2, Width: 2}
	both := []DrafterTree{{"lookup", a.Continue(b)}, {tandem.Recycling, x.Tree(1, 2, new(RankChances), b, 0)}}
	m := NewMix()
	tree := m.Merge(both, 8)
	if err := tree.Validate(8, 10); err != nil {
		t.Fatal(err)
	}
	kids := children(tree)
	var first, second []tandem.Token
	for _, k := range kids[0] {
		first = append(first, tree.Tokens[k])
	}
	for _, k := range kids[kids[0][0]] {
		second = append(second, tree.Tokens[k])
	}
	slices.Sort(second)
	if !slices.Equal(first, []tandem.Token{3, 4}) || !slices.Equal(second, []tandem.Token{7, 9}) {
		t.Errorf("after the root %v, then %v: want 3 of both and 4 of one, then one of each", first, second)
	}
	if one := m.Merge(both[1:], 8); tree.LogProbs[1] <= one.LogProbs[1] {
		t.Errorf("log-probability %v of what both guess: want more than %v, that of one", tree.LogProbs[1], one.LogProbs[1])
	}
}
