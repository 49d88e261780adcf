package cpu_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
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
	for _, isa := range cpu.Supported()[1:] {
		dev := testdevice.ISA(b, threads, isa)
		for _, typ := range kernels.Types() {
			for _, width := range []int{1, 2, 4, 8, 16, 32} {
				b.Run(fmt.Sprintf("%v/%v/%d", isa, typ, width), func(b *testing.B) { benchMatMul(b, dev, typ, n, k, width) })
			}
		}
	}
}

// benchMatMul takes several copies of a matrix in turn, one a pass, so that weights come from memory as they do in a model; the
// fastest pass counts, as it does for the limits.
func benchMatMul(b *testing.B, dev *cpu.Device, typ kernels.Type, n, k, width int) {
	runners := matrices(b, dev, typ, n, k, width)
	limits, err := limitsOf(dev, 512<<20, 200*time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	pass := &kernels.Pass{Rows: width}
	best := time.Duration(1 << 62)
	for i := 0; b.Loop(); i++ {
		start := time.Now()
		run(b, runners[i%len(runners)], pass)
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

// matrices returns programs that multiply rows with copies of one matrix, more than caches hold.
func matrices(b *testing.B, dev *cpu.Device, typ kernels.Type, n, k, width int) (runners []kernels.Runner) {
	p := kernels.NewProgram(width, 0)
	in, out, act := p.Buf(k), p.Buf(n), p.Act(k)
	p.RMSNorm(in, slices.Repeat([]float32{1}, k), 1e-5, act)
	w := p.Weight(matrix(typ, n, k))
	p.MatMul(w, act, out, kernels.MatMulOpt{})
	src := kerneltest.RandomRows(rng(1), typ, n, k)
	for have := 0; have < 512<<20 && len(runners) < 32; have += p.Weights[w].Bytes() {
		r := compile(b, dev, p, [][]byte{src}, nil)
		setRows(r, in, width, kerneltest.RandomFloats(rng(2), width*k, false))
		runners = append(runners, r)
	}
	return runners
}

// BenchmarkMXFP4 multiplies with a matrix of MXFP4 and one of Q4_0 in turn, and reports the fastest times and their ratio.
func BenchmarkMXFP4(b *testing.B) {
	const n, k = 8192, 2048
	for _, isa := range cpu.Supported()[1:] {
		dev := testdevice.ISA(b, runtime.NumCPU(), isa)
		for _, width := range []int{1, 2, 3, 4, 8, 16} {
			b.Run(fmt.Sprintf("%v/%d", isa, width), func(b *testing.B) {
				types := [2]kernels.Type{kernels.MXFP4, kernels.Q4_0}
				var all [2][]kernels.Runner
				for t := range all {
					all[t] = matrices(b, dev, types[t], n, k, width)
				}
				pass := &kernels.Pass{Rows: width}
				best := [2]time.Duration{1 << 62, 1 << 62}
				for i := 0; b.Loop(); i++ {
					for t := range all {
						start := time.Now()
						run(b, all[t][i%len(all[t])], pass)
						best[t] = min(best[t], time.Since(start))
					}
				}
				b.ReportMetric(float64(best[0].Nanoseconds())/1e3, "us")
				b.ReportMetric(float64(best[1].Nanoseconds())/1e3, "us_q4_0")
				b.ReportMetric(best[0].Seconds()/best[1].Seconds(), "of_q4_0")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// BenchmarkOperation runs a program of 100 small products one after the other: what an operation costs
// beside its arithmetic.
func BenchmarkOperation(b *testing.B) {
	const ops, n = 100, 256
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			p := kernels.NewProgram(1, 0)
			in, out, act, w := p.Buf(n), p.Buf(n), p.Act(n), p.Weight(matrix(kernels.Q8_0, n, n))
			p.RMSNorm(in, make([]float32, n), 1e-5, act)
			for i := 0; i < ops; i++ {
				p.MatMul(w, act, out, kernels.MatMulOpt{})
			}
			r := compile(b, testdevice.CPU(b, threads), p, [][]byte{kerneltest.RandomRows(rng(1), kernels.Q8_0, n, n)}, nil)
			pass := &kernels.Pass{Rows: 1}
			for b.Loop() {
				run(b, r, pass)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/ops, "us/op")
			b.ReportMetric(0, "ns/op")
		})
	}
}
