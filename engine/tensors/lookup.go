package tensors

import (
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Lookup reads single rows of a matrix from its file, so that the matrix takes no memory. A row is about a kilobyte, which the system's
// page cache has: that takes about ten microseconds, and a pass milliseconds. It reads and does not map, as package gguf has it. One
// goroutine at a time may use it.
type Lookup struct {
	t   *gguf.Tensor
	buf []byte
}

// NewLookup returns the rows of t, a matrix of a type with kernels.
func NewLookup(t *gguf.Tensor) *Lookup { return &Lookup{t, make([]byte, PerRow(t))} }

// Tensor returns the matrix.
func (l *Lookup) Tensor() *gguf.Tensor { return l.t }

// Read fills dst with a row, in the bits of kernels.Embed. Errors: those of gguf.Tensor.ReadAt, such as Corrupt for a file that was written
// to since it was opened.
func (l *Lookup) Read(row int, dst []float32) error {
	if err := l.t.ReadAt(l.buf, int64(row)*int64(len(l.buf))); err != nil {
		return err
	}
	ref.Dequantize(uint32(l.t.Type), l.buf, dst)
	return nil
}
