// Package engine runs forward passes of a transformer language model: rows of several sessions in one
// pass, each row with its place in its session's prefix or token tree.
//
// A Model is loaded from a GGUF file; weights are repacked for the kernels and the operations of a pass are planned once. A
// Sequence holds one session's keys and values. Forward runs a Batch of segments. See package kernels for the arithmetic,
// which is the same to the bit on every machine and for every width of a pass.
package engine

import (
	"runtime"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/gguf"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/token"
	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// Options say how to load a model. The zero value of a field is its default.
type Options struct {
	Threads   int                     // of a pass; default: all cores
	ISA       string                  // auto, or a name of kernels.ISA; default auto
	Context   int                     // positions that a sequence may hold; at most, and by default, the model's context. LongRoPE's factors are chosen by it
	KVPages   int                     // pages in the KV cache; see PagesFor; default: one sequence of the whole context with 256 tree rows
	KVType    string                  // of keys and values in the cache: f16, q8_0; default f16
	MaxRows   int                     // rows in a pass; default 256
	MaxWanted int                     // rows with logits in a pass; default MaxRows
	Lock      bool                    // keep weights and cache in memory (mlock)
	Progress  func(done, total int64) // bytes of weights and cache made ready so far; called from one goroutine at a time
}

func (o Options) withDefaults(context int) Options {
	if o.Threads == 0 {
		o.Threads = runtime.NumCPU()
	}
	if o.ISA == "" {
		o.ISA = "auto"
	}
	if o.KVType == "" {
		o.KVType = "f16"
	}
	if o.MaxRows == 0 {
		o.MaxRows = 256
	}
	if o.MaxWanted == 0 {
		o.MaxWanted = o.MaxRows
	}
	if o.KVPages == 0 {
		o.KVPages = PagesFor(1, context, 256)
	}
	return o
}

// PagesFor returns the KV pages that so many sequences of that capacity and number of tree rows need.
func PagesFor(sequences, capacity, nodes int) int {
	return sequences * (kv.PagesFor(capacity) + kv.PagesFor(nodes))
}

// Model is a loaded model with its KV cache, threads and planned pass. One goroutine at a time may
// use it and its sequences.
type Model struct {
	config  Config
	options Options
	vocab   *token.Vocab
	weights weights
	pending []pending // matrices that are not filled yet
	cache   *kv.Cache
	pool    *kernels.Pool
	program *kernels.Program
	logits  kernels.Buf // (maxWanted, vocab)
	pass    pass
	shared  int // sequences with NewShared so far
}

// Open loads the model in the GGUF file at path. Errors: Invalid (no such file), Corrupt, Unsupported (architecture, type,
// tokenizer), Exhausted (memory).
func Open(path string, o Options) (*Model, error) {
	isa, err := kernels.ParseISA(o.withDefaults(1).ISA)
	if err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m := &Model{}
	if err := m.load(f, isa, o); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// load plans the model, checks that there is memory for all of it, and only then fills it.
func (m *Model) load(f *gguf.File, isa kernels.ISA, o Options) error {
	available := AvailableMemory() // before anything is laid out: what is, counts as addresses in use
	if err := m.outline(f, o, kernels.Alloc); err != nil {
		return err
	}
	if err := available.Fits(f.Path(), m.footprint()); err != nil {
		return err
	}
	var err error
	if m.pool, err = kernels.NewPool(m.options.Threads, isa); err != nil {
		return err
	}
	if err := fill(m.pending, m.cache.Bytes(), o.Progress); err != nil {
		return err
	}
	m.pending = nil
	if m.options.Lock {
		return m.lock()
	}
	return nil
}

// outline reads the header and lays out weights, KV cache and the operations of a pass. Nothing of the
// memory is touched yet but the buffers' few constants.
func (m *Model) outline(f *gguf.File, o Options, alloc func(bytes int) (*kernels.Memory, error)) error {
	var err error
	if m.vocab, err = token.FromGGUF(f); err != nil {
		return err
	}
	if m.config, err = readConfig(f, m.vocab.Size()); err != nil {
		return err
	}
	c := &m.config
	if o.Context < 0 {
		return tandem.Errorf("engine", tandem.Invalid, "context of %d positions: want at least 1, or 0 for the model's %d", o.Context, c.Context)
	} else if o.Context > 0 {
		c.Context = min(c.Context, o.Context)
	}
	m.options = o.withDefaults(c.Context)
	w, matrices, err := layWeights(f, c, alloc)
	if err != nil {
		return err
	}
	m.weights, m.pending = *w, matrices
	shape := c.kvShape()
	if shape.Type, err = kernels.ParseKVType(m.options.KVType); err != nil {
		return tandem.Errorf("engine", tandem.Invalid, "%w", err)
	}
	if p := (Footprint{PageBytes: int64(shape.PageBytes()), Pages: m.options.KVPages}); p.Pages < 1 || p.Pages > maxPages || p.KV() > maxKV {
		return tandem.Errorf("engine", tandem.Exhausted, "%s: KV cache of %d pages of %d bytes: want 1 to %d pages of less than 2^46 bytes in all", f.Path(), p.Pages, p.PageBytes, maxPages)
	}
	if m.cache, err = kv.New(shape, m.options.KVPages); err != nil {
		return err
	}
	return m.buildProgram()
}

func (m *Model) lock() error {
	for _, l := range []interface{ Lock() error }{m.weights.memory, m.cache} {
		if err := l.Lock(); err != nil {
			return tandem.Errorf("engine", tandem.Exhausted, "lock memory: %w: raise the limit (ulimit -l) or leave --lock out", err)
		}
	}
	return nil
}

func (c *Config) kvShape() kernels.KVShape {
	return kernels.KVShape{Layers: c.Layers, KVHeads: c.cacheHeads, HeadDim: c.HeadDim}
}

// Close frees everything; the model and its sequences must not be used afterwards.
func (m *Model) Close() {
	if m.program != nil {
		m.program.Free()
	}
	if m.pool != nil {
		m.pool.Close()
	}
	if m.cache != nil {
		m.cache.Free()
	}
	if m.weights.memory != nil {
		m.weights.memory.Free()
	}
	*m = Model{}
}

// Config returns the model's shape.
func (m *Model) Config() Config { return m.config }

// Vocab returns the model's tokenizer.
func (m *Model) Vocab() *token.Vocab { return m.vocab }

// MaxRows and MaxWanted return the limits of a pass.
func (m *Model) MaxRows() int   { return m.options.MaxRows }
func (m *Model) MaxWanted() int { return m.options.MaxWanted }

// Threads returns how many threads a pass uses, ISA the instruction set of its kernels.
func (m *Model) Threads() int     { return m.pool.Threads() }
func (m *Model) ISA() kernels.ISA { return m.pool.ISA() }

// SetThreads has later passes use n threads. No pass may be running. After an error, which is kernels' own, the
// model goes on with as many as before.
func (m *Model) SetThreads(n int) error {
	pool, err := kernels.NewPool(n, m.pool.ISA())
	if err != nil {
		return err
	}
	m.pool.Close()
	m.pool = pool
	return nil
}

// FreePages and Pages tell how much of the KV cache is unreserved and how much there is.
func (m *Model) FreePages() int { return m.cache.FreePages() }
func (m *Model) Pages() int     { return m.options.KVPages }
