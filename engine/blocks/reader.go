package blocks

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Reader reads the hyper-parameters of an architecture from its keys, whose names its methods take without the prefix. The first error
// stays in Err; what methods return after it means nothing, so the caller checks Err once at the end.
type Reader struct {
	File *gguf.File
	Arch string // the prefix of keys
	Err  error
	read map[string]bool // by key without the prefix
}

// NewReader returns a reader of the keys of f that begin with the architecture's name.
func NewReader(f *gguf.File, arch string) *Reader {
	return &Reader{File: f, Arch: arch, read: map[string]bool{}}
}

// Fail sets Err to an error of kind k that begins with the file's path, unless there is one already.
func (h *Reader) Fail(k tandem.Kind, format string, args ...any) {
	if h.Err == nil {
		h.Err = tandem.Errorf("engine", k, "%s: %s", h.File.Path(), fmt.Sprintf(format, args...))
	}
}

// Keep sets Err to err, unless there is one already. nil is no error.
func (h *Reader) Keep(err error) {
	if h.Err == nil {
		h.Err = err
	}
}

// Knows notes that keys are part of the architecture, and returns the first one's whole name. Config refuses a key that would change the
// function (special) if nothing has asked for it.
func (h *Reader) Knows(keys ...string) string {
	for _, key := range keys {
		h.read[key] = true
	}
	return h.Arch + "." + keys[0]
}

// Has reports whether the file has a key. It does not count as asking for it: see Knows.
func (h *Reader) Has(key string) bool { return h.File.Has(h.Arch + "." + key) }

// Count reads a whole number from 1 to most; def stands for a missing key, and def < 0 makes the key required. It returns 1 after an error.
func (h *Reader) Count(key string, def, most int) int {
	if !h.Has(key) && def >= 0 {
		h.Knows(key)
		return def
	}
	v, err := h.File.Int(h.Knows(key), 1, most)
	if err != nil {
		h.Keep(err)
		return 1
	}
	return v
}

// Optional reads a whole number from 0 to most; 0 if the key is missing.
func (h *Reader) Optional(key string, most int) int {
	n, err := h.File.IntOr(h.Knows(key), 0, most, 0)
	h.Keep(err)
	return n
}

// Switch reads true or false; def stands for a missing key.
func (h *Reader) Switch(key string, def bool) bool {
	v, err := h.File.BoolOr(h.Knows(key), def)
	h.Keep(err)
	return v
}

// Number reads a finite number above 0; def stands for a missing key, and a negative def makes the key required.
func (h *Reader) Number(key string, def float64) float64 {
	full := h.Knows(key)
	if !h.Has(key) && def >= 0 {
		return def
	}
	v, err := h.File.Float(full)
	if err != nil {
		h.Keep(err)
		return 1
	}
	if !(v > 0) || math.IsInf(v, 0) {
		h.Fail(tandem.Corrupt, "key %q is %v: want a finite number above 0", full, v)
		return 1
	}
	return v
}

// Multiplier reads a factor from 1e-6 to 1e6; def stands for a missing key, and need not be in that range.
func (h *Reader) Multiplier(key string, def float32) float32 {
	full := h.Knows(key)
	if !h.Has(key) {
		return def
	}
	v, err := h.File.Float(full)
	if h.Keep(err); err == nil && !(v >= minMultiplier && v <= maxMultiplier) {
		h.Fail(tandem.Corrupt, "key %q is %v: want %v to %v", full, v, minMultiplier, maxMultiplier)
	}
	return float32(v)
}

// SoftCap reads a soft cap: 0 for none, or 0.001 to 1e6; def stands for a missing key.
func (h *Reader) SoftCap(key string, def float64) float32 {
	full := h.Knows(key)
	v, err := h.File.FloatOr(full, def)
	if h.Keep(err); v != 0 && !(v >= 1e-3 && v <= 1e6) {
		h.Fail(tandem.Corrupt, "key %q is %v: want 0, or from 0.001 to 1e6", full, v)
	}
	return float32(v)
}

// PerLayer reads a count from 1 to most for each layer: the file has one number or an array. def, one for each layer, stands for a missing
// key; nil makes the key required.
func (h *Reader) PerLayer(key string, def []int, most, layers int) []int {
	full := h.Knows(key)
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

const leastContext = 2 // tokens

// Config reads and checks the hyper-parameters of a model, by family.Read for what is its own; vocab is the size of its vocabulary, dim the
// hidden size. Errors: Corrupt, Unsupported.
func (h *Reader) Config(family Family, vocab, dim int) (Config, error) {
	c := Config{
		Arch:          h.Arch,
		Name:          h.Arch,
		Family:        family,
		Layers:        h.Count("block_count", -1, MaxLayers),
		Dim:           dim,
		Context:       h.Count("context_length", -1, maxCtx),
		Vocab:         h.Count("vocab_size", vocab, MaxVocab),
		NormEps:       float32(h.Number("attention.layer_norm_rms_epsilon", -1)),
		EmbedScale:    1,
		ResidualScale: 1, LogitScale: 1, UsualEmbedScale: 1,
	}
	if h.File.Has("general.name") {
		var err error
		c.Name, err = h.File.String("general.name")
		h.Keep(err)
	}
	if h.Err != nil {
		return Config{}, h.Err
	}
	if family.Read(h, &c); h.Err != nil {
		return Config{}, h.Err
	}
	if c.Context < leastContext {
		h.Fail(tandem.Unsupported, "%s.context_length is %d: want at least %d, for a token of the prompt and one to generate", h.Arch,
			c.Context, leastContext)
	}
	if c.Vocab != vocab {
		h.Fail(tandem.Corrupt, "vocabulary size %d, but the tokenizer has %d tokens", c.Vocab, vocab)
	}
	h.refuse()
	return c, h.Err
}

// Layers makes c.Shapes for layers without experts: it reads the heads of each, and the widths of their feed-forward blocks.
func (h *Reader) Layers(c *Config) {
	h.LayerHeads(c)
	h.Widths(c, h.PerLayer("feed_forward_length", nil, MaxDim, c.Layers), make([]int, c.Layers))
}

// LayerHeads makes c.Shapes, with the numbers of heads of each layer, and sets c.Heads and c.KVHeads to the largest.
func (h *Reader) LayerHeads(c *Config) {
	heads := h.PerLayer("attention.head_count", nil, MaxHeads, c.Layers)
	kv := h.PerLayer("attention.head_count_kv", heads, MaxHeads, c.Layers)
	c.Shapes = make([]LayerShape, c.Layers)
	if h.Err != nil {
		return
	}
	for i := range heads {
		if heads[i]%kv[i] != 0 {
			h.Fail(tandem.Corrupt, "layer %d: %d heads are no multiple of %d key-value heads", i, heads[i], kv[i])
		}
		c.Shapes[i].Heads, c.Shapes[i].KVHeads = heads[i], kv[i]
	}
	c.Heads, c.KVHeads = slices.Max(heads), slices.Max(kv)
}

// Widths sets in c.Shapes the inner sizes of each layer's feed-forward block and of each of its experts, and c.FFN to the largest of ffn.
func (h *Reader) Widths(c *Config, ffn, expert []int) {
	for i := range c.Shapes {
		c.Shapes[i].FFN, c.Shapes[i].Expert = ffn[i], expert[i]
	}
	c.FFN = slices.Max(ffn)
}

// HeadSizes reads the size of heads, the same in all layers of c.Shapes, which must be there. Scores are multiplied by 1/√size.
func (h *Reader) HeadSizes(c *Config) {
	if h.Err != nil {
		return
	}
	first := c.Shapes[0].Heads
	if !h.Has("attention.key_length") && c.Dim%first != 0 {
		h.Fail(tandem.Corrupt, "embedding length %d is no multiple of %d heads", c.Dim, first)
	}
	c.HeadDim = h.Count("attention.key_length", max(1, c.Dim/first), MaxHead)
	c.RopeDim = h.Count("rope.dimension_count", c.HeadDim, MaxDim)
	if v := h.Count("attention.value_length", c.HeadDim, MaxDim); v != c.HeadDim {
		h.Fail(tandem.Unsupported, "value length %d differs from key length %d", v, c.HeadDim)
	}
	h.sameHeads(c)
}

// sameHeads gives all layers heads of one size, and keys and values of their own.
func (h *Reader) sameHeads(c *Config) {
	h.CheckHeads(c, c.HeadDim, c.RopeDim)
	c.AttnScale, c.LocalRopeDim = float32(1/math.Sqrt(float64(c.HeadDim))), c.RopeDim
	for i := range c.Shapes {
		c.Shapes[i].HeadDim, c.Shapes[i].Source = c.HeadDim, i
	}
}

// CheckHeads fails unless heads of that size, of which RoPE turns that many elements, are possible; c.Heads is known.
func (h *Reader) CheckHeads(c *Config, head, turned int) {
	switch {
	case head > MaxHead:
		h.Fail(tandem.Corrupt, "heads of %d elements: want at most %d", head, MaxHead)
	case turned > head || turned%2 != 0:
		h.Fail(tandem.Corrupt, "rope dimension count %d: want an even number up to the head size %d", turned, head)
	case c.Heads*head > MaxDim:
		h.Fail(tandem.Corrupt, "%d heads of %d elements: want at most %d in all", c.Heads, head, MaxDim)
	}
}

const (
	keyWindow  = "attention.sliding_window"
	keyPattern = keyWindow + "_pattern"
)

// Window reads the size of the sliding window, into c.Window, and which layers attend through it, into c.Shapes. usual is the size if no
// key says it; 0: no window. If the file does not name the layers, all do but the last of every period; with period 0 all do. c.Window
// stays 0 if no sequence can be longer than the window.
func (h *Reader) Window(c *Config, usual, period int) {
	window := usual
	if h.Has(keyWindow) {
		v, err := h.File.Int(h.Arch+"."+keyWindow, 0, math.MaxInt32)
		h.Keep(err)
		window = v
	}
	if window == 0 || h.Err != nil {
		return
	}
	pattern := h.Arch + "." + keyPattern
	switch {
	case h.File.IsArray(pattern):
		local, err := h.File.Bools(pattern)
		if h.Keep(err); err == nil && len(local) != c.Layers {
			h.Fail(tandem.Corrupt, "key %q has %d elements: want one for each of %d layers", pattern, len(local), c.Layers)
		}
		for i := 0; i < min(len(local), c.Layers); i++ {
			c.Shapes[i].Local = local[i]
		}
	default:
		if h.File.Has(pattern) {
			v, err := h.File.Int(pattern, 0, MaxLayers)
			h.Keep(err)
			period = v
		}
		for i := range c.Shapes {
			c.Shapes[i].Local = period == 0 || i%period < period-1
		}
	}
	if window < c.Context {
		c.Window = window
	}
}

// NoWindow is Window for an architecture without a window. It still takes one from a file that names the layers with it.
func (h *Reader) NoWindow(c *Config) {
	if h.Window(c, 0, 1); c.Window > 0 && !h.Has(keyPattern) {
		h.Fail(tandem.Unsupported, "key %q is %d: the %s architecture has no sliding window as tandem runs it", h.Arch+"."+keyWindow,
			c.Window, h.Arch)
	}
}

// NeedWindow fails if the file states no window.
func (h *Reader) NeedWindow() {
	key := h.Arch + "." + keyWindow
	if n, err := h.File.IntOr(key, 0, math.MaxInt32, 0); err == nil && n == 0 {
		h.Fail(tandem.Corrupt, "key %q is 0 or missing: want the window of the %s architecture, at least 1", key, h.Arch)
	}
}

// NeedPattern fails if the file does not name the layers with a window.
func (h *Reader) NeedPattern(c *Config) {
	if pattern := h.Arch + "." + keyPattern; !h.File.Has(pattern) {
		h.Fail(tandem.Corrupt, "key %q is missing: want true (window) or false for each of %d layers", pattern, c.Layers)
	}
}

const keyNextn = "nextn_predict_layers"

// Nextn moves the layers that guess further tokens (MTP) from c.Layers, which the file counts with them, to c.Nextn.
func (h *Reader) Nextn(c *Config) {
	key := h.Knows(keyNextn)
	if !h.File.Has(key) {
		return
	}
	n, err := h.File.Int(key, 0, MaxLayers)
	if h.Keep(err); err == nil && n >= c.Layers {
		h.Fail(tandem.Corrupt, "key %q is %d: want less than %q, %d", key, n, h.Arch+".block_count", c.Layers)
		return
	}
	c.Nextn, c.Layers = n, c.Layers-n
}

// NextnKey names the key that counts the layers that guess further tokens.
func (c *Config) NextnKey() string { return c.Arch + "." + keyNextn }

// Temperature reads c.Temperature, by which queries grow with their position; c.Rope is known.
func (h *Reader) Temperature(c *Config) {
	const key = "attention.temperature_scale"
	if c.Temperature = h.Multiplier(key, 0); h.Err != nil {
		return
	}
	if steps := c.temperatureSteps(); steps > maxSteps {
		h.Fail(tandem.Unsupported,
			"key %q is %v: queries of %d positions, with a factor for each %d, have %d factors: tandem runs up to %d",
			h.Arch+"."+key, c.Temperature, c.Context, c.Rope.Original, steps, maxSteps)
	}
}

// Keys of experts.
const (
	keyExperts     = "expert_count"
	keyWidth       = "expert_feed_forward_length"
	keyShared      = "expert_shared_count" // experts that every row uses, as one of so many times the width
	keySharedWidth = "expert_shared_feed_forward_length"
	keyDense       = "leading_dense_block_count"
)

const keyRank = "attention.kv_lora_rank" // of latent attention

// special are keys that change the function. One that no step of the architecture has asked for is refused, unless it is 0 or false.
var special = []string{
	keyExperts, keyShared, keySharedWidth, "expert_group_count", keyDense, keyRank,
	"interleave_moe_layer_step", "attention.scale", "attention.clamp_kqv", "attention.max_alibi_bias", "embedding_scale", "residual_scale",
	"logit_scale", "use_parallel_residual", "rope.scaling.yarn_log_multiplier", "attention.temperature_scale", "rope.dimension_sections",
	"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor", "attention.shared_kv_layers", "embedding_length_per_layer_input",
	keyNextn,
}

// refuse reports the first key that would change the text but is not supported.
func (h *Reader) refuse() {
	for _, name := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if h.read[name] {
			continue
		}
		v, err := h.File.FloatOr(h.Arch+"."+name, 0)
		if h.Keep(err); v != 0 {
			h.Fail(tandem.Unsupported, "key %q is %v: the %s architecture has no soft cap as tandem runs it", h.Arch+"."+name, v, h.Arch)
		}
	}
	for _, name := range special {
		key := h.Arch + "." + name
		if !h.File.Has(key) || h.read[name] {
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
