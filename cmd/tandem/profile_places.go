package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/settings"
)

const (
	profilePiece = 256       // rows of a piece of a prompt
	burdenBytes  = 128 << 20 // that a probe of the target's processor reads in turn
)

// profileShares are the widths of passes for which shares are measured, besides the narrowest and the widest.
var profileShares = []int{1, 8, 16, 64}

// targetAt is the target as it was measured at a place.
type targetAt struct {
	at      place
	costs   []tandem.Cost            // behind the shortest context
	guesses map[string]time.Duration // of its own ways
}

// draftAt is a draft as it was measured at a place.
type draftAt struct {
	name    string
	at      place
	pass    time.Duration      // of one row
	burdens map[string]float64 // what drafting ahead takes from processors that have nothing in common with it, by place
}

// places returns where to measure: the places of --device, of a pair first each part alone.
func (c *profileCmd) places() (all []place, err error) {
	var names []string
	for _, s := range c.Device {
		p, err := parsePlace("device", s)
		if err != nil {
			return nil, err
		}
		if p.auto && len(c.Device) > 1 {
			return nil, tandem.Errorf("", tandem.Invalid, "--device auto beside others: want the processors named that are to be compared")
		}
		list := []place{p}
		if p.right != nil {
			list = append(p.processors(), p)
		}
		for _, x := range list {
			if !slices.Contains(names, x.String()) {
				all, names = append(all, x), append(names, x.String())
			}
		}
	}
	if len(all) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "--device is given without a place: want %s", placeHelp)
	}
	if c.GPUMemory > 0 {
		if !slices.Contains(names, "cpu") {
			return nil, c.GPULayers.Check(c.Device[0])
		}
		all = append(all, place{layers: int64(c.GPUMemory)})
	}
	return all, nil
}

// single returns the places that are one processor.
func single(places []place) []place {
	return slices.DeleteFunc(slices.Clone(places), func(p place) bool { return len(p.processors()) > 1 })
}

// on returns the flags that compute at a place.
func (c *profileCmd) on(at place) computeFlags {
	f := computeFlags{Processor: settings.Processor{ISA: c.ISA, Device: at.String()}}
	if at.layers > 0 {
		f.Device, f.GPUMemory = "cpu", settings.GPUShare(at.layers)
	}
	if !at.grouped() {
		f.Threads = c.Threads
	}
	return f
}

// each measures a model's passes at places, one after the other, and calls f with the model there; first is set in the first call. Of
// several places those are left out, with a note, where the model does not fit into memory.
func (p *profiler) each(kind, path string, places []place, f func(m *engine.Model, at place, first bool) error) error {
	contexts, first := p.Context, true
	if kind == "draft" {
		contexts = contexts[:1]
	}
	for i, at := range places {
		m, closed, err := p.open(kind, path, at, contexts)
		full := errors.As(err, new(*cuda.OutOfMemory)) || tandem.KindOf(err) == tandem.Exhausted
		if full && !(first && i == len(places)-1) {
			fmt.Fprintf(p.app.stderr, "%s is left out on %v: %s\n", shown(roles.ModelName(path)), at, oneLine(err.Error()))
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
	all, err := p.plan.Costs(p.plan.Machine.Box, p.plan.Machine.Version, whatOf(kind, m))
	if err != nil {
		return nil // nothing was measured there
	}
	return profile.Nearest(all)
}

func whatOf(kind string, m *engine.Model) profile.What {
	return profile.What{Kind: kind, Identity: m.Names().Identity, Threads: m.Threads(), Device: m.ISA()}
}

// dividedPoints returns the passes for which shares are measured, by rows and then by context; nil for a place that is no pair. most is the
// model's context.
func (p *profiler) dividedPoints(at place, contexts []int, most int) (points []measure.Point) {
	if at.right == nil {
		return nil
	}
	widest := p.Width[len(p.Width)-1]
	for _, w := range p.Width {
		if w == p.Width[0] || w == widest || slices.Contains(profileShares, w) {
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
	fmt.Fprintf(p.app.stderr, "dividing them …\n")
	all, err := measure.Shares(p.app.ctx, m, points, nil)
	if err != nil {
		return err
	}
	d := profile.Divided{What: whatOf(kind, m)}
	for _, s := range all {
		d.Points = append(d.Points, profile.DividedPoint{Division: s.Division, NS: int64(s.Time), LeftNS: int64(s.Left),
			RightNS: int64(s.Right)})
	}
	p.plan.Divide(d)
	return nil
}

// draftAt keeps what a draft costs at a place, and what it costs the others.
func (p *profiler) draftAt(m *engine.Model, path string, at place) error {
	d := draftAt{name: roles.ModelName(path), at: at, burdens: map[string]float64{}}
	d.pass, _ = profile.PassTime(p.costs("draft", m), 1)
	for _, t := range p.measured {
		if t.at.overlaps(at) {
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
func (p *profiler) burden(m *engine.Model, at place) (float64, error) {
	left := at.processors()[0]
	host, err := p.on(left).open(left, p.Threads)
	if err != nil {
		return 0, err
	}
	defer host.Close()
	probe, err := host.NewProbe(burdenBytes)
	if err != nil {
		return 0, err
	}
	defer probe.Close()
	return measure.Burden(p.app.ctx, m, probe)
}

// decide judges all placements of the target and its drafts, if there are several.
func (p *profiler) decide() error {
	if len(p.places) < 2 {
		return nil
	}
	file, err := fileOf(p.targetPath, p.KVType)
	if err != nil {
		return err
	}
	p.plan.Decide(profile.Decision{File: file, Identity: p.identity, Placements: profile.Judge(p.options())})
	return nil
}

// fileOf returns how decisions name a target.
func fileOf(path, kv string) (profile.File, error) {
	info, err := engine.Inspect(path)
	if err != nil {
		return profile.File{}, err
	}
	return profile.File{Name: roles.ModelName(path), Bytes: info.FileBytes, KV: kv}, nil
}

// options returns all ways of drafting that were measured in this run, for each text and placement.
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

// explain prints the decision that the plan has for a target.
func (c *profileCmd) explain(a *app) error {
	path, err := targetPath(c.Target)
	if err != nil {
		return err
	}
	file, err := fileOf(path, c.KVType)
	if err != nil {
		return err
	}
	folder, err := c.cacheFlags.open()
	if err != nil {
		return err
	}
	plan, err := profile.Read(filepath.Join(folder.Folder(), profile.Name))
	if errors.Is(err, fs.ErrNotExist) {
		return tandem.Errorf("", tandem.Unavailable, "%w: measure with `tandem profile --device A --device B`", err)
	}
	if err != nil {
		return err
	}
	d, err := plan.Decision(profile.ThisBox(), buildVersion().Version, file)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(a.stdout, d)
	}
	return printDecision(printable{a.stdout}, d)
}

// printDecision shows where a target and its drafts are best computed, and why.
func printDecision(to io.Writer, d *profile.Decision) error {
	best := d.Placements[0]
	fmt.Fprintf(to, "%s with keys and values of type %s: best with --device %s", d.Name, d.KV, best.Device)
	if drafts := d.Drafts(best.Device); drafts != nil {
		fmt.Fprintf(to, " --draft-device %s", drafts.DraftDevice)
	}
	fmt.Fprintf(to, ", %.1f tokens/s expected\n\n", best.TokensPerSecond)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "target on\tdrafts on\ttokens/s\ton text\tdrafter\tnodes\ttokens a round\tverify ms\tdraft ms\thidden ms\thits\tburden")
	for _, p := range d.Placements {
		for i, r := range p.Rounds {
			if i == 0 {
				fmt.Fprintf(w, "%s\t%s\t%.1f\t", p.Device, or(p.DraftDevice, "-"), p.TokensPerSecond)
			} else {
				fmt.Fprint(w, "\t\t\t")
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", r.Text, or(r.Drafter, "none"), r.Nodes, r.Tokens,
				float64(r.VerifyNS)/1e6, float64(r.DraftNS)/1e6, float64(r.HiddenNS)/1e6, r.Hits, r.Burden)
		}
	}
	fmt.Fprint(w, "\ntokens/s = tokens a round / (verify + draft - hidden)\n"+
		"hidden = (hits - burden) x the shorter of verify and draft, where target and drafts have nothing in common\n"+
		"hits is a lower bound: the whole chain and the token behind it are right\n")
	return w.Flush()
}
