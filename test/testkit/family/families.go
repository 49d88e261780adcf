package family

import (
	"cmp"
	"fmt"
	"slices"
)

// family says how the files of an architecture are laid out. A new one is a line here.
type family struct {
	arch  string
	build func(b *builder)
}

// families by name. Tensors and keys are those of published files.
var families = map[string]family{
	"llama":          {"llama", func(b *builder) { b.plain() }},
	"llama3":         {"llama", func(b *builder) { b.vector("rope_freqs.weight", b.RopeDim/2, 4, 1); b.plain() }},
	"qwen2":          {"qwen2", func(b *builder) { b.biases = true; b.plain() }},
	"gemma":          {"gemma", func(b *builder) { b.Tied = true; b.plain() }},
	"gemma2":         {"gemma2", gemma2},
	"qwen3":          {"qwen3", func(b *builder) { b.headNorms = true; b.plain() }},
	"gemma3":         {"gemma3", gemma3},
	"granite":        {"granite", func(b *builder) { b.granite(); b.plain() }},
	"granitemoe":     {"granitemoe", graniteMoE},
	"smollm3":        {"smollm3", func(b *builder) { b.plain() }},
	"mistral3":       {"mistral3", mistral3},
	"glm4":           {"glm4", func(b *builder) { b.biases, b.fusedFFN, b.postNorms = true, true, true; b.plain() }},
	"phi3-longrope":  {"phi3", func(b *builder) { b.phi3(32) }},
	"phi3-shortrope": {"phi3", func(b *builder) { b.phi3(512) }},
	"qwen3moe":       {"qwen3moe", func(b *builder) { b.headNorms, b.mixed = true, true; b.plain() }},
	"gpt-oss":        {"gpt-oss", gptOSS},
	"gpt-oss-mxfp4":  {"gpt-oss", func(b *builder) { b.experts4 = true; gptOSS(b) }},
	"deepseek2":      {"deepseek2", func(b *builder) { b.deepseek2(true) }},
	"deepseek2-kvb":  {"deepseek2", func(b *builder) { b.deepseek2(false) }},
	"qwen35":         {"qwen35", func(b *builder) { b.qwen35() }},
	"qwen35moe":      {"qwen35moe", func(b *builder) { b.mixed = true; b.qwen35() }},
	"gemma4":         {"gemma4", func(b *builder) { b.gemma4(false) }},
	"gemma4-moe":     {"gemma4", func(b *builder) { b.gemma4(true) }},
}

// assistants are what drafts beside a model of another family.
var assistants = map[string]family{"gemma4-assistant": {"gemma4-assistant", (*builder).assistant}}

func u(n int) uint32 { return uint32(n) }

func (b *builder) granite() {
	b.key("embedding_scale", float32(7))
	b.key("residual_scale", float32(0.3))
	b.key("attention.scale", float32(0.11))
	b.key("logit_scale", float32(5))
}

// graniteMoE says the width of an expert with the key of dense models.
func graniteMoE(b *builder) {
	b.mixed = true
	b.granite()
	b.plain()
	b.key("feed_forward_length", u(b.Width))
	b.m.DropKey("expert_feed_forward_length")
}

func gemma2(b *builder) {
	b.postNorms, b.Tied = true, true
	b.key("attention.sliding_window", u(b.Window))
	b.key("attn_logit_softcapping", float32(8))
	b.key("final_logit_softcapping", float32(12))
	b.plain()
}

func gemma3(b *builder) {
	b.headNorms, b.postNorms, b.Tied = true, true, true
	b.key("attention.sliding_window", u(b.Window))
	b.plain()
}

func mistral3(b *builder) {
	b.key("rope.scaling.type", "yarn")
	b.key("rope.scaling.factor", float32(8))
	b.key("rope.scaling.original_context_length", u(24))
	b.key("rope.scaling.yarn_log_multiplier", float32(1))
	b.key("attention.temperature_scale", float32(0.2))
	b.plain()
}

func (b *builder) phi3(original int) {
	b.key("rope.scaling.original_context_length", u(original))
	b.key("rope.scaling.attn_factor", float32(1.1))
	b.vector("rope_factors_long.weight", b.RopeDim/2, 3, 0.5)
	b.vector("rope_factors_short.weight", b.RopeDim/2, 1.5, 0.1)
	b.fusedQKV, b.fusedFFN = true, true
	b.plain()
}

func gptOSS(b *builder) {
	b.biases, b.outputBias, b.sinks, b.mixed, b.expertBiases = true, true, true, true, true
	b.ffnNorm = "post_attention_norm"
	b.key("attention.sliding_window", u(b.Window))
	b.key("rope.scaling.type", "yarn")
	b.key("rope.scaling.factor", float32(16))
	b.key("rope.scaling.original_context_length", u(96))
	b.plain()
}

// plain makes a model of layers with attention to keys and values, and a feed-forward block or experts.
func (b *builder) plain() {
	b.attentionKeys(b.HeadDim, b.KV)
	for i := range b.Layers {
		b.layer = i
		b.vector(b.at("attn_norm.weight"), b.Dim, 1, 0.2)
		b.attention(b.Heads, b.KV, b.HeadDim, b.HeadDim)
		b.vector(b.at(b.ffnNorm+".weight"), b.Dim, 1, 0.2)
		b.feedForward()
		if b.postNorms {
			b.vector(b.at("post_attention_norm.weight"), b.Dim, 1, 0.2)
			b.vector(b.at("post_ffw_norm.weight"), b.Dim, 1, 0.2)
		}
	}
}

func (b *builder) attentionKeys(headDim, kv int) {
	b.key("attention.head_count", u(b.Heads))
	b.key("attention.head_count_kv", u(kv))
	b.key("attention.key_length", u(headDim))
	b.key("attention.value_length", u(headDim))
	b.key("rope.dimension_count", u(b.RopeDim))
	b.key("rope.freq_base", float32(30000))
}

// attention makes the tensors of a layer that attends; rowsOfQuery is heads' size in attn_q.
func (b *builder) attention(heads, kv, headDim, rowsOfQuery int) {
	q, k := heads*rowsOfQuery, kv*headDim
	if b.fusedQKV {
		b.matrix(b.at("attn_qkv.weight"), q+2*k, b.Dim)
	} else {
		b.matrix(b.at("attn_q.weight"), q, b.Dim)
		b.matrix(b.at("attn_k.weight"), k, b.Dim)
		b.matrix(b.at("attn_v.weight"), k, b.Dim)
	}
	b.matrix(b.at("attn_output.weight"), b.Dim, heads*headDim)
	if b.biases {
		b.vector(b.at("attn_q.bias"), q, 0, 0.5)
		b.vector(b.at("attn_k.bias"), k, 0, 0.5)
		b.vector(b.at("attn_v.bias"), k, 0, 0.5)
	}
	if b.outputBias {
		b.vector(b.at("attn_output.bias"), b.Dim, 0, 0.5)
	}
	if b.headNorms {
		b.vector(b.at("attn_q_norm.weight"), headDim, 1, 0.2)
		b.vector(b.at("attn_k_norm.weight"), headDim, 1, 0.2)
	}
	if b.sinks {
		b.vector(b.at("attn_sinks.weight"), heads, 0, 1)
	}
}

// feedForward makes a layer's feed-forward block or experts.
func (b *builder) feedForward() {
	switch {
	case b.mixed:
		b.experts()
	case b.fusedFFN:
		b.matrix(b.at("ffn_up.weight"), 2*b.FFN, b.Dim)
		b.matrix(b.at("ffn_down.weight"), b.Dim, b.FFN)
	default:
		b.dense("", b.FFN)
	}
}

func (b *builder) dense(suffix string, width int) {
	b.matrix(b.at("ffn_gate"+suffix+".weight"), width, b.Dim)
	b.matrix(b.at("ffn_up"+suffix+".weight"), width, b.Dim)
	b.matrix(b.at("ffn_down"+suffix+".weight"), b.Dim, width)
}

func (b *builder) expertKeys() {
	b.key("expert_count", u(b.Experts))
	b.key("expert_used_count", u(b.Used))
	b.key("expert_feed_forward_length", u(b.Width))
}

func (b *builder) experts() {
	b.expertKeys()
	b.router(b.Experts, b.Dim)
	b.stack(b.at("ffn_gate_exps.weight"), b.Experts, b.Width, b.Dim)
	b.stack(b.at("ffn_up_exps.weight"), b.Experts, b.Width, b.Dim)
	b.stack(b.at("ffn_down_exps.weight"), b.Experts, b.Dim, b.Width)
	if b.expertBiases {
		b.vector(b.at("ffn_gate_inp.bias"), b.Experts, 0, 0.5)
		b.vector(b.at("ffn_gate_exps.bias"), b.Width, 0, 0.5, b.Experts)
		b.vector(b.at("ffn_up_exps.bias"), b.Width, 0, 0.5, b.Experts)
		b.vector(b.at("ffn_down_exps.bias"), b.Dim, 0, 0.5, b.Experts)
	}
}

// deepseek2 has latent attention, in the layout of current files or the older one, and experts beside a shared one from layer 1 on.
func (b *builder) deepseek2(absorbed bool) {
	latent, nope, value, rank := cmp.Or(b.Latent, 64), 32, 32, 48 // rows of 32: so that all can be quantised
	rope, shared := cmp.Or(b.Turned, 16), cmp.Or(b.Shared, 2)
	b.Layers = max(2, b.Layers)
	b.RopeDim = rope
	if absorbed {
		b.attentionKeys(latent+rope, 1)
		b.key("attention.value_length", u(latent))
		b.key("attention.key_length_mla", u(nope+rope))
		b.key("attention.value_length_mla", u(value))
	} else {
		b.attentionKeys(nope+rope, b.Heads)
		b.key("attention.value_length", u(value))
	}
	b.key("attention.kv_lora_rank", u(latent))
	b.key("attention.q_lora_rank", u(rank))
	b.key("leading_dense_block_count", u(1))
	b.key("expert_shared_count", u(shared))
	b.key("expert_weights_scale", float32(1.8))
	b.key("expert_weights_norm", true)
	b.key("expert_gating_func", u(2))
	b.key("rope.scaling.type", "yarn")
	b.key("rope.scaling.factor", float32(4))
	b.key("rope.scaling.original_context_length", u(64))
	b.key("rope.scaling.yarn_log_multiplier", float32(0.1))
	for i := range b.Layers {
		b.layer = i
		b.vector(b.at("attn_norm.weight"), b.Dim, 1, 0.2)
		b.matrix(b.at("attn_q_a.weight"), rank, b.Dim)
		b.vector(b.at("attn_q_a_norm.weight"), rank, 1, 0.2)
		b.matrix(b.at("attn_q_b.weight"), b.Heads*(nope+rope), rank)
		b.matrix(b.at("attn_kv_a_mqa.weight"), latent+rope, b.Dim)
		b.vector(b.at("attn_kv_a_norm.weight"), latent, 1, 0.2)
		if absorbed {
			b.stack(b.at("attn_k_b.weight"), b.Heads, latent, nope)
			b.stack(b.at("attn_v_b.weight"), b.Heads, value, latent)
		} else {
			b.matrix(b.at("attn_kv_b.weight"), b.Heads*(nope+value), latent)
		}
		b.matrix(b.at("attn_output.weight"), b.Dim, b.Heads*value)
		b.vector(b.at("ffn_norm.weight"), b.Dim, 1, 0.2)
		if i == 0 {
			b.dense("", b.FFN)
			continue
		}
		b.experts()
		b.vector(b.at("exp_probs_b.bias"), b.Experts, 0, 0.3)
		b.dense("_shexp", shared*b.Width)
	}
}

// qwen35 has gated delta net layers, and every third one attends.
func (b *builder) qwen35() {
	size, interval := cmp.Or(b.State, 32), cmp.Or(b.Interval, 3)
	keys, values := b.Groups*size, b.States*size
	b.attentionKeys(b.HeadDim, b.KV)
	b.RopeDim = min(8, b.HeadDim)
	b.key("rope.dimension_count", u(b.RopeDim))
	b.key("rope.dimension_sections", []int32{2, 1, 1, 0})
	b.key("full_attention_interval", u(interval))
	b.key("ssm.conv_kernel", u(4))
	b.key("ssm.inner_size", u(values))
	b.key("ssm.state_size", u(size))
	b.key("ssm.time_step_rank", u(b.States))
	b.key("ssm.group_count", u(b.Groups))
	b.headNorms = true
	if b.mixed {
		b.key("expert_shared_feed_forward_length", u(b.FFN))
	}
	for i := range b.Layers {
		b.layer = i
		b.vector(b.at("attn_norm.weight"), b.Dim, 1, 0.2)
		b.vector(b.at("post_attention_norm.weight"), b.Dim, 1, 0.2)
		if (i+1)%interval == 0 {
			b.attention(b.Heads, b.KV, b.HeadDim, 2*b.HeadDim)
		} else {
			b.matrix(b.at("attn_qkv.weight"), 2*keys+values, b.Dim)
			b.matrix(b.at("attn_gate.weight"), values, b.Dim)
			b.vector(b.at("ssm_conv1d.weight"), 4, 0, 0.5, 2*keys+values)
			b.vector(b.at("ssm_dt.bias"), b.States, 0, 0.5)
			b.vector(b.at("ssm_a"), b.States, -0.5, 0.1)
			b.matrix(b.at("ssm_beta.weight"), b.States, b.Dim)
			b.matrix(b.at("ssm_alpha.weight"), b.States, b.Dim)
			b.vector(b.at("ssm_norm.weight"), size, 1, 0.2)
			b.matrix(b.at("ssm_out.weight"), b.Dim, values)
		}
		b.feedForward()
		if b.mixed {
			b.vector(b.at("ffn_gate_inp_shexp.weight"), b.Dim, 0, 0.1)
			b.dense("_shexp", b.FFN)
		}
	}
}

// gemma4 has two kinds of layers that attend, with heads of their own sizes: dense with inputs for each layer, the last layers without keys
// and values; or with experts beside a dense block.
func (b *builder) gemma4(mixed bool) {
	b.Layers = max(3, b.Layers)
	far, shared, perLayer := 64, 0, 0
	b.HeadDim, b.RopeDim, b.Tied = 32, 64, true
	kv, widths := slices.Repeat([]uint32{u(b.KV)}, b.Layers), slices.Repeat([]uint32{u(b.FFN)}, b.Layers)
	local := make([]bool, b.Layers)
	for i := range local {
		if local[i] = i%3 != cmp.Or(b.FullAt, 1); mixed && !local[i] {
			kv[i] = 1
		}
	}
	if !mixed {
		shared, perLayer = cmp.Or(b.Reading, b.Layers-2), cmp.Or(b.LayerInput, 32)
		for i := b.Layers - shared; i < b.Layers; i++ {
			widths[i] += uint32(cmp.Or(b.Wider, 32))
		}
	}
	b.attentionKeys(far, b.KV)
	b.key("attention.head_count_kv", kv)
	b.key("feed_forward_length", widths)
	b.key("attention.key_length_swa", u(b.HeadDim))
	b.key("attention.value_length_swa", u(b.HeadDim))
	b.key("rope.dimension_count_swa", u(b.HeadDim))
	b.key("rope.freq_base_swa", float32(10000))
	b.key("attention.sliding_window", u(b.Window))
	b.key("attention.sliding_window_pattern", local)
	b.key("attention.shared_kv_layers", u(shared))
	b.key("embedding_length_per_layer_input", u(perLayer))
	b.key("final_logit_softcapping", float32(30))
	b.standing(far)
	if perLayer > 0 {
		b.matrix("per_layer_token_embd.weight", b.m.Vocab, b.Layers*perLayer)
		b.matrix("per_layer_model_proj.weight", b.Layers*perLayer, b.Dim)
		b.vector("per_layer_proj_norm.weight", perLayer, 1, 0.2)
	}
	if mixed {
		b.expertKeys()
	}
	for i := range b.Layers {
		b.layer = i
		size, k := far, int(kv[i])
		if local[i] {
			size = b.HeadDim
		}
		for _, name := range []string{"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"} {
			b.vector(b.at(name+".weight"), b.Dim, 1, 0.2)
		}
		b.matrix(b.at("attn_q.weight"), b.Heads*size, b.Dim)
		b.vector(b.at("attn_q_norm.weight"), size, 1, 0.2)
		b.matrix(b.at("attn_output.weight"), b.Dim, b.Heads*size)
		if i < b.Layers-shared {
			b.matrix(b.at("attn_k.weight"), k*size, b.Dim)
			b.vector(b.at("attn_k_norm.weight"), size, 1, 0.2)
			if !mixed || local[i] {
				b.matrix(b.at("attn_v.weight"), k*size, b.Dim)
			}
		}
		b.FFN = int(widths[i])
		b.dense("", b.FFN)
		b.vector(b.at("layer_output_scale.weight"), 1, 0.7, 0)
		if perLayer > 0 {
			b.matrix(b.at("inp_gate.weight"), perLayer, b.Dim)
			b.matrix(b.at("proj.weight"), b.Dim, perLayer)
			b.vector(b.at("post_norm.weight"), b.Dim, 1, 0.2)
		}
		if !mixed {
			continue
		}
		b.router(b.Experts, b.Dim)
		b.vector(b.at("ffn_gate_inp.scale"), b.Dim, 1, 0.2)
		for _, name := range []string{"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"} {
			b.vector(b.at(name+".weight"), b.Dim, 1, 0.2)
		}
		b.stack(b.at("ffn_gate_up_exps.weight"), b.Experts, 2*b.Width, b.Dim)
		b.stack(b.at("ffn_down_exps.weight"), b.Experts, b.Dim, b.Width)
		b.vector(b.at("ffn_down_exps.scale"), b.Experts, 1, 0.1)
	}
}

// standing makes the factors of RoPE with which only a quarter of the pairs of a head turns.
func (b *builder) standing(head int) {
	turns := b.vector("rope_freqs.weight", head/2, 1, 0)
	for i := head / 8; i < head/2; i++ {
		turns.set(i, 1e30)
	}
}

// assistant drafts for a Gemma 4 of twice its width, whose last layers of each kind have keys and values of one head.
func (b *builder) assistant() {
	const far, near = 64, 32
	b.Tied = true
	local, kv := make([]bool, b.Layers), make([]uint32, b.Layers)
	for i := range local {
		local[i], kv[i] = i < b.Layers-1, 1
	}
	b.key("embedding_length_out", u(2*b.Dim))
	b.attentionKeys(far, 1)
	b.key("attention.head_count_kv", kv)
	b.key("rope.dimension_count", u(far))
	b.key("attention.key_length_swa", u(near))
	b.key("attention.value_length_swa", u(near))
	b.key("rope.dimension_count_swa", u(near))
	b.key("rope.freq_base_swa", float32(10000))
	b.key("attention.sliding_window", u(b.Window))
	b.key("attention.sliding_window_pattern", local)
	b.standing(far)
	b.matrix("nextn.pre_projection.weight", b.Dim, 4*b.Dim)
	b.matrix("nextn.post_projection.weight", 2*b.Dim, b.Dim)
	for i := range b.Layers {
		b.layer = i
		size := far
		if local[i] {
			size = near
		}
		for _, name := range []string{"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"} {
			b.vector(b.at(name+".weight"), b.Dim, 1, 0.2)
		}
		b.matrix(b.at("attn_q.weight"), b.Heads*size, b.Dim)
		b.vector(b.at("attn_q_norm.weight"), size, 1, 0.2)
		b.matrix(b.at("attn_output.weight"), b.Dim, b.Heads*size)
		b.dense("", b.FFN)
		b.vector(b.at("layer_output_scale.weight"), 1, 0.7, 0)
	}
}

func (b *builder) at(name string) string { return fmt.Sprintf("blk.%d.%s", b.layer, name) }
