package placement

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	// surveyTime is how long all passes of a survey may take together.
	surveyTime = 60 * time.Second
	// surveyStep is for how long the passes of one model on one place are measured, or eight of one row.
	surveyStep = time.Second
	// surveyRows is the widest pass, and surveyTokens the positions behind which passes run: what measure.Costs and measure.Draft need.
	surveyRows, surveyTokens = 64, 256
	surveyProbe              = 64 << 20 // bytes that the probe of the cores reads in turn
)

// Surveyed is a model of a survey.
type Surveyed struct {
	File   string
	At     device.Spec          // where it computes now
	Places []device.Spec        // where it could
	Costs  func() []tandem.Cost // of its passes where it is, as its own process measures them; nil: not known yet
}

// Survey measures what passes of a target and a draft take on other places than their own, in moments in which there is nothing to do, and
// finds where both are fastest.
type Survey struct {
	Target, Draft Surveyed // without a file: there is no draft. It stands for all drafts
	KVType        string
	Kept          profile.Kept

	Needs func(at device.Spec, path string) map[string]int64 // as in Timed
	Free  map[string]int64                                   // as in Measured
	Right []float64                                          // as in Measured
	Open  func(at device.Spec, path string, o engine.Options) (m *engine.Model, closed func(), err error)
	Host  func() (cores kernels.Device, closed func(), err error) // all of them
	Idle  func() bool                                             // whether there is nothing to do
	Pause time.Duration                                           // until it asks again
	Tell  func(format string, args ...any)                        // hears what is left out, and why

	spent time.Duration // by passes
}

// errBusy ends a measurement because there is something to do: it begins anew later.
var errBusy = errors.New("there is something to do")

// errSpent ends a survey whose time is up.
var errSpent = fmt.Errorf("the %v of a survey are over", surveyTime)

// Run measures, and returns where both are fastest, the best first, beside where they are now. Places that cannot be used are left out.
// Errors: ctx's, and those of a survey that has nothing to compare with.
func (s *Survey) Run(ctx context.Context) (now profile.Placement, all []profile.Placement, err error) {
	m := Measured{Right: s.Right, Free: s.Free}
	if len(m.Right) == 0 {
		m.Right = []float64{worth.AssumedRight}
	}
	if m.Targets, err = s.each(ctx, s.Target, false); err == nil && s.Draft.File != "" {
		m.Drafts, err = s.each(ctx, s.Draft, true)
	}
	if err != nil {
		return now, nil, err
	}
	all = Best(m)
	for _, p := range all {
		if m.now(p) {
			return p, all, nil
		}
	}
	return now, nil, tandem.Errorf("survey", tandem.Unavailable, "nothing was measured on the cores")
}

// each measures a model on each place, and adds, before them, what it takes where it is. Drafts are not divided.
func (s *Survey) each(ctx context.Context, x Surveyed, draft bool) (all []Timed, err error) {
	here, name := Timed{At: x.At, Needs: s.Needs(x.At, x.File), Burden: map[string]float64{}}, roles.ModelName(x.File)
	for _, at := range x.Places {
		if draft && len(at.Processors()) > 1 {
			continue
		}
		switch t, err := s.place(ctx, x.File, at, draft); {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			s.Tell("%s is not placed on %v: %v", name, at, err)
		default:
			all = append(all, t)
			here.Burden[at.String()] = t.Burden[x.At.String()] // of a draft on the cores for a target there: as much as this way round
		}
	}
	for {
		if here.Costs = profile.Nearest(x.Costs()); here.Costs != nil {
			return append([]Timed{here}, all...), nil
		}
		if err := s.pause(ctx); err != nil {
			return nil, fmt.Errorf("%w, and what passes of %s take on %v is not known", err, name, x.At)
		}
	}
}

// pause waits for a while.
func (s *Survey) pause(ctx context.Context) error {
	timer := time.NewTimer(s.Pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// place measures a model on one place. Errors: the device's, the model's, errSpent.
func (s *Survey) place(ctx context.Context, path string, at device.Spec, draft bool) (t Timed, err error) {
	if s.spent >= surveyTime {
		return t, errSpent
	}
	for !s.Idle() {
		if err := s.pause(ctx); err != nil {
			return t, err
		}
	}
	m, closed, err := s.Open(at, path, engine.Options{KVType: s.KVType, MaxRows: surveyRows,
		KVPages: engine.PagesFor(1, surveyTokens, surveyRows)})
	if err != nil {
		return t, err
	}
	defer closed()
	t = Timed{At: at, Needs: s.Needs(at, path), Burden: map[string]float64{}}
	what := profile.What{Kind: "target", Identity: m.Names().Identity, Threads: m.About().Threads, Device: m.About().Kernels}
	if draft {
		what.Kind = "draft"
	}
	err = s.measure(ctx, func(ctx context.Context, turn *profile.Turn, alive func()) (err error) {
		if t.Costs, err = s.costs(ctx, m, draft, alive); err != nil {
			return err
		}
		return turn.Keep(what, t.Costs) // for the process that computes there
	})
	if err == nil && draft && at.OnGPU() {
		err = s.measure(ctx, func(ctx context.Context, _ *profile.Turn, _ func()) error {
			share, err := s.burden(ctx, m)
			t.Burden[device.Spec{}.String()] = share
			return err
		})
	}
	return t, err
}

// costs returns what passes of a model cost. It divides them as a verifier does that has no plan.
func (s *Survey) costs(ctx context.Context, m *engine.Model, draft bool, alive func()) ([]tandem.Cost, error) {
	if draft {
		return measure.Draft(ctx, m, alive)
	}
	if left, _ := m.Passes().Sides(); left != nil {
		shares, err := measure.GuessShares(m)
		if err == nil {
			err = m.Passes().Divide(shares)
		}
		if err != nil {
			return nil, err
		}
	}
	return measure.Costs(ctx, m, surveyStep, alive)
}

// burden returns what a draft takes from the cores.
func (s *Survey) burden(ctx context.Context, m *engine.Model) (float64, error) {
	host, closed, err := s.Host()
	if err != nil {
		return 0, err
	}
	defer closed()
	probe, err := host.NewProbe(surveyProbe)
	if err != nil {
		return 0, err
	}
	defer probe.Close()
	return measure.Burden(ctx, m, probe)
}

// measure calls do once there is nothing to do and no other process of this box measures, and again if something comes between: do calls
// alive before each pass, and fails with its ctx.
func (s *Survey) measure(ctx context.Context, do func(ctx context.Context, turn *profile.Turn, alive func()) error) error {
	for {
		turn, ok, err := s.Kept.Turn()
		if err != nil {
			return err
		}
		if ok && s.Idle() {
			err = s.once(ctx, turn, do)
			turn.End()
			if !errors.Is(err, errBusy) {
				return err
			}
		} else if ok {
			turn.End()
		}
		if err := s.pause(ctx); err != nil {
			return err
		}
	}
}

// once calls do, until there is something to do or the time of the survey is over.
func (s *Survey) once(ctx context.Context, turn *profile.Turn, do func(ctx context.Context, turn *profile.Turn, alive func()) error) error {
	begun := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := do(ctx, turn, func() {
		switch {
		case !s.Idle():
			cancel(errBusy)
		case s.spent+time.Since(begun) > surveyTime:
			cancel(errSpent)
		}
	})
	s.spent += time.Since(begun)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Needs returns what a model whose file has so many bytes needs on a GPU: an eighth more, for keys, values and buffers.
func Needs(file int64) int64 { return file + file/8 }

// Room returns how much of so many bytes of a GPU's memory models may have: a tenth is left for the driver and others.
func Room(bytes int64) int64 { return bytes / 10 * 9 }
