package cuda

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
)

// store is a kernels.Store: all weights of a program, packed, in one piece of the GPU's memory.
type store struct {
	dev     *Device
	program *kernels.Program
	mem     Memory
	at      []int // where each weight begins

	mu   sync.Mutex           // of lent, while several goroutines Pack: Lend and Share come before or after
	lent map[kernels.W]Memory // where weights are that are Lent; Size 0: another store's
}

// Layout returns the layout of packed weights.
func (d *Device) Layout(t kernels.Type) kernels.Layout {
	if !t.Supported() {
		return ""
	}
	return kernels.Groups32
}

// NewWeights reserves memory for the weights of p.
func (d *Device) NewWeights(p *kernels.Program) (kernels.Store, error) {
	if err := p.CheckFor(name, kernels.Groups32, false); err != nil {
		return nil, err
	}
	s := &store{dev: d, program: p, lent: map[kernels.W]Memory{}}
	var l layout
	for i := range p.Weights {
		s.at = append(s.at, l.size)
		if !p.Weights[i].Lent {
			l.add(p.Weights[i].Bytes())
		}
	}
	var err error
	if s.mem, err = d.alloc(l.size); err != nil {
		return nil, err
	}
	return s, nil
}

// pointer returns where a weight lies.
func (s *store) pointer(w kernels.W) Pointer {
	if m, lent := s.lent[w]; lent {
		return m.At
	}
	return s.mem.At + Pointer(s.at[w])
}

// Borrows returns why passes do not read weights in memory of the processor that others have filled; nil: they do.
func (d *Device) Borrows() error { return d.chip.Borrows() }

// Borrows returns why c's passes do not read weights in memory of the processor that others have filled; nil: they do.
func (c Chip) Borrows() error {
	if err := c.shares(); err != nil {
		return err
	}
	if !c.Registers {
		return fmt.Errorf("cuda: %s reads no memory of the processor that others have allocated", c.Name)
	}
	return nil
}

// Lend has passes read a weight from memory of the processor.
func (s *store) Lend(w kernels.W, host []byte) error {
	if n := s.program.Weights[w].Bytes(); len(host) != n {
		return fmt.Errorf("cuda: weight %q lent in %d bytes: want %d", s.program.Weights[w].Name, len(host), n)
	}
	return s.dev.do(func(g Driver) error {
		m, err := g.Register(host)
		if err == nil {
			s.lent[w] = m
		}
		return err
	})
}

// Share has passes read a weight where another store of the device has it.
func (s *store) Share(w kernels.W, from kernels.Store, of kernels.W) error {
	other, ok := from.(*store)
	if !ok || other.dev != s.dev {
		return fmt.Errorf("cuda: weights of %T do not lie in this store's memory", from)
	}
	s.lent[w] = Memory{At: other.pointer(of)}
	return nil
}

// own returns memory for a weight in the processor's order that nobody lends.
func (s *store) own(w kernels.W) (m Memory, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, had := s.lent[w]
	if !had {
		if m, err = s.dev.allocShared(s.program.Weights[w].Bytes()); err == nil {
			s.lent[w] = m
		}
	}
	return m, err
}

// Acquire returns copies of a stage's weights, or those of a couple themselves, which the processor sees. Runners of this device do
// not call it.
func (s *store) Acquire(stage int, _ []int32) (all [][]byte, err error) {
	for _, w := range s.program.StageWeights(stage) {
		n := s.program.Weights[w].Bytes()
		if m := s.lent[w]; m.Host != nil {
			all = append(all, m.Host[:n])
			continue
		}
		if _, lent := s.lent[w]; s.mem.Host != nil && !lent {
			all = append(all, s.mem.Host[s.at[w]:][:n])
			continue
		}
		b := make([]byte, n)
		if err := s.dev.do(func(g Driver) error { return g.Read(b, s.pointer(w)) }); err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	return all, nil
}

func (s *store) Release(int)    {}
func (s *store) Resident() bool { return true }
func (s *store) Bytes() int64   { return int64(s.mem.Size) }

// Lock does nothing: a GPU's memory is not paged out.
func (s *store) Lock() error { return nil }

// Close gives the memory back.
func (s *store) Close() {
	s.dev.free(s.mem)
	s.dev.free(slices.Collect(maps.Values(s.lent))...)
	s.mem, s.lent = Memory{}, nil
}

// Pack takes rows in GGUF layout.
func (s *store) Pack(w kernels.W, row int, src []byte) error {
	if w < 0 || int(w) >= len(s.at) {
		return fmt.Errorf("cuda: packing weight %d of %d", int(w), len(s.at))
	}
	m := &s.program.Weights[w]
	elems, size := m.Type.Block()
	perRow := m.Cols / elems * size
	n := len(src) / perRow
	switch {
	case s.mem.Size == 0:
		return errors.New("cuda: packing weights that are closed")
	case n == 0 || len(src)%perRow != 0:
		return fmt.Errorf("cuda: packing %d bytes, want a multiple of a row's %d", len(src), perRow)
	case row < 0 || row > m.AllRows()-n:
		return fmt.Errorf("cuda: packing rows %d to %d of %d, want a first row divisible by 16 and the last inside", row, row+n-1,
			m.AllRows())
	}
	if m.Lent {
		if m.Layout != kernels.Groups16 {
			return fmt.Errorf("cuda: packing weight %q, which is another store's", m.Name)
		}
		to, err := s.own(w)
		if err != nil {
			return err
		}
		return cpu.Pack(to.Host[:m.Bytes()], *m, row, src)
	}
	for n > 0 {
		expert, from := row/m.Rows, row%m.Rows
		part := min(n, m.Rows-from)
		if err := s.packMatrix(m, s.at[w]+expert*m.Each(), from, src[:part*perRow]); err != nil {
			return err
		}
		row, n, src = row+part, n-part, src[part*perRow:]
	}
	return nil
}

// packMatrix packs rows of the matrix that begins at a place.
func (s *store) packMatrix(m *kernels.Weight, at, row int, src []byte) error {
	elems, size := m.Type.Block()
	perRow := m.Cols / elems * size
	n := len(src) / perRow
	switch {
	case row%kernels.GroupRows != 0:
		return fmt.Errorf("cuda: packing rows %d to %d of %d, want a first row divisible by 16 and the last inside", row, row+n-1, m.Rows)
	case n%kernels.GroupRows != 0 && row+n != m.Rows:
		return fmt.Errorf("cuda: packing %d rows before the matrix ends, want a multiple of 16", n)
	}
	bytes := m.Each() / ((m.Rows + group - 1) / group)
	for from := row; from < row+n; {
		g := from / group
		to := min((g+1)*group, row+n)
		if err := s.packGroup(m, at+g*bytes, bytes, from%group, src[(from-row)*perRow:(to-row)*perRow]); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// packGroup writes rows into their lanes of a group, from a first lane on.
func (s *store) packGroup(m *kernels.Weight, at, bytes, lane int, src []byte) error {
	elems, size := m.Type.Block()
	perRow := m.Cols / elems * size
	lanes := len(src) / perRow
	staged := make([]byte, bytes)
	for i := range lanes {
		pack(staged, m, lane+i, src[i*perRow:(i+1)*perRow])
	}
	return s.dev.do(func(g Driver) error {
		if lanes == group || lane == 0 && lanes > group/2 { // the rest of the last group is zeros
			return g.Write(s.mem.At+Pointer(at), staged)
		}
		return writeLanes(g, s.mem.At+Pointer(at), staged, kernels.Segment32(m.Type), lane, lanes)
	})
}

// writeLanes writes some lanes of a group and leaves the others, which somebody else may be packing.
func writeLanes(g Driver, to Pointer, staged []byte, per, lane, lanes int) error {
	for seg := 0; seg < len(staged); seg += group * per {
		for i := 0; i < per; i += vector {
			width := min(vector, per-i)
			at := seg + i*group + lane*width
			if err := g.Write(to+Pointer(at), staged[at:at+lanes*width]); err != nil {
				return err
			}
		}
	}
	return nil
}
