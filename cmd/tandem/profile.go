package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/profile"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/group"
	"github.com/tandem-llm/tandem/spec/shape"
)

type profileCmd struct {
	modelFlags
	headsFlags
	kernelFlags
	cacheFlags
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
	return c.kernelFlags.check()
}

// Run measures, and writes the plan.
func (c *profileCmd) Run(a *app) error {
	if err := c.check(); err != nil {
		return err
	}
	target, drafts, err := c.pair(false, tandem.Request{Strategy: tandem.StrategyPlanner})
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
	return p.print(a.stdout, written)
}

// profiler is a profile while it is measured.
type profiler struct {
	*profileCmd
	app        *app
	plan       *profile.Plan
	targetPath string
	lineage    string // of the target
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

// open opens a model and measures its passes.
func (p *profiler) open(kind, path string, contexts []int) (m *engine.Model, closed func(), err error) {
	piece := 1 + profilePrompt + p.Tokens
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
	}
	nodes := 0
	if kind == "target" {
		if nodes, err = p.promptRows(); err != nil {
			return nil, nil, err
		}
	}
	grid, compute := measure.GridPoints(p.Width, contexts), p.computeFlags
	if kind != "target" {
		compute.GPUMemory = 0 // it is for the target's layers
	}
	m, closed, err = compute.load(p.app, func(d kernels.Device) (*engine.Model, error) {
		return p.app.openDrafts(p.targetPath)(path, engine.Options{Device: d, KVType: p.KVType, Lock: p.Lock,
			MaxRows: max(64, slices.Max(p.Width)), KVPages: max(measure.Pages(grid), engine.PagesFor(1, piece, nodes))})
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
	fmt.Fprintf(p.app.stderr, "measuring passes of %s …\n", roles.ModelName(path))
	if err = p.passes(m, kind, grid); err == nil && kind == "target" {
		err = p.fewer(m, func() error { return p.passes(m, kind, grid) })
	}
	if err != nil {
		closed()
		return nil, nil, err
	}
	return m, closed, nil
}

// fewer has f measure on as many threads as a verifier that leaves some to a drafter on the same machine has, which decides by these
// figures whether it does; unless the threads were given.
func (p *profiler) fewer(m *engine.Model, f func() error) error {
	all := m.Threads()
	forDrafter, _ := group.Split(all, true, 0, 0)
	if enough := all - forDrafter; p.Threads == 0 && enough > 0 {
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
	p.plan.Time(profile.Subject{What: profile.What{Kind: kind, Identity: m.Names().Identity, Threads: m.Threads(), Device: m.ISA()},
		Points: profile.Points(costs)})
	return nil
}

// target measures the target, and has it say the texts.
func (p *profiler) target(path string) error {
	m, closed, err := p.open("target", path, p.Context)
	if err != nil {
		return err
	}
	defer closed()
	p.lineage = m.Names().Lineage
	for _, t := range p.given {
		fmt.Fprintf(p.app.stderr, "the target says text %s …\n", t.name)
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
	return p.ways(m)
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

// draft measures a draft, and how often it is right on what the target said.
// A draft that reads the target's states is only timed: what its chains bring follows from states that rounds alone have.
func (p *profiler) draft(path, target string) error {
	if side, err := engine.SideOf(path); err != nil {
		return err
	} else if side.Draft() {
		_, closed, err := p.open("draft", path, p.Context[:1])
		if err == nil {
			closed()
		}
		return err
	}
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
	m, closed, err := p.open("draft", path, p.Context[:1])
	if err != nil {
		return err
	}
	defer closed()
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
	fmt.Fprintf(w, "\nwritten to %s\n", file)
	return w.Flush()
}

// smallTexts are the beginnings of what the target says if no text is given.
var smallTexts = []namedText{
	{"go", `// Count returns how many lines r has. An end without a line break counts as a line.
func Count(r io.Reader) (n int, err error) {
	buf := make([]byte, 32*1024)
	for {
		k, err := r.Read(buf)
		n += bytes.Count(buf[:k], []byte{'\n'})
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

type pool struct {
	lock  chan struct{}
	free  []*conn
	limit int
}

func (p *pool) get(ctx context.Context) (*conn, error) {
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	if n := len(p.free); n > 0 {
`},
	{"python", `class Inventory:
    """Counts of things by name."""

    def __init__(self, items=()):
        self._counts = {}
        for name, count in items:
            self.add(name, count)

    def add(self, name, count=1):
        """Adds things; a negative count takes some away."""
        if not isinstance(count, int):
            raise TypeError("count must be an integer")
        self._counts[name] = self._counts.get(name, 0) + count

    def __len__(self):
        return sum(self._counts.values())

def read_config(path):
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
`},
	{"prose", `The package keeps a list of open files and closes those that nobody has used for a while. A caller that wants to
read a file asks for it by name. If the file is already open, the same handle is returned; otherwise it is opened, and the oldest one may
be closed to make room. The limit is the number of files that may be open at the same time. When an error occurs while a file is closed,
it is reported by the next call, because the caller that caused it has already gone. It is safe to use one list from several threads at
the same time, but a handle must not be used after it was given back, and
`},
}
