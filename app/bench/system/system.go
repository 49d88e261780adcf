// Package system measures all processes together: speculation against plain decoding, and strategies against each other.
package system

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

// Bench says what to measure.
type Bench struct {
	Suites   []string      // as Choose returns them
	Scenario []string      // only these classes of prompts: domains of the file, hostile, copy, mixed or changing; none: each suite's own
	Count    int           // prompts of each class; 0: all
	Repeat   int           // how often each prompt is run by each variant
	Budget   time.Duration // no further prompts are begun after this time, but every class gets at least one; 0: no limit
	Rounds   int           // of the suite memory, all sessions together
	Parallel int           // requests at once

	Prompts     string // file with JSON lines: id, domain, prompt
	Vocab       int    // tokens of the target
	Target      string // path
	SmallTarget string // of the suite memory beside others; "": Target
	Drafts      []string
	Informed    []string // names of self-drafts and drafts that guess from the target's own states
	Streamed    bool     // the target is larger than its memory budget

	Request     tandem.Request // the request for each prompt, which is set in it; it must speculate
	Tree        *tandem.Bounds // the bounds that were asked for; nil: each strategy's own
	LengthStart int            // first speculation length of Minions

	// Start starts the processes of a group, calls do with them, and ends them. do's ctx also ends when a process
	// is gone for good; its cause is the reason, which Start then returns.
	Start func(g Group, do func(context.Context, Processes) error) error
	// AtRatio returns a group in which a pass of the draft over one row takes about want times as long as one of the target, and a
	// function that releases the group's files.
	AtRatio func(ctx context.Context, want float64) (g Group, release func(), err error)
}

// Group is a group of processes that suites run on.
type Group struct {
	Target   string   // path
	Drafts   []string // paths
	Sessions int      // at once
	OneSize  bool     // Minions' length stays what it is at first
	Batches  int      // that sessions are divided into; 0: as the settings say
}

// Processes are a gateway and what is behind it, while they run. Its methods may be called from several goroutines.
type Processes interface {
	// Generate runs r to its end and calls heard with the tokens as they come.
	Generate(ctx context.Context, r tandem.Request, heard func([]tandem.Token)) (tandem.Result, error)
	// Counters returns the sums of the processes' counters by role; nil if the gateway cannot tell.
	Counters(ctx context.Context) map[string]map[string]int64
	// PIDs returns the process ids by the processes' names.
	PIDs() map[string]int
	// Drafts returns the paths of the group's draft models that were not left out.
	Drafts() []string
}

// suite is a measurement. With an error it returns what it measured before.
type suite struct {
	name string
	run  func(*runner) (*suiteResult, error)
}

// suites are in the order of a whole run.
var suites = []suite{
	{"plain", (*runner).plainSuite},
	{"drafts", (*runner).draftsSuite},
	{"strategies", (*runner).strategiesSuite},
	{"planner", (*runner).plannerSuite},
	{"length", (*runner).lengthSuite},
	{"vote", (*runner).voteSuite},
	{"llmcad", (*runner).llmcadSuite},
	{"overlap", (*runner).overlapSuite},
	{"wall", (*runner).wallSuite},
	{"ways", (*runner).waysSuite},
	{"sessions", (*runner).sessionsSuite},
	{"pipeline", (*runner).pipelineSuite},
	{"minions", (*runner).minionsSuite},
	{"cost", (*runner).costSuite},
	{"memory", (*runner).memorySuite},
	{ratioName, (*runner).ratioSuite},
}

// ratioName is the suite that starts processes of its own.
const ratioName = "ratio"

const (
	manySessions   = 8  // of the suite sessions
	memorySessions = 32 // of the suite memory
)

// suiteResult is the result of one suite.
type suiteResult struct {
	Name     string          `json:"name"`
	Target   string          `json:"target"`
	Drafts   []string        `json:"drafts"`
	Sets     []setResult     `json:"sets,omitempty"`
	Figures  []figure        `json:"figures"`
	Sessions *sessionsResult `json:"sessions,omitempty"`
	Pipeline []flow          `json:"pipeline,omitempty"`
	Minions  []ablationStep  `json:"minions,omitempty"`
	Memory   *memoryResult   `json:"memory,omitempty"`
	Notes    []string        `json:"notes,omitempty"`
	Error    string          `json:"error,omitempty"` // why it ended early; what stands above it was measured
	Seconds  float64         `json:"seconds"`

	coordination []time.Duration
	scenarios    []scenarioResult
}

// figure is a number that a suite is about. test/scripts/bench-bars compares figures with what is wanted.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Note  string  `json:"note,omitempty"`
}

// figure adds a figure to the result.
func (r *suiteResult) figure(name string, value float64, note string) {
	r.Figures = append(r.Figures, figure{name, value, note})
}

// scenarioResult is one class of prompts, plain against speculative.
type scenarioResult struct {
	Name           string  `json:"name"`
	Draft          string  `json:"draft"`
	Strategy       string  `json:"strategy"`
	Tree           string  `json:"tree"`
	Sessions       int     `json:"sessions"` // at once
	Prompts        int     `json:"prompts"`
	Tokens         int     `json:"tokens"` // of the speculative runs
	PlainTokS      float64 `json:"plain_tok_s"`
	SpecTokS       float64 `json:"spec_tok_s"`
	Ratio          float64 `json:"ratio"`
	MedianRatio    float64 `json:"median_ratio"` // of single prompts
	TokensPerRound float64 `json:"tokens_per_round"`
	Acceptance     float64 `json:"acceptance_per_node"`
	VerifierBusy   float64 `json:"verifier_busy"` // share of the time that a request spends in passes of the target
	DrafterBusy    float64 `json:"drafter_busy"`
	Equal          bool    `json:"equal"` // plain and speculative ids were the same

	Choices map[string]int `json:"choices"` // rounds of the speculative runs by what the strategy chose
	Reasons map[string]int `json:"reasons"` // and by why
}

// quantiles are in microseconds.
type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

func quantilesOf(times []time.Duration) quantiles {
	return quantiles{figures.US(figures.Quantile(times, 0.5)), figures.US(figures.Quantile(times, 0.99))}
}

// Result is the result of the suites.
type Result struct {
	Target       string           `json:"target"`
	Drafts       []string         `json:"drafts"`
	Strategy     string           `json:"strategy"`
	Scenarios    []scenarioResult `json:"scenarios"`
	Coordination quantiles        `json:"coordination_us"` // per speculative round
	Suites       []*suiteResult   `json:"suites"`
	Equal        bool             `json:"equal"`            // every text was the same whatever drafted it
	Differ       []string         `json:"differ,omitempty"` // which were not
	Seconds      float64          `json:"seconds"`
}

// Run runs the suites. With an error it also returns what was measured before; nil if nothing was. A text that differs between runs is not
// such an error: see Result.Err. Errors: Invalid, in the words of the command line; Start's; ctx's.
func Run(ctx context.Context, c Bench) (*Result, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	domains, err := prompts.Read(c.Prompts)
	if err != nil {
		return nil, err
	}
	sets := allSets(domains, c.Vocab)
	for _, s := range c.Scenario {
		if !slices.ContainsFunc(sets, func(p promptSet) bool { return p.Name == s }) {
			return nil, tandem.Errorf("", tandem.Invalid, "--scenario %s: %s has none such: want %s", s, c.Prompts, setNames(sets))
		}
	}
	start := time.Now()
	b := &runner{ctx: ctx, cfg: &c, base: c.Request, plain: c.Request, sets: sets, truth: &truth{}}
	b.plain.Bounds = tandem.Bounds{}
	if c.Budget > 0 {
		b.until = start.Add(c.Budget)
	}
	result := &Result{Target: modelName(c.Target), Drafts: modelNames(c.Drafts), Strategy: string(c.Request.Strategy),
		Scenarios: []scenarioResult{}}
	err = b.measure(result)
	result.Differ, result.Seconds = b.truth.differ, time.Since(start).Seconds()
	result.Equal = len(result.Differ) == 0
	if len(result.Suites) == 0 && err != nil {
		return nil, err
	}
	return result, err
}

// Err returns an error, Internal, if a text was not the same whatever drafted it, or if a suite ended early.
func (r *Result) Err() error {
	if !r.Equal {
		return tandem.Errorf("", tandem.Internal, "speculation changed %d texts, the first: %s", len(r.Differ), r.Differ[0])
	}
	for _, s := range r.Suites {
		if s.Error != "" {
			return tandem.Errorf("", tandem.Internal, "suite %s: %s", s.Name, s.Error)
		}
	}
	return nil
}

// validate returns Invalid for impossible settings, in the words of the command line.
func (c *Bench) validate() error {
	switch {
	case c.Count < 0:
		return tandem.Errorf("", tandem.Invalid, "--count is %d: want 1 or more, or 0 for all", c.Count)
	case c.Repeat < 1:
		return tandem.Errorf("", tandem.Invalid, "--repeat is %d: want 1 or more", c.Repeat)
	case c.Budget < 0:
		return tandem.Errorf("", tandem.Invalid, "--budget is %v: want a time such as 5m, or 0 for no limit", c.Budget)
	case c.Rounds < 100:
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d: want 100 or more", c.Rounds)
	case c.Request.Bounds.Plain():
		return tandem.Errorf("", tandem.Invalid, "bench system compares with plain decoding: leave --no-draft and --tree none out")
	}
	if len(c.Suites) < len(suites)-1 && slices.Contains(c.Suites, "ways") && len(c.Informed) == 0 {
		return tandem.Errorf("", tandem.Invalid, "--suite ways has nothing to compare: give --heads FILE, or by --draft FILE a draft that "+
			"reads the target's hidden states")
	}
	return nil
}

// Choose returns the names of the suites in list, in the order of a whole run. An empty list stands for plain, "all" for every suite.
// Errors: Invalid.
func Choose(list []string) (names []string, err error) {
	var known []string
	for _, s := range suites {
		known = append(known, s.name)
		if len(list) == 0 && s.name == "plain" || slices.Contains(list, s.name) || slices.Contains(list, "all") {
			names = append(names, s.name)
		}
	}
	for _, s := range list {
		if s != "all" && !slices.Contains(known, s) {
			return nil, tandem.Errorf("", tandem.Invalid, "--suite %s: want all or some of %s", s, strings.Join(known, ", "))
		}
	}
	return names, nil
}

// modelName returns the name of a model file.
func modelName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".gguf") }

func modelNames(paths []string) []string {
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = modelName(p)
	}
	return names
}

func setNames(sets []promptSet) string {
	names := make([]string, len(sets))
	for i, s := range sets {
		names[i] = s.Name
	}
	return strings.Join(names, ", ")
}

// measure runs the suites, most of them on one group of processes. A suite that fails ends alone; the error is that of the processes.
func (b *runner) measure(result *Result) error {
	var coordination []time.Duration
	names := b.cfg.Suites
	left := len(names)
	for _, g := range groups {
		mine := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return groupOf(s) != g.name })
		if len(mine) == 0 {
			continue
		}
		if g.name == ratioName {
			result.add(b.within(left).suite(ratioName))
			left--
			continue
		}
		group := Group{Target: b.cfg.Target, Drafts: b.cfg.Drafts, Sessions: b.cfg.Parallel}
		if slices.Contains(mine, "sessions") {
			group.Sessions = max(group.Sessions, manySessions)
		}
		if slices.Contains(mine, "minions") {
			group.Sessions = max(group.Sessions, ablationSessions)
		}
		if g.change != nil {
			g.change(b.cfg, &group, len(mine) == len(names))
		}
		err := b.group(group, func(b *runner) {
			for _, s := range mine {
				r := b.within(left).suite(s)
				left--
				result.add(r)
				coordination = append(coordination, r.coordination...)
				if b.ctx.Err() != nil {
					return
				}
			}
		})
		result.Coordination = quantilesOf(coordination)
		if err != nil {
			return err
		}
	}
	return nil
}

// add adds the result of a suite.
func (to *Result) add(r *suiteResult) {
	to.Suites = append(to.Suites, r)
	to.Scenarios = append(to.Scenarios, r.scenarios...)
}

// groups are the groups of processes that suites run on.
var groups = []struct {
	name   string
	change func(c *Bench, g *Group, alone bool) // alone: no other group runs
}{
	{name: ""},
	{"pipeline", func(c *Bench, g *Group, _ bool) {
		if c.Parallel == 1 {
			g.Sessions = pipelineSessions[len(pipelineSessions)-1]
		}
	}},
	{"vote", func(_ *Bench, g *Group, _ bool) { g.OneSize = true }}, // so that acceptance can be compared; weights move
	{"memory", func(c *Bench, g *Group, alone bool) {
		g.Sessions = memorySessions
		if c.SmallTarget != "" && !alone { // many rounds: a small target
			g.Target = c.SmallTarget
		}
	}},
	{name: ratioName},
}

// groupOf returns the group of a suite: its own, or the common one.
func groupOf(suite string) string {
	for _, g := range groups {
		if g.name == suite {
			return suite
		}
	}
	return ""
}

// suite runs one suite.
func (b *runner) suite(name string) *suiteResult {
	start := time.Now()
	var notes []string
	b.note = func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
	r, err := suites[i].run(b)
	if r == nil {
		r = &suiteResult{}
	}
	if err != nil {
		if cause := context.Cause(b.ctx); cause != nil {
			err = cause
		}
		r.Error = err.Error()
	}
	if b.processes != nil { // else the suite has started its own
		r.Target, r.Drafts = b.target, b.drafters
	}
	r.Name, r.Notes, r.Seconds = name, notes, time.Since(start).Seconds()
	return r
}

// group starts the processes, calls do with a runner of them, and ends them.
func (b *runner) group(g Group, do func(*runner)) error {
	return b.cfg.Start(g, func(ctx context.Context, p Processes) error {
		mine := *b
		mine.ctx, mine.processes, mine.launched = ctx, p, g
		mine.file, mine.target, mine.drafters = g.Target, modelName(g.Target), modelNames(p.Drafts())
		if _, err := mine.generate(variant{"first", mine.base}, mine.sets[0].Prompts[0], nil); err != nil {
			// connections are made from here on
			return err
		}
		do(&mine)
		return context.Cause(ctx)
	})
}
