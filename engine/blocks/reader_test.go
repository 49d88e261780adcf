package blocks_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestBrokenTraits opens models whose keys or tensors contradict what their architecture says; each must be refused
// with the right kind and a message that names the culprit.
func TestBrokenTraits(t *testing.T) {
	factors := func(name string, v ...float64) func(*naive.Model) {
		return func(n *naive.Model) { n.Factors = map[string][]float64{name: v} }
	}
	one := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	for _, c := range []struct {
		name   string
		model  *naive.Model
		change func(*naive.Model)
		kind   tandem.Kind
		want   string
	}{
		{"array too short", naive.Tiny("llama", 3).With("attention.head_count", []uint32{4, 4}), nil, tandem.Corrupt,
			"attention.head_count"},
		{"array with 0", naive.Tiny("llama", 2).With("feed_forward_length", []uint32{80, 0}), nil, tandem.Corrupt, "feed_forward_length"},
		{"array that does not divide", naive.Tiny("llama", 2).With("attention.head_count_kv", []uint32{2, 3}), nil, tandem.Corrupt,
			"layer 1"},
		{"window -1", naive.Tiny("llama", 2).With("attention.sliding_window", int32(-1)), nil, tandem.Corrupt, "sliding_window"},
		{"window of qwen2", naive.Tiny("qwen2", 2).With("attention.sliding_window", uint32(100)), nil, tandem.Unsupported,
			"qwen2.attention.sliding_window"},
		{"pattern too short", naive.Tiny("gemma3", 2).With("attention.sliding_window", uint32(8)).With("attention.sliding_window_pattern",
			[]bool{true}), nil, tandem.Corrupt, "sliding_window_pattern"},
		{"pattern of text", naive.Tiny("gemma3", 2).With("attention.sliding_window", uint32(8)).With("attention.sliding_window_pattern",
			"even"),
			nil, tandem.Corrupt, "sliding_window_pattern"},
		{"cap of llama", naive.Tiny("llama", 2).With("attn_logit_softcapping", float32(50)), nil, tandem.Unsupported,
			"attn_logit_softcapping"},
		{"cap below 0", naive.Tiny("gemma2", 2).With("final_logit_softcapping", float32(-1)), nil, tandem.Corrupt,
			"final_logit_softcapping"},
		{"cap NaN", naive.Tiny("gemma2", 2).With("attn_logit_softcapping", float32(math.NaN())), nil, tandem.Corrupt,
			"attn_logit_softcapping"},
		{"value length", naive.Tiny("llama", 2).With("attention.value_length", uint32(8)), nil, tandem.Unsupported, "value length 8"},
		{"rope base huge", naive.Tiny("llama", 2).With("rope.freq_base", 1e300), nil, tandem.Corrupt, "freq_base"},
		{"rope base below 1", naive.Tiny("llama", 2).With("rope.freq_base", float32(0.5)), nil, tandem.Corrupt, "freq_base"},
		{"rope factor 0", naive.Tiny("llama", 2).With("rope.scaling.factor", float32(0)), nil, tandem.Corrupt, "rope.scaling.factor"},
		{"rope factor tiny", naive.Tiny("llama", 2).With("rope.scaling.factor", float32(1e-9)), nil, tandem.Corrupt, "rope scaling by"},
		{"attn factor huge", naive.Tiny("llama", 2).With("rope.scaling.attn_factor", float32(1e9)), nil, tandem.Corrupt, "magnitude 1e+09"},
		{"original context 0", naive.Tiny("llama", 2).With("rope.scaling.original_context_length", uint32(0)), nil, tandem.Corrupt,
			"original_context_length"},
		{"yarn turned round", naive.Tiny("llama", 2).With("rope.scaling.type", "yarn").With("rope.scaling.yarn_beta_fast", float32(0.5)),
			nil,
			tandem.Corrupt, "yarn_beta_fast"},
		{"longrope without tensors", naive.Tiny("phi3", 2).With("rope.scaling.type", "longrope"), nil, tandem.Corrupt,
			"rope_factors_long.weight"},
		{"longrope of gemma", naive.Tiny("gemma", 2).With("rope.scaling.type", "longrope"), nil, tandem.Unsupported, `"longrope"`},
		{"long without short", naive.Tiny("phi3", 2), factors("rope_factors_long.weight", one...), tandem.Corrupt,
			"rope_factors_short.weight"},
		{"factor 0", naive.Tiny("llama", 2), factors("rope_freqs.weight", 1, 1, 1, 0, 1, 1, 1, 1), tandem.Corrupt, "rope factor 3 is 0"},
		{"factor NaN", naive.Tiny("llama", 2), factors("rope_freqs.weight", 1, 1, 1, math.NaN(), 1, 1, 1, 1), tandem.Corrupt,
			"number 3 is NaN"},
		{"too few factors", naive.Tiny("llama", 2), factors("rope_freqs.weight", 1, 1), tandem.Corrupt, "rope_freqs.weight"},
		{"factors of qwen2", naive.Tiny("qwen2", 2), factors("rope_freqs.weight", one...), tandem.Unsupported, "rope_freqs.weight"},
		{"scale of embeddings 0", naive.Tiny("granite", 2).With("embedding_scale", float32(0)), nil, tandem.Corrupt,
			`"granite.embedding_scale" is 0: want`},
		{"scale of residuals below 0", naive.Tiny("granite", 2).With("residual_scale", float32(-0.22)), nil, tandem.Corrupt,
			"residual_scale"},
		{"scale of scores NaN", naive.Tiny("granite", 2).With("attention.scale", float32(math.NaN())), nil, tandem.Corrupt,
			"attention.scale"},
		{"scale of logits infinite", naive.Tiny("granite", 2).With("logit_scale", math.Inf(1)), nil, tandem.Corrupt, "logit_scale"},
		{"scale of logits in words", naive.Tiny("granite", 2).With("logit_scale", "eight"), nil, tandem.Corrupt, "logit_scale"},
		{"scale of residuals of llama", naive.Tiny("llama", 2).With("residual_scale", float32(0.2)), nil, tandem.Unsupported,
			"residual_scale"},
		{"temperature 0", naive.Tiny("mistral3", 2).With("attention.temperature_scale", float32(0)), nil, tandem.Corrupt,
			`"mistral3.attention.temperature_scale" is 0: want`},
		{"temperature below 0", naive.Tiny("mistral3", 2).With("attention.temperature_scale", float32(-0.1)), nil, tandem.Corrupt,
			"temperature_scale"},
		{"temperature of too many steps", func() *naive.Model {
			n := naive.Tiny("mistral3", 2).With("attention.temperature_scale", float32(0.1)).With(
				"rope.scaling.original_context_length", uint32(1))
			n.Context = 1 << 17
			return n
		}(), nil, tandem.Unsupported, "131072 factors"},
		{"temperature of llama", naive.Tiny("llama", 2).With("attention.temperature_scale", float32(0.1)), nil, tandem.Unsupported,
			"llama.attention.temperature_scale"},
		{"yarn logarithm NaN", naive.Tiny("mistral3", 2).With("rope.scaling.type", "yarn").With("rope.scaling.factor", float32(4)).With(
			"rope.scaling.yarn_log_multiplier", float32(math.NaN())), nil, tandem.Corrupt, "yarn_log_multiplier"},
		{"yarn logarithm of qwen2", naive.Tiny("qwen2", 2).With("rope.scaling.yarn_log_multiplier", float32(1)), nil, tandem.Unsupported,
			"qwen2.rope.scaling.yarn_log_multiplier"},
		{"fused bias too short", naive.Tiny("glm4", 2), func(n *naive.Model) {
			n.Factors = map[string][]float64{"blk.1.attn_qkv.bias": {1,
				2}}
		},
			tandem.Corrupt, "blk.1.attn_qkv.bias"},
		{"feed-forward not fused twice", naive.Tiny("glm4", 2).With("feed_forward_length", uint32(160)), nil, tandem.Corrupt,
			"ffn_up.weight"},
		{"sections of positions", naive.Tiny("glm4", 2).With("rope.dimension_sections", []uint32{4, 2, 2, 0}), nil, tandem.Unsupported,
			"glm4.rope.dimension_sections"},
		{"post norms of glm4 missing", naive.Tiny("glm4", 2), func(n *naive.Model) { n.PostNorms = false }, tandem.Corrupt,
			"post_attention_norm"},
		{"rope or not", naive.Tiny("granite", 2).With("rope.scaling.finetuned", "no"), nil, tandem.Corrupt, "rope.scaling.finetuned"},
		{"window of granite", naive.Tiny("granite", 2).With("attention.sliding_window", uint32(100)), nil, tandem.Unsupported,
			"granite.attention.sliding_window"},
		{"experts", naive.Tiny("qwen3", 2).With("expert_count", uint32(8)), nil, tandem.Unsupported, "qwen3.expert_count"},
		{"no experts", naive.Tiny("qwen3moe", 2).With("expert_count", uint32(0)), nil, tandem.Corrupt, "qwen3moe.expert_count"},
		{"-1 experts", naive.Tiny("gpt-oss", 2).With("expert_count", int32(-1)), nil, tandem.Corrupt, "gpt-oss.expert_count"},
		{"no experts used", naive.Tiny("granitemoe", 2).With("expert_used_count", uint32(0)), nil, tandem.Corrupt, "expert_used_count"},
		{"more experts used", naive.Tiny("qwen3moe", 2).With("expert_used_count", uint32(7)), nil, tandem.Corrupt,
			`"qwen3moe.expert_used_count" is 7: want at most 6`},
		{"experts of another count", naive.Tiny("qwen3moe", 2).With("expert_count", uint32(5)), nil, tandem.Corrupt, "ffn_gate_inp.weight"},
		{"experts of another width", naive.Tiny("qwen3moe", 2).With("expert_feed_forward_length", uint32(64)), nil, tandem.Corrupt,
			`"blk.0.ffn_gate_exps.weight" has shape [48 80 6]: the hyper-parameters want [48 64 6]`},
		{"experts gated in another way", naive.Tiny("qwen3moe", 2).With("expert_gating_func", uint32(9)), nil, tandem.Unsupported,
			"expert_gating_func"},
		{"weights of experts below 0", naive.Tiny("qwen3moe", 2).With("expert_weights_scale", float32(-1)), nil, tandem.Corrupt,
			`"qwen3moe.expert_weights_scale" is -1`},
		{"weights of experts NaN", naive.Tiny("qwen3moe", 2).With("expert_weights_scale", float32(math.NaN())), nil, tandem.Corrupt,
			"expert_weights_scale"},
		{"weights of experts normed by words", naive.Tiny("qwen3moe", 2).With("expert_weights_norm", "yes"), nil, tandem.Corrupt,
			"expert_weights_norm"},
		{"shared experts", naive.Tiny("qwen3moe", 2).With("expert_shared_count", uint32(1)), nil, tandem.Unsupported,
			"expert_shared_count"},
		{"sinks missing", naive.Tiny("gpt-oss", 2), func(n *naive.Model) { n.Sinks = false }, tandem.Corrupt,
			`"blk.0.attn_sinks.weight" is missing`},
		{"window of gpt-oss 0", naive.Tiny("gpt-oss", 2).With("attention.sliding_window", uint32(0)), nil, tandem.Corrupt,
			`"gpt-oss.attention.sliding_window" is 0 or missing`},
		{"window of gpt-oss missing", naive.Tiny("gpt-oss", 2), func(n *naive.Model) { delete(n.Keys, "attention.sliding_window") },
			tandem.Corrupt,
			"gpt-oss.attention.sliding_window"},
		{"experts missing", naive.Tiny("granitemoe", 2), func(n *naive.Model) { n.Mix.Count = 0 }, tandem.Corrupt, "ffn_gate_inp.weight"},
		{"experts of llama", naive.Tiny("llama", 2), func(n *naive.Model) { n.Mix = naive.Mixture{Count: 6, Used: 2} }, tandem.Corrupt,
			"ffn_gate.weight"},
		{"latent rank 0", naive.TinyLatent(2, 0, false).With("attention.kv_lora_rank", uint32(0)), nil, tandem.Corrupt,
			`"deepseek2.attention.kv_lora_rank"`},
		{"latent rank of llama", naive.Tiny("llama", 2).With("attention.kv_lora_rank", uint32(40)), nil, tandem.Unsupported,
			`"llama.attention.kv_lora_rank"`},
		{"latent rank of another extent", naive.TinyLatent(2, 0, false).With("attention.kv_lora_rank", uint32(32)).With(
			"attention.key_length", uint32(40)).With("attention.value_length", uint32(32)), nil, tandem.Corrupt,
			`"blk.0.attn_kv_a_mqa.weight" has shape [48 48]`},
		{"keys that turn as a whole", naive.TinyLatent(2, 0, false).With("attention.key_length_mla", uint32(8)), nil, tandem.Corrupt,
			`below the key length 8 of key "deepseek2.attention.key_length_mla"`},
		{"odd number of elements that turn", naive.TinyLatent(2, 0, true).With("rope.dimension_count", uint32(7)), nil, tandem.Corrupt,
			"rope dimension count 7"},
		{"kept keys of another length", naive.TinyLatent(2, 0, false).With("attention.key_length", uint32(24)), nil, tandem.Corrupt,
			`"deepseek2.attention.key_length" is 24: want 48`},
		{"kept values of another length", naive.TinyLatent(2, 0, false).With("attention.value_length", uint32(12)), nil, tandem.Corrupt,
			`"deepseek2.attention.value_length" is 12: want 40`},
		{"two heads kept", naive.TinyLatent(2, 0, false).With("attention.head_count_kv", uint32(2)), nil, tandem.Corrupt,
			`"deepseek2.attention.head_count_kv" is 2: want 1`},
		{"fewer key heads than heads", naive.TinyLatent(2, 0, true).With("attention.head_count_kv", uint32(2)), nil, tandem.Corrupt,
			`"deepseek2.attention.head_count_kv" is 2: want 4`},
		{"layers of other heads", naive.TinyLatent(2, 0, true).With("attention.head_count", []uint32{4, 8}).With("attention.head_count_kv",
			[]uint32{4, 4}), nil, tandem.Corrupt, `"deepseek2.attention.head_count" is 8: want 4`},
		{"keys and values missing", naive.TinyLatent(2, 0, false), func(n *naive.Model) { n.Latent.Together = true }, tandem.Corrupt,
			`"blk.0.attn_k_b.weight" is missing`},
		{"keys and values of the new layout", naive.TinyLatent(2, 0, true), func(n *naive.Model) { n.Latent.Together = false },
			tandem.Corrupt,
			`"blk.0.attn_kv_b.weight" is missing`},
		{"both layouts at once", naive.TinyLatent(2, 0, true), func(n *naive.Model) {
			n.Factors = map[string][]float64{"blk.1.attn_k_b.weight": {1, 2}}
		}, tandem.Unsupported, "blk.1.attn_k_b.weight"},
		{"experts in groups", naive.TinyLatent(2, 0, false).With("expert_group_count", uint32(2)), nil, tandem.Unsupported,
			`"deepseek2.expert_group_count" is 2`},
		{"more latent experts used", naive.TinyLatent(2, 0, false).With("expert_used_count", uint32(9)), nil, tandem.Corrupt,
			`"deepseek2.expert_used_count" is 9: want at most 6`},
		{"no layer with experts", naive.TinyLatent(2, 0, false).With("leading_dense_block_count", uint32(2)), nil, tandem.Corrupt,
			"leading_dense_block_count"},
		{"shared experts of another count", naive.TinyLatent(2, 0, false).With("expert_shared_count", uint32(1)), nil, tandem.Corrupt,
			`"blk.1.ffn_gate_shexp.weight" has shape [48 66]`},
		{"scale of scores", naive.Tiny("llama", 2).With("attention.scale", float32(0.1)), nil, tandem.Unsupported, "attention.scale"},
		{"not causal", naive.Tiny("gemma3", 2).With("attention.causal", false), nil, tandem.Unsupported, "attention.causal"},
		{"q norms missing", naive.Tiny("qwen3", 2), func(n *naive.Model) { n.HeadNorms = false }, tandem.Corrupt, "attn_q_norm"},
		{"q norms of llama", naive.Tiny("llama", 2), func(n *naive.Model) { n.HeadNorms = true }, tandem.Unsupported, "norm.weight"},
		{"fused tensors of llama", naive.Tiny("llama", 2), func(n *naive.Model) { n.Fused = true }, tandem.Corrupt, "attn_q.weight"},
		{"post norms missing", naive.Tiny("gemma2", 2), func(n *naive.Model) { n.PostNorms = false }, tandem.Corrupt,
			"post_attention_norm"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.model)
			}
			c.model.Generate(1)
			_, err := engine.Inspect(c.model.Write(t, t.TempDir()))
			if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v (kind %v): want kind %v and a message that names %s", err, tandem.KindOf(err), c.kind, c.want)
			}
		})
	}
}

// TestNeutralKeys: keys whose values change nothing.
func TestNeutralKeys(t *testing.T) {
	for name, n := range map[string]*naive.Model{
		"experts 0":         naive.Tiny("llama", 1).With("expert_count", uint32(0)),
		"window of qwen2":   naive.Tiny("qwen2", 1).With("attention.sliding_window", uint32(512)),
		"weights times 0":   naive.Tiny("qwen3moe", 1).With("expert_weights_scale", float32(0)),
		"cap 0":             naive.Tiny("llama", 1).With("attn_logit_softcapping", float32(0)),
		"no scaling":        naive.Tiny("llama", 1).With("rope.scaling.type", "none").With("rope.scaling.factor", float32(4)),
		"residuals in turn": naive.Tiny("llama", 1).With("use_parallel_residual", false),
	} {
		n.Generate(1)
		m := enginetest.Open(t, n.Write(t, t.TempDir()), engine.Options{KVPages: 2})
		tokens := []tandem.Token{1, 50, 200, 7}
		got := enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 4, 0), Extend: tokens, Want: engine.WantAll})
		if rms, _ := enginetest.Distance(got, n.Forward(tokens)); !(rms < 3e-4) {
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
		n := naive.Tiny(archs[int(arch)%len(archs)], 2)
		if n.Arch == "deepseek2" {
			n = naive.TinyLatent(2, int(arch)%2*20, arch%4 < 2)
		}
		n.Context = 100
		n.Generate(1)
		n.Keys[names[int(key1)%len(names)]] = value(kind1, v1)
		n.Keys[names[int(key2)%len(names)]] = value(kind2, v2)
		path := n.Write(t, dir)
		if _, err := engine.Inspect(path); err != nil {
			if tandem.KindOf(err) != tandem.Corrupt && tandem.KindOf(err) != tandem.Unsupported {
				t.Fatalf("%v: kind %v: want corrupt or unsupported", err, tandem.KindOf(err))
			}
			return
		}
		m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 2, MaxRows: 8})
		if err != nil {
			t.Fatalf("inspected, but does not open: %v", err)
		}
		defer m.Close()
		s, err := m.NewSequence(1, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Forward([]engine.Part{{Seq: s, Extend: []tandem.Token{5}, Want: engine.WantTail}}, 1); err != nil {
			t.Fatal(err)
		}
	})
}
