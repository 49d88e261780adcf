// Package blocks holds what the architectures share: the reader of a file's keys, the shape that they give (Config), the weights of its
// layers, and the planner that lays a pass out as one list of operations. Package arch says which architecture consists of which blocks.
package blocks

import (
	"github.com/tandem-llm/tandem/kernels"
)

// Config is the shape of a model, as stated in its file.
type Config struct {
	Arch    string
	Name    string
	Layers  int // without those of Nextn
	Dim     int // hidden size d
	Heads   int // query heads, of the layer with most
	KVHeads int // key and value heads, of the layer with most
	HeadDim int
	RopeDim int // leading elements of a head that RoPE turns, even; HeadDim and RopeDim are those of layers without a window
	FFN     int // inner size of the feed-forward block, of the layer with the largest
	Vocab   int
	Outputs []int32 // a draft whose output matrix has rows for some tokens only: the token of each row; nil: a row for each token
	Context int     // positions the model was trained for
	NormEps float32

	Family Family // its architecture's
	First  int    // number of the first layer in the file
	Curve  kernels.Curve
	Rope   Rope

	Window       int // of local layers: a query at p sees position j if p-j < window; 0: all
	LocalHeadDim int // HeadDim of layers with a window; 0: as in the others
	LocalRopeDim int // RopeDim of layers with a window
	LayerInput   int // numbers that each layer gets of the token; 0: none
	Experts      Experts
	Latent       Latent
	Delta        kernels.DeltaShape // of recurrent layers; the zero value: there are none
	BlockConv    BlockConvShape     // of a block draft; the zero value: its layers have no convolutions

	Shapes []LayerShape // of its layers

	Nextn           int  // layers behind the last one that guess further tokens (MTP); they are not among Layers
	NextnBeforeNorm bool // these read the hidden state before the final norm instead of after it

	AttnScale         float32 // attention scores are multiplied by it
	StatedScale       bool    // the architecture has a key for AttnScale
	Temperature       float32 // queries are multiplied by 1 + temperature·ln(1 + ⌊position/Rope.Original⌋)
	EmbedScale        float32 // embeddings are multiplied by it; 1: not
	UsualEmbedScale   float32 // what EmbedScale is in this architecture if no key says otherwise
	ResidualScale     float32 // outputs of attention and feed-forward are multiplied by it
	LogitScale        float32 // so are logits
	AttnCap, FinalCap float32 // soft caps of attention scores and logits; 0: none
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
	Later               bool // its rows see later rows of their block too (block drafts)
}

// Experts says how many experts a layer of a model has (Count), how many of them each row uses (Used), and how they are chosen and weighted
// (Route). The zero value is a model without experts.
type Experts struct {
	Count, Used int
	Route       kernels.RouteOpt
}

// MixedLayers returns how many layers have experts.
func (c *Config) MixedLayers() (n int) {
	for _, l := range c.Shapes {
		if l.Expert > 0 {
			n++
		}
	}
	return n
}

// Latent is the attention of a model that keeps one latent vector of a position for all heads (MLA, DeepSeek-V2). A head's key is made of a
// part that a matrix of the head makes from the latent vector, and of one that all heads share and that RoPE turns; another matrix of the
// head makes its value. Because those matrices are linear, queries are multiplied by the first instead of keys, and the second is applied
// to the weighted sum of latent vectors: only these and the turned keys are kept. The zero value is a model without.
type Latent struct {
	Rank       int  // elements of the latent vector
	Key, Value int  // elements of a head's key, whose last RopeDim are the turned ones, and of its value
	Query      int  // elements of the vector from which queries are made; 0: they are made from the layer's input
	Together   bool // the file has keys and values of a head in one tensor
}

// plain returns the elements of a head's key that do not turn.
func (c *Config) plain() int { return c.Latent.Key - c.RopeDim }

// BlockConvShape gives the sizes of a block draft's convolutions: Taps rows, and weights that Group neighbouring columns share.
type BlockConvShape struct{ Taps, Group int }

// weights returns how many weights one convolution has for each row of so many columns, beside its base.
func (s BlockConvShape) weights(columns int) int { return s.Taps * (columns / s.Group) }

// Family is how models of an architecture are read and composed. Its functions call the blocks of this package.
type Family struct {
	Read  func(r *Reader, c *Config) // reads the keys that are not every architecture's
	Model func(f *Finder)            // finds the tensors beside the layers' that are not every model's; nil: there are none
	Layer func(t *Tensors) []Part    // finds the tensors of a layer, and composes it: its parts, in order
	Enter func(p *Planner)           // lays out what comes before the first layer, behind the embedding; nil: nothing

	Assistant *Family // of drafts that read this architecture's keys and values; nil: there are none
}

// Bounds of the hyper-parameters: a file beyond them is damaged or malicious.
const (
	MaxLayers = 1 << 12
	MaxDim    = 1 << 20
	MaxHeads  = 1 << 12
	MaxHead   = 1 << 12
	MaxVocab  = 1 << 24
	maxCtx    = 1 << 28
)

// Bounds of what residuals, scores and logits are multiplied with. Published models have 0.008 to 24.
const minMultiplier, maxMultiplier = 1e-6, 1e6

// Bound of the factors of queries. Published models have 16: a context of 2^18 positions, trained on 2^14.
const maxSteps = 1 << 16

// Recurrent reports whether the model has recurrent layers, whose states a sequence carries besides keys and values.
func (c *Config) Recurrent() bool { return c.Delta != (kernels.DeltaShape{}) }

// temperatureSteps returns how many factors queries may have: one for each Rope.Original positions of the context; 0: none.
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

// Finish adds to p the scaling and the soft cap of logits, in place, as far as the model has them.
func (c *Config) Finish(p *kernels.Program, logits kernels.Buf) {
	if c.LogitScale != 1 {
		p.Scale(logits, c.LogitScale)
	}
	if c.FinalCap != 0 {
		p.SoftCap(logits, c.FinalCap)
	}
}
