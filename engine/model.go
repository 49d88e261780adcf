// Package engine runs forward passes of a transformer language model: rows of several sessions in one
// pass, each row with its place in its session's prefix or token tree.
//
// A Model is loaded from a GGUF file; weights are repacked for the kernels and the operations of a pass are planned once. A
// Sequence holds one session's keys and values. Forward runs a batch of parts. See package kernels for the arithmetic,
// which is the same to the bit on every machine and for every width of a pass.
package engine

import (
	"errors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

// Options say how to load a model. The zero value of a field is its default.
type Options struct {
	Device kernels.Device // where passes run, with memory for weights, cache and buffers; needed. It outlives the model
	// positions that a sequence may hold; at most, and by default, the model's context. LongRoPE's factors are chosen by it
	Context   int
	KVPages   int    // pages in the KV cache, which all sequences share; default: PagesFor one of the whole context with 256 tree rows
	KVType    string // of keys and values in the cache: f16, q8_0; default f16
	Sequences int    // held at once: memory for the states of recurrent layers is for so many. More may be held; default 4
	MaxRows   int    // rows in a pass; default 256
	MaxWanted int    // rows with logits in a pass; default MaxRows
	// hidden states to hand out: N ≥ 1 is the residual stream after N layers, -1 the state after the final norm
	Taps     []int
	Lock     bool                    // keep weights and cache in memory (mlock)
	Forget   bool                    // drop the file from the system's page cache as it is read
	Progress func(done, total int64) // bytes of weights, and of a locked cache, made ready so far; called from one goroutine at a time
}

func (o Options) withDefaults(context int) Options {
	if o.MaxRows == 0 {
		o.MaxRows = 256
	}
	if o.MaxWanted == 0 {
		o.MaxWanted = o.MaxRows
	}
	if o.Sequences == 0 {
		o.Sequences = 4
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

// Config is the shape of a model: see package blocks.
type Config = blocks.Config

// Model is a loaded model on a device, with its KV cache and compiled pass. One goroutine at a time may
// use it and its sequences.
type Model struct {
	config    blocks.Config
	options   Options
	vocab     *token.Vocab
	kvType    kernels.KVType
	weights   blocks.Weights
	draft     *guess.Draft // nil: a model that reads tokens alone
	work      Work
	matrices  []tensors.Matrix // by their handle in the program
	borrowed  []*gguf.Tensor   // those of matrices that are the target's
	device    kernels.Device
	footprint Footprint
	store     kernels.Store
	file      *gguf.File    // that passes read; nil: none
	memory    kernels.Cache // of cache
	cache     *kv.Cache
	records   *records
	runner    kernels.Runner
	logits    kernels.Buf // (maxWanted, vocab)
	pass      pass
	names     Names
	shared    int              // sequences with NewShared so far
	path      string           // of its file, for messages
	plan      *kernels.Program // of a pass
	residual  kernels.Buf      // (rows, d): after a pass, what the last layer left
	taps      []kernels.Buf    // (rows, d), per entry of Options.Taps; None for -1
	beside    guess.List       // the opened side files
}

// Open loads the model in the GGUF file at path. Errors: Invalid (no such file), Corrupt, Unsupported (architecture, type,
// tokenizer), Exhausted (memory).
func Open(path string, o Options) (*Model, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	m := &Model{}
	if err := m.load(f, nil, o); err != nil {
		m.Close()
		return nil, errors.Join(err, f.Close())
	}
	if s, ok := m.store.(kernels.FileStore); ok && s.Keeps() {
		m.file = f
		return m, nil
	}
	f.Close()
	return m, nil
}

// load plans the model in f, checks that there is memory for all of it, and only then allocates and fills it. of is nil, or, for a draft
// with states, the file of its target, from which some matrices come.
func (m *Model) load(f, of *gguf.File, o Options) error {
	available := AvailableMemory()
	if err := m.outline(f, of, o); err != nil {
		return err
	}
	program, err := m.layOut(f.Path())
	if err != nil {
		return err
	}
	if available, err = available.On(m.device); err == nil {
		err = available.Fits(f.Path(), m.footprint)
	}
	if err != nil {
		return err
	}
	if m.memory, err = m.device.NewCache(program.KV, m.options.KVPages); err != nil {
		return deviceError(f.Path(), err)
	}
	m.records = newRecords(m.recordCount())
	m.cache, m.plan, m.path = kv.New(m.memory, m.slots()), program, f.Path()
	if m.store, err = m.device.NewWeights(program); err != nil {
		return deviceError(f.Path(), err)
	}
	if m.runner, err = m.device.Compile(program, m.store, m.memory); err != nil {
		return deviceError(f.Path(), err)
	}
	if err := m.fill(f, of, o.Progress); err != nil {
		return err
	}
	if m.options.Lock {
		return m.lock()
	}
	return nil
}

// deviceError gives a device's error its kind: Unsupported or, since plans have been checked by then, Exhausted.
func deviceError(path string, err error) error {
	if unsupported := (*kernels.Unsupported)(nil); errors.As(err, &unsupported) {
		return tandem.Errorf("engine", tandem.Unsupported, "%s: %w", path, err)
	}
	return tandem.Errorf("engine", tandem.Exhausted, "%s: %w", path, err)
}

// outline reads the header: vocabulary, shape, and which tensor holds which weights.
func (m *Model) outline(f, of *gguf.File, o Options) error {
	var err error
	if of != nil {
		err = m.outlineDraft(f, of)
	} else {
		err = m.outlineModel(f)
	}
	if err != nil {
		return err
	}
	c := &m.config
	if o.Sequences < 0 || o.Sequences > maxSequences {
		return tandem.Errorf("engine", tandem.Invalid, "memory for the states of %d sequences: want 1 to %d, or 0 for the default",
			o.Sequences, maxSequences)
	}
	if o.Context < 0 {
		return tandem.Errorf("engine", tandem.Invalid, "context of %d positions: want at least 1, or 0 for the model's %d", o.Context,
			c.Context)
	} else if o.Context > 0 {
		c.Context = min(c.Context, o.Context)
	}
	if of != nil && len(o.Taps) > 0 {
		return tandem.Errorf("engine", tandem.Invalid, "%s: hidden states of a draft with states asked for: want none", f.Path())
	}
	if err = checkTaps(f.Path(), o.Taps, c.Layers); err != nil {
		return err
	}
	m.options = o.withDefaults(c.Context)
	if m.kvType, err = kernels.ParseKVType(o.KVType); err != nil {
		return tandem.Errorf("engine", tandem.Invalid, "%w", err)
	}
	if of == nil {
		if err := m.collect(f); err != nil {
			return err
		}
	}
	m.work = workOf(&m.weights, m.matrices, &m.config)
	return nil
}

// outlineModel reads vocabulary and shape of a model.
func (m *Model) outlineModel(f *gguf.File) error {
	err := refuseSide(f)
	if err != nil {
		return err
	}
	if m.vocab, err = token.FromGGUF(f); err != nil {
		return err
	}
	m.config, err = arch.Read(f, m.vocab.Size())
	return err
}

// collect finds the tensors of a model. Its context must be final: it chooses LongRoPE's factors.
func (m *Model) collect(f *gguf.File) error {
	c := blocks.Finder{Catalog: tensors.New(f), C: &m.config, W: &m.weights}
	c.Collect()
	m.matrices = c.Matrices
	return c.Err
}

// layOut lays out the operations of a pass and computes the model's footprint on its device. It allocates nothing yet.
func (m *Model) layOut(path string) (*kernels.Program, error) {
	if m.device = m.options.Device; m.device == nil {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%s: no device to run on", path)
	}
	p := m.program(m.device.Layout)
	if err := p.Check(); err != nil {
		return nil, tandem.Errorf("engine", tandem.Unsupported, "%s: %w", path, err)
	}
	if d, ok := m.device.(kernels.Fitter); ok {
		var err error
		if m.device, err = d.Fit(p, m.options.KVPages); err != nil {
			return nil, deviceError(path, err)
		}
	}
	need, err := m.device.Footprint(p)
	if err != nil {
		return nil, deviceError(path, err)
	}
	m.footprint = Footprint{Weights: need.Weights, PageBytes: need.Page, Pages: m.options.KVPages, Scratch: need.Buffers, Own: need.Own,
		States: need.States, statesOf: statesOfShape(p.KV)}
	for _, page := range []int64{need.Page, need.Own.Page} {
		if q := (Footprint{PageBytes: page, Pages: m.options.KVPages}); q.Pages < 1 || q.Pages > kernels.MaxPages || q.KV() > maxKV {
			return nil, tandem.Errorf("engine", tandem.Exhausted,
				"%s: KV cache of %d pages of %d bytes: want 1 to %d pages of less than 2^46 bytes in all",
				path, q.Pages, q.PageBytes, kernels.MaxPages)
		}
	}
	return p, nil
}

func (m *Model) lock() error {
	return lockAll(m.store, m.memory)
}

func lockAll(memory ...interface{ Lock() error }) error {
	for _, l := range memory {
		if err := l.Lock(); err != nil {
			return tandem.Errorf("engine", tandem.Exhausted, "lock memory: %w: raise the limit (ulimit -l) or leave --lock out", err)
		}
	}
	return nil
}

// Close frees everything but the device; the model and its sequences must not be used afterwards.
func (m *Model) Close() {
	m.beside.Close()
	if m.runner != nil {
		m.runner.Close()
	}
	if m.memory != nil {
		m.memory.Close()
	}
	if m.store != nil {
		m.store.Close()
	}
	if m.file != nil {
		m.file.Close()
	}
	*m = Model{}
}

// Config returns the model's shape.
func (m *Model) Config() blocks.Config { return m.config }

// Vocab returns the model's tokenizer.
func (m *Model) Vocab() *token.Vocab { return m.vocab }

// MaxRows and MaxWanted return the limits of a pass.
func (m *Model) MaxRows() int   { return m.options.MaxRows }
func (m *Model) MaxWanted() int { return m.options.MaxWanted }

// Device names the kind of device that passes run on, ISA its kernels in use; Threads returns how many threads a pass uses.
func (m *Model) Device() string { return m.device.About().Name }
func (m *Model) Threads() int   { return m.device.About().Threads }
func (m *Model) ISA() string    { return m.device.About().Kernels }

// SetThreads makes later passes use n threads, if the device has threads. No pass may be running. After an error the
// model keeps its number of threads.
func (m *Model) SetThreads(n int) error {
	d, ok := m.device.(kernels.ThreadSetter)
	if !ok {
		return tandem.Errorf("engine", tandem.Unsupported, "%d threads: %s has none", n, m.device.About())
	}
	return d.SetThreads(n)
}

// Sides returns the two devices that divide the passes; nil if the model runs on one.
func (m *Model) Sides() (left, right kernels.Device) {
	if d, ok := m.device.(kernels.Divider); ok {
		return d.Sides()
	}
	return nil, nil
}

// Divide makes later passes be divided between the two devices as kernels.Divider has it. Errors: Unsupported for a model on one device,
// Invalid for an impossible division; then nothing has changed.
func (m *Model) Divide(all []kernels.Division) error {
	d, ok := m.device.(kernels.Divider)
	if !ok {
		return tandem.Errorf("engine", tandem.Unsupported, "passes divided: %s is one device", m.device.About())
	}
	if err := d.Divide(all); err != nil {
		return tandem.Errorf("engine", tandem.Invalid, "%w", err)
	}
	return nil
}

// PageTokens is the number of tokens whose keys and values share a page of the KV cache.
const PageTokens = kernels.PageRows

// FreePages returns how many pages of the KV cache are unreserved, Pages how many there are.
func (m *Model) FreePages() int { return m.cache.FreePages() }
func (m *Model) Pages() int     { return m.options.KVPages }
