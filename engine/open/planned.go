package open

import (
	"context"
	"errors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Planned is a model whose passes are laid out for a device. Nothing is allocated for it.
type Planned struct {
	*header.Header
	Options   Options // with defaults
	Sizes     plan.Sizes
	Pass      *plan.Pass
	Device    kernels.Device   // Options.Device, or what that is with these passes: kernels.Fitter
	Footprint memory.Footprint // what all of it takes, with Beside
	Beside    guess.List       // side files that are planned or open
}

// outline reads the header of the model in f and checks what is asked of it. of is nil, or, for a draft with states, the file of its
// target.
func outline(f, of *gguf.File, o Options) (*Planned, error) {
	p, err := &Planned{}, error(nil)
	if of == nil {
		p.Header, err = header.Read(f, o.Context)
	} else {
		p.Header, err = header.ReadDraft(f, of, o.Context)
	}
	if err != nil {
		return nil, err
	}
	t, err := kernels.ParseKVType(o.KVType)
	if err != nil {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%w", err)
	}
	asked := o.sizes(t)
	if err := asked.Check(p.Header); err != nil {
		return nil, err
	}
	p.Options = o.withDefaults(p.Config.Context)
	p.Sizes = p.Options.sizes(t)
	return p, nil
}

// planned lays out the passes of the model in f, and computes what it takes on its device; of is as outline's.
func planned(f, of *gguf.File, o Options) (*Planned, error) {
	p, err := outline(f, of, o)
	if err != nil {
		return nil, err
	}
	if p.Device = o.Device; p.Device == nil {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%s: no device to run on", p.Path)
	}
	if c, ok := p.Device.(kernels.Chainer); ok && c.Chains() && p.Draft != nil {
		p.Weights, p.Matrices = p.Draft.Hold()
	}
	if p.Pass, err = plan.New(p.Header, p.Sizes, p.Device.Layout); err != nil {
		return nil, err
	}
	if m, on := p.borrows(); m != nil && on == nil {
		w := &p.Pass.Program.Weights[p.Weights.Head]
		if w.Lent = true; p.Options.Lender == nil {
			w.Layout = kernels.Groups16
		}
	}
	if d, ok := p.Device.(kernels.Fitter); ok {
		if p.Device, err = d.Fit(p.Pass.Program, p.Options.KVPages); err != nil {
			return nil, deviceError(p.Path, err)
		}
	}
	need, err := p.Device.Footprint(p.Pass.Program)
	if err != nil {
		return nil, deviceError(p.Path, err)
	}
	p.Footprint, err = memory.Of(p.Path, need, p.Pass.KV, p.Options.KVPages)
	p.Footprint.Tokens, p.Footprint.Output = p.Config.Vocab, p.output()
	return p, err
}

// Measure plans the model in the file at path for o.Device, as Model does, and the side files that are to be opened for it. It returns the
// memory that all of it would take, and allocates none. Errors: as Model's and OpenSide's, but the lineage of side files is not compared.
func Measure(path string, o Options, sides ...string) (memory.Footprint, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return memory.Footprint{}, err
	}
	defer f.Close()
	p, err := planned(f, nil, o)
	if err != nil {
		return memory.Footprint{}, err
	}
	for _, path := range sides {
		if err := p.measureSide(path, f); err != nil {
			return memory.Footprint{}, err
		}
	}
	return p.Footprint, nil
}

// MeasureDraft returns the memory that Draft would take, as Measure does. Errors: as Draft's.
func MeasureDraft(path, target string, o Options) (need memory.Footprint, err error) {
	err = withFiles(path, target, func(f, of *gguf.File) error {
		p, err := planned(f, of, o)
		if err == nil {
			need = p.Footprint
		}
		return err
	})
	return need, err
}

// Identify reads the whole model file at path and returns the names that the model would have if opened with o. Errors: as
// Model's, and ctx's once it has ended.
func Identify(ctx context.Context, path string, o Options) (header.Names, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return header.Names{}, err
	}
	defer f.Close()
	p, err := outline(f, nil, o)
	if err != nil {
		return header.Names{}, err
	}
	digest, err := p.NewDigests(f, nil).Sum(ctx)
	if err != nil {
		return header.Names{}, err
	}
	return p.Names(f, digest, p.Sizes.KV)
}

// withFiles calls use with the file at path and, if that is a draft with states, its target's; else nil.
func withFiles(path, target string, use func(f, of *gguf.File) error) error {
	f, s, err := header.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if !s.Kind.IsDraft() {
		return use(f, nil)
	}
	of, err := gguf.Open(target)
	if err != nil {
		return err
	}
	defer of.Close()
	return use(f, of)
}

// measureSide adds what a side file will need to the footprint; of is the model's file.
func (p *Planned) measureSide(path string, of *gguf.File) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := p.planSide(f, p.target("", of))
	if err != nil {
		return err
	}
	p.addSide(s)
	return nil
}

// planSide plans the side file f beside the model, which is t to it.
func (p *Planned) planSide(f *gguf.File, t *guess.Target) (*guess.File, error) {
	if err := p.CheckWhole(f.Path()); err != nil {
		return nil, err
	}
	s, err := p.Beside.Plan(f, t)
	if err != nil {
		return nil, sideError(f.Path(), err)
	}
	return s, nil
}

// addSide makes a side file the model's.
func (p *Planned) addSide(s *guess.File) {
	p.Beside.Add(s)
	p.Footprint = p.Footprint.With(s.Footprint)
}

// target returns what guesses beside the model in f need of it while nothing is loaded. lineage "": not known yet.
func (p *Planned) target(lineage string, f *gguf.File) *guess.Target {
	near := p.Device // for weights that stay in memory, whether or not the model's are streamed
	if s, ok := near.(kernels.Streamer); ok {
		near = s.Near()
	}
	return &guess.Target{Target: p.SideTarget(lineage), Config: &p.Config, Weights: &p.Weights, Plan: p.Pass.Program, Device: p.Device,
		File: f, Near: near, Draft: p.Draft != nil}
}

// deviceError gives a device's error its kind: Unsupported or, since plans have been checked by then, Exhausted.
func deviceError(path string, err error) error {
	if unsupported := (*kernels.Unsupported)(nil); errors.As(err, &unsupported) {
		return tandem.Errorf("engine", tandem.Unsupported, "%s: %w", path, err)
	}
	return tandem.Errorf("engine", tandem.Exhausted, "%s: %w", path, err)
}

// sideError gives a device's error its kind; others have one.
func sideError(path string, err error) error {
	if own := (*tandem.Error)(nil); errors.As(err, &own) {
		return err
	}
	return deviceError(path, err)
}
