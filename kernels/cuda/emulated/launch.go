package emulated

import (
	"encoding/binary"
	"fmt"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// The least that a GPU which the kernels are compiled for can do.
const (
	mostThreads = 1024
	mostShared  = 96 << 10
	mostGrid    = 65535 // in y and z
)

func check(s cuda.Shape) error {
	threads := 1
	for i := range 3 {
		if s.Grid[i] < 1 || s.Block[i] < 1 || s.Block[i] > mostThreads {
			return fmt.Errorf("grid %v, block %v: want at least 1 of each, and at most %d threads", s.Grid, s.Block, mostThreads)
		}
		threads *= s.Block[i]
	}
	switch {
	case threads > mostThreads || s.Block[2] > 64:
		return fmt.Errorf("block %v: want at most %d threads, 64 in z", s.Block, mostThreads)
	case s.Grid[0] > 1<<31-1 || s.Grid[1] > mostGrid || s.Grid[2] > mostGrid:
		return fmt.Errorf("grid %v: want at most %d in y and z", s.Grid, mostGrid)
	case s.Shared < 0 || s.Shared > mostShared:
		return fmt.Errorf("%d bytes of shared memory: want 0 to %d", s.Shared, mostShared)
	}
	return nil
}

// words are the payload of a command.
func words(v ...uint64) (b []byte) {
	for _, w := range v {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	return b
}

// kernel returns a kernel's number.
func (d *Driver) kernel(name string) (uint32, error) {
	if id, ok := d.kernels[name]; ok {
		return id, nil
	}
	if err := d.process.send(find, len(name), []byte(name)); err != nil {
		return 0, err
	}
	id, err := d.process.answer(4)
	if err != nil {
		return 0, err
	}
	if id == 1<<32-1 {
		return 0, fmt.Errorf("%s: no kernel %q in the sources", d.chip.Name, name)
	}
	d.kernels[name] = uint32(id)
	return uint32(id), nil
}

// launchSize is the size of child/main.cpp's Launch; failAt is where its flag lies.
const launchSize, failAt = 56, 4

// Launch returns before the kernel ends; what goes wrong in it is the error of a later call.
func (d *Driver) Launch(kernel string, s cuda.Shape, op, pass cuda.Pointer) error {
	if d.capturing == nil {
		if err := d.ready("Launch"); err != nil {
			return err
		}
	}
	if err := check(s); err != nil {
		return fmt.Errorf("%s: launch of %s: %w", d.chip.Name, kernel, err)
	}
	id, err := d.kernel(kernel)
	if err != nil {
		return err
	}
	var b []byte
	for _, v := range []int{int(id), 0, s.Grid[0], s.Grid[1], s.Grid[2], s.Block[0], s.Block[1], s.Block[2]} {
		b = binary.NativeEndian.AppendUint32(b, uint32(v))
	}
	b = append(b, words(uint64(s.Shared), uint64(op), uint64(pass))...)
	if d.capturing != nil {
		d.capturing.launches = append(d.capturing.launches, b...)
		return nil
	}
	d.calls.launches.Add(1)
	return d.start(b)
}

// start sends launches, and the fault that is due among them.
func (d *Driver) start(launches []byte) error {
	n := len(launches) / launchSize
	if at := d.due(n); at >= 0 {
		launches = append([]byte(nil), launches...)
		launches[at*launchSize+failAt] = 1
	}
	return d.process.send(run, n, launches)
}

type graph struct {
	of       *Driver
	launches []byte
}

func (g *graph) Close() {}

func (d *Driver) Capture(f func() error) (cuda.Graph, error) {
	if err := d.ready("Capture"); err != nil {
		return nil, err
	}
	g := &graph{of: d}
	d.capturing = g
	defer func() { d.capturing = nil }()
	if err := f(); err != nil {
		return nil, err
	}
	return g, nil
}

func (d *Driver) Run(g cuda.Graph) error {
	if err := d.ready("Run"); err != nil {
		return err
	}
	own, ok := g.(*graph)
	if !ok || own.of != d {
		return fmt.Errorf("%s: Run of a graph of another driver", d.chip.Name)
	}
	d.graphs.Add(1)
	return d.start(own.launches)
}
