package blocks

import (
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Traits are the differences between the architectures; program.go has what they share. The first
// three change what a pass computes, the others what a file holds and which defaults its keys have.
type Traits struct {
	Halves     bool          // RoPE pairs elements (i, i+n/2) of a head instead of (2i, 2i+1)
	Curve      kernels.Curve // of the feed-forward gate
	ScaleEmbed bool          // embeddings are multiplied by √d

	HeadNorms   bool // q and k are normalised head by head before RoPE
	PostNorms   bool // the output of attention and feed-forward is normalised before it is added
	Fused       bool // one tensor may hold q, k and v, another gate and up
	RopeFactors bool // tensors may hold a factor for each of RoPE's frequencies

	// Of every `period` layers, all but the last attend through the sliding window; 0: every layer does;
	// 1: none does, and a window in the file is refused.
	Period    int
	Window    int     // default of attention.sliding_window; 0: no window
	NoRoPE    int     // of every so many layers the last has no RoPE; 0: all have
	LocalBase float64 // default RoPE base of layers with a window; 0: as in the others

	Caps              bool // reads the soft caps of attention scores and logits
	AttnCap, FinalCap float64
	WideScale         int // with so many layers, scores are scaled by 1/√(d/heads) instead of 1/√headDim

	Reads []string // those of specialKeys that are part of the architecture

	Sinks      bool // each head has a score without a value; layers have a window
	AfterNorm  bool // the feed-forward's norm is named post_attention_norm
	ExactTurns bool // YaRN's ends are not rounded to whole pairs

	// Layers with a window have heads of a size of their own, and no factors of RoPE's frequencies. The last layers may read what earlier
	// ones keep.
	LocalHeads bool
	ValueNorms bool // values are normalised head by head; where a layer has no matrix for them, they are its keys before their norm
	Unscaled   bool // attention scores are not scaled
	LayerScale bool // what a layer leaves is scaled
	Beside     bool // experts, if there are any, work beside the feed-forward block

	DeltaNet   bool // most layers are gated delta nets in place of attention, and attention has a gate
	Latent     bool // keeps a latent vector for all heads: see latent
	Shares     bool // weights of experts are shares of all, unless the file says otherwise
	SharedGate bool // what the shared expert makes is multiplied by a sigmoid

	Guesses bool // an assistant, whose layers all guess further tokens

	MtpBeforeNorm bool // the layer that guesses further tokens reads the hidden state before the final norm, not behind it
}

// ffnNorm names the tensor of the norm before the feed-forward block.
func (t *Traits) ffnNorm() string {
	if t.AfterNorm {
		return "post_attention_norm.weight"
	}
	return "ffn_norm.weight"
}

// Architectures are those that run. Defaults for absent keys are llama.cpp's, which most files were made for:
// gemma2's defaults and even local layers, gemma3's five local layers of six, and the scale of attention scores
// of the 27-billion models, which are recognised by their number of layers.
var Architectures = map[string]Traits{
	"llama": {RopeFactors: true},
	"qwen2": {Halves: true, Period: 1},
	"qwen3": {Halves: true, Period: 1, HeadNorms: true},
	"gemma": {Halves: true, Period: 1, Curve: kernels.GELU, ScaleEmbed: true},
	"gemma2": {Halves: true, Period: 2, Window: 4096, Curve: kernels.GELU, ScaleEmbed: true, PostNorms: true,
		Caps: true, AttnCap: 50, FinalCap: 30, WideScale: 46},
	"gemma3": {Halves: true, Period: 6, LocalBase: 10000, Curve: kernels.GELU, ScaleEmbed: true, PostNorms: true, HeadNorms: true,
		Caps: true, WideScale: 62},
	"phi3": {Halves: true, Fused: true, RopeFactors: true},
	"granite": {RopeFactors: true, Period: 1, Reads: []string{keyEmbedScale, keyResidualScale, KeyAttnScale, keyLogitScale,
		keyTurned}},
	"glm4":     {Period: 1, PostNorms: true, Fused: true},
	"smollm3":  {Period: 1, NoRoPE: 4},
	"mistral3": {Period: 1, Reads: []string{keyYarnLog, keyTemperature}},
	"granitemoe": {RopeFactors: true, Period: 1, Reads: []string{keyEmbedScale, keyResidualScale, KeyAttnScale, keyLogitScale,
		keyTurned, KeyExperts}},
	"qwen3moe": {Halves: true, Period: 1, HeadNorms: true, Reads: []string{KeyExperts}},
	"deepseek2": {Period: 1, Latent: true, Shares: true, MtpBeforeNorm: true,
		Reads: []string{KeyExperts, KeyShared, KeyDense, KeyGroups, keyYarnLog, KeyRank, KeyMTP}},
	"gpt-oss": {Halves: true, Period: 2, Curve: kernels.ClampedSiLU, Sinks: true, AfterNorm: true, ExactTurns: true,
		Reads: []string{KeyExperts}},
	"gemma4": {Halves: true, LocalBase: 10000, Curve: kernels.GELU, ScaleEmbed: true, PostNorms: true, HeadNorms: true, RopeFactors: true,
		Caps: true, FinalCap: 30, LocalHeads: true, ValueNorms: true, Unscaled: true, LayerScale: true, Beside: true,
		Reads: []string{KeyExperts, keySharedKV, keyLayerInput}},
	"qwen35": {Halves: true, Period: 1, HeadNorms: true, AfterNorm: true, DeltaNet: true, Reads: []string{keySections, KeyMTP}},
	"qwen35moe": {Halves: true, Period: 1, HeadNorms: true, AfterNorm: true, DeltaNet: true, SharedGate: true,
		Reads: []string{keySections, KeyExperts, KeyShared, KeySharedWidth, KeyMTP}},
}

// Keys that some architectures have.
const (
	keySections      = "rope.dimension_sections"
	keyEmbedScale    = "embedding_scale"
	keyResidualScale = "residual_scale"
	KeyAttnScale     = "attention.scale"
	keyLogitScale    = "logit_scale"
	keyYarnLog       = "rope.scaling.yarn_log_multiplier"
	keyTemperature   = "attention.temperature_scale"
	KeyExperts       = "expert_count"
	KeyShared        = "expert_shared_count" // experts that every row uses, as one of so many times the width
	KeySharedWidth   = "expert_shared_feed_forward_length"
	KeyDense         = "leading_dense_block_count"
	keyTurned        = "rope.scaling.finetuned" // false: no layer has RoPE. Other architectures say other things with it
)

// specialKeys change the function in ways that tandem computes for the architectures alone that read them, if any. Elsewhere a value
// other than 0 or false is refused.
var specialKeys = []string{
	KeyExperts, KeyShared, KeySharedWidth, KeyGroups, KeyDense, KeyRank,
	"interleave_moe_layer_step", KeyAttnScale, "attention.clamp_kqv", "attention.max_alibi_bias", keyEmbedScale, keyResidualScale,
	keyLogitScale, "use_parallel_residual", keyYarnLog, keyTemperature, keySections, "rope.scaling.yarn_ext_factor",
	"rope.scaling.yarn_attn_factor", keySharedKV, keyLayerInput, KeyMTP,
}

// LayerShape holds what may differ from layer to layer.
type LayerShape struct {
	Heads, KVHeads, FFN int
	Local               bool // attends through the window, if the model has one
	Unturned            bool // has no RoPE
	HeadDim             int
	Source              int  // the layer whose keys and values it reads: itself, or an earlier one
	Expert              int  // inner size of an expert; 0: no experts
	Shared              int  // inner size of the expert that every row uses; 0: none
	Recurrent           bool // is a delta net, without attention
}

// readTraits returns the traits of the file's architecture.
func (h *Reader) readTraits() (Traits, error) {
	arch, err := h.File.String("general.architecture")
	if err != nil {
		return Traits{}, err
	}
	h.Arch = arch
	t, ok := Architectures[arch]
	switch {
	case arch == "clip" || arch == "mmproj":
		h.Fail(tandem.Unsupported, "architecture %q: a tower that reads pictures or sound, without a language model: want the file of the "+
			"language model, whose texts do not depend on it", arch)
	case !ok:
		var names []string
		for name := range Architectures {
			names = append(names, name)
		}
		slices.Sort(names)
		h.Fail(tandem.Unsupported, "architecture %q: supported are %s", arch, strings.Join(names, ", "))
	}
	return t, h.Err
}

// PerLayer reads a count that may be one number or an array with one for each layer.
func (h *Reader) PerLayer(key string, def []int, most, layers int) []int {
	full := h.Arch + "." + key
	if !h.File.IsArray(full) {
		if def != nil && !h.File.Has(full) {
			return def
		}
		return slices.Repeat([]int{h.Count(key, -1, most)}, layers)
	}
	all, err := h.File.Ints(full, 1, most)
	if h.Keep(err); err == nil && len(all) != layers {
		h.Fail(tandem.Corrupt, "key %q has %d elements: want one for each of %d layers", full, len(all), layers)
	}
	if h.Err != nil {
		return make([]int, layers)
	}
	return all
}

// readLayers fills in the layers' shapes, and in c the largest of each size. block_count must be known.
func (h *Reader) readLayers(c *Config) {
	heads := h.PerLayer("attention.head_count", nil, MaxHeads, c.Layers)
	kv := h.PerLayer("attention.head_count_kv", heads, MaxHeads, c.Layers)
	ffn, expert := h.widths(c)
	if h.Err != nil {
		return
	}
	for i := range heads {
		if heads[i]%kv[i] != 0 {
			h.Fail(tandem.Corrupt, "layer %d: %d heads are no multiple of %d key-value heads", i, heads[i], kv[i])
		}
		c.Shapes = append(c.Shapes, LayerShape{Heads: heads[i], KVHeads: kv[i], FFN: ffn[i], Expert: expert[i]})
	}
	c.Heads, c.KVHeads, c.FFN = slices.Max(heads), slices.Max(kv), slices.Max(ffn)
}

// readWindow finds which layers attend through a sliding window, and its size; a window that no sequence reaches is 0.
func (h *Reader) readWindow(c *Config) {
	key, pattern := h.Arch+".attention.sliding_window", h.Arch+".attention.sliding_window_pattern"
	window := c.Traits.Window
	if h.File.Has(key) {
		v, err := h.File.Int(key, 0, math.MaxInt32)
		h.Keep(err)
		window = v
	}
	period := c.Traits.Period
	switch {
	case window == 0 && (c.Traits.Sinks || c.Traits.LocalHeads):
		h.Fail(tandem.Corrupt, "key %q is 0 or missing: want the window of the %s architecture, at least 1", key, h.Arch)
		return
	case window == 0:
		return
	case h.File.IsArray(pattern):
		local, err := h.File.Bools(pattern)
		if h.Keep(err); err == nil && len(local) != c.Layers {
			h.Fail(tandem.Corrupt, "key %q has %d elements: want one for each of %d layers", pattern, len(local), c.Layers)
		}
		for i := 0; i < min(len(local), c.Layers); i++ {
			c.Shapes[i].Local = local[i]
		}
	case h.File.Has(pattern):
		v, err := h.File.Int(pattern, 0, MaxLayers)
		h.Keep(err)
		period = v
		fallthrough
	default:
		if c.Traits.LocalHeads && !h.File.Has(pattern) {
			h.Fail(tandem.Corrupt, "key %q is missing: want true (window) or false for each of %d layers", pattern, c.Layers)
			return
		}
		if period == 1 && window < c.Context && !h.File.Has(pattern) {
			h.Fail(tandem.Unsupported, "key %q is %d: the %s architecture has no sliding window as tandem runs it", key, window, h.Arch)
		}
		for i := range c.Shapes {
			c.Shapes[i].Local = period == 0 || i%period < period-1
		}
	}
	if window < c.Context {
		c.Window = window
	}
}

// readScales reads what scores and logits are multiplied with and capped by.
func (h *Reader) readScales(c *Config) {
	c.AttnScale = float32(1 / math.Sqrt(float64(c.HeadDim)))
	if c.Traits.Unscaled {
		c.AttnScale = 1
	}
	if c.Layers == c.Traits.WideScale {
		c.AttnScale = float32(1 / math.Sqrt(float64(c.Dim)/float64(c.Shapes[0].Heads)))
	}
	if c.Traits.Latent {
		c.AttnScale = h.latentScale(c)
	}
	c.AttnScale = h.Multiplier(&c.Traits, KeyAttnScale, c.AttnScale)
	c.EmbedScale = h.Multiplier(&c.Traits, keyEmbedScale, c.UsualEmbedScale())
	c.ResidualScale = h.Multiplier(&c.Traits, keyResidualScale, 1)
	c.Temperature = h.Multiplier(&c.Traits, keyTemperature, 0)
	if steps := c.temperatureSteps(); steps > maxSteps {
		h.Fail(tandem.Unsupported,
			"key %q is %v: queries of %d positions, with a factor for each %d, have %d factors: tandem runs up to %d",
			h.Arch+"."+keyTemperature, c.Temperature, c.Context, c.Rope.Original, steps, maxSteps)
	}
	c.LogitScale = 1 / h.Multiplier(&c.Traits, keyLogitScale, 1)
	limit := func(key string, def float64) float32 {
		v, err := h.File.FloatOr(h.Arch+"."+key, def)
		h.Keep(err)
		switch {
		case v != 0 && !c.Traits.Caps:
			h.Fail(tandem.Unsupported, "key %q is %v: the %s architecture has no soft cap as tandem runs it", h.Arch+"."+key, v, h.Arch)
		case v != 0 && !(v >= 1e-3 && v <= 1e6):
			h.Fail(tandem.Corrupt, "key %q is %v: want 0, or from 0.001 to 1e6", h.Arch+"."+key, v)
		}
		return float32(v)
	}
	c.AttnCap = limit("attn_logit_softcapping", c.Traits.AttnCap)
	c.FinalCap = limit("final_logit_softcapping", c.Traits.FinalCap)
}

// UsualEmbedScale returns what embeddings are multiplied by if no key says so.
func (c *Config) UsualEmbedScale() float32 {
	if c.Traits.ScaleEmbed {
		return float32(math.Sqrt(float64(c.Dim)))
	}
	return 1
}

// Multiplier reads a factor; def if the file or the architecture has none.
func (h *Reader) Multiplier(t *Traits, key string, def float32) float32 {
	if !slices.Contains(t.Reads, key) || !h.File.Has(h.Arch+"."+key) {
		return def
	}
	v, err := h.File.Float(h.Arch + "." + key)
	if h.Keep(err); err == nil && !(v >= minMultiplier && v <= maxMultiplier) {
		h.Fail(tandem.Corrupt, "key %q is %v: want %v to %v", h.Arch+"."+key, v, minMultiplier, maxMultiplier)
	}
	return float32(v)
}

// Bounds of what residuals, scores and logits are multiplied with. Published models have 0.008 to 24.
const minMultiplier, maxMultiplier = 1e-6, 1e6

// Bound of the factors of queries. Published models have 16: a context of 2^18 positions, trained on 2^14.
const maxSteps = 1 << 16

// temperatureSteps returns how many factors queries may have: one for each rope.original positions of the context; 0: none.
func (c *Config) temperatureSteps() int {
	if c.Temperature == 0 {
		return 0
	}
	return (c.Context-1)/c.Rope.Original + 1
}

// temperatures returns the factors of queries: 1 + temperature·ln(1 + step).
func (c *Config) temperatures() (factors []float32) {
	for step := range c.temperatureSteps() {
		factors = append(factors, float32(1+float64(float64(c.Temperature)*Ln(float64(1+step)))))
	}
	return factors
}

// readTurned finds the layers whose heads do not turn.
func (h *Reader) readTurned(c *Config) {
	turned := true
	if slices.Contains(c.Traits.Reads, keyTurned) {
		var err error
		turned, err = h.File.BoolOr(h.Arch+"."+keyTurned, true)
		h.Keep(err)
	}
	for i := range c.Shapes {
		c.Shapes[i].Unturned = !turned || c.Traits.NoRoPE > 0 && (i+1)%c.Traits.NoRoPE == 0
	}
}

// refuse reports the first key that would change the text but is not supported.
func (h *Reader) refuse(t *Traits) {
	for _, name := range specialKeys {
		key := h.Arch + "." + name
		if !h.File.Has(key) || slices.Contains(t.Reads, name) {
			continue
		}
		if off, err := h.File.Bool(key); err == nil && !off {
			continue
		}
		if v, err := h.File.Float(key); err != nil || v != 0 {
			h.Fail(tandem.Unsupported, "key %q is %s: not part of the %s architecture as tandem runs it", key, h.File.Describe(key), h.Arch)
		}
	}
	if causal, err := h.File.BoolOr(h.Arch+".attention.causal", true); err != nil || !causal {
		h.Fail(tandem.Unsupported, "key %q is not true: tandem runs causal models", h.Arch+".attention.causal")
	}
}
