package ranks

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem/kernels"
)

// Pair is a program on two devices, divided by rows and columns. It is used by one goroutine at a time.
type Pair struct {
	Shares Shares
	sides  [2]side
	meeting
	begun, ended atomic.Uint32 // passes of the second rank
	rows         int           // of the next one; 0 ends it
	err          error         // of its last one
	waiter       sync.WaitGroup
}

// side is what one device has.
type side struct {
	*rank
	store  kernels.Store
	cache  kernels.Cache
	runner kernels.Runner
}

// New makes p ready on two devices, with caches of so many pages. weights returns a whole matrix in GGUF layout. Errors: those of SharesOf
// and of the devices, and an operation that cannot be divided so.
func New(p *kernels.Program, devices [2]kernels.Device, s Shares, pages int, weights func(kernels.W) []byte) (*Pair, error) {
	pair := &Pair{Shares: s}
	for i, d := range devices {
		if err := pair.sides[i].open(p, d, i, s, pages, weights); err != nil {
			pair.Close()
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
	}
	pair.waiter.Go(pair.second)
	return pair, nil
}

// second runs the second rank's passes on a thread of its own, which does not sleep between two: the system wakes a thread on the core of
// who wakes it, and takes milliseconds to find out that another one is idle.
func (p *Pair) second() {
	runtime.LockOSThread()
	for n := uint32(1); ; n++ {
		for p.begun.Load() != n {
			runtime.Gosched()
		}
		if p.rows == 0 {
			return
		}
		p.err = p.run(1, p.rows)
		p.ended.Store(n)
	}
}

func (x *side) open(p *kernels.Program, d kernels.Device, i int, s Shares, pages int, weights func(kernels.W) []byte) (err error) {
	if x.rank, err = rankOf(p, i, s, d.Layout); err != nil {
		return err
	}
	if err = x.Check(); err != nil {
		return err
	}
	if x.store, err = d.NewWeights(x.Program); err != nil {
		return err
	}
	for w, part := range x.slices {
		if err = x.store.Pack(kernels.W(w), 0, part.cut(p.Weights[part.of], weights(part.of))); err != nil {
			return err
		}
	}
	if x.cache, err = d.NewCache(x.KV, pages); err != nil {
		return err
	}
	if err = x.cache.Populate(0, x.cache.Bytes()); err != nil {
		return err
	}
	x.runner, err = d.Compile(x.Program, x.store, x.cache)
	return err
}

// Close gives the memory back.
func (p *Pair) Close() {
	p.rows = 0
	p.begun.Add(1)
	p.waiter.Wait()
	for i := range p.sides {
		x := &p.sides[i]
		if x.runner != nil {
			x.runner.Close()
		}
		if x.cache != nil {
			x.cache.Close()
		}
		if x.store != nil {
			x.store.Close()
		}
	}
}

// Row returns row i of a buffer that every rank has all of.
func (p *Pair) Row(b kernels.Buf, i int) []float32 { return p.sides[0].runner.Row(b, i) }

// Sums returns how many all-reduces a pass has.
func (p *Pair) Sums() int { return len(p.sides[0].sums) - 1 }

// Moved returns the bytes that one rank reads or writes in the other's memory, both ranks and all sums of a pass together: of each sum each
// rank reads the other's half of the columns and writes it.
func (p *Pair) Moved(rows int) (bytes int64) {
	for _, b := range p.sides[0].sums {
		if b != kernels.None {
			bytes += 2 * 4 * int64(rows) * int64(p.sides[0].Buffers[b].Dim)
		}
	}
	return bytes
}

// Run runs a pass on both.
func (p *Pair) Run(a *kernels.Pass) error {
	for i := range p.sides {
		if err := p.sides[i].runner.Start(a); err != nil {
			return err
		}
	}
	p.failed.Store(false)
	p.came[0].n.Store(0)
	p.came[1].n.Store(0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p.rows = a.Rows
	n := p.begun.Add(1)
	err := p.run(0, a.Rows)
	for p.ended.Load() != n {
		runtime.Gosched()
	}
	return errors.Join(err, p.err)
}

// run runs the stages of one rank, and its half of each sum.
func (p *Pair) run(side, rows int) error {
	x := &p.sides[side]
	for i, b := range x.sums {
		if err := x.runner.Stage(i); err != nil {
			p.failed.Store(true)
			return err
		}
		if b == kernels.None {
			continue
		}
		p.meet(side)
		half := x.Buffers[b].Dim / 2
		from, to := side*half, (side+1)*half+side*(x.Buffers[b].Dim%2)
		for row := range rows {
			add(p.sides[0].runner.Row(b, row)[from:to], p.sides[1].runner.Row(b, row)[from:to])
		}
		p.meet(side)
	}
	return nil
}

// add makes both the sum of both.
func add(a, b []float32) {
	b = b[:len(a)]
	for i, x := range a {
		x += b[i]
		a[i], b[i] = x, x
	}
}

// meeting is where two goroutines wait for each other, on a core each.
type meeting struct {
	came [2]struct {
		n atomic.Uint32
		_ [60]byte // a cache line of its own
	}
	failed atomic.Bool // on the other side, which comes no more
}

// meet never sleeps: the scheduler would take milliseconds to bring a goroutine that is bound to a thread back.
func (m *meeting) meet(side int) {
	n := m.came[side].n.Add(1)
	for int32(m.came[1-side].n.Load()-n) < 0 && !m.failed.Load() {
	}
}
