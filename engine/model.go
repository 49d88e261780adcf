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
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/memory"
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
	outputs   outputs
	work      Work
	matrices  []tensors.Matrix // by their handle in the program
	borrowed  []*gguf.Tensor   // those of matrices that are the target's
	device    kernels.Device
	footprint memory.Footprint
	store     kernels.Store
	files     []*gguf.File  // that passes read
	memory    kernels.Cache // of cache
	cache     *kv.Cache
	records   *records
	runner    kernels.Runner
	logits    kernels.Buf // (maxWanted, rows of outputs)
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
	if err := (opening{m}).load(f, nil, o); err != nil {
		m.Close()
		return nil, errors.Join(err, f.Close())
	}
	if s, ok := m.store.(kernels.FileStore); ok && s.Keeps() {
		m.files = append(m.files, f)
		return m, nil
	}
	f.Close()
	return m, nil
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
	for _, f := range m.files {
		f.Close()
	}
	*m = Model{}
}

// OpenSide reads a side file of kind medusa, ppd or gemma4-assistant for m, which must be its target: same lineage, vocabulary and width;
// an assistant states no lineage, and its layers must find their kinds in the target. It is called
// before the first pass, at most once for each kind. Close frees it with the model. Errors: Invalid (no such file, another target, not a
// side file, one of its kind is open), Corrupt, Unsupported, Exhausted (memory). After an error the model is as before.
func (m *Model) OpenSide(path string) error {
	available := memory.Free()
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := opening{m}.planSide(f)
	if err != nil {
		return err
	}
	need := memory.Footprint{Own: s.Own}
	if need := s.Weights + s.Buffers; need > available.Bytes {
		return tandem.Errorf("engine", tandem.Exhausted, "%s needs %s of memory beside its target; %s allows %s", path, memory.Bytes(need),
			available.By, memory.Bytes(max(0, available.Bytes)))
	}
	if available, err = available.On(m.device); err == nil {
		err = available.FitsOwn(path+" needs "+need.OwnString(), need.Own.Total(0))
	}
	if err != nil {
		return err
	}
	if err := s.Load(f); err != nil {
		s.Close()
		return sideError(path, err)
	}
	opening{m}.addSide(s)
	return nil
}

// Config returns the model's shape.
func (m *Model) Config() blocks.Config { return m.config }

// Vocab returns the model's tokenizer.
func (m *Model) Vocab() *token.Vocab { return m.vocab }

// MaxRows and MaxWanted return the limits of a pass.
func (m *Model) MaxRows() int   { return m.options.MaxRows }
func (m *Model) MaxWanted() int { return m.options.MaxWanted }

// About describes the device that passes run on.
func (m *Model) About() kernels.About { return m.device.About() }

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

// Prefixes are the pages of the KV cache that no sequence uses, kept for sequences that begin as those before did. All but Bound, Drop
// and Summary are safe for concurrent use.
type Prefixes interface {
	// Bound sets how many pages may be kept: 0 for all free ones, negative for none, and then sequences share nothing. Call it before
	// the first shared sequence.
	Bound(pages int)
	Drop()             // forgets all
	Kept() int         // how many of FreePages hold prefixes
	Evicted() int64    // how many such pages were given up so far, for sequences or because of the bound
	KeptStates() int   // how many prefixes have the states of recurrent layers
	LostStates() int64 // how many such states were given up for others
	// Summary returns at most most prefixes of texts that a sequence may find, the most recently used first.
	Summary(most int) []tandem.Prefix
}

// Prefixes returns the kept prefixes of m.
func (m *Model) Prefixes() Prefixes { return m.cache }

// Copies gives kept prefixes of m out as bytes and takes them back: see kv.Copies. nil if nothing is kept, or if the memory for keys and
// values is a GPU's or divided between devices. Call it after Prefixes().Bound.
func (m *Model) Copies() *kv.Copies { return m.cache.Copies() }

// Passes returns what m's passes consist of and what they cost.
func (m *Model) Passes() Passes { return Passes{m} }

// HeldRows returns how many tree rows each sequence may hold at once so that passes never lack places for records of recurrent layers,
// however many sequences hold as many; ok is false for a model without.
func (m *Model) HeldRows() (rows int, ok bool) {
	return m.options.records(&m.config)/m.options.Sequences - 2, m.config.Recurrent()
}

// Names returns the names of the model.
func (m *Model) Names() Names { return m.names }

// StateWidth returns how many numbers State.Target and State.Own have; 0, 0 for a plain model.
func (m *Model) StateWidth() (features, own int) {
	if m.draft == nil {
		return 0, 0
	}
	return m.draft.Spec.StateWidth()
}

// SelfDrafts describes the opened side files, in the order in which they were opened.
func (m *Model) SelfDrafts() []tandem.SelfDraft { return m.beside.SelfDrafts() }

// Guess answers asks: see guess.List.Guess.
func (m *Model) Guess(asks []GuessAsk, top int) ([]tandem.Guess, error) {
	return m.beside.Guess(asks, top)
}

// FeatureWidth returns how many numbers a row of features has: the hidden size for each of Options.Taps.
func (m *Model) FeatureWidth() int { return len(m.taps) * m.config.Dim }
