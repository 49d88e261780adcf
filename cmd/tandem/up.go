package main

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/processes/settings"
)

type upCmd struct {
	Name   string `arg:"" optional:"" completes:"models" help:"A model by name, file or folder."`
	Listen string `help:"Address of the gateway, host:port or unix:///path." default:"127.0.0.1:8451" placeholder:"ADDR" group:"Serving"`
	serverFlags
	settings.Logging
	output
}

// serverFlags say what gateway, drafter and verifier serve over HTTP.
type serverFlags struct {
	NoDraft bool `help:"Run without a drafter." group:"Speculation"`
	groupFlags
	settings.Speculation
	settings.Web
	settings.Drawing
	settings.Answers
}

// upResult is what up prints once all processes serve.
type upResult struct {
	Gateway string   `json:"gateway"`
	HTTP    string   `json:"http,omitempty"`
	Pool    string   `json:"pool"` // without its secret
	RunDir  string   `json:"run_dir"`
	Target  string   `json:"target"`
	Draft   string   `json:"draft,omitempty"`  // the first
	Drafts  []string `json:"drafts,omitempty"` // all
	Heads   []string `json:"heads,omitempty"`
	// side files of drafts
	DraftHeads []string       `json:"draft_heads,omitempty"`
	Sampling   string         `json:"sampling,omitempty"` // over HTTP, where a request says nothing
	Chat       bool           `json:"chat"`               // the model chats
	NoChat     string         `json:"no_chat,omitempty"`  // why it does not, and what would help
	Memory     *start.Room    `json:"memory,omitempty"`   // for keys and values; none: each process finds its own
	PIDs       map[string]int `json:"pids"`
}

// processes returns the processes with these settings, for so many sessions at once unless they say how many. listen is the gateway's
// address, "" for a socket in the run directory.
func (c *serverFlags) processes(a *app, listen string, logging settings.Logging, sessions int) (s start.Setup, err error) {
	defaults, err := requestDefaults(c.Speculation)
	if err != nil {
		return s, err
	}
	if err := c.named(a); err != nil {
		return s, err
	}
	target, drafts, err := modelPaths(c.Models, c.NoDraft, tandem.Request{Strategy: defaults.Strategy, Vote: defaults.Vote})
	if err != nil {
		return s, err
	}
	if c.NoDraft && len(c.Heads) > 0 {
		return s, tandem.Errorf("", tandem.Invalid, "--no-draft with --heads %s: want one of them", c.Heads[0])
	}
	if c.NoDraft && len(c.DraftHeads) > 0 {
		return s, tandem.Errorf("", tandem.Invalid, "--no-draft with --draft-heads %s: want one of them", c.DraftHeads[0])
	}
	if err := c.Web.Settle(); err != nil {
		return s, err
	}
	if err := start.CheckWeb(c.Web); err != nil {
		return s, err
	}
	start.WarnOfKeys(c.Web, a.say)
	if listen, err = start.FixedPort(listen); err != nil {
		return s, err
	}
	if c.HTTP, err = start.FixedPort(c.HTTP); err != nil {
		return s, err
	}
	s = start.Setup{Group: c.Group, Speculation: c.Speculation, Web: c.Web, Drawing: c.Drawing, Answers: c.Answers, Logging: logging,
		TargetFile: target, DraftFiles: drafts, At: listen, AtOnce: c.sessionsOr(sessions), KeepGateway: true}
	if !c.NoDraft {
		a.unnamed(&s)
	}
	if s, err = s.Checked(a.env(), tandem.Request{}); err != nil {
		return s, err
	}
	s.Wide()
	return s, nil
}

// named finds or fetches the target, and takes over what its store says of chats and of answers.
func (c *serverFlags) named(a *app) error {
	extras, err := a.target("", &c.Group)
	if err != nil {
		return err
	}
	c.ChatTemplate = or(c.ChatTemplate, extras.ChatTemplate)
	c.Drawing.Otherwise(extras.Preset)
	c.System = or(c.System, extras.System)
	if len(c.Stop) == 0 {
		c.Stop = extras.Stop
	}
	return nil
}

// Run runs the three processes until stopped.
func (c *upCmd) Run(a *app) error {
	if c.Name != "" && c.Target != "" {
		return tandem.Errorf("", tandem.Invalid, "the model %s with --target %s: want one of them", c.Name, c.Target)
	}
	c.Target = or(c.Target, c.Name)
	s, err := c.processes(a, c.Listen, c.Logging, settings.DefaultSessions)
	if err != nil {
		return err
	}
	info, err := engine.Inspect(s.TargetFile)
	if err != nil {
		return err
	}
	p, err := a.start(s)
	if err != nil {
		return err
	}
	up := upResult{Gateway: p.Addr, HTTP: c.Web.URL(), Pool: p.Pool(), RunDir: p.Dir.Path, Target: s.TargetFile, Drafts: s.DraftFiles,
		Heads: s.Heads, DraftHeads: s.DraftHeads, PIDs: p.Pids()}
	if up.HTTP != "" {
		up.Sampling = drawing(c.Drawing, info)
	}
	if len(s.DraftFiles) > 0 {
		up.Draft = s.DraftFiles[0]
	}
	if up.NoChat, err = chats.Missing(c.ChatTemplate, s.TargetFile); err != nil {
		return errors.Join(err, p.Stop(a.force))
	}
	up.Chat = up.NoChat == ""
	if s.Room.Tokens > 0 {
		up.Memory = &s.Room
	}
	err = c.print(a, up)
	debug.FreeOSMemory() // from now on this process only waits
	if err == nil {
		select {
		case err = <-p.Failed():
		case <-a.ctx.Done():
		}
	}
	return errors.Join(err, p.Stop(a.force))
}

func (c *upCmd) print(a *app, r upResult) error {
	if c.JSON {
		return terminal.PrintJSON(a.stdout, r)
	}
	heads := ""
	if len(r.Heads) > 0 {
		heads = "heads     " + terminal.AllShown(r.Heads) + "\n"
	}
	if len(r.DraftHeads) > 0 {
		heads += "of drafts " + terminal.AllShown(r.DraftHeads) + "\n"
	}
	if r.Sampling != "" {
		heads += "sampling  " + r.Sampling + "\n"
	}
	switch {
	case r.HTTP == "":
	case r.Chat:
		heads += "chat      yes\n"
	default:
		heads += "chat      no, it continues texts: " + terminal.Shown(r.NoChat) + "\n"
	}
	if r.Memory != nil {
		heads += "memory    " + r.Memory.String() + "\n"
	}
	_, err := fmt.Fprintf(a.stdout,
		"gateway   %s\nhttp      %s\npool      %s\ntarget    %s\ndraft     %s\n%sprocesses %s\nstop with Ctrl-C\n",
		terminal.Shown(r.Gateway), or(terminal.Shown(r.HTTP), "none"), terminal.Shown(r.Pool), terminal.Shown(r.Target),
		or(terminal.AllShown(r.Drafts), "none"), heads, terminal.Shown(r.RunDir))
	return err
}
