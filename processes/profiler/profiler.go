// Package profiler measures what a profile holds: what passes of a target and its drafts cost on devices of this machine, how often drafts
// are right on calibration texts, and so where both are best computed. See package profile for the file.
package profiler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/spec/shape"
	"github.com/tandem-llm/tandem/text/token"
)

// Config says what to measure.
type Config struct {
	Target  string        // path
	Drafts  []string      // paths; the name of lookup among them is left out: it has no passes
	Heads   []string      // paths of the target's side files
	Devices []device.Spec // devices to measure, as Devices returns them
	Threads int           // threads for all cores; 0: one per core
	ISA     string        // instruction set, as device.Opener takes it
	KVType  string
	Lock    bool // the models in memory

	Texts           []Text  // to calibrate with; see ReadTexts
	Tokens          int     // tokens that the target adds to each text
	Temperature     float64 // the target's temperature on the texts
	Widths, Context []int   // passes to measure: rows, and tokens in the KV cache before them
	Rounds          int     // passes of each kind; the lower quartile counts

	Old     *profile.Plan // is amended; nil: begin with nothing
	Version string        // tandem's
	// Open opens a model, which may be a draft that reads the states of target.
	Open func(path, target string, o engine.Options) (*engine.Model, error)
	Tell func(line string) // hears what is being done
}

const (
	profileDepth  = 16 // drafted tokens of the chains that are judged
	profilePieces = 4  // pieces of a text: each begins with text of its own, and the target goes on
	profilePrompt = 48 // tokens that a piece begins with
	profileRanks  = 10 // candidates in a level of a guess, as many as a verifier sends
	profileNodes  = 16 // nodes of the trees whose rounds say how right a way is

	mostSpread = 0.5 // largest spread of the times of equal passes on a quiet machine
)

// Validate returns Invalid for values that cannot be measured, in the words of the command line, and puts Widths and Context in order.
func (c *Config) Validate() error {
	switch {
	case c.Tokens < 64 || c.Tokens > 4096:
		return tandem.Errorf("", tandem.Invalid, "--tokens is %d: want 64 to 4096", c.Tokens)
	case !(c.Temperature >= 0 && c.Temperature <= 100):
		return tandem.Errorf("", tandem.Invalid, "--temperature is %v: want 0 to 100", c.Temperature)
	case c.Rounds < 1 || c.Rounds > 1000:
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d: want 1 to 1000", c.Rounds)
	case len(c.Widths) == 0 || slices.Min(c.Widths) < 1 || slices.Max(c.Widths) > tandem.DefaultLimits.Nodes:
		return tandem.Errorf("", tandem.Invalid, "--width %v: want numbers from 1 to %d", c.Widths, tandem.DefaultLimits.Nodes)
	case len(c.Context) == 0 || slices.Min(c.Context) < 1:
		return tandem.Errorf("", tandem.Invalid, "--context %v: want numbers from 1 on", c.Context)
	}
	for _, list := range []*[]int{&c.Widths, &c.Context} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return nil
}

// Run measures. Errors: those of the models and devices, and ctx's.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	old := c.Old
	if old == nil {
		old = &profile.Plan{Format: profile.Format}
	}
	r := &Result{Plan: old.Begin(profile.ThisBox(), c.Version)}
	r.Plan.Machine.Measured = time.Now().UTC().Truncate(time.Second)
	p := &profiler{Config: &c, Result: r, ctx: ctx}
	if err := p.target(); err != nil {
		return nil, err
	}
	for _, d := range c.Drafts {
		if d == lookup.Name {
			continue // it has no passes, and is right where a text repeats itself: the planner learns that from hindsight
		}
		if err := p.draft(d); err != nil {
			return nil, err
		}
	}
	return r, p.decide()
}

// Result is what a run has measured.
type Result struct {
	Plan    *profile.Plan    // with what was in the old one and still holds
	Lineage string           // the target's
	latest  []profile.Table  // tables that this run measured
	pairs   []profile.Paired // pairs that this run measured
}

// profiler is a profile while it is measured.
type profiler struct {
	*Config
	*Result
	ctx      context.Context
	identity tandem.Identity // the target's
	measured []targetAt
	drafts   []draftAt
	texts    []calibration
}

// tell says what is being done.
func (p *profiler) tell(format string, args ...any) { p.Tell(fmt.Sprintf(format, args...)) }

// calibration is how the target continues one text.
type calibration struct {
	profile.Text
	pieces [][]tandem.Token // each begins with profilePrompt tokens of the text, at most
	first  []int            // index of the first token of each piece that the target added

	samples map[string][][]shape.Sample // samples of each piece, by self-draft
}

// open opens a model on a device and measures its passes.
func (p *profiler) open(kind, path string, at device.Spec, contexts []int) (m *engine.Model, closed func(), err error) {
	piece, context := 1+profilePrompt+p.Tokens, 0
	if side, err := engine.SideOf(path); err != nil {
		return nil, nil, err
	} else if !side.Kind.IsDraft() {
		info, err := engine.Inspect(path)
		if err == nil && kind == "target" {
			err = engine.CheckTarget(path, info.Config)
		}
		if err != nil {
			return nil, nil, err
		}
		if most := max(slices.Max(contexts)+slices.Max(p.Widths), piece); most > info.Config.Context {
			return nil, nil, tandem.Errorf("", tandem.Invalid, "--context %v --tokens %d: %s has a context of %d, and %d are needed",
				contexts, p.Tokens, roles.ModelName(path), info.Config.Context, most)
		}
		context = info.Config.Context
	}
	nodes := 0
	if kind == "target" {
		if nodes, err = p.promptRows(); err != nil {
			return nil, nil, err
		}
	}
	grid, rows := measure.GridPoints(p.Widths, contexts), max(64, slices.Max(p.Widths))
	shared := p.dividedPoints(at, contexts, context)
	if shared != nil {
		rows = max(rows, profilePiece)
	}
	m, closed, err = p.load(at, path, engine.Options{KVType: p.KVType, Lock: p.Lock, MaxRows: rows,
		KVPages: max(measure.Pages(grid), measure.Pages(shared), engine.PagesFor(1, piece, nodes))})
	if err != nil {
		return nil, nil, err
	}
	if kind == "target" {
		for _, h := range p.Heads {
			if err := m.OpenSide(h); err != nil {
				closed()
				return nil, nil, err
			}
		}
	}
	p.tell("measuring passes of %s on %v …", roles.ModelName(path), at)
	if err = p.divide(m, kind, shared); err == nil {
		if err = p.passes(m, kind, grid); err == nil && kind == "target" {
			err = p.fewer(m, at, func() error { return p.passes(m, kind, grid) })
		}
	}
	if err != nil {
		closed()
		return nil, nil, err
	}
	return m, closed, nil
}

// fewer has f measure on as many threads as a verifier that leaves some to a drafter on the same machine has, which decides by these
// figures whether it does; unless the threads were given.
func (p *profiler) fewer(m *engine.Model, at device.Spec, f func() error) error {
	all := m.About().Threads
	forDrafter, _ := group.Split(all, 1, 0, 0)
	if enough := all - forDrafter; p.Threads == 0 && at.Shared() && enough > 0 {
		return errors.Join(m.Passes().SetThreads(enough), f(), m.Passes().SetThreads(all))
	}
	return nil
}

// passes measures a model's passes.
func (p *profiler) passes(m *engine.Model, kind string, grid []measure.Point) error {
	costs, spread, err := measure.Grid(p.ctx, m, grid, p.Rounds, nil)
	if err != nil {
		return err
	}
	if spread > mostSpread {
		p.tell("equal passes differ by %.0f %%: something else uses this machine; measure again when it is quiet",
			100*spread)
	}
	p.Plan.Time(profile.Subject{What: whatOf(kind, m), Points: profile.Points(costs)})
	return nil
}

// target measures the target on each device, and has it continue the texts on the first.
func (p *profiler) target() error {
	return p.each("target", p.Config.Target, p.Devices, func(m *engine.Model, at device.Spec, first bool) (err error) {
		t := targetAt{at: at, costs: p.costs("target", m)}
		if first {
			p.Lineage, p.identity = m.Names().Lineage, m.Names().Identity
			if err := p.calibrate(m); err != nil {
				return err
			}
		}
		t.guesses, err = p.selfDrafts(m, at, first)
		p.measured = append(p.measured, t)
		return err
	})
}

// calibrate has the target continue the texts.
func (p *profiler) calibrate(m *engine.Model) error {
	for _, t := range p.Texts {
		p.tell("the target continues text %s …", t.Name)
		c := calibration{Text: profile.Text{Name: t.Name}}
		prompts := pieces(m.Vocab().Encode(t.Text, false))
		for i, prompt := range prompts {
			prompt = append(m.Vocab().Encode("", true), prompt...)
			s := tandem.Sampling{Temperature: p.Temperature, TopP: 1, Seed: uint64(i)}
			text, err := p.extend(m, &c, prompt, p.Tokens/len(prompts), s)
			if err != nil {
				return err
			}
			c.pieces, c.first = append(c.pieces, text), append(c.first, len(prompt)-1)
			c.Tokens += len(text) - len(prompt)
		}
		c.Digest = profile.Digest(c.pieces...)
		p.texts = append(p.texts, c)
	}
	return nil
}

// extend has the target continue a text, and keeps how right its own guesses are.
func (p *profiler) extend(m *engine.Model, c *calibration, prompt []tandem.Token, n int, s tandem.Sampling) ([]tandem.Token, error) {
	own := m.SelfDrafts()
	if len(own) == 0 {
		return measure.Continue(p.ctx, m, prompt, n, s)
	}
	told, err := measure.Tell(p.ctx, m, prompt, n, s, profileRanks)
	if err != nil {
		return nil, err
	}
	if c.samples == nil {
		c.samples = map[string][][]shape.Sample{}
	}
	for _, w := range own {
		var list []shape.Sample
		for i, g := range told.Guesses[w.Name] {
			if next := told.Text[told.Prompt+i:]; len(next) > 0 {
				list = append(list, shape.Look(g, next))
			}
		}
		c.samples[w.Name] = append(c.samples[w.Name], list)
	}
	return told.Text, nil
}

// promptRows returns the most rows that prompt tokens of --heads take behind a token.
func (p *profiler) promptRows() (rows int, err error) {
	for _, h := range p.Heads {
		side, err := engine.SideOf(h)
		if err != nil {
			return 0, err
		}
		rows = max(rows, side.Levels*side.Members)
	}
	return rows, nil
}

// draft measures a draft on each single processor, and how often it is right on what the target added.
// A draft that reads the target's states is only timed: what its chains bring follows from states that rounds alone have.
func (p *profiler) draft(path string) error {
	side, err := engine.SideOf(path)
	if err != nil {
		return err
	}
	if !side.Kind.IsDraft() {
		ours, err := token.Open(p.Config.Target)
		if err != nil {
			return err
		}
		vocab, err := token.Open(path)
		if err != nil {
			return err
		}
		if _, err := token.Compare(ours.Listing(), vocab.Listing()); err != nil {
			return tandem.Errorf("", tandem.Invalid, "draft model %s does not speak the vocabulary of target %s: %w", path,
				p.Config.Target, err)
		}
	}
	return p.each("draft", path, single(p.Devices), func(m *engine.Model, at device.Spec, first bool) error {
		if first && !side.Kind.IsDraft() {
			if err := p.ranks(m, path); err != nil {
				return err
			}
		}
		if err := p.draftAt(m, path, at); err != nil || !first {
			return err
		}
		return p.pair(m, path, at)
	})
}

// ranks finds out how often a draft is right.
func (p *profiler) ranks(m *engine.Model, path string) error {
	for _, text := range p.texts {
		var ranks [][]int8
		for i, piece := range text.pieces {
			r, err := measure.Ranks(p.ctx, m, piece, text.first[i], tandem.MostCandidates)
			if err != nil {
				return err
			}
			ranks = append(ranks, r)
		}
		t := profile.Table{Target: p.Lineage, Name: roles.ModelName(path), Lineage: m.Names().Lineage, Temperature: p.Temperature,
			Text: text.Text}
		if t.Depths, t.Lengths = profile.Chains(ranks, profileDepth); len(t.Depths) > 0 {
			p.Plan.Put(t)
			p.latest = append(p.latest, t)
		}
	}
	return nil
}

// pieces returns the beginnings of up to profilePieces pieces, evenly spread over a text.
func pieces(text []tandem.Token) (out [][]tandem.Token) {
	n := min(max(len(text)/profilePrompt, 1), profilePieces)
	for i := range n {
		from := i * len(text) / n
		out = append(out, text[from:min(from+profilePrompt, len(text), (i+1)*len(text)/n)])
	}
	return out
}
