package naive

import (
	"math"
	"slices"
)

// Delta is the recurrent layers of a naive model, by the published formulas of gated delta nets.
type Delta struct {
	every           int // each so many-th layer is attention, whose queries come with gates
	keyHeads, heads int
	dim, taps       int // of a state's side; of the convolution
}

func (d Delta) at(layer int) bool { return d.every > 0 && (layer+1)%d.every != 0 }

// deltaNet returns what a recurrent layer makes of the normed state y. Inputs are those of the convolution so far; states has one entry,
// the heads' matrices by key and value.
func (n *Model) deltaNet(at string, y []float64, inputs, states *[][]float64) []float64 {
	d := n.delta
	*inputs = append(*inputs, n.mul(at+"attn_qkv", y))
	if len(*states) == 0 {
		*states = [][]float64{make([]float64, d.heads*d.dim*d.dim)}
	}
	conv, c := n.Weights[at+"ssm_conv1d.weight"], make([]float64, len((*inputs)[0]))
	for i := range c {
		for back := range min(d.taps, len(*inputs)) {
			c[i] += conv[i*d.taps+d.taps-1-back] * (*inputs)[len(*inputs)-1-back][i]
		}
		c[i] /= 1 + math.Exp(-c[i])
	}
	inKeys := d.keyHeads * d.dim
	alpha, beta, z := n.mul(at+"ssm_alpha", y), n.mul(at+"ssm_beta", y), n.mul(at+"attn_gate", y)
	var out []float64
	for h := range d.heads {
		from := h % d.keyHeads * d.dim
		q, k := unit(c[from:from+d.dim]), unit(c[inKeys+from:inKeys+from+d.dim])
		v := c[2*inKeys+h*d.dim:][:d.dim]
		decay := math.Exp(n.Weights[at+"ssm_a"][h] * math.Log1p(math.Exp(alpha[h]+n.Weights[at+"ssm_dt.bias"][h])))
		m := (*states)[0][h*d.dim*d.dim:][:d.dim*d.dim]
		read, held := make([]float64, d.dim), make([]float64, d.dim)
		for i := range m {
			m[i] *= decay
			held[i%d.dim] += k[i/d.dim] * m[i]
		}
		for i := range m {
			m[i] += k[i/d.dim] * (v[i%d.dim] - held[i%d.dim]) / (1 + math.Exp(-beta[h]))
			read[i%d.dim] += q[i/d.dim] * m[i] / math.Sqrt(float64(d.dim))
		}
		out = append(out, n.norm(at+"ssm_norm", read)...)
	}
	n.gated(z, out)
	return n.mul(at+"ssm_out", out)
}

// unit returns x at length 1.
func unit(x []float64) []float64 {
	square := 1e-6
	for _, v := range x {
		square += v * v
	}
	x = slices.Clone(x)
	for i := range x {
		x[i] /= math.Sqrt(square)
	}
	return x
}

// withoutGates takes the gates from among the queries: each head's values are followed by as many gates.
func (n *Model) withoutGates(both []float64) (q, gates []float64) {
	for at := 0; at < len(both); at += 2 * n.HeadDim {
		q = append(q, both[at:at+n.HeadDim]...)
		gates = append(gates, both[at+n.HeadDim:at+2*n.HeadDim]...)
	}
	return q, gates
}
