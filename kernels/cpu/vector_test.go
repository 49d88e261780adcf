package kernels_test

import (
	"fmt"
	"math"
	"testing"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// identity returns a matrix that copies its n inputs: what an activation holds becomes visible.
func identity(t testing.TB, n int) *kernels.Matrix {
	w := make([]byte, n*n*4)
	for i := 0; i < n; i++ {
		copy(w[(i*n+i)*4:], []byte{0, 0, 0x80, 0x3f})
	}
	return packed(t, kernels.F32, n, n, w)
}

// refIdentity is what the identity makes of a row: 0·Inf is NaN, and a zero loses its sign.
func refIdentity(x []float32) []float32 {
	out := make([]float32, len(x))
	for n := range out {
		var total float32
		for k := 0; k < len(x); k += 256 {
			var acc float32
			for i := k; i < min(k+256, len(x)); i++ {
				w := float32(0)
				if i == n {
					w = 1
				}
				acc = ref.FMA(w, x[i], acc)
			}
			total += acc
		}
		out[n] = total
	}
	return out
}

func TestRMSNorm(t *testing.T) {
	for _, n := range []int{1, 15, 32, 100, 576} {
		for _, hostile := range []bool{false, true} {
			rows := 1 + 1000/n
			r := rng(uint64(n))
			x, w := randomFloats(r, rows*n, hostile), randomFloats(r, n, false)
			for i := range x { // roots of every size
				x[i] *= float32(math.Exp(float64(i/n%60 - 30)))
			}
			p := kernels.NewProgram(rows, 0)
			in, out, act := p.Buf(n), p.Buf(n), p.Act(n)
			p.RMSNorm(in, w, 1e-25, act)
			p.MatMul(identity(t, n), act, out, kernels.MatMulOpt{})
			seal(t, p)
			for _, pool := range pools(t, 1, 2) {
				copy(p.Rows(in), x)
				run(t, p, pool, &kernels.Pass{Rows: rows})
				for i := 0; i < rows; i++ {
					y := make([]float32, n)
					ref.RMSNorm(x[i*n:(i+1)*n], w, 1e-25, y)
					wantSame(t, fmt.Sprintf("%v n %d row %d", pool.ISA(), n, i), p.Rows(out)[i*n:(i+1)*n], refIdentity(y))
				}
			}
		}
	}
}

// TestNorms: the norms that work on buffers, over rows of all sizes.
func TestNorms(t *testing.T) {
	for _, n := range []int{1, 15, 32, 100, 256} {
		const rows, heads = 3, 5
		r := rng(uint64(n))
		x, y, w := randomFloats(r, rows*heads*n, true), randomFloats(r, rows*heads*n, true), randomFloats(r, heads*n, false)
		p := kernels.NewProgram(rows, 0)
		in, out, twice := p.Buf(heads*n), p.Buf(heads*n), p.Buf(2*heads*n)
		p.RepeatHeads(in, heads, n, twice)
		p.NormAdd(in, w, 1e-6, out)
		p.Scale(out, 1.7)
		p.HeadNorm(in, heads, w[:n], 1e-5)
		seal(t, p)
		wantIn, wantOut := append([]float32(nil), x...), append([]float32(nil), y...)
		for i := 0; i < rows; i++ {
			row := wantOut[i*heads*n : (i+1)*heads*n]
			ref.NormAdd(x[i*heads*n:(i+1)*heads*n], w, 1e-6, row)
			for j := range row {
				row[j] *= 1.7
			}
		}
		var wantTwice []float32
		for i := 0; i < len(x); i += n {
			wantTwice = append(append(wantTwice, x[i:i+n]...), x[i:i+n]...)
			ref.RMSNorm(x[i:i+n], w[:n], 1e-5, wantIn[i:i+n])
		}
		for _, pool := range pools(t, 1, 2) {
			copy(p.Rows(in), x)
			copy(p.Rows(out), y)
			run(t, p, pool, &kernels.Pass{Rows: rows})
			wantSame(t, fmt.Sprintf("%v n %d, sum", pool.ISA(), n), p.Rows(out), wantOut)
			wantSame(t, fmt.Sprintf("%v n %d, heads", pool.ISA(), n), p.Rows(in), wantIn)
			wantSame(t, fmt.Sprintf("%v n %d, repeated", pool.ISA(), n), p.Rows(twice), wantTwice)
		}
	}
}

// TestSoftCap: bits over all magnitudes, and that it is what the name says.
func TestSoftCap(t *testing.T) {
	const n = 5003
	r := rng(8)
	x := randomFloats(r, n, true)
	for i := range x[64:] {
		x[64+i] *= float32(math.Exp(r.Float64()*24 - 12))
	}
	for _, cap := range []float32{0.3, 1, 30, 50} {
		want := make([]float32, n)
		for i := range x {
			want[i] = ref.SoftCap(x[i], cap)
			exact := float64(cap) * math.Tanh(float64(x[i])/float64(cap))
			if d := math.Abs(float64(want[i]) - exact); d > 5e-7*math.Abs(exact)+1e-40 {
				t.Fatalf("soft cap %v of %v is %v: want %v", cap, x[i], want[i], exact)
			}
		}
		p := kernels.NewProgram(1, 1)
		in, out := p.Buf(n), p.WantedBuf(n)
		p.Gather(in, out)
		p.SoftCap(out, cap)
		seal(t, p)
		for _, pool := range pools(t, 1, 2) {
			copy(p.Rows(in), x)
			run(t, p, pool, &kernels.Pass{Rows: 1, Wanted: []int32{0}})
			wantSame(t, fmt.Sprintf("%v cap %v", pool.ISA(), cap), p.Rows(out), want)
		}
	}
}

// TestGates: SiLU and GELU times up, and that they are what the names say.
func TestGates(t *testing.T) {
	const n = 1056
	for name, gate := range map[string]struct {
		plan  func(p *kernels.Program, gate, up kernels.Buf, out kernels.Act)
		ref   func(g, u, y []float32)
		exact func(g float64) float64
	}{
		"silu": {(*kernels.Program).SiLUMul, ref.SiLUMul, func(g float64) float64 { return g / (1 + math.Exp(-g)) }},
		"gelu": {(*kernels.Program).GELUMul, ref.GELUMul, func(g float64) float64 {
			return 0.5 * g * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
		}},
	} {
		r := rng(3)
		g, u := randomFloats(r, n, true), randomFloats(r, n, false)
		for i := range g[64:] {
			g[64+i] *= float32(math.Exp(r.Float64() * 5))
		}
		y := make([]float32, n)
		gate.ref(g, u, y)
		for i := range y { // the identity would spread what is not finite
			if y[i]-y[i] != 0 {
				g[i], u[i], y[i] = 0, 0, 0
			}
			if want := gate.exact(float64(g[i])) * float64(u[i]); math.Abs(float64(g[i])) < 80 && math.Abs(float64(y[i])-want) > 1e-6*math.Abs(want)+1e-7 {
				t.Fatalf("%s(%v)·%v is %v: want %v", name, g[i], u[i], y[i], want)
			}
		}
		want := refIdentity(y)
		p := kernels.NewProgram(1, 0)
		g1, u1, out, act := p.Buf(n), p.Buf(n), p.Buf(n), p.Act(n)
		gate.plan(p, g1, u1, act)
		p.MatMul(identity(t, n), act, out, kernels.MatMulOpt{})
		seal(t, p)
		for _, pool := range pools(t, 1, 2) {
			copy(p.Rows(g1), g)
			copy(p.Rows(u1), u)
			run(t, p, pool, &kernels.Pass{Rows: 1})
			wantSame(t, name+" "+pool.ISA().String(), p.Rows(out), want)
		}
	}
}

func TestRoPE(t *testing.T) {
	for _, s := range []struct {
		heads, dim, rope int
		halves           bool
	}{{3, 32, 32, false}, {2, 80, 80, true}, {4, 64, 24, false}, {1, 128, 34, true}, {5, 6, 2, true}} {
		const rows = 5
		n := s.heads * s.dim
		freq, other := make([]float64, s.rope/2), make([]float64, s.rope/2)
		for i := range freq {
			freq[i] = math.Pow(10000, -2*float64(i)/float64(s.rope))
			other[i] = freq[i] / 8
		}
		r := rng(uint64(n))
		x, bias := randomFloats(r, rows*n, true), randomFloats(r, n, true)
		pos := []int32{0, 1, 77, 5000, 1<<20 - 1}
		p := kernels.NewProgram(rows, 0)
		b := p.Buf(n)
		p.AddBias(b, bias)
		p.RoPE(b, s.heads, s.dim, kernels.Rotation{InvFreq: freq, Halves: s.halves})
		p.RoPE(b, s.heads, s.dim, kernels.Rotation{InvFreq: other, Magnitude: 1.25, Halves: s.halves})
		p.RoPE(b, s.heads, s.dim, kernels.Rotation{InvFreq: other, Halves: s.halves})
		seal(t, p)
		want := append([]float32(nil), x...)
		for i := 0; i < rows; i++ {
			row := want[i*n : (i+1)*n]
			for j := range row {
				row[j] += bias[j]
			}
			for j, f := range [][]float64{freq, other, other} {
				for h := 0; h < s.heads; h++ {
					ref.RoPE(row[h*s.dim:(h+1)*s.dim], pos[i], f, []float32{1, 1.25, 1}[j], s.halves)
				}
			}
		}
		for _, pool := range pools(t, 1, 2) {
			copy(p.Rows(b), x)
			run(t, p, pool, &kernels.Pass{Rows: rows, Pos: pos})
			wantSame(t, fmt.Sprintf("%v %+v", pool.ISA(), s), p.Rows(b), want)
		}
	}
}

// TestEmbed also shows that packing keeps every weight.
func TestEmbed(t *testing.T) {
	const n, rows = 37, 6
	for _, typ := range types {
		elems, _ := typ.Block()
		k := 96
		if k%elems != 0 {
			k = 512
		}
		r := rng(uint64(typ))
		src := hostileRows(r, typ, n, k)
		p := kernels.NewProgram(rows, 0)
		out := p.Buf(k)
		p.Embed(packed(t, typ, n, k, src), out)
		seal(t, p)
		tokens := []int32{0, 15, 16, 36, 20, 36}
		want := make([]float32, rows*k)
		for i, tok := range tokens {
			ref.Dequantize(uint32(typ), src[int(tok)*len(src)/n:], want[i*k:(i+1)*k])
		}
		for _, pool := range pools(t, 1, 2) {
			run(t, p, pool, &kernels.Pass{Rows: rows, Tokens: tokens})
			wantSame(t, fmt.Sprintf("%v %v", pool.ISA(), typ), p.Rows(out), want)
		}
	}
}

func TestTopK(t *testing.T) {
	for _, n := range []int{1, 5, 100, 4099} {
		const rows = 4
		r := rng(uint64(n))
		x := randomFloats(r, rows*n, false)
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
		seal(t, p)
		for _, pool := range pools(t, 1, 2) {
			for _, k := range []int{0, 1, 7, 64} {
				for _, wanted := range [][]int32{{0, 1, 2}, {3}, nil, {3, 3, 1}} {
					copy(p.Rows(in), x)
					run(t, p, pool, &kernels.Pass{Rows: rows, Wanted: wanted, TopK: k})
					for i, w := range wanted {
						checkTop(t, fmt.Sprintf("%v n %d k %d row %d", pool.ISA(), n, k, w), p, i, x[int(w)*n:int(w+1)*n], k)
					}
				}
			}
		}
	}
}

func checkTop(t *testing.T, what string, p *kernels.Program, i int, x []float32, k int) {
	t.Helper()
	ids, logits, top, sum := p.Top(i)
	wantIDs, wantLogits, wantTop, wantSum := ref.TopK(x, k)
	wantSame(t, what+" logits", logits, wantLogits)
	wantSame(t, what+" max, sum", []float32{top, sum}, []float32{wantTop, wantSum})
	for j := range wantIDs {
		if ids[j] != wantIDs[j] {
			t.Fatalf("%s: place %d is %d, want %d", what, j, ids[j], wantIDs[j])
		}
	}
}
