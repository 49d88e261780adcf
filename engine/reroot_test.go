package engine_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
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
		m := enginetest.Open(t, enginetest.Draft, engine.Options{KVType: kvType, Device: testdevice.CPU(t, 1), KVPages: engine.PagesFor(1,
			160, 48) + engine.PagesFor(1, 160,
			0)})
		rapid.Check(t, func(r *rapid.T) { rerootEqualsRecomputation(t, r, m) })
	}
}

func rerootEqualsRecomputation(t *testing.T, r *rapid.T, m *engine.Model) {
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
	single := enginetest.NewNarrow(m, seq)
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "tokens"), 0))
	w := twin{prefix: enginetest.RandomTokens(random, m, rapid.IntRange(1, 66).Draw(r, "prefix"))}
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: w.prefix})
	for range rapid.IntRange(1, 4).Draw(r, "rounds") {
		part := engine.Part{Seq: s, Want: engine.WantTail, Nodes: enginetest.RandomTokens(random, m, rapid.IntRange(0,
			min(12, 48-s.Nodes())).Draw(r, "rows"))}
		for i := range part.Nodes {
			part.Parents = append(part.Parents, int32(rapid.IntRange(-1, s.Nodes()+i-1).Draw(r, "parent")))
		}
		out := enginetest.Forward(t, m, 0, part)
		old := int32(len(w.tokens))
		w.tokens, w.parents = append(w.tokens, part.Nodes...), append(w.parents, part.Parents...)
		got := make([][]float32, out.Len())
		for i := range got {
			got[i] = slices.Clone(out.Logits(i))
		}
		for i := range got {
			if err := enginetest.SameBits(got[i], single.After(t, w.path(old+int32(i)))); err != nil {
				r.Fatalf("row %d: %v", i, err)
			}
		}
		engine.CheckPlaces(r, s)
		w.reroot(r, s)
		engine.CheckPlaces(r, s)
	}
}

// reroot moves twin and sequence along.
func (w *twin) reroot(r *rapid.T, s *engine.Sequence) {
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
	m := enginetest.Open(t, enginetest.Draft, engine.Options{KVPages: engine.PagesFor(1, 3, 8)})
	s := enginetest.NewSeq(t, m, 3, 8)
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: []tandem.Token{5}})
	// 0 ── 1 ── 3, 4   and   2
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Nodes: make([]tandem.Token, 5), Parents: []int32{-1, 0, -1, 1, 1}})
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

// TestLineIsInPlace runs a tree whose first children form a line that goes on beyond what the sequence may hold.
func TestLineIsInPlace(t *testing.T) {
	m := enginetest.Open(t, enginetest.Draft, engine.Options{Device: testdevice.CPU(t, 1), KVPages: engine.PagesFor(1, 160,
		0) + engine.PagesFor(1, 66, 8)})
	s, err := m.NewSequence(66, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	prefix := enginetest.RandomTokens(rand.New(rand.NewPCG(1, 2)), m, 63)
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: prefix})
	nodes := []tandem.Token{5, 6, 7, 8, 9, 10}
	out := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Nodes: nodes, Parents: []int32{-1, -1, 0, 2, 0, 3},
		Want: engine.WantTail}) // line 0, 2, 3, and 5 beyond
	if !slices.Equal(engine.LineOf(s), []int32{0, 2, 3}) {
		t.Fatalf("line %v: want rows 0, 2, 3", engine.LineOf(s))
	}
	if err := enginetest.SameBits(out.Logits(5), enginetest.Alone(t, m, append(slices.Clone(prefix), 5, 7, 8, 10))); err != nil {
		t.Errorf("the row beyond: %v", err)
	}
	engine.CheckPlaces(t, s)
	if err := s.Commit([]int32{0, 2, 3, 5}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("commit beyond the capacity: %v", err)
	}
	if err := s.Reroot([]int32{0}, []int32{2, 3, 4}); err != nil {
		t.Fatal(err)
	}
	engine.CheckPlaces(t, s)
	if !slices.Equal(engine.LineOf(s), []int32{0, 1}) {
		t.Errorf("line %v after its first row was committed: want rows 0 and 1, which were 2 and 3", engine.LineOf(s))
	}
	if err := s.Commit([]int32{2}); err != nil { // off the line
		t.Fatal(err)
	}
	out = enginetest.Forward(t, m, 0, engine.Part{Seq: s, Nodes: nodes[:1], Parents: []int32{-1}, Want: engine.WantTail})
	if err := enginetest.SameBits(out.Logits(0), enginetest.Alone(t, m, append(slices.Clone(prefix), 5, 9, 5))); err != nil {
		t.Errorf("after a commit off the line: %v", err)
	}
}
