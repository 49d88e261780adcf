package engine_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// TestBrokenModels opens models whose hyper-parameters or tensors are wrong; each must be refused with
// the right kind and a message that names the culprit, by Open and Inspect alike.
func TestBrokenModels(t *testing.T) {
	set := func(key string, v any) func(*gguf.Writer, *gguf.File) {
		return func(w *gguf.Writer, _ *gguf.File) { w.Set(key, v) }
	}
	for _, c := range []struct {
		name   string
		kind   tandem.Kind
		want   string
		change func(*gguf.Writer, *gguf.File)
	}{
		{"architecture", tandem.Unsupported, `"mamba"`, set("general.architecture", "mamba")},
		{"no layers", tandem.Corrupt, "llama.block_count", set("llama.block_count", uint32(0))},
		{"layers -1", tandem.Corrupt, "llama.block_count", set("llama.block_count", int32(-1))},
		{"layers huge", tandem.Corrupt, "llama.block_count", set("llama.block_count", uint32(math.MaxUint32))},
		{"layer missing", tandem.Corrupt, "blk.2.attn_norm.weight", set("llama.block_count", uint32(3))},
		{"layer too many", tandem.Unsupported, "blk.1.", set("llama.block_count", uint32(1))},
		{"heads 0", tandem.Corrupt, "llama.attention.head_count", set("llama.attention.head_count", uint32(0))},
		{"heads that do not divide", tandem.Corrupt, "heads", set("llama.attention.head_count", uint32(7))},
		{"kv heads that do not divide", tandem.Corrupt, "key-value heads", set("llama.attention.head_count_kv", uint32(3))},
		{"kv heads -1", tandem.Corrupt, "head_count_kv", set("llama.attention.head_count_kv", int64(-1))},
		{"width", tandem.Corrupt, "token_embd.weight", set("llama.embedding_length", uint32(512))},
		{"width 0", tandem.Corrupt, "embedding_length", set("llama.embedding_length", uint32(0))},
		{"ffn", tandem.Corrupt, "ffn_gate.weight", set("llama.feed_forward_length", uint32(513))},
		{"ffn as text", tandem.Corrupt, "feed_forward_length", set("llama.feed_forward_length", "many")},
		{"context 0", tandem.Corrupt, "context_length", set("llama.context_length", uint32(0))},
		{"epsilon NaN", tandem.Corrupt, "rms_epsilon", set("llama.attention.layer_norm_rms_epsilon", float32(math.NaN()))},
		{"epsilon 0", tandem.Corrupt, "rms_epsilon", set("llama.attention.layer_norm_rms_epsilon", float32(0))},
		{"rope base -1", tandem.Corrupt, "freq_base", set("llama.rope.freq_base", float32(-1))},
		{"rope odd", tandem.Corrupt, "rope dimension count", set("llama.rope.dimension_count", uint32(63))},
		{"rope wider than head", tandem.Corrupt, "rope dimension count", set("llama.rope.dimension_count", uint32(128))},
		{"rope scaling", tandem.Unsupported, `"ntk"`, set("llama.rope.scaling.type", "ntk")},
		{"vocabulary size", tandem.Corrupt, "vocabulary size", set("llama.vocab_size", uint32(5000))},
		{"experts", tandem.Unsupported, "expert_count", set("llama.expert_count", uint32(8))},
		{"key missing", tandem.Corrupt, "llama.block_count", func(w *gguf.Writer, _ *gguf.File) { w.DropKey("llama.block_count") }},
		{"tensor missing", tandem.Corrupt, "blk.1.ffn_up.weight",
			func(w *gguf.Writer, _ *gguf.File) { w.DropTensor("blk.1.ffn_up.weight") }},
		{"tensor of no use", tandem.Unsupported, "blk.0.mystery.weight", func(w *gguf.Writer, f *gguf.File) {
			n := f.Tensor("blk.0.attn_norm.weight")
			w.Tensor("blk.0.mystery.weight", n.Type, n.Shape, enginetest.BytesOf(t, n))
		}},
		{"tensor turned", tandem.Corrupt, "blk.0.attn_k.weight", func(w *gguf.Writer, f *gguf.File) {
			k := f.Tensor("blk.0.attn_k.weight")
			w.Tensor(k.Name, k.Type, []int{k.Shape[1], k.Shape[0]}, enginetest.BytesOf(t, k))
		}},
		{"type not supported", tandem.Unsupported, "iq2_xxs", func(w *gguf.Writer, f *gguf.File) {
			k := f.Tensor("blk.0.attn_k.weight")
			w.Tensor(k.Name, 16, k.Shape, make([]byte, k.Elements()/256*66))
		}},
		{"norm not f32", tandem.Unsupported, "output_norm.weight", func(w *gguf.Writer, f *gguf.File) {
			n := f.Tensor("output_norm.weight")
			w.Tensor(n.Name, 1, n.Shape, make([]byte, 2*n.Elements()))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := enginetest.EditedDraft(t, c.change)
			_, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 0)})
			_, also := engine.Inspect(path)
			for _, err := range []error{err, also} {
				if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("error %v (kind %v): want one line of kind %v that names %s", err, tandem.KindOf(err), c.kind, c.want)
				}
			}
		})
	}
}

// TestNeutralEdits changes a model's file in ways that leave the function the same: F16 weights widened
// to F32, an output matrix of its own, rope factors of one.
func TestNeutralEdits(t *testing.T) {
	logits := func(path string) []float32 {
		m := enginetest.Open(t, path, engine.Options{KVPages: 4})
		tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(7, 7)), m, 20)
		out := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 20, 0), Extend: tokens, Want: engine.WantTail})
		return append([]float32(nil), out.Logits(0)...)
	}
	want := logits(enginetest.Draft)
	for name, change := range map[string]func(*gguf.Writer, *gguf.File){
		"widened": func(w *gguf.Writer, f *gguf.File) {
			for _, x := range f.Tensors() {
				if x.Type == gguf.Type(kernels.F16) {
					w.Tensor(x.Name, gguf.Type(kernels.F32), x.Shape, widen(enginetest.BytesOf(t, &x)))
				}
			}
		},
		"untied": func(w *gguf.Writer, f *gguf.File) {
			e := f.Tensor("token_embd.weight")
			w.Tensor("output.weight", e.Type, e.Shape, enginetest.BytesOf(t, e))
		},
		"rope factors of one": func(w *gguf.Writer, f *gguf.File) {
			ones := make([]byte, 4*32)
			for i := 0; i < len(ones); i += 4 {
				binary.LittleEndian.PutUint32(ones[i:], math.Float32bits(1))
			}
			w.Tensor("rope_freqs.weight", gguf.Type(kernels.F32), []int{32}, ones)
		},
	} {
		if err := enginetest.SameBits(want, logits(enginetest.EditedDraft(t, change))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// widen returns normal or zero F16 values as F32.
func widen(half []byte) []byte {
	out := make([]byte, 0, 2*len(half))
	for i := 0; i < len(half); i += 2 {
		h := uint32(binary.LittleEndian.Uint16(half[i:]))
		v := float64(h&0x3ff) / (1 << 24) // subnormal
		if e := h >> 10 & 31; e != 0 {
			v = math.Ldexp(1+float64(h&0x3ff)/1024, int(e)-15)
		}
		if h>>15 != 0 {
			v = -v
		}
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	return out
}

func TestInspect(t *testing.T) {
	info, err := engine.Inspect(enginetest.Target)
	if err != nil {
		t.Fatal(err)
	}
	c := info.Config
	if c.Layers != 6 || c.Dim != 512 || c.Heads != 8 || c.KVHeads != 4 || c.HeadDim != 64 || c.FFN != 1280 || c.Vocab != 4096 ||
		c.Context != 1024 {
		t.Errorf("shape %+v: models/README.md says otherwise", c)
	}
	if q := info.Types["q8_0"]; q.Kernel != "native" || q.Tensors != 43 || info.Types["f32"].Kernel != "vectors" || len(info.Types) != 2 {
		t.Errorf("types %+v", info.Types)
	}
	if info.Tokenizer != "llama" || info.Pre == "?" || info.Parts != 1 {
		t.Errorf("tokenizer %q %q, %d files", info.Tokenizer, info.Pre, info.Parts)
	}
	if !info.TiedHead || info.Parameters < 18_000_000 || info.Parameters > 19_000_000 {
		t.Errorf("tied %v, %d parameters: want a tied head and 18.6 million", info.TiedHead, info.Parameters)
	}
	if info.WeightBytes < 18_000_000 || info.WeightBytes > info.FileBytes*11/10 {
		t.Errorf("%d bytes of weights from a file of %d", info.WeightBytes, info.FileBytes)
	}
}
