package engine

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// planner lays the pass of a model out as one list of operations. Only some architectures have the parts
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
type planner struct {
	*kernels.Program
	*Config
	w      *weights
	x      kernels.Buf // (rows, d): the residual stream
	normed kernels.Act // (rows, d)
	inputs kernels.Buf // (rows, layers·size): see layerInputs
	bufs   map[slot]kernels.Buf
	acts   map[slot]kernels.Act
	tapped map[int]kernels.Buf // by number of layers
	heads  kernels.Route       // of latent attention: every row uses all heads
	temper []float32           // factors of queries, for each rope.original positions one; nil: none
	reads  []int               // of a draft without keys and values: which layers of the cache its layers read
	ahead  int                 // positions by which its heads are turned further than the last one that they see
}

// slot names a buffer of layers: layers that need the same size share it.
type slot struct {
	what string
	dim  int
}

var concurrent = kernels.MatMulOpt{Concurrent: true}

// program lays out a pass over the model for a device that wants weights in these layouts. Each layer's products and attention are a
// stage; the norm before them is at the end of the previous stage, where it can be chained with the operation that made its input.
func (m *Model) program(layout func(kernels.Type) kernels.Layout) *kernels.Program {
	c := &m.config
	b := &planner{Program: kernels.NewProgram(m.options.MaxRows, m.options.MaxWanted), Config: c, w: &m.weights,
		bufs: map[slot]kernels.Buf{}, acts: map[slot]kernels.Act{}, tapped: map[int]kernels.Buf{}, temper: c.temperatures()}
	b.KV = c.kvShape(m.kvType)
	if b.leaveOutKV(); len(b.KV.States) > 0 {
		b.KV.Slots, b.KV.Records = m.slots(), m.recordCount()
	}
	if c.traits.latent {
		b.Routes = append(b.Routes, kernels.RouteShape{Experts: c.Heads, Used: c.Heads, Fixed: true})
	}
	addWeights(b.Program, m.matrices, layout)
	b.Stage("the embedding")
	b.x, b.normed = b.Buf(c.Dim), b.Act(c.Dim)
	m.logits, m.residual = b.WantedBuf(m.outputs()), b.x
	if b.w.draft != nil {
		b.w.draft.enter(b)
	} else {
		b.Embed(b.w.embed, b.x)
	}
	if c.embedScale != 1 {
		b.Scale(b.x, c.embedScale)
	}
	b.layerInputs()
	for i := range b.w.layers {
		switch {
		case c.layers[i].recurrent:
			b.deltaNet(i)
		case c.traits.latent:
			b.latentAttention(i)
		default:
			b.attention(i)
		}
		switch {
		case c.experts.count > 0 && c.traits.beside:
			b.mixBeside(i)
		case c.layers[i].expert > 0:
			b.mix(i)
		default:
			b.feedForward(i)
		}
		b.endLayer(i)
		b.tap(i+1, m.options.Taps)
	}
	m.taps = b.tapsAt(m.options.Taps)
	last, lastNorm := b.WantedBuf(c.Dim), b.WantedAct(c.Dim)
	b.Gather(b.x, last)
	b.norm(last, b.w.outputNorm, lastNorm)
	b.Stage("the output")
	b.MatMul(b.w.head, lastNorm, m.logits, kernels.MatMulOpt{})
	c.finish(b.Program, m.logits)
	b.TopK(m.logits)
	return b.Program
}

func (b *planner) attention(i int) {
	l, s := &b.w.layers[i], b.layers[i]
	q, out := b.buf("q", s.heads*s.headDim), b.act("attended", s.heads*s.headDim)
	d, own, reads := b.w.draft, s.source == i && b.reads == nil, i
	if b.reads != nil {
		reads = b.reads[i]
	}
	var k, v kernels.Buf
	if own {
		k, v = b.buf("k", s.kvHeads*s.headDim), b.buf("v", s.kvHeads*s.headDim)
	}
	wide := i == 0 && d != nil && d.wide()
	if wide {
		b.norm(b.x, d.hiddenNorm, b.normed)
	} else {
		b.norm(b.x, l.attnNorm, b.normed)
	}
	b.Stage(fmt.Sprintf("layer %d", i))
	b.MatMul(l.q, b.normed, q, kernels.MatMulOpt{Concurrent: own})
	gate := b.gate(i)
	if own {
		b.MatMul(l.k, b.normed, k, kernels.MatMulOpt{Concurrent: !l.sameKV})
	}
	if own && !l.sameKV {
		b.MatMul(l.v, b.normed, v, kernels.MatMulOpt{})
	}
	if wide {
		b.MatMul(d.qEmbd, d.embedding, q, kernels.MatMulOpt{Add: true, Concurrent: true})
		b.MatMul(d.kEmbd, d.embedding, k, kernels.MatMulOpt{Add: true, Concurrent: true})
		b.MatMul(d.vEmbd, d.embedding, v, kernels.MatMulOpt{Add: true})
	}
	b.bias(q, l.qBias)
	turn := b.rotation(s.local, b.w.ropeFactors)
	turn.Ahead = b.ahead
	turned := func(x kernels.Buf, heads int, norm []float32) {
		if norm != nil {
			b.HeadNorm(x, heads, norm, b.NormEps)
		}
		if !s.unturned {
			b.RoPE(x, heads, s.headDim, turn)
		}
	}
	if own {
		b.bias(k, l.kBias)
		b.bias(v, l.vBias)
		if l.sameKV {
			b.Copy(k, v)
		}
		turned(k, s.kvHeads, l.kNorm)
		if b.traits.valueNorms {
			b.HeadNorm(v, s.kvHeads, slices.Repeat([]float32{1}, s.headDim), b.NormEps)
		}
	}
	turned(q, s.heads, l.qNorm)
	if b.temper != nil {
		b.PositionScale(q, b.rope.original, b.temper)
	}
	if own {
		b.StoreKV(k, v, i)
	}
	opt := kernels.AttentionOpt{Scale: b.attnScale, SoftCap: b.attnCap}
	if s.local {
		opt.Window = b.window
	}
	b.Add(kernels.Attention{AttentionOpt: opt, Q: q, Layer: reads, Heads: s.heads, Out: out, Sinks: l.sinks, Gate: gate,
		Gated: gate != kernels.None})
	b.add(l.o, out, l.oBias, l.attnPost)
}

// norm fills out with the norm of in, or with in itself if there is no weight.
func (b *planner) norm(in kernels.Buf, weight []float32, out kernels.Act) {
	if weight == nil {
		b.Feed(in, out)
		return
	}
	b.RMSNorm(in, weight, b.NormEps, out)
}

func (b *planner) feedForward(i int) {
	l := &b.w.layers[i]
	b.add(l.down, b.inner(i), l.downBias, l.ffnPost)
}

// inner lays out a feed-forward block up to its last product, whose input it returns.
func (b *planner) inner(i int) kernels.Act {
	l, n := &b.w.layers[i], b.layers[i].ffn
	gate, up, out := b.buf("gate", n), b.buf("up", n), b.act("activated", n)
	b.RMSNorm(b.x, l.ffnNorm, b.NormEps, b.normed)
	b.MatMul(l.gate, b.normed, gate, concurrent)
	b.MatMul(l.up, b.normed, up, kernels.MatMulOpt{})
	b.bias(gate, l.gateBias)
	b.bias(up, l.upBias)
	b.Add(kernels.Gate{Curve: b.traits.curve, Gate: gate, Up: up, Out: out})
	return out
}

// add adds w·in + bias to the residual stream; norm, if not nil, is the weight of a norm that is applied first.
func (b *planner) add(w kernels.W, in kernels.Act, bias, norm []float32) {
	if norm == nil && b.residualScale == 1 {
		b.MatMul(w, in, b.x, kernels.MatMulOpt{Add: true})
		b.bias(b.x, bias)
		return
	}
	branch := b.buf("branch", b.Dim)
	b.MatMul(w, in, branch, kernels.MatMulOpt{})
	b.bias(branch, bias)
	b.join(branch, norm)
}

// join adds a branch, scaled or normed, to the residual stream.
func (b *planner) join(branch kernels.Buf, norm []float32) {
	if norm == nil {
		b.AddScaled(branch, b.residualScale, b.x)
		return
	}
	b.NormAdd(branch, norm, b.NormEps, b.x)
}

func (b *planner) bias(to kernels.Buf, values []float32) {
	if values != nil {
		b.AddBias(to, values)
	}
}

func (b *planner) buf(what string, dim int) kernels.Buf {
	s := slot{what, dim}
	if _, ok := b.bufs[s]; !ok {
		b.bufs[s] = b.Buf(dim)
	}
	return b.bufs[s]
}

func (b *planner) act(what string, dim int) kernels.Act {
	s := slot{what, dim}
	if _, ok := b.acts[s]; !ok {
		b.acts[s] = b.Act(dim)
	}
	return b.acts[s]
}
