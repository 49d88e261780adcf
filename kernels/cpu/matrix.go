package kernels

// #include "tk.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// lanes is the number of outputs that one vector of packed weights holds.
const lanes = 16

// Matrix is a weight matrix of rows outputs and cols inputs, repacked in groups of 16 outputs; a view
// of memory it does not own. It may be read by any number of threads once it is packed.
type Matrix struct {
	typ        Type
	rows, cols int
	mem        []byte
}

func groupBytes(t Type, cols int) int { return int(C.tk_group_bytes(C.int(t), C.int(cols))) }

// PackedBytes returns the size of a packed matrix, a multiple of 64; 0 if the type or shape cannot be.
func PackedBytes(t Type, rows, cols int) int {
	if checkShape(t, rows, cols) != nil {
		return 0
	}
	return (rows + lanes - 1) / lanes * groupBytes(t, cols)
}

func checkShape(t Type, rows, cols int) error {
	const limit = 1 << 30
	elems, _ := t.Block()
	switch {
	case elems == 0:
		return fmt.Errorf("kernels: no kernels for weights of %v", t)
	case rows < 1 || cols < 1 || rows > limit || cols > limit:
		return fmt.Errorf("kernels: matrix of %d outputs and %d inputs, want 1 to %d of each", rows, cols, limit)
	case cols%elems != 0:
		return fmt.Errorf("kernels: rows of %d elements in %v, want a multiple of %d", cols, t, elems)
	}
	return nil
}

// NewMatrix returns a matrix whose packed weights live in mem: PackedBytes long, 64-aligned, from Alloc,
// and alive for as long as the matrix is used.
func NewMatrix(t Type, rows, cols int, mem []byte) (*Matrix, error) {
	if err := checkShape(t, rows, cols); err != nil {
		return nil, err
	}
	if want := PackedBytes(t, rows, cols); len(mem) != want {
		return nil, fmt.Errorf("kernels: %d bytes of memory for a packed %dx%d %v matrix, want %d", len(mem), rows, cols, t, want)
	}
	if addr := uintptr(unsafe.Pointer(&mem[0])); addr%64 != 0 {
		return nil, fmt.Errorf("kernels: matrix memory at %#x, want a multiple of 64", addr)
	}
	return &Matrix{typ: t, rows: rows, cols: cols, mem: mem}, nil
}

// Pack takes rows [row0, row0+n) in GGUF layout. row0 is a multiple of 16; so is n, unless the rows end
// the matrix. Calls for different rows may run at the same time.
func (m *Matrix) Pack(src []byte, row0 int) error {
	elems, size := m.typ.Block()
	rowBytes := m.cols / elems * size
	n := len(src) / rowBytes
	switch {
	case len(src) == 0 || len(src)%rowBytes != 0:
		return fmt.Errorf("kernels: packing %d bytes, want a multiple of a row's %d", len(src), rowBytes)
	case row0 < 0 || row0%lanes != 0 || row0 > m.rows-n:
		return fmt.Errorf("kernels: packing rows %d to %d of %d, want a first row divisible by 16 and the last inside", row0, row0+n-1, m.rows)
	case n%lanes != 0 && row0+n != m.rows:
		return fmt.Errorf("kernels: packing %d rows before the matrix ends, want a multiple of 16", n)
	}
	group := groupBytes(m.typ, m.cols)
	for r := 0; r < n; r += lanes {
		dst := m.mem[(row0+r)/lanes*group:][:group]
		C.tk_pack_group(C.int(m.typ), (*C.uint8_t)(&src[r*rowBytes]), C.size_t(rowBytes), C.int(min(lanes, n-r)), C.int(m.cols), (*C.uint8_t)(&dst[0]))
	}
	return nil
}

// Type returns the format of the weights.
func (m *Matrix) Type() Type { return m.typ }

// Rows returns the number of outputs.
func (m *Matrix) Rows() int { return m.rows }

// Cols returns the number of inputs.
func (m *Matrix) Cols() int { return m.cols }
