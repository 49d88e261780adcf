package passes

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/measure"
)

// Product is the time to multiply with one weight matrix. It includes 1/perPass of the time to normalise the rows
// and, for quantised weights, to quantise them.
type Product struct {
	Type        kernels.Type
	Rows, Cols  int // of the matrix: outputs, inputs
	Width       int // rows of the pass
	Bytes       int64
	Times       []time.Duration
	Best        time.Duration
	Median      time.Duration
	Limit       time.Duration // of the best limits
	Share       float64       // Limit ÷ Best
	MedianShare float64       // median over rounds of (limit measured just before ÷ time)
}

// Matrices is a set of weight matrices of equal shape that are used in turn, so that weights come from memory as
// in a model. Not safe for concurrent use.
type Matrices struct {
	typ        kernels.Type
	rows, cols int
	sets       []set
}

// set holds the matrices of one pass.
type set struct {
	weights kernels.Store
	runner  kernels.Runner
}

// perPass is how many matrices one pass multiplies with, one after the other, into the same outputs: as in
// a model, rows and outputs are in the caches for most of them.
const perPass = 4

// probeShort is how long one limit is measured at most between passes.
const probeShort = 50 * time.Millisecond

// NewMatrices returns a set of random (rows, cols) matrices on a device for passes of up to width rows: at least eight,
// of about the given bytes in all, which should be far more than a last-level cache holds.
func NewMatrices(d kernels.Device, t kernels.Type, rows, cols, width, bytes int) (*Matrices, error) {
	p := kernels.NewProgram(width, 0)
	in, out, act := p.Buf(cols), p.Buf(rows), p.Act(cols)
	p.RMSNorm(in, slices.Repeat([]float32{1}, max(0, cols)), 1e-5, act)
	for range perPass {
		w := p.Weight(kernels.Weight{Name: "random", Type: t, Rows: rows, Cols: cols, Layout: d.Layout(t)})
		p.MatMul(w, act, out, kernels.MatMulOpt{})
	}
	need, err := d.Footprint(p)
	if err != nil {
		return nil, err
	}
	all := int(need.Weights + need.Own.Weights)
	s := &Matrices{typ: t, rows: rows, cols: cols}
	src := randomWeights(t, rows, cols)
	for len(s.sets) < max(2, (bytes+all-1)/all) && err == nil {
		err = s.add(d, p, in, src)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// add makes the set of one pass.
func (s *Matrices) add(d kernels.Device, p *kernels.Program, in kernels.Buf, src []byte) error {
	weights, err := d.NewWeights(p)
	if err != nil {
		return err
	}
	s.sets = append(s.sets, set{weights: weights})
	for w := range p.Weights {
		if err := weights.Pack(kernels.W(w), 0, src); err != nil {
			return err
		}
	}
	r, err := d.Compile(p, weights, nil)
	if err != nil {
		return err
	}
	s.sets[len(s.sets)-1].runner = r
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range p.MaxRows {
		row := r.Row(in, i)
		for j := range row {
			row[j] = float32(rng.NormFloat64())
		}
	}
	return nil
}

// randomWeights returns rows in GGUF layout. Floats have magnitudes from 2⁻¹⁵ to 2, and so have the scales of MXFP4, so that no
// processor slows down for denormals; scales of other quantised blocks are whatever they are.
func randomWeights(t kernels.Type, rows, cols int) []byte {
	elems, size := t.Block()
	src := make([]byte, rows*(cols/elems*size))
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(src) // never fails
	top := map[kernels.Type]int{kernels.F32: 4, kernels.BF16: 2}[t]
	for i := top - 1; top > 0 && i < len(src); i += top {
		src[i] = src[i]&0x87 | 0x38 // sign and exponent
	}
	for i := 0; t == kernels.MXFP4 && i < len(src); i += size {
		src[i] = 0x70 | src[i]&15
	}
	return src
}

// Close gives the memory back.
func (s *Matrices) Close() {
	for _, x := range s.sets {
		if x.runner != nil {
			x.runner.Close()
		}
		x.weights.Close()
	}
}

// Measure runs n rounds of one pass of each width, after a first round that does not count. Before each pass it
// measures the limits for as long as the pass takes, and raises limits, the best so far, to what it finds.
func (s *Matrices) Measure(ctx context.Context, probe kernels.Probe, widths []int, n int, limits *kernels.Limits) ([]Product, error) {
	products := make([]Product, len(widths))
	samples := make([][]kernels.Limits, len(widths))
	last := make([]time.Duration, len(widths))
	turn := 0
	for round := range n + 1 {
		for i, width := range widths {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			l, err := probe.Sample(min(perPass*last[i], probeShort))
			if err != nil {
				return nil, err
			}
			pass := &kernels.Pass{Rows: width}
			start := time.Now()
			if err := s.sets[turn].runner.Run(pass); err != nil {
				return nil, err
			}
			last[i] = time.Since(start) / perPass
			turn = (turn + 1) % len(s.sets)
			if round > 0 {
				*limits = limits.Max(l)
				samples[i] = append(samples[i], l)
				products[i].Times = append(products[i].Times, last[i])
			}
		}
	}
	for i := range products {
		s.finish(&products[i], widths[i], samples[i])
	}
	return products, nil
}

func (s *Matrices) finish(p *Product, width int, samples []kernels.Limits) {
	elems, size := s.typ.Block()
	p.Type, p.Rows, p.Cols, p.Width = s.typ, s.rows, s.cols, width
	p.Bytes = int64(s.rows) * int64(s.cols/elems*size)
	t := measure.Timing{Times: p.Times}
	p.Best, p.Median = t.Best(), t.Median()
	shares := make([]float64, len(samples))
	for i, l := range samples {
		shares[i] = p.limit(l).Seconds() / p.Times[i].Seconds()
	}
	slices.Sort(shares)
	p.MedianShare = shares[len(shares)/2]
}

// Settle computes the fields that depend on the limits, once these are final.
func (p *Product) Settle(l kernels.Limits) {
	p.Limit = p.limit(l)
	p.Share = p.Limit.Seconds() / p.Best.Seconds()
}

func (p *Product) limit(l kernels.Limits) time.Duration {
	rate := l.FloatMACs
	if p.Type.Quantized() {
		rate = l.IntMACs
	}
	macs := float64(p.Rows) * float64(p.Cols) * float64(p.Width)
	return time.Duration(max(float64(p.Bytes)/l.ReadBytes, macs/rate) * 1e9)
}
