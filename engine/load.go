package engine

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// blankBytes is how much of a KV cache that is to be locked is populated at a time.
const blankBytes = 32 * kernels.PopulateBytes

// addLeaf takes a leaf of a digest: gguf.Digest.Add.
type addLeaf func(t *gguf.Tensor, row int, data []byte)

// chunk is a number of rows of a tensor that are read, repacked and hashed together, while they are in the core's cache.
// So loading needs only one chunk per core beside the weights. A chunk is a leaf of the file's digest (gguf.Digest), so at
// least a group of 16 rows unless they end the tensor. Or it is a piece of the KV cache to be populated.
type chunk struct {
	tensor *gguf.Tensor
	row    int // the first, in the tensor
	size   int // bytes
	into   []piece
	order  []int32 // instead of rows that follow each other: these
	split  bool    // less than a leaf: parts of the tensor do not begin with a group
	blank  int64   // instead of rows: where a piece of the KV cache begins, which ends size bytes later
}

// piece is the rows of a chunk that belong to one matrix.
type piece struct {
	matrix kernels.W
	row    int // the first, in the matrix
	from   int // byte in the chunk
	size   int
	across int // of its rows the transpose is taken, in F32; 0: they are taken as they are
	strip  strip
}

// of returns the rows of p's matrix that are in p's bytes of t.
func (p *piece) of(t *gguf.Tensor, src []byte) []byte {
	rows := p.strip.cut(src)
	if p.across > 0 {
		rows = transposed(t, p.across, rows)
	}
	return rows
}

// strip is the part of each row, or of each stride of rows, that belongs to the matrix, in bytes; the zero value: all of it.
type strip struct{ row, from, size int }

// stripOf returns the strip of a matrix that takes some columns.
func stripOf(m *matrix) strip {
	if m.width == 0 {
		return strip{}
	}
	elems, bytes := m.kind().Block()
	return strip{perRow(m.tensor), m.col0 / elems * bytes, m.width / elems * bytes}
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

func (c *chunk) load(buf []byte, to filling) error {
	if c.tensor == nil {
		if err := to.cache.Populate(c.blank, c.blank+int64(c.size)); err != nil {
			return tandem.Errorf("engine", tandem.Exhausted, "KV cache: %w", err)
		}
		return nil
	}
	src := buf[:c.size]
	if err := c.read(src); err != nil {
		return err
	}
	if err := checkRows(c.tensor, c.row, src); err != nil {
		return err
	}
	if to.forget {
		c.tensor.Forget(int64(c.row)*int64(perRow(c.tensor)), len(src))
	}
	for _, p := range c.into {
		if err := to.take(p, p.of(c.tensor, src[p.from:p.from+p.size])); err != nil {
			return tandem.Errorf("engine", tandem.Corrupt, "tensor %q: %w", c.tensor.Name, err)
		}
	}
	if !c.split {
		to.add(c.tensor, c.row, src)
	}
	return nil
}

// read reads the rows of c.
func (c *chunk) read(dst []byte) error {
	bytes := perRow(c.tensor)
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

// filling says what becomes of what is read.
type filling struct {
	take   func(p piece, src []byte) error // of a matrix
	cache  kernels.Cache                   // is populated; nil: none
	add    addLeaf
	forget bool // drop what was read from the system's page cache
}

// into returns a filling that packs into a store.
func into(s kernels.Store) filling {
	return filling{take: func(p piece, src []byte) error { return s.Pack(p.matrix, p.row, src) }}
}

// perRow returns the bytes of a row of a matrix.
func perRow(t *gguf.Tensor) int { return t.Size() / (t.Elements() / t.Shape[0]) }

// chunksOf cuts the tensors of matrices into chunks; largest is the bytes of the largest.
func chunksOf(matrices []matrix) (chunks []chunk, largest int, total int64) {
	for from, to := 0, 0; from < len(matrices); from = to {
		t, split := matrices[from].tensor, false
		for to = from; to < len(matrices) && matrices[to].tensor == t; to++ {
			m := &matrices[to]
			split = split || m.band > 0 || m.row0%kernels.GroupRows != 0 ||
				m.experts > 0 && (m.rows%kernels.GroupRows != 0 || m.rows < t.Shape[1])
		}
		if matrices[from].order != nil {
			chunks = append(chunks, byOrder(&matrices[from], from)...)
			continue
		}
		if matrices[from].every > 0 {
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
			for e := range max(1, m.experts) {
				from := m.from(e * m.rows)
				whole := matrix{row0: from - e*m.rows, rows: (e + 1) * m.rows} // as far as this expert, were all of them together
				chunks = append(chunks, cut(t, from, m.rows, []matrix{whole}, i, true)...)
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
func cut(t *gguf.Tensor, row, n int, parts []matrix, first int, split bool) (out []chunk) {
	bytes, step := perRow(t), t.LeafRows()
	for end := row + n; row < end; row += step {
		last := min(row+step, end)
		c := chunk{tensor: t, row: row, size: (last - row) * bytes, split: split}
		for i, p := range parts {
			if from, to := max(row, p.row0), min(last, p.from(p.all()-1)+1); from < to {
				c.into = append(c.into, piece{matrix: kernels.W(first + i), row: from - p.row0, from: (from - row) * bytes,
					size: (to - from) * bytes, strip: stripOf(&p)})
			}
		}
		out = append(out, c)
	}
	return out
}

// byBand returns the chunks of a matrix that takes bands of its tensor's rows: as many strides in each as fill groups of outputs.
func byBand(m *matrix, handle int) (out []chunk) {
	bytes, step := perRow(m.tensor), m.band
	for step%kernels.GroupRows != 0 {
		step += m.band
	}
	of := strip{m.stride * bytes, m.row0 % m.stride * bytes, m.band * bytes}
	for row := 0; row < m.rows; row += step {
		size := min(step, m.rows-row) / m.band * of.row
		out = append(out, chunk{tensor: m.tensor, row: m.from(row) - m.row0%m.stride, size: size, split: true,
			into: []piece{{matrix: kernels.W(handle), row: row, size: size, strip: of}}})
	}
	return out
}

// byOrder returns the chunks of a matrix of experts whose rows lie anywhere in its tensor.
func byOrder(m *matrix, handle int) (out []chunk) {
	bytes, step := perRow(m.tensor), m.tensor.LeafRows()
	for e := range m.experts {
		for row, end := e*m.rows, (e+1)*m.rows; row < end; row += step {
			last := min(row+step, end)
			out = append(out, chunk{tensor: m.tensor, order: m.order[row:last], size: (last - row) * bytes, split: true,
				into: []piece{{matrix: kernels.W(handle), row: row, size: (last - row) * bytes}}})
		}
	}
	return out
}

// warm reads a tensor from its beginning to its end, so that rows of it that lie apart then come from the system's page cache.
func warm(t *gguf.Tensor) error {
	buf := make([]byte, min(t.Size(), 1<<20))
	for at := 0; at < t.Size(); at += len(buf) {
		if err := t.ReadAt(buf[:min(len(buf), t.Size()-at)], int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// fill reads all matrices, and populates the cache if there is one, on all cores. It reports the bytes of both as they are done. The first
// error ends it.
//
// A cache that is to be locked comes first, so that a lack of memory shows at the start. Any other becomes real as its pages are first
// written to, so that a large pool costs a start nothing. The file's pages stay in the system's cache for the next start, unless they are
// to be forgotten; the system takes them back when memory is short. Advice to read ahead (posix_fadvise) changed nothing measurable.
func fill(matrices []matrix, to filling, progress func(done, total int64)) error {
	chunks, largest, total := chunksOf(matrices)
	var blank []chunk
	if cache := to.cache; cache != nil {
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
