package blocks

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// HeadNorms finds the norms of queries' and keys' heads.
func (t *Tensors) HeadNorms() {
	t.QNorm = t.Vec("attn_q_norm.weight", t.Shape.HeadDim)
	if t.Own() {
		t.KNorm = t.Vec("attn_k_norm.weight", t.Shape.HeadDim)
	}
}

// Own reports whether the layer has keys and values of its own.
func (t *Tensors) Own() bool { return t.Shape.Source == t.I }

// outputs returns how many numbers the heads' queries have together, and how many their keys, and values.
func (s LayerShape) outputs() (q, kv int) { return s.Heads * s.HeadDim, s.KVHeads * s.HeadDim }

// Attention finds the matrices of attention, and their biases, which may be missing.
func (t *Tensors) Attention() {
	q, kv := t.Shape.outputs()
	if t.I == 0 && t.W.Second != nil {
		t.twofold(q, kv)
	} else {
		t.Mat(&t.Q, "attn_q.weight", q, t.C.Dim)
		t.KV()
	}
	t.Output()
}

// KV finds the matrices of keys and values.
func (t *Tensors) KV() {
	_, kv := t.Shape.outputs()
	t.Mat(&t.K, "attn_k.weight", kv, t.C.Dim)
	t.Mat(&t.V, "attn_v.weight", kv, t.C.Dim)
}

// Output finds attention's output matrix, and the biases.
func (t *Tensors) Output() {
	q, kv := t.Shape.outputs()
	t.Mat(&t.O, "attn_output.weight", t.C.Dim, q)
	t.QBias, t.KBias, t.VBias = t.VecIf("attn_q.bias", q), t.VecIf("attn_k.bias", kv), t.VecIf("attn_v.bias", kv)
	t.OBias = t.VecIf("attn_output.bias", t.C.Dim)
}

// FusedAttention is Attention for files in which one tensor may hold q, k and v.
func (t *Tensors) FusedAttention() {
	const weight, bias = "attn_qkv.weight", "attn_qkv.bias"
	q, kv := t.Shape.outputs()
	if t.Has(weight) {
		t.Stacked(t.Name(weight), t.C.Dim, tensors.Rows(&t.Q, q), tensors.Rows(&t.K, kv), tensors.Rows(&t.V, kv))
	} else {
		t.Mat(&t.Q, "attn_q.weight", q, t.C.Dim)
		t.KV()
	}
	if !t.Has(bias) {
		t.Output()
		return
	}
	t.Mat(&t.O, "attn_output.weight", t.C.Dim, q)
	if all := t.Vec(bias, q+2*kv); all != nil {
		t.QBias, t.KBias, t.VBias = all[:q], all[q:q+kv], all[q+kv:]
	}
	t.OBias = t.VecIf("attn_output.bias", t.C.Dim)
}

// twofold finds the matrices of a layer that reads a second input.
func (t *Tensors) twofold(q, kv int) {
	second := t.W.Second
	for _, m := range []struct {
		letter       string
		hidden, embd *kernels.W
		rows         int
	}{{"q", &t.Q, &second.Q, q}, {"k", &t.K, &second.K, kv}, {"v", &t.V, &second.V, kv}} {
		t.Mat(m.hidden, "attn_"+m.letter+".hidden.weight", m.rows, t.C.Dim)
		t.Mat(m.embd, "attn_"+m.letter+".embd.weight", m.rows, t.C.Dim)
	}
}

// Attention lays out the attention of layer i. What is in brackets the layer has if its weights or shape say so:
//
//	n = norm(x); [x = n]; q, k, v = W n [+ W' of a second input] [+ b]
//	[q, k, v = norm of each head]; [RoPE(q, k)]; [q·temperature]; keep k, v
//	x += [norm or scale] (Wo (attention(q) [∘ sigmoid(Wgate n)]) [+ b])
//
// A layer without keys and values of its own reads those of another one (LayerShape.Source).
func (b *Planner) Attention(i int) {
	l, s := &b.W.Layers[i], b.Shapes[i]
	width, kvWidth := s.outputs()
	q, out := b.BufOf("q", width), b.ActOf("attended", width)
	own, reads := s.Source == i && b.Reads == nil, i
	if b.Reads != nil {
		reads = b.Reads[i]
	}
	var k, v kernels.Buf
	if own {
		k, v = b.BufOf("k", kvWidth), b.BufOf("v", kvWidth)
	}
	second := b.enterAttention(i)
	b.MatMul(l.Q, b.Normed, q, kernels.MatMulOpt{Concurrent: own})
	gate := b.gate(l, width)
	turn := b.Rotation(s.Local, b.W.RopeFactors)
	turn.Ahead = b.Ahead
	if own {
		b.MatMul(l.K, b.Normed, k, kernels.MatMulOpt{Concurrent: !l.SameKV})
		if !l.SameKV {
			b.MatMul(l.V, b.Normed, v, kernels.MatMulOpt{})
		}
	}
	if second != nil {
		b.addSecond(second, q, k, v)
	}
	b.Bias(q, l.QBias)
	if own {
		b.Bias(k, l.KBias)
		b.Bias(v, l.VBias)
		if l.SameKV {
			b.Copy(k, v)
		}
		b.turn(k, l.KNorm, s, s.KVHeads, turn)
		if l.VNorm != nil {
			b.HeadNorm(v, s.KVHeads, l.VNorm, b.NormEps)
		}
	}
	b.turn(q, l.QNorm, s, s.Heads, turn)
	if b.temper != nil {
		b.PositionScale(q, b.Rope.Original, b.temper)
	}
	if own {
		b.StoreKV(k, v, i)
	}
	opt := kernels.AttentionOpt{Scale: b.AttnScale, SoftCap: b.AttnCap, Later: s.Later}
	if s.Local {
		opt.Window = b.Window
	}
	b.Add(kernels.Attention{AttentionOpt: opt, Q: q, Layer: reads, Heads: s.Heads, Out: out, Sinks: l.Sinks, Gate: gate,
		Gated: gate != kernels.None})
	if l.AttnConv == nil {
		b.AddBranch(l.O, out, l.OBias, l.AttnPost)
	} else {
		b.convolveOut(l.AttnConv, l.O, out, l.OBias)
	}
}

// KeysValues lays out the keys and values of layer i for rows that have no queries: they are made of in.
func (b *Planner) KeysValues(i int, in kernels.Act) {
	l, s := &b.W.Layers[i], b.Shapes[i]
	_, width := s.outputs()
	k, v := b.BufOf("k", width), b.BufOf("v", width)
	b.MatMul(l.K, in, k, Concurrent)
	b.MatMul(l.V, in, v, kernels.MatMulOpt{})
	b.Bias(k, l.KBias)
	b.Bias(v, l.VBias)
	b.turn(k, l.KNorm, s, s.KVHeads, b.Rotation(s.Local, b.W.RopeFactors))
	b.StoreKV(k, v, i)
}

// enterAttention norms the input of layer i's attention, begins the layer's stage, and returns the second input; nil: none.
func (b *Planner) enterAttention(i int) *Second {
	l, second := &b.W.Layers[i], b.W.Second
	if i > 0 {
		second = nil
	}
	switch {
	case l.AttnConv != nil:
	case second == nil:
		b.Norm(b.X, l.AttnNorm, b.Normed)
	case second.Stays:
		b.HeadNorm(b.X, 1, second.Norm, b.NormEps)
		b.Feed(b.X, b.Normed)
	default:
		b.Norm(b.X, second.Norm, b.Normed)
	}
	b.Stage(fmt.Sprintf("layer %d", i))
	if l.AttnConv != nil {
		b.convolveIn(l.AttnConv, l.AttnNorm)
	}
	return second
}

// addSecond adds what a second input makes of q, k and v.
func (b *Planner) addSecond(s *Second, q, k, v kernels.Buf) {
	b.MatMul(s.Q, s.In, q, kernels.MatMulOpt{Add: true, Concurrent: true})
	b.MatMul(s.K, s.In, k, kernels.MatMulOpt{Add: true, Concurrent: true})
	b.MatMul(s.V, s.In, v, kernels.MatMulOpt{Add: true})
}

// turn lays out a norm of each head, if there is a weight, and RoPE.
func (b *Planner) turn(x kernels.Buf, norm []float32, s LayerShape, heads int, by kernels.Rotation) {
	if norm != nil {
		b.HeadNorm(x, heads, norm, b.NormEps)
	}
	if !s.Unturned {
		b.RoPE(x, heads, s.HeadDim, by)
	}
}

// gate computes what gates the output of attention; None if nothing does.
func (b *Planner) gate(l *Layer, width int) kernels.Buf {
	if l.AttnGate == kernels.None {
		return kernels.None
	}
	gate := b.BufOf("attention's gate", width)
	b.MatMul(l.AttnGate, b.Normed, gate, Concurrent)
	return gate
}
