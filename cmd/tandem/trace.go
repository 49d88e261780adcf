package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/telemetry/timeline"
)

// traceCmd is generate with a report of every round, drawn on one clock.
type traceCmd struct {
	generateCmd
	Out string `short:"o" help:"File for the trace: JSON that ui.perfetto.dev and chrome://tracing open." default:"trace.json" placeholder:"FILE" setting:"-"`
	SVG string `help:"Draw the first rounds into this file as well." placeholder:"FILE" setting:"-"`
}

// drawnRounds is how many rounds a picture shows: more would be too narrow to tell apart.
const drawnRounds = 12

// Run continues one prompt and writes the files, at the end and as a whole: a request that fails leaves those of
// before.
func (c *traceCmd) Run(a *app) error {
	for flag, path := range map[string]string{"--out": c.Out, "--svg": c.SVG} {
		if err := writable(flag, path); err != nil {
			return err
		}
	}
	c.seen = func(out *outcome) error {
		t := lanes(out)
		if err := writeWhole("--out", c.Out, t.WriteChrome); err != nil {
			return err
		}
		if !c.JSON {
			fmt.Fprintf(a.stderr, "trace of %d rounds: %s (open it in https://ui.perfetto.dev)\n", len(out.rounds), c.Out)
		}
		if c.SVG == "" || len(out.rounds) == 0 {
			return nil
		}
		first, last := out.rounds[0], out.rounds[min(drawnRounds, len(out.rounds))-1]
		from, _ := extent(first)
		_, to := extent(last)
		return writeWhole("--svg", c.SVG, t.Between(from, to).WriteSVG)
	}
	return c.generateCmd.Run(a)
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

// lanes lays the rounds of a generation out: a lane for each drafter's drafts and one for what it drafted ahead, then
// pool, verify and commit.
func lanes(out *outcome) timeline.Timeline {
	t := timeline.Timeline{Title: fmt.Sprintf("tandem: %d tokens in %d rounds", len(out.tokens), len(out.rounds))}
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
	for _, r := range out.rounds {
		for _, l := range r.Lanes {
			if l.By != "" {
				lane("draft " + l.By)
				lane("ahead " + l.By)
			}
		}
	}
	for _, stage := range []string{"pool", "verify", "commit"} {
		lane(stage)
	}
	for _, r := range out.rounds {
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
			t.Stretches = append(t.Stretches, timeline.Stretch{Lane: lane(name), Name: fmt.Sprintf("%s %d", l.Stage, r.Index), Kind: l.Stage,
				From: l.From, To: l.To, Args: map[string]any{"round": r.Index, "base": r.Base, "choice": r.Choice, "why": r.Why,
					"nodes": len(r.Nodes) - 1, "accepted": accepted}})
		}
	}
	return t
}

// writable refuses, before anything is run, a path that cannot be written; "" is none.
func writable(flag, path string) error {
	if path == "" {
		return nil
	}
	_, err := os.Stat(path)
	isNew := os.IsNotExist(err)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, reason(err))
	}
	f.Close()
	if isNew {
		os.Remove(path)
	}
	return nil
}

// writeWhole writes a file that is there as a whole or, after an error, as it was before.
func writeWhole(flag, path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	err := write(&b)
	if err == nil {
		err = os.WriteFile(path, b.Bytes(), 0o644)
	}
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, reason(err))
	}
	return nil
}
