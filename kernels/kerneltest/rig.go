// Package kerneltest runs programs on devices and compares every bit of what they compute with kernels/ref/device. Each device's tests call
// Programs; nothing else imports this package.
package kerneltest

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref/device"
)

// long says that tests take all their shapes and rounds: flag -long of a test program. Without it they take every weight type,
// operation, cache type, option of attention and width of a pass as well, but fewer random passes and shapes of each kind.
var long = flag.Bool("long", false, "run program tests with all their shapes and rounds")

// Programs runs all program tests on the devices, each against the definitions.
func Programs(t *testing.T, devices ...kernels.Device) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, devices []kernels.Device)
	}{
		{"MatMul", matMul}, {"MatMulExtremes", matMulExtremes}, {"WidePasses", widePasses}, {"Embed", embed},
		{"RMSNorm", rmsNorm}, {"Norms", norms}, {"SoftCap", softCap}, {"Gates", gates}, {"Residuals", residuals},
		{"CopiedHeads", copiedHeads}, {"BlockConv", blockConv},
		{"RoPE", rope}, {"Positions", positions}, {"TopK", topK}, {"Taps", taps},
		{"Attention", attention}, {"DividedAttention", dividedAttention}, {"Copy", copyCells}, {"SharedLayers", sharedLayers},
		{"DifferentLayers", differentLayers},
		{"CompressedLayers", compressedLayers},
		{"States", states},
		{"ChooseExperts", chooseExperts}, {"Experts", experts}, {"WideExperts", wideExperts}, {"FixedRoute", fixedRoute},
		{"ExpertsFromRing", expertsFromRing},
		{"Network", networks}, {"RowAlone", rowAlone}, {"Stages", stages}, {"Loans", loans},
		{"RunErrors", runErrors},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, devices) })
	}
}

// Long reports whether -long is set.
func Long() bool { return *long }

// MatMul runs the tests of products alone, FewMatMul with fewer shapes and widths, for devices that take microseconds for an instruction
// (all of them with -long), Extremes those of the largest sums.
func MatMul(t *testing.T, devices ...kernels.Device)    { matMul(t, devices) }
func FewMatMul(t *testing.T, devices ...kernels.Device) { products(t, devices, !*long) }
func Extremes(t *testing.T, devices ...kernels.Device)  { matMulExtremes(t, devices) }

// States runs the tests of recurrent layers alone.
func States(t *testing.T, devices ...kernels.Device) { states(t, devices) }

// mostMACs bounds the multiply-adds that the definitions compute in one program test, since they run in plain Go. It bounds
// the time of the whole suite.
const mostMACs = 32 << 20

// machine is a program on one device.
type machine struct {
	t      testing.TB
	name   string
	dev    kernels.Device
	p      *kernels.Program
	store  kernels.Store
	cache  kernels.Cache
	runner kernels.Runner
	macs   *int64 // of the definitions so far; nil on other devices
}

// compile makes p run on a device, with weights in the layout that it wants. data are the weights in GGUF layout, in order; cache is
// one of the device, or nil.
func compile(t testing.TB, d kernels.Device, p *kernels.Program, data [][]byte, cache kernels.Cache) *machine {
	t.Helper()
	own := *p
	own.Weights = slices.Clone(p.Weights)
	for i := range own.Weights {
		own.Weights[i].Layout = d.Layout(own.Weights[i].Type)
	}
	m := &machine{t: t, name: d.About().String(), dev: d, p: &own, cache: cache}
	var err error
	if m.store, err = d.NewWeights(&own); err != nil {
		t.Fatal(m.name, err)
	}
	t.Cleanup(m.store.Close)
	for i, b := range data {
		if err := m.store.Pack(kernels.W(i), 0, b); err != nil {
			t.Fatal(m.name, err)
		}
	}
	if m.runner, err = d.Compile(&own, m.store, cache); err != nil {
		t.Fatal(m.name, err)
	}
	t.Cleanup(m.runner.Close)
	return m
}

// newCache returns a cache on a device.
func newCache(t testing.TB, d kernels.Device, shape kernels.KVShape, pages int) kernels.Cache {
	t.Helper()
	c, err := d.NewCache(shape, pages)
	if err != nil {
		t.Fatal(d.About(), err)
	}
	t.Cleanup(c.Close)
	return c
}

// rig is a program on several devices; the first of them computes by the definitions.
type rig []*machine

// newRig compiles p everywhere, with a cache of so many pages if it wants one.
func newRig(t testing.TB, devices []kernels.Device, p *kernels.Program, data [][]byte, pages int) rig {
	t.Helper()
	var r rig
	for _, d := range append([]kernels.Device{device.New()}, devices...) {
		var cache kernels.Cache
		if pages > 0 {
			cache = newCache(t, d, p.KV, pages)
		}
		r = append(r, compile(t, d, p, data, cache))
	}
	r[0].macs = new(int64)
	return r
}

// set writes rows of a buffer from row 0 on.
func (m *machine) set(b kernels.Buf, x []float32) {
	n := m.p.Buffers[b].Dim
	for i := 0; i*n < len(x); i++ {
		copy(m.runner.Row(b, i), x[i*n:])
	}
}

// get returns a copy of the first rows of a buffer.
func (m *machine) get(b kernels.Buf, rows int) (x []float32) {
	for i := range rows {
		x = append(x, m.runner.Row(b, i)...)
	}
	return x
}

func (m *machine) run(pass *kernels.Pass) {
	m.t.Helper()
	m.count(pass)
	if err := m.runner.Run(pass); err != nil {
		m.t.Fatalf("%s: %v", m.name, err)
	}
}

// count keeps the definitions within mostMACs.
func (m *machine) count(pass *kernels.Pass) {
	m.t.Helper()
	if m.macs == nil {
		return
	}
	if *m.macs += m.p.MACs(pass.Rows, len(pass.Wanted)); *m.macs > mostMACs {
		m.t.Fatalf("%d multiply-adds by the definitions: a program test may have %d", *m.macs, mostMACs)
	}
}

// set writes rows of a buffer everywhere, run runs a pass everywhere.
func (r rig) set(b kernels.Buf, x []float32) {
	for _, m := range r {
		m.set(b, x)
	}
}

func (r rig) run(pass *kernels.Pass) {
	r[0].t.Helper()
	for _, m := range r {
		m.run(pass)
	}
}

// same compares rows of a buffer with those by the definitions.
func (r rig) same(what string, b kernels.Buf, rows int) {
	r[0].t.Helper()
	want := r[0].get(b, rows)
	for _, m := range r[1:] {
		wantSame(r[0].t, m.name+", "+what, m.get(b, rows), want)
	}
}

// sameTop compares what TopK found.
func (r rig) sameTop(what string, wanted int) {
	r[0].t.Helper()
	for i := range wanted {
		want := r[0].runner.Top(i)
		for _, m := range r[1:] {
			got := m.runner.Top(i)
			wantSame(m.t, fmt.Sprintf("%s, %s: top logits of %d", m.name, what, i), got.Logits, want.Logits)
			wantSame(m.t, fmt.Sprintf("%s, %s: max and sum of %d", m.name, what, i), []float32{got.Max, got.Sum},
				[]float32{want.Max, want.Sum})
			if !slices.Equal(got.IDs, want.IDs) {
				m.t.Fatalf("%s, %s: top of %d is %v, want %v", m.name, what, i, got.IDs, want.IDs)
			}
		}
	}
}

// same reports whether two values have the same bits or are both NaN.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// FirstDifference returns the first index where a and b differ, any NaN being equal to any other, or -1.
func FirstDifference(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i := range a {
		if !same(a[i], b[i]) {
			return i
		}
	}
	return -1
}

func wantSame(t testing.TB, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	if i := FirstDifference(got, want); i >= 0 {
		t.Fatalf("%s: element %d of %d is %v (%#x), want %v (%#x)",
			what, i, len(want), got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
	}
}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// weight adds a matrix to a program.
func weight(p *kernels.Program, t kernels.Type, rows, cols int) kernels.W {
	return p.Weight(kernels.Weight{Name: fmt.Sprintf("w%d", len(p.Weights)), Type: t, Rows: rows, Cols: cols, Layout: kernels.Rows})
}

// identity returns a matrix that copies its n inputs, to make an activation visible.
func identity(n int) []byte {
	w := make([]byte, n*n*4)
	for i := 0; i < n; i++ {
		copy(w[(i*n+i)*4:], []byte{0, 0, 0x80, 0x3f})
	}
	return w
}
