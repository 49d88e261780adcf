package engine

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

const (
	targetPath = "../models/gopher-19m-q8_0.gguf"
	draftPath  = "../models/gopher-draft-all-f16.gguf"
)

func openTest(t testing.TB, path string, o Options) *Model {
	t.Helper()
	if o.Device == nil {
		o.Device = testdevice.CPU(t, 0)
	}
	m, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// exactOptions returns options for every instruction set, with one thread and with two.
func exactOptions(t testing.TB) (all []Options) {
	for _, isa := range cpu.Supported() {
		for threads := 1; threads <= 2; threads++ {
			all = append(all, Options{Device: testdevice.ISA(t, threads, isa), KVPages: PagesFor(5, 320, 64)})
		}
	}
	return all
}

func newSeq(t testing.TB, m *Model, capacity, nodes int) *Sequence {
	t.Helper()
	s, err := m.NewSequence(capacity, nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func forward(t testing.TB, m *Model, topK int, batch ...Part) *Output {
	t.Helper()
	out, err := m.Forward(batch, topK)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func randomTokens(r *rand.Rand, m *Model, n int) []tandem.Token {
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		tokens[i] = tandem.Token(r.IntN(m.config.Vocab))
	}
	return tokens
}

func sameBits(a, b []float32) error {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return fmt.Errorf("element %d is %v (%08x) and %v (%08x)", i, a[i], math.Float32bits(a[i]), b[i], math.Float32bits(b[i]))
		}
	}
	return nil
}

// alone returns the logits after tokens, computed one row at a time in a sequence of its own.
func alone(t *testing.T, m *Model, tokens []tandem.Token) []float32 {
	s, err := m.NewSequence(len(tokens), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range tokens {
		out := forward(t, m, 0, Part{Seq: s, Extend: tokens[i : i+1], Want: WantTail})
		if i == len(tokens)-1 {
			return append([]float32(nil), out.Logits(0)...)
		}
	}
	return nil
}

// narrow computes a row at a time, in passes of one row, in a sequence of its own. It keeps the rows that one text and the next
// begin with: each of them was computed in a pass of one row too.
type narrow struct {
	m   *Model
	seq *Sequence
}

// after returns the logits after tokens.
func (n narrow) after(t testing.TB, tokens []tandem.Token) (logits []float32) {
	t.Helper()
	same := 0
	for same < min(len(tokens)-1, len(n.seq.tokens)) && n.seq.tokens[same] == tokens[same] {
		same++
	}
	if err := n.seq.Truncate(same); err != nil {
		t.Fatal(err)
	}
	for i := n.seq.Len(); i < len(tokens); i++ {
		logits = forward(t, n.m, 0, Part{Seq: n.seq, Extend: tokens[i : i+1], Want: WantTail}).Logits(0)
	}
	return slices.Clone(logits)
}

// TestWideEqualsNarrow runs random trees of several sessions in shared passes and compares the bits of
// every row with the same row computed alone, one token at a time.
func TestWideEqualsNarrow(t *testing.T) {
	for _, path := range []string{targetPath, draftPath} {
		for _, c := range []struct {
			threads int
			kvType  string
		}{{1, "f16"}, {2, "f16"}, {2, "q8_0"}} {
			m := openTest(t, path, Options{Device: testdevice.CPU(t, c.threads), KVType: c.kvType, KVPages: PagesFor(5, 320, 64)})
			r := rand.New(rand.NewPCG(1, uint64(c.threads)))
			for range 3 {
				compareTrees(t, m, r, 80)
			}
		}
	}
}

// compareTrees takes three sessions whose prefixes are up to one, two and three times `prefix` long.
func compareTrees(t *testing.T, m *Model, r *rand.Rand, prefix int) {
	type session struct {
		seq    *Sequence
		prefix []tandem.Token
		part   Part
	}
	sessions := make([]session, 3)
	single := narrow{m, newSeq(t, m, 300, 0)}
	defer single.seq.Close()
	var batch []Part
	for i := range sessions {
		x := &sessions[i]
		x.seq = newSeq(t, m, 300, 40)
		x.prefix = randomTokens(r, m, 1+r.IntN(prefix)*(1+i))
		held := r.IntN(len(x.prefix))
		forward(t, m, 0, Part{Seq: x.seq, Extend: x.prefix[:held]})
		n := r.IntN(20)
		x.part = Part{Seq: x.seq, Extend: x.prefix[held:], Nodes: randomTokens(r, m, n), Parents: make([]int32, n), Want: WantTail}
		for j := range x.part.Parents {
			x.part.Parents[j] = int32(r.IntN(j+1)) - 1
		}
		batch = append(batch, x.part)
	}
	out := forward(t, m, 3, batch...)
	wide := make([][]float32, out.Len())
	for i := range wide {
		wide[i] = append([]float32(nil), out.Logits(i)...)
	}
	first := append([]int(nil), out.first...)
	for i, x := range sessions {
		if err := sameBits(wide[first[i]], single.after(t, x.prefix)); err != nil {
			t.Fatalf("session %d, end of prefix: %v", i, err)
		}
		for _, j := range byBranch(x.part.Nodes, x.part.Parents) {
			path := branch(x.part.Nodes, x.part.Parents, j)
			if err := sameBits(wide[first[i]+1+j], single.after(t, slices.Concat(x.prefix, path))); err != nil {
				t.Fatalf("session %d, node %d at depth %d: %v", i, j, len(path), err)
			}
		}
		x.seq.Close()
	}
}

// TestCommitEqualsExtend accepts a path of a tree grown over several passes and compares what follows
// with a sequence that was given the same tokens directly; then rolls back and takes another path.
func TestCommitEqualsExtend(t *testing.T) {
	m := openTest(t, draftPath, Options{KVPages: PagesFor(2, 200, 64)})
	r := rand.New(rand.NewPCG(2, 2))
	prefix, a, b := randomTokens(r, m, 70), randomTokens(r, m, 4), randomTokens(r, m, 6)
	s := newSeq(t, m, 200, 64)
	forward(t, m, 0, Part{Seq: s, Extend: prefix})
	forward(t, m, 0, Part{Seq: s, Nodes: a, Parents: []int32{-1, -1, 0, 1}})
	forward(t, m, 0, Part{Seq: s, Nodes: b, Parents: []int32{3, 3, 2, 4, 5, 7}})
	if err := s.Commit([]int32{1, 2}); err == nil {
		t.Fatal("a path that skips a generation was committed")
	}
	if err := s.Commit([]int32{1, 3, 5, 8}); err != nil {
		t.Fatal(err)
	}
	tokens := append(append([]tandem.Token(nil), prefix...), a[1], a[3], b[1], b[4])
	next := randomTokens(r, m, 1)
	got := append([]float32(nil), forward(t, m, 0, Part{Seq: s, Extend: next, Want: WantTail}).Logits(0)...)
	if err := sameBits(got, alone(t, m, append(tokens, next...))); err != nil {
		t.Fatalf("after the commit: %v", err)
	}
	if err := s.Truncate(50); err != nil {
		t.Fatal(err)
	}
	got = append([]float32(nil), forward(t, m, 0, Part{Seq: s, Extend: next, Want: WantTail}).Logits(0)...)
	if err := sameBits(got, alone(t, m, append(append([]tandem.Token(nil), prefix[:50]...), next...))); err != nil {
		t.Fatalf("after the truncation: %v", err)
	}
}

// TestPrefillPieces fills the cache in one piece and in pieces of random size and compares its bytes.
func TestPrefillPieces(t *testing.T) {
	for _, kvType := range []string{"f16", "q8_0"} {
		t.Run(kvType, func(t *testing.T) { testPrefillPieces(t, kvType) })
	}
}

func testPrefillPieces(t *testing.T, kvType string) {
	m := openTest(t, targetPath, Options{KVType: kvType, KVPages: PagesFor(2, 192, 0)})
	r := rand.New(rand.NewPCG(3, 3))
	tokens := randomTokens(r, m, 180)
	whole, pieces := newSeq(t, m, 192, 0), newSeq(t, m, 192, 0)
	forward(t, m, 0, Part{Seq: whole, Extend: tokens})
	for at := 0; at < len(tokens); {
		n := min(1+r.IntN(40), len(tokens)-at)
		forward(t, m, 0, Part{Seq: pieces, Extend: tokens[at : at+n]})
		at += n
	}
	arena := m.memory.(*cpu.Cache).Memory()
	bytesPerPage := len(arena) / m.Pages()
	for i := range whole.pages.Table {
		a, b := int(whole.pages.Table[i])*bytesPerPage, int(pieces.pages.Table[i])*bytesPerPage
		if !bytes.Equal(arena[a:a+bytesPerPage], arena[b:b+bytesPerPage]) {
			t.Fatalf("page %d of the cache differs", i)
		}
	}
}

// TestInstructionSets compares logits over all instruction sets of this machine.
func TestInstructionSets(t *testing.T) {
	sets := cpu.Supported()
	if len(sets) < 2 {
		t.Skipf("this machine runs %v alone", sets)
	}
	for _, path := range []string{targetPath, draftPath} {
		var want []float32
		for _, isa := range sets {
			m := openTest(t, path, Options{Device: testdevice.ISA(t, 0, isa), KVPages: 4})
			tokens := randomTokens(rand.New(rand.NewPCG(4, 4)), m, 24)
			out := forward(t, m, 0, Part{Seq: newSeq(t, m, 24, 0), Extend: tokens, Want: WantAll})
			var got []float32
			for i := range out.Len() {
				got = append(got, out.Logits(i)...)
			}
			if want == nil {
				want = got
			} else if err := sameBits(want, got); err != nil {
				t.Errorf("%s: %v differs from %v: %v", path, isa, sets[0], err)
			}
		}
	}
}

// TestForwardRefuses gives Forward parts that do not fit and checks that nothing changes.
func TestForwardRefuses(t *testing.T) {
	m := openTest(t, draftPath, Options{KVPages: PagesFor(2, 64, 8), MaxRows: 16, MaxWanted: 4})
	s := newSeq(t, m, 20, 4)
	one := []tandem.Token{5}
	forward(t, m, 0, Part{Seq: s, Extend: one})
	for name, batch := range map[string][]Part{
		"no sequence":       {{Extend: one}},
		"twice in a pass":   {{Seq: s, Extend: one}, {Seq: s, Extend: one}},
		"over capacity":     {{Seq: s, Extend: make([]tandem.Token, 20)}},
		"too many nodes":    {{Seq: s, Nodes: make([]tandem.Token, 5), Parents: []int32{-1, -1, -1, -1, -1}}},
		"parents missing":   {{Seq: s, Nodes: one}},
		"parent itself":     {{Seq: s, Nodes: one, Parents: []int32{0}}},
		"parent below -1":   {{Seq: s, Nodes: one, Parents: []int32{-2}}},
		"token too large":   {{Seq: s, Extend: []tandem.Token{4096}}},
		"token negative":    {{Seq: s, Extend: []tandem.Token{-1}}},
		"too many rows":     {{Seq: s, Extend: make([]tandem.Token, 17)}},
		"too many logits":   {{Seq: s, Extend: make([]tandem.Token, 5), Want: WantAll}},
		"second part wrong": {{Seq: s, Extend: one}, {Extend: one}},
	} {
		if _, err := m.Forward(batch, 0); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: error %v: want kind invalid", name, err)
		}
		if s.Len() != 1 || s.Nodes() != 0 {
			t.Fatalf("%s: the sequence changed", name)
		}
	}
	if _, err := m.NewSequence(4000, 0); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("sequence beyond the context: %v", err)
	}
	if _, err := m.NewSequence(1000, 0); tandem.KindOf(err) != tandem.Exhausted {
		t.Errorf("sequence beyond the cache: %v", err)
	}
	forward(t, m, 0, Part{Seq: s, Nodes: one, Parents: []int32{-1}})
	if _, err := m.Forward([]Part{{Seq: s, Extend: one}}, 0); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("prefix extended under tree rows: %v", err)
	}
}
