package engine

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// tiny returns a small model of an architecture without optional keys.
func tiny(arch string, layers int) *naive {
	n := &naive{arch: arch, dim: 48, headDim: 16, ropeDim: 16, context: 512,
		halves: !slices.Contains([]string{"llama", "granite", "granitemoe", "smollm3", "mistral3", "glm4"}, arch)}
	n.heads, n.kv, n.ffn = slices.Repeat([]int{4}, layers), slices.Repeat([]int{2}, layers), slices.Repeat([]int{80}, layers)
	n.keys = map[string]any{}
	switch arch {
	case "qwen2":
		n.biases = "qkv"
	case "qwen3":
		n.headNorms = true
	case "phi3":
		n.fused = true
	case "glm4":
		n.fused, n.postNorms, n.biases, n.ropeDim = true, true, "qkv", 8
	case "qwen3moe", "granitemoe", "gpt-oss":
		n.mix = naiveMixture{count: 6, used: 2}
		n.with("expert_count", uint32(6)).with("expert_used_count", uint32(2))
		n.headNorms = arch == "qwen3moe"
	}
	if arch == "gpt-oss" {
		n.mix.clamped, n.mix.bias, n.biases, n.sinks, n.ffnNorm = true, true, "qkvogud", true, "post_attention_norm"
		n.with("attention.sliding_window", uint32(8))
		n.window = func(l int) int { return []int{8, 0}[l%2] }
	}
	if strings.HasPrefix(arch, "gemma") {
		n.gelu, n.tied, n.embedScale = true, true, math.Sqrt(48)
		n.postNorms, n.headNorms = arch != "gemma", arch == "gemma3"
	}
	return n
}

// with sets a key and returns n.
func (n *naive) with(key string, v any) *naive {
	n.keys[key] = v
	return n
}

func frequency(base float64, i, n int) float64 { return math.Pow(base, -2*float64(i)/float64(n)) }

// yarn is the angle of pair i by the YaRN paper's equations 17 to 23, with alpha 1 and beta 32 as there, the ends rounded to whole pairs.
func yarn(base float64, i, n int, factor, original float64) float64 {
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
	f := frequency(base, i, n)
	return f/factor*ramp + f*(1-ramp)
}

// archCase is a model, how many tokens to give it, and the model without the feature that the case is for: a
// comparison that could not tell the two apart would prove nothing.
type archCase struct {
	model   *naive
	tokens  int
	without func(n *naive)
}

func archCases() map[string]archCase {
	all := map[string]archCase{}
	add := func(name string, tokens int, n *naive, with, without func(n *naive)) {
		if with != nil {
			with(n)
		}
		all[name] = archCase{n, tokens, without}
	}
	plain := func(n *naive) { n.angle, n.magnitude = nil, 0 }
	wide := func(n *naive) { n.window = nil }
	base := func(b float64) func(*naive) {
		return func(n *naive) { n.angle = func(_, i int) float64 { return frequency(b, i, n.ropeDim) } }
	}

	add("llama", 40, tiny("llama", 2), nil, func(n *naive) { n.halves = true })
	add("llama base 1e7", 40, tiny("llama", 2).with("rope.freq_base", float32(1e7)), base(1e7), plain)
	add("llama partial rope", 40, tiny("llama", 2), func(n *naive) { n.ropeDim = 10 }, func(n *naive) { n.ropeDim = 16 })
	add("llama biases", 40, tiny("llama", 2), func(n *naive) { n.biases = "qkvogud" },
		func(n *naive) { delete(n.weights, "blk.1.ffn_up.bias") })
	add("llama linear", 40, tiny("llama", 2).with("rope.scaling.type", "linear").with("rope.scaling.factor", float32(4)),
		func(n *naive) { n.angle = func(_, i int) float64 { return frequency(10000, i, 16) / 4 } }, plain)
	add("llama yarn", 90, tiny("llama", 2).with("rope.scaling.type", "yarn").with("rope.scaling.factor",
		float32(8)).with("rope.scaling.original_context_length", uint32(64)),
		func(n *naive) {
			n.angle = func(_, i int) float64 { return yarn(10000, i, 16, 8, 64) }
			n.magnitude = 1 + 0.1*math.Log(8)
		}, func(n *naive) { n.magnitude = 1 })
	factors := []float64{1, 1, 1.5, 2, 4, 8, 8, 8}
	add("llama rope_freqs", 40, tiny("llama", 2).with("rope.freq_base", float32(500000)), func(n *naive) {
		n.factors = map[string][]float64{"rope_freqs.weight": factors}
		n.angle = func(_, i int) float64 { return frequency(500000, i, 16) / factors[i] }
	}, base(500000))
	add("mistral", 40, tiny("llama", 2).with("attention.sliding_window", uint32(9)),
		func(n *naive) { n.window = func(int) int { return 9 } }, wide)
	add("mistral, long", 420, tiny("llama", 2).with("attention.sliding_window", uint32(300)),
		func(n *naive) { n.window = func(int) int { return 300 } }, wide)
	add("per layer", 40, tiny("llama", 3), func(n *naive) { n.heads, n.kv, n.ffn = []int{4, 8, 12}, []int{2, 4, 1}, []int{80, 48, 33} },
		func(n *naive) { n.heads = []int{4, 8, 11} })

	add("qwen2", 40, tiny("qwen2", 2).with("rope.freq_base", float32(1e6)), base(1e6), func(n *naive) { n.halves = false })
	add("qwen2 yarn", 90, tiny("qwen2", 2).with("rope.freq_base", float32(1e6)).with("rope.scaling.type",
		"yarn").with("rope.scaling.factor", float32(4)).
		with("rope.scaling.original_context_length", uint32(128)),
		func(n *naive) {
			n.angle = func(_, i int) float64 { return yarn(1e6, i, 16, 4, 128) }
			n.magnitude = 1 + 0.1*math.Log(4)
		}, plain)
	add("qwen3", 40, tiny("qwen3", 2), func(n *naive) { n.headDim, n.ropeDim = 32, 32 }, func(n *naive) { n.headNorms = false })

	add("gemma", 40, tiny("gemma", 2), func(n *naive) { n.headDim, n.ropeDim = 256, 256; n.kv = []int{1, 1} },
		func(n *naive) { n.gelu = false })
	local := func(period, window int) func(int) int {
		return func(l int) int {
			if l%period < period-1 {
				return window
			}
			return 0
		}
	}
	add("gemma2", 40, tiny("gemma2", 4).with("attention.sliding_window", uint32(8)).with("attn_logit_softcapping",
		float32(5)).with("final_logit_softcapping", float32(3)),
		func(n *naive) { n.window, n.attnCap, n.finalCap = local(2, 8), 5, 3 }, wide)
	add("gemma2 27b", 20, tiny("gemma2", 46).with("attn_logit_softcapping", float32(2)),
		func(n *naive) { n.attnCap, n.finalCap, n.attnScale = 2, 30, 1/math.Sqrt(48.0/4) }, func(n *naive) { n.attnScale = 0 })
	gemma3 := func(local func(int) int) func(*naive) {
		return func(n *naive) {
			n.window = local
			n.angle = func(l, i int) float64 {
				if local(l) > 0 {
					return frequency(10000, i, 16)
				}
				return frequency(1e6, i, 16) / 8
			}
		}
	}
	add("gemma3 local base", 40, tiny("gemma3", 7).with("rope.freq_base_swa", float32(500)).with("attention.sliding_window", uint32(8)),
		func(n *naive) {
			n.window = local(6, 8)
			n.angle = func(l, i int) float64 { return frequency([]float64{500, 500, 500, 500, 500, 10000, 500}[l], i, 16) }
		}, plain)
	global := func() *naive {
		return tiny("gemma3", 7).with("rope.freq_base", float32(1e6)).with("rope.scaling.type", "linear").with("rope.scaling.factor",
			float32(8)).
			with("attention.sliding_window", uint32(8))
	}
	add("gemma3", 40, global(), gemma3(local(6, 8)), base(1e6))
	add("gemma3 pattern", 40, global().with("attention.sliding_window_pattern", uint32(3)), gemma3(local(3, 8)), gemma3(local(6, 8)))
	layers := []bool{true, false, false, true, true, false, true}
	add("gemma3 layers", 40, global().with("attention.sliding_window_pattern", layers), gemma3(func(l int) int {
		if layers[l] {
			return 8
		}
		return 0
	}), gemma3(local(6, 8)))

	granite := tiny("granite", 2).with("embedding_scale", float32(12)).with("residual_scale", float32(0.22)).with("attention.scale",
		float32(0.05)).with("logit_scale", float32(8))
	add("granite", 40, granite, func(n *naive) { n.embedScale, n.residualScale, n.attnScale, n.logitDivisor = 12, 0.22, 0.05, 8 },
		func(n *naive) { n.residualScale = 1 })
	add("granite scale of embeddings", 40, tiny("granite", 2).with("embedding_scale", float32(0.3)),
		func(n *naive) { n.embedScale = 0.3 }, func(n *naive) { n.embedScale = 0 })
	add("granite scale of scores", 40, tiny("granite", 2).with("attention.scale", float32(0.6)),
		func(n *naive) { n.attnScale, n.biases, n.tied = 0.6, "qkvogud", true }, func(n *naive) { n.attnScale = 0 })
	add("granite scale of logits", 40, tiny("granite", 2).with("logit_scale", float32(0.7)),
		func(n *naive) { n.logitDivisor = 0.7 }, func(n *naive) { n.logitDivisor = 0 })
	add("granite without rope", 40, tiny("granite", 2).with("rope.scaling.finetuned", false).with("residual_scale", float32(1.7)),
		func(n *naive) { n.residualScale, n.unturned = 1.7, func(int) bool { return true } }, func(n *naive) { n.unturned = nil })

	fourth := func(n *naive) { n.unturned = func(l int) bool { return l%4 == 3 } }
	add("smollm3", 40, tiny("smollm3", 5).with("rope.freq_base", float32(5e6)), func(n *naive) {
		fourth(n)
		base(5e6)(n)
	}, func(n *naive) { n.unturned = func(l int) bool { return l%4 == 0 } })
	add("smollm3 yarn", 90, tiny("smollm3", 4).with("rope.scaling.type", "yarn").with("rope.scaling.factor",
		float32(4)).with("rope.scaling.original_context_length", uint32(64)), func(n *naive) {
		fourth(n)
		n.biases = "qkvo"
		n.angle = func(_, i int) float64 { return yarn(10000, i, 16, 4, 64) }
		n.magnitude = 1 + 0.1*math.Log(4)
	}, func(n *naive) { n.unturned = nil })

	ministral := func(log, beta float64) *naive {
		return tiny("mistral3", 2).with("rope.scaling.type", "yarn").with("rope.scaling.factor",
			float32(16)).with("rope.scaling.original_context_length", uint32(10)).with("rope.scaling.yarn_log_multiplier",
			float32(log)).with("attention.temperature_scale", float32(beta))
	}
	temperature := func(beta float64) func(int) float64 {
		return func(pos int) float64 { return 1 + beta*math.Log(1+math.Floor(float64(pos)/10)) }
	}
	turns := func(n *naive) { n.angle = func(_, i int) float64 { return yarn(10000, i, n.ropeDim, 16, 10) } }
	add("mistral3", 90, ministral(1, 0.1), func(n *naive) {
		turns(n)
		n.temperature = temperature(0.1)
	}, func(n *naive) { n.temperature = nil })
	add("mistral3 magnitude", 90, ministral(0.4, 0.7), func(n *naive) {
		turns(n)
		n.headDim, n.ropeDim, n.temperature = 32, 24, temperature(0.7)
		n.magnitude = (1 + 0.1*math.Log(16)) / (1 + 0.1*0.4*math.Log(16))
	}, func(n *naive) { n.magnitude = 1 })

	add("glm4", 40, tiny("glm4", 2), nil, func(n *naive) { n.halves = true })
	add("glm4 in parts", 40, tiny("glm4", 2).with("rope.freq_base", float32(1e6)), func(n *naive) {
		n.fused, n.biases, n.tied, n.headDim, n.ropeDim = false, "", true, 24, 12
		base(1e6)(n)
	}, func(n *naive) { n.postNorms = false })
	add("qwen3moe", 40, tiny("qwen3moe", 2).with("expert_feed_forward_length", uint32(33)), func(n *naive) { n.ffn = []int{33, 33} },
		func(n *naive) { n.mix.used = 1 })
	add("qwen3moe softmax of all", 40, tiny("qwen3moe", 2).with("expert_gating_func", uint32(1)).with("expert_weights_norm", false),
		func(n *naive) { n.mix.shares = true }, func(n *naive) { n.mix.shares = false })
	add("qwen3moe sigmoid", 40, tiny("qwen3moe", 2).with("expert_gating_func", uint32(2)).with("expert_weights_scale", float32(2.5)),
		func(n *naive) { n.mix.sigmoid, n.mix.scale = true, 2.5 }, func(n *naive) { n.mix.scale = 1 })
	add("qwen3moe, all experts", 20, tiny("qwen3moe", 2).with("expert_used_count", uint32(6)), func(n *naive) { n.mix.used = 6 },
		func(n *naive) { n.mix.used = 5 })
	add("granitemoe", 40, tiny("granitemoe", 2).with("embedding_scale", float32(12)).with("residual_scale", float32(0.22)).
		with("attention.scale", float32(0.05)).with("logit_scale", float32(6)),
		func(n *naive) { n.embedScale, n.residualScale, n.attnScale, n.logitDivisor = 12, 0.22, 0.05, 6 },
		func(n *naive) { n.residualScale = 1 })
	add("deepseek2", 40, tinyLatent(3, 20, false), nil, func(n *naive) { n.mix.choosing, n.mix.shared = false, 0 })
	add("deepseek2, keys and values together", 40, tinyLatent(3, 20, true), nil, func(n *naive) { n.attnScale = 1 / math.Sqrt(48) })
	add("deepseek2 yarn", 90, tinyLatent(2, 0, false).with("rope.scaling.type", "yarn").with("rope.scaling.factor", float32(4)).with(
		"rope.scaling.original_context_length", uint32(64)).with("rope.scaling.yarn_log_multiplier", float32(0.1)), func(n *naive) {
		n.angle = func(_, i int) float64 { return yarn(10000, i, 8, 4, 64) }
		n.attnScale = math.Pow(1+0.1*math.Log(4), 2) / math.Sqrt(24)
	}, func(n *naive) { n.attnScale = 0 })
	add("deepseek2 softmax of all", 40, func() *naive {
		n := tinyLatent(2, 0, true).with("expert_gating_func", uint32(1)).with("expert_weights_norm", false)
		n.mix.sigmoid, n.mix.shares = false, true
		return n
	}(), nil, func(n *naive) { n.mix.shares = false })
	add("gpt-oss", 40, tiny("gpt-oss", 3), nil, func(n *naive) { n.sinks = false })
	add("gpt-oss gate", 40, tiny("gpt-oss", 2), nil, func(n *naive) { n.mix.clamped = false })
	add("gpt-oss yarn", 90, tiny("gpt-oss", 2).with("rope.scaling.type", "yarn").with("rope.scaling.factor",
		float32(32)).with("rope.scaling.original_context_length", uint32(64)),
		func(n *naive) {
			n.angle = func(_, i int) float64 { return exactYarn(10000, i, 16, 32, 64) }
			n.magnitude = 1 + 0.1*math.Log(32)
		}, func(n *naive) { n.angle = func(_, i int) float64 { return yarn(10000, i, 16, 32, 64) } })

	long, short := []float64{1, 1.2, 1.5, 2, 5, 9, 20, 30}, []float64{1, 1, 1.05, 1.1, 1.2, 1.4, 1.7, 2}
	both := map[string][]float64{"rope_factors_long.weight": long, "rope_factors_short.weight": short}
	longrope := func(f []float64) func(*naive) {
		return func(n *naive) {
			n.factors, n.magnitude = both, 1.19
			n.angle = func(_, i int) float64 { return frequency(10000, i, 16) / f[i] }
		}
	}
	add("phi3", 40, tiny("phi3", 2).with("attention.sliding_window", uint32(11)), func(n *naive) { n.window = func(int) int { return 11 } },
		wide)
	add("phi3 in parts", 40, tiny("phi3", 2), func(n *naive) { n.fused = false }, func(n *naive) { n.halves = false })
	add("phi3 biases", 40, tiny("phi3", 2), func(n *naive) { n.biases, n.tied, n.ropeDim = "qkvogud", true, 12 },
		func(n *naive) { n.ropeDim = 16 })
	add("phi3 long", 40, tiny("phi3", 2).with("rope.scaling.type", "longrope").with("rope.scaling.original_context_length",
		uint32(128)).with("rope.scaling.attn_factor", float32(1.19)),
		longrope(long), longrope(short))
	add("phi3 short", 40, tiny("phi3", 2).with("rope.scaling.original_context_length", uint32(512)).with("rope.scaling.attn_factor",
		float32(1.19)), longrope(short), longrope(long))
	return all
}

// TestArchitectures compares every architecture and feature with the formulas in float64.
func TestArchitectures(t *testing.T) {
	for name, c := range archCases() {
		t.Run(name, func(t *testing.T) {
			c.model.generate(uint64(len(name)))
			m := openTest(t, c.model.write(t, t.TempDir()), Options{KVPages: PagesFor(1, 512, 0), MaxRows: 512})
			tokens := randomTokens(rand.New(rand.NewPCG(5, 5)), m, c.tokens)
			got := forward(t, m, 0, Part{Seq: newSeq(t, m, c.tokens, 0), Extend: tokens, Want: WantAll})
			rms, worst := distance(got, c.model.forward(tokens))
			t.Logf("logits are %.2g (r.m.s.) and at most %.2g from the formulas'", rms, worst)
			tolerance := 2e-4 * math.Sqrt(float64(c.model.layers())) // roundings add up
			if rms > tolerance || worst > 100*tolerance || rms != rms {
				t.Errorf("want r.m.s. %.2g, at most %.2g", tolerance, 100*tolerance)
			}
			c.without(c.model)
			if rms, _ := distance(got, c.model.forward(tokens)); !(rms > 20*tolerance) {
				t.Errorf("without its feature the model's logits are only %.2g away: the case shows nothing", rms)
			}
		})
	}
}

// distance returns the r.m.s. and the largest difference of logits. A key or value that the cache rounds the other
// way changes single logits by some thousandths.
func distance(got *Output, want [][]float64) (rms, worst float64) {
	n := 0
	for i, row := range want {
		for j, x := range got.Logits(i) {
			d := math.Abs(float64(x) - row[j])
			rms, n = rms+d*d, n+1
			if !(d <= worst) {
				worst = d
			}
		}
	}
	return math.Sqrt(rms / float64(n)), worst
}

// everyArchitecture names cases that are enough for comparisons of devices and passes.
var everyArchitecture = []string{"mistral", "per layer", "qwen2 yarn", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "phi3 long", "granite",
	"smollm3", "mistral3", "glm4", "granitemoe", "qwen3moe", "gpt-oss", "deepseek2", "deepseek2, keys and values together"}

// TestArchitecturesExact: on models of every architecture a row alone equals the row in a wide pass of several
// sessions with trees, and all instruction sets give the same bits.
func TestArchitecturesExact(t *testing.T) {
	cases := archCases()
	for _, name := range everyArchitecture {
		t.Run(name, func(t *testing.T) {
			c := cases[name].model
			c.generate(3)
			path := c.write(t, t.TempDir())
			var first []float32
			compareTrees(t, openTest(t, path, Options{KVPages: PagesFor(5, 320, 64)}), rand.New(rand.NewPCG(1, 9)), 25)
			for _, o := range exactOptions(t) {
				m := openTest(t, path, o)
				tokens := randomTokens(rand.New(rand.NewPCG(2, 9)), m, 50)
				logits := inPieces(t, m, tokens, []int{50})
				if err := sameBits(logits, inPieces(t, m, tokens, []int{1, 20, 3, 26})); err != nil {
					t.Errorf("%v: in pieces: %v", m.About().Kernels, err)
				}
				if first == nil {
					first = logits
				}
				if err := sameBits(first, logits); err != nil {
					t.Errorf("%v with %d threads: %v", m.About().Kernels, m.About().Threads, err)
				}
			}
		})
	}
}

// inPieces returns the logits of all tokens, run in passes of the given sizes.
func inPieces(t *testing.T, m *Model, tokens []tandem.Token, pieces []int) (logits []float32) {
	s := newSeq(t, m, len(tokens), 0)
	defer s.Close()
	for _, n := range pieces {
		out := forward(t, m, 0, Part{Seq: s, Extend: tokens[:n], Want: WantAll})
		for i := range out.Len() {
			logits = append(logits, out.Logits(i)...)
		}
		tokens = tokens[n:]
	}
	return logits
}

// TestContextChoosesFactors: LongRoPE's long factors serve contexts beyond that of training, its short ones others.
func TestContextChoosesFactors(t *testing.T) {
	cases := archCases()
	long, short := cases["phi3 long"].model, cases["phi3 short"].model
	long.generate(1)
	short.weights, short.shapes = long.weights, long.shapes
	path := long.write(t, t.TempDir())
	for context, model := range map[int]*naive{0: long, 129: long, 128: short} {
		m := openTest(t, path, Options{Context: context, KVPages: 4})
		tokens := randomTokens(rand.New(rand.NewPCG(6, 6)), m, 30)
		got := forward(t, m, 0, Part{Seq: newSeq(t, m, 30, 0), Extend: tokens, Want: WantAll})
		if rms, _ := distance(got, model.forward(tokens)); !(rms < 3e-4) {
			t.Errorf("context %d: logits are %.2g from the formulas'", context, rms)
		}
	}
	m := openTest(t, path, Options{Context: 128})
	if _, err := m.NewSequence(129, 0); tandem.KindOf(err) != tandem.Invalid || m.Config().Context != 128 {
		t.Errorf("129 positions of %d: error %v: want kind invalid", m.Config().Context, err)
	}
	if _, err := Open(path, Options{Device: testdevice.CPU(t, 0), Context: -1}); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("context -1: error %v: want kind invalid", err)
	}
}

// TestProductEndsLikeThePass: guesses read the output matrix in a program of its own, which scales and caps logits as a pass does.
func TestProductEndsLikeThePass(t *testing.T) {
	cases := archCases()
	for _, name := range []string{"granite", "granite scale of logits", "gemma2"} {
		c := cases[name].model
		c.generate(5)
		m := openTest(t, c.write(t, t.TempDir()), Options{KVPages: 2})
		if err := m.OpenSide(randomSide(t, m, side.Spec{Kind: side.PPD, Levels: 1, Members: 1}, gguf.F32)); err != nil {
			t.Fatal(err)
		}
		out := forward(t, m, 5, Part{Seq: newSeq(t, m, 9, 0), Extend: randomTokens(rand.New(rand.NewPCG(1, 1)), m, 9), Want: WantTail})
		guesses, err := m.Guess([]GuessAsk{{SelfDraft: tandem.PPD, Hidden: [][]float32{out.Hidden(0, 8)}}}, 5)
		if err != nil {
			t.Fatal(err)
		}
		want := out.Top(0)
		for i, got := range guesses[0].Levels[0] {
			p := float32(float64(want.Logits[i]) - float64(want.Max) - blocks.Ln(float64(want.Sum)))
			if int32(got.Token) != want.IDs[i] || got.LogProb != p {
				t.Errorf("%s: candidate %d is %v: want token %d with log-probability %v", name, i, got, want.IDs[i], p)
			}
		}
		if len(guesses[0].Levels[0]) != 5 {
			t.Errorf("%s: %d candidates", name, len(guesses[0].Levels[0]))
		}
	}
}
