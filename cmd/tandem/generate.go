package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/processes/settings"
)

type generateCmd struct {
	Prompt     *string `help:"Text to continue." placeholder:"TEXT" setting:"-" group:"Text"`
	PromptFile string  `help:"File with the text to continue; without either, stdin." placeholder:"FILE" setting:"-" group:"Text"`
	Addr       string  `help:"Use the gateway at this address and its models." placeholder:"ADDR" group:"Serving"`
	settings.ClientKeys
	settings.Sampling
	groupFlags
	output
}

// Run continues one prompt.
func (c *generateCmd) Run(a *app) error {
	prompt, err := c.prompt(a)
	if err != nil {
		return err
	}
	r, err := c.Request(prompt)
	if err != nil {
		return err
	}
	if c.Addr != "" {
		return c.generate(a.ctx, a, c.Addr, r)
	}
	l, err := c.launch(r)
	if err != nil {
		return err
	}
	if l, err = a.checked(l, r); err != nil {
		return err
	}
	l.widen(&r, c.Tree)
	p, err := a.startProcesses(l)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error { return c.generate(ctx, a, p.Addr, r) })
}

// generate runs r on the gateway at addr and prints the result.
func (c *generateCmd) generate(ctx context.Context, a *app, addr string, r tandem.Request) error {
	keys := c.ClientKeys
	if c.Addr == "" {
		keys = settings.ClientKeys{} // of a gateway elsewhere
	}
	conn, err := dial(addr, keys, c.Certificate)
	if err != nil {
		return err
	}
	defer conn.Close()
	show := func(d *client.Delta) error {
		if c.JSON {
			return nil
		}
		_, err := io.WriteString(a.stdout, terminal.On(a.stdout, d.Text))
		return err
	}
	out, err := talk.Generate(ctx, conn, r, show)
	if !c.JSON {
		endLine(a, out.Text)
	}
	if err != nil {
		return err
	}
	result := talk.NewGeneration(out)
	if c.JSON {
		return terminal.PrintJSON(a.stdout, result)
	}
	_, err = fmt.Fprintln(a.stderr, result.Line())
	return err
}

// launch returns the processes that r needs. When stopped they have nothing to finish, so Grace
// is 0.
func (c *generateCmd) launch(r tandem.Request) (launch, error) {
	target, drafts, err := modelPaths(c.Models, r.Bounds.Plain(), r)
	l := launch{Group: c.Group, target: target, drafts: drafts, sessions: c.sessionsOr(1)}
	l.Grace = 0
	return l, err
}

// prompt returns the text to continue.
func (c *generateCmd) prompt(a *app) (string, error) {
	switch {
	case c.Prompt != nil && c.PromptFile != "":
		return "", tandem.Errorf("", tandem.Invalid, "--prompt and --prompt-file together: want one")
	case c.Prompt != nil:
		return *c.Prompt, nil
	case c.PromptFile != "":
		f, err := os.Open(c.PromptFile)
		if err != nil {
			return "", tandem.Errorf("", tandem.Invalid, "--prompt-file %s: %w", c.PromptFile, roles.Reason(err))
		}
		defer f.Close()
		return readAll(f, "--prompt-file "+c.PromptFile)
	case terminal.Is(a.stdin):
		return "", tandem.Errorf("", tandem.Invalid, "no prompt: give --prompt TEXT, --prompt-file FILE, or text on stdin")
	}
	return readAll(a.stdin, "stdin")
}

// checked returns l with what was found out about its models. It refuses what cannot run before any process is started.
func (a *app) checked(l launch, r tandem.Request) (launch, error) {
	err := l.check()
	if err != nil {
		return l, err
	}
	if l.Heads, err = find.Heads(l.Heads); err != nil {
		return l, err
	}
	p := pair.Pair{Target: l.target, Drafts: l.drafts, Heads: l.Heads, DraftHeads: l.DraftHeads,
		Sizes:    roles.Sizes{Ctx: l.Ctx, Sessions: l.sessions},
		Options:  engine.Options{Device: device.Planner(), KVType: l.KVType},
		KVMemory: l.KVMemory.Bytes(),
		Features: int64(l.FeatureMemory) << 20, Own: l.ownMemory(),
		Streaming: budgetFlags{l.Budget}.streaming(a, l.Device, l.GPULayers, cacheFlags{l.CacheFolder})}
	if !l.DraftAnyway {
		p.Weigher = placement.NewWeigher(planFile(l.PassCosts), buildVersion().Version, l.target, l.KVType)
	}
	say := func(note string) { fmt.Fprintln(a.stderr, "tandem: "+terminal.OneLine(note)) }
	err = p.Check(r.Prompt, say)
	l.verifierBudget, l.streamed, l.drafts, l.DraftHeads = p.Budget, p.Streamed, p.Drafts, p.DraftHeads
	l.room = kvRoom{Capacity: modelinfo.Capacity{Fit: p.Fit, Free: p.Free}, target: p.TargetKV, drafts: p.DraftKV}
	if err == nil && l.room.Cut() {
		say(l.room.Shortage())
	}
	l.planned(func(format string, args ...any) { say(fmt.Sprintf(format, args...)) })
	return l, err
}

// widen gives the planner room for wide trees where the target is streamed, unless a tree is named.
func (l launch) widen(r *tandem.Request, tree string) {
	if l.streamed && tree == "" && r.Strategy == tandem.StrategyPlanner && !r.Bounds.Plain() {
		r.Bounds = tandem.StreamedBounds
	}
}

// check refuses values that no process accepts.
func (l launch) check() error {
	for _, f := range []struct {
		device, at, threads string
		n                   int
	}{{"device", l.Device, "verifier-threads", l.VerifierThreads}, {"draft-device", l.DraftDevice, "drafter-threads", l.DrafterThreads}} {
		p, err := device.Parse(f.device, f.at)
		if err = cmp.Or(err, p.CheckThreads(f.device, f.threads, f.n)); err != nil {
			return err
		}
		if err := device.Check(f.device, f.at); err != nil {
			return err
		}
	}
	if err := cmp.Or(l.GPULayers.Check(l.Device), gpuHas(l.GPUMemory)); err != nil {
		return err
	}
	if _, err := prefixPages(l.Prefixes); err != nil {
		return err
	}
	if !l.Lookup && slices.Contains(l.drafts, drafter.Lookup) {
		return tandem.Errorf("", tandem.Invalid, "--no-lookup, and no draft but %s for this target: want --draft FILE, or --no-draft",
			drafter.Lookup)
	}
	if _, err := l.Beside(l.Prefixes, true); err != nil {
		return err
	}
	_, err := rules(l.Strategies)
	budget := budgetFlags{l.Budget}
	return cmp.Or(budget.check(), budget.on(l.Device, l.GPULayers), checkPlan(l.PassCosts), err)
}

// endLine ends the last line of text on a terminal.
func endLine(a *app, text string) {
	if f, ok := a.stdout.(*os.File); ok && terminal.Is(f) && !strings.HasSuffix(text, "\n") {
		fmt.Fprintln(a.stdout)
	}
}
