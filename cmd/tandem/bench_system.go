package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
)

type benchSystemCmd struct {
	Suite    []string      `help:"What to measure: plain (the default: against plain decoding), drafts (each draft model alone), strategies, planner, length, vote, llmcad, overlap, sessions, cost, memory; all = all of them." placeholder:"NAME" setting:"-"`
	Prompts  string        `help:"JSON lines with id, domain and prompt (default: the shipped ones)." placeholder:"FILE" setting:"-"`
	Scenario []string      `help:"Only this class of prompts: a domain of the file, hostile, mixed or changing; several times for several." placeholder:"NAME" setting:"-"`
	Count    int           `help:"Prompts of each class; 0 = all." default:"4" setting:"-"`
	Repeat   int           `help:"How often each prompt is run by each variant." default:"1" setting:"-"`
	Budget   time.Duration `help:"Begin no further prompts after this time; every class gets one at least. 0 = no limit." default:"0" placeholder:"TIME" setting:"-"`
	Rounds   int           `help:"Rounds of the suite memory, all sessions together." default:"10000" setting:"-"`
	samplingFlags
	groupFlags
	output
}

// suite is a measurement. What it returns beside an error was measured before.
type suite struct {
	name string
	run  func(*bench) (*suiteResult, error)
}

// suites are in the order of a whole run.
var suites = []suite{
	{"plain", (*bench).plainSuite},
	{"drafts", (*bench).draftsSuite},
	{"strategies", (*bench).strategiesSuite},
	{"planner", (*bench).plannerSuite},
	{"length", (*bench).lengthSuite},
	{"vote", (*bench).voteSuite},
	{"llmcad", (*bench).llmcadSuite},
	{"overlap", (*bench).overlapSuite},
	{"sessions", (*bench).sessionsSuite},
	{"cost", (*bench).costSuite},
	{"memory", (*bench).memorySuite},
}

const (
	manySessions   = 8  // of the suite sessions
	memorySessions = 32 // of the suite memory
)

// suiteResult is what one suite found.
type suiteResult struct {
	Name     string          `json:"name"`
	Target   string          `json:"target"`
	Drafts   []string        `json:"drafts"`
	Sets     []setResult     `json:"sets,omitempty"`
	Bars     []bar           `json:"bars"`
	Sessions *sessionsResult `json:"sessions,omitempty"`
	Memory   *memoryResult   `json:"memory,omitempty"`
	Notes    []string        `json:"notes,omitempty"`
	Error    string          `json:"error,omitempty"` // why it ended early; what stands above it was measured
	Seconds  float64         `json:"seconds"`

	coordination []time.Duration
	scenarios    []scenarioResult
}

// bar is a figure beside what it should be.
type bar struct {
	Name   string   `json:"name"`
	Value  float64  `json:"value"`
	Bar    *float64 `json:"bar"` // null: none for this figure, or not here
	AtMost bool     `json:"at_most,omitempty"`
	Met    *bool    `json:"met"`
	Note   string   `json:"note,omitempty"`
}

// atLeast returns a figure that should not be below want.
func atLeast(name string, value, want float64) bar {
	return bar{Name: name, Value: value, Bar: &want, Met: new(value >= want)}
}

// atMost returns a figure that should not be above want.
func atMost(name string, value, want float64) bar {
	return bar{Name: name, Value: value, Bar: &want, AtMost: true, Met: new(value <= want)}
}

// figure returns a figure that stands for itself.
func figure(name string, value float64, note string) bar {
	return bar{Name: name, Value: value, Note: note}
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

type quantiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

type benchResult struct {
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

// Run measures.
func (c *benchSystemCmd) Run(a *app) error {
	names, err := c.check()
	if err != nil {
		return err
	}
	base, err := c.request("x")
	if err != nil {
		return err
	}
	if base.Bounds.Plain() {
		return tandem.Errorf("", tandem.Invalid, "bench system compares with plain decoding: leave --no-draft and --tree none out")
	}
	target, drafts, err := c.models(names)
	if err != nil {
		return err
	}
	vocab, err := readVocab(target)
	if err != nil {
		return err
	}
	path, err := promptsPath(c.Prompts)
	if err != nil {
		return err
	}
	domains, err := readPrompts(path)
	if err != nil {
		return err
	}
	sets := allSets(domains, vocab.Size())
	for _, s := range c.Scenario {
		if !slices.ContainsFunc(sets, func(p promptSet) bool { return p.Name == s }) {
			return tandem.Errorf("", tandem.Invalid, "--scenario %s: %s has none such: want %s", s, path, setNames(sets))
		}
	}
	start := time.Now()
	b := &bench{ctx: a.ctx, cmd: c, target: target, base: base, plain: base, sets: sets, truth: &truth{}, parallel: c.sessionsOr(1)}
	b.plain.Bounds = tandem.Bounds{}
	if c.Budget > 0 {
		b.until = start.Add(c.Budget)
	}
	result := benchResult{Target: modelName(target), Drafts: modelNames(drafts), Strategy: string(base.Strategy), Scenarios: []scenarioResult{}}
	err = c.measure(a, b, drafts, names, &result)
	result.Differ, result.Seconds = b.truth.differ, time.Since(start).Seconds()
	result.Equal = len(result.Differ) == 0
	if len(result.Suites) == 0 && err != nil {
		return err
	}
	printed := result.print
	if c.JSON {
		printed = func(w io.Writer) error { return printJSON(w, result) }
	}
	if failed := printed(a.stdout); failed != nil || err != nil {
		return errors.Join(err, failed)
	}
	if !result.Equal {
		return tandem.Errorf("", tandem.Internal, "speculation changed %d texts, the first: %s", len(result.Differ), result.Differ[0])
	}
	for _, s := range result.Suites {
		if s.Error != "" {
			return tandem.Errorf("", tandem.Internal, "suite %s: %s", s.Name, s.Error)
		}
	}
	return nil
}

// check returns the suites that are wanted.
func (c *benchSystemCmd) check() ([]string, error) {
	switch {
	case c.Count < 0:
		return nil, tandem.Errorf("", tandem.Invalid, "--count is %d: want 1 or more, or 0 for all", c.Count)
	case c.Repeat < 1:
		return nil, tandem.Errorf("", tandem.Invalid, "--repeat is %d: want 1 or more", c.Repeat)
	case c.Budget < 0:
		return nil, tandem.Errorf("", tandem.Invalid, "--budget is %v: want a time such as 5m, or 0 for no limit", c.Budget)
	case c.Rounds < 100:
		return nil, tandem.Errorf("", tandem.Invalid, "--rounds is %d: want 100 or more", c.Rounds)
	case c.Sessions < 0:
		return nil, c.sizeFlags.check()
	}
	var known, names []string
	for _, s := range suites {
		known = append(known, s.name)
		if len(c.Suite) == 0 && s.name == "plain" || slices.Contains(c.Suite, s.name) || slices.Contains(c.Suite, "all") {
			names = append(names, s.name)
		}
	}
	for _, s := range c.Suite {
		if s != "all" && !slices.Contains(known, s) {
			return nil, tandem.Errorf("", tandem.Invalid, "--suite %s: want all or some of %s", s, strings.Join(known, ", "))
		}
	}
	return names, nil
}

// experts are the shipped draft models of one domain each, and that of all.
var experts = []string{"gopher-draft-go-f16.gguf", "gopher-draft-py-f16.gguf", "gopher-draft-prose-f16.gguf", defaultDraft}

// models returns the paths of target and drafts: those asked for, else the shipped experts, and the
// shipped draft of all domains where a suite takes each draft alone.
func (c *benchSystemCmd) models(suites []string) (target string, drafts []string, err error) {
	if target, err = targetPath(c.Target); err != nil || len(c.Draft) > 0 {
		return target, c.Draft, err
	}
	all, err := draftPath("")
	if err != nil {
		return "", nil, err
	}
	for _, e := range experts {
		if path := filepath.Join(filepath.Dir(all), e); exists(path) && (e != defaultDraft || slices.Contains(suites, "drafts")) {
			drafts = append(drafts, path)
		}
	}
	if len(drafts) == 0 {
		drafts = []string{all}
	}
	return target, drafts, nil
}

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

// measure runs the suites, most of them on one group of processes. A suite that fails ends alone; the
// error is that of the processes.
func (c *benchSystemCmd) measure(a *app, b *bench, drafts, names []string, result *benchResult) error {
	var coordination []time.Duration
	left := len(names)
	for _, g := range groups {
		mine := slices.DeleteFunc(slices.Clone(names), func(s string) bool { return groupOf(s) != g.name })
		if len(mine) == 0 {
			continue
		}
		l := launch{groupFlags: c.groupFlags, speculationFlags: c.speculationFlags, target: b.target, drafts: drafts, sessions: b.parallel}
		l.Grace, l.PrefixCache = 0, "off" // the same prompts again and again, each measured like a new one
		if slices.Contains(mine, "sessions") {
			l.sessions = max(l.sessions, manySessions)
		}
		if g.change != nil {
			g.change(&l, len(mine) == len(names))
		}
		err := c.group(a, b, l, func(b *bench) {
			for _, s := range mine {
				r := c.suite(b.within(left), s)
				left--
				result.Suites = append(result.Suites, r)
				result.Scenarios = append(result.Scenarios, r.scenarios...)
				coordination = append(coordination, r.coordination...)
				if b.ctx.Err() != nil {
					return
				}
			}
		})
		result.Coordination = quantiles{us(quantile(coordination, 0.5)), us(quantile(coordination, 0.99))}
		if err != nil {
			return err
		}
	}
	return nil
}

// groups are the groups of processes that suites run on.
var groups = []struct {
	name   string
	change func(l *launch, alone bool) // alone: no other group runs
}{
	{name: ""},
	{"vote", func(l *launch, _ bool) { l.DecisionThreshold = math.MaxInt32 }}, // lengths stay, so that acceptance can be compared; weights move
	{"memory", func(l *launch, alone bool) {
		l.sessions = memorySessions
		if shipped, err := targetPath(""); err == nil && !alone { // many rounds: a small target
			l.target = shipped
		}
	}},
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
func (c *benchSystemCmd) suite(b *bench, name string) *suiteResult {
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
	r.Name, r.Target, r.Drafts, r.Notes, r.Seconds = name, modelName(b.target), b.drafters, notes, time.Since(start).Seconds()
	return r
}

// group starts the processes, calls do with a bench of them, and ends them.
func (c *benchSystemCmd) group(a *app, b *bench, l launch, do func(*bench)) error {
	l, err := a.checked(l, tandem.Request{})
	if err != nil {
		return err
	}
	p, err := a.startProcesses(l)
	if err != nil {
		return err
	}
	return p.during(a, func(ctx context.Context) error {
		conn, err := client.Dial(p.addr)
		if err != nil {
			return fromClient(err)
		}
		defer conn.Close()
		mine := *b
		mine.ctx, mine.conn, mine.group, mine.target, mine.drafters = ctx, conn, p, l.target, modelNames(l.drafts)
		if _, err := mine.generate(variant{"first", mine.base}, mine.sets[0].Prompts[0], nil); err != nil { // connections are made from here on
			return err
		}
		do(&mine)
		return context.Cause(ctx)
	})
}

// rule is what issue 4 asks of the shipped target expanded to the shape 1b, by the type of its weights:
// tokens per second over plain decoding.
var rule = map[string]map[string]float64{
	"q8_0": {"go": 2.6, "python": 2.1, "prose": 1.8, setHostile: 0.97},
	"q4_0": {"go": 2.0, "python": 1.6, "prose": 1.4, setHostile: 0.97},
}

// headline returns the bar of a class of prompts, 0 if there is none for this target.
func (b *bench) headline(set string) float64 {
	info, err := engine.Inspect(b.target)
	if err != nil || info.Parameters < 5e8 || b.parallel != 1 || b.base.Sampling.Temperature != 0 {
		return 0
	}
	most, bytes := "", int64(0)
	for t, use := range info.Types {
		if use.FileBytes > bytes {
			most, bytes = strings.ToLower(t), use.FileBytes
		}
	}
	return rule[most][set]
}

// residentBytes returns the memory of a process that is in RAM, 0 if it is gone.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}
