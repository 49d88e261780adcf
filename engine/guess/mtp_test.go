package guess_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// withMTP makes a qwen35 model with a layer that guesses further tokens.
func withMTP(seed uint64) *family.Model {
	m := family.Make("qwen35", family.Shape{Layers: 4, Dim: 64, Heads: 4, KV: 2, HeadDim: 32, FFN: 96, Words: 20, States: 4, Groups: 2},
		seed)
	m.WithMTP(seed)
	return m
}

// TestMTP compares the first row of the draft inside a target's file with its formulas in float64, written down here a second time. With
// one position attention hands on the values.
func TestMTP(t *testing.T) {
	f := withMTP(5)
	path := f.Write(t, t.TempDir())
	m := enginetest.OpenMTP(t, path, engine.Options{})
	target := enginetest.Open(t, path, engine.Options{})
	if s, err := engine.SideOf(side.MTPPath(path)); err != nil || s.Kind != side.MTP || !s.Kind.IsDraft() || !slices.Equal(s.Taps,
		[]int{-1}) {
		t.Errorf("%+v, %v: want an mtp draft that reads the state after the final norm", s, err)
	}
	if target.Config().Layers != 4 || m.Config().Layers != 1 {
		t.Fatalf("%d layers and %d of the draft: want 4 and 1", target.Config().Layers, m.Config().Layers)
	}
	numbers := func(name string) []float64 {
		x := f.Tensor(name)
		var out []float64
		for i := 0; i < len(x.Data); i += 2 {
			if x.Type == gguf.F16 {
				out = append(out, float64(half.Float(binary.LittleEndian.Uint16(x.Data[i:]))))
			} else if i%4 == 0 {
				out = append(out, float64(math.Float32frombits(binary.LittleEndian.Uint32(x.Data[i:]))))
			}
		}
		return out
	}
	norm := func(x []float64, name string) []float64 {
		square, w := 0.0, numbers(name)
		for _, v := range x {
			square += v * v
		}
		out := make([]float64, len(x))
		for i, v := range x {
			out[i] = v / math.Sqrt(square/float64(len(x))+1e-5) * w[i]
		}
		return out
	}
	times := func(name string, x []float64) []float64 {
		w := numbers(name)
		out := make([]float64, len(w)/len(x))
		for i := range out {
			for j, v := range x {
				out[i] += w[i*len(x)+j] * v
			}
		}
		return out
	}
	plus := func(x, y []float64) []float64 {
		out := slices.Clone(x)
		for i, v := range y {
			out[i] += v
		}
		return out
	}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

	const token, heads, kv, size = 17, 4, 2, 32
	r := rand.New(rand.NewPCG(1, 2))
	state, wide := make([]float32, 64), make([]float64, 64)
	for i := range state {
		state[i] = float32(r.NormFloat64())
		wide[i] = float64(state[i])
	}
	embedding := numbers("token_embd.weight")[token*64:][:64]
	at := func(name string) string { return "blk.4." + name + ".weight" }
	x := times(at("nextn.eh_proj"), slices.Concat(norm(embedding, at("nextn.enorm")), norm(wide, at("nextn.hnorm"))))
	a := norm(x, at("attn_norm"))
	v, q := times(at("attn_v"), a), times(at("attn_q"), a)
	var o []float64
	for head := range heads {
		for i := range size {
			o = append(o, v[head/(heads/kv)*size+i]*sigmoid(q[(2*head+1)*size+i]))
		}
	}
	x = plus(x, times(at("attn_output"), o))
	n := norm(x, at("post_attention_norm"))
	gate, up := times(at("ffn_gate"), n), times(at("ffn_up"), n)
	for i, g := range gate {
		up[i] *= g * sigmoid(g)
	}
	x = norm(plus(x, times(at("ffn_down"), up)), at("nextn.shared_head_norm"))
	head := "output.weight"
	want := times(head, x)

	s := enginetest.NewSeq(t, m, 20, 8)
	defer s.Close()
	out := enginetest.Forward(t, m, 2, engine.Part{Seq: s, Extend: []tandem.Token{token}, States: []engine.State{{Target: state}},
		Want: engine.WantAll})
	for i, w := range want {
		if got := float64(out.Logits(0)[i]); math.Abs(got-w) > 0.02 {
			t.Fatalf("logit %d is %v: the formulas give %v", i, got, w)
		}
	}
	hidden := out.Hidden(0, 0)
	for i, w := range x {
		if got := float64(hidden[i]); math.Abs(got-w) > 0.02 {
			t.Fatalf("number %d of the draft's own state is %v: the formulas give %v", i, got, w)
		}
	}
}

// TestBadMTP: what is wrong with the layer is said by name.
func TestBadMTP(t *testing.T) {
	open := func(change func(f *family.Model), target string) error {
		f := withMTP(6)
		change(f)
		path := f.Write(t, t.TempDir())
		if target == "" {
			target = path
		}
		m, err := engine.OpenDraft(side.MTPPath(path), target, engine.Options{Device: testdevice.CPU(t, 1)})
		if err == nil {
			m.Close()
		}
		return err
	}
	other := withMTP(7).Write(t, t.TempDir())
	for want, c := range map[string]struct {
		change func(f *family.Model)
		target string
	}{
		`tensor "blk.4.nextn.eh_proj.weight"): want another`: {func(f *family.Model) { f.Drop("blk.4.nextn.eh_proj.weight") }, ""},
		`tensor "blk.4.nextn.enorm.weight" has shape [63]`:   {func(f *family.Model) { f.Reshape("blk.4.nextn.enorm.weight", 63) }, ""},
		`tensor "blk.4.nextn.eh_proj.weight" has shape [128 63]`: {func(f *family.Model) {
			f.Reshape("blk.4.nextn.eh_proj.weight", 128,
				63)
		}, ""},
		"has no layers that guess further tokens": {func(f *family.Model) {
			f.Set("nextn_predict_layers", uint32(0))
			f.Set("block_count", uint32(4))
			for _, x := range slices.Clone(f.Tensors) {
				if strings.HasPrefix(x.Name, "blk.4.") {
					f.Drop(x.Name)
				}
			}
		}, ""},
		`nextn_predict_layers" is 5: want less than`: {func(f *family.Model) { f.Set("nextn_predict_layers", uint32(5)) }, ""},
		"want that of the target, " + other:          {func(*family.Model) {}, other},
	} {
		if err := open(c.change, c.target); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

// TestMTPNames: the draft's identity follows from its own tensors and what it shares with the target, not from the target's other layers.
func TestMTPNames(t *testing.T) {
	names := func(change func(f *family.Model)) string {
		f := withMTP(8)
		change(f)
		return fmt.Sprint(enginetest.OpenMTP(t, f.Write(t, t.TempDir()), engine.Options{}).Names().Identity)
	}
	same := names(func(*family.Model) {})
	if other := names(func(f *family.Model) { f.Fill("blk.1.attn_norm.weight", 2) }); other != same {
		t.Errorf("identity %s, and %s once another layer has changed", same, other)
	}
	if other := names(func(f *family.Model) { f.Fill("blk.4.nextn.hnorm.weight", 2) }); other == same {
		t.Error("another norm, and the same identity")
	}
}
