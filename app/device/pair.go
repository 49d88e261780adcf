package device

import (
	"os"
	"runtime"
	"sync"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/processes/roles"
)

// pair is a device made of two, with both.
type pair struct {
	*split.Device
	left, right roles.Device
}

// Close ends the three.
func (d *pair) Close() {
	d.Device.Close()
	d.left.Close()
	d.right.Close()
}

// openPair opens a device made of two. threads are those of a part that is all cores.
func (o Opener) pair(p Spec, threads int) (roles.Device, error) {
	d := &pair{}
	all := p.Processors()
	var err error
	if d.left, err = o.Open(all[0], threads); err != nil {
		return nil, err
	}
	if d.right, err = o.Open(all[1], threads); err != nil {
		d.left.Close()
		return nil, err
	}
	if d.Device, err = split.New(d.left, d.right, nil); err != nil {
		d.left.Close()
		d.right.Close()
		return nil, err
	}
	if !p.OnGPU() {
		return d, nil
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // Go runs both sides at the same time
	}
	return newLosablePair(d), nil
}

// losablePair is a pair that is lost with the first of its sides that is.
type losablePair struct {
	*pair
	sides  []kernels.Losable
	gone   chan struct{}
	closed chan struct{}
	once   [2]sync.Once // of gone, of closed
	wg     sync.WaitGroup
}

func newLosablePair(d *pair) *losablePair {
	m := &losablePair{pair: d, gone: make(chan struct{}), closed: make(chan struct{})}
	for _, side := range []roles.Device{d.left, d.right} {
		x, ok := side.(kernels.Losable)
		if !ok {
			continue
		}
		m.sides = append(m.sides, x)
		m.wg.Go(func() {
			select {
			case <-x.Gone():
				m.once[0].Do(func() { close(m.gone) })
			case <-m.closed:
			}
		})
	}
	return m
}

// Gone implements kernels.Losable.
func (m *losablePair) Gone() <-chan struct{} { return m.gone }

// Lost implements kernels.Losable.
func (m *losablePair) Lost() error {
	for _, x := range m.sides {
		if err := x.Lost(); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the three.
func (m *losablePair) Close() {
	m.once[1].Do(func() { close(m.closed) })
	m.wg.Wait()
	m.pair.Close()
}
