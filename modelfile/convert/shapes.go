package convert

import (
	"math"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// model is the shape of a published model. A width that an architecture does not have is 0.
type model struct {
	name, arch                      string
	layers, dim, heads, kv, head    int
	ffn, vocab, context             int
	eps, base                       float64
	tied                            bool   // the embedding is the output matrix too
	typ                             string // in which it was published, if that is a format of its own
	experts, used, expertFFN, local int    // local: the window
	build                           func(*random)
}

// models lists the shapes, after the config.json of the repository that each comment names, and the numbers that the converters of
// llama.cpp derive from it. Tensors have the names and shapes that test/testkit/family has.
var models = []model{
	// Qwen/Qwen3-30B-A3B
	{name: "qwen3-30b-a3b", arch: "qwen3moe", layers: 48, dim: 2048, heads: 32, kv: 4, head: 128, ffn: 6144, vocab: 151936, context: 40960,
		eps: 1e-6, base: 1e6, experts: 128, used: 8, expertFFN: 768, build: qwen3moe},
	// openai/gpt-oss-20b
	{name: "gpt-oss-20b", arch: "gpt-oss", layers: 24, dim: 2880, heads: 64, kv: 8, head: 64, ffn: 2880, vocab: 201088, context: 131072,
		eps: 1e-5, base: 150000, experts: 32, used: 4, expertFFN: 2880, local: 128, typ: "mxfp4", build: gptOSS},
	// ibm-granite/granite-4.0-micro
	{name: "granite-4-micro", arch: "granite", layers: 40, dim: 2560, heads: 40, kv: 8, head: 64, ffn: 8192, vocab: 100352, context: 131072,
		eps: 1e-5, base: 1e7, tied: true, build: func(b *random) { granite(b, 10) }},
	// ibm-granite/granite-3.1-3b-a800m-instruct
	{name: "granite-3b-a800m", arch: "granitemoe", layers: 32, dim: 1536, heads: 24, kv: 8, head: 64, ffn: 512, vocab: 49155,
		context: 131072, eps: 1e-6, base: 5e6, tied: true, experts: 40, used: 8, expertFFN: 512, build: func(b *random) { granite(b, 6) }},
	// HuggingFaceTB/SmolLM3-3B
	{name: "smollm3-3b", arch: "smollm3", layers: 36, dim: 2048, heads: 16, kv: 4, head: 128, ffn: 11008, vocab: 128256, context: 65536,
		eps: 1e-6, base: 5e6, tied: true, build: smollm3},
	// mistralai/Ministral-3-8B-Instruct-2512
	{name: "ministral-3-8b", arch: "mistral3", layers: 34, dim: 4096, heads: 32, kv: 8, head: 128, ffn: 14336, vocab: 131072,
		context: 262144, eps: 1e-5, base: 1e6, build: mistral3},
	// Qwen/Qwen2.5-1.5B-Instruct and Qwen2.5-Coder-1.5B-Instruct
	{name: "qwen2.5-1.5b", arch: "qwen2", layers: 28, dim: 1536, heads: 12, kv: 2, head: 128, ffn: 8960, vocab: 151936, context: 32768,
		eps: 1e-6, base: 1e6, tied: true, build: qwen2},
	// Qwen/Qwen2.5-7B-Instruct
	{name: "qwen2.5-7b", arch: "qwen2", layers: 28, dim: 3584, heads: 28, kv: 4, head: 128, ffn: 18944, vocab: 152064, context: 32768,
		eps: 1e-6, base: 1e6, build: qwen2},
	// meta-llama/Llama-3.1-8B-Instruct
	{name: "llama-3.1-8b", arch: "llama", layers: 32, dim: 4096, heads: 32, kv: 8, head: 128, ffn: 14336, vocab: 128256,
		context: 131072, eps: 1e-5, base: 500000, build: llama3},
	// Qwen/Qwen3-8B
	{name: "qwen3-8b", arch: "qwen3", layers: 36, dim: 4096, heads: 32, kv: 8, head: 128, ffn: 12288, vocab: 151936, context: 40960,
		eps: 1e-6, base: 1e6, build: qwen3},
	// zai-org/GLM-4-9B-0414
	{name: "glm-4-9b", arch: "glm4", layers: 40, dim: 4096, heads: 32, kv: 2, head: 128, ffn: 13696, vocab: 151552, context: 32768,
		eps: 1e-5, base: 1e4, build: glm4},
	// microsoft/Phi-4-mini-instruct
	{name: "phi-4-mini", arch: "phi3", layers: 32, dim: 3072, heads: 24, kv: 8, head: 128, ffn: 8192, vocab: 200064, context: 131072,
		eps: 1e-5, base: 1e4, tied: true, build: phi3},
	// zai-org/GLM-4.7-Flash
	{name: "glm-4.7-flash", arch: "deepseek2", layers: 47, dim: 2048, heads: 20, kv: 1, ffn: 10240, vocab: 154880, context: 202752,
		eps: 1e-5, base: 1e6, experts: 64, used: 4, expertFFN: 1536, build: deepseek2},
	// Qwen/Qwen3.5-4B
	{name: "qwen35-4b", arch: "qwen35", layers: 32, dim: 2560, heads: 16, kv: 4, head: 256, ffn: 9216, vocab: 248320, context: 262144,
		eps: 1e-6, base: 1e7, tied: true, build: qwen35},
	// Qwen/Qwen3.5-35B-A3B
	{name: "qwen35-35b-a3b", arch: "qwen35moe", layers: 40, dim: 2048, heads: 16, kv: 2, head: 256, ffn: 512, vocab: 248320,
		context: 262144, eps: 1e-6, base: 1e7, experts: 256, used: 8, expertFFN: 512, build: qwen35},
	// google/gemma-4-E4B-it
	{name: "gemma4-e4b", arch: "gemma4", layers: 42, dim: 2560, heads: 8, kv: 2, head: 512, ffn: 10240, vocab: 262144, context: 131072,
		eps: 1e-6, base: 1e6, tied: true, local: 512, build: func(b *random) { gemma4(b, 256, 18, 2) }},
	// google/gemma-4-26B-A4B-it
	{name: "gemma4-26b-a4b", arch: "gemma4", layers: 30, dim: 2816, heads: 16, kv: 8, head: 512, ffn: 2112, vocab: 262144,
		context: 262144, eps: 1e-6, base: 1e6, tied: true, local: 1024, experts: 128, used: 8, expertFFN: 704,
		build: func(b *random) { gemma4(b, 0, 0, 2) }},
}

// headSize writes the keys of the size of a head and of how much of it turns.
func (b *random) headSize(turned int) {
	b.set("attention.key_length", b.head)
	b.set("attention.value_length", b.head)
	b.set("rope.dimension_count", turned)
}

// attention adds the norm and the matrices of attention.
func (b *random) attention(i int) {
	b.vec(at(i, "attn_norm.weight"), b.dim, nearOne)
	b.mat(at(i, "attn_q.weight"), b.heads*b.head, b.dim)
	b.mat(at(i, "attn_k.weight"), b.kv*b.head, b.dim)
	b.mat(at(i, "attn_v.weight"), b.kv*b.head, b.dim)
	b.mat(at(i, "attn_output.weight"), b.dim, b.heads*b.head)
}

func (b *random) biases(i int) {
	b.vec(at(i, "attn_q.bias"), b.heads*b.head, small)
	b.vec(at(i, "attn_k.bias"), b.kv*b.head, small)
	b.vec(at(i, "attn_v.bias"), b.kv*b.head, small)
}

func (b *random) headNorms(i, head int) {
	b.vec(at(i, "attn_q_norm.weight"), head, nearOne)
	b.vec(at(i, "attn_k_norm.weight"), head, nearOne)
}

// dense adds the norm and the matrices of a feed-forward block.
func (b *random) dense(i, ffn int) {
	b.vec(at(i, "ffn_norm.weight"), b.dim, nearOne)
	b.mat(at(i, "ffn_gate.weight"), ffn, b.dim)
	b.mat(at(i, "ffn_up.weight"), ffn, b.dim)
	b.mat(at(i, "ffn_down.weight"), b.dim, ffn)
}

func (b *random) expertKeys() {
	b.set("expert_count", b.experts)
	b.set("expert_used_count", b.used)
	if b.arch != "granitemoe" { // its feed_forward_length is an expert's
		b.set("expert_feed_forward_length", b.expertFFN)
	}
}

// mixture adds the router and the experts of a layer.
func (b *random) mixture(i int) {
	b.mat(at(i, "ffn_gate_inp.weight"), b.experts, b.dim)
	b.mat(at(i, "ffn_gate_exps.weight"), b.expertFFN, b.dim, b.experts)
	b.mat(at(i, "ffn_up_exps.weight"), b.expertFFN, b.dim, b.experts)
	b.mat(at(i, "ffn_down_exps.weight"), b.dim, b.expertFFN, b.experts)
}

func qwen3moe(b *random) {
	b.headSize(b.head)
	b.expertKeys()
	for i := range b.layers {
		b.attention(i)
		b.headNorms(i, b.head)
		b.vec(at(i, "ffn_norm.weight"), b.dim, nearOne)
		b.mixture(i)
	}
}

func gptOSS(b *random) {
	b.headSize(b.head)
	b.expertKeys()
	b.set("attention.sliding_window", b.local)
	b.set("rope.scaling.type", "yarn")
	b.set("rope.scaling.factor", 32.0)
	b.set("rope.scaling.original_context_length", 4096)
	for i := range b.layers {
		b.attention(i)
		b.biases(i)
		b.vec(at(i, "attn_output.bias"), b.dim, small)
		b.vec(at(i, "attn_sinks.weight"), b.heads, plain)
		b.vec(at(i, "post_attention_norm.weight"), b.dim, nearOne)
		b.mixture(i)
		b.vec(at(i, "ffn_gate_inp.bias"), b.experts, small)
		b.vec(at(i, "ffn_gate_exps.bias"), b.expertFFN, small, b.experts)
		b.vec(at(i, "ffn_up_exps.bias"), b.expertFFN, small, b.experts)
		b.vec(at(i, "ffn_down_exps.bias"), b.dim, small, b.experts)
	}
}

func granite(b *random, logits float64) {
	b.set("rope.dimension_count", b.head)
	b.set("embedding_scale", 12.0)
	b.set("residual_scale", 0.22)
	b.set("attention.scale", 0.015625)
	b.set("logit_scale", logits)
	if b.experts > 0 {
		b.expertKeys()
	}
	for i := range b.layers {
		if b.attention(i); b.experts == 0 {
			b.dense(i, b.ffn)
			continue
		}
		b.vec(at(i, "ffn_norm.weight"), b.dim, nearOne)
		b.mixture(i)
	}
}

func smollm3(b *random) {
	b.set("rope.dimension_count", b.head)
	for i := range b.layers {
		b.attention(i)
		b.dense(i, b.ffn)
	}
}

func qwen2(b *random) {
	b.set("rope.dimension_count", b.head)
	for i := range b.layers {
		b.attention(i)
		b.biases(i)
		b.dense(i, b.ffn)
	}
}

// llama3 is Llama 3.1, whose angles turn up to 8 times more slowly than those of the base.
func llama3(b *random) {
	b.set("rope.dimension_count", b.head)
	b.vec("rope_freqs.weight", b.head/2, func(x float32) float32 { return 4.5 + 3.5*x })
	for i := range b.layers {
		b.attention(i)
		b.dense(i, b.ffn)
	}
}

func qwen3(b *random) {
	b.headSize(b.head)
	for i := range b.layers {
		b.attention(i)
		b.headNorms(i, b.head)
		b.dense(i, b.ffn)
	}
}

func mistral3(b *random) {
	b.headSize(b.head)
	b.set("rope.scaling.type", "yarn")
	b.set("rope.scaling.factor", 16.0)
	b.set("rope.scaling.original_context_length", 16384)
	b.set("rope.scaling.yarn_beta_fast", 32.0)
	b.set("rope.scaling.yarn_beta_slow", 1.0)
	b.set("rope.scaling.yarn_log_multiplier", 1.0)
	b.set("attention.temperature_scale", 0.1)
	for i := range b.layers {
		b.attention(i)
		b.dense(i, b.ffn)
	}
}

func glm4(b *random) {
	b.set("rope.dimension_count", b.head/2)
	for i := range b.layers {
		b.attention(i)
		b.biases(i)
		b.vec(at(i, "post_attention_norm.weight"), b.dim, nearOne)
		b.vec(at(i, "ffn_norm.weight"), b.dim, nearOne)
		b.mat(at(i, "ffn_up.weight"), 2*b.ffn, b.dim)
		b.mat(at(i, "ffn_down.weight"), b.dim, b.ffn)
		b.vec(at(i, "post_ffw_norm.weight"), b.dim, nearOne)
	}
}

func phi3(b *random) {
	turned := b.head * 3 / 4
	b.set("rope.dimension_count", turned)
	b.set("rope.scaling.original_context_length", 4096)
	b.set("rope.scaling.attn_factor", math.Sqrt(1+math.Log(32)/math.Log(4096)))
	b.set("attention.sliding_window", 262144)
	b.vec("rope_factors_long.weight", turned/2, func(x float32) float32 { return 16.5 + 15.5*x })
	b.vec("rope_factors_short.weight", turned/2, one)
	for i := range b.layers {
		b.vec(at(i, "attn_norm.weight"), b.dim, nearOne)
		b.mat(at(i, "attn_qkv.weight"), (b.heads+2*b.kv)*b.head, b.dim)
		b.mat(at(i, "attn_output.weight"), b.dim, b.heads*b.head)
		b.vec(at(i, "ffn_norm.weight"), b.dim, nearOne)
		b.mat(at(i, "ffn_up.weight"), 2*b.ffn, b.dim)
		b.mat(at(i, "ffn_down.weight"), b.dim, b.ffn)
	}
}

func deepseek2(b *random) {
	const queries, latent, nope, turned, value = 768, 512, 192, 64, 256
	b.set("rope.dimension_count", turned)
	b.set("attention.q_lora_rank", queries)
	b.set("attention.kv_lora_rank", latent)
	b.set("attention.key_length", latent+turned)
	b.set("attention.value_length", latent)
	b.set("attention.key_length_mla", nope+turned)
	b.set("attention.value_length_mla", value)
	b.set("leading_dense_block_count", 1)
	b.expertKeys()
	b.set("expert_shared_count", 1)
	b.set("expert_weights_scale", 1.8)
	b.set("expert_weights_norm", true)
	b.set("expert_gating_func", 2)
	for i := range b.layers {
		b.vec(at(i, "attn_norm.weight"), b.dim, nearOne)
		b.mat(at(i, "attn_q_a.weight"), queries, b.dim)
		b.vec(at(i, "attn_q_a_norm.weight"), queries, nearOne)
		b.mat(at(i, "attn_q_b.weight"), b.heads*(nope+turned), queries)
		b.mat(at(i, "attn_kv_a_mqa.weight"), latent+turned, b.dim)
		b.vec(at(i, "attn_kv_a_norm.weight"), latent, nearOne)
		b.mat(at(i, "attn_k_b.weight"), latent, nope, b.heads)
		b.mat(at(i, "attn_v_b.weight"), value, latent, b.heads)
		b.mat(at(i, "attn_output.weight"), b.dim, b.heads*value)
		if i == 0 {
			b.dense(i, b.ffn)
			continue
		}
		b.vec(at(i, "ffn_norm.weight"), b.dim, nearOne)
		b.mixture(i)
		b.vec(at(i, "exp_probs_b.bias"), b.experts, small)
		b.mat(at(i, "ffn_gate_shexp.weight"), b.expertFFN, b.dim)
		b.mat(at(i, "ffn_up_shexp.weight"), b.expertFFN, b.dim)
		b.mat(at(i, "ffn_down_shexp.weight"), b.dim, b.expertFFN)
	}
}

// qwen35 is Qwen 3.5, dense or with experts and a shared one of an expert's width.
func qwen35(b *random) {
	const size, keys, values, taps, interval = 128, 16, 32, 4, 4
	b.headSize(b.head / 4)
	b.set("rope.dimension_sections", []int32{11, 11, 10, 0})
	b.set("full_attention_interval", interval)
	b.set("ssm.conv_kernel", taps)
	b.set("ssm.inner_size", values*size)
	b.set("ssm.state_size", size)
	b.set("ssm.time_step_rank", values)
	b.set("ssm.group_count", keys)
	if b.experts > 0 {
		b.expertKeys()
		b.set("expert_shared_feed_forward_length", b.expertFFN)
	}
	for i := range b.layers {
		b.vec(at(i, "attn_norm.weight"), b.dim, nearOne)
		if (i+1)%interval == 0 {
			b.mat(at(i, "attn_q.weight"), 2*b.heads*b.head, b.dim) // and gates
			b.mat(at(i, "attn_k.weight"), b.kv*b.head, b.dim)
			b.mat(at(i, "attn_v.weight"), b.kv*b.head, b.dim)
			b.mat(at(i, "attn_output.weight"), b.dim, b.heads*b.head)
			b.headNorms(i, b.head)
		} else {
			width := (2*keys + values) * size
			b.mat(at(i, "attn_qkv.weight"), width, b.dim)
			b.mat(at(i, "attn_gate.weight"), values*size, b.dim)
			b.typed(at(i, "ssm_conv1d.weight"), gguf.F32, []int{taps, width}, taps)
			b.vec(at(i, "ssm_dt.bias"), values, plain)
			b.vec(at(i, "ssm_a"), values, func(x float32) float32 { return -0.5 + 0.45*x }) // states that last some tokens, or many
			b.mat(at(i, "ssm_beta.weight"), values, b.dim)
			b.mat(at(i, "ssm_alpha.weight"), values, b.dim)
			b.vec(at(i, "ssm_norm.weight"), size, nearOne)
			b.mat(at(i, "ssm_out.weight"), b.dim, values*size)
		}
		b.vec(at(i, "post_attention_norm.weight"), b.dim, nearOne)
		if b.experts == 0 {
			b.mat(at(i, "ffn_gate.weight"), b.ffn, b.dim)
			b.mat(at(i, "ffn_up.weight"), b.ffn, b.dim)
			b.mat(at(i, "ffn_down.weight"), b.dim, b.ffn)
			continue
		}
		b.mixture(i)
		b.vec(at(i, "ffn_gate_inp_shexp.weight"), b.dim, small)
		b.mat(at(i, "ffn_gate_shexp.weight"), b.expertFFN, b.dim)
		b.mat(at(i, "ffn_up_shexp.weight"), b.expertFFN, b.dim)
		b.mat(at(i, "ffn_down_shexp.weight"), b.dim, b.expertFFN)
	}
}

// gemma4 is Gemma 4: perLayer is the width of the inputs of each layer, shared the number of layers that read another's keys and values,
// fullKV the key-value heads of the layers without a window.
func gemma4(b *random, perLayer, shared, fullKV int) {
	const window, period = 256, 6 // head size of layers with a window; the last of so many layers has none
	if b.layers != b.all {        // layers of both kinds come before those that read them
		shared = max(0, min(shared*b.layers/b.all, b.layers-period))
	}
	b.headSize(b.head)
	b.set("attention.key_length_swa", window)
	b.set("attention.value_length_swa", window)
	b.set("rope.dimension_count_swa", window)
	b.set("rope.freq_base_swa", 10000.0)
	b.set("attention.sliding_window", b.local)
	b.set("attention.shared_kv_layers", shared)
	b.set("embedding_length_per_layer_input", perLayer)
	b.set("final_logit_softcapping", 30.0)
	pattern, heads := make([]bool, b.layers), make([]int32, b.layers)
	for i := range pattern {
		pattern[i], heads[i] = (i+1)%period != 0, int32(b.kv)
		if !pattern[i] {
			heads[i] = int32(fullKV)
		}
	}
	b.set("attention.sliding_window_pattern", pattern)
	if fullKV != b.kv {
		b.set("attention.head_count_kv", heads)
	}
	b.tensors = append(b.tensors, tensor{name: "rope_freqs.weight", typ: gguf.F32, shape: []int{b.head / 2},
		fill: func(dst []float32, _ *[]byte, _ int) error { // a quarter of the pairs turns
			for i := range dst {
				if dst[i] = 1; i >= len(dst)/4 {
					dst[i] = 1e30
				}
			}
			return nil
		}})
	if perLayer > 0 {
		b.mat("per_layer_token_embd.weight", b.vocab, perLayer*b.layers)
		b.mat("per_layer_model_proj.weight", perLayer*b.layers, b.dim)
		b.vec("per_layer_proj_norm.weight", perLayer, nearOne)
	}
	if b.experts > 0 {
		b.expertKeys()
	}
	for i := range b.layers {
		head, own := b.head, i < b.layers-shared
		if pattern[i] {
			head = window
		}
		b.vec(at(i, "attn_norm.weight"), b.dim, nearOne)
		b.mat(at(i, "attn_q.weight"), b.heads*head, b.dim)
		b.vec(at(i, "attn_q_norm.weight"), head, nearOne)
		b.mat(at(i, "attn_output.weight"), b.dim, b.heads*head)
		b.vec(at(i, "post_attention_norm.weight"), b.dim, nearOne)
		if own {
			b.mat(at(i, "attn_k.weight"), int(heads[i])*head, b.dim)
			b.vec(at(i, "attn_k_norm.weight"), head, nearOne)
		}
		if own && (pattern[i] || b.experts == 0) { // with experts, values of the others are keys
			b.mat(at(i, "attn_v.weight"), int(heads[i])*head, b.dim)
		}
		b.dense(i, b.ffn)
		b.vec(at(i, "post_ffw_norm.weight"), b.dim, nearOne)
		b.vec(at(i, "layer_output_scale.weight"), 1, nearOne)
		if perLayer > 0 {
			b.mat(at(i, "inp_gate.weight"), perLayer, b.dim)
			b.mat(at(i, "proj.weight"), b.dim, perLayer)
			b.vec(at(i, "post_norm.weight"), b.dim, nearOne)
		}
		if b.experts > 0 {
			b.mat(at(i, "ffn_gate_inp.weight"), b.experts, b.dim)
			b.vec(at(i, "ffn_gate_inp.scale"), b.dim, nearOne)
			b.vec(at(i, "pre_ffw_norm_2.weight"), b.dim, nearOne)
			b.vec(at(i, "post_ffw_norm_1.weight"), b.dim, nearOne)
			b.vec(at(i, "post_ffw_norm_2.weight"), b.dim, nearOne)
			b.mat(at(i, "ffn_gate_up_exps.weight"), 2*b.expertFFN, b.dim, b.experts)
			b.mat(at(i, "ffn_down_exps.weight"), b.dim, b.expertFFN, b.experts)
			b.vec(at(i, "ffn_down_exps.scale"), b.experts, nearOne)
		}
	}
}
