package family

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// golden says how a golden model is made: a tiny model of the family of its name, of fixed shape and weights, of which
// engine/arch/testdata/golden has another engine's figures. Its bytes are the same on every machine.
type golden struct {
	shape Shape
	seed  uint64
	keys  map[string]any  // of the architecture; nil takes away one that the family has
	sizes map[string]size // beside goldenSizes
}

// size is that of the numbers of a tensor: for a matrix how much larger it makes what it multiplies, for others mean and deviation.
type size struct{ gain, mean, deviation float64 }

func gain(g float64) size         { return size{gain: g} }
func near(mean, off float64) size { return size{mean: mean, deviation: off} }

// goldenSizes make attention and experts choose clearly, and the blocks matter beside the embedding, so that every mistake shows.
var goldenSizes = map[string]size{
	"token_embd": {deviation: 0.5}, "output": gain(3), "attn_q": gain(2), "attn_k": gain(2), "attn_qkv": gain(1.8), "attn_q_b": gain(1.5),
	"attn_kv_b": gain(1.3), "attn_k_b": gain(0.4), "ffn_gate_inp": gain(2), "ffn_down": gain(2), "ffn_down_exps": gain(2),
	"ffn_down_shexp": gain(2), "ssm_out": gain(2),
	"attn_q.bias": near(0, 0.3), "attn_k.bias": near(0, 0.3), "attn_v.bias": near(0, 0.3),
}

// Numbers of tokens beside those for single bytes, and shapes that several have.
const words = 1536 - 260

var (
	small = Shape{Layers: 3, Dim: 128, Heads: 4, KV: 2, HeadDim: 32, RopeDim: 32, FFN: 256, Words: words}
	moe   = Shape{Layers: 3, Dim: 128, Heads: 4, KV: 2, HeadDim: 48, RopeDim: 48, FFN: 256, Words: words, Experts: 8, Used: 2, Width: 64}
	oss   = Shape{Layers: 4, Dim: 128, Heads: 4, KV: 2, HeadDim: 32, RopeDim: 32, FFN: 64, Words: words, Experts: 4, Used: 2, Width: 64,
		Window: 8}
	mla    = Shape{Layers: 3, Dim: 128, Heads: 4, FFN: 192, Words: words, Experts: 8, Used: 2, Width: 32, Layout: Layout{Shared: 1}}
	hybrid = Shape{Layers: 4, Dim: 128, Heads: 4, KV: 2, HeadDim: 32, FFN: 192, Words: words, States: 4, Groups: 2,
		Layout: Layout{State: 64, Interval: 4}}
	gemma = Shape{Layers: 6, Dim: 128, Heads: 4, KV: 1, FFN: 128, Words: words, Window: 8,
		Layout: Layout{FullAt: 2, Reading: 3, Wider: 128, LayerInput: 16}}
)

// with returns the shape changed.
func (s Shape) with(change func(*Shape)) Shape {
	change(&s)
	return s
}

// usualHeads returns keys of an architecture with heads of the usual size, which none of them says.
func usualHeads(base float64, more map[string]any) map[string]any {
	all := map[string]any{"attention.key_length": nil, "attention.value_length": nil, "rope.freq_base": float32(base)}
	maps.Copy(all, more)
	return all
}

// goldens by name.
var goldens = map[string]golden{
	"llama3": {shape: Shape{Layers: 3, Dim: 192, Heads: 6, KV: 2, HeadDim: 32, RopeDim: 32, FFN: 384, Words: 4096 - 260}, seed: 1,
		keys: usualHeads(500000, nil)},
	"qwen2": {shape: Shape{Layers: 3, Dim: 192, Heads: 6, KV: 2, HeadDim: 32, RopeDim: 32, FFN: 448, Words: words, Tied: true}, seed: 2,
		keys: usualHeads(1e6, map[string]any{eps: float32(1e-6)}), sizes: tiedSizes},
	"gemma": {shape: Shape{Layers: 3, Dim: 160, Heads: 4, KV: 1, HeadDim: 64, RopeDim: 64, FFN: 320, Words: words}, seed: 3,
		keys: map[string]any{"rope.freq_base": float32(10000), eps: float32(1e-6)}, sizes: gemmaSizes},
	"gemma2": {shape: Shape{Layers: 6, Dim: 96, Heads: 2, KV: 1, HeadDim: 48, RopeDim: 48, FFN: 128, Words: words, Window: 16}, seed: 4,
		keys: map[string]any{"rope.freq_base": float32(10000), eps: float32(1e-6)}, sizes: gemmaSizes},
	"granite": {shape: small.with(tied), seed: 5, keys: usualHeads(10000, graniteKeys(8)), sizes: graniteSizes},
	"granitemoe": {shape: moe.with(func(s *Shape) { s.HeadDim, s.RopeDim, s.Tied = 32, 32, true }), seed: 6,
		keys: usualHeads(10000, graniteKeys(6)), sizes: graniteSizes},
	"smollm3": {shape: small.with(func(s *Shape) { s.Layers, s.Tied = 5, true }), seed: 7,
		keys: usualHeads(5e6, map[string]any{eps: float32(1e-6)}), sizes: tiedSizes},
	"mistral3": {shape: small.with(tied), seed: 8, sizes: tiedSizes, keys: map[string]any{"rope.freq_base": float32(1e6),
		"rope.scaling.factor": float32(16), "rope.scaling.original_context_length": u(32), "attention.temperature_scale": float32(0.1),
		"rope.scaling.yarn_beta_fast": float32(32), "rope.scaling.yarn_beta_slow": float32(1)}},
	"glm4": {shape: small.with(func(s *Shape) { s.RopeDim, s.FFN = 16, 192 }), seed: 9, keys: usualHeads(10000, nil),
		sizes: map[string]size{"ffn_down": gain(1)}},
	"phi3-longrope":  phi3Golden(32),
	"phi3-shortrope": phi3Golden(4096),
	"qwen3moe": {shape: moe, seed: 11, keys: map[string]any{"rope.freq_base": float32(1e6), eps: float32(1e-6)},
		sizes: map[string]size{"token_embd": {deviation: 1}, "attn_q_norm": near(1.3, 0.25), "attn_k_norm": near(1.3, 0.25)}},
	"gpt-oss":       ossGolden,
	"gpt-oss-mxfp4": ossGolden,
	"deepseek2":     {shape: mla.with(func(s *Shape) { s.Layers, s.Latent, s.Turned = 2, 512, 64 }), seed: 13, keys: deepseekKeys},
	"deepseek2-kvb": {shape: mla, seed: 14, keys: deepseekKeys},
	"qwen35":        {shape: hybrid, seed: 15, keys: hybridKeys(nil), sizes: hybridSizes},
	"qwen35moe": {shape: hybrid.with(func(s *Shape) { s.FFN, s.Experts, s.Used, s.Width = 48, 8, 2, 32 }), seed: 16,
		keys: hybridKeys(map[string]any{"feed_forward_length": u(32)}), sizes: hybridSizes},
	"gemma4": {shape: gemma, seed: 17, sizes: gemma4Sizes,
		keys: gemma4Keys(map[string]any{"attention.head_count_kv": u(1)})},
	"gemma4-moe": {shape: gemma.with(func(s *Shape) { s.Layers, s.KV, s.Experts, s.Used, s.Width = 3, 2, 8, 2, 32 }), seed: 18,
		keys: gemma4Keys(map[string]any{"feed_forward_length": u(128)}), sizes: gemma4Sizes},
	"gemma4-assistant": {shape: Shape{Layers: 3, Dim: 64, Heads: 4, FFN: 96, Words: words, Window: 8}, seed: 19,
		keys: gemma4Keys(map[string]any{"nextn_predict_layers": u(3)}),
		sizes: map[string]size{"token_embd": {deviation: 0.3}, "attn_q": gain(1), "ffn_down": gain(1), "attn_q_norm": near(0.6, 0.1),
			"layer_output_scale": near(0.7, 0.1)}},
}

const eps = "attention.layer_norm_rms_epsilon"

func tied(s *Shape) { s.Tied = true }

// Where the embedding is the output matrix too, the last norm gives logits their size.
var (
	tiedSizes    = map[string]size{"output_norm": near(0.5, 0.1)}
	gemmaSizes   = map[string]size{"token_embd": {deviation: 0.1}, "output_norm": near(5, 1)}
	graniteSizes = map[string]size{"token_embd": {deviation: 0.01}, "output_norm": near(160, 32), "attn_q": gain(2.5),
		"attn_k": gain(2.5)}
	gemma4Sizes = map[string]size{"token_embd": {deviation: 0.044}, "output_norm": near(5, 1), "attn_q": gain(1), "attn_k": gain(1),
		"attn_q_norm": near(0.4, 0.08), "attn_k_norm": near(0.4, 0.08), "ffn_down": gain(1), "ffn_down_exps": gain(1),
		"ffn_gate_inp": gain(17), "per_layer_token_embd": gain(2.5), "layer_output_scale": near(0.8, 0.15)}
	hybridSizes = map[string]size{"attn_qkv": gain(1), "attn_q_norm": near(1.4, 0.25), "attn_k_norm": near(1.4, 0.25),
		"ssm_conv1d": near(0, 0.6), "ssm_a": near(-0.7, 0.2), "ssm_dt.bias": near(-0.9, 0.3)}
)

func graniteKeys(logits float64) map[string]any {
	return map[string]any{"embedding_scale": float32(12), "residual_scale": float32(0.22), "attention.scale": float32(0.05),
		"logit_scale": float32(logits)}
}

// phi3Golden has the same weights for every original context: within it RoPE has the factors of one table, beyond it those of the other.
func phi3Golden(original int) golden {
	return golden{shape: small.with(func(s *Shape) { s.RopeDim, s.FFN, s.Tied = 24, 192, true }), seed: 10,
		keys: usualHeads(10000, map[string]any{"rope.scaling.original_context_length": u(original),
			"rope.scaling.attn_factor": float32(1.19), "attention.sliding_window": u(262144)}),
		sizes: map[string]size{"output_norm": near(0.5, 0.1), "rope_factors_long": near(12, 3), "rope_factors_short": near(1.8, 0.2)}}
}

// ossGolden has RoPE frequencies of which YaRN's ends are whole pairs: engines differ in whether they round them.
var ossGolden = golden{shape: oss, seed: 12, keys: map[string]any{"rope.freq_base": float32(1050000), "context_length": u(131072),
	"rope.scaling.factor": float32(32), "rope.scaling.original_context_length": u(6437)},
	sizes: map[string]size{"token_embd": {deviation: 1}, "attn_q": gain(1.5), "attn_k": gain(1.5), "ffn_gate_exps": gain(4),
		"ffn_up_exps": gain(4), "ffn_down_exps": gain(0.25), "attn_sinks": near(1, 0.8), "ffn_gate_inp.bias": near(0, 0.3)}}

var deepseekKeys = map[string]any{"rope.freq_base": float32(10000), eps: float32(1e-6), "expert_weights_scale": float32(2.5)}

func hybridKeys(more map[string]any) map[string]any {
	all := map[string]any{"rope.freq_base": float32(1e7), eps: float32(1e-6)}
	maps.Copy(all, more)
	return all
}

func gemma4Keys(more map[string]any) map[string]any {
	all := map[string]any{"rope.freq_base": float32(1e6), eps: float32(1e-6)}
	maps.Copy(all, more)
	return all
}

// Goldens lists the golden models.
func Goldens() []string { return slices.Sorted(maps.Keys(goldens)) }

// made are the files of golden models that a process has made, by name: tests open each many times.
var made struct {
	sync.Mutex
	files map[string][]byte
}

// Golden returns the golden model of that name. The caller owns it.
func Golden(name string) *Model {
	made.Lock()
	defer made.Unlock()
	if made.files == nil {
		made.files = map[string][]byte{}
	}
	if made.files[name] == nil {
		m, b := makeGolden(name), bytes.Buffer{}
		if err := m.writeTo(&b, m.Tensors); err != nil {
			panic(err)
		}
		made.files[name] = b.Bytes()
	}
	f, err := gguf.Parse(made.files[name])
	if err != nil {
		panic(err)
	}
	m, err := read(f)
	if err != nil {
		panic(err)
	}
	m.Name = name
	return m
}

func makeGolden(name string) *Model {
	g, ok := goldens[name]
	if !ok {
		panic("there is no golden model " + name)
	}
	f, ok := families[name]
	if !ok {
		f = assistants[name]
	}
	b := newBuilder(name, f.arch, g.shape, g.seed)
	b.draw = func() float64 { return bell(b.r) }
	b.sizes = maps.Clone(goldenSizes)
	maps.Copy(b.sizes, g.sizes)
	b.m.SetAny("general.name", "a golden model") // llama.cpp wants further tokens of models whose name is phi3
	f.build(b)
	b.finish()
	b.key("context_length", u(4096))
	for _, key := range slices.Sorted(maps.Keys(g.keys)) { // in the same order every time
		if v := g.keys[key]; v == nil {
			b.m.DropKey(key)
		} else {
			b.key(key, v)
		}
	}
	return b.m
}

// bell returns a number around 0 of deviation 1, by operations that have one result everywhere.
func bell(r *rand.Rand) float64 {
	x, sum := r.Uint64(), 0
	for range 4 {
		sum += int(x & 0xffff)
		x >>= 16
	}
	return float64(sum-2*0xffff) / 37837
}

// kind is a tensor's name without its layer, and without "weight".
func kind(name string) string {
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		_, name, _ = strings.Cut(rest, ".")
	}
	return strings.TrimSuffix(name, ".weight")
}
