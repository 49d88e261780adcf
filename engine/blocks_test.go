package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestTreesAcrossBlocks runs trees whose rows lie on both sides of position 256 and of position 512, where a block of attention
// ends, in passes that several sequences share, through the shipped models. Each row equals, bit for bit, the same row computed
// in a pass of its own, and computed one token at a time without a tree. Tokens drawn along the tree are those of plain decoding,
// and rows computed after their commit are the same too.
func TestTreesAcrossBlocks(t *testing.T) {
	for _, c := range []struct {
		path, kvType string
		threads      int
	}{{enginetest.Target, "f16", 2}, {enginetest.Target, "q8_0", 1}, {enginetest.Draft, "f16", 1}, {enginetest.Draft, "q8_0", 1}} {
		m := enginetest.Open(t, c.path, engine.Options{Device: testdevice.CPU(t, c.threads), KVType: c.kvType, KVPages: engine.PagesFor(5,
			560, 32)})
		s := straddling{m: m, r: rand.New(rand.NewPCG(5, uint64(len(c.path)+len(c.kvType)))),
			sampling: tandem.Sampling{Temperature: 0.8, TopP: 1, Seed: 11}}
		s.narrow = enginetest.NewNarrow(m, enginetest.NewSeq(t, m, 560, 0))
		s.wide, s.beside, s.single = enginetest.NewSeq(t, m, 560, 32), enginetest.NewSeq(t, m, 560, 32), enginetest.NewSeq(t, m, 560, 32)
		text := enginetest.RandomTokens(s.r, m, 512)
		for _, border := range []int{256, 512} {
			for i, before := range []int{1, 5} {
				name := fmt.Sprintf("%s, %s, %d positions before %d", c.path, c.kvType, before, border)
				s.across(t, name, text[:border-before], text[:border-before-3], i == 0)
			}
		}
	}
}

// straddling is a model with its sequences: narrow computes one token at a time what the others compute in trees. wide and beside
// share a pass with whole trees, single gets each node of a tree in a pass of its own.
type straddling struct {
	m                    *engine.Model
	r                    *rand.Rand
	narrow               *enginetest.Narrow
	wide, beside, single *engine.Sequence
	sampler              sample.Sampler
	sampling             tandem.Sampling
}

// fill makes seq hold text. The rows of what its old text and text begin with stay.
func (s *straddling) fill(t *testing.T, seq *engine.Sequence, text []tandem.Token) {
	t.Helper()
	same := 0
	for same < min(len(text), len(engine.TokensOf(seq))) && engine.TokensOf(seq)[same] == text[same] {
		same++
	}
	if err := seq.Truncate(same); err != nil {
		t.Fatal(err)
	}
	for piece := range slices.Chunk(text[same:], 200) {
		enginetest.Forward(t, s.m, 0, engine.Part{Seq: seq, Extend: piece})
	}
}

// draw returns the token drawn at position at.
func (s *straddling) draw(logits []float32, at int) tandem.Token {
	return s.sampler.Draw(logits, s.sampling, tandem.Position(at))
}

// tree returns a tree of random branches in which one chain is the plain decoding after prefix. first tells whether that is
// the line of first children, whose rows lie where they will be committed; else its rows lie in node cells.
func (s *straddling) tree(t *testing.T, prefix []tandem.Token, chain int, first bool) (right, nodes []tandem.Token, parents []int32,
	path []int32) {
	for range chain {
		right = append(right, s.draw(s.narrow.After(t, slices.Concat(prefix, right)), len(prefix)+len(right)))
	}
	add := func(token tandem.Token, parent int32) int32 {
		for i, p := range parents {
			if p == parent && nodes[i] == token {
				return int32(i)
			}
		}
		nodes, parents = append(nodes, token), append(parents, parent)
		return int32(len(nodes) - 1)
	}
	other := func(parent int32) { // than the right one, from any parent that is there
		add((right[0]+1+tandem.Token(s.r.IntN(s.m.Config().Vocab-1)))%tandem.Token(s.m.Config().Vocab), parent)
	}
	if !first {
		other(-1)
	}
	at := int32(-1)
	for _, x := range right {
		at = add(x, at)
		path = append(path, at)
	}
	for len(nodes) < 24 {
		other(int32(s.r.IntN(len(nodes)+1)) - 1)
	}
	return right, nodes, parents, path
}

// across verifies a tree below prefix beside one of another sequence, below other, in one pass.
func (s *straddling) across(t *testing.T, name string, prefix, other []tandem.Token, first bool) {
	t.Helper()
	right, nodes, parents, path := s.tree(t, prefix, 9, first)
	_, nodes2, parents2, _ := s.tree(t, other, 12, !first)
	last := len(prefix) - 1
	s.fill(t, s.wide, prefix[:last])
	s.fill(t, s.beside, other)
	s.fill(t, s.single, prefix)
	out := enginetest.Forward(t, s.m, 0, engine.Part{Seq: s.beside, Nodes: nodes2, Parents: parents2, Want: engine.WantTail},
		engine.Part{Seq: s.wide, Extend: prefix[last:], Nodes: nodes, Parents: parents, Want: engine.WantTail})
	rows := map[string][][]float32{}
	for i := range out.Len() {
		of := "beside"
		if i >= out.First(1) {
			of = "wide"
		}
		rows[of] = append(rows[of], slices.Clone(out.Logits(i)))
	}
	compare := func(what string, got []float32, tokens []tandem.Token) {
		t.Helper()
		if err := enginetest.SameBits(got, s.narrow.After(t, tokens)); err != nil {
			t.Fatalf("%s: %s after %d tokens: %v", name, what, len(tokens), err)
		}
	}
	compare("the root", rows["wide"][0], prefix)
	for i := range nodes {
		alone := enginetest.Forward(t, s.m, 0, engine.Part{Seq: s.single, Nodes: nodes[i : i+1], Parents: parents[i : i+1],
			Want: engine.WantTail})
		if err := enginetest.SameBits(rows["wide"][1+i], alone.Logits(0)); err != nil {
			t.Fatalf("%s: node %d in a pass of its own: %v", name, i, err)
		}
	}
	for _, i := range enginetest.ByBranch(nodes, parents) {
		compare(fmt.Sprintf("node %d", i), rows["wide"][1+i], slices.Concat(prefix, enginetest.Branch(nodes, parents, i)))
	}
	for _, i := range enginetest.ByBranch(nodes2, parents2) {
		compare(fmt.Sprintf("node %d of the other sequence", i), rows["beside"][i], slices.Concat(other, enginetest.Branch(nodes2,
			parents2, i)))
	}
	for i, at := 0, int32(-1); i < len(right); i, at = i+1, path[i] {
		if got := s.draw(rows["wide"][at+1], len(prefix)+i); got != right[i] {
			t.Fatalf("%s: token %d drawn along the tree is %d, plainly %d", name, len(prefix)+i, got, right[i])
		}
	}
	if err := s.wide.Commit(path); err != nil {
		t.Fatal(err)
	}
	tokens := slices.Concat(prefix, right)
	next := s.draw(s.narrow.After(t, tokens), len(tokens))
	out = enginetest.Forward(t, s.m, 0, engine.Part{Seq: s.wide, Nodes: []tandem.Token{next, next}, Parents: []int32{-1, 0},
		Want: engine.WantTail})
	got := [][]float32{slices.Clone(out.Logits(0)), slices.Clone(out.Logits(1))}
	compare("after the commit, the next token", got[0], append(tokens, next))
	compare("after the commit, the one behind it", got[1], append(tokens, next, next))
}
