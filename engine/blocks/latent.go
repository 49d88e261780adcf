package blocks

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// Keys of latent attention.
const (
	keyKey      = "attention.key_length_mla"
	keyValue    = "attention.value_length_mla"
	maxCompress = 1 << 12 // elements of a kept key: kernels/cpu
)

// Latent reads the sizes of latent attention into c; LayerHeads must have made c.Shapes. There are two layouts of files. In the newer one,
// key_length and value_length are the sizes of what is kept, and other keys have the sizes of heads.
func (h *Reader) Latent(c *Config) {
	if h.Err != nil {
		return
	}
	l := &c.Latent
	l.Rank = h.Count(keyRank, -1, maxCompress)
	l.Query = h.Optional("attention.q_lora_rank", MaxDim)
	c.RopeDim = h.Count("rope.dimension_count", -1, maxCompress)
	l.Together = !h.File.Has(h.Arch + "." + keyKey)
	own := map[bool][2]string{false: {keyKey, keyValue}, true: {"attention.key_length", "attention.value_length"}}[l.Together]
	l.Key, l.Value = h.Count(own[0], -1, MaxHead), h.Count(own[1], -1, MaxHead)
	c.HeadDim = l.Key
	if h.Err != nil {
		return
	}
	want := func(key string, got, want int, what string) {
		if got != want {
			h.Fail(tandem.Corrupt, "key %q is %d: want %d, %s", h.Arch+"."+key, got, want, what)
		}
	}
	first := c.Shapes[0].Heads
	for i, s := range c.Shapes {
		want("attention.head_count", s.Heads, first, fmt.Sprintf("as many heads in layer %d as in layer 0", i))
		if l.Together {
			want("attention.head_count_kv", s.KVHeads, first, "the number of heads")
		} else {
			want("attention.head_count_kv", s.KVHeads, 1, "because all heads share what is kept")
		}
		c.Shapes[i].KVHeads = 1
	}
	c.KVHeads = 1
	if !l.Together {
		want("attention.key_length", h.Count("attention.key_length", -1, MaxDim), l.Rank+c.RopeDim, "the rank and the elements that turn")
		want("attention.value_length", h.Count("attention.value_length", -1, MaxDim), l.Rank, "the rank")
	}
	switch {
	case c.RopeDim%2 != 0 || c.RopeDim >= l.Key:
		h.Fail(tandem.Corrupt, "rope dimension count %d: want an even number below the key length %d of key %q", c.RopeDim, l.Key,
			h.Arch+"."+own[0])
	case l.Rank+c.RopeDim > maxCompress:
		h.Fail(tandem.Unsupported, "keys of %d and %d elements are kept: want at most %d", l.Rank, c.RopeDim, maxCompress)
	case max(l.Key, l.Value, l.Rank+c.RopeDim)*first > MaxDim:
		h.Fail(tandem.Corrupt, "%d heads of %d elements: want at most %d in all", first, max(l.Key, l.Value, l.Rank+c.RopeDim), MaxDim)
	default:
		h.sameHeads(c)
	}
}

// LatentAttention is latent attention (Latent):
//
//	n = In(x); q = W [norm(W n)]; l = norm(W n); k = RoPE(W n); keep k, l
//	of each head: q' = (RoPE(its last elements), Wkeys (its others))
//	x = Out(x, Wo (of each head: Wvalues attention(q') over (k, l)))
type LatentAttention struct {
	In             Entrance
	Out            Exit
	queries        func(b *Planner, q kernels.Buf) // makes q of b.Normed
	Latent, Turned kernels.W                       // to the latent vector, and to the part of keys that RoPE turns
	Norm           []float32                       // of the latent vector
	Keys, Values   kernels.W                       // per head: (rank, plain) to the latent space, and (value, rank) to its value
	Output         Branch
	layer, heads   int
}

// Latent finds the tensors of the layer's latent attention, in either layout of files.
func (t *Tensors) Latent() *LatentAttention {
	k, heads := &t.C.Latent, t.Shape.Heads
	m := &LatentAttention{In: t.attentionNorm(), Out: t.exit(), layer: t.I, heads: heads}
	m.queries = t.latentQueries(heads)
	t.Stacked(t.Name("attn_kv_a_mqa.weight"), t.C.Dim, tensors.Rows(&m.Latent, k.Rank), tensors.Rows(&m.Turned, t.C.RopeDim))
	m.Norm = t.Vec("attn_kv_a_norm.weight", k.Rank)
	t.Mat(&m.Output.W, "attn_output.weight", t.C.Dim, heads*k.Value)
	plain := t.C.plain()
	if k.Together {
		t.KeysAndValues(t.Name("attn_kv_b.weight"), heads, plain, k.Value, k.Rank, &m.Keys, &m.Values)
		return m
	}
	t.OfHeads(&m.Keys, t.Name("attn_k_b.weight"), heads, k.Rank, plain)
	t.OfHeads(&m.Values, t.Name("attn_v_b.weight"), heads, k.Value, k.Rank)
	return m
}

// latentQueries finds the matrices of queries: one, or two with a norm between them.
func (t *Tensors) latentQueries(heads int) func(b *Planner, q kernels.Buf) {
	k := t.C.Latent
	var w, first kernels.W
	if k.Query == 0 {
		t.Mat(&w, "attn_q.weight", heads*k.Key, t.C.Dim)
		return func(b *Planner, q kernels.Buf) { b.MatMul(w, b.Normed, q, kernels.MatMulOpt{}) }
	}
	t.Mat(&first, "attn_q_a.weight", k.Query, t.C.Dim)
	norm := t.Vec("attn_q_a_norm.weight", k.Query)
	t.Mat(&w, "attn_q_b.weight", heads*k.Key, k.Query)
	return func(b *Planner, q kernels.Buf) {
		narrow, normed := b.BufOf("query", k.Query), b.ActOf("query normed", k.Query)
		b.MatMul(first, b.Normed, narrow, kernels.MatMulOpt{})
		b.RMSNorm(narrow, norm, b.NormEps, normed)
		b.MatMul(w, normed, q, kernels.MatMulOpt{})
	}
}

// Lay implements Part.
func (m *LatentAttention) Lay(b *Planner) {
	heads, k, plain := m.heads, &b.Latent, b.plain()
	m.In.enter(b, m.layer)
	q, latent, turned := b.BufOf("q", heads*k.Key), b.BufOf("latent", k.Rank), b.BufOf("turned", b.RopeDim)
	b.MatMul(m.Latent, b.Normed, latent, Concurrent)
	b.MatMul(m.Turned, b.Normed, turned, Concurrent)
	b.KV.Layers = append(b.KV.Layers, kernels.KVLayer{Latent: k.Rank, Rotated: b.RopeDim})
	m.queries(b, q)
	turn := b.Rotation(false, nil)
	b.HeadNorm(latent, 1, m.Norm, b.NormEps)
	b.RoPE(turned, 1, b.RopeDim, turn)
	b.StoreKV(turned, latent, m.layer)

	wide := b.RopeDim + k.Rank
	plains, input, absorbed, query := b.BufOf("q plain", heads*plain), b.ActOf("q plain", heads*plain), b.BufOf("q absorbed", heads*k.Rank),
		b.BufOf("q wide", heads*wide)
	b.Add(kernels.CopyHeads{In: q, Out: plains, Heads: heads, Dim: plain})
	b.Add(kernels.CopyHeads{In: q, Out: query, Heads: heads, From: plain, Dim: b.RopeDim})
	b.RoPE(query, heads, wide, turn)
	b.Feed(plains, input)
	b.Add(kernels.ExpertMatMul{W: m.Keys, In: input, Route: b.allHeads(heads), Out: absorbed})
	b.Add(kernels.CopyHeads{In: absorbed, Out: query, Heads: heads, To: b.RopeDim, Dim: k.Rank})
	attended, values, out := b.ActOf("attended", heads*k.Rank), b.BufOf("values", heads*k.Value), b.ActOf("values", heads*k.Value)
	b.Add(kernels.Attention{AttentionOpt: kernels.AttentionOpt{Scale: b.AttnScale}, Q: query, Layer: m.layer, Heads: heads, Out: attended})
	b.Add(kernels.ExpertMatMul{W: m.Values, In: attended, Route: b.allHeads(heads), Out: values})
	b.Feed(values, out)
	m.Output.Leave(b, out, m.Out)
}
