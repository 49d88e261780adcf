package tensors

import (
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// blankBytes is how much of a KV cache that is to be locked is populated at a time.
const blankBytes = 32 * kernels.PopulateBytes

// AddLeaf takes rows of t, from `row` on, as a leaf of the file's digest: see gguf.Digest.Add. data is valid only during the call.
// Calls come from several goroutines.
type AddLeaf func(t *gguf.Tensor, row int, data []byte)

// chunk is a number of rows of a tensor that are read, repacked and hashed together, while they are in the core's cache.
// So loading needs only one chunk per core beside the weights. A chunk is a leaf of the file's digest (gguf.Digest), so at
// least a group of 16 rows unless they end the tensor. Or it is a piece of the KV cache to be populated.
type chunk struct {
	tensor *gguf.Tensor
	row    int // the first, in the tensor
	size   int // bytes
	into   []Piece
	order  []int32 // instead of rows that follow each other: these
	split  bool    // less than a leaf: parts of the tensor do not begin with a group
	blank  int64   // instead of rows: where a piece of the KV cache begins, which ends size bytes later
}

// Piece is the rows of a chunk that belong to one matrix.
type Piece struct {
	matrix kernels.W
	row    int // the first, in the matrix
	from   int // byte in the chunk
	size   int
	across int // of its rows the transpose is taken, in F32; 0: they are taken as they are
	strip  strip
}

// of returns the rows of p's matrix that are in p's bytes of t.
func (p *Piece) of(t *gguf.Tensor, src []byte) []byte {
	rows := p.strip.cut(src)
	if p.across > 0 {
		rows = transposed(t, p.across, rows)
	}
	return rows
}

// strip is the part of each row, or of each stride of rows, that belongs to the matrix, in bytes; the zero value: all of it.
type strip struct{ row, from, size int }

// stripOf returns the strip of a matrix that takes some columns.
func stripOf(m *Matrix) strip {
	if m.width == 0 {
		return strip{}
	}
	elems, bytes := m.Kind().Block()
	return strip{PerRow(m.Tensor), m.col0 / elems * bytes, m.width / elems * bytes}
}

// cut returns the strips of all rows in src.
func (s strip) cut(src []byte) []byte {
	if s.size == 0 {
		return src
	}
	out := make([]byte, 0, len(src)/s.row*s.size)
	for ; len(src) > 0; src = src[s.row:] {
		out = append(out, src[s.from:s.from+s.size]...)
	}
	return out
}

func (c *chunk) load(buf []byte, to Filling) error {
	if c.tensor == nil {
		if err := to.Cache.Populate(c.blank, c.blank+int64(c.size)); err != nil {
			return tandem.Errorf("engine", tandem.Exhausted, "KV cache: %w", err)
		}
		return nil
	}
	src := buf[:c.size]
	if err := c.read(src); err != nil {
		return err
	}
	if err := checkRows(c.tensor, c.rowAt, src); err != nil {
		return err
	}
	if to.Forget {
		c.tensor.Forget(int64(c.row)*int64(PerRow(c.tensor)), len(src))
	}
	for _, p := range c.into {
		if err := to.Take(p, p.of(c.tensor, src[p.from:p.from+p.size])); err != nil {
			return tandem.Errorf("engine", tandem.Corrupt, "tensor %q: %w", c.tensor.Name, err)
		}
	}
	if !c.split {
		to.Add(c.tensor, c.row, src)
	}
	return nil
}

// rowAt returns which row of the tensor row i of c is.
func (c *chunk) rowAt(i int) int {
	if c.order == nil {
		return c.row + i
	}
	return int(c.order[i])
}

// read reads the rows of c.
func (c *chunk) read(dst []byte) error {
	bytes := PerRow(c.tensor)
	if c.order == nil {
		return c.tensor.ReadAt(dst, int64(c.row)*int64(bytes))
	}
	for i, row := range c.order {
		if err := c.tensor.ReadAt(dst[i*bytes:][:bytes], int64(row)*int64(bytes)); err != nil {
			return err
		}
	}
	return nil
}

// Filling says what Fill does with what it reads. It calls Take and Add from several goroutines; src is valid only during the call.
type Filling struct {
	Take   func(p Piece, src []byte) error // gets the rows of each piece of a matrix
	Cache  kernels.Cache                   // is populated; nil: none
	Add    AddLeaf                         // gets each leaf; not nil
	Lookup []*gguf.Tensor                  // tensors that stay in their files: checked and added like matrices, but not taken
	Forget bool                            // drop what was read from the system's page cache
}

// Into returns a filling whose Take packs into s, the store of a program with the same matrices. The caller sets the other fields.
func Into(s kernels.Store) Filling {
	return Filling{Take: func(p Piece, src []byte) error { return s.Pack(p.matrix, p.row, src) }}
}

// PerRow returns the bytes of one row of t in the file.
func PerRow(t *gguf.Tensor) int { return t.Size() / (t.Elements() / t.Shape[0]) }

// chunksOf cuts the tensors of matrices into chunks; largest is the bytes of the largest.
func chunksOf(matrices []Matrix) (chunks []chunk, largest int, total int64) {
	for from, to := 0, 0; from < len(matrices); from = to {
		t, split := matrices[from].Tensor, false
		if matrices[from].Order != nil {
			chunks, to = append(chunks, byOrder(&matrices[from], from)...), from+1
			continue
		}
		for to = from; to < len(matrices) && matrices[to].Tensor == t && matrices[to].Order == nil; to++ {
			m := &matrices[to]
			split = split || m.band > 0 || m.Row0%kernels.GroupRows != 0 ||
				m.Experts > 0 && (m.Rows%kernels.GroupRows != 0 || m.Rows < t.Shape[1])
		}
		if matrices[from].Every > 0 {
			chunks = append(chunks, byHead(t, matrices[from:to], from)...)
			continue
		}
		if !split {
			chunks = append(chunks, cut(t, 0, t.Elements()/t.Shape[0], matrices[from:to], from, false)...)
			continue
		}
		for i := from; i < to; i++ {
			m := &matrices[i]
			if m.band > 0 {
				chunks = append(chunks, byBand(m, i)...)
				continue
			}
			for e := range max(1, m.Experts) {
				from := m.From(e * m.Rows)
				whole := Matrix{Row0: from - e*m.Rows, Rows: (e + 1) * m.Rows} // as far as this expert, were all of them together
				chunks = append(chunks, cut(t, from, m.Rows, []Matrix{whole}, i, true)...)
			}
		}
	}
	for _, c := range chunks {
		largest = max(largest, c.size)
		total += int64(c.size)
	}
	return chunks, largest, total
}

// cut returns the chunks of n rows of t from row on. The rows belong to parts, whose handles count from first.
func cut(t *gguf.Tensor, row, n int, parts []Matrix, first int, split bool) (out []chunk) {
	bytes, step := PerRow(t), t.LeafRows()
	for end := row + n; row < end; row += step {
		last := min(row+step, end)
		c := chunk{tensor: t, row: row, size: (last - row) * bytes, split: split}
		for i, p := range parts {
			if from, to := max(row, p.Row0), min(last, p.From(p.all()-1)+1); from < to {
				c.into = append(c.into, Piece{matrix: kernels.W(first + i), row: from - p.Row0, from: (from - row) * bytes,
					size: (to - from) * bytes, strip: stripOf(&p)})
			}
		}
		out = append(out, c)
	}
	return out
}

// byBand returns the chunks of a matrix that takes bands of its tensor's rows: as many strides in each as fill groups of outputs.
func byBand(m *Matrix, handle int) (out []chunk) {
	bytes, step := PerRow(m.Tensor), m.band
	for step%kernels.GroupRows != 0 {
		step += m.band
	}
	of := strip{m.stride * bytes, m.Row0 % m.stride * bytes, m.band * bytes}
	for row := 0; row < m.Rows; row += step {
		size := min(step, m.Rows-row) / m.band * of.row
		out = append(out, chunk{tensor: m.Tensor, row: m.From(row) - m.Row0%m.stride, size: size, split: true,
			into: []Piece{{matrix: kernels.W(handle), row: row, size: size, strip: of}}})
	}
	return out
}

// byOrder returns the chunks of a matrix whose rows lie anywhere in its tensor.
func byOrder(m *Matrix, handle int) (out []chunk) {
	bytes, step := PerRow(m.Tensor), m.Tensor.LeafRows()
	for e := range max(1, m.Experts) {
		for row, end := e*m.Rows, (e+1)*m.Rows; row < end; row += step {
			last := min(row+step, end)
			out = append(out, chunk{tensor: m.Tensor, order: m.Order[row:last], size: (last - row) * bytes, split: true,
				into: []Piece{{matrix: kernels.W(handle), row: row, size: (last - row) * bytes}}})
		}
	}
	return out
}

// Warm reads a tensor from its beginning to its end, so that rows of it that lie apart then come from the system's page cache.
func Warm(t *gguf.Tensor) error {
	buf := make([]byte, min(t.Size(), 1<<20))
	for at := 0; at < t.Size(); at += len(buf) {
		if err := t.ReadAt(buf[:min(len(buf), t.Size()-at)], int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// Fill reads all matrices, and populates the cache if there is one, on all cores. progress is told the bytes of both, by one goroutine at a
// time; nil: not told. The first error ends it: of reading; Corrupt for weights that are not finite; Exhausted for the cache; or Take's.
//
// A cache that is to be locked comes first, so that a lack of memory shows at the start. Any other becomes real as its pages are first
// written to, so that a large pool costs a start nothing. The file's pages stay in the system's cache for the next start, unless they are
// to be forgotten; the system takes them back when memory is short. Advice to read ahead (posix_fadvise) changed nothing measurable.
func Fill(matrices []Matrix, to Filling, progress func(done, total int64)) error {
	chunks, largest, total := chunksOf(matrices)
	for _, t := range to.Lookup {
		if slices.ContainsFunc(matrices, func(m Matrix) bool { return m.Tensor == t && m.Order == nil }) {
			continue
		}
		for _, c := range cut(t, 0, t.Elements()/t.Shape[0], nil, 0, false) {
			chunks, largest, total = append(chunks, c), max(largest, c.size), total+int64(c.size)
		}
	}
	var blank []chunk
	if cache := to.Cache; cache != nil {
		for at := int64(0); at < cache.Bytes(); at += blankBytes {
			blank = append(blank, chunk{blank: at, size: int(min(blankBytes, cache.Bytes()-at))})
		}
		total += cache.Bytes()
	}
	chunks = append(blank, chunks...)
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex
		done  int64
		first error
	)
	workers := min(runtime.NumCPU(), len(chunks))
	work := func() {
		buf := make([]byte, largest)
		for {
			i := int(next.Add(1)) - 1
			if i >= len(chunks) {
				return
			}
			err := chunks[i].load(buf, to)
			mu.Lock()
			if err != nil && first == nil {
				first = err
				next.Store(int64(len(chunks)))
			}
			if done += int64(chunks[i].size); progress != nil && err == nil {
				progress(done, total)
			}
			mu.Unlock()
		}
	}
	for range workers {
		wg.Go(work)
	}
	wg.Wait()
	return first
}

// byHead returns chunks of a tensor that holds, for one head after the other, the rows of each of these matrices.
func byHead(t *gguf.Tensor, parts []Matrix, first int) (out []chunk) {
	bytes := PerRow(t)
	for head := range parts[0].Experts {
		c := chunk{tensor: t, row: head * parts[0].Every, size: parts[0].Every * bytes, split: true}
		at := 0
		for i, m := range parts {
			n := m.Rows
			if m.Across > 0 {
				n = m.Across
			}
			c.into = append(c.into, Piece{matrix: kernels.W(first + i), row: head * m.Rows, from: at, size: n * bytes, across: m.Across})
			at += n * bytes
		}
		out = append(out, c)
	}
	return out
}

// transposed returns the transpose of rows of t, in F32. The values are exact.
func transposed(t *gguf.Tensor, rows int, src []byte) []byte {
	cols := t.Shape[0]
	values := make([]float32, rows*cols)
	ref.Dequantize(uint32(t.Type), src, values)
	turned := make([]byte, 0, 4*rows*cols)
	for c := range cols {
		for r := range rows {
			turned = binary.LittleEndian.AppendUint32(turned, math.Float32bits(values[r*cols+c]))
		}
	}
	return turned
}
