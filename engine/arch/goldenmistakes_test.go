package arch_test

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// turnedBut makes a pass in which of every so many layers the last has no RoPE; of 0 all have it.
func turnedBut(every int) func(*blocks.Config) {
	return func(c *blocks.Config) {
		for i := range c.Shapes {
			c.Shapes[i].Unturned = every > 0 && (i+1)%every == 0
		}
	}
}

func base(b float32) enginetest.Mistake {
	return enginetest.Mistake{Name: "another base of RoPE", File: enginetest.Key("rope.freq_base", b)}
}

// mistakes of the passes of each golden model.
var mistakes = map[string][]enginetest.Mistake{
	"llama3": {enginetest.OtherPairs, base(10000), {Name: "no factors of RoPE", File: enginetest.LeftOut("rope_freqs.weight")}},
	"qwen2": {enginetest.OtherPairs, base(10000), {Name: "no bias of values", File: enginetest.Zeroed("attn_v.bias")},
		{Name: "no bias of keys and queries", File: enginetest.Zeroed("attn_k.bias", "attn_q.bias")}},
	"gemma": {enginetest.OtherPairs, enginetest.OtherCurve, {Name: "embeddings not scaled",
		Config: func(c *blocks.Config) { c.EmbedScale = 1 }}},
	"gemma2": {enginetest.OtherPairs, enginetest.OtherCurve, enginetest.NoPostNorms, {Name: "no window",
		File: enginetest.Key("attention.sliding_window", uint32(0))},
		{Name: "a window one longer", File: enginetest.Key("attention.sliding_window", uint32(17))},
		{Name: "windows in the other layers", File: enginetest.Key("attention.sliding_window_pattern", []bool{false, true, false, true,
			false, true})},
		{Name: "scores not capped", File: enginetest.Key("attn_logit_softcapping", float32(0))},
		{Name: "logits not capped", File: enginetest.Key("final_logit_softcapping", float32(0))}},
	"granite": {enginetest.OtherPairs, {Name: "embeddings not scaled", File: enginetest.Key("embedding_scale", float32(1))},
		{Name: "outputs of blocks not scaled", File: enginetest.Key("residual_scale", float32(1))},
		{Name: "the usual scale of scores", File: enginetest.Key("attention.scale", float32(0.1767767))},
		{Name: "logits not divided", File: enginetest.Key("logit_scale", float32(1))}},
	"granitemoe": {enginetest.OneExpert, enginetest.Shares, {Name: "outputs of blocks not scaled", File: enginetest.Key("residual_scale",
		float32(1))}},
	"smollm3": {enginetest.OtherPairs, {Name: "RoPE in every layer", Config: turnedBut(0)},
		{Name: "RoPE in every third layer not", Config: turnedBut(3)}},
	"mistral3": {enginetest.OtherPairs, enginetest.PlainRoPE, {Name: "queries not scaled",
		File: enginetest.Key("attention.temperature_scale", float32(2e-6))},
		{Name: "RoPE's magnitude", File: enginetest.Key("rope.scaling.yarn_log_multiplier", float32(2e-6))}},
	"glm4": {enginetest.OtherPairs, enginetest.NoPostNorms, {Name: "RoPE over the whole head", File: enginetest.Key("rope.dimension_count",
		uint32(32))},
		{Name: "gate for up", File: enginetest.Swapped("ffn_up.weight")}, {Name: "no bias of values",
			File: enginetest.Zeroed("attn_v.bias")},
		{Name: "no bias of keys and queries", File: enginetest.Zeroed("attn_k.bias", "attn_q.bias")}},
	"phi3-longrope": {enginetest.OtherPairs, {Name: "the other table", File: enginetest.Key("rope.scaling.original_context_length",
		uint32(4096))},
		{Name: "RoPE's magnitude", File: enginetest.Key("rope.scaling.attn_factor", float32(1))},
		{Name: "gate for up", File: enginetest.Swapped("ffn_up.weight")}},
	"phi3-shortrope": {enginetest.OtherPairs, {Name: "the other table", File: enginetest.Key("rope.scaling.original_context_length",
		uint32(32))},
		{Name: "RoPE over the whole head", File: func(m *family.Model) {
			m.Set("rope.dimension_count", uint32(32))
			m.Drop("rope_factors_long.weight")
			m.Drop("rope_factors_short.weight")
		}}},
	"qwen3moe": {enginetest.OtherPairs, enginetest.OneExpert, enginetest.Shares, enginetest.HeadNorms, base(10000)},
	"gpt-oss": append(ofGPTOSS, enginetest.Mistake{Name: "no bias behind experts", File: enginetest.Zeroed("ffn_down_exps.bias")},
		enginetest.Mistake{Name: "no bias of the router", File: enginetest.Zeroed("ffn_gate_inp.bias")}),
	"gpt-oss-mxfp4": ofGPTOSS,
	"deepseek2":     ofDeepSeek, "deepseek2-kvb": ofDeepSeek,
	"qwen35": ofQwen35,
	"qwen35moe": append(ofQwen35, enginetest.OneExpert, enginetest.Shares,
		enginetest.Mistake{Name: "shared expert not gated",
			Layer: func(l []blocks.Part) { l[1].(*blocks.SharingMixture).Shared.Weigh = nil }}),
	"gemma4": append(ofGemma4, enginetest.Mistake{Name: "no input of layers", File: enginetest.Zeroed("proj.weight")},
		enginetest.Mistake{Name: "values not normed", Layer: valuesNotNormed}),
	"gemma4-moe": append(ofGemma4, enginetest.OneExpert, enginetest.Mistake{Name: "experts' outputs not scaled", File: enginetest.Filled(1,
		"ffn_down_exps.scale")},
		enginetest.Mistake{Name: "the router's input not scaled", File: enginetest.Filled(1, "ffn_gate_inp.scale")},
		enginetest.Mistake{Name: "gate for up", File: enginetest.Swapped("ffn_gate_up_exps.weight")}),
}

// valuesNotNormed leaves RoPE to be the last that is done with keys and values.
func valuesNotNormed(l []blocks.Part) {
	if a := l[0].(*blocks.Attention); len(a.Own.Turns) > 0 {
		a.Own.Turns = a.Own.Turns[:1]
	}
}

var ofGPTOSS = []enginetest.Mistake{enginetest.OtherPairs, enginetest.OneExpert, base(10000), {Name: "no sinks",
	File: enginetest.Filled(-1000, "attn_sinks.weight")},
	{Name: "windows in the other layers", File: enginetest.Key("attention.sliding_window_pattern", []bool{false, true, false, true})},
	{Name: "a window one longer", File: enginetest.Key("attention.sliding_window", uint32(9))},
	{Name: "a gate that is not clamped", Config: func(c *blocks.Config) { c.Curve = kernels.SiLU }},
	{Name: "RoPE's magnitude", File: enginetest.Key("rope.scaling.type", "linear")}}

var ofDeepSeek = []enginetest.Mistake{enginetest.OtherPairs, enginetest.PlainRoPE, enginetest.OneExpert, enginetest.Shares,
	{Name: "the usual scale of scores", File: enginetest.Key("rope.scaling.yarn_log_multiplier", float32(2e-6))},
	{Name: "experts chosen without bias", File: enginetest.Zeroed("exp_probs_b.bias")},
	{Name: "experts' outputs not scaled", File: enginetest.Key("expert_weights_scale", float32(1))},
	{Name: "no shared expert", File: enginetest.Zeroed("ffn_down_shexp.weight")},
	{Name: "softmax instead of sigmoid", File: enginetest.Key("expert_gating_func", uint32(1))},
	{Name: "the latent vector's norm", File: enginetest.Filled(1, "attn_kv_a_norm.weight")}}

var ofQwen35 = []enginetest.Mistake{enginetest.OtherPairs, enginetest.HeadNorms, base(10000),
	{Name: "RoPE over the whole head", File: enginetest.Key("rope.dimension_count", uint32(32))},
	{Name: "states that do not fade", File: enginetest.Filled(0, "ssm_a")}, {Name: "no bias of time steps", File: enginetest.Filled(0,
		"ssm_dt.bias")},
	{Name: "states not normed", File: enginetest.Filled(1, "ssm_norm.weight")},
	{Name: "a convolution without history", File: enginetest.EachOf([]string{"ssm_conv1d.weight"}, func(_ *family.Model, x *family.Tensor) {
		for i := range len(x.Data) / 16 {
			clear(x.Data[16*i:][:12])
		}
	})},
	{Name: "gates of the states in another order", File: enginetest.Swapped("attn_gate.weight")}}

var ofGemma4 = []enginetest.Mistake{enginetest.OtherPairs, enginetest.OtherCurve, enginetest.HeadNorms,
	{Name: "scores scaled", Config: enginetest.UsualScale},
	{Name: "outputs of layers not scaled", File: enginetest.Filled(1, "layer_output_scale.weight")},
	{Name: "a window one longer", File: enginetest.Key("attention.sliding_window", uint32(9))},
	{Name: "all pairs of full layers turn", File: enginetest.Filled(1, "rope_freqs.weight")},
	{Name: "one base of RoPE", File: enginetest.Key("rope.freq_base_swa", float32(1e6))},
	{Name: "logits not capped", File: enginetest.Key("final_logit_softcapping", float32(0))},
	{Name: "embeddings not scaled", Config: func(c *blocks.Config) { c.EmbedScale = 1 }}}

// TestGoldenMistakes: whatever the passes of a model get wrong, its golden figures show it, well beyond the tolerance.
func TestGoldenMistakes(t *testing.T) {
	for _, name := range family.Goldens() {
		if name == enginetest.AssistantFile {
			continue
		}
		if _, compared := golden2026[name]; !compared && !slices.Contains(mixtures, name) || len(mistakes[name]) == 0 {
			t.Errorf("%s: no test compares it with its figures, or no mistake is tried", name)
		}
		c, _ := enginetest.ReadFigures(t, name)
		for _, x := range mistakes[name] {
			t.Run(name+", "+x.Name, func(t *testing.T) {
				var m *engine.Model
				enginetest.Mistaken(t, name, x, func(path string) {
					m = enginetest.Open(t, path, engine.Options{KVPages: engine.PagesFor(2,
						192, 0)})
				})
				faults, _, _ := enginetest.PromptFaults(t, m, c)
				enginetest.Seen(t, faults)
			})
		}
	}
}
