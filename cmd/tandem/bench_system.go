package main

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/app/bench/system"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/text/token"
)

type benchSystemCmd struct {
	Suite    []string      `help:"What to measure: plain (the default: against plain decoding), drafts (each draft model alone), strategies, planner, length, vote, llmcad, overlap, wall (what pays while the target is larger than --memory-budget), ways (the planner with what guesses from the target's own states, by --heads and --draft, against the planner without), sessions, pipeline (drafting for some sessions while others are verified), minions (its vote, length and pipeline switched on one after the other), cost, memory, ratio (drafts of five costs, made by expanding a shipped one); all = all of them." placeholder:"NAME" setting:"-"`
	Prompts  string        `help:"JSON lines with id, domain and prompt (default: the shipped ones)." placeholder:"FILE" setting:"-"`
	Scenario []string      `help:"Only this class of prompts: a domain of the file, hostile, copy, mixed or changing; may be repeated." placeholder:"NAME" setting:"-"`
	Count    int           `help:"Prompts of each class; 0 = all." default:"4" setting:"-"`
	Repeat   int           `help:"How often each prompt is run by each variant." default:"1" setting:"-"`
	Budget   time.Duration `help:"Start no further prompts after this time; every class gets at least one. 0 = no limit." default:"0" placeholder:"TIME" setting:"-"`
	Rounds   int           `help:"Rounds of the memory suite, summed over sessions." default:"10000" setting:"-"`
	settings.Sampling
	groupFlags
	output
}

// Run measures all processes together.
func (c *benchSystemCmd) Run(a *app) error {
	config, err := c.config(a)
	if err != nil {
		return err
	}
	r, err := system.Run(a.ctx, config)
	if r == nil {
		return err
	}
	if failed := c.show(a, r); failed != nil || err != nil {
		return errors.Join(err, failed)
	}
	return r.Err()
}

// config returns what the flags say.
func (c *benchSystemCmd) config(a *app) (out system.Bench, err error) {
	out = system.Bench{Scenario: c.Scenario, Count: c.Count, Repeat: c.Repeat, Budget: c.Budget, Rounds: c.Rounds,
		Parallel: c.sessionsOr(1), LengthStart: c.LengthStart}
	if out.Suites, err = system.Choose(c.Suite); err != nil {
		return out, err
	}
	if out.Request, err = c.Request("x"); err != nil {
		return out, err
	}
	if c.Tree != "" {
		out.Tree = &out.Request.Bounds
	}
	if out.Target, out.Drafts, err = c.models(out.Suites); err != nil {
		return out, err
	}
	if c.Heads, err = find.Heads(c.Heads); err != nil {
		return out, err
	}
	if out.Informed, err = informed(c.Heads, out.Drafts); err != nil {
		return out, err
	}
	vocab, err := token.Open(out.Target)
	if err != nil {
		return out, err
	}
	out.Vocab = vocab.Size()
	if shipped, err := find.Target(""); err == nil {
		out.SmallTarget = shipped
	}
	if file, err := os.Stat(out.Target); err == nil && c.MemoryBudget != nil {
		out.Streamed = file.Size() > c.MemoryBudget.Bytes()
	}
	out.AtRatio = func(ctx context.Context, want float64) (system.Group, func(), error) { return c.atRatio(ctx, a, want) }
	out.Prompts = cmp.Or(c.Prompts, prompts.Texts)
	out.Start = func(g system.Group, do func(context.Context, system.Processes) error) error { return c.start(a, g, do) }
	return out, err
}

// models returns the paths of target and DraftFiles: those given, else the shipped experts, whatever the strategy, because suites compare
// strategies; the shipped draft for everything, if a suite measures each draft alone; and lookup.
func (c *benchSystemCmd) models(suites []string) (target string, drafts []string, err error) {
	if target, err = find.Target(c.Target); err != nil {
		return "", nil, err
	}
	drafts, err = find.Drafts(c.Draft, c.Target, tandem.Request{})
	if err != nil || len(c.Draft) > 0 {
		return target, drafts, err
	}
	if slices.Contains(suites, "drafts") {
		all, err := find.Shipped(models.Draft)
		if err != nil {
			return "", nil, err
		}
		drafts = append(drafts, all...)
	}
	if c.Lookup && !slices.Contains(drafts, drafter.Lookup) {
		drafts = append(drafts, drafter.Lookup)
	}
	return target, drafts, nil
}

// informed returns the names, as drafters, of what guesses from the target's own states: side files of the target, and drafts that read
// those states.
func informed(heads, drafts []string) (names []string, err error) {
	for _, path := range slices.Concat(heads, drafts) {
		if path == drafter.Lookup {
			continue
		}
		side, err := engine.SideOf(path)
		switch {
		case err != nil:
			return nil, err
		case side.Kind.InVerifier():
			names = append(names, side.SelfDraft().Name)
		case side.Kind.IsDraft():
			names = append(names, roles.ModelName(path))
		}
	}
	return names, nil
}

// start starts the processes of a group, calls do with them, and ends them.
func (c *benchSystemCmd) start(a *app, g system.Group, do func(context.Context, system.Processes) error) error {
	s := start.Setup{Group: c.Group, Speculation: c.Speculation, TargetFile: g.Target, DraftFiles: g.Drafts, AtOnce: g.Sessions}
	if target, err := find.Target(c.Target); err != nil || g.Target != target {
		s.Heads = nil // they are of the target
	}
	s.DraftAnyway = true              // drafts are what is measured
	s.Grace, s.PrefixCache = 0, "off" // the same prompts again and again, each measured like a new one
	if g.Batches > 0 {
		s.Batches = g.Batches
	}
	s.Lookup = slices.Contains(g.Drafts, drafter.Lookup)
	if g.OneSize {
		s.DecisionThreshold = math.MaxInt32
	}
	s, err := s.Checked(a.env(), tandem.Request{})
	if err != nil {
		return err
	}
	p, err := a.start(s)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error {
		conn, err := client.Dial(p.Addr)
		if err != nil {
			return talk.Error(err)
		}
		defer conn.Close()
		return do(ctx, talk.Processes{Gateway: conn, Of: p.Pids, Draft: s.DraftFiles})
	})
}
