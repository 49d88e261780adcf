package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

// Info describes a model file.
type Info struct {
	Config       Config
	Traits       []string // what its architecture adds to the plain llama, in words
	Parameters   int64    // weights of all tensors but those that are left out
	FileBytes    int64    // size of the file, or of all files of a split model
	Parts        int      // files
	Types        map[string]TypeUse
	TiedHead     bool     // the output matrix is the embedding
	WeightBytes  int64    // weights in memory, packed as a CPU wants them (kernels.Groups16)
	Tokenizer    string   // kind: llama (SentencePiece), gpt2 (byte-level BPE)
	Pre          string   // name of the pre-tokenizer, also one that the file does not name; "" for a tokenizer without one
	Notes        []string // what the tokenizer lacks: token.Vocab.Notes
	ChatTemplate bool
	Fingerprint  uint64 // of the vocabulary
	Work         Work   // of a pass of one row

	Sampling        tandem.Preset // how its makers want tokens drawn
	SamplingIgnored []string      // keys about that which tandem cannot follow

	LeftOut []gguf.TowerPart // what of the file reads pictures or sound; counted in FileBytes alone
}

// TypeUse describes the tensors of one type: their size, and how they are computed with.
type TypeUse struct {
	Tensors     int
	FileBytes   int64
	MemoryBytes int64
	Kernel      string // native; unpacked at load, and to what; or a vector
}

// Inspect reads and checks the model file at path as Open does, without loading its weights; SideOf reads side files. Errors
// as Open's.
func Inspect(path string) (*Info, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := refuseSide(f); err != nil {
		return nil, err
	}
	vocab, err := token.FromGGUF(f)
	if err != nil {
		return nil, err
	}
	cfg, err := readConfig(f, vocab.Size())
	if err != nil {
		return nil, err
	}
	w := &weights{}
	c := &catalog{file: f, used: map[string]bool{}}
	if c.collect(w, &cfg); c.err != nil {
		return nil, c.err
	}
	info := &Info{
		Config:       cfg,
		Traits:       cfg.describe(w),
		FileBytes:    f.Size(),
		Parts:        f.Parts(),
		Types:        typesOf(f, c.matrices),
		TiedHead:     f.Tensor("output.weight") == nil,
		ChatTemplate: f.Has("tokenizer.chat_template"),
		Fingerprint:  vocab.Fingerprint(),
		Notes:        vocab.Notes(),
		Work:         workOf(w, c.matrices, &cfg),
		LeftOut:      f.Towers(),
	}
	if info.Sampling, info.SamplingIgnored, err = readAdvice(f); err != nil {
		return nil, err
	}
	for i := range c.matrices {
		info.WeightBytes += c.matrices[i].packed()
	}
	if info.Tokenizer, err = f.StringOr("tokenizer.ggml.model", ""); err != nil {
		return nil, err
	}
	if info.Pre, err = f.StringOr("tokenizer.ggml.pre", vocab.Pre()); err != nil {
		return nil, err
	}
	for _, t := range f.Tensors() {
		if gguf.Tower(t.Name) == "" {
			info.Parameters += int64(t.Elements())
		}
	}
	return info, nil
}

// typesOf adds tensors up by type; matrices are those that kernels multiply with.
func typesOf(f *gguf.File, matrices []matrix) map[string]TypeUse {
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
		u := types[p.tensor.Type.String()]
		u.MemoryBytes += p.packed()
		if u.Kernel = "native"; p.kind().Unpacked() {
			u.Kernel = "unpacked at load to int8 codes with float scales"
		}
		types[p.tensor.Type.String()] = u
	}
	return types
}

// packed returns the bytes that the matrix takes in memory.
func (m *matrix) packed() int64 {
	return int64(max(1, m.experts)) * int64(kernels.Groups16.Bytes(m.kind(), m.rows, m.cols()))
}

// describe lists, in words, how the model differs from a plain llama.
func (c *Config) describe(w *weights) (words []string) {
	add := func(on bool, format string, args ...any) {
		if on {
			words = append(words, fmt.Sprintf(format, args...))
		}
	}
	t := &c.traits
	unturned := 0
	for _, l := range c.layers {
		if l.unturned {
			unturned++
		}
	}
	add(t.halves, "rope pairs halves of a head")
	add(!t.halves, "rope pairs neighbours")
	add(unturned > 0, "no rope in %d of %d layers", unturned, c.Layers)
	add(c.RopeDim != c.HeadDim, "rope on %d of %d elements", c.RopeDim, c.HeadDim)
	add(c.rope.factor != 1 || c.rope.kind == "yarn" || c.rope.kind == "longrope", "rope scaling %s, factor %g, magnitude %.4g", c.rope.kind,
		c.rope.factor, c.rope.magnitude)
	add(w.ropeFactors != nil, "rope factors for each frequency")
	local := 0
	for _, l := range c.layers {
		if l.local {
			local++
		}
	}
	add(c.window > 0, "sliding window of %d in %d of %d layers", c.window, local, c.Layers)
	add(c.window > 0 && t.localBase != 0, "rope base %g in those", c.rope.localBase)
	shared, small := 0, 0
	for i, l := range c.layers {
		if l.source != i {
			shared++
		}
		if l.local && l.headDim != c.HeadDim {
			small = l.headDim
		}
	}
	add(small > 0, "heads of %d elements in those", small)
	add(shared > 0, "%d of %d layers read the keys and values of earlier ones", shared, c.Layers)
	add(t.valueNorms, "norms of values")
	add(c.layerInput > 0, "an input of %d numbers for each layer", c.layerInput)
	add(t.curve == kernels.GELU, "GELU gate")
	add(t.curve == kernels.ClampedSiLU, "SiLU gate of clamped inputs")
	add(c.latent.rank > 0, "keeps a latent vector of %d elements and a key of %d for all heads", c.latent.rank, c.RopeDim)
	mixed := c.mixedLayers()
	add(mixed > 0 && mixed == c.Layers, "%d experts in each layer, %d for each token", c.experts.count, c.experts.used)
	add(mixed > 0 && mixed < c.Layers, "%d experts in %d of %d layers, %d for each token", c.experts.count, mixed, c.Layers, c.experts.used)
	add(c.layers[c.Layers-1].shared > 0, "a shared expert of %d elements", c.layers[c.Layers-1].shared)
	add(c.experts.count > 0 && t.beside, "a feed-forward block beside them")
	if d := c.delta; d != (kernels.DeltaShape{}) {
		n := 0
		for _, l := range c.layers {
			if l.recurrent {
				n++
			}
		}
		add(true, "gated delta nets in %d of %d layers: %d key heads and %d value heads of %d, convolution of %d taps", n, c.Layers,
			d.KeyHeads, d.ValueHeads, d.Dim, d.Kernel)
		add(true, "attention with a gate")
	}
	add(c.extra > 0, "%d layers that guess further tokens (MTP) are left out", c.extra)
	add(t.sinks, "attention sinks")
	add(t.scaleEmbed, "embeddings scaled by the root of d")
	add(c.temperature != 0, "queries scaled by 1 + %g ln(1 + position/%d)", c.temperature, c.rope.original)
	add(c.embedScale != c.usualEmbedScale(), "embeddings scaled by %g", c.embedScale)
	add(c.residualScale != 1, "outputs of attention and feed-forward scaled by %g", c.residualScale)
	add(slices.Contains(t.reads, keyAttnScale), "attention scores scaled by %g", c.attnScale)
	add(c.logitScale != 1, "logits scaled by %g", c.logitScale)
	add(t.headNorms, "norms of each query and key head")
	add(t.postNorms, "norms after attention and feed-forward")
	add(c.attnCap != 0, "attention scores capped at %g", c.attnCap)
	add(c.finalCap != 0, "logits capped at %g", c.finalCap)
	return words
}
