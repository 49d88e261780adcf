// Package inspect describes model files in words and figures, for people and for checks before a model is opened. It loads no weights.
package inspect

import (
	"fmt"
	"math"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Info describes a model file.
type Info struct {
	Config       blocks.Config
	Traits       []string // what its architecture adds to the plain llama, in words
	Parameters   int64    // weights of all tensors but those that are left out
	FileBytes    int64    // size of the file, or of all files of a split model
	Parts        int      // files
	Paths        []string // of all of them, in their order
	Stored       string   // how llama.cpp names the types of its weights together, such as Q4_K_M: the file's word, else the most frequent
	Types        map[string]TypeUse
	TiedHead     bool     // the output matrix is the embedding
	WeightBytes  int64    // weights in memory, packed as a CPU wants them (kernels.Groups16)
	Tokenizer    string   // kind: llama (SentencePiece), gpt2 (byte-level BPE)
	Pre          string   // name of the pre-tokenizer, also one that the file does not name; "" for a tokenizer without one
	Notes        []string // what the tokenizer lacks: token.Vocab.Notes
	ChatTemplate bool
	Header       *header.Header
	Work         plan.Work // of a pass of one row

	Sampling        tandem.Preset // how its makers want tokens drawn
	SamplingIgnored []string      // keys about that which tandem cannot follow

	Pooling string // how its makers want a vector of a text made: none, mean, cls, last, rank or type N; "": the file does not say

	LeftOut []gguf.TowerPart // what of the file reads pictures or sound; counted in FileBytes alone
}

// TypeUse describes the tensors of one type: their size, and how they are computed with.
type TypeUse struct {
	Tensors     int
	FileBytes   int64
	MemoryBytes int64
	Kernel      string // native, or vectors
}

// Model reads and checks the model file at path as engine.Open does, without loading its weights; header.SideOf describes side files.
// Errors: as engine.Open's.
func Model(path string) (*Info, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, err := header.Read(f, 0)
	if err != nil {
		return nil, err
	}
	info := &Info{
		Config:    h.Config,
		Traits:    describe(&h.Config, &h.Weights),
		FileBytes: f.Size(),
		Parts:     f.Parts(),
		Paths:     f.Paths(),
		Types:     typesOf(f, h.Matrices),
		TiedHead:  f.Tensor("output.weight") == nil,
		Header:    h,
		Notes:     h.Vocab.Notes(),
		Work:      plan.WorkOf(h),
		LeftOut:   f.Towers(),
	}
	if info.Sampling, info.SamplingIgnored, err = readAdvice(f); err != nil {
		return nil, err
	}
	if info.Pooling, err = readPooling(f, h.Config.Arch); err != nil {
		return nil, err
	}
	for i := range h.Matrices {
		info.WeightBytes += h.Matrices[i].Packed()
	}
	if info.Tokenizer, err = f.StringOr("tokenizer.ggml.model", ""); err != nil {
		return nil, err
	}
	if info.Pre, err = f.StringOr("tokenizer.ggml.pre", h.Vocab.Pre()); err != nil {
		return nil, err
	}
	for _, t := range f.Tensors() {
		if gguf.Tower(t.Name) == "" {
			info.Parameters += int64(t.Elements())
		}
	}
	info.Stored = storedAs(f, info.Types)
	template, wrong := f.StringOr("tokenizer.chat_template", "")
	info.ChatTemplate = wrong != nil || strings.TrimSpace(template) != ""
	return info, nil
}

// fileTypes are llama.cpp's names of the numbers in general.file_type (enum llama_ftype).
var fileTypes = map[int]string{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
	12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 25: "IQ4_NL", 30: "IQ4_XS", 32: "BF16",
	38: "MXFP4"}

// storedAs names the types of all weights together.
func storedAs(f *gguf.File, types map[string]TypeUse) string {
	if n, err := f.IntOr("general.file_type", 0, math.MaxInt32, -1); err == nil && fileTypes[n] != "" {
		return fileTypes[n]
	}
	most := ""
	for name, u := range types {
		if m := types[most].FileBytes; u.FileBytes > m || u.FileBytes == m && name < most {
			most = name
		}
	}
	return strings.ToUpper(most)
}

// readPooling reads how a vector of a text is made; the numbers are llama.cpp's.
func readPooling(f *gguf.File, arch string) (string, error) {
	key := arch + ".pooling_type"
	if !f.Has(key) {
		return "", nil
	}
	n, err := f.Int(key, math.MinInt32, math.MaxInt32)
	if names := [...]string{"none", "mean", "cls", "last", "rank"}; err == nil && n >= 0 && n < len(names) {
		return names[n], nil
	}
	return fmt.Sprintf("type %d", n), err
}

// typesOf adds tensors up by type; matrices are those that kernels multiply with.
func typesOf(f *gguf.File, matrices []tensors.Matrix) map[string]TypeUse {
	types := map[string]TypeUse{}
	for i := range f.Tensors() {
		t := &f.Tensors()[i]
		if gguf.Tower(t.Name) != "" {
			continue
		}
		u := types[t.Type.String()]
		u.Tensors++
		u.FileBytes += int64(t.Size())
		if len(t.Shape) == 1 || strings.HasSuffix(t.Name, ".bias") { // those of experts have two dimensions
			u.MemoryBytes += int64(t.Size())
		}
		if u.Kernel == "" {
			u.Kernel = "vectors"
		}
		types[t.Type.String()] = u
	}
	for i := range matrices {
		p := &matrices[i]
		u := types[p.Tensor.Type.String()]
		u.MemoryBytes += p.Packed()
		u.Kernel = "native"
		types[p.Tensor.Type.String()] = u
	}
	return types
}

// describe lists, in words, how the model differs from a plain llama.
func describe(c *blocks.Config, w *blocks.Weights) (words []string) {
	add := func(on bool, format string, args ...any) {
		if on {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	has := w.Traits()
	unturned, local := 0, 0
	for _, l := range c.Shapes {
		if l.Unturned {
			unturned++
		}
		if l.Local {
			local++
		}
	}
	add(c.Rope.Halves, "rope pairs halves of a head")
	add(!c.Rope.Halves, "rope pairs neighbours")
	add(unturned > 0, "no rope in %d of %d layers", unturned, c.Layers)
	add(c.RopeDim != c.HeadDim, "rope on %d of %d elements", c.RopeDim, c.HeadDim)
	add(c.Rope.Factor != 1 || c.Rope.Kind == "yarn" || c.Rope.Kind == "longrope", "rope scaling %s, factor %g, magnitude %.4g", c.Rope.Kind,
		c.Rope.Factor, c.Rope.Magnitude)
	add(w.RopeFactors != nil, "rope factors for each frequency")
	add(c.Window > 0, "sliding window of %d in %d of %d layers", c.Window, local, c.Layers)
	add(c.Window > 0 && c.Rope.LocalBase != 0, "rope base %g in those", c.Rope.LocalBase)
	shared, small := 0, 0
	for i, l := range c.Shapes {
		if l.Source != i {
			shared++
		}
		if l.Local && l.HeadDim != c.HeadDim {
			small = l.HeadDim
		}
	}
	add(small > 0, "heads of %d elements in those", small)
	add(shared > 0, "%d of %d layers read the keys and values of earlier ones", shared, c.Layers)
	add(has.Have(blocks.ValueNorms), "norms of values")
	add(c.LayerInput > 0, "an input of %d numbers for each layer", c.LayerInput)
	add(c.Curve == kernels.GELU, "GELU gate")
	add(c.Curve == kernels.ClampedSiLU, "SiLU gate of clamped inputs")
	add(c.Latent.Rank > 0, "keeps a latent vector of %d elements and a key of %d for all heads", c.Latent.Rank, c.RopeDim)
	mixed := c.MixedLayers()
	add(mixed > 0 && mixed == c.Layers, "%d experts in each layer, %d for each token", c.Experts.Count, c.Experts.Used)
	add(mixed > 0 && mixed < c.Layers, "%d experts in %d of %d layers, %d for each token", c.Experts.Count, mixed, c.Layers, c.Experts.Used)
	add(c.Shapes[c.Layers-1].Shared > 0, "a shared expert of %d elements", c.Shapes[c.Layers-1].Shared)
	add(has.Have(blocks.BesideExperts), "a feed-forward block beside them")
	if d := c.Delta; d != (kernels.DeltaShape{}) {
		n := 0
		for _, l := range c.Shapes {
			if l.Recurrent {
				n++
			}
		}
		add(true, "gated delta nets in %d of %d layers: %d key heads and %d value heads of %d, convolution of %d taps", n, c.Layers,
			d.KeyHeads, d.ValueHeads, d.Dim, d.Kernel)
		add(true, "attention with a gate")
	}
	add(c.Nextn > 0, "%d layers that guess further tokens (MTP) are left out", c.Nextn)
	add(c.Outputs != nil, "trimmed to %d of %d tokens: a draft, no target", len(c.Outputs), c.Vocab)
	add(has.Have(blocks.Sinks), "attention sinks")
	add(c.UsualEmbedScale != 1, "embeddings scaled by the root of d")
	add(c.Temperature != 0, "queries scaled by 1 + %g ln(1 + position/%d)", c.Temperature, c.Rope.Original)
	add(c.EmbedScale != c.UsualEmbedScale, "embeddings scaled by %g", c.EmbedScale)
	add(c.ResidualScale != 1, "outputs of attention and feed-forward scaled by %g", c.ResidualScale)
	add(c.StatedScale, "attention scores scaled by %g", c.AttnScale)
	add(c.LogitScale != 1, "logits scaled by %g", c.LogitScale)
	add(has.Have(blocks.HeadNorms) || c.Recurrent(), "norms of each query and key head")
	add(has.Have(blocks.PostNorms), "norms after attention and feed-forward")
	add(c.AttnCap != 0, "attention scores capped at %g", c.AttnCap)
	add(c.FinalCap != 0, "logits capped at %g", c.FinalCap)
	return words
}
