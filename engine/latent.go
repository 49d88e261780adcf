package engine

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// latent is the attention of a model that keeps one latent vector of a position for all heads (MLA, DeepSeek-V2). A head's key is made of a
// part that a matrix of the head makes from the latent vector, and of one that all heads share and that RoPE turns; another matrix of the
// head makes its value. Because those matrices are linear, queries are multiplied by the first instead of keys, and the second is applied
// to the weighted sum of latent vectors: only these and the turned keys are kept. The zero value is a model without.
type latent struct {
	rank       int  // elements of the latent vector
	key, value int  // elements of a head's key, whose last RopeDim are the turned ones, and of its value
	query      int  // elements of the vector from which queries are made; 0: they are made from the layer's input
	together   bool // the file has keys and values of a head in one tensor
}

// plain returns the elements of a head's key that do not turn.
func (c *Config) plain() int { return c.latent.key - c.RopeDim }

// Keys of latent attention.
const (
	keyRank     = "attention.kv_lora_rank"
	keyKey      = "attention.key_length_mla"
	keyValue    = "attention.value_length_mla"
	keyGroups   = "expert_group_count"
	maxCompress = 1 << 12 // elements of a kept key: kernels/cpu
)

// readLatent reads the sizes of latent attention; c.layers are known. There are two layouts of files. The newer one says the sizes of what
// is kept in key_length and value_length, and those of heads in keys of their own.
func (h *hyper) readLatent(c *Config) {
	l := &c.latent
	l.rank = h.count(keyRank, -1, maxCompress)
	n, err := h.file.IntOr(h.arch+".attention.q_lora_rank", 0, maxDim, 0)
	h.keep(err)
	l.query = n
	c.RopeDim = h.count("rope.dimension_count", -1, maxCompress)
	l.together = !h.file.Has(h.arch + "." + keyKey)
	own := map[bool][2]string{false: {keyKey, keyValue}, true: {"attention.key_length", "attention.value_length"}}[l.together]
	l.key, l.value = h.count(own[0], -1, maxHead), h.count(own[1], -1, maxHead)
	c.HeadDim = l.key
	if h.err != nil {
		return
	}
	want := func(key string, got, want int, what string) {
		if got != want {
			h.fail(tandem.Corrupt, "key %q is %d: want %d, %s", h.arch+"."+key, got, want, what)
		}
	}
	first := c.layers[0].heads
	for i, s := range c.layers {
		want("attention.head_count", s.heads, first, fmt.Sprintf("as many heads in layer %d as in layer 0", i))
		if l.together {
			want("attention.head_count_kv", s.kvHeads, first, "the number of heads")
		} else {
			want("attention.head_count_kv", s.kvHeads, 1, "because all heads share what is kept")
		}
		c.layers[i].kvHeads = 1
	}
	c.KVHeads = 1
	if !l.together {
		want("attention.key_length", h.count("attention.key_length", -1, maxDim), l.rank+c.RopeDim, "the rank and the elements that turn")
		want("attention.value_length", h.count("attention.value_length", -1, maxDim), l.rank, "the rank")
	}
	switch {
	case c.RopeDim%2 != 0 || c.RopeDim >= l.key:
		h.fail(tandem.Corrupt, "rope dimension count %d: want an even number below the key length %d of key %q", c.RopeDim, l.key,
			h.arch+"."+own[0])
	case l.rank+c.RopeDim > maxCompress:
		h.fail(tandem.Unsupported, "keys of %d and %d elements are kept: want at most %d", l.rank, c.RopeDim, maxCompress)
	case max(l.key, l.value, l.rank+c.RopeDim)*first > maxDim:
		h.fail(tandem.Corrupt, "%d heads of %d elements: want at most %d in all", first, max(l.key, l.value, l.rank+c.RopeDim), maxDim)
	}
}

// latentScale returns what scores are multiplied with: 1/√(key size), and the square of YaRN's magnitude, by which cosines and sines are
// not multiplied here.
func (h *hyper) latentScale(c *Config) float32 {
	m := 1.0
	if c.rope.kind == "yarn" && c.rope.factor > 1 {
		m += float64(float64(h.multiplier(&c.traits, keyYarnLog, 0)) * ln(c.rope.factor))
	}
	return float32(float64(m*m) / math.Sqrt(float64(c.latent.key)))
}

// compressed holds the weights of latent attention beside the queries' and the output's.
type compressed struct {
	query           kernels.W // to the vector from which queries are made; None: they are made from the layer's input
	queryNorm, norm []float32 // of that vector, and of the latent vector
	latent, turned  kernels.W // to the latent vector, and to the part of keys that RoPE turns
	keys, values    kernels.W // per head: (rank, plain) to the latent vector's space, and (value, rank) to the head's value
}

func (c *catalog) collectLatent(l *layer, cfg *Config, name func(string) string, heads int) {
	k, m := &cfg.latent, &l.compressed
	if m.query = kernels.None; k.query > 0 {
		c.matrix(&m.query, name("attn_q_a.weight"), true, k.query, cfg.Dim)
		m.queryNorm = c.vector(name("attn_q_a_norm.weight"), true, k.query)
		c.matrix(&l.q, name("attn_q_b.weight"), true, heads*k.key, k.query)
	} else {
		c.matrix(&l.q, name("attn_q.weight"), true, heads*k.key, cfg.Dim)
	}
	c.stacked(name("attn_kv_a_mqa.weight"), cfg.Dim, band{&m.latent, k.rank}, band{&m.turned, cfg.RopeDim})
	m.norm = c.vector(name("attn_kv_a_norm.weight"), true, k.rank)
	c.matrix(&l.o, name("attn_output.weight"), true, cfg.Dim, heads*k.value)
	plain := cfg.plain()
	if !k.together {
		c.ofHeads(&m.keys, name("attn_k_b.weight"), heads, k.rank, plain)
		c.ofHeads(&m.values, name("attn_v_b.weight"), heads, k.value, k.rank)
		return
	}
	each := plain + k.value
	t := c.find(name("attn_kv_b.weight"), true, k.rank, heads*each)
	if t == nil || !c.runs(t) {
		return
	}
	m.keys, m.values = kernels.W(len(c.matrices)), kernels.W(len(c.matrices)+1)
	c.matrices = append(c.matrices, matrix{tensor: t, rows: k.rank, experts: heads, heads: true, every: each, across: plain},
		matrix{tensor: t, row0: plain, rows: k.value, experts: heads, heads: true, every: each})
}

// ofHeads asks for a stack of matrices that every row uses.
func (c *catalog) ofHeads(into *kernels.W, name string, n, rows, cols int) {
	if c.ofExperts(name, n, cols, band{into, rows}); c.err == nil {
		c.matrices[*into].heads = true
	}
}

// byHead returns chunks of a tensor that holds, for one head after the other, the rows of each of these matrices.
func byHead(t *gguf.Tensor, parts []matrix, first int) (out []chunk) {
	bytes := perRow(t)
	for head := range parts[0].experts {
		c := chunk{tensor: t, row: head * parts[0].every, size: parts[0].every * bytes, split: true}
		at := 0
		for i, m := range parts {
			n := m.rows
			if m.across > 0 {
				n = m.across
			}
			c.into = append(c.into, piece{matrix: kernels.W(first + i), row: head * m.rows, from: at, size: n * bytes, across: m.across})
			at += n * bytes
		}
		out = append(out, c)
	}
	return out
}

// transposed returns the transpose of rows of t, in F32. The values are exact.
func transposed(t *gguf.Tensor, rows int, src []byte) []byte {
	cols := t.Shape[0]
	values := make([]float32, rows*cols)
	ref.Dequantize(uint32(t.Type), src, values)
	turned := make([]byte, 0, 4*rows*cols)
	for c := range cols {
		for r := range rows {
			turned = binary.LittleEndian.AppendUint32(turned, math.Float32bits(values[r*cols+c]))
		}
	}
	return turned
}

// latentAttention lays out, in a layer,
//
//	n = norm(x); q = W [norm(W n)]; l = norm(W n); k = RoPE(W n); keep k, l
//	of each head: q' = (RoPE(its last elements), Wkeys (its others))
//	x += Wo (of each head: Wvalues attention(q') over (k, l))
func (b *planner) latentAttention(i int) {
	l, heads, k, plain := &b.w.layers[i], b.layers[i].heads, &b.latent, b.plain()
	m := &l.compressed
	b.norm(b.x, l.attnNorm, b.normed)
	b.Stage(fmt.Sprintf("layer %d", i))
	q, latent, turned := b.buf("q", heads*k.key), b.buf("latent", k.rank), b.buf("turned", b.RopeDim)
	b.MatMul(m.latent, b.normed, latent, concurrent)
	b.MatMul(m.turned, b.normed, turned, concurrent)
	if m.query == kernels.None {
		b.MatMul(l.q, b.normed, q, kernels.MatMulOpt{})
	} else {
		narrow, normed := b.buf("query", k.query), b.act("query normed", k.query)
		b.MatMul(m.query, b.normed, narrow, kernels.MatMulOpt{})
		b.RMSNorm(narrow, m.queryNorm, b.NormEps, normed)
		b.MatMul(l.q, normed, q, kernels.MatMulOpt{})
	}
	turn := b.rotation(false, nil)
	b.HeadNorm(latent, 1, m.norm, b.NormEps)
	b.RoPE(turned, 1, b.RopeDim, turn)
	b.StoreKV(turned, latent, i)

	wide := b.RopeDim + k.rank
	plains, input, absorbed, query := b.buf("q plain", heads*plain), b.act("q plain", heads*plain), b.buf("q absorbed", heads*k.rank),
		b.buf("q wide", heads*wide)
	b.Add(kernels.CopyHeads{In: q, Out: plains, Heads: heads, Dim: plain})
	b.Add(kernels.CopyHeads{In: q, Out: query, Heads: heads, From: plain, Dim: b.RopeDim})
	b.RoPE(query, heads, wide, turn)
	b.Feed(plains, input)
	b.Add(kernels.ExpertMatMul{W: m.keys, In: input, Route: b.heads, Out: absorbed})
	b.Add(kernels.CopyHeads{In: absorbed, Out: query, Heads: heads, To: b.RopeDim, Dim: k.rank})
	attended, values, out := b.act("attended", heads*k.rank), b.buf("values", heads*k.value), b.act("values", heads*k.value)
	b.Add(kernels.Attention{AttentionOpt: kernels.AttentionOpt{Scale: b.attnScale}, Q: query, Layer: i, Heads: heads, Out: attended})
	b.Add(kernels.ExpertMatMul{W: m.values, In: attended, Route: b.heads, Out: values})
	b.Feed(values, out)
	b.add(l.o, out, nil, nil)
}
