package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"pgregory.net/rapid"
)

// twin is what a sequence should hold: the committed tokens, and each tree row's token and parent.
type twin struct {
	prefix  []tandem.Token
	tokens  []tandem.Token
	parents []int32
}

func (w *twin) path(row int32) []tandem.Token {
	path := []tandem.Token{}
	for ; row >= 0; row = w.parents[row] {
		path = append(path, w.tokens[row])
	}
	slices.Reverse(path)
	return append(slices.Clone(w.prefix), path...)
}

// TestRerootEqualsRecomputation grows trees, moves their roots along random paths, keeps random parts of
// the trees below, and compares the logits of every row added afterwards with those of its path computed
// alone, bit by bit.
func TestRerootEqualsRecomputation(t *testing.T) {
	for _, kvType := range []string{"f16", "q8_0"} {
		m := openTest(t, draftPath, Options{KVType: kvType, Device: testdevice.CPU(t, 1), KVPages: PagesFor(1, 160, 48) + PagesFor(1, 160,
			0)})
		rapid.Check(t, func(r *rapid.T) { rerootEqualsRecomputation(t, r, m) })
	}
}

func rerootEqualsRecomputation(t *testing.T, r *rapid.T, m *Model) {
	s, err := m.NewSequence(160, 48)
	if err != nil {
		r.Fatal(err)
	}
	defer s.Close()
	seq, err := m.NewSequence(160, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer seq.Close()
	single := narrow{m, seq}
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "tokens"), 0))
	w := twin{prefix: randomTokens(random, m, rapid.IntRange(1, 66).Draw(r, "prefix"))}
	forward(t, m, 0, Part{Seq: s, Extend: w.prefix})
	for range rapid.IntRange(1, 4).Draw(r, "rounds") {
		part := Part{Seq: s, Want: WantTail, Nodes: randomTokens(random, m, rapid.IntRange(0, min(12, 48-s.Nodes())).Draw(r, "rows"))}
		for i := range part.Nodes {
			part.Parents = append(part.Parents, int32(rapid.IntRange(-1, s.Nodes()+i-1).Draw(r, "parent")))
		}
		out := forward(t, m, 0, part)
		old := int32(len(w.tokens))
		w.tokens, w.parents = append(w.tokens, part.Nodes...), append(w.parents, part.Parents...)
		got := make([][]float32, out.Len())
		for i := range got {
			got[i] = slices.Clone(out.Logits(i))
		}
		for i := range got {
			if err := sameBits(got[i], single.after(t, w.path(old+int32(i)))); err != nil {
				r.Fatalf("row %d: %v", i, err)
			}
		}
		checkPlaces(r, s)
		w.reroot(r, s)
		checkPlaces(r, s)
	}
}

// reroot moves twin and sequence along.
func (w *twin) reroot(r *rapid.T, s *Sequence) {
	root, path := int32(-1), []int32{}
	if n := len(w.tokens); n > 0 && rapid.Bool().Draw(r, "commit") {
		for row := int32(rapid.IntRange(0, n-1).Draw(r, "root")); row >= 0; row = w.parents[row] {
			path = append(path, row)
		}
		slices.Reverse(path)
		root = path[len(path)-1]
	}
	next, place, keep := twin{prefix: w.path(root)}, map[int32]int32{root: -1}, []int32{}
	for row := range int32(len(w.tokens)) {
		at, ok := place[w.parents[row]]
		if !ok || !rapid.Bool().Draw(r, "keep") {
			continue
		}
		place[row] = int32(len(keep))
		keep = append(keep, row)
		next.tokens, next.parents = append(next.tokens, w.tokens[row]), append(next.parents, at)
	}
	if err := s.Reroot(path, keep); err != nil {
		r.Fatal(err)
	}
	*w = next
	if s.End() != len(w.prefix) || s.Nodes() != len(w.tokens) {
		r.Fatalf("%d positions and %d rows: want %d and %d", s.End(), s.Nodes(), len(w.prefix), len(w.tokens))
	}
}

func TestRerootRefuses(t *testing.T) {
	m := openTest(t, draftPath, Options{KVPages: PagesFor(1, 3, 8)})
	s := newSeq(t, m, 3, 8)
	forward(t, m, 0, Part{Seq: s, Extend: []tandem.Token{5}})
	// 0 ── 1 ── 3, 4   and   2
	forward(t, m, 0, Part{Seq: s, Nodes: make([]tandem.Token, 5), Parents: []int32{-1, 0, -1, 1, 1}})
	for name, c := range map[string]struct{ path, keep []int32 }{
		"path is none":       {[]int32{1}, nil},
		"no such row":        {nil, []int32{5}},
		"negative":           {nil, []int32{-1}},
		"descending":         {nil, []int32{2, 0}},
		"twice":              {nil, []int32{0, 0}},
		"parent missing":     {nil, []int32{1}},
		"beside the path":    {[]int32{0}, []int32{2}},
		"above the path":     {[]int32{0, 1}, []int32{0, 3}},
		"the path's own":     {[]int32{0}, []int32{0, 1}},
		"beyond the context": {[]int32{0, 1, 3}, nil},
	} {
		if err := s.Reroot(c.path, c.keep); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
		if s.Len() != 1 || s.Nodes() != 5 {
			t.Fatalf("%s: the sequence changed", name)
		}
	}
	if err := s.Reroot([]int32{0, 1}, []int32{3, 4}); err != nil {
		t.Error(err)
	}
}

// checkPlaces checks where tree rows lie: each in a cell of its own, those of the line at their final positions, the
// others in node cells that are marked as taken.
func checkPlaces(t interface{ Fatalf(string, ...any) }, s *Sequence) {
	seen, taken := map[kernels.Cell]bool{}, make([]bool, s.maxNodes)
	for row, p := range s.places {
		switch at := slices.Index(s.line, int32(row)); {
		case seen[p.cell]:
			t.Fatalf("cell %d of row %d is another row's too", p.cell, row)
		case at < 0 && (p.node < 0 || p.cell != s.pages.Node(p.node)), at >= 0 && (p.node >= 0 || p.cell != s.pages.At(s.length+at)):
			t.Fatalf("row %d, %d on the line %v from position %d, lies in %+v", row, at, s.line, s.length, p)
		case at == 0 && s.parents[row] != -1, at > 0 && s.parents[row] != s.line[at-1]:
			t.Fatalf("row %d, %d on the line %v, has parent %d", row, at, s.line, s.parents[row])
		}
		if seen[p.cell] = true; p.node >= 0 {
			taken[p.node] = true
		}
	}
	if len(s.places) != len(s.parents) || !slices.Equal(taken, s.taken) {
		t.Fatalf("%d places of %d rows, node cells taken %v: want %v", len(s.places), len(s.parents), s.taken, taken)
	}
}

// TestLineIsInPlace runs a tree whose first children form a line that goes on beyond what the sequence may hold.
func TestLineIsInPlace(t *testing.T) {
	m := openTest(t, draftPath, Options{Device: testdevice.CPU(t, 1), KVPages: PagesFor(1, 160, 0) + PagesFor(1, 66, 8)})
	s, err := m.NewSequence(66, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prefix := randomTokens(rand.New(rand.NewPCG(1, 2)), m, 63)
	forward(t, m, 0, Part{Seq: s, Extend: prefix})
	nodes := []tandem.Token{5, 6, 7, 8, 9, 10}
	out := forward(t, m, 0, Part{Seq: s, Nodes: nodes, Parents: []int32{-1, -1, 0, 2, 0, 3}, Want: WantTail}) // line 0, 2, 3, and 5 beyond
	if !slices.Equal(s.line, []int32{0, 2, 3}) {
		t.Fatalf("line %v: want rows 0, 2, 3", s.line)
	}
	if err := sameBits(out.Logits(5), alone(t, m, append(slices.Clone(prefix), 5, 7, 8, 10))); err != nil {
		t.Errorf("the row beyond: %v", err)
	}
	checkPlaces(t, s)
	if err := s.Commit([]int32{0, 2, 3, 5}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("commit beyond the capacity: %v", err)
	}
	if err := s.Reroot([]int32{0}, []int32{2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	checkPlaces(t, s)
	if !slices.Equal(s.line, []int32{0, 1}) {
		t.Errorf("line %v after its first row was committed: want rows 0 and 1, which were 2 and 3", s.line)
	}
	if err := s.Commit([]int32{2}); err != nil { // off the line
		t.Fatal(err)
	}
	out = forward(t, m, 0, Part{Seq: s, Nodes: nodes[:1], Parents: []int32{-1}, Want: WantTail})
	if err := sameBits(out.Logits(0), alone(t, m, append(slices.Clone(prefix), 5, 9, 5))); err != nil {
		t.Errorf("after a commit off the line: %v", err)
	}
}
