package measure

import (
	"context"
	"math/rand/v2"
	"time"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// Product is what multiplying with one weight matrix costs; normalising and, for quantised weights,
// quantising the rows is paid once for perPass of them.
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
	MedianShare float64       // the median over rounds of the limit just before ÷ the time
}

// Matrices is a set of equal weight matrices that are used in turn, so that weights come from memory as
// they do in a model. Not safe for concurrent use.
type Matrices struct {
	typ        kernels.Type
	rows, cols int
	mem        *kernels.Memory
	programs   []*kernels.Program
}

// perPass is how many matrices one pass multiplies with, one after the other, into the same outputs: as in
// a model, rows and outputs are in the caches for most of them.
const perPass = 4

// NewMatrices returns a set of random (rows, cols) matrices for passes of up to width rows, at least eight
// and about so many bytes in all, which should be far more than a last-level cache holds.
func NewMatrices(t kernels.Type, rows, cols, width, bytes int) (*Matrices, error) {
	size := kernels.PackedBytes(t, rows, cols)
	n := max(2, (bytes+perPass*size-1)/max(1, perPass*size)) * perPass
	mem, err := kernels.Alloc(n * size)
	if err != nil {
		return nil, err
	}
	s := &Matrices{typ: t, rows: rows, cols: cols, mem: mem}
	ws := make([]*kernels.Matrix, n)
	for i := range ws {
		b := mem.Bytes()[i*size : (i+1)*size]
		if ws[i], err = kernels.NewMatrix(t, rows, cols, b); err != nil {
			break
		}
		if i > 0 {
			copy(b, mem.Bytes()[:size])
		} else if err = ws[0].Pack(randomWeights(t, rows, cols), 0); err != nil {
			break
		}
	}
	for i := 0; i < n && err == nil; i += perPass {
		err = s.add(ws[i:i+perPass], width)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// add makes the program of a pass.
func (s *Matrices) add(ws []*kernels.Matrix, width int) error {
	ones := make([]float32, s.cols)
	for i := range ones {
		ones[i] = 1
	}
	p := kernels.NewProgram(width, 0)
	s.programs = append(s.programs, p)
	in, out, act := p.Buf(s.cols), p.Buf(s.rows), p.Act(s.cols)
	p.RMSNorm(in, ones, 1e-5, act)
	for _, w := range ws {
		p.MatMul(w, act, out, kernels.MatMulOpt{})
	}
	if err := p.Seal(); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rows := p.Rows(in)
	for i := range rows {
		rows[i] = float32(rng.NormFloat64())
	}
	return nil
}

// randomWeights returns rows in GGUF layout. Floats have magnitudes from 2⁻¹⁵ to 2, so that no
// processor slows down for denormals; scales of quantised blocks are whatever they are.
func randomWeights(t kernels.Type, rows, cols int) []byte {
	elems, size := t.Block()
	src := make([]byte, rows*(cols/elems*size))
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(src) // never fails
	top := map[kernels.Type]int{kernels.F32: 4, kernels.BF16: 2}[t]
	for i := top - 1; top > 0 && i < len(src); i += top {
		src[i] = src[i]&0x87 | 0x38 // sign and exponent
	}
	return src
}

// Close gives the memory back.
func (s *Matrices) Close() {
	for _, p := range s.programs {
		p.Free()
	}
	s.mem.Free()
}

// Measure runs n rounds of one pass of each width on pool's threads, each just after a measurement of
// the limits over a time as long; a first round does not count. limits are the best so far, and are
// raised by what is found.
func (s *Matrices) Measure(ctx context.Context, pool *kernels.Pool, probe *kernels.Probe, widths []int, n int, limits *kernels.Limits) ([]Product, error) {
	products := make([]Product, len(widths))
	samples := make([][]kernels.Limits, len(widths))
	last := make([]time.Duration, len(widths))
	turn := 0
	for round := range n + 1 {
		for i, width := range widths {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			l, err := probe.Sample(min(perPass*last[i], probeLong))
			if err != nil {
				return nil, err
			}
			pass := &kernels.Pass{Rows: width}
			start := time.Now()
			if err := s.programs[turn].Run(pool, pass); err != nil {
				return nil, err
			}
			last[i] = time.Since(start) / perPass
			turn = (turn + 1) % len(s.programs)
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
	t := Timing{Times: p.Times}
	p.Best, p.Median = t.Best(), t.Median()
	shares := make([]float64, len(samples))
	for i, l := range samples {
		shares[i] = p.limit(l).Seconds() / p.Times[i].Seconds()
	}
	p.MedianShare = quantile(shares, 0.5)
}

// Settle computes what depends on the limits, once all are known.
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
