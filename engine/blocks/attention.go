package blocks

import (
	"slices"

	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// Attention is the attention of a layer. Tensors.Attention composes it of parts (AttentionPart); only some parts add what is in brackets:
//
//	n = In(x); q, k, v = W n [+ W' of a second input] [+ b]
//	[q, k, v = norm of each head]; [RoPE(q, k)]; [q·temperature]; keep k, v
//	x = Out(x, Wo (attention(q) [∘ sigmoid(Wgate n)]) [+ b])
//
// A layer without keys and values of its own reads those of another one (LayerShape.Source).
type Attention struct {
	In     Entrance
	Output Branch
	Out    Exit
	read   kernels.Attention            // without its buffers
	gate   func(b *Planner) kernels.Buf // of the output; None: it has none

	layer, width int
	Queries, Own Heads             // Own: keys and values; empty if the layer reads another one's
	second       []Lines           // products with a second input
	keep         []Lines           // puts keys and values into the cache
	kept         []kernels.KVLayer // what the cache has of the layer; empty: the cache is another model's
}

// Heads are queries, or keys and values: the products that make them of the layer's input, then what is done with these, field by field.
type Heads struct {
	Products []Product
	Raw      []Lines // biases
	Norms    []Lines // of heads
	Turns    []Lines // RoPE, and what comes behind it
}

// AttentionPart finds tensors of a layer and adds to a what is computed with them. It runs when a model is read, once for each layer.
type AttentionPart func(a *Attention)

// Attention composes the attention of layer t.I. It runs the parts in order, each of which finds its tensors, then adds RoPE, the queries'
// temperature and the KV cache as the layer's shape and the model say. Errors go to the Catalog.
func (t *Tensors) Attention(parts ...AttentionPart) *Attention {
	s := t.Shape
	a := &Attention{layer: t.I, width: s.Heads * s.HeadDim, In: t.attentionNorm(), Out: t.exit(),
		gate: func(*Planner) kernels.Buf { return kernels.None },
		read: kernels.Attention{AttentionOpt: kernels.AttentionOpt{Scale: t.C.AttnScale, SoftCap: t.C.AttnCap, Later: s.Later},
			Layer: t.I, Heads: s.Heads}}
	switch {
	case t.Borrows:
		a.read.Layer = s.Source
	case s.Source != t.I:
		a.kept = []kernels.KVLayer{{Shared: true, Source: s.Source}}
	default:
		a.kept = []kernels.KVLayer{{Heads: s.KVHeads, Dim: s.HeadDim}}
	}
	if s.Local {
		a.read.Window = t.C.Window
	}
	for _, part := range parts {
		part(a)
	}
	own := len(a.Own.Products) > 0
	if own {
		_, kv := s.outputs()
		a.keep = []Lines{func(b *Planner) { b.StoreKV(b.BufOf("k", kv), b.BufOf("v", kv), t.I) }}
	}
	if !s.Unturned {
		a.Queries.Turns = append(a.Queries.Turns, turned("q", s, s.Heads))
		if own {
			a.Own.Turns = slices.Insert(a.Own.Turns, 0, turned("k", s, s.KVHeads))
		}
	}
	if t.C.Temperature != 0 {
		a.Queries.Turns = append(a.Queries.Turns, on("q", a.width, func(b *Planner, q kernels.Buf) {
			b.PositionScale(q, b.Rope.Original, b.temper)
		})...)
	}
	return a
}

// turned lays out RoPE of queries or keys.
func turned(name string, s LayerShape, heads int) Lines {
	return func(b *Planner) {
		by := b.Rotation(s.Local, b.W.RopeFactors)
		by.Ahead = b.Ahead
		b.RoPE(b.BufOf(name, heads*s.HeadDim), heads, s.HeadDim, by)
	}
}

// Lay implements Part.
func (a *Attention) Lay(b *Planner) {
	a.In.enter(b, a.layer)
	b.KV.Layers = append(b.KV.Layers, a.kept...)
	b.products(slices.Concat(a.Queries.Products, a.Own.Products), b.Normed, false)
	for _, lines := range [][]Lines{a.second, a.Queries.Raw, a.Own.Raw, a.Own.Norms, a.Own.Turns, a.Queries.Norms,
		a.Queries.Turns, a.keep} {
		b.lay(lines)
	}
	read := a.read
	read.Q, read.Out, read.Gate = b.BufOf("q", a.width), b.ActOf("attended", a.width), a.gate(b)
	read.Gated = read.Gate != kernels.None
	b.Add(read)
	a.Output.Leave(b, read.Out, a.Out)
}

// Keep lays out only the making and storing of the layer's keys and values, for rows without queries. They are made of in, (rows, d).
func (a *Attention) Keep(b *Planner, in kernels.Act) {
	b.products(a.Own.Products, in, false)
	for _, lines := range [][]Lines{a.Own.Raw, a.Own.Norms, a.Own.Turns, a.keep} {
		b.lay(lines)
	}
}

// Own reports whether the layer has keys and values of its own, and so reads neither another layer's nor another model's.
func (t *Tensors) Own() bool { return !t.Borrows && t.Shape.Source == t.I }

// outputs returns how many numbers the heads' queries have together, and how many their keys, and values.
func (s LayerShape) outputs() (q, kv int) { return s.Heads * s.HeadDim, s.KVHeads * s.HeadDim }

// Separate is the part for files with a tensor each for the matrices of queries, keys, values and the output, and perhaps for their biases.
func (t *Tensors) Separate(a *Attention) {
	t.Queries(a)
	t.KeysValues(a)
	t.Output(a)
}

// Queries finds the matrix of queries: (heads·head size, d).
func (t *Tensors) Queries(a *Attention) {
	q, _ := t.Shape.outputs()
	t.twofold(a, &a.Queries, "q", q)
}

// KeysValues finds the matrices of keys and of values, each (KV heads·head size, d).
func (t *Tensors) KeysValues(a *Attention) {
	_, kv := t.Shape.outputs()
	t.twofold(a, &a.Own, "k", kv)
	t.twofold(a, &a.Own, "v", kv)
}

// KeysAsValues finds the matrix of keys alone: the layer's values are its keys, before their norm and RoPE.
func (t *Tensors) KeysAsValues(a *Attention) {
	_, kv := t.Shape.outputs()
	t.twofold(a, &a.Own, "k", kv)
	a.Own.Norms = slices.Insert(a.Own.Norms, 0, func(b *Planner) { b.Copy(b.BufOf("k", kv), b.BufOf("v", kv)) })
}

// twofold finds the matrix of queries, keys or values; where the layer reads a second input (Second), two of them.
func (t *Tensors) twofold(a *Attention, into *Heads, letter string, dim int) {
	p := Product{Out: letter, Dim: dim}
	if s := t.W.Second; t.I > 0 || s == nil {
		t.Mat(&p.W, "attn_"+letter+".weight", dim, t.C.Dim)
	} else {
		also := p
		t.Mat(&p.W, "attn_"+letter+".hidden.weight", dim, t.C.Dim)
		t.Mat(&also.W, "attn_"+letter+".embd.weight", dim, t.C.Dim)
		s.products = append(s.products, also)
		a.second = []Lines{func(b *Planner) { b.products(s.products, s.In, true) }}
	}
	into.Products = append(into.Products, p)
}

// Output finds attention's output matrix, (d, heads·head size), and the biases of queries, keys, values and output that the file has.
func (t *Tensors) Output(a *Attention) {
	q, kv := t.Shape.outputs()
	t.Mat(&a.Output.W, "attn_output.weight", t.C.Dim, q)
	t.biases(a, t.VecIf("attn_q.bias", q), t.VecIf("attn_k.bias", kv), t.VecIf("attn_v.bias", kv))
}

// biases adds those of queries, keys and values that the file has, and finds the output's.
func (t *Tensors) biases(a *Attention, q, k, v []float32) {
	for _, x := range []struct {
		of     *Heads
		name   string
		values []float32
	}{{&a.Queries, "q", q}, {&a.Own, "k", k}, {&a.Own, "v", v}} {
		x.of.Raw = append(x.of.Raw, on(x.name, len(x.values), biased(x.values)...)...)
	}
	a.Output.Then = biased(t.VecIf("attn_output.bias", t.C.Dim))
}

// Fused is Separate for files in which one tensor may hold the matrices of queries, keys and values.
func (t *Tensors) Fused(a *Attention) {
	const weight, bias = "attn_qkv.weight", "attn_qkv.bias"
	q, kv := t.Shape.outputs()
	if t.Has(weight) {
		a.Queries.Products = []Product{{Out: "q", Dim: q}}
		a.Own.Products = []Product{{Out: "k", Dim: kv}, {Out: "v", Dim: kv}}
		t.Stacked(t.Name(weight), t.C.Dim, tensors.Rows(&a.Queries.Products[0].W, q), tensors.Rows(&a.Own.Products[0].W, kv),
			tensors.Rows(&a.Own.Products[1].W, kv))
	} else {
		t.Queries(a)
		t.KeysValues(a)
	}
	if !t.Has(bias) {
		t.Output(a)
		return
	}
	t.Mat(&a.Output.W, "attn_output.weight", t.C.Dim, q)
	if all := t.Vec(bias, q+2*kv); all != nil {
		t.biases(a, all[:q], all[q:q+kv], all[q+kv:])
	}
}

// GatedQueries finds two matrices in one tensor, head by head in turn: that of queries, and that of the gates of attention's output.
func (t *Tensors) GatedQueries(a *Attention) {
	q, _ := t.Shape.outputs()
	a.Queries.Products = []Product{{Out: "q", Dim: q}, {Out: "attention's gate", Dim: q}}
	t.Interleaved(t.Name("attn_q.weight"), t.C.Dim, q, t.Shape.HeadDim, &a.Queries.Products[0].W, &a.Queries.Products[1].W)
	a.gate = func(b *Planner) kernels.Buf { return b.BufOf("attention's gate", q) }
}

// HeadNorms finds the norms of the heads of queries and, if the layer has its own, of keys: (head size) each, shared by all heads.
func (t *Tensors) HeadNorms(a *Attention) {
	q := t.Vec("attn_q_norm.weight", t.Shape.HeadDim)
	if t.Own() {
		t.normHeads(a, q, t.Vec("attn_k_norm.weight", t.Shape.HeadDim))
	} else {
		t.normHeads(a, q, nil)
	}
}

// HeadNormsIf is HeadNorms for files that may lack them.
func (t *Tensors) HeadNormsIf(a *Attention) {
	t.normHeads(a, t.VecIf("attn_q_norm.weight", t.Shape.HeadDim), t.VecIf("attn_k_norm.weight", t.Shape.HeadDim))
}

// normHeads norms heads, before they are turned.
func (t *Tensors) normHeads(a *Attention, q, k []float32) {
	s := t.Shape
	width, kv := s.outputs()
	if q != nil {
		a.Queries.Norms = append(a.Queries.Norms, on("q", width, headsNormed(s.Heads, q))...)
		t.Traits |= HeadNorms
	}
	if k != nil {
		a.Own.Norms = append(a.Own.Norms, on("k", kv, headsNormed(s.KVHeads, k))...)
	}
}

// ValueNorms normalises the heads of values, without weights.
func (t *Tensors) ValueNorms(a *Attention) {
	_, kv := t.Shape.outputs()
	ones := slices.Repeat([]float32{1}, t.Shape.HeadDim)
	a.Own.Turns = append(a.Own.Turns, on("v", kv, headsNormed(t.Shape.KVHeads, ones))...)
	t.Traits |= ValueNorms
}

// PostNorm finds the norm of attention's output, (d), which is applied before that is added to the residual stream.
func (t *Tensors) PostNorm(a *Attention) {
	a.Out = PostNormed(t.Vec("post_attention_norm.weight", t.C.Dim))
}

// Sinks finds a score for each query head that takes part in the softmax but has no value: kernels.Attention.
func (t *Tensors) Sinks(a *Attention) {
	a.read.Sinks = t.Vec("attn_sinks.weight", t.Shape.Heads)
	t.Traits |= Sinks
}
