package main

import (
	"os"
	"runtime"
	"sync"

	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/roles"
)

// pairDevice is a device made of two, with both.
type pairDevice struct {
	*split.Device
	left, right roles.Device
}

// Close ends the three.
func (d *pairDevice) Close() {
	d.Device.Close()
	d.left.Close()
	d.right.Close()
}

// openPair opens a device made of two. threads are those of a part that is all cores.
func (c computeFlags) openPair(p place, threads int) (roles.Device, error) {
	d := &pairDevice{}
	all := p.processors()
	var err error
	if d.left, err = c.open(all[0], threads); err != nil {
		return nil, err
	}
	if d.right, err = c.open(all[1], threads); err != nil {
		d.left.Close()
		return nil, err
	}
	if d.Device, err = split.New(d.left, d.right, split.Plan{}); err != nil {
		d.left.Close()
		d.right.Close()
		return nil, err
	}
	if !p.onGPU() {
		return d, nil
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // Go runs both sides at the same time
	}
	return newMortalPair(d), nil
}

// mortal is a device that can be lost.
type mortal interface {
	Gone() <-chan struct{}
	Lost() error
}

// mortalPair is a pairDevice that is lost with the first of its sides that is.
type mortalPair struct {
	*pairDevice
	sides  []mortal
	gone   chan struct{}
	closed chan struct{}
	once   [2]sync.Once // of gone, of closed
	wg     sync.WaitGroup
}

func newMortalPair(d *pairDevice) *mortalPair {
	m := &mortalPair{pairDevice: d, gone: make(chan struct{}), closed: make(chan struct{})}
	for _, side := range []roles.Device{d.left, d.right} {
		x, ok := side.(mortal)
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

// Gone is closed once a side is lost.
func (m *mortalPair) Gone() <-chan struct{} { return m.gone }

// Lost returns why a side is lost; nil as long as both are there.
func (m *mortalPair) Lost() error {
	for _, x := range m.sides {
		if err := x.Lost(); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the three.
func (m *mortalPair) Close() {
	m.once[1].Do(func() { close(m.closed) })
	m.wg.Wait()
	m.pairDevice.Close()
}
