package kernels_test

import (
	"fmt"
	"slices"
	"testing"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// product is a program that multiplies rows with one matrix. The rows enter an activation through
// SiLUMul with a gate of 32, which is the identity on up/32, but for what overflows.
type product struct {
	*kernels.Program
	gate, up, out kernels.Buf
	rows, n       int
}

func newProduct(t testing.TB, w *kernels.Matrix, rows int, opt kernels.MatMulOpt, broken bool) *product {
	p := kernels.NewProgram(rows, 0)
	if broken {
		kernels.SetWidthDependent(p)
	}
	m := &product{Program: p, gate: p.Buf(w.Cols()), up: p.Buf(w.Cols()), out: p.Buf(w.Rows()), rows: rows, n: w.Rows()}
	act := p.Act(w.Cols())
	p.SiLUMul(m.gate, m.up, act)
	p.MatMul(w, act, m.out, opt)
	seal(t, p)
	g := p.Rows(m.gate)
	for i := range g {
		g[i] = 32
	}
	return m
}

// multiply runs x, rows of w's inputs, and returns a copy of the outputs; before it is what out held.
func (m *product) multiply(t testing.TB, pool *kernels.Pool, x, before []float32, rows int) []float32 {
	t.Helper()
	copy(m.Rows(m.up), x)
	if before != nil {
		copy(m.Rows(m.out), before)
	}
	run(t, m.Program, pool, &kernels.Pass{Rows: rows})
	return append([]float32(nil), m.Rows(m.out)[:rows*m.n]...)
}

// refProduct is multiply by the definition.
func refProduct(t kernels.Type, w []byte, n, k int, x, before []float32, rows int, add bool) []float32 {
	out := make([]float32, rows*n)
	copy(out, before)
	g, y := make([]float32, k), make([]float32, k)
	for i := range g {
		g[i] = 32
	}
	for r := 0; r < rows; r++ {
		ref.SiLUMul(g, x[r*k:(r+1)*k], y)
		ref.MatVec(uint32(t), w, len(w)/n, y, out[r*n:(r+1)*n], add)
	}
	return out
}

// TestMatMul: every type on every instruction set, number of threads and width gives the bits of the
// definition, with ragged outputs and inputs and with values of every class.
func TestMatMul(t *testing.T) {
	all := pools(t, 1, 2, 3)
	for _, typ := range types {
		elems, _ := typ.Block()
		for _, s := range []struct {
			n, k    int
			hostile bool
		}{{16, 256, false}, {37, 576, false}, {5, 96, true}, {100, 1024, true}, {33, 33, false}} {
			if s.k%elems != 0 {
				s.k = (s.k/elems + 1) * elems
			}
			t.Run(fmt.Sprintf("%v/%dx%d", typ, s.n, s.k), func(t *testing.T) {
				testMatMul(t, all, typ, s.n, s.k, s.hostile)
			})
		}
	}
}

func testMatMul(t *testing.T, all []*kernels.Pool, typ kernels.Type, n, k int, hostile bool) {
	const rows = 17
	r := rng(uint64(n*k) + uint64(typ))
	w := randomRows(r, typ, n, k)
	if hostile {
		w = hostileRows(r, typ, n, k)
	}
	x, before := randomFloats(r, rows*k, hostile), randomFloats(r, rows*n, hostile)
	want := refProduct(typ, w, n, k, x, before, rows, true)
	m := newProduct(t, packed(t, typ, n, k, w), rows, kernels.MatMulOpt{Add: true}, false)
	defer kernels.SetStreams(kernels.SetStreams(false))
	for _, streams := range []bool{false, true} {
		kernels.SetStreams(streams)
		for _, pool := range all {
			for width := 1; width <= rows; width++ {
				from := r.IntN(rows - width + 1)
				got := m.multiply(t, pool, x[from*k:], before[from*n:(from+width)*n], width)
				wantSame(t, fmt.Sprintf("%v, %d threads, width %d, several streams %t", pool.ISA(), pool.Threads(), width, streams), got, want[from*n:(from+width)*n])
			}
		}
	}
}

// TestMatMulExtremes: the largest sums that codes and activations can give, where narrow ones would overflow.
func TestMatMulExtremes(t *testing.T) {
	const n, k, rows = 16, 512, 11
	all := pools(t, 1)
	for _, typ := range types {
		if !typ.Quantized() {
			continue
		}
		for _, fill := range []byte{0x00, 0x7f, 0x80, 0xff} {
			t.Run(fmt.Sprintf("%v/%#x", typ, fill), func(t *testing.T) {
				r := rng(uint64(typ))
				w := randomRows(r, typ, n, k)
				_, size := typ.Block()
				for i := range w {
					if !slices.ContainsFunc(scales[typ], func(at int) bool { return i%size/2 == at/2 }) && typ != kernels.MXFP4 {
						w[i] = fill
					}
				}
				x := make([]float32, rows*k)
				for i := range x {
					x[i] = 1
					if row := i / k; row == 1 || row > 1 && r.IntN(2) == 0 {
						x[i] = -1
					}
				}
				want := refProduct(typ, w, n, k, x, nil, rows, false)
				m := newProduct(t, packed(t, typ, n, k, w), rows, kernels.MatMulOpt{}, false)
				for _, pool := range all {
					for _, width := range []int{1, 2, 3, 8, rows} {
						wantSame(t, fmt.Sprintf("%v, width %d", pool.ISA(), width), m.multiply(t, pool, x, nil, width), want[:width*n])
					}
				}
			})
		}
	}
}

// TestWidePasses: passes of up to 70 rows, several calls of a kernel's worth and, with long rows, cut to
// fit a cache, give each row the bits it has alone.
func TestWidePasses(t *testing.T) {
	all := pools(t, 1, 2)
	for _, typ := range types {
		t.Run(typ.String(), func(t *testing.T) {
			for _, k := range []int{256, 9216} {
				testWidePasses(t, all, typ, 40, k)
			}
		})
	}
}

func testWidePasses(t *testing.T, all []*kernels.Pool, typ kernels.Type, n, k int) {
	const rows = 70
	r := rng(uint64(n*k) + uint64(typ))
	w, x := randomRows(r, typ, n, k), randomFloats(r, rows*k, false)
	m := newProduct(t, packed(t, typ, n, k, w), rows, kernels.MatMulOpt{}, false)
	var want []float32
	for i := range rows {
		want = append(want, m.multiply(t, all[len(all)-1], x[i*k:], nil, 1)...)
	}
	wantSame(t, "a row alone", want[:2*n], refProduct(typ, w, n, k, x, nil, 2, false))
	for _, pool := range all {
		if pool.ISA() == kernels.Generic && k > 256 {
			continue // slow
		}
		for _, width := range []int{24, 31, 33, 64, 70} {
			got := m.multiply(t, pool, x, nil, width)
			wantSame(t, fmt.Sprintf("%v, %d threads, %d inputs, width %d", pool.ISA(), pool.Threads(), k, width), got, want[:width*n])
		}
	}
}
