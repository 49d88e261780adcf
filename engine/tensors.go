package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// layer holds one transformer block's weights; biases are nil where the file has none.
type layer struct {
	attnNorm, ffnNorm          []float32 // (dim)
	attnPost, ffnPost          []float32 // (dim), norms of the outputs of attention and feed-forward; nil: none
	qNorm, kNorm               []float32 // (headDim); nil: none
	q, k, v, o                 kernels.W
	sameKV                     bool // values are the keys before their norm
	qBias, kBias, vBias, oBias []float32
	gate, up, down             kernels.W
	gateBias, upBias, downBias []float32
	sinks                      []float32 // (heads), scores without a value; nil: none
	mixture                    mixture   // in place of gate, up and down, or beside them, if the model has experts
	input                      layerInput
	scale                      float32    // of what the layer leaves
	attnGate                   kernels.W  // of attention's output, in architectures with delta nets
	delta                      deltaNet   // in place of attention, if the layer is recurrent
	compressed                 compressed // of a model with latent attention
}

// weights are a model's parameters: matrices by their handle in the program, vectors as they are. head is embed if the file has no
// output matrix.
type weights struct {
	work        Work
	embed, head kernels.W
	outputNorm  []float32
	ropeFactors []float32 // (ropeDim/2), or nil
	inputs      layerInputs
	layers      []layer
	draft       *draft // nil: a model that reads tokens alone
}

// catalog finds a model's tensors in its file, checks their shapes, and remembers which were asked
// for, so that unused tensors are noticed. The first error sticks.
type catalog struct {
	file     *gguf.File
	used     map[string]bool
	matrices []matrix
	err      error
}

// matrix is a weight matrix of the program: rows [row0, row0+rows) of a tensor, or of each of a tensor's matrices. Its handle is its
// index in the catalog.
type matrix struct {
	tensor       *gguf.Tensor
	row0, rows   int
	experts      int     // a tensor of so many matrices, of `rows` rows each; 0: of one
	band, stride int     // the matrix takes band rows of every stride, from row0 on; 0: all
	heads        bool    // they belong to heads: every row uses all
	every        int     // rows of the tensor from one of them to the next; 0: as many as a matrix of the tensor has
	across       int     // they are transposes of so many rows of the tensor, in F32; 0: they are as in the tensor
	col0, width  int     // the matrix takes width columns, from col0 on; 0: all
	order        []int32 // which row of the tensor each of its rows is, those of all experts; nil: as they come
}

// all returns the rows of all experts.
func (m *matrix) all() int { return max(1, m.experts) * m.rows }

// from returns where row `row` of the matrix, or of all its experts, lies in the tensor.
func (m *matrix) from(row int) int {
	if m.band > 0 {
		return m.row0 + row/m.band*m.stride + row%m.band
	}
	if m.experts == 0 {
		return m.row0 + row
	}
	every := m.every
	if every == 0 {
		every = m.tensor.Shape[1]
	}
	return m.row0 + row/m.rows*every + row%m.rows
}

func (m *matrix) cols() int {
	if m.across > 0 {
		return m.across
	}
	if m.width > 0 {
		return m.width
	}
	return m.tensor.Shape[0]
}

func (m *matrix) kind() kernels.Type {
	if m.across > 0 {
		return kernels.F32
	}
	return kernels.Type(m.tensor.Type)
}

// fileBytes returns what one of m's matrices takes in the file.
func (m *matrix) fileBytes() int64 {
	if m.across > 0 {
		return int64(m.across) * int64(perRow(m.tensor))
	}
	return int64(m.rows) * int64(perRow(m.tensor)) * int64(m.cols()) / int64(m.tensor.Shape[0])
}

// name returns the tensor's name, with the rows if they are not all of it.
func (m *matrix) name() string {
	if m.every > 0 {
		n := m.rows
		if m.across > 0 {
			n = m.across
		}
		return fmt.Sprintf("%s[%d:%d of each %d]", m.tensor.Name, m.row0, m.row0+n, m.every)
	}
	if len(m.tensor.Shape) == 1 || m.rows == m.tensor.Shape[1] || m.order != nil {
		return m.tensor.Name
	}
	return fmt.Sprintf("%s[%d:%d]", m.tensor.Name, m.row0, m.row0+m.rows)
}

func (c *catalog) fail(k tandem.Kind, format string, args ...any) {
	if c.err == nil {
		c.err = tandem.Errorf("engine", k, "%s: %s", c.file.Path(), fmt.Sprintf(format, args...))
	}
}

// keep remembers an error of the file.
func (c *catalog) keep(err error) {
	if c.err == nil {
		c.err = err
	}
}

// find returns the named tensor if it has the shape, nil if it is absent or wrong.
func (c *catalog) find(name string, required bool, shape ...int) *gguf.Tensor {
	t := c.file.Tensor(name)
	if t == nil {
		if required {
			c.fail(tandem.Corrupt, "tensor %q is missing", name)
		}
		return nil
	}
	c.used[name] = true
	same := len(t.Shape) == len(shape)
	for i := 0; same && i < len(shape); i++ {
		same = t.Shape[i] == shape[i]
	}
	if !same {
		c.fail(tandem.Corrupt, "tensor %q has shape %v: the hyper-parameters want %v", name, t.Shape, shape)
		return nil
	}
	return t
}

// band is a matrix that takes some rows of a tensor.
type band struct {
	into *kernels.W
	rows int
}

// matrix asks for a (rows, cols) weight matrix, rows being outputs.
func (c *catalog) matrix(into *kernels.W, name string, required bool, rows, cols int) {
	if required || c.file.Tensor(name) != nil {
		c.stacked(name, cols, band{into, rows})
	}
}

// row asks for a matrix of one output, which the file has as a vector.
func (c *catalog) row(into *kernels.W, name string, cols int) {
	if t := c.find(name, true, cols); t != nil && c.runs(t) {
		*into = kernels.W(len(c.matrices))
		c.matrices = append(c.matrices, matrix{tensor: t, rows: 1})
	}
}

// stacked asks for matrices whose rows follow each other in one tensor.
func (c *catalog) stacked(name string, cols int, bands ...band) {
	rows := 0
	for _, b := range bands {
		rows += b.rows
	}
	t := c.find(name, true, cols, rows)
	if t == nil || !c.runs(t) {
		return
	}
	row0 := 0
	for _, b := range bands {
		*b.into = kernels.W(len(c.matrices))
		c.matrices = append(c.matrices, matrix{tensor: t, row0: row0, rows: b.rows})
		row0 += b.rows
	}
}

// runs reports whether there are kernels for the type of t.
func (c *catalog) runs(t *gguf.Tensor) bool {
	ok := kernels.Type(t.Type).Supported()
	if !ok {
		c.fail(tandem.Unsupported, "tensor %q has type %s: supported are %s", t.Name, t.Type, supported())
	}
	return ok
}

// supported lists the types of weights for which there are kernels.
func supported() string {
	var names []string
	for _, t := range kernels.Types() {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// vector reads an F32 tensor, of one dimension or more; nil if it is absent and not required.
func (c *catalog) vector(name string, required bool, shape ...int) []float32 {
	t := c.find(name, required, shape...)
	if t == nil {
		return nil
	}
	if t.Type != gguf.Type(kernels.F32) {
		c.fail(tandem.Unsupported, "tensor %q has type %s: want f32", name, t.Type)
		return nil
	}
	data, err := t.Bytes()
	if err != nil {
		c.keep(err)
		return nil
	}
	v := make([]float32, t.Elements())
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	c.checkFinite(name, v)
	return v
}

// collect lists every tensor of a model.
func (c *catalog) collect(w *weights, cfg *Config) {
	c.matrix(&w.embed, "token_embd.weight", true, cfg.Vocab, cfg.Dim)
	w.head = w.embed
	c.matrix(&w.head, "output.weight", false, cfg.Vocab, cfg.Dim)
	w.outputNorm = c.vector("output_norm.weight", true, cfg.Dim)
	c.collectRopeFactors(w, cfg)
	c.collectLayerInputs(&w.inputs, cfg)
	w.layers = make([]layer, cfg.Layers)
	for i := range w.layers {
		if c.collectLayer(&w.layers[i], w, cfg, i); c.err != nil {
			return
		}
	}
	c.leaveOutTowers()
	c.leaveOut(cfg)
	c.refuseOthers(cfg.Arch)
}

func (c *catalog) collectLayer(l *layer, w *weights, cfg *Config, i int) {
	t, s := &cfg.traits, cfg.layers[i]
	name := func(s string) string { return fmt.Sprintf("blk.%d.%s", cfg.first+i, s) }
	l.attnNorm = c.vector(name("attn_norm.weight"), i > 0 || w.draft == nil || w.draft.wide(), cfg.Dim)
	l.ffnNorm = c.vector(name(t.ffnNorm()), true, cfg.Dim)
	c.collectLayerInput(l, cfg, name)
	if t.deltaNet && !c.kindOf(cfg, i, name) {
		return
	}
	if s.recurrent {
		c.collectDeltaNet(&l.delta, cfg, name)
	} else {
		c.collectAttention(l, w, cfg, i, name)
	}
	c.collectFeedForward(l, cfg, i, name)
}

func (c *catalog) collectAttention(l *layer, w *weights, cfg *Config, i int, name func(string) string) {
	t, s := &cfg.traits, cfg.layers[i]
	own := s.source == i
	if t.headNorms {
		l.qNorm = c.vector(name("attn_q_norm.weight"), true, s.headDim)
	}
	if t.headNorms && own {
		l.kNorm = c.vector(name("attn_k_norm.weight"), true, s.headDim)
	}
	if t.postNorms {
		l.attnPost = c.vector(name("post_attention_norm.weight"), true, cfg.Dim)
	}
	if t.latent {
		c.collectLatent(l, cfg, name, s.heads)
	} else {
		c.collectQKV(l, w, cfg, name, i)
	}
	if t.sinks {
		l.sinks = c.vector(name("attn_sinks.weight"), true, s.heads)
	}
}

// collectQKV lists the matrices of attention whose heads have keys and values.
func (c *catalog) collectQKV(l *layer, w *weights, cfg *Config, name func(string) string, i int) {
	t, s := &cfg.traits, cfg.layers[i]
	attn, kv, own := s.heads*s.headDim, s.kvHeads*s.headDim, s.source == i
	if qkv := name("attn_qkv.weight"); t.fused && c.file.Tensor(qkv) != nil {
		c.stacked(qkv, cfg.Dim, band{&l.q, attn}, band{&l.k, kv}, band{&l.v, kv})
	} else if i == 0 && w.draft != nil && w.draft.wide() {
		for _, m := range []struct {
			letter       string
			hidden, embd *kernels.W
			rows         int
		}{{"q", &l.q, &w.draft.qEmbd, attn}, {"k", &l.k, &w.draft.kEmbd, kv}, {"v", &l.v, &w.draft.vEmbd, kv}} {
			c.matrix(m.hidden, name("attn_"+m.letter+".hidden.weight"), true, m.rows, cfg.Dim)
			c.matrix(m.embd, name("attn_"+m.letter+".embd.weight"), true, m.rows, cfg.Dim)
		}
	} else {
		if t.deltaNet {
			c.interleaved(name("attn_q.weight"), cfg.Dim, attn, s.headDim, &l.q, &l.attnGate)
		} else {
			c.matrix(&l.q, name("attn_q.weight"), true, attn, cfg.Dim)
		}
		if own {
			c.matrix(&l.k, name("attn_k.weight"), true, kv, cfg.Dim)
			l.sameKV = t.valueNorms && c.file.Tensor(name("attn_v.weight")) == nil
			c.matrix(&l.v, name("attn_v.weight"), !l.sameKV, kv, cfg.Dim)
		}
	}
	c.matrix(&l.o, name("attn_output.weight"), true, cfg.Dim, attn)
	if qkv := name("attn_qkv.bias"); t.fused && c.file.Tensor(qkv) != nil {
		if all := c.vector(qkv, true, attn+2*kv); all != nil {
			l.qBias, l.kBias, l.vBias = all[:attn], all[attn:attn+kv], all[attn+kv:]
		}
	} else {
		l.qBias = c.vector(name("attn_q.bias"), false, attn)
		l.kBias = c.vector(name("attn_k.bias"), false, kv)
		l.vBias = c.vector(name("attn_v.bias"), false, kv)
	}
	l.oBias = c.vector(name("attn_output.bias"), false, cfg.Dim)
}

func (c *catalog) collectFeedForward(l *layer, cfg *Config, i int, name func(string) string) {
	t, s := &cfg.traits, cfg.layers[i]
	if t.postNorms {
		l.ffnPost = c.vector(name("post_ffw_norm.weight"), true, cfg.Dim)
	}
	switch {
	case cfg.experts.count > 0 && t.beside:
		c.collectBeside(&l.mixture, cfg, name, s.expert)
	case s.expert > 0 && cfg.experts.count > 0:
		c.collectExperts(&l.mixture, cfg, name, s)
		return
	}
	if t.fused && c.file.Tensor(name("ffn_gate.weight")) == nil {
		c.stacked(name("ffn_up.weight"), cfg.Dim, band{&l.gate, s.ffn}, band{&l.up, s.ffn})
		if all := c.vector(name("ffn_up.bias"), false, 2*s.ffn); all != nil {
			l.gateBias, l.upBias = all[:s.ffn], all[s.ffn:]
		}
	} else {
		c.matrix(&l.gate, name("ffn_gate.weight"), true, s.ffn, cfg.Dim)
		c.matrix(&l.up, name("ffn_up.weight"), true, s.ffn, cfg.Dim)
		l.gateBias = c.vector(name("ffn_gate.bias"), false, s.ffn)
		l.upBias = c.vector(name("ffn_up.bias"), false, s.ffn)
	}
	c.matrix(&l.down, name("ffn_down.weight"), true, cfg.Dim, s.ffn)
	l.downBias = c.vector(name("ffn_down.bias"), false, cfg.Dim)
}

// leaveOutTowers counts what reads pictures or sound as used: text does not depend on it.
func (c *catalog) leaveOutTowers() {
	for _, t := range c.file.Tensors() {
		if gguf.Tower(t.Name) != "" {
			c.used[t.Name] = true
		}
	}
}

// collectRopeFactors finds the factors that divide RoPE's frequencies: Llama 3.1's single table, or one of LongRoPE's two, for
// contexts longer than the training context and for others. The model's context, set when it is loaded, decides.
func (c *catalog) collectRopeFactors(w *weights, cfg *Config) {
	if !cfg.traits.ropeFactors {
		return
	}
	const longName, shortName = "rope_factors_long.weight", "rope_factors_short.weight"
	need := cfg.rope.kind == "longrope" || c.file.Tensor(longName) != nil || c.file.Tensor(shortName) != nil
	w.ropeFactors = c.vector("rope_freqs.weight", false, cfg.RopeDim/2)
	long, short := c.vector(longName, need, cfg.RopeDim/2), c.vector(shortName, need, cfg.RopeDim/2)
	if w.ropeFactors == nil && cfg.Context > cfg.rope.original {
		w.ropeFactors = long
	} else if w.ropeFactors == nil {
		w.ropeFactors = short
	}
	for i, f := range w.ropeFactors {
		if !(f >= minRopeFactor && f <= maxRopeFactor) && !(cfg.traits.localHeads && f >= minStill && f <= maxStill) {
			c.fail(tandem.Corrupt, "rope factor %d is %v: want %v to %v", i, f, minRopeFactor, maxRopeFactor)
		}
	}
}
