package kerneltest

import (
	"math"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// Shape is that of a Deep model. Heads have 64 elements.
type Shape struct {
	Layers, Dim, Heads, KVHeads, Inner, Vocab int
	Experts, Used                             int // of each layer; Experts 0: Inner is that of one dense feed-forward block
	Bias                                      bool
	HeadNorm                                  bool
	Type                                      kernels.Type
}

// Deep is a transformer of several layers, as models are that people use, for counting what its passes move. Its numbers mean nothing.
type Deep struct {
	*machine
	shape Shape
}

const deepPages = 16

// NewDeep compiles such a model, for passes of at most so many rows that all want logits.
func NewDeep(t testing.TB, d kernels.Device, s Shape, rows int) *Deep {
	t.Helper()
	const headDim = 64
	r := rng(5)
	p := kernels.NewProgram(rows, rows)
	var data [][]byte
	matrix := func(rows, cols, experts int) kernels.W {
		w := weight(p, s.Type, rows, cols)
		p.Weights[w].Experts = experts
		one := RandomRows(r, s.Type, rows, cols)
		data = append(data, slices.Repeat(one, max(1, experts)))
		return w
	}
	ones := slices.Repeat([]float32{1}, max(s.Dim, s.Heads*headDim))
	turn := kernels.Rotation{InvFreq: make([]float64, headDim/2)}
	for i := range turn.InvFreq {
		turn.InvFreq[i] = math.Pow(10000, -2*float64(i)/headDim)
	}
	p.KV = kernels.UniformKV(s.Layers, s.KVHeads, headDim, kernels.KVF16)
	kv, side := s.KVHeads*headDim, kernels.MatMulOpt{Concurrent: true}
	h, q, k, v, act := p.Buf(s.Dim), p.Buf(s.Heads*headDim), p.Buf(kv), p.Buf(kv), p.Act(s.Dim)
	heads := p.Act(s.Heads * headDim)
	feed := s.feedForward(p, h, act, matrix)
	p.Embed(matrix(s.Vocab, s.Dim, 0), h)
	for i := range s.Layers {
		p.RMSNorm(h, ones[:s.Dim], 1e-5, act)
		p.MatMul(matrix(s.Heads*headDim, s.Dim, 0), act, q, side)
		p.MatMul(matrix(kv, s.Dim, 0), act, k, side)
		p.MatMul(matrix(kv, s.Dim, 0), act, v, kernels.MatMulOpt{})
		if s.Bias {
			p.AddBias(q, ones[:s.Heads*headDim])
			p.AddBias(k, ones[:kv])
			p.AddBias(v, ones[:kv])
		}
		if s.HeadNorm {
			p.HeadNorm(q, s.Heads, ones[:headDim], 1e-5)
			p.HeadNorm(k, s.KVHeads, ones[:headDim], 1e-5)
		}
		p.RoPE(q, s.Heads, headDim, turn)
		p.RoPE(k, s.KVHeads, headDim, turn)
		p.StoreKV(k, v, i)
		p.Attention(q, i, s.Heads, kernels.AttentionOpt{Scale: netScale}, heads)
		p.MatMul(matrix(s.Dim, s.Heads*headDim, 0), heads, h, kernels.MatMulOpt{Add: true})
		p.RMSNorm(h, ones[:s.Dim], 1e-5, act)
		feed()
	}
	wanted, head, logits := p.WantedBuf(s.Dim), p.WantedAct(s.Dim), p.WantedBuf(s.Vocab)
	p.Gather(h, wanted)
	p.RMSNorm(wanted, ones[:s.Dim], 1e-5, head)
	p.MatMul(matrix(s.Vocab, s.Dim, 0), head, logits, kernels.MatMulOpt{})
	p.TopK(logits)
	return &Deep{compile(t, d, p, data, newCache(t, d, p.KV, deepPages)), s}
}

// feedForward returns what adds the feed-forward block of a layer to a program.
func (s Shape) feedForward(p *kernels.Program, h kernels.Buf, act kernels.Act, matrix func(rows, cols, experts int) kernels.W) func() {
	inner := s.Inner * max(1, s.Used)
	gate, up, act2 := p.Buf(inner), p.Buf(inner), p.Act(inner)
	if s.Experts == 0 {
		return func() {
			p.MatMul(matrix(s.Inner, s.Dim, 0), act, gate, kernels.MatMulOpt{Concurrent: true})
			p.MatMul(matrix(s.Inner, s.Dim, 0), act, up, kernels.MatMulOpt{})
			p.SiLUMul(gate, up, act2)
			p.MatMul(matrix(s.Dim, s.Inner, 0), act2, h, kernels.MatMulOpt{Add: true})
		}
	}
	choice, parts := p.Buf(s.Experts), p.Buf(s.Used*s.Dim)
	p.Routes = []kernels.RouteShape{{Experts: s.Experts, Used: s.Used}}
	return func() {
		p.MatMul(matrix(s.Experts, s.Dim, 0), act, choice, kernels.MatMulOpt{})
		p.Add(kernels.ChooseExperts{RouteOpt: kernels.RouteOpt{Normed: true}, Logits: choice})
		p.Add(kernels.ExpertMatMul{W: matrix(s.Inner, s.Dim, s.Experts), In: act, Out: gate, Concurrent: true})
		p.Add(kernels.ExpertMatMul{W: matrix(s.Inner, s.Dim, s.Experts), In: act, Out: up})
		p.SiLUMul(gate, up, act2)
		p.Add(kernels.ExpertMatMul{W: matrix(s.Dim, s.Inner, s.Experts), In: act2, Out: parts})
		p.Add(kernels.JoinExperts{In: parts, Out: h, Add: true})
	}
}

// Run runs a pass: a tree of so many rows behind a context, each row below the one of half its number.
func (m *Deep) Run(rows, context int) {
	m.t.Helper()
	p := &kernels.Pass{Rows: rows, TopK: 8}
	for i := range int32(deepPages) {
		p.Pages = append(p.Pages, (i*5+3)%deepPages)
	}
	cell := func(i int) kernels.Cell {
		return kernels.Cell(p.Pages[(context+i)/64])*64 + kernels.Cell((context+i)%64)
	}
	for i := range rows {
		var path []kernels.Cell
		for j := i; ; j = (j - 1) / 2 {
			path = append(path, cell(j))
			if j == 0 {
				break
			}
		}
		slices.Reverse(path)
		p.Tokens, p.Pos = append(p.Tokens, int32(i*37%m.shape.Vocab)), append(p.Pos, int32(context+len(path)-1))
		p.Table, p.Prefix = append(p.Table, 0), append(p.Prefix, int32(context))
		p.AncOff, p.AncLen = append(p.AncOff, int32(len(p.Anc))), append(p.AncLen, int32(len(path)))
		p.Anc, p.Store, p.Wanted = append(p.Anc, path...), append(p.Store, cell(i)), append(p.Wanted, int32(i))
	}
	m.run(p)
}

// Least returns the bytes of weights, keys and values, and activations that such a pass needs, each once. Of experts it needs those that
// the last pass chose in its last layer; of the embedding it needs its rows.
func (m *Deep) Least(rows, context int) (weights, keys, activations int64) {
	chosen := map[int32]bool{}
	if m.shape.Experts > 0 {
		for i := range rows {
			for _, e := range m.runner.(kernels.RouteReader).Chosen(0, i) {
				chosen[e] = true
			}
		}
	}
	for i := range m.p.Weights {
		w := &m.p.Weights[i]
		switch {
		case i == 0:
			weights += int64(rows * w.Bytes() / w.Rows)
		case w.Experts > 0:
			weights += int64(len(chosen) * w.Each())
		default:
			weights += int64(w.Bytes())
		}
	}
	for _, l := range m.p.KV.Layers {
		keys += int64(l.Heads * 2 * l.Dim * 2 * (context + rows))
	}
	for _, b := range m.p.Buffers {
		activations += int64(4 * b.Dim * rows)
	}
	for _, a := range m.p.Activations {
		activations += int64((a.Dim + a.Dim/32*4 + a.Dim/16*4) * rows)
	}
	return weights, keys, activations
}

// Accept copies cells, as a round does.
func (m *Deep) Accept(dst, src []kernels.Cell) { m.cache.Copy(dst, src) }
