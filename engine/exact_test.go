package engine_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestWideEqualsNarrow runs random trees of several sessions in shared passes and compares the bits of
// every row with the same row computed alone, one token at a time.
func TestWideEqualsNarrow(t *testing.T) {
	for _, path := range []string{enginetest.Target, enginetest.Draft} {
		for _, c := range []struct {
			threads int
			kvType  string
		}{{1, "f16"}, {2, "f16"}, {2, "q8_0"}} {
			m := enginetest.Open(t, path, engine.Options{Device: testdevice.CPU(t, c.threads), KVType: c.kvType,
				KVPages: engine.PagesFor(5, 320, 64)})
			r := rand.New(rand.NewPCG(1, uint64(c.threads)))
			for range 3 {
				enginetest.CompareTrees(t, m, r, 80)
			}
		}
	}
}

// TestCommitEqualsExtend accepts a path of a tree grown over several passes and compares what follows
// with a sequence that was given the same tokens directly; then rolls back and takes another path.
func TestCommitEqualsExtend(t *testing.T) {
	m := enginetest.Open(t, enginetest.Draft, engine.Options{KVPages: engine.PagesFor(2, 200, 64)})
	r := rand.New(rand.NewPCG(2, 2))
	prefix, a, b := enginetest.RandomTokens(r, m, 70), enginetest.RandomTokens(r, m, 4), enginetest.RandomTokens(r, m, 6)
	s := enginetest.NewSeq(t, m, 200, 64)
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: prefix})
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Nodes: a, Parents: []int32{-1, -1, 0, 1}})
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Nodes: b, Parents: []int32{3, 3, 2, 4, 5, 7}})
	if err := s.Commit([]int32{1, 2}); err == nil {
		t.Fatal("a path that skips a generation was committed")
	}
	if err := s.Commit([]int32{1, 3, 5, 8}); err != nil {
		t.Fatal(err)
	}
	tokens := append(append([]tandem.Token(nil), prefix...), a[1], a[3], b[1], b[4])
	next := enginetest.RandomTokens(r, m, 1)
	got := append([]float32(nil), enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: next, Want: engine.WantTail}).Logits(0)...)
	if err := enginetest.SameBits(got, enginetest.Alone(t, m, append(tokens, next...))); err != nil {
		t.Fatalf("after the commit: %v", err)
	}
	if err := s.Truncate(50); err != nil {
		t.Fatal(err)
	}
	got = append([]float32(nil), enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: next, Want: engine.WantTail}).Logits(0)...)
	if err := enginetest.SameBits(got, enginetest.Alone(t, m, append(append([]tandem.Token(nil), prefix[:50]...), next...))); err != nil {
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
	m := enginetest.Open(t, enginetest.Target, engine.Options{KVType: kvType, KVPages: engine.PagesFor(2, 192, 0)})
	r := rand.New(rand.NewPCG(3, 3))
	tokens := enginetest.RandomTokens(r, m, 180)
	whole, pieces := enginetest.NewSeq(t, m, 192, 0), enginetest.NewSeq(t, m, 192, 0)
	enginetest.Forward(t, m, 0, engine.Part{Seq: whole, Extend: tokens})
	for at := 0; at < len(tokens); {
		n := min(1+r.IntN(40), len(tokens)-at)
		enginetest.Forward(t, m, 0, engine.Part{Seq: pieces, Extend: tokens[at : at+n]})
		at += n
	}
	arena := engine.MemoryOf(m).(*cpu.Cache).Memory()
	bytesPerPage := len(arena) / m.Pages()
	for i := range engine.PagesOf(whole) {
		a, b := int(engine.PagesOf(whole)[i])*bytesPerPage, int(engine.PagesOf(pieces)[i])*bytesPerPage
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
	for _, path := range []string{enginetest.Target, enginetest.Draft} {
		var want []float32
		for _, isa := range sets {
			m := enginetest.Open(t, path, engine.Options{Device: testdevice.ISA(t, 0, isa), KVPages: 4})
			tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(4, 4)), m, 24)
			out := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 24, 0), Extend: tokens, Want: engine.WantAll})
			var got []float32
			for i := range out.Len() {
				got = append(got, out.Logits(i)...)
			}
			if want == nil {
				want = got
			} else if err := enginetest.SameBits(want, got); err != nil {
				t.Errorf("%s: %v differs from %v: %v", path, isa, sets[0], err)
			}
		}
	}
}

// TestForwardRefuses gives Forward parts that do not fit and checks that nothing changes.
func TestForwardRefuses(t *testing.T) {
	m := enginetest.Open(t, enginetest.Draft, engine.Options{KVPages: engine.PagesFor(2, 64, 8), MaxRows: 16, MaxWanted: 4})
	s := enginetest.NewSeq(t, m, 20, 4)
	one := []tandem.Token{5}
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: one})
	for name, batch := range map[string][]engine.Part{
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
		"too many logits":   {{Seq: s, Extend: make([]tandem.Token, 5), Want: engine.WantAll}},
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
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Nodes: one, Parents: []int32{-1}})
	if _, err := m.Forward([]engine.Part{{Seq: s, Extend: one}}, 0); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("prefix extended under tree rows: %v", err)
	}
}
