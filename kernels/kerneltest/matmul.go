package kerneltest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// product is a program that multiplies rows with one matrix. The rows enter an activation through
// SiLUMul with a gate of 32: it multiplies up by 32, exactly unless that overflows.
type product struct {
	rig
	gate, up, out kernels.Buf
	n, k          int
}

func newProduct(t testing.TB, devices []kernels.Device, typ kernels.Type, n, k int, w []byte, rows int,
	opts ...kernels.MatMulOpt) *product {
	p := kernels.NewProgram(rows, 0)
	m := &product{gate: p.Buf(k), up: p.Buf(k), out: p.Buf(n), n: n, k: k}
	act, x := p.Act(k), weight(p, typ, n, k)
	p.SiLUMul(m.gate, m.up, act)
	for _, o := range opts {
		p.MatMul(x, act, m.out, o)
	}
	m.rig = newRig(t, devices, p, [][]byte{w}, 0)
	m.set(m.gate, slices.Repeat([]float32{32}, rows*k))
	return m
}

// multiply runs rows of inputs x on one device and returns the outputs; before is the earlier content of out.
func (m *product) multiply(on *machine, x, before []float32, rows int) []float32 {
	on.t.Helper()
	on.set(m.up, x[:rows*m.k])
	if before != nil {
		on.set(m.out, before)
	}
	on.run(&kernels.Pass{Rows: rows})
	return on.get(m.out, rows)
}

// matMul: every type at every width gives the bits of the definition, with ragged outputs and inputs, in one range of
// outputs or in two, and with values of every class.
func matMul(t *testing.T, devices []kernels.Device) { products(t, devices, false) }

// products: with few, each edge once: whole blocks of outputs and a ragged one, one range and two, hostile values, and widths up to twice
// what one call of a kernel takes.
func products(t *testing.T, devices []kernels.Device, few bool) {
	for _, typ := range kernels.Types() {
		elems, _ := typ.Block()
		type shape struct {
			n, k    int
			hostile bool
		}
		shapes := []shape{{16, 256, false}, {37, 576, false}, {5, 96, true}, {70, 512, true}, {33, 33, false}}
		widths := upTo(17)
		if few {
			shapes, widths = []shape{{37, 288, true}, {5, 96, true}}, []int{1, 2, 3, 4, 5, 8, 9, 17}
		} else if *long {
			shapes = append(shapes, shape{100, 1024, true})
		}
		for _, s := range shapes {
			if s.k%elems != 0 {
				s.k = (s.k/elems + 1) * elems
			}
			t.Run(fmt.Sprintf("%v/%dx%d", typ, s.n, s.k), func(t *testing.T) {
				oneMatMul(t, devices, typ, s.n, s.k, s.hostile, widths)
			})
		}
	}
}

// upTo returns 1 to n.
func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i+1)
	}
	return all
}

func oneMatMul(t *testing.T, devices []kernels.Device, typ kernels.Type, n, k int, hostile bool, widths []int) {
	const rows = 17
	r := rng(uint64(n*k) + uint64(typ))
	w := RandomRows(r, typ, n, k)
	if hostile {
		w = hostileRows(r, typ, n, k)
	}
	x, before := RandomFloats(r, rows*k, hostile), RandomFloats(r, rows*n, hostile)
	opts := []kernels.MatMulOpt{{Add: true}}
	if n > 32 {
		opts = []kernels.MatMulOpt{{Add: true, Concurrent: true, Outputs: kernels.Range{From: 0, To: 32}},
			{Add: true, Outputs: kernels.Range{From: 32, To: n}}}
	}
	m := newProduct(t, devices, typ, n, k, w, rows, opts...)
	want := m.multiply(m.rig[0], x, before, rows)
	for _, on := range m.rig[1:] {
		for _, width := range widths {
			from := r.IntN(rows - width + 1)
			got := m.multiply(on, x[from*k:], before[from*n:(from+width)*n], width)
			wantSame(t, fmt.Sprintf("%s, width %d", on.name, width), got, want[from*n:(from+width)*n])
		}
	}
}

// matMulExtremes: the largest sums that codes and activations can give, where narrow ones would overflow.
func matMulExtremes(t *testing.T, devices []kernels.Device) {
	const n, k, rows = 16, 512, 11
	for _, typ := range kernels.Types() {
		if !typ.Quantized() {
			continue
		}
		for _, fill := range []byte{0x00, 0x77, 0x7f, 0x80, 0xff} {
			t.Run(fmt.Sprintf("%v/%#x", typ, fill), func(t *testing.T) {
				r := rng(uint64(typ))
				w := RandomRows(r, typ, n, k)
				_, size := typ.Block()
				for i := range w {
					scale := slices.ContainsFunc(Scales[typ], func(at int) bool { return i%size/2 == at/2 })
					if typ == kernels.MXFP4 {
						scale = i%size == 0
					}
					if !scale {
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
				m := newProduct(t, devices, typ, n, k, w, rows, kernels.MatMulOpt{})
				want := m.multiply(m.rig[0], x, nil, rows)
				for _, on := range m.rig[1:] {
					for _, width := range []int{1, 2, 3, 8, rows} {
						wantSame(t, fmt.Sprintf("%s, width %d", on.name, width), m.multiply(on, x, nil, width), want[:width*n])
					}
				}
			})
		}
	}
}

// widePasses: in passes of up to 70 rows, which take several kernel calls and, with long rows, are cut to
// fit a cache, each row gets the bits that it has alone.
func widePasses(t *testing.T, devices []kernels.Device) {
	for _, typ := range kernels.Types() {
		t.Run(typ.String(), func(t *testing.T) {
			oneWidePass(t, devices, typ, 40, 256, 70)
			if *long || devices[0].About().Name == "cpu" { // others have no cache that long rows are cut for, and may be emulated
				oneWidePass(t, devices, typ, 40, 9216, 70)
			} else {
				oneWidePass(t, devices, typ, 3, 2304, 33)
			}
		})
	}
}

func oneWidePass(t *testing.T, devices []kernels.Device, typ kernels.Type, n, k, rows int) {
	r := rng(uint64(n*k) + uint64(typ))
	w, x := RandomRows(r, typ, n, k), RandomFloats(r, rows*k, false)
	m := newProduct(t, devices, typ, n, k, w, rows, kernels.MatMulOpt{})
	two := m.multiply(m.rig[0], x, nil, 2)
	var want []float32
	last := m.rig[len(m.rig)-1]
	for i := range rows {
		want = append(want, m.multiply(last, x[i*k:], nil, 1)...)
	}
	wantSame(t, last.name+", a row alone", want[:2*n], two)
	for _, on := range m.rig[1:] {
		if k > 256 && on.dev.About().Kernels == "generic" {
			continue // slow
		}
		for _, width := range []int{24, 31, 33, 64, 70} {
			if width > rows {
				break
			}
			wantSame(t, fmt.Sprintf("%s, %d inputs, width %d", on.name, k, width), m.multiply(on, x, nil, width), want[:width*n])
		}
	}
}

// embed also shows that packing keeps every weight, and that rows may bring embeddings along.
func embed(t *testing.T, devices []kernels.Device) {
	const n, rows = 37, 8
	for _, typ := range kernels.Types() {
		elems, _ := typ.Block()
		k := 96
		if k%elems != 0 {
			k = 512
		}
		r := rng(uint64(typ))
		p := kernels.NewProgram(rows, 0)
		out, blank := p.Buf(k), p.Buf(k)
		w := weight(p, typ, n, k)
		p.Embed(w, out)
		p.Add(kernels.Embed{W: w, Out: blank, Blank: true})
		m := newRig(t, devices, p, [][]byte{hostileRows(r, typ, n, k)}, 0)
		given := RandomFloats(r, 2*k, false)
		m.run(&kernels.Pass{Rows: rows, Tokens: []int32{0, 15, -2, 16, 36, 20, 36, -1}, Given: given})
		m.same(typ.String(), out, rows)
		m.same(typ.String()+", blank", blank, rows)
		wantSame(t, "a blank row", m[0].get(blank, rows)[2*k:3*k], make([]float32, k))
		wantSame(t, "a given row", m[0].get(out, rows)[2*k:3*k], given[k:])
	}
}
