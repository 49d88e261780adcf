package blocks

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// Planner lays the pass of a model out as one list of operations. Only some architectures have the parts
// in brackets (traits):
//
//	x = embed(tokens) [·scale]
//	per layer: n = norm(x); q, k, v = W n [+ b]; [q, k = norm of each head]; [RoPE(q, k)]; [q·temperature]; cache k, v
//	           x += [norm or scale] (Wo attention(q) [+ b])
//	           n = norm(x); x += [norm or scale] (Wdown (act(Wgate n [+ b]) ∘ (Wup n [+ b])) [+ b]) [of the experts of each row,
//	                                                and of one that all use]
//	           [x += norm(Wout (act(Win x) ∘ the layer's input))] [x·scale]
//	[in place of attention: u, z, α, β = W n; x += Wout (norm of each head(delta net(conv(u), α, β)) ∘ silu(z))]
//	wanted rows: logits = Whead norm(x) [·scale] [soft cap]; the best tokens of each
type Planner struct {
	*kernels.Program
	*Config
	W      *Weights
	X      kernels.Buf // (rows, d): the residual stream
	Normed kernels.Act // (rows, d)
	inputs kernels.Buf // (rows, layers·size): see layerInputs
	bufs   map[slot]kernels.Buf
	acts   map[slot]kernels.Act
	tapped map[int]kernels.Buf // by number of layers
	heads  kernels.Route       // of latent attention: every row uses all heads
	Temper []float32           // factors of queries, for each rope.original positions one; nil: none
	Reads  []int               // of a draft without keys and values: which layers of the cache its layers read
	Ahead  int                 // positions by which its heads are turned further than the last one that they see
}

// slot names a buffer of layers: layers that need the same size share it.
type slot struct {
	what string
	dim  int
}

// NewPlanner returns a planner of a program for a model of this shape and with these weights, before its first operation.
func NewPlanner(p *kernels.Program, c *Config, w *Weights) *Planner {
	return &Planner{Program: p, Config: c, W: w, bufs: map[slot]kernels.Buf{}, acts: map[slot]kernels.Act{}, tapped: map[int]kernels.Buf{},
		Temper: c.temperatures()}
}

var Concurrent = kernels.MatMulOpt{Concurrent: true}

func (b *Planner) Attention(i int) {
	l, s := &b.W.Layers[i], b.Shapes[i]
	q, out := b.buf("q", s.Heads*s.HeadDim), b.act("attended", s.Heads*s.HeadDim)
	own, reads := s.Source == i && b.Reads == nil, i
	if b.Reads != nil {
		reads = b.Reads[i]
	}
	var k, v kernels.Buf
	if own {
		k, v = b.buf("k", s.KVHeads*s.HeadDim), b.buf("v", s.KVHeads*s.HeadDim)
	}
	second := b.W.Second
	if i > 0 {
		second = nil
	}
	if second != nil {
		b.Norm(b.X, second.Norm, b.Normed)
	} else {
		b.Norm(b.X, l.AttnNorm, b.Normed)
	}
	b.Stage(fmt.Sprintf("layer %d", i))
	b.MatMul(l.Q, b.Normed, q, kernels.MatMulOpt{Concurrent: own})
	gate := b.gate(i)
	if own {
		b.MatMul(l.K, b.Normed, k, kernels.MatMulOpt{Concurrent: !l.SameKV})
	}
	if own && !l.SameKV {
		b.MatMul(l.V, b.Normed, v, kernels.MatMulOpt{})
	}
	if second != nil {
		b.MatMul(second.Q, second.In, q, kernels.MatMulOpt{Add: true, Concurrent: true})
		b.MatMul(second.K, second.In, k, kernels.MatMulOpt{Add: true, Concurrent: true})
		b.MatMul(second.V, second.In, v, kernels.MatMulOpt{Add: true})
	}
	b.AddBiasIf(q, l.QBias)
	turn := b.Rotation(s.Local, b.W.RopeFactors)
	turn.Ahead = b.Ahead
	turned := func(x kernels.Buf, heads int, norm []float32) {
		if norm != nil {
			b.HeadNorm(x, heads, norm, b.NormEps)
		}
		if !s.Unturned {
			b.RoPE(x, heads, s.HeadDim, turn)
		}
	}
	if own {
		b.AddBiasIf(k, l.KBias)
		b.AddBiasIf(v, l.VBias)
		if l.SameKV {
			b.Copy(k, v)
		}
		turned(k, s.KVHeads, l.KNorm)
		if b.Traits.ValueNorms {
			b.HeadNorm(v, s.KVHeads, slices.Repeat([]float32{1}, s.HeadDim), b.NormEps)
		}
	}
	turned(q, s.Heads, l.QNorm)
	if b.Temper != nil {
		b.PositionScale(q, b.Rope.Original, b.Temper)
	}
	if own {
		b.StoreKV(k, v, i)
	}
	opt := kernels.AttentionOpt{Scale: b.AttnScale, SoftCap: b.AttnCap}
	if s.Local {
		opt.Window = b.Window
	}
	b.Add(kernels.Attention{AttentionOpt: opt, Q: q, Layer: reads, Heads: s.Heads, Out: out, Sinks: l.Sinks, Gate: gate,
		Gated: gate != kernels.None})
	b.add(l.O, out, l.OBias, l.AttnPost)
}

// Norm fills out with the norm of in, or with in itself if there is no weight.
func (b *Planner) Norm(in kernels.Buf, weight []float32, out kernels.Act) {
	if weight == nil {
		b.Feed(in, out)
		return
	}
	b.RMSNorm(in, weight, b.NormEps, out)
}

func (b *Planner) FeedForward(i int) {
	l := &b.W.Layers[i]
	b.add(l.Down, b.inner(i), l.DownBias, l.FFNPost)
}

// inner lays out a feed-forward block up to its last product, whose input it returns.
func (b *Planner) inner(i int) kernels.Act {
	l, n := &b.W.Layers[i], b.Shapes[i].FFN
	gate, up, out := b.buf("gate", n), b.buf("up", n), b.act("activated", n)
	b.RMSNorm(b.X, l.FFNNorm, b.NormEps, b.Normed)
	b.MatMul(l.Gate, b.Normed, gate, Concurrent)
	b.MatMul(l.Up, b.Normed, up, kernels.MatMulOpt{})
	b.AddBiasIf(gate, l.GateBias)
	b.AddBiasIf(up, l.UpBias)
	b.Add(kernels.Gate{Curve: b.Traits.Curve, Gate: gate, Up: up, Out: out})
	return out
}

// add adds w·in + bias to the residual stream; norm, if not nil, is the weight of a norm that is applied first.
func (b *Planner) add(w kernels.W, in kernels.Act, bias, norm []float32) {
	if norm == nil && b.ResidualScale == 1 {
		b.MatMul(w, in, b.X, kernels.MatMulOpt{Add: true})
		b.AddBiasIf(b.X, bias)
		return
	}
	branch := b.buf("branch", b.Dim)
	b.MatMul(w, in, branch, kernels.MatMulOpt{})
	b.AddBiasIf(branch, bias)
	b.join(branch, norm)
}

// join adds a branch, scaled or normed, to the residual stream.
func (b *Planner) join(branch kernels.Buf, norm []float32) {
	if norm == nil {
		b.AddScaled(branch, b.ResidualScale, b.X)
		return
	}
	b.NormAdd(branch, norm, b.NormEps, b.X)
}

func (b *Planner) AddBiasIf(to kernels.Buf, values []float32) {
	if values != nil {
		b.AddBias(to, values)
	}
}

func (b *Planner) buf(what string, dim int) kernels.Buf {
	s := slot{what, dim}
	if _, ok := b.bufs[s]; !ok {
		b.bufs[s] = b.Buf(dim)
	}
	return b.bufs[s]
}

func (b *Planner) act(what string, dim int) kernels.Act {
	s := slot{what, dim}
	if _, ok := b.acts[s]; !ok {
		b.acts[s] = b.Act(dim)
	}
	return b.acts[s]
}

// Tap keeps the residual stream after n layers if it is wanted. That after the last layer stays in its buffer anyway.
func (b *Planner) Tap(n int, wanted []int) {
	if n == b.Layers {
		b.tapped[n] = b.X
	} else if slices.Contains(wanted, n) {
		b.tapped[n] = b.Buf(b.Dim)
		b.Copy(b.X, b.tapped[n])
		b.Taps = append(b.Taps, kernels.Tap{Layer: n - 1, Buf: b.tapped[n]})
	}
}

// TapsAt returns where the wanted hidden states are.
func (b *Planner) TapsAt(wanted []int) (at []kernels.Buf) {
	for _, n := range wanted {
		if n < 0 {
			at = append(at, kernels.None)
		} else {
			at = append(at, b.tapped[n])
		}
	}
	return at
}

// Finish scales and caps logits as the model does.
func (c *Config) Finish(p *kernels.Program, logits kernels.Buf) {
	if c.LogitScale != 1 {
		p.Scale(logits, c.LogitScale)
	}
	if c.FinalCap != 0 {
		p.SoftCap(logits, c.FinalCap)
	}
}
