package open

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Loaded is a model whose passes can run: its weights are in memory, or the device streams them. Close it.
type Loaded struct {
	*Planned
	Names  header.Names
	Cache  kernels.Cache  // of keys, values and states
	Store  kernels.Store  // of the weights
	Runner kernels.Runner // of the passes
	Image  *Image         // of the weights, for a later start; nil: a draft with states, or no weights in the processor's memory
	Mapped int64          // bytes of weights that a draft with states maps from its target
	Apart  error          // why it has an output matrix of its own that is its target's too; nil: it has none
	lent   []byte         // memory of the target's
	files  []*gguf.File   // that passes read
}

// Model loads the model in the GGUF file at path. Errors: Invalid (no such file, options), Corrupt, Unsupported (architecture, type,
// tokenizer), Exhausted (memory).
func Model(path string, o Options) (*Loaded, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	l, err := load(f, nil, o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if s, ok := l.Store.(kernels.FileStore); ok && s.Keeps() {
		l.files = append(l.files, f)
		return l, nil
	}
	f.Close()
	return l, nil
}

// Draft loads the model in the file at path, which may be a draft with states of the model at target: see engine.OpenDraft, also for
// errors.
func Draft(path, target string, o Options) (l *Loaded, err error) {
	err = withFiles(path, target, func(f, of *gguf.File) error {
		if l, err = load(f, of, o); err != nil || l.Draft == nil {
			return err
		}
		own := l.Draft.SelectorTables()
		if l.Draft.EmbedIn == f {
			own = append(own, l.Draft.Embed.Tensor())
		} else {
			l.files = append(l.files, of.Keep(l.Draft.Embed.Tensor()))
		}
		l.files = append(l.files, f.Keep(own...))
		return nil
	})
	return l, err
}

// Close frees everything but the device. Nothing of the model may be used afterwards.
func (l *Loaded) Close() {
	l.Beside.Close()
	if l.Runner != nil {
		l.Runner.Close()
	}
	if l.Cache != nil {
		l.Cache.Close()
	}
	if l.Store != nil {
		l.Store.Close()
	}
	if l.lent != nil {
		_ = unix.Munmap(l.lent)
	}
	for _, f := range l.files {
		f.Close()
	}
}

// load plans the model in f, checks that there is memory for all of it, and only then allocates and fills it. of is nil, or, for a draft
// with states, the file of its target, from which some matrices come.
func load(f, of *gguf.File, o Options) (*Loaded, error) {
	available := memory.Free()
	p, err := planned(f, of, o)
	if err != nil {
		return nil, err
	}
	if available, err = available.On(p.Device); err == nil {
		need := p.Footprint
		if p.Draft == nil {
			need = o.Shared.Less(need)
		}
		err = available.Fits(p.Path, need)
	}
	if err != nil {
		return nil, err
	}
	l := &Loaded{Planned: p}
	if err = l.allocate(); err == nil && of == nil {
		err = l.compile()
	}
	if err == nil {
		err = l.fill(f, of)
	}
	if err == nil && of != nil { // whose weights may lie elsewhere
		err = l.compile()
	}
	if err == nil && o.Lock {
		err = lockAll(l.Store, l.Cache)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// allocate takes memory for keys and values, and weights.
func (l *Loaded) allocate() (err error) {
	if l.Cache, err = l.Device.NewCache(l.Pass.KV, l.Options.KVPages); err != nil {
		return deviceError(l.Path, err)
	}
	if l.Store, err = l.Device.NewWeights(l.Pass.Program); err != nil {
		return deviceError(l.Path, err)
	}
	return nil
}

// compile takes memory for buffers.
func (l *Loaded) compile() (err error) {
	if l.Runner, err = l.Device.Compile(l.Pass.Program, l.Store, l.Cache); err != nil {
		return deviceError(l.Path, err)
	}
	return nil
}

// fill makes weights, cache and names ready.
func (l *Loaded) fill(f, of *gguf.File) error {
	digests := l.NewDigests(f, of)
	s, streamed := l.Store.(kernels.FileStore)
	if streamed && of != nil {
		return tandem.Errorf("engine", tandem.Unsupported, "%s: the weights of a draft with states cannot be streamed", f.Path())
	}
	to := tensors.Into(l.Store)
	src := tensors.NewSource(l.Matrices, f.Path())
	if streamed {
		to.Take = src.Note()
	}
	if l.Options.Lock {
		to.Cache = l.Cache
	}
	to.Add, to.Forget = digests.Add, l.Options.Forget || streamed
	if l.Draft != nil {
		to.Lookup = append(l.Draft.SelectorTables(), l.Draft.Embed.Tensor())
	}
	matrices, digest := l.Matrices, ""
	if of == nil && l.Draft == nil && !streamed {
		l.Image = l.newImage(f)
	}
	if l.lends() {
		defer l.lending()()
	}
	if digest = l.Image.find(l.Options); digest != "" {
		matrices = nil
	}
	if err := l.pack(matrices, to, of); err != nil {
		return err
	}
	if to.Forget {
		f.Forget()
	}
	var err error
	if digest == "" {
		if digest, err = digests.Sum(context.Background()); err != nil {
			return err
		}
		if l.Image != nil {
			l.Image.Fresh = true
		}
	}
	l.share(digest)
	if l.Names, err = l.Header.Names(f, digest, l.Sizes.KV); err != nil || !streamed {
		return err
	}
	src.Named(digest)
	if err := s.Fill(context.Background(), src, l.Options.Progress); err != nil {
		if tandem.KindOf(err) != tandem.Internal {
			return err
		}
		return tandem.Errorf("engine", tandem.Unavailable, "%s: %w", f.Path(), err)
	}
	return nil
}

// share puts weights that are ready where others find them.
func (l *Loaded) share(digest string) {
	i, s, err := l.Image, l.Options.Shared, error(nil)
	if i != nil {
		i.told.Digest = digest
	}
	switch {
	case l.lends():
		err = l.lend()
	case i != nil && i.Fresh && s != nil && !i.alone:
		_, err = i.share(l.Options)
	}
	if err != nil {
		s.Refused(l.Path, err)
	}
}

func lockAll(all ...interface{ Lock() error }) error {
	for _, l := range all {
		if err := l.Lock(); err != nil {
			return tandem.Errorf("engine", tandem.Exhausted, "lock memory: %w: raise the limit (ulimit -l) or leave --lock out", err)
		}
	}
	return nil
}

// OpenSide reads a side file beside the model: see engine.Model.OpenSide, also for errors.
func (l *Loaded) OpenSide(path string) error {
	available := memory.Free()
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	of, err := gguf.Open(l.Path)
	if err != nil {
		return err
	}
	defer of.Close()
	t := l.target(l.Names.Lineage, of)
	t.Store, t.Cache, t.Fill = l.Store, l.Cache, l.fillSide
	s, err := l.planSide(f, t)
	if err != nil {
		return err
	}
	if err := l.fitsBeside(s, path, available); err != nil {
		return err
	}
	if err := s.Load(f); err != nil {
		s.Close()
		return sideError(path, err)
	}
	l.addSide(s)
	return nil
}

// fitsBeside returns Exhausted if a side file needs more than is available.
func (l *Loaded) fitsBeside(s *guess.File, path string, available memory.Available) (err error) {
	if need := s.Weights + s.Buffers; need > available.Bytes {
		return tandem.Errorf("engine", tandem.Exhausted, "%s needs %s of memory beside its target; %s allows %s", path, memory.Bytes(need),
			available.By, memory.Bytes(max(0, available.Bytes)))
	}
	if available, err = available.On(l.Device); err != nil {
		return err
	}
	need := memory.Footprint{Own: s.Own}
	return available.FitsOwn(path+" needs "+need.OwnString(), need.Own.Total(0))
}

// fillSide reads the matrices of a side file into its store.
func (l *Loaded) fillSide(f *gguf.File, matrices []tensors.Matrix, store kernels.Store) error {
	for i := range matrices {
		if matrices[i].Order != nil { // whose rows lie apart
			if err := tensors.Warm(matrices[i].Tensor); err != nil {
				return err
			}
		}
	}
	to := tensors.Into(store)
	to.Add = f.NewDigest().Add
	if err := tensors.Fill(matrices, to, nil); err != nil {
		return err
	}
	if l.Options.Forget {
		f.Forget()
	}
	if !l.Options.Lock {
		return nil
	}
	return lockAll(store)
}
