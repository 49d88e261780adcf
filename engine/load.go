package engine

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/gguf"
	"github.com/tandem-llm/tandem/kernels"
)

// layer holds one transformer block's weights; biases are nil where the file has none.
type layer struct {
	attnNorm, ffnNorm          []float32 // (dim)
	q, k, v, o                 *kernels.Matrix
	qBias, kBias, vBias, oBias []float32
	gate, up, down             *kernels.Matrix
}

// weights are a model's parameters, repacked for the kernels. head is embed where the file has no
// matrix of its own for the output.
type weights struct {
	memory      *kernels.Memory
	embed, head *kernels.Matrix
	outputNorm  []float32
	ropeFactors []float32 // (ropeDim/2), or nil
	layers      []layer
}

// catalog finds a model's tensors in its file, checks their shapes, and remembers which were asked
// for, so that a tensor that nobody used is noticed. The first error sticks.
type catalog struct {
	file     *gguf.File
	used     map[string]bool
	matrices []pending
	bytes    int // packed, of matrices
	err      error
}

// pending is a matrix whose memory is not allocated yet.
type pending struct {
	tensor *gguf.Tensor
	at     int // offset into the weight memory
	into   **kernels.Matrix
}

func (c *catalog) fail(k tandem.Kind, format string, args ...any) {
	if c.err == nil {
		c.err = tandem.Errorf("engine", k, "%s: %s", c.file.Path(), fmt.Sprintf(format, args...))
	}
}

// find returns the named tensor if it has the shape, nil if it is absent or wrong.
func (c *catalog) find(name string, required bool, shape ...int) *gguf.Tensor {
	t := c.file.Tensor(name)
	if t == nil {
		if required {
			c.fail(tandem.Corrupt, "tensor %q is missing", name)
		}
		return nil
	}
	c.used[name] = true
	same := len(t.Shape) == len(shape)
	for i := 0; same && i < len(shape); i++ {
		same = t.Shape[i] == shape[i]
	}
	if !same {
		c.fail(tandem.Corrupt, "tensor %q has shape %v: the hyper-parameters want %v", name, t.Shape, shape)
		return nil
	}
	return t
}

// matrix asks for a (rows, cols) weight matrix, rows being outputs; its memory comes later.
func (c *catalog) matrix(into **kernels.Matrix, name string, required bool, rows, cols int) {
	t := c.find(name, required, cols, rows)
	if t == nil {
		return
	}
	kt := kernels.Type(t.Type)
	if !kt.Supported() {
		c.fail(tandem.Unsupported, "tensor %q has type %s: supported are f32, f16, bf16, q8_0, q4_0, q4_k, q6_k", name, t.Type)
		return
	}
	c.matrices = append(c.matrices, pending{t, c.bytes, into})
	c.bytes += kernels.PackedBytes(kt, rows, cols)
}

// vector reads an F32 tensor of n values; nil if it is absent and not required.
func (c *catalog) vector(name string, required bool, n int) []float32 {
	t := c.find(name, required, n)
	if t == nil {
		return nil
	}
	if t.Type != gguf.Type(kernels.F32) {
		c.fail(tandem.Unsupported, "tensor %q has type %s: want f32", name, t.Type)
		return nil
	}
	data, v := t.Data(), make([]float32, n)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return v
}

// collect lists every tensor of a llama-architecture model.
func (c *catalog) collect(w *weights, cfg *Config) {
	attn, kv := cfg.Heads*cfg.HeadDim, cfg.KVHeads*cfg.HeadDim
	c.matrix(&w.embed, "token_embd.weight", true, cfg.Vocab, cfg.Dim)
	c.matrix(&w.head, "output.weight", false, cfg.Vocab, cfg.Dim)
	w.outputNorm = c.vector("output_norm.weight", true, cfg.Dim)
	w.ropeFactors = c.vector("rope_freqs.weight", false, cfg.RopeDim/2)
	w.layers = make([]layer, cfg.Layers)
	for i := range w.layers {
		l, name := &w.layers[i], func(s string) string { return fmt.Sprintf("blk.%d.%s", i, s) }
		l.attnNorm = c.vector(name("attn_norm.weight"), true, cfg.Dim)
		l.ffnNorm = c.vector(name("ffn_norm.weight"), true, cfg.Dim)
		c.matrix(&l.q, name("attn_q.weight"), true, attn, cfg.Dim)
		c.matrix(&l.k, name("attn_k.weight"), true, kv, cfg.Dim)
		c.matrix(&l.v, name("attn_v.weight"), true, kv, cfg.Dim)
		c.matrix(&l.o, name("attn_output.weight"), true, cfg.Dim, attn)
		l.qBias = c.vector(name("attn_q.bias"), false, attn)
		l.kBias = c.vector(name("attn_k.bias"), false, kv)
		l.vBias = c.vector(name("attn_v.bias"), false, kv)
		l.oBias = c.vector(name("attn_output.bias"), false, cfg.Dim)
		c.matrix(&l.gate, name("ffn_gate.weight"), true, cfg.FFN, cfg.Dim)
		c.matrix(&l.up, name("ffn_up.weight"), true, cfg.FFN, cfg.Dim)
		c.matrix(&l.down, name("ffn_down.weight"), true, cfg.Dim, cfg.FFN)
		if c.err != nil {
			return
		}
	}
	for _, t := range c.file.Tensors() {
		if !c.used[t.Name] {
			c.fail(tandem.Unsupported, "tensor %q has no place in the llama architecture: leaving it out would change the text", t.Name)
			return
		}
	}
}

// loadWeights checks every tensor, then repacks the matrices in parallel.
func loadWeights(f *gguf.File, cfg *Config, progress func(done, total int64)) (*weights, error) {
	w := &weights{}
	c := &catalog{file: f, used: map[string]bool{}}
	if c.collect(w, cfg); c.err != nil {
		return nil, c.err
	}
	mem, err := kernels.Alloc(c.bytes)
	if err != nil {
		return nil, tandem.Errorf("engine", tandem.Exhausted, "%s: %d bytes of weights: %w", f.Path(), c.bytes, err)
	}
	w.memory = mem
	for _, m := range c.matrices {
		rows, cols := m.tensor.Shape[1], m.tensor.Shape[0]
		kt := kernels.Type(m.tensor.Type)
		packed := mem.Bytes()[m.at : m.at+kernels.PackedBytes(kt, rows, cols)]
		if *m.into, err = kernels.NewMatrix(kt, rows, cols, packed); err != nil {
			mem.Free()
			return nil, tandem.Errorf("engine", tandem.Unsupported, "%s: tensor %q: %w", f.Path(), m.tensor.Name, err)
		}
	}
	if err := packAll(c.matrices, progress); err != nil {
		mem.Free()
		return nil, tandem.Errorf("engine", tandem.Corrupt, "%s: %w", f.Path(), err)
	}
	if w.head == nil {
		w.head = w.embed
	}
	return w, nil
}

// packRows is how many rows one job repacks: a multiple of the 16 rows of a group.
const packRows = 256

// packAll repacks all matrices on all cores, reporting bytes of the file as they are done.
func packAll(matrices []pending, progress func(done, total int64)) error {
	type job struct {
		m    *kernels.Matrix
		src  []byte
		row0 int
	}
	var jobs []job
	var total int64
	for _, p := range matrices {
		m, data := *p.into, p.tensor.Data()
		perRow := len(data) / m.Rows()
		for r := 0; r < m.Rows(); r += packRows {
			end := min(r+packRows, m.Rows())
			jobs = append(jobs, job{m, data[r*perRow : end*perRow], r})
		}
		total += int64(len(data))
	}
	var (
		next, done atomic.Int64
		wg         sync.WaitGroup
		mu         sync.Mutex
		first      error
	)
	for range min(runtime.NumCPU(), len(jobs)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				err := jobs[i].m.Pack(jobs[i].src, jobs[i].row0)
				n := done.Add(int64(len(jobs[i].src)))
				mu.Lock()
				if err != nil && first == nil {
					first = err
				}
				if progress != nil {
					progress(n, total)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return first
}
