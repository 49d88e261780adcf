package engine

import (
	"errors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/kv"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

// opening is a model while it is opened or measured: the steps of Open. outline reads headers, layOut plans a pass, fill reads weights.
type opening struct{ *Model }

// load plans the model in f, checks that there is memory for all of it, and only then allocates and fills it. of is nil, or, for a draft
// with states, the file of its target, from which some matrices come.
func (m opening) load(f, of *gguf.File, o Options) error {
	available := memory.Free()
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
	m.records = newRecords(m.options.records(&m.config))
	m.cache, m.plan, m.path = kv.New(m.memory, m.options.slots(&m.config)), program, f.Path()
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
		return lockAll(m.store, m.memory)
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
func (m opening) outline(f, of *gguf.File, o Options) error {
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
	m.outputs = outputs{ids: c.Outputs, vocab: c.Vocab}
	m.work = workOf(&m.weights, m.matrices, &m.config)
	return nil
}

// outlineModel reads vocabulary and shape of a model.
func (m opening) outlineModel(f *gguf.File) error {
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
func (m opening) collect(f *gguf.File) error {
	c := blocks.Finder{Catalog: tensors.New(f), C: &m.config, W: &m.weights}
	c.Collect()
	m.matrices = c.Matrices
	return c.Err
}

// layOut lays out the operations of a pass and computes the model's footprint on its device. It allocates nothing yet.
func (m opening) layOut(path string) (*kernels.Program, error) {
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
	m.footprint, err = memory.Of(path, need, p.KV, m.options.KVPages)
	return p, err
}

func lockAll(all ...interface{ Lock() error }) error {
	for _, l := range all {
		if err := l.Lock(); err != nil {
			return tandem.Errorf("engine", tandem.Exhausted, "lock memory: %w: raise the limit (ulimit -l) or leave --lock out", err)
		}
	}
	return nil
}

// near returns the device for weights that stay in memory, whether or not those of m are streamed.
func (o opening) near() kernels.Device {
	if s, ok := o.Passes().Streamer(); ok {
		return s.Near()
	}
	return o.device
}

// Measure plans the model in the file at path for o.Device, as Open does, with the side files that are to be opened for it, and returns the
// memory that all of it would take. Errors: as Open's and OpenSide's, but the lineage of side files is not compared.
func Measure(path string, o Options, sides ...string) (memory.Footprint, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return memory.Footprint{}, err
	}
	defer f.Close()
	m := opening{&Model{}}
	if err := m.outline(f, nil, o); err != nil {
		return memory.Footprint{}, err
	}
	if m.plan, err = m.layOut(f.Path()); err != nil {
		return memory.Footprint{}, err
	}
	m.path = f.Path()
	for _, path := range sides {
		if err := m.measureSide(path); err != nil {
			return memory.Footprint{}, err
		}
	}
	return m.footprint, nil
}
