package kerneltest

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

func rmsNorm(t *testing.T, devices []kernels.Device) {
	for _, n := range []int{1, 15, 32, 100, 576} {
		for _, hostile := range []bool{false, true} {
			rows := 1 + 1000/n
			r := rng(uint64(n))
			x, w := RandomFloats(r, rows*n, hostile), RandomFloats(r, n, false)
			for i := range x { // roots of every size
				x[i] *= float32(math.Exp(float64(i/n%60 - 30)))
			}
			p := kernels.NewProgram(rows, 0)
			in, out, act := p.Buf(n), p.Buf(n), p.Act(n)
			p.RMSNorm(in, w, 1e-25, act)
			p.MatMul(weight(p, kernels.F32, n, n), act, out, kernels.MatMulOpt{})
			m := newRig(t, devices, p, [][]byte{identity(n)}, 0)
			m.set(in, x)
			m.run(&kernels.Pass{Rows: rows})
			m.same(fmt.Sprint("n ", n), out, rows)
		}
	}
}

// norms: operations on buffers, with rows of all sizes.
func norms(t *testing.T, devices []kernels.Device) {
	for _, n := range []int{1, 15, 32, 100, 256} {
		const rows, heads = 3, 5
		r := rng(uint64(n))
		x, y, w := RandomFloats(r, rows*heads*n, true), RandomFloats(r, rows*heads*n, true), RandomFloats(r, heads*n, false)
		p := kernels.NewProgram(rows, 0)
		in, out, piece := p.Buf(heads*n), p.Buf(heads*n), p.Buf(4*n)
		p.Add(kernels.CopyHeads{In: in, Out: piece, Heads: 1, From: 2 * n, To: n, Dim: 2 * n})
		p.NormAdd(in, w, 1e-6, out)
		p.Scale(out, 1.7)
		p.HeadNorm(in, heads, w[:n], 1e-5)
		m := newRig(t, devices, p, nil, 0)
		m.set(in, x)
		m.set(out, y)
		m.run(&kernels.Pass{Rows: rows})
		m.same(fmt.Sprintf("n %d, sum", n), out, rows)
		m.same(fmt.Sprintf("n %d, heads", n), in, rows)
		m.same(fmt.Sprintf("n %d, columns", n), piece, rows)
		wantSame(t, "columns", m[0].get(piece, rows)[5*n:7*n], x[7*n:9*n])
	}
}

// softCap: bits over all magnitudes.
func softCap(t *testing.T, devices []kernels.Device) {
	const n = 5003
	r := rng(8)
	x := RandomFloats(r, n, true)
	for i := range x[64:] {
		x[64+i] *= float32(math.Exp(r.Float64()*24 - 12))
	}
	for _, cap := range []float32{0.3, 1, 30, 50} {
		p := kernels.NewProgram(1, 1)
		in, out := p.Buf(n), p.WantedBuf(n)
		p.Gather(in, out)
		p.SoftCap(out, cap)
		m := newRig(t, devices, p, nil, 0)
		m.set(in, x)
		m.run(&kernels.Pass{Rows: 1, Wanted: []int32{0}})
		m.same(fmt.Sprint("cap ", cap), out, 1)
	}
}

// gates: every curve times up.
func gates(t *testing.T, devices []kernels.Device) {
	const n = 1056
	for curve := kernels.SiLU; curve <= kernels.ClampedSiLU; curve++ {
		r := rng(3)
		g, u := RandomFloats(r, n, true), RandomFloats(r, n, false)
		for i := range u[:n/4] {
			u[i] *= 8
		}
		for i := range g {
			if i >= 64 {
				g[i] *= float32(math.Exp(r.Float64() * 5))
			}
			if v := g[i]; !(math.Abs(float64(v)) < 1e30) { // the identity would spread what is not finite
				g[i] = 0
			}
		}
		p := kernels.NewProgram(1, 0)
		gate, up, out, act := p.Buf(n), p.Buf(n), p.Buf(n), p.Act(n)
		p.Add(kernels.Gate{Curve: curve, Gate: gate, Up: up, Out: act})
		p.MatMul(weight(p, kernels.F32, n, n), act, out, kernels.MatMulOpt{})
		m := newRig(t, devices, p, [][]byte{identity(n)}, 0)
		m.set(gate, g)
		m.set(up, u)
		m.run(&kernels.Pass{Rows: 1})
		m.same(fmt.Sprint("curve ", curve), out, 1)
	}
}

// residuals: operations that change a buffer by another one, and buffers that become inputs; in rows of all and of wanted ones.
func residuals(t *testing.T, devices []kernels.Device) {
	for _, n := range []int{1, 15, 32, 100, 256} {
		const rows = 11
		r := rng(uint64(n))
		g, x, y := RandomFloats(r, rows*n, true), RandomFloats(r, rows*n, false), RandomFloats(r, rows*n, false)
		for i := range g {
			g[i] *= float32(math.Exp(r.Float64() * 5))
		}
		p := kernels.NewProgram(rows, rows)
		gate, in, out, sum := p.Buf(n), p.Buf(n), p.Buf(n), p.Buf(n)
		act, fed, product := p.WantedAct(n), p.WantedBuf(n), p.WantedBuf(n)
		p.Blend(gate, in, out)
		p.AddSiLU(gate, sum)
		p.AddScaled(gate, 0.22, sum)
		gates := max(1, n/5*(1-min(1, n%5))) // one for the row, or for five numbers each
		shares, scaled, each := p.Buf(gates), p.Buf(n), p.Buf(n)
		p.Copy(in, scaled)
		p.Add(kernels.SigmoidScale{Gate: shares, Buf: scaled})
		p.Copy(in, each)
		p.Add(kernels.SigmoidScale{Gate: gate, Buf: each})
		p.Gather(in, fed)
		p.AddSiLU(fed, product)
		p.AddScaled(fed, -1.3, product)
		p.Feed(fed, act)
		p.MatMul(weight(p, kernels.F32, n, n), act, product, kernels.MatMulOpt{Add: true})
		m := newRig(t, devices, p, [][]byte{identity(n)}, 0)
		for _, all := range [][]int32{nil, {10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}} {
			m.set(gate, g)
			m.set(shares, g[:rows*gates])
			m.set(in, x)
			m.set(out, y)
			m.set(sum, y)
			m.set(product, y)
			m.run(&kernels.Pass{Rows: rows, Wanted: all})
			m.same(fmt.Sprintf("n %d, blend", n), out, rows)
			m.same(fmt.Sprintf("n %d, silu", n), sum, rows)
			m.same(fmt.Sprintf("n %d, scaled by %d gates", n, gates), scaled, rows)
			m.same(fmt.Sprintf("n %d, scaled by as many gates", n), each, rows)
			m.same(fmt.Sprintf("n %d, %d wanted", n, len(all)), product, rows)
		}
		for i, v := range m[0].get(scaled, rows) { // by other means
			s := g[i/(n/gates)]
			if want := x[i] / float32(1+math.Exp(-float64(s))); math.Abs(float64(v-want)) > 1e-5*(1+math.Abs(float64(want))) {
				t.Fatalf("n %d: element %d, scaled by %v, is %v, want %v", n, i, s, v, want)
			}
		}
		for i, v := range m[0].get(product, rows) { // by other means
			s := x[i]
			if want := y[i] + s/float32(1+math.Exp(-float64(s))) - 0.3*s; math.Abs(float64(v-want)) > 1e-5*(1+math.Abs(float64(want))) {
				t.Fatalf("n %d: element %d is %v, want %v", n, i, v, want)
			}
		}
	}
}

func rope(t *testing.T, devices []kernels.Device) {
	for _, s := range []struct {
		heads, dim, rope int
		halves           bool
	}{{3, 32, 32, false}, {2, 80, 80, true}, {4, 64, 24, false}, {1, 128, 34, true}, {5, 6, 2, true}} {
		n := s.heads * s.dim
		freq, other := make([]float64, s.rope/2), make([]float64, s.rope/2)
		for i := range freq {
			freq[i] = math.Pow(10000, -2*float64(i)/float64(s.rope))
			other[i] = freq[i] / 8
		}
		r := rng(uint64(n))
		pos := []int32{0, 1, 77, 5000, 1<<20 - 1}
		p := kernels.NewProgram(len(pos), 0)
		b := p.Buf(n)
		p.AddBias(b, RandomFloats(r, n, true))
		p.RoPE(b, s.heads, s.dim, kernels.Rotation{InvFreq: freq, Halves: s.halves})
		p.RoPE(b, s.heads, s.dim, kernels.Rotation{InvFreq: other, Magnitude: 1.25, Halves: s.halves})
		p.RoPE(b, s.heads, s.dim, kernels.Rotation{InvFreq: other, Halves: s.halves})
		p.RoPE(b, s.heads, s.dim, kernels.Rotation{InvFreq: other, Halves: s.halves, Ahead: 3})
		m := newRig(t, devices, p, nil, 0)
		m.set(b, RandomFloats(r, len(pos)*n, true))
		m.run(&kernels.Pass{Rows: len(pos), Pos: pos})
		m.same(fmt.Sprintf("%+v", s), b, len(pos))
		m.run(&kernels.Pass{Rows: len(pos), Pos: make([]int32, len(pos)), Turn: pos})
		m.same(fmt.Sprintf("%+v, in a text of which a part is left out", s), b, len(pos))
	}
}

// positions: factors by position, below, at and behind the ends of their steps.
func positions(t *testing.T, devices []kernels.Device) {
	const n = 259
	factors := []float32{1, 1.25, -3, float32(math.Inf(1))}
	pos := []int32{0, 6, 7, 13, 14, 20, 21, 27, 28, 1<<20 - 1}
	p := kernels.NewProgram(len(pos), 0)
	b, last := p.Buf(n), p.Buf(n)
	p.Copy(b, last)
	p.PositionScale(b, 7, factors)
	p.PositionScale(last, math.MaxInt32, factors[1:2])
	m := newRig(t, devices, p, nil, 0)
	x := RandomFloats(rng(9), len(pos)*n, true)
	m.set(b, x)
	m.run(&kernels.Pass{Rows: len(pos), Pos: pos})
	m.same("in steps", b, len(pos))
	m.same("one factor", last, len(pos))
	m.set(b, x)
	m.run(&kernels.Pass{Rows: len(pos), Pos: make([]int32, len(pos)), Turn: pos})
	m.same("in a text of which a part is left out", b, len(pos))
	for i, v := range m[0].get(b, len(pos)) {
		if want := x[i] * factors[min(int(pos[i/n])/7, 3)]; !same(v, want) {
			t.Fatalf("position %d: %v is %v, want %v", pos[i/n], x[i], v, want)
		}
	}
}

func topK(t *testing.T, devices []kernels.Device) {
	for _, n := range []int{1, 5, 100, 4099} {
		const rows = 4
		r := rng(uint64(n))
		x := RandomFloats(r, rows*n, false)
		for i := range x[n : 3*n] { // many equal values; then NaN and -Inf
			x[n+i] = float32(r.IntN(4))
			if i >= n && r.IntN(3) == 0 {
				x[n+i] = float32([]float64{math.NaN(), math.Inf(-1)}[r.IntN(2)])
			}
		}
		for i := range x[3*n:] { // ascending: every value is a new best one
			x[3*n+i] = float32(i)
		}
		p := kernels.NewProgram(rows, 3)
		in, logits := p.Buf(n), p.WantedBuf(n)
		p.Gather(in, logits)
		p.TopK(logits)
		m := newRig(t, devices, p, nil, 0)
		m.set(in, x)
		for _, k := range []int{0, 1, 7, 64} {
			for _, wanted := range [][]int32{{0, 1, 2}, {3}, nil, {3, 3, 1}} {
				m.run(&kernels.Pass{Rows: rows, Wanted: wanted, TopK: k})
				m.sameTop(fmt.Sprintf("n %d k %d", n, k), len(wanted))
				for _, on := range m {
					if top := on.runner.Top(len(wanted)); top.IDs != nil {
						t.Errorf("%s: a row that the pass did not have has %v", on.name, top)
					}
				}
			}
		}
	}
}

// copiedHeads: elements of heads between buffers whose heads have other sizes; the others of the output stay.
func copiedHeads(t *testing.T, devices []kernels.Device) {
	const rows, heads, wide, narrow, n = 5, 3, 50, 24, 17
	p := kernels.NewProgram(rows, 0)
	in, out := p.Buf(heads*wide), p.Buf(heads*narrow)
	p.Add(kernels.CopyHeads{In: in, Out: out, Heads: heads, From: 31, To: 5, Dim: n})
	m := newRig(t, devices, p, nil, 0)
	r := rng(12)
	x, want := RandomFloats(r, rows*heads*wide, true), RandomFloats(r, rows*heads*narrow, true)
	m.set(in, x)
	m.set(out, want)
	m.run(&kernels.Pass{Rows: rows})
	m.same("copied heads", out, rows)
	for i := range want {
		if j := i%narrow - 5; j >= 0 && j < n {
			want[i] = x[i/narrow*wide+31+j]
		}
	}
	wantSame(t, "copied heads", m[0].get(out, rows), want)
}

// taps: a hidden state that leaves the pass is what it was when it was tapped.
func taps(t *testing.T, devices []kernels.Device) {
	const n, rows = 70, 3
	p := kernels.NewProgram(rows, 0)
	x, tap := p.Buf(n), p.Buf(n)
	p.Scale(x, 2)
	p.Copy(x, tap)
	p.Taps = []kernels.Tap{{Layer: 0, Buf: tap}}
	p.Scale(x, 3)
	m := newRig(t, devices, p, nil, 0)
	in := RandomFloats(rng(1), rows*n, true)
	m.set(x, in)
	m.run(&kernels.Pass{Rows: rows})
	m.same("the tap", p.Taps[0].Buf, rows)
	m.same("what comes after", x, rows)
	twice := slices.Clone(in)
	for i := range twice {
		twice[i] *= 2
	}
	wantSame(t, "the tap", m[0].get(tap, rows), twice)
}
