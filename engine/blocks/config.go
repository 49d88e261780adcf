// Package blocks holds what the architectures share: the reader of a file's keys, the shape that they give (Config), the weights of its
// layers, and the planner that lays a pass out as one list of operations.
package blocks

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

	Experts           Experts
	Delta             kernels.DeltaShape // of recurrent layers; the zero value: there are none
	Extra             int                // layers behind the last that guess further tokens (MTP), which are left out
	Latent            Latent
	First             int // number of the first layer in the file
	Traits            Traits
	Shapes            []LayerShape
	LocalRopeDim      int // RopeDim of layers with a window
	LayerInput        int // numbers that each layer gets of the token; 0: none
	Window            int // of local layers: a query at p sees position j if p-j < window; 0: all
	Rope              Rope
	AttnScale         float32
	Temperature       float32 // queries are multiplied by 1 + temperature·ln(1 + ⌊position/rope.original⌋)
	EmbedScale        float32 // embeddings are multiplied by it; 1: not
	ResidualScale     float32 // so are the outputs of attention and feed-forward
	LogitScale        float32 // so are logits
	AttnCap, FinalCap float32 // soft caps of attention scores and logits; 0: none
}

// Recurrent reports whether the model has layers with states.
func (c *Config) Recurrent() bool { return c.Delta != (kernels.DeltaShape{}) }

// Bounds of the hyper-parameters: a file beyond them is damaged or malicious.
const (
	MaxLayers = 1 << 12
	MaxDim    = 1 << 20
	MaxHeads  = 1 << 12
	MaxHead   = 1 << 12
	MaxVocab  = 1 << 24
	maxCtx    = 1 << 28
)

// hyper reads the hyper-parameters of an architecture from its keys; the first error sticks.
type Reader struct {
	File *gguf.File
	Arch string
	Err  error
}

// NewReader returns a reader of the keys of f that begin with the architecture's name.
func NewReader(f *gguf.File, arch string) *Reader { return &Reader{File: f, Arch: arch} }

func (h *Reader) Fail(k tandem.Kind, format string, args ...any) {
	if h.Err == nil {
		h.Err = tandem.Errorf("engine", k, "%s: %s", h.File.Path(), fmt.Sprintf(format, args...))
	}
}

// Keep remembers an error of a getter.
func (h *Reader) Keep(err error) {
	if h.Err == nil {
		h.Err = err
	}
}

// Count reads a whole number from 1 to most; def < 0 makes the key required.
func (h *Reader) Count(key string, def, most int) int {
	key = h.Arch + "." + key
	if !h.File.Has(key) && def >= 0 {
		return def
	}
	v, err := h.File.Int(key, 1, most)
	if err != nil {
		h.Keep(err)
		return 1
	}
	return v
}

// Number reads a finite number above 0; a negative def makes the key required.
func (h *Reader) Number(key string, def float64) float64 {
	key = h.Arch + "." + key
	if !h.File.Has(key) && def >= 0 {
		return def
	}
	v, err := h.File.Float(key)
	if err != nil {
		h.Keep(err)
		return 1
	}
	if !(v > 0) || math.IsInf(v, 0) {
		h.Fail(tandem.Corrupt, "key %q is %v: want a finite number above 0", key, v)
		return 1
	}
	return v
}

// ReadConfig reads and checks the hyper-parameters of a model; vocab is the size of its vocabulary.
func ReadConfig(f *gguf.File, vocab int) (Config, error) {
	h := &Reader{File: f}
	t, err := h.readTraits()
	if err != nil {
		return Config{}, err
	}
	return h.Config(t, vocab, h.Count("embedding_length", -1, MaxDim))
}

const leastContext = 2 // tokens

// Config reads what follows the architecture; dim is the hidden size.
func (h *Reader) Config(t Traits, vocab, dim int) (Config, error) {
	f := h.File
	c := Config{
		Arch:    h.Arch,
		Name:    h.Arch,
		Layers:  h.Count("block_count", -1, MaxLayers),
		Dim:     dim,
		Context: h.Count("context_length", -1, maxCtx),
		Vocab:   h.Count("vocab_size", vocab, MaxVocab),
		NormEps: float32(h.Number("attention.layer_norm_rms_epsilon", -1)),
		Traits:  t,
	}
	if f.Has("general.name") {
		var err error
		c.Name, err = f.String("general.name")
		h.Keep(err)
	}
	if h.leaveOut(&c); h.Err != nil {
		return Config{}, h.Err
	}
	if h.readLayers(&c); h.Err != nil {
		return Config{}, h.Err
	}
	if t.Latent {
		h.readLatent(&c)
	} else {
		h.readHeads(&c)
	}
	if c.Context < leastContext {
		h.Fail(tandem.Unsupported, "%s.context_length is %d: want at least %d, for a token of the prompt and one to generate", h.Arch,
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
	return c, h.Err
}

// readHeads reads the sizes of heads.
func (h *Reader) readHeads(c *Config) {
	first := c.Shapes[0].Heads
	if !h.File.Has(h.Arch+".attention.key_length") && c.Dim%first != 0 {
		h.Fail(tandem.Corrupt, "embedding length %d is no multiple of %d heads", c.Dim, first)
	}
	c.HeadDim = h.Count("attention.key_length", max(1, c.Dim/first), MaxHead)
	c.RopeDim = h.Count("rope.dimension_count", c.HeadDim, MaxDim)
	if v := h.Count("attention.value_length", c.HeadDim, MaxDim); v != c.HeadDim {
		h.Fail(tandem.Unsupported, "value length %d differs from key length %d", v, c.HeadDim)
	}
}

// check refuses shapes that contradict each other.
func (h *Reader) check(c *Config, vocab int) {
	if h.checkHeads(c, c.HeadDim, c.RopeDim); c.Vocab != vocab {
		h.Fail(tandem.Corrupt, "vocabulary size %d, but the tokenizer has %d tokens", c.Vocab, vocab)
	}
}

// KeyMTP counts the layers behind the last; block_count includes them.
const KeyMTP = "nextn_predict_layers"
