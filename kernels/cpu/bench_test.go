package kernels_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// BenchmarkMatMul runs one matrix per type and width and reports its speed as a share of the limit that
// is measured just before: the larger of the time to read the weights and the time of the multiply-adds.
// A share above 1 means that the weights came from a cache.
// TANDEM_BENCH_THREADS sets the number of threads (default: all cores).
func BenchmarkMatMul(b *testing.B) {
	const n, k = 8192, 2048
	threads := runtime.NumCPU()
	if v, err := strconv.Atoi(os.Getenv("TANDEM_BENCH_THREADS")); err == nil {
		threads = v
	}
	for _, isa := range kernels.Supported()[1:] {
		pool := newPool(b, threads, isa)
		for _, typ := range types {
			// Several copies, so that weights come from memory as they do in a model.
			var ws []*kernels.Matrix
			src := randomRows(rng(1), typ, n, k)
			for have := 0; have < 512<<20 && len(ws) < 32; have += kernels.PackedBytes(typ, n, k) {
				ws = append(ws, packed(b, typ, n, k, src))
			}
			for _, width := range []int{1, 2, 4, 8, 16, 32} {
				b.Run(fmt.Sprintf("%v/%v/%d", isa, typ, width), func(b *testing.B) { benchMatMul(b, pool, ws, width) })
			}
		}
	}
}

// benchMatMul takes the matrices in turn, one a pass; the fastest pass counts, as it does for the limits.
func benchMatMul(b *testing.B, pool *kernels.Pool, ws []*kernels.Matrix, width int) {
	n, k, typ := ws[0].Rows(), ws[0].Cols(), ws[0].Type()
	one := make([]float32, k)
	for i := range one {
		one[i] = 1
	}
	var programs []*kernels.Program
	for _, w := range ws {
		p := kernels.NewProgram(width, 0)
		in, out, act := p.Buf(k), p.Buf(n), p.Act(k)
		p.RMSNorm(in, one, 1e-5, act)
		p.MatMul(w, act, out, kernels.MatMulOpt{})
		programs = append(programs, seal(b, p))
		copy(p.Rows(in), randomFloats(rng(2), width*k, false))
	}
	limits, err := pool.Limits(512<<20, 200*time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	pass := &kernels.Pass{Rows: width}
	best := time.Duration(1 << 62)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		run(b, programs[i%len(ws)], pool, pass)
		best = min(best, time.Since(start))
	}
	elems, size := typ.Block()
	bytes, macs, sec := float64(n*k/elems*size), float64(n*k*width), best.Seconds()
	rate := limits.FloatMACs
	if typ.Quantized() {
		rate = limits.IntMACs
	}
	b.ReportMetric(bytes/sec/1e9, "GB/s")
	b.ReportMetric(macs/sec/1e9, "Gmac/s")
	b.ReportMetric(max(bytes/limits.ReadBytes, macs/rate)/sec, "share")
	b.ReportMetric(limits.ReadBytes/1e9, "limitGB/s")
	b.ReportMetric(rate/1e9, "limitGmac/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkOperation runs a program of 100 small products one after the other: what an operation costs
// beside its arithmetic.
func BenchmarkOperation(b *testing.B) {
	const ops, n = 100, 256
	w := packed(b, kernels.Q8_0, n, n, randomRows(rng(1), kernels.Q8_0, n, n))
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			pool := newPool(b, threads, kernels.Auto)
			p := kernels.NewProgram(1, 0)
			in, out, act := p.Buf(n), p.Buf(n), p.Act(n)
			p.RMSNorm(in, make([]float32, n), 1e-5, act)
			for i := 0; i < ops; i++ {
				p.MatMul(w, act, out, kernels.MatMulOpt{})
			}
			seal(b, p)
			pass := &kernels.Pass{Rows: 1}
			for b.Loop() {
				run(b, p, pool, pass)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/ops, "us/op")
			b.ReportMetric(0, "ns/op")
		})
	}
}
