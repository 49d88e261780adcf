// Package device runs any program by the definitions in kernels/ref, slowly: the oracle that other devices are compared with.
package device

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/ref"
)

const name = "ref"

// Device is a kernels.Device. Weights stay as they are in the file, keys and values are kept as numbers in f32.
type Device struct{}

// New returns a device.
func New() *Device { return &Device{} }

var _ kernels.Device = (*Device)(nil)

// About names the device.
func (*Device) About() kernels.About { return kernels.About{Name: name, Kernels: "definitions"} }

// Layout returns the layout of GGUF files.
func (*Device) Layout(t kernels.Type) kernels.Layout {
	if !t.Supported() {
		return ""
	}
	return kernels.Rows
}

// Footprint returns what p takes.
func (*Device) Footprint(p *kernels.Program) (f kernels.Footprint, err error) {
	if err := p.CheckFor(name, kernels.Rows, false); err != nil {
		return f, err
	}
	for i := range p.Weights {
		f.Weights += int64(p.Weights[i].Bytes())
	}
	rows := func(dim int, wanted bool) int64 {
		if wanted {
			return 4 * int64(dim) * int64(p.MaxWanted)
		}
		return 4 * int64(dim) * int64(p.MaxRows)
	}
	for _, b := range p.Buffers {
		f.Buffers += rows(b.Dim, b.Wanted)
	}
	for _, a := range p.Activations {
		f.Buffers += rows(a.Dim, a.Wanted)
	}
	f.Page, f.States = pageBytes(p.KV), stateBytes(p.KV)
	return f, nil
}

// store holds weights as in the file.
type store struct {
	weights []kernels.Weight
	data    [][]byte
	stages  [][][]byte
}

// NewWeights makes room for the weights of p.
func (*Device) NewWeights(p *kernels.Program) (kernels.Store, error) {
	if err := p.CheckFor(name, kernels.Rows, false); err != nil {
		return nil, err
	}
	s := &store{weights: p.Weights}
	for i := range p.Weights {
		s.data = append(s.data, make([]byte, p.Weights[i].Bytes()))
	}
	for i := range p.StageCount() {
		var all [][]byte
		for _, w := range p.StageWeights(i) {
			all = append(all, s.data[w])
		}
		s.stages = append(s.stages, all)
	}
	return s, nil
}

func (s *store) Acquire(stage int, _ []int32) ([][]byte, error) { return s.stages[stage], nil }
func (s *store) Release(int)                                    {}
func (s *store) Resident() bool                                 { return true }
func (s *store) Lock() error                                    { return nil }
func (s *store) Close()                                         { s.data, s.stages = nil, nil }

func (s *store) Bytes() (n int64) {
	for _, b := range s.data {
		n += int64(len(b))
	}
	return n
}

// Pack copies rows.
func (s *store) Pack(w kernels.W, row int, src []byte) error {
	if w < 0 || int(w) >= len(s.data) {
		return fmt.Errorf("ref: rows of weight %d of %d", int(w), len(s.data))
	}
	rows := s.weights[w].AllRows()
	size := len(s.data[w]) / rows
	if len(src) == 0 || len(src)%size != 0 || row < 0 || row+len(src)/size > rows {
		return fmt.Errorf("ref: %d bytes from row %d of %d rows of %d bytes", len(src), row, rows, size)
	}
	copy(s.data[w][row*size:], src)
	return nil
}

// cache holds keys and values: numbers, or codes of Q8_0 and their scales.
type cache struct {
	shape  kernels.KVShape
	pages  int
	layers []kept
	states []states
}

// kept is what one layer keeps, keys and values: (cells, heads, dim), and scales per 32. Of a compressed layer it is the rotated key and
// the latent vector.
type kept struct {
	x, scales [2][]float32
}

// widths returns how many numbers a layer keeps of a position in kept's two parts.
func widths(l kernels.KVLayer) [2]int {
	if l.Latent > 0 {
		return [2]int{l.Rotated, l.Latent}
	}
	return [2]int{l.Heads * l.Dim, l.Heads * l.Dim}
}

func pageBytes(s kernels.KVShape) (n int64) {
	for _, l := range s.Layers {
		for _, width := range widths(l) {
			n += 4 * kernels.PageRows * int64(width+scalesOf(s.Type, width))
		}
	}
	return n
}

func scalesOf(t kernels.KVType, dim int) int {
	if t == kernels.KVQ8_0 {
		return dim / 32
	}
	return 0
}

// NewCache makes a cache.
func (*Device) NewCache(shape kernels.KVShape, pages int) (kernels.Cache, error) {
	if err := shape.Check(); err != nil {
		return nil, err
	}
	if pages < 1 || pages > kernels.MaxPages {
		return nil, fmt.Errorf("ref: KV cache of %d pages, want 1 to %d", pages, kernels.MaxPages)
	}
	c := &cache{shape: shape, pages: pages, states: newStates(shape)}
	for _, l := range shape.Layers {
		n := pages * kernels.PageRows
		var k kept
		for i, width := range widths(l) {
			k.x[i], k.scales[i] = make([]float32, n*width), make([]float32, n*scalesOf(shape.Type, width))
		}
		c.layers = append(c.layers, k)
	}
	return c, nil
}

func (c *cache) Shape() kernels.KVShape    { return c.shape }
func (c *cache) Pages() int                { return c.pages }
func (c *cache) Bytes() int64              { return int64(c.pages)*pageBytes(c.shape) + stateBytes(c.shape) }
func (c *cache) Populate(_, _ int64) error { return nil }
func (c *cache) Lock() error               { return nil }
func (c *cache) Close()                    { c.layers, c.states = nil, nil }
func (c *cache) Copy(dst, src []kernels.Cell) {
	for i, l := range c.layers {
		for j := range dst {
			for k, n := range widths(c.shape.Layers[i]) {
				copyCell(l.x[k], n, dst[j], src[j])
				copyCell(l.scales[k], scalesOf(c.shape.Type, n), dst[j], src[j])
			}
		}
	}
}

func copyCell(x []float32, n int, dst, src kernels.Cell) {
	copy(x[int(dst)*n:][:n], x[int(src)*n:])
}

// row returns what a kept layer has of a cell for one head: its key (0) or value (1).
func (c *cache) row(layer, which, head int, cell kernels.Cell) ref.Row {
	s := c.shape.Layers[layer]
	if s.Latent > 0 {
		latent := c.piece(layer, 1, int(cell)*s.Latent, s.Latent)
		if which == 1 {
			return latent
		}
		rotated := c.piece(layer, 0, int(cell)*s.Rotated, s.Rotated)
		return ref.Row{X: append(rotated.X, latent.X...), Scales: append(rotated.Scales, latent.Scales...)}
	}
	return c.piece(layer, which, (int(cell)*s.Heads+head)*s.Dim, s.Dim)
}

// piece returns dim numbers from `at` on of one of kept's two parts, without room behind them.
func (c *cache) piece(layer, which, at, dim int) ref.Row {
	l := c.layers[layer]
	r := ref.Row{X: l.x[which][at : at+dim : at+dim]}
	if c.shape.Type == kernels.KVQ8_0 {
		r.Scales = l.scales[which][at/32 : (at+dim)/32 : (at+dim)/32]
	}
	return r
}

// put stores x, all heads, in the cache's format.
func (c *cache) put(layer, which int, cell kernels.Cell, x []float32) {
	l, at := c.layers[layer], int(cell)*len(x)
	if c.shape.Type == kernels.KVF16 {
		for i, v := range x {
			l.x[which][at+i] = half.Float(half.From(v))
		}
		return
	}
	q := ref.Quantize(x, 32)
	for i, code := range q.Q {
		l.x[which][at+i] = float32(code)
	}
	for i, scale := range q.Scale {
		l.scales[which][at/32+i] = half.Float(half.From(scale))
	}
}

// NewProbe returns a probe of the speed of plain Go.
func (*Device) NewProbe(bytes int) (kernels.Probe, error) {
	return probe{make([]byte, max(1<<16, min(bytes, 1<<20)))}, nil
}

type probe struct{ b []byte }

func (p probe) Close() {}

// Sample measures one round of each.
func (p probe) Sample(time.Duration) (kernels.Limits, error) {
	const n = 1 << 14
	rate := func(amount int, f func()) float64 {
		start := time.Now()
		f()
		return float64(amount) / max(1e-9, time.Since(start).Seconds())
	}
	x, out := make([]float32, n), make([]float32, 1)
	var sum byte
	l := kernels.Limits{
		ReadBytes: rate(len(p.b), func() {
			for _, b := range p.b {
				sum += b
			}
		}),
		IntMACs:   rate(n, func() { ref.MatVec(ref.Q8_0Type, make([]byte, n/32*34), n/32*34, x, out, false) }),
		FloatMACs: rate(n, func() { ref.MatVec(ref.F32Type, make([]byte, 4*n), 4*n, x, out, false) }),
	}
	runtime.KeepAlive(sum)
	return l, nil
}

// parallel calls f for 0 to n-1 on all cores.
func parallel(n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, runtime.NumCPU()) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}
