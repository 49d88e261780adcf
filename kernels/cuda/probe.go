package cuda

import (
	"errors"
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

// probe measures the GPU's limits with kernels that do nothing else.
type probe struct {
	dev *Device
	mem Memory // of the operation, one number for each thread, and what is read
	n   int    // vectors of 16 bytes to read
	ops int    // where the operation lies
	out int
}

// NewProbe returns a probe that reads that many bytes.
func (d *Device) NewProbe(bytes int) (kernels.Probe, error) {
	var l layout
	p := &probe{dev: d, n: max(bytes, 1<<16) / vector}
	p.ops, p.out = l.add(opBytes), l.add(4*p.blocks()*threads)
	data := l.add(p.n * vector)
	var err error
	if p.mem, err = d.alloc(l.size); err != nil {
		return nil, err
	}
	o := cOp{w: p.mem.At + Pointer(data), out: p.mem.At + Pointer(p.out), to: int32(p.n), add: probeSteps}
	err = d.do(func(g Driver) error { return g.Write(p.mem.At+Pointer(p.ops), view([]cOp{o})) })
	return p, err
}

// probeSteps is the number of rounds of 16 products that a thread of a probe does.
const probeSteps = 256

func (p *probe) blocks() int { return 8 * max(1, p.dev.chip.Processors) }

// Sample measures each limit for about long.
func (p *probe) Sample(long time.Duration) (kernels.Limits, error) {
	var rates [3]float64
	products := float64(p.blocks()*threads) * probeSteps * 16
	for i, k := range []struct {
		kernel string
		amount float64
	}{{"probe_read", float64(p.n * vector)}, {"probe_int", 4 * products}, {"probe_float", products}} {
		passes, start := 0, time.Now()
		err := p.dev.do(func(g Driver) error {
			for passes == 0 || time.Since(start) < long {
				if err := g.Launch(k.kernel, grid(p.blocks(), 1, 1, threads, 0), p.mem.At+Pointer(p.ops), 0); err != nil {
					return err
				}
				if err := g.Wait(); err != nil {
					return err
				}
				passes++
			}
			return nil
		})
		if err != nil {
			return kernels.Limits{}, err
		}
		rates[i] = k.amount * float64(passes) / max(1e-9, time.Since(start).Seconds())
	}
	return kernels.Limits{ReadBytes: rates[0], IntMACs: rates[1], FloatMACs: rates[2]}, nil
}

// Close gives the memory back.
func (p *probe) Close() {
	p.dev.free(p.mem)
	p.mem = Memory{}
}

var _ kernels.LaunchTimer = (*runner)(nil)

// LeastTime runs graphs of launches that do nothing, as many as the last pass had; of a chain, its first step.
func (r *runner) LeastTime(n int) (launches int, least time.Duration, err error) {
	if r.closed {
		return 0, 0, errFreed
	}
	e := r.pass.extent().up()
	launches = min(e.enters, 1)
	if r.chaining {
		launches++
	}
	for _, s := range r.stages {
		for i := range s.launches {
			if l := &s.launches[i]; l.some(e, r.items[l.first:]) {
				launches++
			}
		}
	}
	if launches == 0 {
		return 0, 0, nil
	}
	err = r.dev.do(func(g Driver) error {
		graph, err := g.Capture(func() error {
			for range launches {
				if err := g.Launch("nothing", grid(1, 1, 1, 32, 0), r.mem.At, 0); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		defer graph.Close()
		for i := range n + 1 { // the first may load something
			start := time.Now()
			if err := errors.Join(g.Run(graph), g.Wait()); err != nil {
				return err
			}
			if took := time.Since(start); i == 1 || i > 1 && took < least {
				least = took
			}
		}
		return nil
	})
	return launches, least, err
}

// some reports whether a pass of that extent launches it.
func (l *launch) some(e extent, items []item) bool {
	_, _, ok := l.shape(e, items)
	return ok
}
