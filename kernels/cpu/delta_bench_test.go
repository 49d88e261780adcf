package cpu_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// BenchmarkDeltaNet takes rows through the 24 delta nets of Qwen3.5-4B: a chain that ends in the slot it began with, and a tree, every row
// of which leaves a record. It reports the time of a layer as a multiple of its limit: the larger of reading and writing the state once
// (pass) or once a row (row) at the speed of reading that is measured just before, and of the four products of each number of the state and
// row.
func BenchmarkDeltaNet(b *testing.B) {
	for _, isa := range cpu.Supported()[1:] {
		dev := testdevice.ISA(b, runtime.NumCPU(), isa)
		for _, rows := range []int{1, 8, 16, 64, 256} {
			b.Run(fmt.Sprintf("%v/chain/%d", isa, rows), func(b *testing.B) { benchDelta(b, dev, rows, false) })
		}
		b.Run(fmt.Sprintf("%v/tree/8", isa), func(b *testing.B) { benchDelta(b, dev, 8, true) })
	}
}

func benchDelta(b *testing.B, dev *cpu.Device, rows int, tree bool) {
	const layers = 24
	d := kernels.DeltaShape{KeyHeads: 16, ValueHeads: 32, Dim: 128, Kernel: 4}
	p := kernels.NewProgram(rows, 0)
	p.KV = kernels.KVShape{Layers: []kernels.KVLayer{{Heads: 1, Dim: 32}}, Slots: 1, Records: rows}
	in, alpha, beta, out := p.Buf(d.Channels()), p.Buf(d.ValueHeads), p.Buf(d.ValueHeads), p.Buf(d.ValueHeads*d.Dim)
	r := rng(1)
	a := make([]float32, d.ValueHeads)
	for i := range a {
		a[i] = -0.1
	}
	for i := range layers {
		p.KV.States = append(p.KV.States, kernels.State{Layer: i, Kind: "delta net", Floats: d.Floats(), Record: d.Record()})
		p.Add(kernels.DeltaNet{DeltaShape: d, State: i, In: in, Alpha: alpha, Beta: beta, Out: out, A: a, Bias: a,
			Conv: kerneltest.RandomFloats(r, d.Channels()*d.Kernel, false)})
	}
	on := compile(b, dev, p, nil, newCache(b, p.KV, 1))
	for _, x := range []kernels.Buf{in, alpha, beta} {
		setRows(on, x, rows, kerneltest.RandomFloats(r, rows*p.Buffers[x].Dim, false))
	}
	pass := &kernels.Pass{Rows: rows, Pages: []int32{0}, Walks: []kernels.Walk{{}}}
	for i := range int32(rows) {
		pass.Anc, pass.AncOff, pass.AncLen = append(pass.Anc, kernels.Cell(i%64)), append(pass.AncOff, i), append(pass.AncLen, 1)
		pass.Pos, pass.Prefix, pass.Table, pass.Store = append(pass.Pos, 0), append(pass.Prefix, 0), append(pass.Table, 0),
			append(pass.Store, kernels.Cell(i%64))
		s := kernels.Step{Row: i, Record: -1, Save: -1}
		if tree { // two branches at every second row
			s.Record, s.In, s.Out = i, i/2, i/2+i%2
		} else if int(i) == rows-1 {
			s.Save = 0
		}
		pass.Walks[0].Steps = append(pass.Walks[0].Steps, s)
	}
	limits, err := limitsOf(dev, 512<<20, 200*time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	best := time.Duration(1 << 62)
	for b.Loop() {
		start := time.Now()
		run(b, on, pass)
		best = min(best, time.Since(start))
	}
	sec := best.Seconds() / layers
	move, compute := 8*float64(d.Floats())/limits.ReadBytes, 4*float64(rows*d.ValueHeads*d.Dim*d.Dim)/limits.FloatMACs
	b.ReportMetric(sec*1e6, "us/layer")
	b.ReportMetric(sec/max(move, compute), "x-pass")
	b.ReportMetric(sec/max(move*float64(rows), compute), "x-row")
	b.ReportMetric(compute*1e6, "us-compute")
	b.ReportMetric(move*1e6, "us-move")
	b.ReportMetric(0, "ns/op")
}
