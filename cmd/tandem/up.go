package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem"
)

type upCmd struct {
	Listen  string `help:"Address of the gateway, host:port or unix:///path." default:"127.0.0.1:8451" placeholder:"ADDR"`
	NoDraft bool   `help:"Run without a drafter."`
	speculationFlags
	groupFlags
	httpFlags
	output
}

// upResult is what up prints once all processes serve.
type upResult struct {
	Gateway string         `json:"gateway"`
	HTTP    string         `json:"http,omitempty"`
	Pool    string         `json:"pool"` // without its secret
	RunDir  string         `json:"run_dir"`
	Target  string         `json:"target"`
	Draft   string         `json:"draft,omitempty"`  // the first
	Drafts  []string       `json:"drafts,omitempty"` // all
	PIDs    map[string]int `json:"pids"`
}

// Run runs the three processes until stopped.
func (c *upCmd) Run(a *app) error {
	target, drafts, err := c.pair(c.NoDraft)
	if err != nil {
		return err
	}
	if _, err := c.defaults(); err != nil {
		return err
	}
	if err := c.httpFlags.check(); err != nil {
		return err
	}
	l := launch{groupFlags: c.groupFlags, speculationFlags: c.speculationFlags, httpFlags: c.httpFlags, target: target, drafts: drafts, listen: c.Listen, sessions: c.sessionsOr(defaultSessions)}
	if l, err = a.checked(l, tandem.Request{}); err != nil {
		return err
	}
	p, err := a.startProcesses(l)
	if err != nil {
		return err
	}
	up := upResult{Gateway: p.addr, HTTP: c.url(), Pool: p.pool(), RunDir: p.dir.Path, Target: target, Drafts: l.drafts, PIDs: p.group.Pids()}
	if len(l.drafts) > 0 {
		up.Draft = l.drafts[0]
	}
	err = c.print(a, up)
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
	_, err := fmt.Fprintf(a.stdout, "gateway   %s\nhttp      %s\npool      %s\ntarget    %s\ndraft     %s\nprocesses %s\nstop with Ctrl-C\n", r.Gateway, or(r.HTTP, "none"), r.Pool, r.Target, or(strings.Join(r.Drafts, ", "), "none"), r.RunDir)
	return err
}
