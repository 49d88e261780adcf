package roles

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
)

// What processes beside the verifier take, in bytes, without their models: measured were 13 MiB for a gateway, as much for the process that
// starts all, and 20 MiB for a drafter. The program's own pages are shared, and part of what the verifier's process takes.
const (
	gatewayBytes = 64 << 20 // with the process that starts all
	drafterBytes = 48 << 20

	// slackBytes is by how much less may be available when a model is loaded than when it was planned.
	slackBytes = 8 << 20
)

// Streaming says how a target that does not fit into memory is run.
type Streaming struct {
	Budget int64 // bytes of memory; 0: what is available, less a margin
	// On returns a device that computes on d with streamed weights, for which there are so many bytes of memory. Closing it closes d.
	On func(d kernels.Device, memory int64) kernels.Streamer
}

// Limit returns the memory that all processes together may take: the budget, but no more than is available.
func (s *Streaming) Limit(available engine.Available) int64 {
	if s.Budget > 0 {
		return min(s.Budget, available.Bytes-slackBytes)
	}
	return available.Bytes - available.Bytes/16
}

// Fit returns the device for the model at path with options o, whose footprint on o.Device is need: o.Device if all of it fits into limit
// bytes, else a streaming one for it. others is what else is in those bytes: other processes and models. fits is the footprint on the
// device. Errors: Exhausted, with the least that works; Unsupported.
func (s *Streaming) Fit(path string, o engine.Options, need engine.Footprint, limit, others int64) (d kernels.Device, fits engine.Footprint,
	err error) {
	if need.Total()+others <= limit {
		return o.Device, need, nil
	}
	on := s.On(o.Device, max(0, limit-others-need.Total()+need.Weights-need.Beside))
	o.Device, o.KVPages = on, 1
	f, err := engine.Measure(path, o)
	var small *kernels.TooSmall
	if fits = need; !errors.As(err, &small) {
		fits.Weights = f.Weights + need.Beside
		return on, fits, err
	}
	fits.Weights = small.Least + need.Beside
	beside := ""
	if others > 0 {
		beside = fmt.Sprintf(", and %s beside it", engine.Bytes(others))
	}
	return nil, need, tandem.Errorf("", tandem.Exhausted, "%s cannot run in %s of memory, even if its weights are read from the "+
		"disk in every pass: that needs %s%s: want %s, or a smaller --ctx or --sessions", ModelName(path), engine.Bytes(limit), fits,
		beside, s.more(limit, fits.Total()+others))
}

// more says what would be enough in place of a limit: a budget, unless that would be more than is available.
func (s *Streaming) more(limit, least int64) string {
	mib := least>>20 + 1
	if s.Budget > limit || s.Budget == 0 && mib<<20 > limit+limit/15-slackBytes {
		return fmt.Sprintf("%d MiB of memory, more than is free or the control group allows", (least+slackBytes)>>20+1)
	}
	return fmt.Sprintf("--memory-budget %dMiB", mib)
}

// BesideStreamed reports whether a side file can be open beside a target whose weights are streamed. Errors: those of engine.SideOf.
func BesideStreamed(path string) (bool, error) {
	side, err := engine.SideOf(path)
	return side.Kind == engine.SideAssistant, err
}

// fit is Fit for the first model of a room. The room then has its footprint there.
func (s *Streaming) fit(r *Room, limit, others int64) (kernels.Device, error) {
	t := &r.Models[0]
	o := r.Options
	o.MaxRows = passRows
	d, fits, err := s.Fit(t.path, o, t.Footprint, limit, others+r.Beside)
	for i := 0; err == nil && d != o.Device && i < len(t.sides); i++ {
		var ok bool
		if ok, err = BesideStreamed(t.sides[i]); err == nil && !ok {
			return nil, tandem.Errorf("", tandem.Unsupported, "%s needs %s, more than %s, and heads (%s) cannot borrow weights that are "+
				"streamed: want none but an assistant, or a larger --memory-budget", ModelName(t.path), t.Footprint, engine.Bytes(limit),
				t.sides[i])
		}
	}
	t.Footprint = fits
	return d, err
}

// Divide returns what of the memory is for the process with the room's first model, with the others and a gateway beside it, and whether
// that model is streamed; the room then has the model's footprint there. 0: all fits, and no budget is named. Errors: those of Fit.
func (s *Streaming) Divide(r *Room, available engine.Available) (budget int64, streamed bool, err error) {
	if s.Budget == 0 && r.fits(available, r.Sizes) {
		return 0, false, nil
	}
	limit, others := s.Limit(available), int64(0)
	if !available.Each || s.Budget > 0 {
		others = gatewayBytes
		for i, t := range r.Models[1:] {
			if others += t.Model(); i == 0 {
				others += drafterBytes
			}
		}
	}
	d, err := s.fit(r, limit, others)
	return limit - others, d != r.Options.Device, err
}
