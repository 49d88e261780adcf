package engine_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"pgregory.net/rapid"
)

// TestRecurrentTrees grows trees, moves their roots along random paths, keeps random parts, rolls back, and compares every row's logits
// with those of plain decoding, bit by bit. Records are so few that some passes must apply pending ones before.
func TestRecurrentTrees(t *testing.T) {
	for _, kvType := range []string{"f16", "q8_0"} {
		t.Run(kvType, func(t *testing.T) {
			m := enginetest.Open(t, enginetest.RecurrentPath(t), engine.Options{KVType: kvType, Device: testdevice.CPU(t, 2), Sequences: 1,
				MaxRows: 80,
				KVPages: engine.PagesFor(2, 160, 48) + engine.PagesFor(1, 160, 0)})
			rapid.Check(t, func(r *rapid.T) { recurrentTrees(t, r, m) })
		})
	}
}

func recurrentTrees(t *testing.T, r *rapid.T, m *engine.Model) {
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
	w := twin{}
	for range rapid.IntRange(1, 6).Draw(r, "rounds") {
		part := engine.Part{Seq: s, Want: engine.WantTail}
		if len(w.tokens) == 0 {
			least := 0
			if len(w.prefix) == 0 {
				least = 1
			}
			part.Extend = enginetest.RandomTokens(random, m, rapid.IntRange(least, 20).Draw(r, "more"))
			w.prefix = append(w.prefix, part.Extend...)
		}
		part.Nodes = enginetest.RandomTokens(random, m, rapid.IntRange(0, min(20, 48-s.Nodes())).Draw(r, "rows"))
		for i := range part.Nodes {
			part.Parents = append(part.Parents, int32(rapid.IntRange(-1, s.Nodes()+i-1).Draw(r, "parent")))
		}
		out := enginetest.Forward(t, m, 0, part)
		old, first := int32(len(w.tokens)), out.Len()-len(part.Nodes)
		w.tokens, w.parents = append(w.tokens, part.Nodes...), append(w.parents, part.Parents...)
		got := make([][]float32, out.Len())
		for i := range got {
			got[i] = slices.Clone(out.Logits(i))
		}
		for i := range got {
			row := int32(-1)
			if i >= first {
				row = old + int32(i-first)
			}
			if err := enginetest.SameBits(got[i], single.After(t, w.path(row))); err != nil {
				r.Fatalf("row %d of %d: %v", i, len(got), err)
			}
		}
		engine.CheckRecords(r, m)
		switch rapid.IntRange(0, 3).Draw(r, "then") {
		case 0:
			back := max(0, s.Len()-rapid.IntRange(0, 30).Draw(r, "back"))
			if err := s.Truncate(back); err != nil {
				r.Fatal(err)
			}
			if s.Len() > back || s.Nodes() != 0 {
				r.Fatalf("truncated to %d: %d positions and %d rows", back, s.Len(), s.Nodes())
			}
			w = twin{prefix: w.prefix[:s.Len()]}
		default:
			w.reroot(r, s)
		}
		engine.CheckRecords(r, m)
	}
}

// TestRecurrentOneBack checks that the last position can be given up without states from before.
func TestRecurrentOneBack(t *testing.T) {
	m := enginetest.Open(t, enginetest.RecurrentPath(t), engine.Options{Device: testdevice.CPU(t, 1), KVPages: engine.PagesFor(4, 160, 8)})
	s := enginetest.NewSeq(t, m, 160, 8)
	tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(3, 4)), m, 40)
	enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[:30]})
	for at := 29; at < 32; at++ {
		if err := s.Truncate(at); err != nil || s.Len() != at {
			t.Fatalf("truncated to %d: %d, %v", at, s.Len(), err)
		}
		out := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[at : at+2], Want: engine.WantTail})
		if err := enginetest.SameBits(out.Logits(0), enginetest.Alone(t, m, tokens[:at+2])); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Truncate(10); err != nil || s.Len() != 0 {
		t.Errorf("truncated to 10: %d positions, %v; want 0, since no states were kept", s.Len(), err)
	}
}

// TestRecurrentPrefixes opens sequences whose texts begin alike, and compares what they compute with texts computed alone.
func TestRecurrentPrefixes(t *testing.T) {
	t.Run("cpu", func(t *testing.T) { recurrentPrefixes(t, testdevice.CPU(t, 1)) })
	t.Run("cuda", func(t *testing.T) {
		gpu, _ := testdevice.GPU(t, emulated.Options{})
		recurrentPrefixes(t, gpu)
	})
}

func recurrentPrefixes(t *testing.T, d kernels.Device) {
	m := enginetest.Open(t, enginetest.RecurrentPath(t), engine.Options{Device: d, Sequences: 4, KVPages: engine.PagesFor(8, 320, 8)})
	random := rand.New(rand.NewPCG(5, 6))
	base := enginetest.RandomTokens(random, m, 150)
	var all []*engine.Sequence
	run := func(tenant string, prompt []tandem.Token, found int) *engine.Sequence {
		t.Helper()
		s, err := m.NewShared(tenant, prompt, 320, 8)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if s.Len() != found {
			t.Errorf("found %d of %d positions: want %d", s.Len(), len(prompt), found)
		}
		for s.Len() < len(prompt) {
			enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: prompt[s.Len():min(len(prompt), s.Len()+50)]})
		}
		next := enginetest.RandomTokens(random, m, 1)
		out := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: next, Want: engine.WantTail})
		if err := enginetest.SameBits(out.Logits(0), enginetest.Alone(t, m, append(slices.Clone(prompt), next...))); err != nil {
			t.Error(err)
		}
		all = append(all, s)
		return s
	}
	s := run("a", base, 0)
	run("a", base, 128)                                                                       // the last end of a page
	run("b", base, 0)                                                                         // another tenant
	run("a", append(slices.Clone(base[:100]), enginetest.RandomTokens(random, m, 40)...), 0)  // no states where they part
	run("a", append(slices.Clone(base[:100]), enginetest.RandomTokens(random, m, 50)...), 64) // but now there are
	text := slices.Clone(engine.TokensOf(s))
	for _, s := range all {
		s.Close()
	}
	run("a", append(text, enginetest.RandomTokens(random, m, 30)...), 150) // the end of a text, but for the last position
	if m.Prefixes().KeptStates() == 0 || m.Prefixes().KeptStates() > engine.SlotsOf(m) {
		t.Errorf("%d prefixes with states of %d slots", m.Prefixes().KeptStates(), engine.SlotsOf(m))
	}
}

// TestRecurrentSlots opens more sequences than there are slots, and more prefixes than slots can keep.
func TestRecurrentSlots(t *testing.T) {
	m := enginetest.Open(t, enginetest.RecurrentPath(t), engine.Options{Device: testdevice.CPU(t, 1), Sequences: 2,
		KVPages: engine.PagesFor(16, 192, 0)})
	random := rand.New(rand.NewPCG(7, 8))
	for range 9 {
		prompt := enginetest.RandomTokens(random, m, 130)
		s, err := m.NewShared("", prompt, 192, 0)
		if err != nil {
			t.Fatal(err)
		}
		enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: prompt})
		s.Close()
	}
	if m.Prefixes().KeptStates() != 4 || m.Prefixes().LostStates() < 9 {
		t.Errorf("%d prefixes with states, %d lost: want 4 and some", m.Prefixes().KeptStates(), m.Prefixes().LostStates())
	}
	for i := range 5 {
		_, err := m.NewSequence(64, 0)
		if i < 4 && err != nil || i == 4 && tandem.KindOf(err) != tandem.Exhausted {
			t.Errorf("sequence %d of a model with 4 slots: %v", i, err)
		}
	}
}
