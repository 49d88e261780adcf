package engine

import (
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// traits are the differences between the architectures; program.go has what they share. The first
// three change what a pass computes, the others what a file holds and which defaults its keys have.
type traits struct {
	halves     bool          // RoPE pairs elements (i, i+n/2) of a head instead of (2i, 2i+1)
	curve      kernels.Curve // of the feed-forward gate
	scaleEmbed bool          // embeddings are multiplied by √d

	headNorms   bool // q and k are normalised head by head before RoPE
	postNorms   bool // the output of attention and feed-forward is normalised before it is added
	fused       bool // one tensor may hold q, k and v, another gate and up
	ropeFactors bool // tensors may hold a factor for each of RoPE's frequencies

	// Of every `period` layers, all but the last attend through the sliding window; 0: every layer does;
	// 1: none does, and a window in the file is refused.
	period    int
	window    int     // default of attention.sliding_window; 0: no window
	noRoPE    int     // of every so many layers the last has no RoPE; 0: all have
	localBase float64 // default RoPE base of layers with a window; 0: as in the others

	caps              bool // reads the soft caps of attention scores and logits
	attnCap, finalCap float64
	wideScale         int // with so many layers, scores are scaled by 1/√(d/heads) instead of 1/√headDim

	reads []string // those of specialKeys that are part of the architecture

	sinks      bool // each head has a score without a value; layers have a window
	afterNorm  bool // the feed-forward's norm is named post_attention_norm
	exactTurns bool // YaRN's ends are not rounded to whole pairs

	// Layers with a window have heads of a size of their own, and no factors of RoPE's frequencies. The last layers may read what earlier
	// ones keep.
	localHeads bool
	valueNorms bool // values are normalised head by head; where a layer has no matrix for them, they are its keys before their norm
	unscaled   bool // attention scores are not scaled
	layerScale bool // what a layer leaves is scaled
	beside     bool // experts, if there are any, work beside the feed-forward block

	deltaNet   bool // most layers are gated delta nets in place of attention, and attention has a gate
	latent     bool // keeps a latent vector for all heads: see latent
	shares     bool // weights of experts are shares of all, unless the file says otherwise
	sharedGate bool // what the shared expert makes is multiplied by a sigmoid

	guesses bool // an assistant, whose layers all guess further tokens

	mtpBeforeNorm bool // the layer that guesses further tokens reads the hidden state before the final norm, not behind it
}

// ffnNorm names the tensor of the norm before the feed-forward block.
func (t *traits) ffnNorm() string {
	if t.afterNorm {
		return "post_attention_norm.weight"
	}
	return "ffn_norm.weight"
}

// architectures are those that run. Defaults for absent keys are llama.cpp's, which most files were made for:
// gemma2's defaults and even local layers, gemma3's five local layers of six, and the scale of attention scores
// of the 27-billion models, which are recognised by their number of layers.
var architectures = map[string]traits{
	"llama": {ropeFactors: true},
	"qwen2": {halves: true, period: 1},
	"qwen3": {halves: true, period: 1, headNorms: true},
	"gemma": {halves: true, period: 1, curve: kernels.GELU, scaleEmbed: true},
	"gemma2": {halves: true, period: 2, window: 4096, curve: kernels.GELU, scaleEmbed: true, postNorms: true,
		caps: true, attnCap: 50, finalCap: 30, wideScale: 46},
	"gemma3": {halves: true, period: 6, localBase: 10000, curve: kernels.GELU, scaleEmbed: true, postNorms: true, headNorms: true,
		caps: true, wideScale: 62},
	"phi3": {halves: true, fused: true, ropeFactors: true},
	"granite": {ropeFactors: true, period: 1, reads: []string{keyEmbedScale, keyResidualScale, keyAttnScale, keyLogitScale,
		keyTurned}},
	"glm4":     {period: 1, postNorms: true, fused: true},
	"smollm3":  {period: 1, noRoPE: 4},
	"mistral3": {period: 1, reads: []string{keyYarnLog, keyTemperature}},
	"granitemoe": {ropeFactors: true, period: 1, reads: []string{keyEmbedScale, keyResidualScale, keyAttnScale, keyLogitScale,
		keyTurned, keyExperts}},
	"qwen3moe": {halves: true, period: 1, headNorms: true, reads: []string{keyExperts}},
	"deepseek2": {period: 1, latent: true, shares: true, mtpBeforeNorm: true,
		reads: []string{keyExperts, keyShared, keyDense, keyGroups, keyYarnLog, keyRank, keyMTP}},
	"gpt-oss": {halves: true, period: 2, curve: kernels.ClampedSiLU, sinks: true, afterNorm: true, exactTurns: true,
		reads: []string{keyExperts}},
	"gemma4": {halves: true, localBase: 10000, curve: kernels.GELU, scaleEmbed: true, postNorms: true, headNorms: true, ropeFactors: true,
		caps: true, finalCap: 30, localHeads: true, valueNorms: true, unscaled: true, layerScale: true, beside: true,
		reads: []string{keyExperts, keySharedKV, keyLayerInput}},
	"qwen35": {halves: true, period: 1, headNorms: true, afterNorm: true, deltaNet: true, reads: []string{keySections, keyMTP}},
	"qwen35moe": {halves: true, period: 1, headNorms: true, afterNorm: true, deltaNet: true, sharedGate: true,
		reads: []string{keySections, keyExperts, keyShared, keySharedWidth, keyMTP}},
}

// Keys that some architectures have.
const (
	keySections      = "rope.dimension_sections"
	keyEmbedScale    = "embedding_scale"
	keyResidualScale = "residual_scale"
	keyAttnScale     = "attention.scale"
	keyLogitScale    = "logit_scale"
	keyYarnLog       = "rope.scaling.yarn_log_multiplier"
	keyTemperature   = "attention.temperature_scale"
	keyExperts       = "expert_count"
	keyShared        = "expert_shared_count" // experts that every row uses, as one of so many times the width
	keySharedWidth   = "expert_shared_feed_forward_length"
	keyDense         = "leading_dense_block_count"
	keyTurned        = "rope.scaling.finetuned" // false: no layer has RoPE. Other architectures say other things with it
)

// specialKeys change the function in ways that tandem computes for the architectures alone that read them, if any. Elsewhere a value
// other than 0 or false is refused.
var specialKeys = []string{
	keyExperts, keyShared, keySharedWidth, keyGroups, keyDense, keyRank,
	"interleave_moe_layer_step", keyAttnScale, "attention.clamp_kqv", "attention.max_alibi_bias", keyEmbedScale, keyResidualScale,
	keyLogitScale, "use_parallel_residual", keyYarnLog, keyTemperature, keySections, "rope.scaling.yarn_ext_factor",
	"rope.scaling.yarn_attn_factor", keySharedKV, keyLayerInput, keyMTP,
}

// layerShape holds what may differ from layer to layer.
type layerShape struct {
	heads, kvHeads, ffn int
	local               bool // attends through the window, if the model has one
	unturned            bool // has no RoPE
	headDim             int
	source              int  // the layer whose keys and values it reads: itself, or an earlier one
	expert              int  // inner size of an expert; 0: no experts
	shared              int  // inner size of the expert that every row uses; 0: none
	recurrent           bool // is a delta net, without attention
}

// readTraits returns the traits of the file's architecture.
func (h *hyper) readTraits() (traits, error) {
	arch, err := h.file.String("general.architecture")
	if err != nil {
		return traits{}, err
	}
	h.arch = arch
	t, ok := architectures[arch]
	switch {
	case arch == "clip" || arch == "mmproj":
		h.fail(tandem.Unsupported, "architecture %q: a tower that reads pictures or sound, without a language model: want the file of the "+
			"language model, whose texts do not depend on it", arch)
	case !ok:
		var names []string
		for name := range architectures {
			names = append(names, name)
		}
		slices.Sort(names)
		h.fail(tandem.Unsupported, "architecture %q: supported are %s", arch, strings.Join(names, ", "))
	}
	return t, h.err
}

// perLayer reads a count that may be one number or an array with one for each layer.
func (h *hyper) perLayer(key string, def []int, most, layers int) []int {
	full := h.arch + "." + key
	if !h.file.IsArray(full) {
		if def != nil && !h.file.Has(full) {
			return def
		}
		return slices.Repeat([]int{h.count(key, -1, most)}, layers)
	}
	all, err := h.file.Ints(full, 1, most)
	if h.keep(err); err == nil && len(all) != layers {
		h.fail(tandem.Corrupt, "key %q has %d elements: want one for each of %d layers", full, len(all), layers)
	}
	if h.err != nil {
		return make([]int, layers)
	}
	return all
}

// readLayers fills in the layers' shapes, and in c the largest of each size. block_count must be known.
func (h *hyper) readLayers(c *Config) {
	heads := h.perLayer("attention.head_count", nil, maxHeads, c.Layers)
	kv := h.perLayer("attention.head_count_kv", heads, maxHeads, c.Layers)
	ffn, expert := h.widths(c)
	if h.err != nil {
		return
	}
	for i := range heads {
		if heads[i]%kv[i] != 0 {
			h.fail(tandem.Corrupt, "layer %d: %d heads are no multiple of %d key-value heads", i, heads[i], kv[i])
		}
		c.layers = append(c.layers, layerShape{heads: heads[i], kvHeads: kv[i], ffn: ffn[i], expert: expert[i]})
	}
	c.Heads, c.KVHeads, c.FFN = slices.Max(heads), slices.Max(kv), slices.Max(ffn)
}

// readWindow finds which layers attend through a sliding window, and its size; a window that no sequence reaches is 0.
func (h *hyper) readWindow(c *Config) {
	key, pattern := h.arch+".attention.sliding_window", h.arch+".attention.sliding_window_pattern"
	window := c.traits.window
	if h.file.Has(key) {
		v, err := h.file.Int(key, 0, math.MaxInt32)
		h.keep(err)
		window = v
	}
	period := c.traits.period
	switch {
	case window == 0 && (c.traits.sinks || c.traits.localHeads):
		h.fail(tandem.Corrupt, "key %q is 0 or missing: want the window of the %s architecture, at least 1", key, h.arch)
		return
	case window == 0:
		return
	case h.file.IsArray(pattern):
		local, err := h.file.Bools(pattern)
		if h.keep(err); err == nil && len(local) != c.Layers {
			h.fail(tandem.Corrupt, "key %q has %d elements: want one for each of %d layers", pattern, len(local), c.Layers)
		}
		for i := 0; i < min(len(local), c.Layers); i++ {
			c.layers[i].local = local[i]
		}
	case h.file.Has(pattern):
		v, err := h.file.Int(pattern, 0, maxLayers)
		h.keep(err)
		period = v
		fallthrough
	default:
		if c.traits.localHeads && !h.file.Has(pattern) {
			h.fail(tandem.Corrupt, "key %q is missing: want true (window) or false for each of %d layers", pattern, c.Layers)
			return
		}
		if period == 1 && window < c.Context && !h.file.Has(pattern) {
			h.fail(tandem.Unsupported, "key %q is %d: the %s architecture has no sliding window as tandem runs it", key, window, h.arch)
		}
		for i := range c.layers {
			c.layers[i].local = period == 0 || i%period < period-1
		}
	}
	if window < c.Context {
		c.window = window
	}
}

// readScales reads what scores and logits are multiplied with and capped by.
func (h *hyper) readScales(c *Config) {
	c.attnScale = float32(1 / math.Sqrt(float64(c.HeadDim)))
	if c.traits.unscaled {
		c.attnScale = 1
	}
	if c.Layers == c.traits.wideScale {
		c.attnScale = float32(1 / math.Sqrt(float64(c.Dim)/float64(c.layers[0].heads)))
	}
	if c.traits.latent {
		c.attnScale = h.latentScale(c)
	}
	c.attnScale = h.multiplier(&c.traits, keyAttnScale, c.attnScale)
	c.embedScale = h.multiplier(&c.traits, keyEmbedScale, c.usualEmbedScale())
	c.residualScale = h.multiplier(&c.traits, keyResidualScale, 1)
	c.temperature = h.multiplier(&c.traits, keyTemperature, 0)
	if steps := c.temperatureSteps(); steps > maxSteps {
		h.fail(tandem.Unsupported,
			"key %q is %v: queries of %d positions, with a factor for each %d, have %d factors: tandem runs up to %d",
			h.arch+"."+keyTemperature, c.temperature, c.Context, c.rope.original, steps, maxSteps)
	}
	c.logitScale = 1 / h.multiplier(&c.traits, keyLogitScale, 1)
	limit := func(key string, def float64) float32 {
		v, err := h.file.FloatOr(h.arch+"."+key, def)
		h.keep(err)
		switch {
		case v != 0 && !c.traits.caps:
			h.fail(tandem.Unsupported, "key %q is %v: the %s architecture has no soft cap as tandem runs it", h.arch+"."+key, v, h.arch)
		case v != 0 && !(v >= 1e-3 && v <= 1e6):
			h.fail(tandem.Corrupt, "key %q is %v: want 0, or from 0.001 to 1e6", h.arch+"."+key, v)
		}
		return float32(v)
	}
	c.attnCap = limit("attn_logit_softcapping", c.traits.attnCap)
	c.finalCap = limit("final_logit_softcapping", c.traits.finalCap)
}

// usualEmbedScale returns what embeddings are multiplied by if no key says so.
func (c *Config) usualEmbedScale() float32 {
	if c.traits.scaleEmbed {
		return float32(math.Sqrt(float64(c.Dim)))
	}
	return 1
}

// multiplier reads a factor; def if the file or the architecture has none.
func (h *hyper) multiplier(t *traits, key string, def float32) float32 {
	if !slices.Contains(t.reads, key) || !h.file.Has(h.arch+"."+key) {
		return def
	}
	v, err := h.file.Float(h.arch + "." + key)
	if h.keep(err); err == nil && !(v >= minMultiplier && v <= maxMultiplier) {
		h.fail(tandem.Corrupt, "key %q is %v: want %v to %v", h.arch+"."+key, v, minMultiplier, maxMultiplier)
	}
	return float32(v)
}

// Bounds of what residuals, scores and logits are multiplied with. Published models have 0.008 to 24.
const minMultiplier, maxMultiplier = 1e-6, 1e6

// Bound of the factors of queries. Published models have 16: a context of 2^18 positions, trained on 2^14.
const maxSteps = 1 << 16

// temperatureSteps returns how many factors queries may have: one for each rope.original positions of the context; 0: none.
func (c *Config) temperatureSteps() int {
	if c.temperature == 0 {
		return 0
	}
	return (c.Context-1)/c.rope.original + 1
}

// temperatures returns the factors of queries: 1 + temperature·ln(1 + step).
func (c *Config) temperatures() (factors []float32) {
	for step := range c.temperatureSteps() {
		factors = append(factors, float32(1+float64(float64(c.temperature)*ln(float64(1+step)))))
	}
	return factors
}

// readTurned finds the layers whose heads do not turn.
func (h *hyper) readTurned(c *Config) {
	turned := true
	if slices.Contains(c.traits.reads, keyTurned) {
		var err error
		turned, err = h.file.BoolOr(h.arch+"."+keyTurned, true)
		h.keep(err)
	}
	for i := range c.layers {
		c.layers[i].unturned = !turned || c.traits.noRoPE > 0 && (i+1)%c.traits.noRoPE == 0
	}
}

// refuse reports the first key that would change the text but is not supported.
func (h *hyper) refuse(t *traits) {
	for _, name := range specialKeys {
		key := h.arch + "." + name
		if !h.file.Has(key) || slices.Contains(t.reads, name) {
			continue
		}
		if off, err := h.file.Bool(key); err == nil && !off {
			continue
		}
		if v, err := h.file.Float(key); err != nil || v != 0 {
			h.fail(tandem.Unsupported, "key %q is %s: not part of the %s architecture as tandem runs it", key, h.file.Describe(key), h.arch)
		}
	}
	if causal, err := h.file.BoolOr(h.arch+".attention.causal", true); err != nil || !causal {
		h.fail(tandem.Unsupported, "key %q is not true: tandem runs causal models", h.arch+".attention.causal")
	}
}
