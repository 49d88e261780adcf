// Package guesses measures how good the guesses are that are made for one target: by the ways of its side files (medusa, ppd) and by
// drafts. All of it runs in this process, without a gateway.
//
// The target says the texts once, without speculation, and everything that can be guessed along them is kept: by the ways behind each
// token (measure.Tell), by drafts as a tree below each token. Acceptance is exact and a row's result does not depend on what else is in
// a pass, so rounds with trees of any size say the same text. They are replayed from what was kept. TestReplayIsDecoding compares that
// with rounds in which the target verifies trees.
package guesses

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/spec/shape"
	"github.com/tandem-llm/tandem/text/token"
)

// Config says what to measure.
type Config struct {
	Target       string         // path of a GGUF file
	Heads        []string       // paths of its side files, at most one of each kind
	Drafts       []string       // paths of plain drafts and of drafts that read the target's hidden states
	Prompts      string         // path of a file with JSON lines: id, domain, prompt
	Only         []string       // only these domains of it; none: all
	Count        int            // prompts of each domain that are judged
	Calibrate    int            // prompts of each domain behind those, on which trees are calibrated
	MaxTokens    int            // that the target says to a prompt
	Temperatures []float64      // of the target
	Seed         uint64         // of its draws
	Widths       []int          // nodes of trees, root and prompt nodes included; ascending
	Timed        int            // prompts of each domain, of those judged, that are also decoded with real rounds, to measure time
	Rounds       int            // passes of each width that are timed
	Open, Draft  Opener         // open the target, and a draft of it
	Progress     func(Progress) // nil: not told
}

// Opener opens a model. It adds the device to the options.
type Opener func(path string, o engine.Options) (*engine.Model, error)

// Progress is how far a measurement is.
type Progress struct {
	Doing       string
	Done, Total int
}

const (
	candidates = 10 // in a level of a guess, as many as a verifier hands out
	draftDepth = 7  // levels of a draft's tree, and
	draftWidth = 10 // nodes of a level that have children: both as in Dovetail and EAGLE-2
	leastText  = 24 // tokens that are said to a prompt at least, so that rounds begin in most of the text
)

// ppdWidths are the further widths at which ppd is measured, if the largest for all is among Widths: its paper has trees of up to 285
// rows.
var ppdWidths = []int{128, 256}

// largest is the largest width for all.
const largest = 64

// further returns the further widths of ppd.
func (c *Config) further() []int {
	if slices.Max(c.Widths) < largest {
		return nil
	}
	return ppdWidths
}

// Validate returns Invalid for settings that cannot be measured, in the words of the command line.
func (c *Config) Validate() error {
	bad := func(t float64) bool { return !(t >= 0 && t <= 100) }
	switch {
	case len(c.Heads)+len(c.Drafts) == 0:
		return tandem.Errorf("", tandem.Invalid, "nothing to measure: want --heads FILE or --draft FILE")
	case c.Count < 1 || c.Calibrate < 1:
		return tandem.Errorf("", tandem.Invalid, "--count is %d, --calibrate is %d: want 1 or more of both", c.Count, c.Calibrate)
	case c.MaxTokens < leastText || c.MaxTokens > 4096:
		return tandem.Errorf("", tandem.Invalid, "--max-tokens is %d: want %d to 4096", c.MaxTokens, leastText)
	case len(c.Temperatures) == 0 || slices.ContainsFunc(c.Temperatures, bad):
		return tandem.Errorf("", tandem.Invalid, "--temperature %v: want numbers from 0 to 100", c.Temperatures)
	case c.Timed < 0:
		return tandem.Errorf("", tandem.Invalid, "--timed is %d: want 0 or more", c.Timed)
	case c.Rounds < 1 || c.Rounds > 1000:
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d: want 1 to 1000", c.Rounds)
	case len(c.Widths) == 0 || slices.Min(c.Widths) < 2 || slices.Max(c.Widths) > largest:
		return tandem.Errorf("", tandem.Invalid, "--width %v: want numbers from 2 to %d", c.Widths, largest)
	}
	slices.Sort(c.Widths)
	c.Widths = slices.Compact(c.Widths)
	for i, d := range c.Drafts {
		if d == lookup.Name {
			return tandem.Errorf("", tandem.Invalid, "--draft %s: want GGUF files; what lookup brings depends on texts that repeat "+
				"themselves: see bench system", d)
		}
		if slices.ContainsFunc(c.Drafts[:i], func(o string) bool { return name(o) == name(d) }) {
			return tandem.Errorf("", tandem.Invalid, "--draft: two files are called %s: want each name once", name(d))
		}
	}
	return nil
}

// text is what the target said to a prompt, and what was guessed along it.
type text struct {
	*measure.Told
	domain  string
	samples map[string][]shape.Sample // by way, from root Prompt−1 on
	trees   map[string][]tandem.Tree  // by draft, likewise
}

// bench is a measurement in progress.
type bench struct {
	*Config
	ctx     context.Context
	target  *engine.Model
	ways    []tandem.SelfDraft
	drafts  []*draft
	domains []prompts.Set
	longest int // prompt, in tokens
	taps    []int
	done    int
	total   int
}

// Run measures. Errors: Validate's, those of reading the files, Invalid for files that do not fit the target, and ctx's.
func Run(ctx context.Context, c Config) (r *Result, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	b := &bench{Config: &c, ctx: ctx}
	defer b.close()
	if err := b.open(); err != nil {
		return nil, err
	}
	r = b.describe()
	if err := b.time(r); err != nil {
		return nil, err
	}
	b.total = len(c.Temperatures) * len(b.domains) * (c.Count + c.Calibrate) * (1 + len(b.drafts))
	for _, t := range c.Temperatures {
		at, err := b.at(t, r)
		if err != nil {
			return nil, err
		}
		r.Temperatures = append(r.Temperatures, at)
	}
	return r, nil
}

// tell tells how far the measurement is.
func (b *bench) tell(doing string) {
	if b.Progress != nil {
		b.Progress(Progress{doing, b.done, b.total})
	}
}

// open reads the prompts and opens all models.
func (b *bench) open() error {
	if err := b.read(); err != nil {
		return err
	}
	info, err := engine.Inspect(b.Target)
	if err == nil {
		err = engine.CheckTarget(b.Target, info.Config)
	}
	if err != nil {
		return err
	}
	if need := b.longest + b.MaxTokens + draftDepth; need > info.Config.Context {
		return tandem.Errorf("", tandem.Invalid, "--max-tokens %d: the longest prompt has %d tokens, and %s has a context of %d",
			b.MaxTokens, b.longest, name(b.Target), info.Config.Context)
	}
	if err := b.sides(); err != nil {
		return err
	}
	widest := slices.Max(b.Widths)
	prompted, err := promptRows(b.Heads)
	if err != nil {
		return err
	}
	if len(b.Heads) > 0 {
		widest = slices.Max(append(b.further(), widest))
	}
	rows := max(widest, 64) + prompted // of a tree, or of a token with all its prompt rows
	length := max(b.longest+b.MaxTokens, passContext(info.Config.Context)) + rows
	b.target, err = b.Open(b.Target, engine.Options{MaxRows: rows, Taps: b.taps, KVPages: 2*engine.PagesFor(1, min(length,
		info.Config.Context), rows) + measure.Pages(b.points(info.Config.Context))})
	if err != nil {
		return err
	}
	for _, h := range b.Heads {
		if err := b.target.OpenSide(h); err != nil {
			return err
		}
	}
	b.ways = b.target.SelfDrafts()
	for _, path := range b.Drafts {
		d, err := b.openDraft(path)
		if err != nil {
			return err
		}
		b.drafts = append(b.drafts, d)
	}
	return nil
}

// promptRows returns how many rows the prompt tokens of side files have at most.
func promptRows(heads []string) (rows int, err error) {
	for _, h := range heads {
		side, err := engine.SideOf(h)
		if err != nil {
			return 0, err
		}
		rows = max(rows, side.Levels*side.Members)
	}
	return rows, nil
}

// sides checks the kinds of the side files, and collects the states that drafts read.
func (b *bench) sides() error {
	for _, path := range b.Heads {
		side, err := engine.SideOf(path)
		if err != nil {
			return err
		}
		if !side.Kind.InVerifier() {
			return tandem.Errorf("", tandem.Invalid,
				"--heads %s: want a side file that the verifier runs (docs/sidefiles.md); drafts are given by --draft", path)
		}
	}
	for _, path := range b.Drafts {
		side, err := engine.SideOf(path)
		if err != nil {
			return err
		}
		if side.Kind.InVerifier() {
			return tandem.Errorf("", tandem.Invalid, "--draft %s: a side file of kind %s is given by --heads", path, side.Kind)
		}
		for _, tap := range side.Taps {
			if !slices.Contains(b.taps, tap) {
				b.taps = append(b.taps, tap)
			}
		}
	}
	if len(b.taps) > tandem.MostTaps {
		return tandem.Errorf("", tandem.Invalid, "the drafts read %d hidden states: at most %d are handed out", len(b.taps),
			tandem.MostTaps)
	}
	return nil
}

// read reads the prompts and makes tokens of them.
func (b *bench) read() error {
	sets, err := prompts.Read(b.Prompts)
	if err != nil {
		return err
	}
	vocab, err := token.Open(b.Target)
	if err != nil {
		return err
	}
	for _, only := range b.Only {
		if !slices.ContainsFunc(sets, func(s prompts.Set) bool { return s.Name == only }) {
			return tandem.Errorf("", tandem.Invalid, "--domain %s: %s has no prompts of it", only, b.Prompts)
		}
	}
	for _, s := range sets {
		if len(b.Only) > 0 && !slices.Contains(b.Only, s.Name) {
			continue
		}
		if n := b.Count + b.Calibrate; len(s.Prompts) < n {
			return tandem.Errorf("", tandem.Invalid, "--count %d --calibrate %d: %s has %d prompts of %s, and no prompt is used for both",
				b.Count, b.Calibrate, b.Prompts, len(s.Prompts), s.Name)
		}
		s = s.Take(b.Count + b.Calibrate)
		for i := range s.Prompts {
			p := &s.Prompts[i]
			if p.Prompt != "" {
				p.Tokens = vocab.Encode(p.Prompt, true)
			}
			if err := readable(p.Tokens, vocab.Size()); err != nil {
				return tandem.Errorf("", tandem.Invalid, "--prompts %s: prompt %s: %w", b.Prompts, p.ID, err)
			}
			b.longest = max(b.longest, len(p.Tokens))
		}
		b.domains = append(b.domains, s)
	}
	return nil
}

// readable refuses a prompt that the target cannot go on from.
func readable(tokens []tandem.Token, vocab int) error {
	if len(tokens) < 2 {
		return fmt.Errorf("%d tokens long: want 2 or more", len(tokens))
	}
	for _, t := range tokens {
		if t < 0 || int(t) >= vocab {
			return fmt.Errorf("token %d: want 0 to %d", t, vocab-1)
		}
	}
	return nil
}

// close ends what open has begun.
func (b *bench) close() {
	for _, d := range b.drafts {
		d.close()
	}
	if b.target != nil {
		b.target.Close()
	}
}

// sampling returns the target's at a temperature.
func (b *bench) sampling(t float64) tandem.Sampling {
	return tandem.Sampling{Temperature: t, TopP: 1, Seed: b.Seed}
}

// texts has the target say the texts at a temperature, and everybody guess along them.
func (b *bench) texts(t float64) (judged, calibration []*text, err error) {
	for _, set := range b.domains {
		for i, p := range set.Prompts {
			b.tell(fmt.Sprintf("temperature %v, %s", t, set.Name))
			x, err := b.text(set.Name, p.Tokens, t)
			if err != nil {
				return nil, nil, fmt.Errorf("prompt %s: %w", p.ID, err)
			}
			if i < b.Count {
				judged = append(judged, x)
			} else {
				calibration = append(calibration, x)
			}
		}
	}
	return judged, calibration, nil
}

func (b *bench) text(domain string, prompt []tandem.Token, t float64) (*text, error) {
	told, err := measure.Tell(b.ctx, b.target, prompt, b.MaxTokens, b.sampling(t), candidates)
	if err != nil {
		return nil, err
	}
	b.done++
	x := &text{Told: told, domain: domain, samples: map[string][]shape.Sample{}, trees: map[string][]tandem.Tree{}}
	for _, w := range b.ways {
		x.samples[w.Name] = shape.Samples(told.Text, told.Prompt-1, func(i int) tandem.Guess {
			return told.Guesses[w.Name][i-told.Prompt+1]
		})
	}
	for _, d := range b.drafts {
		if x.trees[d.name], err = d.grow(b.ctx, told, b.sampling(t), b.taps); err != nil {
			return nil, fmt.Errorf("draft %s: %w", d.name, err)
		}
		b.done++
	}
	return x, nil
}

// passContext is how many tokens are before the passes that are timed.
func passContext(context int) int { return min(256, max(context/4, 1)) }

// points returns the passes to time.
func (b *bench) points(context int) []measure.Point {
	widths := append([]int{1}, b.Widths...)
	if len(b.Heads) > 0 {
		widths = append(widths, b.further()...)
	}
	return measure.GridPoints(widths, []int{passContext(context)})
}

// time measures passes of all widths: T_V(W).
func (b *bench) time(r *Result) error {
	points := b.points(b.target.Config().Context)
	b.total = b.Rounds * len(points)
	costs, spread, err := measure.Grid(b.ctx, b.target, points, b.Rounds, func() {
		b.tell("passes of the target")
		b.done++
	})
	if err != nil {
		return err
	}
	b.done = 0
	r.Spread = spread
	for _, c := range costs {
		r.Passes = append(r.Passes, Pass{Width: c.Rows, MS: float64(c.Time) / 1e6})
	}
	return nil
}

// cost returns the time of a pass of so many rows, in ms: between measured widths on a line, beyond the widest in proportion.
func (r *Result) cost(rows int) float64 {
	i, found := slices.BinarySearchFunc(r.Passes, rows, func(p Pass, rows int) int { return p.Width - rows })
	switch {
	case found:
		return r.Passes[i].MS
	case i == 0:
		return r.Passes[0].MS
	case i == len(r.Passes):
		last := r.Passes[i-1]
		return last.MS * float64(rows) / float64(last.Width)
	}
	low, high := r.Passes[i-1], r.Passes[i]
	share := float64(rows-low.Width) / float64(high.Width-low.Width)
	return low.MS + share*(high.MS-low.MS)
}

// mean returns the mean of values, NaN for none.
func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	if len(values) == 0 {
		return math.NaN()
	}
	return sum / float64(len(values))
}
