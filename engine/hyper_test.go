package engine

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestBrokenTraits opens models whose keys or tensors contradict what their architecture says; each must be refused
// with the right kind and a message that names the culprit.
func TestBrokenTraits(t *testing.T) {
	factors := func(name string, v ...float64) func(*naive) {
		return func(n *naive) { n.factors = map[string][]float64{name: v} }
	}
	one := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	for _, c := range []struct {
		name   string
		model  *naive
		change func(*naive)
		kind   tandem.Kind
		want   string
	}{
		{"array too short", tiny("llama", 3).with("attention.head_count", []uint32{4, 4}), nil, tandem.Corrupt, "attention.head_count"},
		{"array with 0", tiny("llama", 2).with("feed_forward_length", []uint32{80, 0}), nil, tandem.Corrupt, "feed_forward_length"},
		{"array that does not divide", tiny("llama", 2).with("attention.head_count_kv", []uint32{2, 3}), nil, tandem.Corrupt, "layer 1"},
		{"window -1", tiny("llama", 2).with("attention.sliding_window", int32(-1)), nil, tandem.Corrupt, "sliding_window"},
		{"window of qwen2", tiny("qwen2", 2).with("attention.sliding_window", uint32(100)), nil, tandem.Unsupported,
			"qwen2.attention.sliding_window"},
		{"pattern too short", tiny("gemma3", 2).with("attention.sliding_window", uint32(8)).with("attention.sliding_window_pattern",
			[]bool{true}), nil, tandem.Corrupt, "sliding_window_pattern"},
		{"pattern of text", tiny("gemma3", 2).with("attention.sliding_window", uint32(8)).with("attention.sliding_window_pattern", "even"),
			nil, tandem.Corrupt, "sliding_window_pattern"},
		{"cap of llama", tiny("llama", 2).with("attn_logit_softcapping", float32(50)), nil, tandem.Unsupported, "attn_logit_softcapping"},
		{"cap below 0", tiny("gemma2", 2).with("final_logit_softcapping", float32(-1)), nil, tandem.Corrupt, "final_logit_softcapping"},
		{"cap NaN", tiny("gemma2", 2).with("attn_logit_softcapping", float32(math.NaN())), nil, tandem.Corrupt, "attn_logit_softcapping"},
		{"value length", tiny("llama", 2).with("attention.value_length", uint32(8)), nil, tandem.Unsupported, "value length 8"},
		{"rope base huge", tiny("llama", 2).with("rope.freq_base", 1e300), nil, tandem.Corrupt, "freq_base"},
		{"rope base below 1", tiny("llama", 2).with("rope.freq_base", float32(0.5)), nil, tandem.Corrupt, "freq_base"},
		{"rope factor 0", tiny("llama", 2).with("rope.scaling.factor", float32(0)), nil, tandem.Corrupt, "rope.scaling.factor"},
		{"rope factor tiny", tiny("llama", 2).with("rope.scaling.factor", float32(1e-9)), nil, tandem.Corrupt, "rope scaling by"},
		{"attn factor huge", tiny("llama", 2).with("rope.scaling.attn_factor", float32(1e9)), nil, tandem.Corrupt, "magnitude 1e+09"},
		{"original context 0", tiny("llama", 2).with("rope.scaling.original_context_length", uint32(0)), nil, tandem.Corrupt,
			"original_context_length"},
		{"yarn turned round", tiny("llama", 2).with("rope.scaling.type", "yarn").with("rope.scaling.yarn_beta_fast", float32(0.5)), nil,
			tandem.Corrupt, "yarn_beta_fast"},
		{"longrope without tensors", tiny("phi3", 2).with("rope.scaling.type", "longrope"), nil, tandem.Corrupt,
			"rope_factors_long.weight"},
		{"longrope of gemma", tiny("gemma", 2).with("rope.scaling.type", "longrope"), nil, tandem.Unsupported, `"longrope"`},
		{"long without short", tiny("phi3", 2), factors("rope_factors_long.weight", one...), tandem.Corrupt, "rope_factors_short.weight"},
		{"factor 0", tiny("llama", 2), factors("rope_freqs.weight", 1, 1, 1, 0, 1, 1, 1, 1), tandem.Corrupt, "rope factor 3 is 0"},
		{"factor NaN", tiny("llama", 2), factors("rope_freqs.weight", 1, 1, 1, math.NaN(), 1, 1, 1, 1), tandem.Corrupt,
			"number 3 is NaN"},
		{"too few factors", tiny("llama", 2), factors("rope_freqs.weight", 1, 1), tandem.Corrupt, "rope_freqs.weight"},
		{"factors of qwen2", tiny("qwen2", 2), factors("rope_freqs.weight", one...), tandem.Unsupported, "rope_freqs.weight"},
		{"scale of embeddings 0", tiny("granite", 2).with("embedding_scale", float32(0)), nil, tandem.Corrupt,
			`"granite.embedding_scale" is 0: want`},
		{"scale of residuals below 0", tiny("granite", 2).with("residual_scale", float32(-0.22)), nil, tandem.Corrupt, "residual_scale"},
		{"scale of scores NaN", tiny("granite", 2).with("attention.scale", float32(math.NaN())), nil, tandem.Corrupt, "attention.scale"},
		{"scale of logits infinite", tiny("granite", 2).with("logit_scale", math.Inf(1)), nil, tandem.Corrupt, "logit_scale"},
		{"scale of logits in words", tiny("granite", 2).with("logit_scale", "eight"), nil, tandem.Corrupt, "logit_scale"},
		{"scale of residuals of llama", tiny("llama", 2).with("residual_scale", float32(0.2)), nil, tandem.Unsupported, "residual_scale"},
		{"temperature 0", tiny("mistral3", 2).with("attention.temperature_scale", float32(0)), nil, tandem.Corrupt,
			`"mistral3.attention.temperature_scale" is 0: want`},
		{"temperature below 0", tiny("mistral3", 2).with("attention.temperature_scale", float32(-0.1)), nil, tandem.Corrupt,
			"temperature_scale"},
		{"temperature of too many steps", func() *naive {
			n := tiny("mistral3", 2).with("attention.temperature_scale", float32(0.1)).with(
				"rope.scaling.original_context_length", uint32(1))
			n.context = 1 << 17
			return n
		}(), nil, tandem.Unsupported, "131072 factors"},
		{"temperature of llama", tiny("llama", 2).with("attention.temperature_scale", float32(0.1)), nil, tandem.Unsupported,
			"llama.attention.temperature_scale"},
		{"yarn logarithm NaN", tiny("mistral3", 2).with("rope.scaling.type", "yarn").with("rope.scaling.factor", float32(4)).with(
			"rope.scaling.yarn_log_multiplier", float32(math.NaN())), nil, tandem.Corrupt, "yarn_log_multiplier"},
		{"yarn logarithm of qwen2", tiny("qwen2", 2).with("rope.scaling.yarn_log_multiplier", float32(1)), nil, tandem.Unsupported,
			"qwen2.rope.scaling.yarn_log_multiplier"},
		{"fused bias too short", tiny("glm4", 2), func(n *naive) { n.factors = map[string][]float64{"blk.1.attn_qkv.bias": {1, 2}} },
			tandem.Corrupt, "blk.1.attn_qkv.bias"},
		{"feed-forward not fused twice", tiny("glm4", 2).with("feed_forward_length", uint32(160)), nil, tandem.Corrupt, "ffn_up.weight"},
		{"sections of positions", tiny("glm4", 2).with("rope.dimension_sections", []uint32{4, 2, 2, 0}), nil, tandem.Unsupported,
			"glm4.rope.dimension_sections"},
		{"post norms of glm4 missing", tiny("glm4", 2), func(n *naive) { n.postNorms = false }, tandem.Corrupt, "post_attention_norm"},
		{"rope or not", tiny("granite", 2).with("rope.scaling.finetuned", "no"), nil, tandem.Corrupt, "rope.scaling.finetuned"},
		{"window of granite", tiny("granite", 2).with("attention.sliding_window", uint32(100)), nil, tandem.Unsupported,
			"granite.attention.sliding_window"},
		{"experts", tiny("qwen3", 2).with("expert_count", uint32(8)), nil, tandem.Unsupported, "qwen3.expert_count"},
		{"no experts", tiny("qwen3moe", 2).with("expert_count", uint32(0)), nil, tandem.Corrupt, "qwen3moe.expert_count"},
		{"-1 experts", tiny("gpt-oss", 2).with("expert_count", int32(-1)), nil, tandem.Corrupt, "gpt-oss.expert_count"},
		{"no experts used", tiny("granitemoe", 2).with("expert_used_count", uint32(0)), nil, tandem.Corrupt, "expert_used_count"},
		{"more experts used", tiny("qwen3moe", 2).with("expert_used_count", uint32(7)), nil, tandem.Corrupt,
			`"qwen3moe.expert_used_count" is 7: want at most 6`},
		{"experts of another count", tiny("qwen3moe", 2).with("expert_count", uint32(5)), nil, tandem.Corrupt, "ffn_gate_inp.weight"},
		{"experts of another width", tiny("qwen3moe", 2).with("expert_feed_forward_length", uint32(64)), nil, tandem.Corrupt,
			`"blk.0.ffn_gate_exps.weight" has shape [48 80 6]: the hyper-parameters want [48 64 6]`},
		{"experts gated in another way", tiny("qwen3moe", 2).with("expert_gating_func", uint32(9)), nil, tandem.Unsupported,
			"expert_gating_func"},
		{"weights of experts below 0", tiny("qwen3moe", 2).with("expert_weights_scale", float32(-1)), nil, tandem.Corrupt,
			`"qwen3moe.expert_weights_scale" is -1`},
		{"weights of experts NaN", tiny("qwen3moe", 2).with("expert_weights_scale", float32(math.NaN())), nil, tandem.Corrupt,
			"expert_weights_scale"},
		{"weights of experts normed by words", tiny("qwen3moe", 2).with("expert_weights_norm", "yes"), nil, tandem.Corrupt,
			"expert_weights_norm"},
		{"shared experts", tiny("qwen3moe", 2).with("expert_shared_count", uint32(1)), nil, tandem.Unsupported, "expert_shared_count"},
		{"sinks missing", tiny("gpt-oss", 2), func(n *naive) { n.sinks = false }, tandem.Corrupt, `"blk.0.attn_sinks.weight" is missing`},
		{"window of gpt-oss 0", tiny("gpt-oss", 2).with("attention.sliding_window", uint32(0)), nil, tandem.Corrupt,
			`"gpt-oss.attention.sliding_window" is 0 or missing`},
		{"window of gpt-oss missing", tiny("gpt-oss", 2), func(n *naive) { delete(n.keys, "attention.sliding_window") }, tandem.Corrupt,
			"gpt-oss.attention.sliding_window"},
		{"experts missing", tiny("granitemoe", 2), func(n *naive) { n.mix.count = 0 }, tandem.Corrupt, "ffn_gate_inp.weight"},
		{"experts of llama", tiny("llama", 2), func(n *naive) { n.mix = naiveMixture{count: 6, used: 2} }, tandem.Corrupt,
			"ffn_gate.weight"},
		{"latent rank 0", tinyLatent(2, 0, false).with("attention.kv_lora_rank", uint32(0)), nil, tandem.Corrupt, `"deepseek2.attention.kv_lora_rank"`},
		{"latent rank of llama", tiny("llama", 2).with("attention.kv_lora_rank", uint32(40)), nil, tandem.Unsupported,
			`"llama.attention.kv_lora_rank"`},
		{"latent rank of another extent", tinyLatent(2, 0, false).with("attention.kv_lora_rank", uint32(32)).with(
			"attention.key_length", uint32(40)).with("attention.value_length", uint32(32)), nil, tandem.Corrupt, `"blk.0.attn_kv_a_mqa.weight" has shape [48 48]`},
		{"keys that turn as a whole", tinyLatent(2, 0, false).with("attention.key_length_mla", uint32(8)), nil, tandem.Corrupt,
			`below the key length 8 of key "deepseek2.attention.key_length_mla"`},
		{"odd number of elements that turn", tinyLatent(2, 0, true).with("rope.dimension_count", uint32(7)), nil, tandem.Corrupt,
			"rope dimension count 7"},
		{"kept keys of another length", tinyLatent(2, 0, false).with("attention.key_length", uint32(24)), nil, tandem.Corrupt,
			`"deepseek2.attention.key_length" is 24: want 48`},
		{"kept values of another length", tinyLatent(2, 0, false).with("attention.value_length", uint32(12)), nil, tandem.Corrupt,
			`"deepseek2.attention.value_length" is 12: want 40`},
		{"two heads kept", tinyLatent(2, 0, false).with("attention.head_count_kv", uint32(2)), nil, tandem.Corrupt,
			`"deepseek2.attention.head_count_kv" is 2: want 1`},
		{"fewer key heads than heads", tinyLatent(2, 0, true).with("attention.head_count_kv", uint32(2)), nil, tandem.Corrupt,
			`"deepseek2.attention.head_count_kv" is 2: want 4`},
		{"layers of other heads", tinyLatent(2, 0, true).with("attention.head_count", []uint32{4, 8}).with("attention.head_count_kv",
			[]uint32{4, 4}), nil, tandem.Corrupt, `"deepseek2.attention.head_count" is 8: want 4`},
		{"keys and values missing", tinyLatent(2, 0, false), func(n *naive) { n.latent.together = true }, tandem.Corrupt,
			`"blk.0.attn_k_b.weight" is missing`},
		{"keys and values of the new layout", tinyLatent(2, 0, true), func(n *naive) { n.latent.together = false }, tandem.Corrupt,
			`"blk.0.attn_kv_b.weight" is missing`},
		{"both layouts at once", tinyLatent(2, 0, true), func(n *naive) {
			n.factors = map[string][]float64{"blk.1.attn_k_b.weight": {1, 2}}
		}, tandem.Unsupported, "blk.1.attn_k_b.weight"},
		{"experts in groups", tinyLatent(2, 0, false).with("expert_group_count", uint32(2)), nil, tandem.Unsupported,
			`"deepseek2.expert_group_count" is 2`},
		{"more latent experts used", tinyLatent(2, 0, false).with("expert_used_count", uint32(9)), nil, tandem.Corrupt,
			`"deepseek2.expert_used_count" is 9: want at most 6`},
		{"no layer with experts", tinyLatent(2, 0, false).with("leading_dense_block_count", uint32(2)), nil, tandem.Corrupt,
			"leading_dense_block_count"},
		{"shared experts of another count", tinyLatent(2, 0, false).with("expert_shared_count", uint32(1)), nil, tandem.Corrupt,
			`"blk.1.ffn_gate_shexp.weight" has shape [48 66]`},
		{"scale of scores", tiny("llama", 2).with("attention.scale", float32(0.1)), nil, tandem.Unsupported, "attention.scale"},
		{"not causal", tiny("gemma3", 2).with("attention.causal", false), nil, tandem.Unsupported, "attention.causal"},
		{"q norms missing", tiny("qwen3", 2), func(n *naive) { n.headNorms = false }, tandem.Corrupt, "attn_q_norm"},
		{"q norms of llama", tiny("llama", 2), func(n *naive) { n.headNorms = true }, tandem.Unsupported, "norm.weight"},
		{"fused tensors of llama", tiny("llama", 2), func(n *naive) { n.fused = true }, tandem.Corrupt, "attn_q.weight"},
		{"post norms missing", tiny("gemma2", 2), func(n *naive) { n.postNorms = false }, tandem.Corrupt, "post_attention_norm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.model)
			}
			c.model.generate(1)
			_, err := Inspect(c.model.write(t, t.TempDir()))
			if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v (kind %v): want kind %v and a message that names %s", err, tandem.KindOf(err), c.kind, c.want)
			}
		})
	}
}

// TestNeutralKeys: keys whose values change nothing.
func TestNeutralKeys(t *testing.T) {
	for name, n := range map[string]*naive{
		"experts 0":         tiny("llama", 1).with("expert_count", uint32(0)),
		"window of qwen2":   tiny("qwen2", 1).with("attention.sliding_window", uint32(512)),
		"weights times 0":   tiny("qwen3moe", 1).with("expert_weights_scale", float32(0)),
		"cap 0":             tiny("llama", 1).with("attn_logit_softcapping", float32(0)),
		"no scaling":        tiny("llama", 1).with("rope.scaling.type", "none").with("rope.scaling.factor", float32(4)),
		"residuals in turn": tiny("llama", 1).with("use_parallel_residual", false),
	} {
		n.generate(1)
		m := openTest(t, n.write(t, t.TempDir()), Options{KVPages: 2})
		tokens := []tandem.Token{1, 50, 200, 7}
		got := forward(t, m, 0, Part{Seq: newSeq(t, m, 4, 0), Extend: tokens, Want: WantAll})
		if rms, _ := distance(got, n.forward(tokens)); !(rms < 3e-4) {
			t.Errorf("%s: logits are %.2g from the formulas'", name, rms)
		}
	}
}

// FuzzHyperParameters sets keys of every architecture to any value: the file is refused or runs, nothing else.
func FuzzHyperParameters(f *testing.F) {
	names := []string{"block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size", "attention.head_count",
		"attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "attention.causal",
		"attention.sliding_window", "attention.sliding_window_pattern", "attn_logit_softcapping", "final_logit_softcapping",
		"rope.dimension_count",
		"rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.original_context_length",
		"rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scale_linear", "expert_count", "embedding_scale",
		"residual_scale",
		"attention.scale", "logit_scale", "rope.scaling.finetuned", "rope.dimension_sections", "attention.temperature_scale",
		"rope.scaling.yarn_log_multiplier", "expert_used_count", "expert_feed_forward_length", "expert_gating_func",
		"expert_weights_norm", "expert_weights_scale", "expert_shared_count", "attention.kv_lora_rank", "attention.key_length_mla",
		"attention.value_length_mla", "expert_group_count", "leading_dense_block_count", "attention.q_lora_rank"}
	var archs []string
	for a := range arch.Families {
		archs = append(archs, a)
	}
	slices.Sort(archs)
	for i := range names {
		f.Add(uint8(i), uint8(i), uint8(0), uint64(i), uint8(17), uint8(8), uint64(0))
		f.Add(uint8(i), uint8(i), uint8(2), uint64(1<<32-1), uint8(18), uint8(1), uint64(0x40800000))
		f.Add(uint8(i), uint8(i), uint8(4+i%5), uint64(2), uint8(11), uint8(0), uint64(3))
	}
	// found by fuzzing: yarn with 2e-323 as beta_slow, whose turns made a frequency that is no number
	f.Add(byte('\x18'), byte('/'), byte('\''), uint64(4), byte('\x11'), byte('"'), uint64(12))
	value := func(kind uint8, v uint64) any {
		switch kind % 9 {
		case 0:
			return uint32(v)
		case 1:
			return math.Float32frombits(uint32(v))
		case 2:
			return int64(v)
		case 3:
			return math.Float64frombits(v)
		case 4:
			return []uint32{uint32(v & 7), uint32(v >> 3 & 7)}
		case 5:
			return []bool{v&1 != 0, v&2 != 0}
		case 6:
			return v&1 != 0
		case 7:
			return []string{"none", "linear", "yarn", "longrope", "su"}[v%5]
		}
		return []float32{float32(v), 2}
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, arch, key1, kind1 uint8, v1 uint64, key2, kind2 uint8, v2 uint64) {
		n := tiny(archs[int(arch)%len(archs)], 2)
		if n.arch == "deepseek2" {
			n = tinyLatent(2, int(arch)%2*20, arch%4 < 2)
		}
		n.context = 100
		n.generate(1)
		n.keys[names[int(key1)%len(names)]] = value(kind1, v1)
		n.keys[names[int(key2)%len(names)]] = value(kind2, v2)
		path := n.write(t, dir)
		if _, err := Inspect(path); err != nil {
			if tandem.KindOf(err) != tandem.Corrupt && tandem.KindOf(err) != tandem.Unsupported {
				t.Fatalf("%v: kind %v: want corrupt or unsupported", err, tandem.KindOf(err))
			}
			return
		}
		m, err := Open(path, Options{Device: testdevice.CPU(t, 1), KVPages: 2, MaxRows: 8})
		if err != nil {
			t.Fatalf("inspected, but does not open: %v", err)
		}
		defer m.Close()
		s, err := m.NewSequence(1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Forward([]Part{{Seq: s, Extend: []tandem.Token{5}, Want: WantTail}}, 1); err != nil {
			t.Fatal(err)
		}
	})
}

func TestLn(t *testing.T) {
	for _, x := range []float64{0x1p-1022, 1e-9, 0.5, 0.7071, 1, 1.0000001, math.Sqrt2, 2, 4, 10000, 1e15, 1e300} {
		if got, want := blocks.Ln(x), math.Log(x); math.Abs(got-want) > 1e-15*max(1, math.Abs(want)) {
			t.Errorf("ln(%v) is %v: want %v", x, got, want)
		}
	}
}
