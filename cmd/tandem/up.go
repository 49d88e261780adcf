package main

import (
	"errors"
	"fmt"

	"github.com/tandem-llm/tandem"
)

type upCmd struct {
	Listen  string `help:"Address of the gateway, host:port or unix:///path." default:"127.0.0.1:8451" placeholder:"ADDR"`
	NoDraft bool   `help:"Run without a drafter."`
	groupFlags
	output
}

// upResult is what up prints once all processes serve.
type upResult struct {
	Gateway string         `json:"gateway"`
	RunDir  string         `json:"run_dir"`
	Target  string         `json:"target"`
	Draft   string         `json:"draft,omitempty"`
	PIDs    map[string]int `json:"pids"`
}

// Run runs the three processes until stopped.
func (c *upCmd) Run(a *app) error {
	target, draft, err := c.pair(c.NoDraft)
	if err != nil {
		return err
	}
	l := launch{groupFlags: c.groupFlags, target: target, draft: draft, listen: c.Listen, sessions: c.sessionsOr(defaultSessions)}
	if err := checkPair(l, tandem.Request{}); err != nil {
		return err
	}
	p, err := a.startProcesses(l)
	if err != nil {
		return err
	}
	err = c.print(a, upResult{Gateway: p.addr, RunDir: p.dir.Path, Target: target, Draft: draft, PIDs: p.group.Pids()})
	if err == nil {
		select {
		case err = <-p.group.Failed():
		case <-a.ctx.Done():
		}
	}
	return errors.Join(err, p.stop(a.force))
}

func (c *upCmd) print(a *app, r upResult) error {
	if c.JSON {
		return printJSON(a.stdout, r)
	}
	_, err := fmt.Fprintf(a.stdout, "gateway   %s\ntarget    %s\ndraft     %s\nprocesses %s\nstop with Ctrl-C\n", r.Gateway, r.Target, or(r.Draft, "none"), r.RunDir)
	return err
}
