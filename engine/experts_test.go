package engine

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels"
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
	w := m.Passes().Work()
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
	for i := range n.weights["blk.0.ffn_gate_inp.weight"] { // infinite products of both signs: their sum is NaN
		n.weights["blk.0.ffn_gate_inp.weight"][i] = math.MaxFloat32
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

// sharedCases are models with an expert that every row uses, and with leading layers without experts. The architecture is one of this test:
// qwen3 with these experts.
func sharedCases(t *testing.T) map[string]archCase {
	arch.Families["plain share"], arch.Families["gated share"] = sharing(false), sharing(true)
	t.Cleanup(func() {
		delete(arch.Families, "plain share")
		delete(arch.Families, "gated share")
	})
	model := func(arch string, gated bool) *naive {
		n := tiny("qwen3", 3).with("expert_count", uint32(6)).with("expert_used_count", uint32(2)).with(
			"leading_dense_block_count", uint32(1))
		n.arch, n.mix = arch, naiveMixture{count: 6, used: 2, dense: 1, shared: 48, sharedGate: gated}
		return n
	}
	plain := model("plain share", false).with("expert_shared_count", uint32(2)).with("feed_forward_length", uint32(80)).with(
		"expert_feed_forward_length", uint32(24))
	plain.ffn = []int{80, 24, 24}
	return map[string]archCase{
		"plain": {plain, 40, func(n *naive) { n.mix.shared = 0 }},
		"gated": {model("gated share", true).with("expert_shared_feed_forward_length", uint32(48)), 40,
			func(n *naive) { n.mix.sharedGate = false }},
	}
}

func sharing(gated bool) blocks.Family {
	return blocks.Family{
		Read: func(r *blocks.Reader, c *blocks.Config) {
			c.Rope.Halves = true
			r.LayersOfExperts(c, r.Dense(c))
			r.HeadSizes(c)
			r.RoPE(c)
			r.NoWindow(c)
			r.Experts(c, blocks.GateOfChosen, true)
			r.Shared(c, r.Optional("expert_shared_count", blocks.MaxExperts),
				r.Optional("expert_shared_feed_forward_length", blocks.MaxDim))
		},
		Layer: func(t *blocks.Tensors) {
			t.Norms("ffn_norm.weight")
			t.HeadNorms()
			t.Attention()
			if t.SharedExpert(); gated && t.Shape.Shared > 0 {
				t.Row(&t.Mixture.Shared.Share, t.Name("ffn_gate_inp_shexp.weight"), t.C.Dim)
			}
			t.Experts()
		},
		Pass: func(p *blocks.Planner, i int) {
			p.Attention(i)
			p.Mix(i)
		},
	}
}

// TestSharedExperts: logits are those of the formulas, and the bits of every device and division into passes are the same.
func TestSharedExperts(t *testing.T) {
	for name, c := range sharedCases(t) {
		t.Run(name, func(t *testing.T) {
			c.model.generate(3)
			path := c.model.write(t, t.TempDir())
			var first []float32
			for _, o := range exactOptions(t) {
				m := openTest(t, path, o)
				tokens := randomTokens(rand.New(rand.NewPCG(2, 9)), m, c.tokens)
				out := forward(t, m, 0, Part{Seq: newSeq(t, m, c.tokens, 0), Extend: tokens, Want: WantAll})
				if rms, _ := distance(out, c.model.forward(tokens)); !(rms < 4e-4) {
					t.Fatalf("%v: logits are %.2g from the formulas'", m.About().Kernels, rms)
				}
				logits := inPieces(t, m, tokens, []int{c.tokens})
				if err := sameBits(logits, inPieces(t, m, tokens, []int{1, 20, 3, c.tokens - 24})); err != nil {
					t.Errorf("%v: in pieces: %v", m.About().Kernels, err)
				}
				if first == nil {
					first = logits
				}
				if err := sameBits(first, logits); err != nil {
					t.Errorf("%v with %d threads: %v", m.About().Kernels, m.About().Threads, err)
				}
				if n := (running{m}).experts(3); len(n) != 3 || n[2] < 2*2 || n[2] > 2*6 || m.Passes().Work().Experts != 2*2 {
					t.Errorf("passes use %v experts of 2 layers, one row %d", n, m.Passes().Work().Experts)
				}
				if share := m.weights.Layers[1].Mixture.Shared.Share; m.plan.Weights[m.weights.Layers[0].Gate].Experts != 0 ||
					(share != kernels.None) != (name == "gated") {
					t.Errorf("the first layer has experts, or the second one's share is weight %d", share)
				}
				c.without(c.model)
				if rms, _ := distance(out, c.model.forward(tokens)); !(rms > 0.01) {
					t.Errorf("without its feature the model's logits are only %.2g away: the case shows nothing", rms)
				}
				c.model.mix.shared, c.model.mix.sharedGate = 48, name == "gated"
			}
		})
	}
}
