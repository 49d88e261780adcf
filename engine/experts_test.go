package engine

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestExpertsOfPass: a pass tells how many experts it has used, and the work of a pass counts those that one row uses.
func TestExpertsOfPass(t *testing.T) {
	open := func(n *naive) *Model {
		n.generate(4)
		return openTest(t, n.write(t, t.TempDir()), Options{KVPages: PagesFor(1, 64, 0)})
	}
	run := func(m *Model, rows int) (int, bool) {
		t.Helper()
		tokens := randomTokens(rand.New(rand.NewPCG(1, 2)), m, rows)
		s := newSeq(t, m, rows, 0)
		defer s.Close()
		used := forward(t, m, 0, Part{Seq: s, Extend: tokens}).Experts()
		if err := used.Validate(rows); err != nil {
			t.Error(err)
		}
		return used.All(), used != nil
	}
	m := open(tiny("qwen3moe", 3))
	if n, ok := run(m, 1); !ok || n != 3*2 {
		t.Errorf("a row uses %d experts (%v), want 2 in each of 3 layers", n, ok)
	}
	few, ok := run(m, 2)
	if many, _ := run(m, 30); !ok || few < 6 || few > 12 || many <= few || many > 18 {
		t.Errorf("2 rows use %d experts, 30 use %d of 18", few, many)
	}
	w := m.Work()
	each := int64(4 * (2*80*48 + 48*80)) // bytes in f32
	if w.Expert != each || w.Experts != 6 || w.Reading(9).Bytes-w.Bytes != 3*each {
		t.Errorf("work %+v, want 6 experts of %d bytes", w, each)
	}
	if ints, floats := w.MACs(2, 0); ints != 0 || floats != 2*float64(w.FloatMACs) {
		t.Errorf("%v and %v multiply-adds of %+v", ints, floats, w)
	}
	all := tiny("granitemoe", 2).with("expert_used_count", uint32(6))
	all.mix.used = 6
	if n, ok := run(open(all), 3); !ok || n != 12 {
		t.Errorf("rows that use all experts use %d (%v), want 12", n, ok)
	}
	if n, ok := run(open(tiny("llama", 2)), 3); ok {
		t.Errorf("a model without experts has used %d", n)
	}
}

// TestExpertsOfNaN: rows whose routers see no numbers choose experts too, each row as many as any other, and the pass ends.
func TestExpertsOfNaN(t *testing.T) {
	n := tiny("qwen3moe", 2)
	n.generate(4)
	for i := range n.weights["blk.0.ffn_gate_inp.weight"] {
		n.weights["blk.0.ffn_gate_inp.weight"][i] = math.NaN()
	}
	m := openTest(t, n.write(t, t.TempDir()), Options{KVPages: PagesFor(1, 64, 0)})
	s := newSeq(t, m, 9, 0)
	used := forward(t, m, 0, Part{Seq: s, Extend: randomTokens(rand.New(rand.NewPCG(1, 2)), m, 9)}).Experts()
	if err := used.Validate(9); err != nil || used[0] != 4 {
		t.Errorf("experts %v (%v), want 4 of one row", used, err)
	}
	if first := used[len(used)-1] - used[0]; first > 4 {
		t.Errorf("experts %v: want all rows to choose the same ones in the first layer, where all scores are equal", used)
	}
}
