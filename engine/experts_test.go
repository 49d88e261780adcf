package engine_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
)

// TestExpertsOfPass: a pass tells how many experts it has used, and the work of a pass counts those that one row uses.
func TestExpertsOfPass(t *testing.T) {
	open := func(n *naive.Model) *engine.Model {
		n.Generate(4)
		return enginetest.Open(t, n.Write(t, t.TempDir()), engine.Options{KVPages: engine.PagesFor(1, 64, 0)})
	}
	run := func(m *engine.Model, rows int) (int, bool) {
		t.Helper()
		tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(1, 2)), m, rows)
		s := enginetest.NewSeq(t, m, rows, 0)
		defer s.Close()
		used := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens}).Experts()
		if err := used.Validate(rows); err != nil {
			t.Error(err)
		}
		return used.All(), used != nil
	}
	m := open(naive.Tiny("qwen3moe", 3))
	if n, ok := run(m, 1); !ok || n != 3*2 {
		t.Errorf("a row uses %d experts (%v), want 2 in each of 3 layers", n, ok)
	}
	few, ok := run(m, 2)
	if many, _ := run(m, 30); !ok || few < 6 || few > 12 || many <= few || many > 18 {
		t.Errorf("2 rows use %d experts, 30 use %d of 18", few, many)
	}
	w := m.Passes().Work()
	each := int64(4 * (2*80*48 + 48*80)) // bytes in f32
	if w.Expert != each || w.Experts != 6 || w.Reading(9).Bytes-w.Bytes != 3*each {
		t.Errorf("work %+v, want 6 experts of %d bytes", w, each)
	}
	if ints, floats := w.MACs(2, 0); ints != 0 || floats != 2*float64(w.FloatMACs) {
		t.Errorf("%v and %v multiply-adds of %+v", ints, floats, w)
	}
	all := naive.Tiny("granitemoe", 2).With("expert_used_count", uint32(6))
	all.Mix.Used = 6
	if n, ok := run(open(all), 3); !ok || n != 12 {
		t.Errorf("rows that use all experts use %d (%v), want 12", n, ok)
	}
	if n, ok := run(open(naive.Tiny("llama", 2)), 3); ok {
		t.Errorf("a model without experts has used %d", n)
	}
}

// TestExpertsOfNaN: rows whose routers see no numbers choose experts too, each row as many as any other, and the pass ends.
func TestExpertsOfNaN(t *testing.T) {
	n := naive.Tiny("qwen3moe", 2)
	n.Generate(4)
	for i := range n.Weights["blk.0.ffn_gate_inp.weight"] { // infinite products of both signs: their sum is NaN
		n.Weights["blk.0.ffn_gate_inp.weight"][i] = math.MaxFloat32
	}
	m := enginetest.Open(t, n.Write(t, t.TempDir()), engine.Options{KVPages: engine.PagesFor(1, 64, 0)})
	s := enginetest.NewSeq(t, m, 9, 0)
	used := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: enginetest.RandomTokens(rand.New(rand.NewPCG(1, 2)), m, 9)}).Experts()
	if err := used.Validate(9); err != nil || used[0] != 4 {
		t.Errorf("experts %v (%v), want 4 of one row", used, err)
	}
	if first := used[len(used)-1] - used[0]; first > 4 {
		t.Errorf("experts %v: want all rows to choose the same ones in the first layer, where all scores are equal", used)
	}
}
