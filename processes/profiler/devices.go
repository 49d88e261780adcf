package profiler

import (
	"errors"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	profilePiece = 256       // rows of a piece of a prompt
	burdenBytes  = 128 << 20 // bytes that a probe of the target's processor reads in turn
)

// profileShares are the widths of passes for which shares are measured, besides the narrowest and the widest.
var profileShares = []int{1, 8, 16, 64}

// targetAt is the target as it was measured on a device.
type targetAt struct {
	at      device.Spec
	costs   []tandem.Cost            // behind the shortest context
	guesses map[string]time.Duration // time of a guess, by self-draft
}

// draftAt is a draft as it was measured on a device.
type draftAt struct {
	name    string
	at      device.Spec
	pass    time.Duration      // time of a pass of one row
	burdens map[string]float64 // what drafting ahead takes from processors that have nothing in common with it, by device
}

// Devices returns the devices to measure for values of --device: for a pair each part alone, then the pair; last, unless layers is 0, the
// processor with so many bytes of the first GPU for layers. Errors: Invalid.
func Devices(flags []string, layers int64) (all []device.Spec, err error) {
	var names []string
	for _, s := range flags {
		p, err := device.Parse("device", s)
		if err != nil {
			return nil, err
		}
		if p.Auto && len(flags) > 1 {
			return nil, tandem.Errorf("", tandem.Invalid, "--device auto beside others: want the processors named that are to be compared")
		}
		list := []device.Spec{p}
		if p.Right != nil {
			list = append(p.Processors(), p)
		}
		for _, x := range list {
			if !slices.Contains(names, x.String()) {
				all, names = append(all, x), append(names, x.String())
			}
		}
	}
	if len(all) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "--device is given without a processor: want %s", device.Help)
	}
	if layers > 0 {
		if !slices.Contains(names, "cpu") {
			return nil, tandem.Errorf("", tandem.Invalid, "--gpu-memory %s with --device %s: it is for layers of a model that computes on "+
				"the processor, want --device cpu", memory.Bytes(layers), flags[0])
		}
		all = append(all, device.Spec{Layers: layers})
	}
	return all, nil
}

// single returns the devices that are one processor.
func single(places []device.Spec) []device.Spec {
	return slices.DeleteFunc(slices.Clone(places), func(p device.Spec) bool { return len(p.Processors()) > 1 })
}

// load opens a device and, with it, a model.
func (p *profiler) load(at device.Spec, path string, o engine.Options) (m *engine.Model, closed func(), err error) {
	d, err := p.device(at)
	if err != nil {
		return nil, nil, err
	}
	o.Device = d
	if m, err = p.Open(path, p.Config.Target, o); err != nil {
		d.Close()
		return nil, nil, err
	}
	return m, func() {
		m.Close()
		d.Close()
	}, nil
}

// device opens a device.
func (p *profiler) device(at device.Spec) (roles.Device, error) {
	threads := p.Threads
	if at.Grouped() {
		threads = 0
	}
	return device.Opener{ISA: p.ISA}.Open(at, threads)
}

// each measures a model's passes on devices, one after the other, and calls f with the model there; first is set in the first call. Of
// several devices those are left out, with a note, where the model does not fit into memory.
func (p *profiler) each(kind, path string, places []device.Spec, f func(m *engine.Model, at device.Spec, first bool) error) error {
	contexts, first := p.Context, true
	if kind == "draft" {
		contexts = contexts[:1]
	}
	for i, at := range places {
		m, closed, err := p.open(kind, path, at, contexts)
		full := errors.As(err, new(*cuda.OutOfMemory)) || tandem.KindOf(err) == tandem.Exhausted
		if full && !(first && i == len(places)-1) {
			p.tell("%s is left out on %v: %v", roles.ModelName(path), at, err)
			continue
		}
		if err != nil {
			return err
		}
		err = f(m, at, first)
		closed()
		if err != nil {
			return err
		}
		first = false
	}
	return nil
}

// costs returns the measured times of a model's passes, behind the shortest context.
func (p *profiler) costs(kind string, m *engine.Model) []tandem.Cost {
	all, err := p.Plan.Costs(p.Plan.Machine.Box, p.Plan.Machine.Version, whatOf(kind, m))
	if err != nil {
		return nil // nothing was measured there
	}
	return profile.Nearest(all)
}

func whatOf(kind string, m *engine.Model) profile.What {
	return profile.What{Kind: kind, Identity: m.Names().Identity, Threads: m.About().Threads, Device: m.About().Kernels}
}

// dividedPoints returns the passes for which shares are measured, by rows and then by context; nil for a device that is no pair. most is
// the model's context.
func (p *profiler) dividedPoints(at device.Spec, contexts []int, most int) (points []measure.Point) {
	if at.Right == nil {
		return nil
	}
	widest := p.Widths[len(p.Widths)-1]
	for _, w := range p.Widths {
		if w == p.Widths[0] || w == widest || slices.Contains(profileShares, w) {
			points = append(points, measure.GridPoints([]int{w}, contexts)...)
		}
	}
	if rows := min(profilePiece, most); rows > widest {
		points = append(points, measure.Point{Rows: rows, Prefill: true})
	}
	return points
}

// divide finds how passes of a model on two processors are best divided, and divides those that are measured from then on so.
func (p *profiler) divide(m *engine.Model, kind string, points []measure.Point) error {
	if len(points) == 0 {
		return nil
	}
	p.tell("dividing them …")
	all, err := measure.Shares(p.ctx, m, points, nil)
	if err != nil {
		return err
	}
	meeting, err := m.Passes().MeetingTime()
	if err != nil {
		return err
	}
	d := profile.Divided{What: whatOf(kind, m), MeetingNS: int64(meeting)}
	for _, s := range all {
		d.Points = append(d.Points, profile.DividedPoint{Division: s.Division, NS: int64(s.Time), LeftNS: int64(s.Left),
			RightNS: int64(s.Right)})
	}
	p.Plan.Divide(d)
	return nil
}

// draftAt keeps what a draft costs on a device, and what it costs the others.
func (p *profiler) draftAt(m *engine.Model, path string, at device.Spec) error {
	d := draftAt{name: roles.ModelName(path), at: at, burdens: map[string]float64{}}
	if costs := worth.NewCosts(p.costs("draft", m)); costs.Known() {
		d.pass = costs.Time(1)
	}
	for _, t := range p.measured {
		if t.at.Overlaps(at) {
			continue
		}
		share, err := p.burden(m, t.at)
		if err != nil {
			return err
		}
		d.burdens[t.at.String()] = share
	}
	p.drafts = append(p.drafts, d)
	return nil
}

// burden returns what passes of a draft take from the processor that a target is on: of a pair, from its left part.
func (p *profiler) burden(m *engine.Model, at device.Spec) (float64, error) {
	left := at.Processors()[0]
	host, err := p.device(left)
	if err != nil {
		return 0, err
	}
	defer host.Close()
	probe, err := host.NewProbe(burdenBytes)
	if err != nil {
		return 0, err
	}
	defer probe.Close()
	return measure.Burden(p.ctx, m, probe)
}

// decide judges all placements of the target and its drafts, if there are several.
func (p *profiler) decide() error {
	if len(p.Devices) < 2 {
		return nil
	}
	file, err := placement.FileOf(p.Config.Target, p.KVType)
	if err != nil {
		return err
	}
	p.Plan.Decide(profile.Decision{File: file, Identity: p.identity, Placements: profile.Judge(p.options())})
	return nil
}

// options returns all drafters that were measured in this run, for each text and placement.
func (p *profiler) options() (all []profile.Option) {
	for _, t := range p.measured {
		for _, text := range p.texts {
			plain := profile.Option{Device: t.at.String(), Text: text.Name, Verify: t.costs}
			all = append(all, plain)
			for _, d := range p.drafts { // who says too little of a text to be judged may do without drafts there
				if slices.ContainsFunc(p.latest, func(t profile.Table) bool { return t.Name == d.name }) {
					without := plain
					without.DraftDevice = d.at.String()
					all = append(all, without)
				}
			}
			for _, table := range p.latest {
				if table.Text.Name != text.Name {
					continue
				}
				with := plain
				with.Drafter, with.Lengths, with.Depths = table.Name, table.Lengths, table.Depths
				if took, own := t.guesses[table.Name]; own {
					with.Draft = took
					all = append(all, with)
				}
				for _, d := range p.drafts {
					if d.name == table.Name {
						burden, apart := d.burdens[plain.Device]
						with.DraftDevice, with.Draft, with.Apart, with.Burden = d.at.String(), d.pass, apart, burden
						all = append(all, with)
					}
				}
			}
		}
	}
	return all
}
