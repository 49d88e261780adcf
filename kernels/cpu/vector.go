package kernels

import "math"

// RMSNorm fills out with in, divided by its root mean square and multiplied by weight.
func (p *Program) RMSNorm(in Buf, weight []float32, eps float32, out Act) {
	b, a := p.buf("rmsnorm", in), p.act("rmsnorm", out)
	p.want("rmsnorm", "weight's length", len(weight), b.dim)
	p.want("rmsnorm", "output's columns", a.dim, b.dim)
	p.sameRows("rmsnorm", a.wanted, b.wanted)
	o := none
	o.kind, o.in, o.dst, o.vec, o.eps, o.dim, o.wanted = opNorm, in, out, weight, eps, b.dim, b.wanted
	p.push(o)
}

// NormAdd adds RMSNorm of in to out: the residual connection of models that normalise a block's output.
func (p *Program) NormAdd(in Buf, weight []float32, eps float32, out Buf) {
	b, o := p.buf("normadd", in), p.buf("normadd", out)
	p.want("normadd", "weight's length", len(weight), b.dim)
	p.want("normadd", "output's columns", o.dim, b.dim)
	p.sameRows("normadd", o.wanted, b.wanted)
	op := none
	op.kind, op.in, op.out, op.vec, op.eps, op.dim, op.wanted = opNormAdd, in, out, weight, eps, b.dim, b.wanted
	p.push(op)
}

// HeadNorm replaces each of the heads in a row of b by its RMSNorm; weight is one head long.
func (p *Program) HeadNorm(b Buf, heads int, weight []float32, eps float32) {
	q := p.buf("headnorm", b)
	if heads < 1 || heads > maxDim || len(weight) < 1 || len(weight) > maxDim {
		p.fail("headnorm: %d heads of %d, want at least 1 of each", heads, len(weight))
		return
	}
	p.want("headnorm", "heads·headDim", heads*len(weight), q.dim)
	o := none
	o.kind, o.out, o.vec, o.eps, o.dim, o.wanted = opHeadNorm, b, weight, eps, q.dim, q.wanted
	o.heads, o.headDim = heads, len(weight)
	p.push(o)
}

// RepeatHeads fills out with the heads of in, each as many times in a row as out is wider: with fewer
// key-value heads in a layer than the KV cache has, they are stored for each group of queries.
func (p *Program) RepeatHeads(in Buf, heads, headDim int, out Buf) {
	a, b := p.buf("repeat", in), p.buf("repeat", out)
	if heads < 1 || headDim < 1 || heads > maxDim || headDim > maxDim || b.dim%a.dim != 0 {
		p.fail("repeat: %d heads of %d from %d to %d columns, want a multiple", heads, headDim, a.dim, b.dim)
		return
	}
	p.want("repeat", "heads·headDim", heads*headDim, a.dim)
	p.sameRows("repeat", b.wanted, a.wanted)
	o := none
	o.kind, o.in, o.out, o.dim, o.wanted, o.heads, o.headDim = opRepeat, in, out, a.dim, a.wanted, heads, headDim
	p.push(o)
}

// Scale multiplies every value of b by factor.
func (p *Program) Scale(b Buf, factor float32) {
	q := p.buf("scale", b)
	o := none
	o.kind, o.out, o.scale, o.dim, o.wanted = opScale, b, factor, q.dim, q.wanted
	p.push(o)
}

// SoftCap replaces every value x of b by cap·tanh(x/cap).
func (p *Program) SoftCap(b Buf, cap float32) {
	q := p.buf("softcap", b)
	if !(cap >= 1e-6) || cap > 1e6 {
		p.fail("softcap: cap %v, want 1e-6 to 1e6", cap)
	}
	o := none
	o.kind, o.out, o.scale, o.dim, o.wanted = opSoftCap, b, cap, q.dim, q.wanted
	p.push(o)
}

// AddBias adds bias to every row of buf.
func (p *Program) AddBias(buf Buf, bias []float32) {
	b := p.buf("bias", buf)
	p.want("bias", "length", len(bias), b.dim)
	o := none
	o.kind, o.out, o.vec, o.dim, o.wanted = opBias, buf, bias, b.dim, b.wanted
	p.push(o)
}

// Rotation says how RoPE turns a head: pair i by the angle position·InvFreq[i]. The pairs are elements
// (2i, 2i+1), or with Halves (i, i+len(InvFreq)); elements behind the pairs stay. Cosines and sines are
// multiplied by Magnitude; 0 stands for 1.
type Rotation struct {
	InvFreq   []float64
	Magnitude float32
	Halves    bool
}

// RoPE turns each head of b. Cosines and sines are computed once per row and table.
func (p *Program) RoPE(b Buf, heads, headDim int, r Rotation) {
	q := p.buf("rope", b)
	if heads < 1 || headDim < 1 || heads > maxDim || headDim > maxDim {
		p.fail("rope: %d heads of %d", heads, headDim)
		return
	}
	p.want("rope", "heads·headDim", heads*headDim, q.dim)
	p.sameRows("rope", q.wanted, false)
	if n := 2 * len(r.InvFreq); n < 2 || n > headDim {
		p.fail("rope: %d of %d elements turn, want at least 2 and no more than there are", n, headDim)
		return
	}
	for i, f := range r.InvFreq {
		if !(math.Abs(f) <= 16) {
			p.fail("rope: frequency %d is %v, want at most 16", i, f)
		}
	}
	if r.Magnitude == 0 {
		r.Magnitude = 1
	}
	o := none
	o.kind, o.out, o.dim, o.heads, o.headDim, o.halves = opRoPE, b, q.dim, heads, headDim, r.Halves
	o.ropeDim, o.table = 2*len(r.InvFreq), p.angleTable(r.InvFreq, r.Magnitude)
	p.push(o)
}

func (p *Program) angleTable(freq []float64, magnitude float32) int {
next:
	for i, t := range p.angles {
		if len(t.freq) != len(freq) || t.magnitude != magnitude {
			continue
		}
		for j, f := range freq {
			if t.freq[j] != f {
				continue next
			}
		}
		return i
	}
	p.angles = append(p.angles, angleTable{freq: append([]float64(nil), freq...), magnitude: magnitude})
	return len(p.angles) - 1
}

// SiLUMul fills out with silu(gate)·up.
func (p *Program) SiLUMul(gate, up Buf, out Act) { p.gate("silu", opSiLU, gate, up, out) }

// GELUMul fills out with gelu(gate)·up, gelu in its tanh approximation.
func (p *Program) GELUMul(gate, up Buf, out Act) { p.gate("gelu", opGELU, gate, up, out) }

func (p *Program) gate(name string, kind opKind, gate, up Buf, out Act) {
	g, u, a := p.buf(name, gate), p.buf(name, up), p.act(name, out)
	p.want(name, "up's columns", u.dim, g.dim)
	p.want(name, "output's columns", a.dim, g.dim)
	p.sameRows(name, g.wanted, u.wanted)
	p.sameRows(name, g.wanted, a.wanted)
	o := none
	o.kind, o.in, o.in2, o.dst, o.dim, o.wanted = kind, gate, up, out, g.dim, g.wanted
	p.push(o)
}
