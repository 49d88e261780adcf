package engine

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/gguf"
	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// layWeights checks every tensor and gives each matrix its place in memory, from alloc; the matrices come
// back unfilled, for fill.
func layWeights(f *gguf.File, cfg *Config, alloc func(bytes int) (*kernels.Memory, error)) (*weights, []pending, error) {
	w := &weights{}
	c := &catalog{file: f, used: map[string]bool{}}
	if c.collect(w, cfg); c.err != nil {
		return nil, nil, c.err
	}
	mem, err := alloc(c.bytes)
	if err != nil {
		return nil, nil, tandem.Errorf("engine", tandem.Exhausted, "%s: %d bytes of weights: %w", f.Path(), c.bytes, err)
	}
	w.memory = mem
	for _, m := range c.matrices {
		rows, cols := m.rows, m.cols()
		kt := kernels.Type(m.tensor.Type)
		packed := mem.Bytes()[m.at : m.at+kernels.PackedBytes(kt, rows, cols)]
		if *m.into, err = kernels.NewMatrix(kt, rows, cols, packed); err != nil {
			mem.Free()
			return nil, nil, tandem.Errorf("engine", tandem.Unsupported, "%s: tensor %q: %w", f.Path(), m.tensor.Name, err)
		}
	}
	if w.head == nil {
		w.head = w.embed
	}
	w.work = workOf(w, c.matrices)
	return w, c.matrices, nil
}

// chunkBytes is about what a worker reads and repacks at a time: what it has read is still in its
// core's cache when it is repacked, and beyond the weights loading takes no more memory than a chunk
// for each core.
const chunkBytes = 512 << 10

// blankBytes is how much of the KV cache is made real at a time.
const blankBytes = 32 << 20

// chunk is rows of a matrix that are read and repacked together: at least a group of 16, unless the
// rows end the matrix. Or it is a piece of the KV cache, to be made real.
type chunk struct {
	matrix *kernels.Matrix
	tensor *gguf.Tensor
	off    int64 // of the rows in the tensor, bytes
	size   int
	row0   int    // in the matrix
	blank  []byte // of the KV cache, nil for rows
}

func (c *chunk) load(buf []byte) error {
	if c.blank != nil {
		if err := kernels.Populate(c.blank); err != nil {
			return tandem.Errorf("engine", tandem.Exhausted, "KV cache: %w", err)
		}
		return nil
	}
	src := buf[:c.size]
	if err := c.tensor.ReadAt(src, c.off); err != nil {
		return err
	}
	if err := c.matrix.Pack(src, c.row0); err != nil {
		return tandem.Errorf("engine", tandem.Corrupt, "tensor %q: %w", c.tensor.Name, err)
	}
	return nil
}

// chunksOf cuts matrices into chunks; largest is the bytes of the largest.
func chunksOf(matrices []pending) (chunks []chunk, largest int, total int64) {
	for i := range matrices {
		p := &matrices[i]
		perRow := p.tensor.Size() / p.tensor.Shape[1]
		step := max(16, chunkBytes/perRow&^15)
		for r := 0; r < p.rows; r += step {
			n := min(step, p.rows-r) * perRow
			chunks = append(chunks, chunk{matrix: *p.into, tensor: p.tensor, off: int64(p.row0+r) * int64(perRow), size: n, row0: r})
			largest = max(largest, n)
			total += int64(n)
		}
	}
	return chunks, largest, total
}

// fill makes cache real, and reads and repacks all matrices, on all cores, reporting the bytes of both as
// they are done. The first error ends it.
//
// The cache comes first: what it takes is missed at the start, not by a pass hours later, and passes pay for
// no page faults. The file's pages stay in the system's cache, for the next start: it
// takes them back when memory is short. Advice to read ahead (posix_fadvise) changed nothing measurable.
func fill(matrices []pending, cache []byte, progress func(done, total int64)) error {
	chunks, largest, total := chunksOf(matrices)
	var blank []chunk
	for piece := range slices.Chunk(cache, blankBytes) {
		blank = append(blank, chunk{blank: piece, size: len(piece)})
		total += int64(len(piece))
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
			err := chunks[i].load(buf)
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
