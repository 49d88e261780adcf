package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/verifier"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

// surveyCmd is a process that measures where the models of a verifier and a drafter beside it are fastest, and keeps that.
type surveyCmd struct {
	settings.Verifier // those of the verifier
	childFlags

	At          string   `name:"survey-at" hidden:"" setting:"-"`                      // where the target is
	DraftsAt    string   `name:"survey-drafts-at" hidden:"" setting:"-"`               // where the drafts are
	Places      []string `name:"survey-place" sep:"none" hidden:"" setting:"-"`        // where the target could be
	DraftPlaces []string `name:"survey-drafts-place" sep:"none" hidden:"" setting:"-"` // where the drafts could be
	Drafts      []string `name:"survey-draft" sep:"none" hidden:"" setting:"-"`        // files
}

// surveyPause is how often a survey asks whether there is something to do: verifiers announce it as often.
const surveyPause = 500 * time.Millisecond

// Run measures until it has found what it looks for.
func (c *surveyCmd) Run(a *app) error {
	if len(c.Peer.Verifier) != 1 {
		return tandem.Errorf("", tandem.Invalid, "--verifier is given %d times: want the one beside which to measure", len(c.Peer.Verifier))
	}
	program := c.program(a, c.Logging)
	r, err := roles.Start(a.ctx, rpc.Verifier, c.Peer, program, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	defer r.Server.Close()
	if err := supervise.Ready(c.ReadyFD); err != nil {
		return err
	}
	access, err := r.PoolAccess(a.ctx, c.Pool)
	if err != nil {
		return err
	}
	w, err := verifier.NewWatch(r, r.Pool(access), c.Peer.Verifier[0])
	if err != nil {
		return err
	}
	defer w.Close()
	s, err := c.survey(a, w)
	if err != nil {
		return err
	}
	of, err := profile.SeePlaced(c.Target, c.Drafts, c.KVType)
	if err != nil {
		return err
	}
	if of.Now, of.Placements, err = s.Run(a.ctx); err != nil {
		return err
	}
	return s.Kept.Place(of)
}

// survey returns what to measure.
func (c *surveyCmd) survey(a *app, w *verifier.Watch) (*placement.Survey, error) {
	chips, err := gpu.Chips()
	if err != nil {
		return nil, err
	}
	opener := device.Opener{ISA: c.ISA}
	free, err := freeOf(opener)
	if err != nil {
		return nil, err
	}
	s := &placement.Survey{KVType: c.KVType, Pause: surveyPause, Idle: w.Idle, Free: map[string]int64{"gpu": free},
		Kept: profile.Kept{Cache: start.KeepIn(c.CacheDir).Cache, Version: buildVersion().Version, GPU: device.GPUs(chips)},
		Tell: func(format string, args ...any) { a.say("%s", fmt.Sprintf(format, args...)) },
		Host: func() (kernels.Device, func(), error) {
			d, err := opener.CPU(0)
			if err != nil {
				return nil, nil, err
			}
			return d, d.Close, nil
		},
		Needs: needs}
	s.Open = func(at device.Spec, path string, o engine.Options) (*engine.Model, func(), error) {
		d, err := opener.Open(at, 0)
		if err != nil {
			return nil, nil, err
		}
		o.Device = d
		m, err := engine.OpenDraft(path, c.Target, o)
		if err != nil {
			d.Close()
			return nil, nil, err
		}
		return m, func() { m.Close(); d.Close() }, nil
	}
	if s.Target, err = surveyed(c.Target, c.At, c.Places, free); err != nil {
		return nil, err
	}
	s.Target.Costs = w.Target
	if len(c.Drafts) == 0 {
		return s, nil
	}
	largest := slices.MaxFunc(c.Drafts, func(x, y string) int { return cmp.Compare(bytesOf(x), bytesOf(y)) })
	if s.Draft, err = surveyed(largest, c.DraftsAt, c.DraftPlaces, free); err != nil {
		return nil, err
	}
	s.Draft.Costs = func() []tandem.Cost { return w.Draft(roles.ModelName(largest)) }
	s.Right = placement.NewWeigher(start.PlanFile(c.PassCosts), buildVersion().Version, c.Target, c.KVType).Right(largest)
	return s, nil
}

// freeOf returns how much of the first GPU's memory models may have now: others may hold some of it.
func freeOf(o device.Opener) (int64, error) {
	d, err := o.Open(device.Spec{GPU: new(int)}, 0)
	if err != nil {
		return 0, err
	}
	defer d.Close()
	free := int64(math.MaxInt64)
	if own, ok := d.(kernels.MemoryOwner); ok {
		if free, _, err = own.Free(); err != nil {
			return 0, err
		}
	}
	return placement.Room(free), nil
}

// surveyed returns a model to measure. Layers take what is free on the GPU at most.
func surveyed(path, at string, places []string, free int64) (out placement.Surveyed, err error) {
	out.File = path
	if out.At, err = placement.At("device", at); err != nil {
		return out, err
	}
	for _, p := range places {
		x, err := placement.At("device", p)
		if err != nil {
			return out, err
		}
		x.Layers = min(x.Layers, free)
		out.Places = append(out.Places, x)
	}
	return out, nil
}

// needs returns what a model needs of the memory of the GPU, which may be the processor's too, beside what it has on the cores: two
// processors that divide passes in one memory have one copy there.
func needs(at device.Spec, path string) map[string]int64 {
	switch {
	case at.Layers > 0:
		return map[string]int64{"gpu": at.Layers}
	case !at.OnGPU():
		return nil // there already
	}
	return map[string]int64{"gpu": placement.Needs(bytesOf(path))}
}

// bytesOf returns the size of a model's file, 0 if it cannot be read.
func bytesOf(path string) int64 {
	if info, err := engine.Inspect(path); err == nil {
		return info.FileBytes
	}
	seen, _ := profile.See(path)
	return seen.Bytes
}
