package cpu

// #include "tk.h"
import "C"

import (
	"fmt"

	"github.com/tandem-llm/tandem/kernels"
)

// store is a kernels.Store: all weights of a program, packed, in one piece of memory.
type store struct {
	mem     *Memory
	weights []kernels.Weight
	at      []int      // where each begins
	stages  [][][]byte // per stage, its weights
}

// Weights of so many bytes begin at a page, so that others can map them.
const (
	large = 64 << 10
	page  = 4096
)

// Layout returns the layout of packed weights.
func (d *Device) Layout(t kernels.Type) kernels.Layout {
	if !t.Supported() {
		return ""
	}
	return kernels.Groups16
}

// NewWeights reserves memory for the weights of p.
func (d *Device) NewWeights(p *kernels.Program) (kernels.Store, error) {
	if err := p.CheckFor(name, kernels.Groups16, true); err != nil {
		return nil, err
	}
	at, size := places(p)
	s := &store{weights: p.Weights, at: at}
	var err error
	if s.mem, err = Alloc(size); err != nil {
		return nil, err
	}
	for i := range p.StageCount() {
		var all [][]byte
		for _, w := range p.StageWeights(i) {
			all = append(all, s.bytes(w))
		}
		s.stages = append(s.stages, all)
	}
	return s, nil
}

// places returns where the weights of p lie, and how many bytes they take.
func places(p *kernels.Program) (at []int, size int) {
	var l layout
	for i := range p.Weights {
		n := p.Weights[i].Bytes()
		if n >= large {
			l.size = (l.size + page - 1) / page * page
		}
		at = append(at, l.add(n))
	}
	return at, l.size
}

func (s *store) bytes(w kernels.W) []byte { return s.mem.b[s.at[w]:][:s.weights[w].Bytes()] }

func (s *store) Acquire(stage int, _ []int32) ([][]byte, error) { return s.stages[stage], nil }
func (s *store) Release(int)                                    {}
func (s *store) Resident() bool                                 { return true }
func (s *store) Bytes() int64                                   { return int64(len(s.mem.b)) }
func (s *store) Image() []byte                                  { return s.mem.b }
func (s *store) Lock() error                                    { return s.mem.Lock() }
func (s *store) Close()                                         { s.mem.Free() }

// Place returns where a weight lies in Image.
func (s *store) Place(w kernels.W) (from, to int) { return s.at[w], s.at[w] + s.weights[w].Bytes() }

// Map puts bytes of a file in the place of bytes of Image.
func (s *store) Map(fd uintptr, at int64, from, to int) error { return s.mem.share(fd, at, from, to) }

// Borrows implements kernels.Lendable: passes read any memory.
func (d *Device) Borrows() error { return nil }

// Lend has passes read a weight from host.
func (s *store) Lend(w kernels.W, host []byte) error {
	if n := s.weights[w].Bytes(); len(host) != n {
		return fmt.Errorf("kernels: weight %q lent in %d bytes: want %d", s.weights[w].Name, len(host), n)
	}
	for i, all := range s.stages {
		for j, b := range all {
			if &b[0] == &s.mem.b[s.at[w]] {
				s.stages[i][j] = host
			}
		}
	}
	return nil
}

// Share has passes read a weight where another store has it.
func (s *store) Share(w kernels.W, from kernels.Store, of kernels.W) error {
	other, ok := from.(*store)
	if !ok {
		return fmt.Errorf("kernels: weights of %T do not lie in one piece of the processor's memory", from)
	}
	return s.Lend(w, other.bytes(of))
}

// Pack takes rows in GGUF layout.
func (s *store) Pack(w kernels.W, row int, src []byte) error {
	if w < 0 || int(w) >= len(s.weights) {
		return fmt.Errorf("kernels: packing weight %d of %d", int(w), len(s.weights))
	}
	return Pack(s.bytes(w), s.weights[w], row, src)
}

// Pack packs rows [row, row+n) of m from src, in GGUF layout, into their places in dst: m.Bytes() bytes at a multiple
// of 64. The rules for row and n are those of kernels.Store.
func Pack(dst []byte, m kernels.Weight, row int, src []byte) error {
	elems, size := m.Type.Block()
	rowBytes := m.Cols / elems * size
	n, each := len(src)/rowBytes, m.Each()
	if len(src) == 0 || len(src)%rowBytes != 0 {
		return fmt.Errorf("kernels: packing %d bytes, want a multiple of a row's %d", len(src), rowBytes)
	}
	if all := m.AllRows(); row < 0 || row > all-n {
		return fmt.Errorf("kernels: packing rows %d to %d of %d, want a first row divisible by 16 and the last inside", row, row+n-1, all)
	}
	for n > 0 {
		expert, from := row/m.Rows, row%m.Rows
		part := min(n, m.Rows-from)
		if err := packMatrix(dst[expert*each:][:each], &m, from, src[:part*rowBytes]); err != nil {
			return err
		}
		row, n, src = row+part, n-part, src[part*rowBytes:]
	}
	return nil
}

// packMatrix packs rows of one matrix.
func packMatrix(dst []byte, m *kernels.Weight, row int, src []byte) error {
	elems, size := m.Type.Block()
	rowBytes := m.Cols / elems * size
	n := len(src) / rowBytes
	switch {
	case row%lanes != 0:
		return fmt.Errorf("kernels: packing rows %d to %d of %d, want a first row divisible by 16 and the last inside", row, row+n-1,
			m.Rows)
	case n%lanes != 0 && row+n != m.Rows:
		return fmt.Errorf("kernels: packing %d rows before the matrix ends, want a multiple of 16", n)
	}
	group := groupBytes(m)
	for r := 0; r < n; r += lanes {
		to := dst[(row+r)/lanes*group:][:group]
		C.tk_pack_group(C.int(m.Type), (*C.uint8_t)(&src[r*rowBytes]), C.size_t(rowBytes), C.int(min(lanes, n-r)),
			C.int(m.Cols), (*C.uint8_t)(&to[0]))
	}
	return nil
}

// lanes is the number of outputs that one vector of packed weights holds.
const lanes = kernels.GroupRows

// groupBytes returns the size of a packed group of m.
func groupBytes(m *kernels.Weight) int { return int(C.tk_group_bytes(C.int(m.Type), C.int(m.Cols))) }
