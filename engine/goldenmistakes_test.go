package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// mistake is a pass that is wrong in one point: of another function than the architecture's, or as if the file said something else.
type mistake struct {
	name   string
	config func(c *blocks.Config) // changes what was read
	layer  func(l *blocks.Layer)  // changes what was found of each layer
	file   func(m *family.Model)
}

// key makes a pass that takes another value for a key.
func key(name string, v any) func(*family.Model) { return func(m *family.Model) { m.Set(name, v) } }

// filled makes a pass that takes one number for all of those tensors, of f32: 1 for norms and scales that it leaves out, 0 for biases.
func filled(v float32, kinds ...string) func(*family.Model) {
	return eachOf(kinds, func(m *family.Model, x *family.Tensor) { m.Fill(x.Name, v) })
}

// zeroed makes a pass without what those tensors multiply with.
func zeroed(kinds ...string) func(*family.Model) {
	return eachOf(kinds, func(_ *family.Model, x *family.Tensor) { clear(x.Data) })
}

// swapped makes a pass that takes the first half of a tensor's rows, of each of its matrices, for the second.
func swapped(kind string) func(*family.Model) {
	return eachOf([]string{kind}, func(_ *family.Model, x *family.Tensor) {
		matrices := 1
		if len(x.Shape) == 3 {
			matrices = x.Shape[2]
		}
		for part := range slices.Chunk(x.Data, len(x.Data)/matrices) {
			half := slices.Clone(part[:len(part)/2])
			copy(part, part[len(part)/2:])
			copy(part[len(part)/2:], half)
		}
	})
}

func eachOf(kinds []string, do func(*family.Model, *family.Tensor)) func(*family.Model) {
	return func(m *family.Model) {
		found := 0
		for i := range m.Tensors {
			x := &m.Tensors[i]
			name := x.Name
			if rest, ok := strings.CutPrefix(name, "blk."); ok {
				_, name, _ = strings.Cut(rest, ".")
			}
			if slices.Contains(kinds, name) {
				do(m, x)
				found++
			}
		}
		if found == 0 {
			panic(fmt.Sprintf("%s has no tensor %v", m.Name, kinds))
		}
	}
}

// leftOut makes a pass that knows nothing of those tensors.
func leftOut(kinds ...string) func(*family.Model) {
	return func(m *family.Model) {
		var names []string
		eachOf(kinds, func(_ *family.Model, x *family.Tensor) { names = append(names, x.Name) })(m)
		for _, name := range names {
			m.Drop(name)
		}
	}
}

var (
	otherPairs  = mistake{name: "RoPE's other pairs", config: func(c *blocks.Config) { c.Rope.Halves = !c.Rope.Halves }}
	otherCurve  = mistake{name: "another gate", config: func(c *blocks.Config) { c.Curve = 1 - c.Curve }}
	noPostNorms = mistake{name: "no norms behind blocks", layer: func(l *blocks.Layer) { l.AttnPost, l.FFNPost = nil, nil }}
	oneExpert   = mistake{name: "one expert fewer", file: key("expert_used_count", uint32(1))}
	shares      = mistake{name: "weights of experts not divided", config: func(c *blocks.Config) { c.Experts.Route.Normed = false }}
	headNorms   = mistake{name: "no norms of heads", file: filled(1, "attn_q_norm.weight", "attn_k_norm.weight")}
	plainRoPE   = mistake{name: "plain RoPE", file: key("rope.scaling.type", "none")}
)

// turnedBut makes a pass in which of every so many layers the last has no RoPE; of 0 all have it.
func turnedBut(every int) func(*blocks.Config) {
	return func(c *blocks.Config) {
		for i := range c.Shapes {
			c.Shapes[i].Unturned = every > 0 && (i+1)%every == 0
		}
	}
}

// usualScale makes a pass that scales attention scores as most architectures do.
func usualScale(c *blocks.Config) { c.AttnScale = float32(1 / math.Sqrt(float64(c.HeadDim))) }

func base(b float32) mistake {
	return mistake{name: "another base of RoPE", file: key("rope.freq_base", b)}
}

// mistakes of the passes of each golden model.
var mistakes = map[string][]mistake{
	"llama3": {otherPairs, base(10000), {name: "no factors of RoPE", file: leftOut("rope_freqs.weight")}},
	"qwen2": {otherPairs, base(10000), {name: "no bias of values", file: zeroed("attn_v.bias")},
		{name: "no bias of keys and queries", file: zeroed("attn_k.bias", "attn_q.bias")}},
	"gemma": {otherPairs, otherCurve, {name: "embeddings not scaled", config: func(c *blocks.Config) { c.EmbedScale = 1 }}},
	"gemma2": {otherPairs, otherCurve, noPostNorms, {name: "no window", file: key("attention.sliding_window", uint32(0))},
		{name: "a window one longer", file: key("attention.sliding_window", uint32(17))},
		{name: "windows in the other layers", file: key("attention.sliding_window_pattern", []bool{false, true, false, true, false, true})},
		{name: "scores not capped", file: key("attn_logit_softcapping", float32(0))},
		{name: "logits not capped", file: key("final_logit_softcapping", float32(0))}},
	"granite": {otherPairs, {name: "embeddings not scaled", file: key("embedding_scale", float32(1))},
		{name: "outputs of blocks not scaled", file: key("residual_scale", float32(1))},
		{name: "the usual scale of scores", file: key("attention.scale", float32(0.1767767))},
		{name: "logits not divided", file: key("logit_scale", float32(1))}},
	"granitemoe": {oneExpert, shares, {name: "outputs of blocks not scaled", file: key("residual_scale", float32(1))}},
	"smollm3": {otherPairs, {name: "RoPE in every layer", config: turnedBut(0)},
		{name: "RoPE in every third layer not", config: turnedBut(3)}},
	"mistral3": {otherPairs, plainRoPE, {name: "queries not scaled", file: key("attention.temperature_scale", float32(2e-6))},
		{name: "RoPE's magnitude", file: key("rope.scaling.yarn_log_multiplier", float32(2e-6))}},
	"glm4": {otherPairs, noPostNorms, {name: "RoPE over the whole head", file: key("rope.dimension_count", uint32(32))},
		{name: "gate for up", file: swapped("ffn_up.weight")}, {name: "no bias of values", file: zeroed("attn_v.bias")},
		{name: "no bias of keys and queries", file: zeroed("attn_k.bias", "attn_q.bias")}},
	"phi3-longrope": {otherPairs, {name: "the other table", file: key("rope.scaling.original_context_length", uint32(4096))},
		{name: "RoPE's magnitude", file: key("rope.scaling.attn_factor", float32(1))},
		{name: "gate for up", file: swapped("ffn_up.weight")}},
	"phi3-shortrope": {otherPairs, {name: "the other table", file: key("rope.scaling.original_context_length", uint32(32))},
		{name: "RoPE over the whole head", file: func(m *family.Model) {
			m.Set("rope.dimension_count", uint32(32))
			m.Drop("rope_factors_long.weight")
			m.Drop("rope_factors_short.weight")
		}}},
	"qwen3moe": {otherPairs, oneExpert, shares, headNorms, base(10000)},
	"gpt-oss": append(ofGPTOSS, mistake{name: "no bias behind experts", file: zeroed("ffn_down_exps.bias")},
		mistake{name: "no bias of the router", file: zeroed("ffn_gate_inp.bias")}),
	"gpt-oss-mxfp4": ofGPTOSS,
	"deepseek2":     ofDeepSeek, "deepseek2-kvb": ofDeepSeek,
	"qwen35": ofQwen35,
	"qwen35moe": append(ofQwen35, oneExpert, shares,
		mistake{name: "shared expert not gated", layer: func(l *blocks.Layer) { l.Mixture.Shared.Share = kernels.None }}),
	"gemma4": append(ofGemma4, mistake{name: "no input of layers", file: zeroed("proj.weight")},
		mistake{name: "values not normed", layer: func(l *blocks.Layer) { l.VNorm = nil }}),
	"gemma4-moe": append(ofGemma4, oneExpert, mistake{name: "experts' outputs not scaled", file: filled(1, "ffn_down_exps.scale")},
		mistake{name: "the router's input not scaled", file: filled(1, "ffn_gate_inp.scale")},
		mistake{name: "gate for up", file: swapped("ffn_gate_up_exps.weight")}),
}

var ofGPTOSS = []mistake{otherPairs, oneExpert, base(10000), {name: "no sinks", file: filled(-1000, "attn_sinks.weight")},
	{name: "windows in the other layers", file: key("attention.sliding_window_pattern", []bool{false, true, false, true})},
	{name: "a window one longer", file: key("attention.sliding_window", uint32(9))},
	{name: "a gate that is not clamped", config: func(c *blocks.Config) { c.Curve = kernels.SiLU }},
	{name: "RoPE's magnitude", file: key("rope.scaling.type", "linear")}}

var ofDeepSeek = []mistake{otherPairs, plainRoPE, oneExpert, shares,
	{name: "the usual scale of scores", file: key("rope.scaling.yarn_log_multiplier", float32(2e-6))},
	{name: "experts chosen without bias", file: zeroed("exp_probs_b.bias")},
	{name: "experts' outputs not scaled", file: key("expert_weights_scale", float32(1))},
	{name: "no shared expert", file: zeroed("ffn_down_shexp.weight")},
	{name: "softmax instead of sigmoid", file: key("expert_gating_func", uint32(1))},
	{name: "the latent vector's norm", file: filled(1, "attn_kv_a_norm.weight")}}

var ofQwen35 = []mistake{otherPairs, headNorms, base(10000),
	{name: "RoPE over the whole head", file: key("rope.dimension_count", uint32(32))},
	{name: "states that do not fade", file: filled(0, "ssm_a")}, {name: "no bias of time steps", file: filled(0, "ssm_dt.bias")},
	{name: "states not normed", file: filled(1, "ssm_norm.weight")},
	{name: "a convolution without history", file: eachOf([]string{"ssm_conv1d.weight"}, func(_ *family.Model, x *family.Tensor) {
		for i := range len(x.Data) / 16 {
			clear(x.Data[16*i:][:12])
		}
	})},
	{name: "gates of the states in another order", file: swapped("attn_gate.weight")}}

var ofGemma4 = []mistake{otherPairs, otherCurve, headNorms,
	{name: "scores scaled", config: usualScale},
	{name: "outputs of layers not scaled", file: filled(1, "layer_output_scale.weight")},
	{name: "a window one longer", file: key("attention.sliding_window", uint32(9))},
	{name: "all pairs of full layers turn", file: filled(1, "rope_freqs.weight")},
	{name: "one base of RoPE", file: key("rope.freq_base_swa", float32(1e6))},
	{name: "logits not capped", file: key("final_logit_softcapping", float32(0))},
	{name: "embeddings not scaled", config: func(c *blocks.Config) { c.EmbedScale = 1 }}}

// ofAssistants are mistakes of an assistant's steps, beside a target whose passes are right.
var ofAssistants = []mistake{otherPairs, otherCurve, noPostNorms, {name: "no norms of heads", file: filled(1, "attn_q_norm.weight")},
	{name: "scores scaled", config: usualScale},
	{name: "outputs of layers not scaled", file: filled(1, "layer_output_scale.weight")},
	{name: "all pairs of full layers turn", file: filled(1, "rope_freqs.weight")},
	{name: "the state before the embedding", file: eachOf([]string{"nextn.pre_projection.weight"}, func(_ *family.Model, x *family.Tensor) {
		for row := range slices.Chunk(x.Data, 2*x.Shape[0]) {
			half := slices.Clone(row[:len(row)/2])
			copy(row, row[len(row)/2:])
			copy(row[len(row)/2:], half)
		}
	})}}

// TestGoldenMistakes: whatever the passes of a model get wrong, its golden figures show it, well beyond the tolerance.
func TestGoldenMistakes(t *testing.T) {
	for _, name := range family.Goldens() {
		if name == assistantFile {
			continue
		}
		if _, compared := golden2026[name]; !compared && !slices.Contains(mixtures, name) || len(mistakes[name]) == 0 {
			t.Errorf("%s: no test compares it with its figures, or no mistake is tried", name)
		}
		c, _ := readFigures(t, name)
		for _, x := range mistakes[name] {
			t.Run(name+", "+x.name, func(t *testing.T) {
				var m *Model
				mistaken(t, name, x, func(path string) { m = openTest(t, path, Options{KVPages: PagesFor(2, 192, 0)}) })
				faults, _, _ := promptFaults(t, m, c)
				seen(t, faults)
			})
		}
	}
	g := readAssistantGolden(t)
	for _, x := range ofAssistants {
		t.Run(assistantFile+", "+x.name, func(t *testing.T) {
			m := openTest(t, goldenPath(t, "gemma4"), Options{KVPages: PagesFor(4, 192, 32)})
			mistaken(t, assistantFile, x, func(path string) {
				if err := m.OpenSide(path); err != nil {
					t.Fatal(err)
				}
			})
			faults, _, _ := g.faults(t, m, "f16")
			seen(t, faults)
		})
	}
}

// mistaken opens a golden model for passes with a mistake.
func mistaken(t *testing.T, name string, x mistake, open func(path string)) {
	t.Helper()
	f := family.Golden(name)
	if x.file != nil {
		x.file(f)
	}
	right, assistant := arch.Families[f.Arch], arch.Families["gemma4"].Assistant
	if name == assistantFile { // which is read as its target's family says
		right = *assistant
		defer func(was blocks.Family) { *assistant = was }(right)
		*assistant = wrongly(right, x)
	} else {
		defer func() { arch.Families[f.Arch] = right }()
		arch.Families[f.Arch] = wrongly(right, x)
	}
	open(f.Write(t, t.TempDir()))
}

// wrongly returns a family with a mistake.
func wrongly(right blocks.Family, x mistake) blocks.Family {
	wrong := right
	wrong.Read = func(r *blocks.Reader, c *blocks.Config) {
		if right.Read(r, c); x.config != nil {
			x.config(c)
		}
	}
	wrong.Layer = func(t *blocks.Tensors) {
		if right.Layer(t); x.layer != nil {
			x.layer(t.Layer)
		}
	}
	return wrong
}

// seen fails unless the comparison with golden figures has failed, by several tolerances.
func seen(t *testing.T, faults []fault) {
	t.Helper()
	most := 0.0
	for _, f := range faults {
		most = max(most, f.away)
	}
	if t.Logf("%d figures differ, by up to %.1f tolerances", len(faults), most); !(most >= 2) {
		t.Errorf("the golden figures show nothing of this mistake, or little")
	}
}
