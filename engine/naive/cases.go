package naive

import (
	"math"
	"slices"
	"strings"
)

// Tiny returns a small model of an architecture without optional keys.
func Tiny(arch string, layers int) *Model {
	n := &Model{Arch: arch, Dim: 48, HeadDim: 16, RopeDim: 16, Context: 512,
		Halves: !slices.Contains([]string{"llama", "granite", "granitemoe", "smollm3", "mistral3", "glm4"}, arch)}
	n.heads, n.kv, n.FFN = slices.Repeat([]int{4}, layers), slices.Repeat([]int{2}, layers), slices.Repeat([]int{80}, layers)
	n.Keys = map[string]any{}
	switch arch {
	case "qwen2":
		n.biases = "qkv"
	case "qwen3":
		n.HeadNorms = true
	case "phi3":
		n.Fused = true
	case "glm4":
		n.Fused, n.PostNorms, n.biases, n.RopeDim = true, true, "qkv", 8
	case "qwen3moe", "granitemoe", "gpt-oss":
		n.Mix = Mixture{Count: 6, Used: 2}
		n.With("expert_count", uint32(6)).With("expert_used_count", uint32(2))
		n.HeadNorms = arch == "qwen3moe"
	}
	if arch == "gpt-oss" {
		n.Mix.clamped, n.Mix.bias, n.biases, n.Sinks, n.FFNNorm = true, true, "qkvogud", true, "post_attention_norm"
		n.With("attention.sliding_window", uint32(8))
		n.Window = func(l int) int { return []int{8, 0}[l%2] }
	}
	if strings.HasPrefix(arch, "gemma") {
		n.GELU, n.tied, n.EmbedScale = true, true, math.Sqrt(48)
		n.PostNorms, n.HeadNorms = arch != "gemma", arch == "gemma3"
	}
	return n
}

// With sets a key and returns n.
func (n *Model) With(key string, v any) *Model {
	n.Keys[key] = v
	return n
}

func Frequency(base float64, i, n int) float64 { return math.Pow(base, -2*float64(i)/float64(n)) }

// Yarn is the angle of pair i by the YaRN paper's equations 17 to 23, with alpha 1 and beta 32 as there, the ends rounded to whole pairs.
func Yarn(base float64, i, n int, factor, original float64) float64 {
	return blended(base, i, n, factor, math.Floor(ends(base, n, original, 32)), math.Ceil(ends(base, n, original, 1)))
}

// exactYarn does not round them.
func exactYarn(base float64, i, n int, factor, original float64) float64 {
	return blended(base, i, n, factor, ends(base, n, original, 32), ends(base, n, original, 1))
}

// ends returns the pair that turns so often in the original context.
func ends(base float64, n int, original, turns float64) float64 {
	return float64(n) * math.Log(original/(turns*2*math.Pi)) / (2 * math.Log(base))
}

func blended(base float64, i, n int, factor, low, high float64) float64 {
	low, high = math.Max(low, 0), math.Min(high, float64(n-1))
	ramp := math.Min(1, math.Max(0, (float64(i)-low)/math.Max(high-low, 0.001)))
	f := Frequency(base, i, n)
	return f/factor*ramp + f*(1-ramp)
}

// Case is a model, how many tokens to give it, and the model without the feature that the case is for: a
// comparison that could not tell the two apart would prove nothing.
type Case struct {
	Model   *Model
	Tokens  int
	Without func(n *Model)
}

// Cases returns the cases of all architectures by their names.
func Cases() map[string]Case {
	all := cases{}
	for _, of := range []func(cases){llamas, qwens, gemmas, gemma3s, granites, smollms, ministrals, mixtures, latents, gptOSS, phis} {
		of(all)
	}
	return all
}

type cases map[string]Case

func (all cases) add(name string, tokens int, n *Model, with, without func(n *Model)) {
	if with != nil {
		with(n)
	}
	all[name] = Case{n, tokens, without}
}

// plain and wide take RoPE's other frequencies, and the window, away.
func plain(n *Model) { n.Angle, n.Magnitude = nil, 0 }
func wide(n *Model)  { n.Window = nil }

func base(b float64) func(*Model) {
	return func(n *Model) { n.Angle = func(_, i int) float64 { return Frequency(b, i, n.RopeDim) } }
}

func llamas(all cases) {
	all.add("llama", 40, Tiny("llama", 2), nil, func(n *Model) { n.Halves = true })
	all.add("llama base 1e7", 40, Tiny("llama", 2).With("rope.freq_base", float32(1e7)), base(1e7), plain)
	all.add("llama partial rope", 40, Tiny("llama", 2), func(n *Model) { n.RopeDim = 10 }, func(n *Model) { n.RopeDim = 16 })
	all.add("llama biases", 40, Tiny("llama", 2), func(n *Model) { n.biases = "qkvogud" },
		func(n *Model) { delete(n.Weights, "blk.1.ffn_up.bias") })
	all.add("llama linear", 40, Tiny("llama", 2).With("rope.scaling.type", "linear").With("rope.scaling.factor", float32(4)),
		func(n *Model) { n.Angle = func(_, i int) float64 { return Frequency(10000, i, 16) / 4 } }, plain)
	all.add("llama yarn", 90, Tiny("llama", 2).With("rope.scaling.type", "yarn").With("rope.scaling.factor",
		float32(8)).With("rope.scaling.original_context_length", uint32(64)),
		func(n *Model) {
			n.Angle = func(_, i int) float64 { return Yarn(10000, i, 16, 8, 64) }
			n.Magnitude = 1 + 0.1*math.Log(8)
		}, func(n *Model) { n.Magnitude = 1 })
	factors := []float64{1, 1, 1.5, 2, 4, 8, 8, 8}
	all.add("llama rope_freqs", 40, Tiny("llama", 2).With("rope.freq_base", float32(500000)), func(n *Model) {
		n.Factors = map[string][]float64{"rope_freqs.weight": factors}
		n.Angle = func(_, i int) float64 { return Frequency(500000, i, 16) / factors[i] }
	}, base(500000))
	all.add("mistral", 40, Tiny("llama", 2).With("attention.sliding_window", uint32(9)),
		func(n *Model) { n.Window = func(int) int { return 9 } }, wide)
	all.add("mistral, long", 420, Tiny("llama", 2).With("attention.sliding_window", uint32(300)),
		func(n *Model) { n.Window = func(int) int { return 300 } }, wide)
	all.add("per layer", 40, Tiny("llama", 3), func(n *Model) { n.heads, n.kv, n.FFN = []int{4, 8, 12}, []int{2, 4, 1}, []int{80, 48, 33} },
		func(n *Model) { n.heads = []int{4, 8, 11} })
}

func qwens(all cases) {
	all.add("qwen2", 40, Tiny("qwen2", 2).With("rope.freq_base", float32(1e6)), base(1e6), func(n *Model) { n.Halves = false })
	all.add("qwen2 yarn", 90, Tiny("qwen2", 2).With("rope.freq_base", float32(1e6)).With("rope.scaling.type",
		"yarn").With("rope.scaling.factor", float32(4)).
		With("rope.scaling.original_context_length", uint32(128)),
		func(n *Model) {
			n.Angle = func(_, i int) float64 { return Yarn(1e6, i, 16, 4, 128) }
			n.Magnitude = 1 + 0.1*math.Log(4)
		}, plain)
	all.add("qwen3", 40, Tiny("qwen3", 2), func(n *Model) { n.HeadDim, n.RopeDim = 32, 32 }, func(n *Model) { n.HeadNorms = false })
}

// local is the window of all layers but the last of each period.
func local(period, window int) func(int) int {
	return func(l int) int {
		if l%period < period-1 {
			return window
		}
		return 0
	}
}

func gemmas(all cases) {
	all.add("gemma", 40, Tiny("gemma", 2), func(n *Model) { n.HeadDim, n.RopeDim = 256, 256; n.kv = []int{1, 1} },
		func(n *Model) { n.GELU = false })
	all.add("gemma2", 40, Tiny("gemma2", 4).With("attention.sliding_window", uint32(8)).With("attn_logit_softcapping",
		float32(5)).With("final_logit_softcapping", float32(3)),
		func(n *Model) { n.Window, n.AttnCap, n.FinalCap = local(2, 8), 5, 3 }, wide)
	all.add("gemma2 27b", 20, Tiny("gemma2", 46).With("attn_logit_softcapping", float32(2)),
		func(n *Model) { n.AttnCap, n.FinalCap, n.AttnScale = 2, 30, 1/math.Sqrt(48.0/4) }, func(n *Model) { n.AttnScale = 0 })
}

func gemma3s(all cases) {
	gemma3 := func(window func(int) int) func(*Model) {
		return func(n *Model) {
			n.Window = window
			n.Angle = func(l, i int) float64 {
				if window(l) > 0 {
					return Frequency(10000, i, 16)
				}
				return Frequency(1e6, i, 16) / 8
			}
		}
	}
	all.add("gemma3 local base", 40, Tiny("gemma3", 7).With("rope.freq_base_swa", float32(500)).With("attention.sliding_window", uint32(8)),
		func(n *Model) {
			n.Window = local(6, 8)
			n.Angle = func(l, i int) float64 { return Frequency([]float64{500, 500, 500, 500, 500, 10000, 500}[l], i, 16) }
		}, plain)
	global := func() *Model {
		return Tiny("gemma3", 7).With("rope.freq_base", float32(1e6)).With("rope.scaling.type", "linear").With("rope.scaling.factor",
			float32(8)).
			With("attention.sliding_window", uint32(8))
	}
	all.add("gemma3", 40, global(), gemma3(local(6, 8)), base(1e6))
	all.add("gemma3 pattern", 40, global().With("attention.sliding_window_pattern", uint32(3)), gemma3(local(3, 8)), gemma3(local(6, 8)))
	layers := []bool{true, false, false, true, true, false, true}
	all.add("gemma3 layers", 40, global().With("attention.sliding_window_pattern", layers), gemma3(func(l int) int {
		if layers[l] {
			return 8
		}
		return 0
	}), gemma3(local(6, 8)))
}

func granites(all cases) {
	granite := Tiny("granite", 2).With("embedding_scale", float32(12)).With("residual_scale", float32(0.22)).With("attention.scale",
		float32(0.05)).With("logit_scale", float32(8))
	all.add("granite", 40, granite, func(n *Model) { n.EmbedScale, n.ResidualScale, n.AttnScale, n.LogitDivisor = 12, 0.22, 0.05, 8 },
		func(n *Model) { n.ResidualScale = 1 })
	all.add("granite scale of embeddings", 40, Tiny("granite", 2).With("embedding_scale", float32(0.3)),
		func(n *Model) { n.EmbedScale = 0.3 }, func(n *Model) { n.EmbedScale = 0 })
	all.add("granite scale of scores", 40, Tiny("granite", 2).With("attention.scale", float32(0.6)),
		func(n *Model) { n.AttnScale, n.biases, n.tied = 0.6, "qkvogud", true }, func(n *Model) { n.AttnScale = 0 })
	all.add("granite scale of logits", 40, Tiny("granite", 2).With("logit_scale", float32(0.7)),
		func(n *Model) { n.LogitDivisor = 0.7 }, func(n *Model) { n.LogitDivisor = 0 })
	all.add("granite without rope", 40, Tiny("granite", 2).With("rope.scaling.finetuned", false).With("residual_scale", float32(1.7)),
		func(n *Model) { n.ResidualScale, n.Unturned = 1.7, func(int) bool { return true } }, func(n *Model) { n.Unturned = nil })
}

func smollms(all cases) {
	fourth := func(n *Model) { n.Unturned = func(l int) bool { return l%4 == 3 } }
	all.add("smollm3", 40, Tiny("smollm3", 5).With("rope.freq_base", float32(5e6)), func(n *Model) {
		fourth(n)
		base(5e6)(n)
	}, func(n *Model) { n.Unturned = func(l int) bool { return l%4 == 0 } })
	all.add("smollm3 yarn", 90, Tiny("smollm3", 4).With("rope.scaling.type", "yarn").With("rope.scaling.factor",
		float32(4)).With("rope.scaling.original_context_length", uint32(64)), func(n *Model) {
		fourth(n)
		n.biases = "qkvo"
		n.Angle = func(_, i int) float64 { return Yarn(10000, i, 16, 4, 64) }
		n.Magnitude = 1 + 0.1*math.Log(4)
	}, func(n *Model) { n.Unturned = nil })
}

func ministrals(all cases) {
	ministral := func(log, beta float64) *Model {
		return Tiny("mistral3", 2).With("rope.scaling.type", "yarn").With("rope.scaling.factor",
			float32(16)).With("rope.scaling.original_context_length", uint32(10)).With("rope.scaling.yarn_log_multiplier",
			float32(log)).With("attention.temperature_scale", float32(beta))
	}
	temperature := func(beta float64) func(int) float64 {
		return func(pos int) float64 { return 1 + beta*math.Log(1+math.Floor(float64(pos)/10)) }
	}
	turns := func(n *Model) { n.Angle = func(_, i int) float64 { return Yarn(10000, i, n.RopeDim, 16, 10) } }
	all.add("mistral3", 90, ministral(1, 0.1), func(n *Model) {
		turns(n)
		n.Temperature = temperature(0.1)
	}, func(n *Model) { n.Temperature = nil })
	all.add("mistral3 magnitude", 90, ministral(0.4, 0.7), func(n *Model) {
		turns(n)
		n.HeadDim, n.RopeDim, n.Temperature = 32, 24, temperature(0.7)
		n.Magnitude = (1 + 0.1*math.Log(16)) / (1 + 0.1*0.4*math.Log(16))
	}, func(n *Model) { n.Magnitude = 1 })
}

func mixtures(all cases) {
	all.add("glm4", 40, Tiny("glm4", 2), nil, func(n *Model) { n.Halves = true })
	all.add("glm4 in parts", 40, Tiny("glm4", 2).With("rope.freq_base", float32(1e6)), func(n *Model) {
		n.Fused, n.biases, n.tied, n.HeadDim, n.RopeDim = false, "", true, 24, 12
		base(1e6)(n)
	}, func(n *Model) { n.PostNorms = false })
	all.add("qwen3moe", 40, Tiny("qwen3moe", 2).With("expert_feed_forward_length", uint32(33)), func(n *Model) { n.FFN = []int{33, 33} },
		func(n *Model) { n.Mix.Used = 1 })
	all.add("qwen3moe softmax of all", 40, Tiny("qwen3moe", 2).With("expert_gating_func", uint32(1)).With("expert_weights_norm", false),
		func(n *Model) { n.Mix.shares = true }, func(n *Model) { n.Mix.shares = false })
	all.add("qwen3moe sigmoid", 40, Tiny("qwen3moe", 2).With("expert_gating_func", uint32(2)).With("expert_weights_scale", float32(2.5)),
		func(n *Model) { n.Mix.Sigmoid, n.Mix.Scale = true, 2.5 }, func(n *Model) { n.Mix.Scale = 1 })
	all.add("qwen3moe, all experts", 20, Tiny("qwen3moe", 2).With("expert_used_count", uint32(6)), func(n *Model) { n.Mix.Used = 6 },
		func(n *Model) { n.Mix.Used = 5 })
	all.add("granitemoe", 40, Tiny("granitemoe", 2).With("embedding_scale", float32(12)).With("residual_scale", float32(0.22)).
		With("attention.scale", float32(0.05)).With("logit_scale", float32(6)),
		func(n *Model) { n.EmbedScale, n.ResidualScale, n.AttnScale, n.LogitDivisor = 12, 0.22, 0.05, 6 },
		func(n *Model) { n.ResidualScale = 1 })
}

func latents(all cases) {
	all.add("deepseek2", 40, TinyLatent(3, 20, false), nil, func(n *Model) { n.Mix.choosing, n.Mix.Shared = false, 0 })
	all.add("deepseek2, keys and values together", 40, TinyLatent(3, 20, true), nil, func(n *Model) { n.AttnScale = 1 / math.Sqrt(48) })
	all.add("deepseek2 yarn", 90, TinyLatent(2, 0, false).With("rope.scaling.type", "yarn").With("rope.scaling.factor", float32(4)).With(
		"rope.scaling.original_context_length", uint32(64)).With("rope.scaling.yarn_log_multiplier", float32(0.1)), func(n *Model) {
		n.Angle = func(_, i int) float64 { return Yarn(10000, i, 8, 4, 64) }
		n.AttnScale = math.Pow(1+0.1*math.Log(4), 2) / math.Sqrt(24)
	}, func(n *Model) { n.AttnScale = 0 })
	all.add("deepseek2 softmax of all", 40, func() *Model {
		n := TinyLatent(2, 0, true).With("expert_gating_func", uint32(1)).With("expert_weights_norm", false)
		n.Mix.Sigmoid, n.Mix.shares = false, true
		return n
	}(), nil, func(n *Model) { n.Mix.shares = false })
}

func gptOSS(all cases) {
	all.add("gpt-oss", 40, Tiny("gpt-oss", 3), nil, func(n *Model) { n.Sinks = false })
	all.add("gpt-oss gate", 40, Tiny("gpt-oss", 2), nil, func(n *Model) { n.Mix.clamped = false })
	all.add("gpt-oss yarn", 90, Tiny("gpt-oss", 2).With("rope.scaling.type", "yarn").With("rope.scaling.factor",
		float32(32)).With("rope.scaling.original_context_length", uint32(64)),
		func(n *Model) {
			n.Angle = func(_, i int) float64 { return exactYarn(10000, i, 16, 32, 64) }
			n.Magnitude = 1 + 0.1*math.Log(32)
		}, func(n *Model) { n.Angle = func(_, i int) float64 { return Yarn(10000, i, 16, 32, 64) } })
}

func phis(all cases) {
	long, short := []float64{1, 1.2, 1.5, 2, 5, 9, 20, 30}, []float64{1, 1, 1.05, 1.1, 1.2, 1.4, 1.7, 2}
	both := map[string][]float64{"rope_factors_long.weight": long, "rope_factors_short.weight": short}
	longrope := func(f []float64) func(*Model) {
		return func(n *Model) {
			n.Factors, n.Magnitude = both, 1.19
			n.Angle = func(_, i int) float64 { return Frequency(10000, i, 16) / f[i] }
		}
	}
	all.add("phi3", 40, Tiny("phi3", 2).With("attention.sliding_window", uint32(11)),
		func(n *Model) { n.Window = func(int) int { return 11 } }, wide)
	all.add("phi3 in parts", 40, Tiny("phi3", 2), func(n *Model) { n.Fused = false }, func(n *Model) { n.Halves = false })
	all.add("phi3 biases", 40, Tiny("phi3", 2), func(n *Model) { n.biases, n.tied, n.RopeDim = "qkvogud", true, 12 },
		func(n *Model) { n.RopeDim = 16 })
	all.add("phi3 long", 40, Tiny("phi3", 2).With("rope.scaling.type", "longrope").With("rope.scaling.original_context_length",
		uint32(128)).With("rope.scaling.attn_factor", float32(1.19)),
		longrope(long), longrope(short))
	all.add("phi3 short", 40, Tiny("phi3", 2).With("rope.scaling.original_context_length", uint32(512)).With("rope.scaling.attn_factor",
		float32(1.19)), longrope(short), longrope(long))
}

// EveryArchitecture names cases that are enough for comparisons of devices and passes.
var EveryArchitecture = []string{"mistral", "per layer", "qwen2 yarn", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "phi3 long", "granite",
	"smollm3", "mistral3", "glm4", "granitemoe", "qwen3moe", "gpt-oss", "deepseek2", "deepseek2, keys and values together"}
