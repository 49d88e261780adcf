package cpu_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// compile makes p run on a device with weights in GGUF layout; it ends with the test.
func compile(t testing.TB, d *cpu.Device, p *kernels.Program, data [][]byte, cache kernels.Cache) kernels.Runner {
	t.Helper()
	s, err := d.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for w, b := range data {
		if err := s.Pack(kernels.W(w), 0, b); err != nil {
			t.Fatal(err)
		}
	}
	r, err := d.Compile(p, s, cache)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func run(t testing.TB, r kernels.Runner, pass *kernels.Pass) {
	t.Helper()
	if err := r.Run(pass); err != nil {
		t.Fatal(err)
	}
}

// setRows writes the first rows of a buffer.
func setRows(r kernels.Runner, b kernels.Buf, rows int, x []float32) {
	for i := range rows {
		copy(r.Row(b, i), x[i*len(x)/rows:])
	}
}

func getRows(r kernels.Runner, b kernels.Buf, rows int) (x []float32) {
	for i := range rows {
		x = append(x, r.Row(b, i)...)
	}
	return x
}

func limitsOf(d *cpu.Device, bytes int, long time.Duration) (kernels.Limits, error) {
	p, err := d.NewProbe(bytes)
	if err != nil {
		return kernels.Limits{}, err
	}
	defer p.Close()
	return kernels.MeasureLimits(p, long)
}

// fillCache stores random keys and values in every cell.
func fillCache(t testing.TB, d *cpu.Device, c *cpu.Cache) {
	t.Helper()
	p := kernels.NewProgram(kernels.PageRows, 0)
	p.KV = c.Shape()
	l := c.Shape().Layers[0]
	k, v := p.Buf(max(l.Heads*l.Dim, l.Rotated)), p.Buf(max(l.Heads*l.Dim, l.Latent))
	for i := range c.Shape().Layers {
		p.StoreKV(k, v, i)
	}
	r := compile(t, d, p, nil, c)
	for _, b := range []kernels.Buf{k, v} {
		setRows(r, b, kernels.PageRows, kerneltest.RandomFloats(rng(1), kernels.PageRows*p.Buffers[b].Dim, false))
	}
	for page := range int32(c.Pages()) {
		a := &kernels.Pass{Rows: kernels.PageRows, Pages: []int32{page}}
		for i := range int32(kernels.PageRows) {
			a.Pos, a.Prefix, a.Table = append(a.Pos, i), append(a.Prefix, i+1), append(a.Table, 0)
			a.AncOff, a.AncLen, a.Store = append(a.AncOff, 0), append(a.AncLen, 0), append(a.Store, kernels.Cell(page*kernels.PageRows+i))
		}
		run(t, r, a)
	}
}
