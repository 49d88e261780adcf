// Package convert makes model files: Quantize stores a model's weights in other types, Expand
// makes a larger model that computes the same function, Random one with the shape of a published model and random weights.
//
// All build a list of tensors to make, each with a function that yields its values row by row. The list is
// written some rows at a time on all cores, so memory does not depend on the model. The result has the same
// bytes on every machine: float32 operations run in a fixed order, none of them fused.
package convert

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const op = "convert"

// Options say how to convert. The zero value of a field is its default.
type Options struct {
	Threads  int                     // default: as many as Go uses
	Force    bool                    // replace an existing file
	Progress func(done, total int64) // bytes written so far; called from one goroutine, often
}

// Result describes the file that was made.
type Result struct {
	Types   map[string]int `json:"types"` // tensors by type
	Bytes   int64          `json:"bytes"` // of the file
	Seconds float64        `json:"seconds"`
}

// Size returns the bytes of the file.
func (r *Result) Size() int64 { return r.Bytes }

// String describes the file but for its size.
func (r *Result) String() string {
	parts := make([]string, 0, len(r.Types))
	for _, t := range slices.Sorted(maps.Keys(r.Types)) {
		parts = append(parts, fmt.Sprintf("%d of %s", r.Types[t], t))
	}
	return fmt.Sprintf("tensors: %s, %.1f s", strings.Join(parts, ", "), r.Seconds)
}

// tensor is one tensor to make, from the values that fill gives, from another tensor's bytes, or from those that raw gives.
type tensor struct {
	name  string
	typ   gguf.Type
	shape []int
	fill  func(dst []float32, buf *[]byte, row int) error // whole rows from row on; safe for concurrent use
	bytes *gguf.Tensor
	raw   func(dst []byte, row int) error // like fill, but of encoded rows
}

const (
	chunkValues = 1 << 18 // values that a worker makes at a time, but at least a row
	maxRow      = 1 << 24 // values in a row
)

// rowsOf returns the number of rows and the values in each.
func (t *tensor) rowsOf() (rows, cols int) {
	rows = 1
	for _, n := range t.shape[1:] {
		rows *= n
	}
	return rows, t.shape[0]
}

// layerOf returns the number in "blk.N.", -1 for a tensor outside the layers.
func layerOf(name string) int {
	n := -1
	if _, err := fmt.Sscanf(name, "blk.%d.", &n); err != nil {
		return -1
	}
	return n
}

// keepLineage writes f's lineage to w.
func keepLineage(ctx context.Context, f *gguf.File, w *gguf.Writer) error {
	lineage, err := f.ReadLineage(ctx)
	if err == nil {
		w.Set(gguf.LineageKey, lineage)
	}
	return err
}

// write makes the file at out: keys of w, then tensors in the order in which other tools write them.
func write(ctx context.Context, in, out string, w *gguf.Writer, tensors []tensor, o Options) (*Result, error) {
	start := time.Now()
	slices.SortStableFunc(tensors, func(a, b tensor) int {
		return cmp.Or(layerOf(a.name)-layerOf(b.name), strings.Compare(a.name, b.name))
	})
	if o.Threads <= 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	m := &maker{ctx: ctx, progress: o.Progress, workers: make([]worker, min(o.Threads, 64))}
	r := &Result{Types: map[string]int{}}
	for i := range tensors {
		t := &tensors[i]
		if _, cols := t.rowsOf(); cols > maxRow {
			return nil, tandem.Errorf(op, tandem.Unsupported, "%s: tensor %q has rows of %d values: want at most %d", in, t.name, cols,
				maxRow)
		}
		r.Types[t.typ.String()]++
		w.TensorFunc(t.name, t.typ, t.shape, func(to io.Writer) error { return m.make(to, t) })
	}
	m.total = w.Size()
	err := create(in, out, m.total, o.Force, func(to io.Writer) (err error) {
		r.Bytes, err = w.WriteTo(to)
		return err
	})
	if err != nil {
		return nil, err
	}
	r.Seconds = time.Since(start).Seconds()
	return r, nil
}

// maker makes the tensors one after the other.
type maker struct {
	ctx         context.Context
	workers     []worker
	done, total int64 // bytes
	progress    func(done, total int64)
}

// worker makes some rows of a tensor. Its buffers grow to the largest chunk and are reused.
type worker struct {
	values []float32
	raw    []byte // of the source
	out    []byte
	err    error
}

// sized returns a slice of n values, in buf's memory if that is large enough.
func sized[T any](buf *[]T, n int) []T {
	if cap(*buf) < n {
		*buf = make([]T, n)
	}
	return (*buf)[:n]
}

// make writes the tensor to a file, as many chunks at a time as there are workers.
func (m *maker) make(to io.Writer, t *tensor) error {
	rows, cols := t.rowsOf()
	per := max(1, chunkValues/cols)
	for row := 0; row < rows; row += per * len(m.workers) {
		if m.ctx.Err() != nil {
			return tandem.Errorf("", tandem.KindOf(m.ctx.Err()), "stopped: %w", m.ctx.Err())
		}
		var wg sync.WaitGroup
		used := 0
		for r := row; r < rows && used < len(m.workers); r += per {
			w := &m.workers[used]
			wg.Go(func() { w.err = w.make(t, r, min(per, rows-r), cols) })
			used++
		}
		wg.Wait()
		for i := range m.workers[:used] {
			w := &m.workers[i]
			if w.err != nil {
				return w.err
			}
			if _, err := to.Write(w.out); err != nil {
				return err
			}
			m.done += int64(len(w.out))
		}
		if m.progress != nil {
			m.progress(m.done, m.total)
		}
	}
	return nil
}

// make puts n rows of t from row on, encoded, into w.out.
func (w *worker) make(t *tensor, row, n, cols int) error {
	block, size := t.typ.Block()
	bytes := cols / block * size
	w.out = sized(&w.out, n*bytes)
	if t.bytes != nil {
		return t.bytes.ReadAt(w.out, int64(row)*int64(bytes))
	}
	if t.raw != nil {
		return t.raw(w.out, row)
	}
	values := sized(&w.values, n*cols)
	if err := t.fill(values, &w.raw, row); err != nil {
		return err
	}
	for i, v := range values {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return tandem.Errorf("", tandem.Corrupt, "weight %d of row %d is %g: want finite numbers", i%cols, row+i/cols, v)
		}
	}
	if err := encode(t.typ, w.out, values); err != nil {
		return tandem.Errorf("", tandem.Unsupported, "rows %d to %d: %w", row, row+n-1, err)
	}
	return nil
}
