package engine

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/gguf"
)

// Config is the shape of a model, as its file says.
type Config struct {
	Arch    string
	Name    string
	Layers  int
	Dim     int // hidden size d
	Heads   int // query heads
	KVHeads int // key and value heads; Heads is a multiple
	HeadDim int
	RopeDim int // leading elements of a head that RoPE turns, even
	FFN     int // inner size of the feed-forward block
	Vocab   int
	Context int // positions the model was trained for
	NormEps float32

	ropeBase  float64
	ropeScale float64 // positions are divided by it (linear scaling)
}

// Bounds of the hyper-parameters: beyond them a file is damaged or made to do harm.
const (
	maxLayers = 1 << 12
	maxDim    = 1 << 20
	maxHeads  = 1 << 12
	maxVocab  = 1 << 24
	maxCtx    = 1 << 28
)

// hyper reads hyper-parameters under the keys of an architecture; the first error sticks.
type hyper struct {
	file *gguf.File
	arch string
	err  error
}

func (h *hyper) fail(k tandem.Kind, format string, args ...any) {
	if h.err == nil {
		h.err = tandem.Errorf("engine", k, "%s: %s", h.file.Path(), fmt.Sprintf(format, args...))
	}
}

// keep remembers an error of a getter.
func (h *hyper) keep(err error) {
	if h.err == nil {
		h.err = err
	}
}

// count reads a whole number from 1 to most; def < 0 makes the key required.
func (h *hyper) count(key string, def, most int) int {
	key = h.arch + "." + key
	if !h.file.Has(key) && def >= 0 {
		return def
	}
	v, err := h.file.Int(key, 1, most)
	if err != nil {
		h.keep(err)
		return 1
	}
	return v
}

// number reads a finite number above 0; a negative def makes the key required.
func (h *hyper) number(key string, def float64) float64 {
	key = h.arch + "." + key
	if !h.file.Has(key) && def >= 0 {
		return def
	}
	v, err := h.file.Float(key)
	if err != nil {
		h.keep(err)
		return 1
	}
	if !(v > 0) || math.IsInf(v, 0) {
		h.fail(tandem.Corrupt, "key %q is %v: want a finite number above 0", key, v)
		return 1
	}
	return v
}

// readConfig reads and checks the hyper-parameters of a llama-architecture file; vocab is the size of
// its vocabulary.
func readConfig(f *gguf.File, vocab int) (Config, error) {
	h := &hyper{file: f}
	arch, err := f.String("general.architecture")
	if err != nil {
		return Config{}, err
	}
	if arch != "llama" {
		return Config{}, tandem.Errorf("engine", tandem.Unsupported, "%s: architecture %q: supported is llama", f.Path(), arch)
	}
	h.arch = arch
	c := Config{
		Arch:    arch,
		Name:    arch,
		Layers:  h.count("block_count", -1, maxLayers),
		Dim:     h.count("embedding_length", -1, maxDim),
		Heads:   h.count("attention.head_count", -1, maxHeads),
		FFN:     h.count("feed_forward_length", -1, maxDim),
		Context: h.count("context_length", -1, maxCtx),
		Vocab:   h.count("vocab_size", vocab, maxVocab),
		NormEps: float32(h.number("attention.layer_norm_rms_epsilon", -1)),

		ropeBase:  h.number("rope.freq_base", 10000),
		ropeScale: 1,
	}
	if f.Has("general.name") {
		c.Name, err = f.String("general.name")
		h.keep(err)
	}
	if h.err != nil {
		return Config{}, h.err
	}
	c.KVHeads = h.count("attention.head_count_kv", c.Heads, maxHeads)
	if !f.Has(arch+".attention.key_length") && c.Dim%c.Heads != 0 {
		h.fail(tandem.Corrupt, "embedding length %d is no multiple of %d heads", c.Dim, c.Heads)
	}
	c.HeadDim = h.count("attention.key_length", max(1, c.Dim/c.Heads), maxDim)
	c.RopeDim = h.count("rope.dimension_count", c.HeadDim, maxDim)
	c.Context = min(c.Context, h.count("attention.sliding_window", maxCtx, maxCtx)) // within the window it changes nothing
	h.check(&c, vocab)
	return c, h.err
}

// check refuses shapes that contradict each other, and features whose absence would change the text.
func (h *hyper) check(c *Config, vocab int) {
	if v := h.count("attention.value_length", c.HeadDim, maxDim); v != c.HeadDim {
		h.fail(tandem.Unsupported, "value length %d differs from key length %d", v, c.HeadDim)
	}
	switch {
	case c.Heads%c.KVHeads != 0:
		h.fail(tandem.Corrupt, "%d heads are no multiple of %d key-value heads", c.Heads, c.KVHeads)
	case c.RopeDim > c.HeadDim || c.RopeDim%2 != 0:
		h.fail(tandem.Corrupt, "rope dimension count %d: want an even number up to the head size %d", c.RopeDim, c.HeadDim)
	case c.Vocab != vocab:
		h.fail(tandem.Corrupt, "vocabulary size %d, but the tokenizer has %d tokens", c.Vocab, vocab)
	case c.Heads*c.HeadDim > maxDim:
		h.fail(tandem.Corrupt, "%d heads of %d elements: want at most %d in all", c.Heads, c.HeadDim, maxDim)
	}
	for _, key := range []string{"expert_count", "attn_logit_softcapping", "final_logit_softcapping"} {
		if h.file.Has(h.arch + "." + key) {
			if v, err := h.file.Float(h.arch + "." + key); err != nil || v != 0 {
				h.fail(tandem.Unsupported, "key %q: not part of the llama architecture as tandem runs it", h.arch+"."+key)
			}
		}
	}
	if h.file.Has(h.arch + ".rope.scaling.type") {
		kind, err := h.file.String(h.arch + ".rope.scaling.type")
		h.keep(err)
		switch kind {
		case "none":
		case "linear":
			c.ropeScale = h.number("rope.scaling.factor", 1)
		default:
			h.fail(tandem.Unsupported, "rope scaling %q: supported are none and linear", kind)
		}
	}
}
