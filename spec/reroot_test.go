package spec

import (
	"cmp"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// TestExplored runs random candidates, moves the root along random paths, drops random nodes, and compares
// everything with a map from paths to what a model says after them.
func TestExplored(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := model{rapid.Uint64().Draw(r, "model"), rapid.IntRange(2, 12).Draw(r, "vocab")}
		x := &exploring{r: r, m: m, width: rapid.IntRange(1, 8).Draw(r, "width"), text: []tandem.Token{0}}
		x.e.Start(m.candidates(x.text, x.width), x.width)
		x.paths = [][]tandem.Token{{}}
		for range rapid.IntRange(1, 5).Draw(r, "rounds") {
			for range rapid.IntRange(0, 12).Draw(r, "runs") {
				x.run(rapid.IntRange(0, len(x.paths)-1).Draw(r, "parent"))
			}
			x.check()
			x.likely()
			if rapid.Bool().Draw(r, "reroot") {
				x.reroot()
			} else {
				x.retain()
			}
			x.check()
		}
		x.e.Clear()
		if x.e.Len() != 0 || x.e.Width() != 0 {
			r.Fatal("something is left")
		}
	})
}

type exploring struct {
	r     *rapid.T
	m     model
	width int
	text  []tandem.Token   // committed
	paths [][]tandem.Token // of each node, below the root
	e     Explored
}

// has returns the node with that path, -1 if there is none.
func (x *exploring) has(path []tandem.Token) int {
	return slices.IndexFunc(x.paths, func(p []tandem.Token) bool { return slices.Equal(p, path) })
}

func (x *exploring) run(parent int) {
	list := x.e.Candidates(int32(parent))
	c := list[rapid.IntRange(0, len(list)-1).Draw(x.r, "candidate")]
	path := append(slices.Clone(x.paths[parent]), c.Token)
	if x.has(path) >= 0 {
		return
	}
	if at := x.e.Add(int32(parent), c.Token, x.m.candidates(slices.Concat(x.text, path), x.width), time.Second); int(at) != len(x.paths) {
		x.r.Fatalf("added as %d: want %d", at, len(x.paths))
	}
	x.paths = append(x.paths, path)
}

func (x *exploring) check() {
	if x.e.Len() != len(x.paths) {
		x.r.Fatalf("%d nodes: want %d", x.e.Len(), len(x.paths))
	}
	for i, path := range x.paths {
		node := int32(i)
		if want := x.m.candidates(slices.Concat(x.text, path), x.width); !reflect.DeepEqual(x.e.Candidates(node), want) {
			x.r.Fatalf("node %d: candidates %v, want %v", i, x.e.Candidates(node), want)
		}
		if d := x.e.Depth(node); d != len(path) {
			x.r.Fatalf("node %d: depth %d of the path %v", i, d, path)
		}
		for tok := range x.m.vocab {
			want := x.has(append(slices.Clone(path), tandem.Token(tok)))
			if got := x.e.Child(node, tandem.Token(tok)); int(got) != want {
				x.r.Fatalf("node %d: child %d by token %d, want %d", i, got, tok, want)
			}
		}
		if got := x.e.Follow(append(slices.Clone(path), -1)); len(got) != len(path) || len(path) > 0 && got[len(got)-1] != node {
			x.r.Fatalf("path %v leads along %v, not to %d", path, got, i)
		}
	}
}

// likely compares Likely and Outcomes with a search through all nodes, for a random tree that was sent.
func (x *exploring) likely() {
	sent, at := tandem.Root(0), [][]tandem.Token{{}}
	known, old := rapid.IntRange(1, len(x.paths)).Draw(x.r, "known"), 0
	for range rapid.IntRange(0, 12).Draw(x.r, "sent") {
		parent := rapid.IntRange(0, len(at)-1).Draw(x.r, "parent")
		node := x.has(at[parent])
		if node < 0 {
			continue
		}
		c := rapid.SampledFrom(x.e.Candidates(int32(node))).Draw(x.r, "candidate")
		if child(sent, int32(parent), c.Token) >= 0 {
			continue
		}
		sent.Tokens, sent.Parents = append(sent.Tokens, c.Token), append(sent.Parents, int32(parent))
		at = append(at, append(slices.Clone(at[parent]), c.Token))
		if node < known {
			old++
		}
	}
	if got := x.e.Sent(sent, known); got != old {
		x.r.Fatalf("%d nodes of %v are of the first %d: want %d", got, sent, known, old)
	}
	inSent := func(path []tandem.Token) bool {
		return slices.ContainsFunc(at, func(p []tandem.Token) bool { return slices.Equal(p, path) })
	}
	sum := func(path []tandem.Token) (lp float32) {
		for i := range path {
			list := x.m.candidates(slices.Concat(x.text, path[:i]), x.width)
			lp += list[slices.IndexFunc(list, func(c Candidate) bool { return c.Token == path[i] })].LogProb
		}
		return lp
	}
	least, depth := rapid.Float64Range(0, 1).Draw(x.r, "least"), rapid.IntRange(0, 6).Draw(x.r, "depth")
	var want []Row
	var outcomes []int32
	for i, path := range x.paths {
		if i > 0 && !inSent(path) && inSent(path[:len(path)-1]) && sum(path) >= logOf(least) {
			outcomes = append(outcomes, int32(i))
		}
		if !inSent(path) {
			continue
		}
		for _, c := range x.e.Candidates(int32(i)) {
			next := append(slices.Clone(path), c.Token)
			if lp := sum(next); x.has(next) < 0 && len(next) <= depth && lp >= logOf(least) {
				want = append(want, Row{Token: c.Token, Parent: int32(i) - 1, Depth: len(next), LogProb: lp})
			}
		}
	}
	slices.SortStableFunc(want, func(a, b Row) int { return cmp.Compare(b.LogProb, a.LogProb) })
	n := rapid.IntRange(0, 9).Draw(x.r, "rows")
	if got := x.e.Likely(n, depth, least); !slices.Equal(got, want[:min(n, len(want))]) {
		x.r.Fatalf("at most %d of %v:\n got %v\nwant %v", n, sent, got, want)
	}
	if got, _ := x.e.Outcomes(least); !slices.Equal(got, outcomes) {
		x.r.Fatalf("outcomes of %v: %v, want %v", sent, got, outcomes)
	}
}

func (x *exploring) reroot() {
	node := rapid.IntRange(0, len(x.paths)-1).Draw(x.r, "root")
	top := x.paths[node]
	var kept []int32
	paths := [][]tandem.Token{{}}
	for i, path := range x.paths {
		if len(path) > len(top) && slices.Equal(path[:len(top)], top) {
			kept, paths = append(kept, int32(i)), append(paths, path[len(top):])
		}
	}
	if got := x.e.Reroot(int32(node)); !slices.Equal(got, kept) {
		x.r.Fatalf("kept %v: want %v", got, kept)
	}
	x.text, x.paths = append(x.text, top...), paths
}

func (x *exploring) retain() {
	paths := [][]tandem.Token{{}}
	var kept []int32
	for i, path := range x.paths[1:] {
		parent := func(p []tandem.Token) bool { return slices.Equal(p, path[:len(path)-1]) }
		if slices.ContainsFunc(paths, parent) && rapid.Bool().Draw(x.r, "keep") {
			kept, paths = append(kept, int32(i+1)), append(paths, path)
		}
	}
	x.e.Retain(kept)
	x.paths = paths
	for i := range x.paths[1:] {
		if x.e.Use(int32(i+1)) != time.Second && x.e.Use(int32(i+1)) != 0 {
			x.r.Fatal("a node has lost its cost")
		}
	}
}
