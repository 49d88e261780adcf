package arch_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// badModel is a change that makes a model of some families wrong, and what is said about it.
type badModel struct {
	families, name string // families apart by blanks
	change         func(m *family.Model)
	says           string
}

func set(key string, v any) func(m *family.Model) { return func(m *family.Model) { m.Set(key, v) } }

func without(tensor string) func(m *family.Model) { return func(m *family.Model) { m.Drop(tensor) } }

// other changes an extent of a tensor by n.
func other(tensor string, dim, n int) func(m *family.Model) {
	return func(m *family.Model) {
		shape := slices.Clone(m.Tensor(tensor).Shape)
		shape[dim] += n
		m.Reshape(tensor, shape...)
	}
}

const (
	withExperts = "granitemoe qwen3moe gpt-oss gpt-oss-mxfp4 qwen35moe gemma4-moe"
	ofGatedOnes = "granitemoe qwen3moe gpt-oss gpt-oss-mxfp4 qwen35moe" // with matrices of gate and up apart
	recurrent   = "qwen35 qwen35moe"
)

var badModels = []badModel{
	{ofGatedOnes, "no experts", set("expert_count", uint32(0)), "expert_count"},
	{"gemma4-moe", "no experts", set("expert_count", uint32(0)), "ffn_gate_inp"}, // its other models have none
	{withExperts, "no experts used", set("expert_used_count", uint32(0)), "expert_used_count"},
	{withExperts, "more experts used than there are", set("expert_used_count", uint32(6)), "expert_used_count"},
	{withExperts, "too many experts", set("expert_count", uint32(1<<20)), "expert_count"},
	{withExperts, "a router of fewer", other("blk.1.ffn_gate_inp.weight", 1, -1), "blk.1.ffn_gate_inp.weight"},
	{withExperts, "a router of another width", other("blk.1.ffn_gate_inp.weight", 0, -32), "blk.1.ffn_gate_inp.weight"},
	{withExperts, "no router", without("blk.1.ffn_gate_inp.weight"), "blk.1.ffn_gate_inp.weight"},
	{withExperts, "one expert fewer", other("blk.1.ffn_down_exps.weight", 2, -1), "blk.1.ffn_down_exps.weight"},
	{withExperts, "experts of fewer outputs", other("blk.1.ffn_down_exps.weight", 1, -32), "blk.1.ffn_down_exps.weight"},
	{withExperts, "experts of more inputs", other("blk.1.ffn_down_exps.weight", 0, 32), "blk.1.ffn_down_exps.weight"},
	{ofGatedOnes, "experts without up", without("blk.1.ffn_up_exps.weight"), "blk.1.ffn_up_exps.weight"},
	{ofGatedOnes, "experts of another width", other("blk.1.ffn_gate_exps.weight", 1, 32), "blk.1.ffn_gate_exps.weight"},
	{"granitemoe qwen3moe", "another gate", set("expert_gating_func", uint32(9)), "expert_gating_func"},
	{"gpt-oss", "a bias for too many experts", other("blk.1.ffn_up_exps.bias", 1, 1), "blk.1.ffn_up_exps.bias"},
	{"gpt-oss", "no sinks", without("blk.1.attn_sinks.weight"), "blk.1.attn_sinks.weight"},
	{"gpt-oss", "sinks of too many heads", other("blk.1.attn_sinks.weight", 0, 1), "blk.1.attn_sinks.weight"},
	{"gpt-oss gemma4", "a window of 0", set("attention.sliding_window", uint32(0)), "attention.sliding_window"},
	{"gpt-oss gemma4", "no window", func(m *family.Model) { m.DropKey("attention.sliding_window") }, "attention.sliding_window"},
	{"gpt-oss gemma4", "a window in words", set("attention.sliding_window", "all"), "attention.sliding_window"},
	{"gemma4", "kinds of too few layers", set("attention.sliding_window_pattern", []bool{true}), "sliding_window_pattern"},
	{"granite granitemoe", "scores times 0", set("attention.scale", float32(0)), "attention.scale"},
	{"mistral3 gpt-oss", "yarn by 0", set("rope.scaling.factor", float32(0)), "rope.scaling.factor"},
	{"mistral3 gpt-oss", "an original context of 0", set("rope.scaling.original_context_length", uint32(0)), "original_context_length"},
	{"glm4", "one norm fewer", without("blk.1.post_ffw_norm.weight"), "blk.1.post_ffw_norm.weight"},
	{"phi3-longrope", "no long factors", without("rope_factors_long.weight"), "rope_factors_long.weight"},
	{"phi3-shortrope", "no short factors", without("rope_factors_short.weight"), "rope_factors_short.weight"},
	{"smollm3 qwen3moe gpt-oss", "a layer more", set("block_count", uint32(4)), "blk.3."},
	{"smollm3 qwen3moe gpt-oss", "a layer fewer", set("block_count", uint32(2)), "blk.2."},
	{recurrent, "an interval of 0", set("full_attention_interval", uint32(0)), "full_attention_interval"},
	{recurrent, "an interval below 0", set("full_attention_interval", int32(-4)), "full_attention_interval"},
	{recurrent, "layers of other kinds", set("full_attention_interval", uint32(2)), "blk.1."},
	{recurrent, "states of 0", set("ssm.state_size", uint32(0)), "ssm.state_size"},
	{recurrent, "states that do not divide", set("ssm.inner_size", uint32(100)), "ssm."},
	{recurrent, "no heads of keys", set("ssm.group_count", uint32(0)), "ssm.group_count"},
	{recurrent, "heads of keys that do not divide", set("ssm.group_count", uint32(3)), "ssm."},
	{recurrent, "a convolution of nothing", set("ssm.conv_kernel", uint32(0)), "ssm.conv_kernel"},
	{recurrent, "a convolution of another length", set("ssm.conv_kernel", uint32(5)), "blk.0.ssm_conv1d.weight"},
	{recurrent, "no decay", without("blk.0.ssm_a"), "blk.0.ssm_a"},
	{recurrent, "steps of too many heads", other("blk.0.ssm_dt.bias", 0, 1), "blk.0.ssm_dt.bias"},
	{"qwen35moe", "no shared expert's gate", without("blk.0.ffn_gate_inp_shexp.weight"), "ffn_gate_inp_shexp"},
	{"gemma4", "embeddings of each layer of another width", set("embedding_length_per_layer_input", uint32(16)), "per_layer"},
	{"gemma4", "no embeddings of each layer", without("per_layer_token_embd.weight"), "per_layer_token_embd.weight"},
	{"gemma4", "all layers share keys", set("attention.shared_kv_layers", uint32(3)), "shared_kv_layers"},
	{"gemma4", "more layers share keys than there are", set("attention.shared_kv_layers", uint32(77)), "shared_kv_layers"},
	{"gemma4", "no layer of the kind whose keys are shared", set("attention.sliding_window_pattern", []bool{true, true, false}), ""},
	{"deepseek2 deepseek2-kvb", "no latent", set("attention.kv_lora_rank", uint32(0)), "kv_lora_rank"},
	{"deepseek2", "another latent", set("attention.kv_lora_rank", uint32(48)), "4"},
	{"deepseek2", "more turns than the latent key has", set("rope.dimension_count", uint32(1000)), "attention.key_length"},
	{"deepseek2-kvb", "heads smaller than what turns", set("rope.dimension_count", uint32(1000)), "rope"},
	{"deepseek2", "keys of heads of another size", other("blk.0.attn_k_b.weight", 0, 32), "blk.0.attn_k_b.weight"},
	{"deepseek2-kvb", "latents' matrix of other heads", other("blk.0.attn_kv_b.weight", 1, 32), "blk.0.attn_kv_b.weight"},
	{"deepseek2 deepseek2-kvb", "more dense layers than there are", set("leading_dense_block_count", uint32(77)), "leading_dense"},
	{"deepseek2 deepseek2-kvb", "all layers dense", set("leading_dense_block_count", uint32(3)), "leading_dense"},
	{"deepseek2", "no shared expert", set("expert_shared_count", uint32(0)), "shexp"},
	{"deepseek2", "choosing by groups", set("expert_group_count", uint32(4)), "expert_group_count"},
}

// ofThree is the shape that badModels changes.
func ofThree(name string) *family.Model {
	return family.Make(name, family.Shape{Layers: 3, Dim: 64, Heads: 4, KV: 2, HeadDim: 32, RopeDim: 32, FFN: 64, Experts: 5, Used: 2,
		Width: 64, Window: 8, Words: 10, States: 4, Groups: 2}, 1)
}

// TestBadFamilies: what is wrong with a model of each architecture is refused by name. Unchanged they are accepted.
func TestBadFamilies(t *testing.T) {
	dir := t.TempDir()
	for _, name := range family.Running {
		if _, err := engine.Inspect(ofThree(name).Write(t, dir)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range badModels {
		for _, name := range strings.Fields(c.families) {
			if !slices.Contains(family.Running, name) {
				continue
			}
			t.Run(name+", "+c.name, func(t *testing.T) {
				m := ofThree(name)
				c.change(m)
				_, err := engine.Inspect(m.Write(t, dir))
				if k := tandem.KindOf(err); k != tandem.Corrupt && k != tandem.Unsupported || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v (kind %v): want corrupt or unsupported, and %q named", err, k, c.says)
				}
			})
		}
	}
}

// TestBrokenRouters: rows whose router says NaN or infinity end, and other rows have the bits that they have without them.
func TestBrokenRouters(t *testing.T) {
	for _, name := range strings.Fields(withExperts) {
		if !slices.Contains(family.Running, name) {
			continue
		}
		for _, v := range []float32{math.MaxFloat32, -math.MaxFloat32} { // scores are infinite or NaN
			m := ofThree(name)
			m.Fill("blk.1.ffn_gate_inp.weight", v)
			model := enginetest.Open(t, m.Write(t, t.TempDir()), engine.Options{KVPages: engine.PagesFor(5, 320, 64)})
			enginetest.CompareTrees(t, model, rand.New(rand.NewPCG(1, 1)), 30)
		}
	}
}

// TestTowers: what of a file reads pictures or sound is counted and left out; a file of that alone is refused by name.
func TestTowers(t *testing.T) {
	plain := ofThree("gemma3")
	with := ofThree("gemma3")
	with.Name = "with"
	with.Add("v.blk.0.attn_q.weight", 32, 32)
	with.Add("v.patch_embd.weight", 14, 14, 3, 32)
	with.Add("mm.input_projection.weight", 32, 64)
	dir := t.TempDir()
	a, err := engine.Inspect(plain.Write(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	b, err := engine.Inspect(with.Write(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if len(b.LeftOut) != 2 || b.LeftOut[0].Tensors != 2 || b.LeftOut[0].Bytes != 4*(32*32+14*14*3*32) || b.LeftOut[1].Tensors != 1 ||
		b.Parameters != a.Parameters || b.WeightBytes != a.WeightBytes || len(a.LeftOut) != 0 {
		t.Errorf("left out are %v of %d parameters: want 2 and 1 tensors, and the %d parameters without", b.LeftOut, b.Parameters,
			a.Parameters)
	}
	var logits [2][]float32
	for i, m := range []*family.Model{plain, with} {
		logits[i] = enginetest.Alone(t, enginetest.Open(t, m.Write(t, dir), engine.Options{KVPages: 4}), []tandem.Token{1, 50, 200, 7})
	}
	if err := enginetest.SameBits(logits[0], logits[1]); err != nil {
		t.Errorf("with towers: %v", err)
	}
	with.SetAny("general.architecture", "clip")
	if _, err := engine.Inspect(with.Write(t, dir)); tandem.KindOf(err) != tandem.Unsupported || !strings.Contains(err.Error(),
		"language model") {
		t.Errorf("a file of towers: %v", err)
	}
}

// FuzzFamilies gives a key of a tiny model of any architecture and shape any value, and changes a tensor: the file is refused, or it runs;
// and whatever it says, reading it takes little memory.
func FuzzFamilies(f *testing.F) {
	for i := range family.Running {
		for key := i % 3; key < 12; key += 3 { // few, so that a short run gets past them
			f.Add(uint8(i), uint64(key), uint8(key), uint8(key), uint64(key%4), uint8(key), uint8(key))
		}
		f.Add(uint8(i), uint64(1), uint8(i), uint8(0), uint64(1<<32-1), uint8(0), uint8(0))
	}
	const most = 64 << 20 // bytes; the files have 2 MB at most
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, which uint8, seed uint64, key, kind uint8, v uint64, tensor, how uint8) {
		m := family.Random(family.Running[int(which)%len(family.Running)], seed%64)
		m.Set(m.Keys[int(key)%len(m.Keys)], fuzzValue(kind, v))
		x := &m.Tensors[int(tensor)%len(m.Tensors)]
		switch how % 6 {
		case 0:
			m.Drop(x.Name)
		case 1:
			m.Reshape(x.Name, append(slices.Clone(x.Shape[:len(x.Shape)-1]), 1+int(v%7))...)
		case 2:
			m.Reshape(x.Name, append(slices.Clone(x.Shape), 1+int(v%3))...)
		case 3:
			if x.Type == 0 {
				m.Fill(x.Name, math.Float32frombits(uint32(v)))
			}
		}
		path := m.Write(t, dir)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := engine.Inspect(path)
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > most {
			t.Fatalf("reading the header took %d bytes", after.TotalAlloc-before.TotalAlloc)
		}
		if err != nil {
			if k := tandem.KindOf(err); k != tandem.Corrupt && k != tandem.Unsupported {
				t.Fatalf("%v: kind %v: want corrupt or unsupported", err, k)
			}
			return
		}
		o := engine.Options{Device: testdevice.CPU(t, 1), KVPages: 2, MaxRows: 8}
		need, err := engine.Measure(path, o)
		if err != nil {
			if tandem.KindOf(err) != tandem.Unsupported {
				t.Fatalf("inspected, but cannot be planned: %v", err)
			}
			return
		}
		if need.Model() > most {
			t.Fatalf("needs %v", need)
		}
		model, err := engine.Open(path, o)
		if err != nil {
			t.Fatalf("inspected, but does not open: %v", err)
		}
		defer model.Close()
		s, err := model.NewSequence(1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := model.Forward([]engine.Part{{Seq: s, Extend: []tandem.Token{5}, Want: engine.WantTail}}, 1); err != nil {
			t.Fatal(err)
		}
	})
}

// fuzzValue makes a key's value of any type.
func fuzzValue(kind uint8, v uint64) any {
	switch kind % 8 {
	case 0:
		return uint32(v)
	case 1:
		return math.Float32frombits(uint32(v))
	case 2:
		return int64(v)
	case 3:
		return []uint32{uint32(v & 7), uint32(v >> 3 & 7), uint32(v >> 6 & 7)}
	case 4:
		return []bool{v&1 != 0, v&2 != 0, v&4 != 0}
	case 5:
		return v&1 != 0
	case 6:
		return []string{"none", "linear", "yarn", "longrope", ""}[v%5]
	}
	return []int32{int32(v), 2}
}
