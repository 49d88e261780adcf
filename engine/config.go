package engine

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Config is the shape of a model, as stated in its file.
type Config struct {
	Arch    string
	Name    string
	Layers  int
	Dim     int // hidden size d
	Heads   int // query heads, of the layer with most
	KVHeads int // key and value heads, of the layer with most
	HeadDim int
	RopeDim int // leading elements of a head that RoPE turns, even; HeadDim and RopeDim are those of layers without a window
	FFN     int // inner size of the feed-forward block, of the layer with the largest
	Vocab   int
	Context int // positions the model was trained for
	NormEps float32

	experts           experts
	delta             kernels.DeltaShape // of recurrent layers; the zero value: there are none
	extra             int                // layers behind the last that guess further tokens (MTP), which are left out
	latent            latent
	first             int // number of the first layer in the file
	traits            traits
	layers            []layerShape
	localRopeDim      int // RopeDim of layers with a window
	layerInput        int // numbers that each layer gets of the token; 0: none
	window            int // of local layers: a query at p sees position j if p-j < window; 0: all
	rope              ropeConfig
	attnScale         float32
	temperature       float32 // queries are multiplied by 1 + temperature·ln(1 + ⌊position/rope.original⌋)
	embedScale        float32 // embeddings are multiplied by it; 1: not
	residualScale     float32 // so are the outputs of attention and feed-forward
	logitScale        float32 // so are logits
	attnCap, finalCap float32 // soft caps of attention scores and logits; 0: none
}

// Bounds of the hyper-parameters: a file beyond them is damaged or malicious.
const (
	maxLayers = 1 << 12
	maxDim    = 1 << 20
	maxHeads  = 1 << 12
	maxHead   = 1 << 12
	maxVocab  = 1 << 24
	maxCtx    = 1 << 28
)

// hyper reads the hyper-parameters of an architecture from its keys; the first error sticks.
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

// readConfig reads and checks the hyper-parameters of a model; vocab is the size of its vocabulary.
func readConfig(f *gguf.File, vocab int) (Config, error) {
	h := &hyper{file: f}
	t, err := h.readTraits()
	if err != nil {
		return Config{}, err
	}
	return h.config(t, vocab, h.count("embedding_length", -1, maxDim))
}

const leastContext = 2 // tokens

// config reads what follows the architecture; dim is the hidden size.
func (h *hyper) config(t traits, vocab, dim int) (Config, error) {
	f := h.file
	c := Config{
		Arch:    h.arch,
		Name:    h.arch,
		Layers:  h.count("block_count", -1, maxLayers),
		Dim:     dim,
		Context: h.count("context_length", -1, maxCtx),
		Vocab:   h.count("vocab_size", vocab, maxVocab),
		NormEps: float32(h.number("attention.layer_norm_rms_epsilon", -1)),
		traits:  t,
	}
	if f.Has("general.name") {
		var err error
		c.Name, err = f.String("general.name")
		h.keep(err)
	}
	if h.leaveOut(&c); h.err != nil {
		return Config{}, h.err
	}
	if h.readLayers(&c); h.err != nil {
		return Config{}, h.err
	}
	if t.latent {
		h.readLatent(&c)
	} else {
		h.readHeads(&c)
	}
	if c.Context < leastContext {
		h.fail(tandem.Unsupported, "%s.context_length is %d: want at least %d, for a token of the prompt and one to generate", h.arch,
			c.Context,
			leastContext)
	}
	h.check(&c, vocab)
	h.readRoPE(&c)
	h.readWindow(&c)
	h.readKinds(&c)
	h.readLayerInput(&c)
	h.readExperts(&c)
	h.readDeltaNet(&c)
	h.readTurned(&c)
	h.readScales(&c)
	h.refuse(&t)
	return c, h.err
}

// readHeads reads the sizes of heads.
func (h *hyper) readHeads(c *Config) {
	first := c.layers[0].heads
	if !h.file.Has(h.arch+".attention.key_length") && c.Dim%first != 0 {
		h.fail(tandem.Corrupt, "embedding length %d is no multiple of %d heads", c.Dim, first)
	}
	c.HeadDim = h.count("attention.key_length", max(1, c.Dim/first), maxHead)
	c.RopeDim = h.count("rope.dimension_count", c.HeadDim, maxDim)
	if v := h.count("attention.value_length", c.HeadDim, maxDim); v != c.HeadDim {
		h.fail(tandem.Unsupported, "value length %d differs from key length %d", v, c.HeadDim)
	}
}

// check refuses shapes that contradict each other.
func (h *hyper) check(c *Config, vocab int) {
	if h.checkHeads(c, c.HeadDim, c.RopeDim); c.Vocab != vocab {
		h.fail(tandem.Corrupt, "vocabulary size %d, but the tokenizer has %d tokens", c.Vocab, vocab)
	}
}
