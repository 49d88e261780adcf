package engine

import "github.com/tandem-llm/tandem/kernels"

// plan lays the pass of a llama-architecture model out as one list of operations:
//
//	x = embed(tokens)
//	per layer: n = norm(x); q, k, v = W n; RoPE(q, k); cache k, v; x += Wo attention(q)
//	           n = norm(x); x += Wdown (SiLU(Wgate n) ∘ Wup n)
//	wanted rows: logits = Whead norm(x); the best tokens of each
func (m *Model) buildProgram() error {
	c, w := &m.config, &m.weights
	p := kernels.NewProgram(m.options.MaxRows, m.options.MaxWanted)
	p.SetKV(m.cache.Shape(), m.cache.Bytes())
	var (
		x         = p.Buf(c.Dim)
		normed    = p.Act(c.Dim)
		q         = p.Buf(c.Heads * c.HeadDim)
		k         = p.Buf(c.KVHeads * c.HeadDim)
		v         = p.Buf(c.KVHeads * c.HeadDim)
		attended  = p.Act(c.Heads * c.HeadDim)
		gate      = p.Buf(c.FFN)
		up        = p.Buf(c.FFN)
		activated = p.Act(c.FFN)
		last      = p.WantedBuf(c.Dim)
		lastNorm  = p.WantedAct(c.Dim)
	)
	m.logits = p.WantedBuf(c.Vocab)
	concurrent := kernels.MatMulOpt{Concurrent: true}
	bias := func(b kernels.Buf, values []float32) {
		if values != nil {
			p.AddBias(b, values)
		}
	}
	p.Embed(w.embed, x)
	for i := range w.layers {
		l := &w.layers[i]
		p.RMSNorm(x, l.attnNorm, c.NormEps, normed)
		p.MatMul(l.q, normed, q, concurrent)
		p.MatMul(l.k, normed, k, concurrent)
		p.MatMul(l.v, normed, v, kernels.MatMulOpt{})
		bias(q, l.qBias)
		bias(k, l.kBias)
		bias(v, l.vBias)
		p.RoPE(q, c.Heads, c.HeadDim, c.RopeDim, m.invFreq, false)
		p.RoPE(k, c.KVHeads, c.HeadDim, c.RopeDim, m.invFreq, false)
		p.StoreKV(k, v, i)
		p.Attention(q, i, c.Heads, m.attnScale, attended)
		p.MatMul(l.o, attended, x, kernels.MatMulOpt{Add: true})
		bias(x, l.oBias)
		p.RMSNorm(x, l.ffnNorm, c.NormEps, normed)
		p.MatMul(l.gate, normed, gate, concurrent)
		p.MatMul(l.up, normed, up, kernels.MatMulOpt{})
		p.SiLUMul(gate, up, activated)
		p.MatMul(l.down, activated, x, kernels.MatMulOpt{Add: true})
	}
	p.Gather(x, last)
	p.RMSNorm(last, w.outputNorm, c.NormEps, lastNorm)
	p.MatMul(w.head, lastNorm, m.logits, kernels.MatMulOpt{})
	p.TopK(m.logits)
	m.program = p
	return p.Seal()
}

// inverseFrequencies returns base^(-2i/n) for i < n/2, each divided by factors[i] if there are any: the angle
// per position of each rotated pair (RoFormer, section 3.4.2). The arithmetic uses only +, −, ×, ÷ in
// float64, unfused, so that every machine gets the same bits.
func inverseFrequencies(base float64, n int, factors []float32) []float64 {
	half := n / 2
	// Newton's iteration for root^half = base, from above, where it falls monotonically.
	root := 1 + (base-1)/float64(half)
	for {
		pow := 1.0
		for range half - 1 {
			pow = float64(pow * root)
		}
		next := root - float64(float64(float64(pow*root)-base)/float64(float64(half)*pow))
		if !(next < root) {
			break
		}
		root = next
	}
	inv := make([]float64, half)
	pow := 1.0
	for i := range inv {
		inv[i] = 1 / pow
		if factors != nil {
			inv[i] /= float64(factors[i])
		}
		pow = float64(pow * root)
	}
	return inv
}
