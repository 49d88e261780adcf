package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/services/peers/telemetry/timeline"
)

// traceCmd continues a prompt and draws every round on one clock.
type traceCmd struct {
	Prompt     *string `help:"Text to continue."`
	PromptFile string  `help:"File with the text to continue." placeholder:"FILE"`
	Addr       string  `help:"Use the gateway at this address instead of starting processes." placeholder:"ADDR"`
	Out        string  `short:"o" help:"File for the trace: JSON that ui.perfetto.dev and chrome://tracing open." default:"trace.json" placeholder:"FILE"`
	SVG        string  `help:"Draw the first rounds into this file as well." placeholder:"FILE"`
	requestFlags
	tandemFlags
	output
}

// drawnRounds is how many rounds a picture shows: more would be too narrow to tell apart.
const drawnRounds = 12

// Run continues one prompt and writes whole files at the end, so that a request that fails leaves existing files unchanged.
func (c *traceCmd) Run(a *app) error {
	for flag, path := range map[string]string{"--out": c.Out, "--svg": c.SVG} {
		if err := writable(flag, path); err != nil {
			return err
		}
	}
	prompt, err := c.prompt()
	if err != nil {
		return err
	}
	r, err := c.request(prompt)
	if err != nil {
		return err
	}
	r.Report = true
	do := func(ctx context.Context, p talk.Processes) error { return c.trace(ctx, a, p, r) }
	if c.Addr != "" {
		return connect(a.ctx, c.Addr, nil, nil, do)
	}
	flags := []string{"--sessions", "1"}
	if strategy.AsksOne(r.Strategy) { // which drafts are started depends on it
		flags = append(flags, "--strategy", string(r.Strategy))
	}
	return c.start(a.ctx, a, flags, do)
}

// prompt returns the text to continue.
func (c *traceCmd) prompt() (string, error) {
	if (c.Prompt == nil) == (c.PromptFile == "") {
		return "", tandem.Errorf("", tandem.Invalid, "want --prompt TEXT or --prompt-file FILE")
	}
	if c.Prompt != nil {
		return *c.Prompt, nil
	}
	b, err := os.ReadFile(c.PromptFile)
	if err != nil {
		return "", tandem.Errorf("", tandem.Invalid, "--prompt-file %s: %w", c.PromptFile, files.Reason(err))
	}
	return string(b), nil
}

// trace runs r and writes the files.
func (c *traceCmd) trace(ctx context.Context, a *app, p talk.Processes, r tandem.Request) error {
	out, err := talk.Generate(ctx, p.Gateway, r, nil, func(*client.Delta) error { return nil })
	if err != nil {
		return err
	}
	t := lanes(out)
	if err := writeWhole("--out", c.Out, t.WriteChrome); err != nil {
		return err
	}
	if c.SVG != "" && len(out.Rounds) > 0 {
		first, last := out.Rounds[0], out.Rounds[min(drawnRounds, len(out.Rounds))-1]
		from, _ := extent(first)
		_, to := extent(last)
		if err := writeWhole("--svg", c.SVG, t.Between(from, to).WriteSVG); err != nil {
			return err
		}
	}
	g := talk.NewGeneration(out)
	if c.JSON {
		return terminal.PrintJSON(a.stdout, g)
	}
	_, err = fmt.Fprintf(a.stdout, "%s\ntrace of %d rounds: %s (open it in https://ui.perfetto.dev)\n", g.Line(), len(out.Rounds),
		terminal.Shown(c.Out))
	return err
}

// extent returns when a round began and ended; what was drafted ahead of it belongs to the round before.
func extent(r client.Round) (from, to time.Duration) {
	begun := false
	for _, l := range r.Lanes {
		if l.Stage == "ahead" {
			continue
		}
		if !begun || l.From < from {
			from, begun = l.From, true
		}
		to = max(to, l.To)
	}
	return from, to
}

// lanes returns the timeline of a generation: for each drafter a lane of drafts and one of drafts ahead, then lanes for
// pool, verify and commit.
func lanes(out *talk.Answer) timeline.Timeline {
	t := timeline.Timeline{Title: fmt.Sprintf("tandem: %d tokens in %d rounds", len(out.Tokens), len(out.Rounds))}
	at := map[string]int{}
	lane := func(name string) int {
		i, there := at[name]
		if !there {
			i = len(t.Lanes)
			at[name] = i
			t.Lanes = append(t.Lanes, timeline.Lane{Name: name})
		}
		return i
	}
	for _, r := range out.Rounds {
		for _, l := range r.Lanes {
			if l.By != "" && l.Stage != "guess" {
				lane("draft " + l.By)
				lane("ahead " + l.By)
			}
		}
	}
	for _, stage := range []string{"pool", "verify", "commit"} {
		lane(stage)
	}
	for _, r := range out.Rounds {
		accepted := 0
		for _, n := range r.Nodes {
			if n.Accepted {
				accepted++
			}
		}
		for _, l := range r.Lanes {
			name := l.Stage
			if l.By != "" {
				name += " " + l.By
			}
			t.Stretches = append(t.Stretches, timeline.Stretch{Lane: lane(name), Name: fmt.Sprintf("%s %d", l.Stage, r.Index),
				Kind: l.Stage,
				From: l.From, To: l.To, Args: map[string]any{"round": r.Index, "base": r.Base, "choice": r.Choice, "why": r.Why,
					"nodes": len(r.Nodes) - 1, "accepted": accepted}})
		}
	}
	return t
}

// writable refuses a path that cannot be written, before anything runs; "" is no path.
func writable(flag, path string) error {
	if path == "" {
		return nil
	}
	_, err := os.Stat(path)
	isNew := os.IsNotExist(err)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, files.Reason(err))
	}
	f.Close()
	if isNew {
		os.Remove(path)
	}
	return nil
}

// writeWhole writes a file after write has succeeded; if write fails, the file stays as it was.
func writeWhole(flag, path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	err := write(&b)
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o644)
	}
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, files.Reason(err))
	}
	return nil
}
