package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/group"
	"github.com/tandem-llm/tandem/settings"
	"github.com/tandem-llm/tandem/spec/shape"
	"github.com/tandem-llm/tandem/text/token"
)

type profileCmd struct {
	settings.Models
	settings.TargetHeads
	Device []string `help:"Where to measure, as elsewhere; may be repeated, and of a pair each part is measured too (cuda+cpu). With several the plan also says where the target and its drafts are best computed: see --explain." default:"cpu" placeholder:"DEVICE" sep:"none"`
	settings.GPULayers
	Threads int    `help:"Threads; 0 = all cores." default:"0"`
	ISA     string `name:"isa" help:"Instruction set: auto, generic, avx2, avx512, neon, neon-dot, neon-i8mm." default:"auto"`
	Lock    bool   `help:"Lock the model in memory (mlock)."`
	settings.KV
	cacheFlags
	Explain     bool     `help:"Measure nothing: print, from the plan, where the target and its drafts are best computed, with the figures that say so." setting:"-"`
	Text        []string `help:"A calibration text, such as documents of the kind that will be asked for; may be repeated (default: three small ones)." placeholder:"FILE" sep:"none" setting:"-"`
	Tokens      int      `help:"How many tokens the target says of each text, 64 to 4096." default:"384" setting:"-"`
	Temperature float64  `help:"Temperature of the target on the texts." default:"0" setting:"-"`
	Width       []int    `help:"Rows of the passes to measure." default:"1,2,4,8,16,32,64" placeholder:"N,…" setting:"-"`
	Context     []int    `help:"Tokens in the KV cache before the passes to measure." default:"128,512" placeholder:"N,…" setting:"-"`
	Rounds      int      `help:"Passes of each kind; the lower quartile counts." default:"8" setting:"-"`
	Out         string   `help:"Write only what does not depend on the machine, to ship beside a model (MODEL.plan.json)." placeholder:"FILE" setting:"-"`
	output
}

const (
	profileDepth  = 16 // drafted tokens of the chains that are judged
	profilePieces = 4  // of a text: each begins with text of its own, and the target goes on
	profilePrompt = 48 // tokens that a piece begins with
	profileRanks  = 10 // candidates in a level of a guess, as many as a verifier sends
	profileNodes  = 16 // of the trees whose rounds say how right a way is

	mostSpread = 0.5 // of the times of equal passes, on a quiet machine
)

// check refuses values that cannot be measured.
func (c *profileCmd) check() error {
	switch {
	case c.Tokens < 64 || c.Tokens > 4096:
		return tandem.Errorf("", tandem.Invalid, "--tokens is %d: want 64 to 4096", c.Tokens)
	case !(c.Temperature >= 0 && c.Temperature <= 100):
		return tandem.Errorf("", tandem.Invalid, "--temperature is %v: want 0 to 100", c.Temperature)
	case c.Rounds < 1 || c.Rounds > 1000:
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d: want 1 to 1000", c.Rounds)
	case len(c.Width) == 0 || slices.Min(c.Width) < 1 || slices.Max(c.Width) > tandem.DefaultLimits.Nodes:
		return tandem.Errorf("", tandem.Invalid, "--width %v: want numbers from 1 to %d", c.Width, tandem.DefaultLimits.Nodes)
	case len(c.Context) == 0 || slices.Min(c.Context) < 1:
		return tandem.Errorf("", tandem.Invalid, "--context %v: want numbers from 1 on", c.Context)
	}
	for _, list := range []*[]int{&c.Width, &c.Context} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	places, err := c.places()
	if err != nil {
		return err
	}
	for _, x := range places {
		if err := c.on(x).check(); err != nil {
			return err
		}
	}
	return nil
}

// Run measures, and writes the plan.
func (c *profileCmd) Run(a *app) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Explain {
		return c.explain(a)
	}
	target, drafts, err := modelPaths(c.Models, false, tandem.Request{Strategy: tandem.StrategyPlanner})
	if err != nil {
		return err
	}
	if c.Heads, err = headPaths(c.Heads); err != nil {
		return err
	}
	texts, err := c.read()
	if err != nil {
		return err
	}
	folder, err := c.cacheFlags.open()
	if err != nil {
		return err
	}
	file := filepath.Join(folder.Folder(), profile.Name)
	old, err := profile.Read(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = &profile.Plan{Format: profile.Format}
	case err != nil:
		fmt.Fprintf(a.stderr, "measuring everything anew: %s\n", oneLine(err.Error()))
		old = &profile.Plan{Format: profile.Format}
	}
	p := &profiler{profileCmd: c, app: a, given: texts, plan: old.Begin(profile.ThisBox(), buildVersion().Version)}
	p.plan.Machine.Measured = time.Now().UTC().Truncate(time.Second)
	p.targetPath = target
	if p.places, err = c.places(); err != nil {
		return err
	}
	if len(p.places) > 1 && os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // two of them work at the same time
	}
	if err := p.target(target); err != nil {
		return err
	}
	for _, d := range drafts {
		if d == drafter.LookupName {
			continue // it has no passes, and is right where a text repeats itself: the planner learns that from hindsight
		}
		if err := p.draft(d, target); err != nil {
			return err
		}
	}
	if err := p.decide(); err != nil {
		return err
	}
	out, written := p.plan, file
	if c.Out != "" {
		out, written = p.plan.Portable(p.lineage), c.Out
	}
	if err := out.Write(written); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(a.stdout, out)
	}
	return p.print(printable{a.stdout}, written)
}

// profiler is a profile while it is measured.
type profiler struct {
	*profileCmd
	app        *app
	plan       *profile.Plan
	targetPath string
	lineage    string          // of the target
	identity   tandem.Identity // likewise
	places     []place         // where to measure
	measured   []targetAt
	drafts     []draftAt
	given      []namedText
	texts      []calibration
	latest     []profile.Table // that this run measured
}

// calibration is what the target says of one text.
type calibration struct {
	profile.Text
	pieces [][]tandem.Token // each begins with profilePrompt tokens of the text, at most
	first  []int            // of each piece: the place of its first token that the target said

	samples map[string][][]shape.Sample // by way, of each piece
}

// open opens a model at a place and measures its passes.
func (p *profiler) open(kind, path string, at place, contexts []int) (m *engine.Model, closed func(), err error) {
	piece, context := 1+profilePrompt+p.Tokens, 0
	if side, err := engine.SideOf(path); err != nil {
		return nil, nil, err
	} else if !side.Draft() {
		info, err := engine.Inspect(path)
		if err != nil {
			return nil, nil, err
		}
		if most := max(slices.Max(contexts)+slices.Max(p.Width), piece); most > info.Config.Context {
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
	grid, rows := measure.GridPoints(p.Width, contexts), max(64, slices.Max(p.Width))
	shared := p.dividedPoints(at, contexts, context)
	if shared != nil {
		rows = max(rows, profilePiece)
	}
	m, closed, err = p.on(at).load(p.app, func(d kernels.Device) (*engine.Model, error) {
		return p.app.openDrafts(p.targetPath)(path, engine.Options{Device: d, KVType: p.KVType, Lock: p.Lock, MaxRows: rows,
			KVPages: max(measure.Pages(grid), measure.Pages(shared), engine.PagesFor(1, piece, nodes))})
	})
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
	fmt.Fprintf(p.app.stderr, "measuring passes of %s on %v …\n", shown(roles.ModelName(path)), at)
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
func (p *profiler) fewer(m *engine.Model, at place, f func() error) error {
	all := m.Threads()
	forDrafter, _ := group.Split(all, true, 0, 0)
	if enough := all - forDrafter; p.Threads == 0 && at.shared() && enough > 0 {
		return errors.Join(m.SetThreads(enough), f(), m.SetThreads(all))
	}
	return nil
}

// passes measures a model's passes.
func (p *profiler) passes(m *engine.Model, kind string, grid []measure.Point) error {
	costs, spread, err := measure.Grid(p.app.ctx, m, grid, p.Rounds, nil)
	if err != nil {
		return err
	}
	if spread > mostSpread {
		fmt.Fprintf(p.app.stderr, "equal passes differ by %.0f %%: something else uses this machine; measure again when it is quiet\n",
			100*spread)
	}
	p.plan.Time(profile.Subject{What: whatOf(kind, m), Points: profile.Points(costs)})
	return nil
}

// target measures the target at each place, and has it say the texts at the first.
func (p *profiler) target(path string) error {
	return p.each("target", path, p.places, func(m *engine.Model, at place, first bool) (err error) {
		t := targetAt{at: at, costs: p.costs("target", m)}
		if first {
			p.lineage, p.identity = m.Names().Lineage, m.Names().Identity
			if err := p.tell(m); err != nil {
				return err
			}
		}
		t.guesses, err = p.ways(m, at, first)
		p.measured = append(p.measured, t)
		return err
	})
}

// tell has the target say the texts.
func (p *profiler) tell(m *engine.Model) error {
	for _, t := range p.given {
		fmt.Fprintf(p.app.stderr, "the target says text %s …\n", shown(t.name))
		c := calibration{Text: profile.Text{Name: t.name}}
		prompts := pieces(m.Vocab().Encode(t.text, false))
		for i, prompt := range prompts {
			prompt = append(m.Vocab().Encode("", true), prompt...)
			said, err := p.say(m, &c, prompt, p.Tokens/len(prompts), tandem.Sampling{Temperature: p.Temperature, TopP: 1, Seed: uint64(i)})
			if err != nil {
				return err
			}
			c.pieces, c.first = append(c.pieces, said), append(c.first, len(prompt)-1)
			c.Tokens += len(said) - len(prompt)
		}
		c.Digest = profile.Digest(c.pieces...)
		p.texts = append(p.texts, c)
	}
	return nil
}

// say has the target continue a text, and keeps how right its own guesses are.
func (p *profiler) say(m *engine.Model, c *calibration, prompt []tandem.Token, n int, s tandem.Sampling) ([]tandem.Token, error) {
	ways := m.Ways()
	if len(ways) == 0 {
		return measure.Continue(p.app.ctx, m, prompt, n, s)
	}
	told, err := measure.Tell(p.app.ctx, m, prompt, n, s, profileRanks)
	if err != nil {
		return nil, err
	}
	if c.samples == nil {
		c.samples = map[string][][]shape.Sample{}
	}
	for _, w := range ways {
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

// draft measures a draft on each single processor, and how often it is right on what the target said.
// A draft that reads the target's states is only timed: what its chains bring follows from states that rounds alone have.
func (p *profiler) draft(path, target string) error {
	side, err := engine.SideOf(path)
	if err != nil {
		return err
	}
	if !side.Draft() {
		ours, err := token.Open(target)
		if err != nil {
			return err
		}
		vocab, err := token.Open(path)
		if err != nil {
			return err
		}
		if _, err := token.Compare(ours.Listing(), vocab.Listing()); err != nil {
			return tandem.Errorf("", tandem.Invalid, "draft model %s does not speak the vocabulary of target %s: %w", path, target, err)
		}
	}
	return p.each("draft", path, single(p.places), func(m *engine.Model, at place, first bool) error {
		if first && !side.Draft() {
			if err := p.ranks(m, path); err != nil {
				return err
			}
		}
		return p.draftAt(m, path, at)
	})
}

// ranks finds out how often a draft is right.
func (p *profiler) ranks(m *engine.Model, path string) error {
	for _, text := range p.texts {
		var ranks [][]int8
		for i, piece := range text.pieces {
			r, err := measure.Ranks(p.app.ctx, m, piece, text.first[i], tandem.MostCandidates)
			if err != nil {
				return err
			}
			ranks = append(ranks, r)
		}
		t := profile.Table{Target: p.lineage, Name: roles.ModelName(path), Lineage: m.Names().Lineage, Temperature: p.Temperature,
			Text: text.Text}
		if t.Depths, t.Lengths = profile.Chains(ranks, profileDepth); len(t.Depths) > 0 {
			p.plan.Put(t)
			p.latest = append(p.latest, t)
		}
	}
	return nil
}

// namedText is a text to calibrate with.
type namedText struct{ name, text string }

// read returns the texts of --text, or the small ones.
func (c *profileCmd) read() ([]namedText, error) {
	if len(c.Text) == 0 {
		return smallTexts, nil
	}
	var texts []namedText
	for _, file := range c.Text {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--text %s: %w", file, errors.Unwrap(err))
		}
		name := filepath.Base(file)
		switch {
		case len(b) == 0:
			return nil, tandem.Errorf("", tandem.Invalid, "--text %s is empty: want a text", file)
		case slices.ContainsFunc(texts, func(t namedText) bool { return t.name == name }):
			return nil, tandem.Errorf("", tandem.Invalid, "--text %s: a second text of the name %s", file, name)
		}
		texts = append(texts, namedText{name, strings.ToValidUTF8(string(b), "�")})
	}
	return texts, nil
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

// print shows what was measured.
func (p *profiler) print(to io.Writer, file string) error {
	fmt.Fprintf(to, "%v\n\n", p.plan.Machine.Box)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, s := range p.plan.Machine.Subjects {
		fmt.Fprintf(w, "%s %.12s, %d threads, %s\n", s.Kind, s.Identity, s.Threads, s.Device)
		for i, q := range s.Points {
			if i == 0 || q.Context != s.Points[i-1].Context {
				fmt.Fprintf(w, "\n  behind %d tokens:", q.Context)
			}
			fmt.Fprintf(w, "\t%d: %.2f ms", q.Rows, float64(q.NS)/1e6)
		}
		fmt.Fprint(w, "\n\n")
	}
	for _, d := range p.plan.Machine.Divided {
		fmt.Fprintf(w, "%s %.12s divided between %s\n", d.Kind, d.Identity, d.Device)
		fmt.Fprintln(w, "  rows\tcontext\tleft's columns\tblocks\tms\tleft alone\tright alone")
		for _, x := range d.Points {
			fmt.Fprintf(w, "  %d\t%d\t%.3f\t%.3f\t%.2f\t%.2f\t%.2f\n", x.Rows, x.Context, x.Columns, x.Blocks, float64(x.NS)/1e6,
				float64(x.LeftNS)/1e6, float64(x.RightNS)/1e6)
		}
		fmt.Fprintln(w)
	}
	for _, t := range p.latest {
		fmt.Fprintf(w, "%s on %s: tokens a round\t", t.Name, t.Text.Name)
		for _, l := range t.Lengths {
			what, n := "chain", l.Nodes-1
			if t.Accuracy != nil {
				what, n = "tree", l.Nodes
			}
			fmt.Fprintf(w, "%s of %d: %.2f (expected %.2f)\t", what, n, l.Measured, l.Expected)
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range p.plan.Machine.Decisions {
		fmt.Fprintln(to)
		if err := printDecision(to, &p.plan.Machine.Decisions[i]); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(to, "\nwritten to %s\n", file)
	return err
}
