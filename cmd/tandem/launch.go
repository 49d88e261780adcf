package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/agents"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

type launchCmd struct {
	Program string   `arg:"" completes:"agents" help:"claude, codex, opencode, qwen, cn or aider."`
	Args    []string `arg:"" optional:"" sep:"none" help:"Arguments of the program, behind --."`
	URL     string   `name:"url" help:"Use the server at this address instead of starting one." placeholder:"URL" setting:"-" group:"Serving"`
	Print   bool     `help:"Print the program's settings as commands of a shell. Starts nothing." setting:"-" group:"Serving"`
	serverFlags
}

// exitStatus is the exit status of a program that a command has run, and that of the command: the program has said why.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// launchSessions are enough for a program that asks for a title and an answer at once. Fewer sessions leave longer ones.
const launchSessions = 2

// Run starts what the program needs, runs it, and ends what was started.
func (c *launchCmd) Run(a *app) error {
	program, err := agents.Find(c.Program)
	if err != nil {
		return err
	}
	path := ""
	if !c.Print {
		if path, err = program.Look(); err != nil {
			return err
		}
	}
	if c.URL != "" {
		server, err := c.given()
		if err != nil {
			return err
		}
		return c.use(a.ctx, a, program, path, server)
	}
	folder, err := start.CacheDir(c.CacheDir)
	if err != nil {
		return err
	}
	last, err := agents.OpenLast(folder)
	if err != nil {
		return err
	}
	m := c.models()
	if err := last.Else(&m); err != nil {
		return err
	}
	c.Target, c.Draft, c.Heads, c.DraftHeads = m.Target, m.Draft, m.Heads, m.DraftHeads
	c.NoDraft, c.ChatTemplate = m.NoDraft, m.ChatTemplate
	return c.serve(a, program, path, last)
}

// models returns the models that the flags name.
func (c *launchCmd) models() agents.Models {
	return agents.Models{Target: c.Target, Draft: c.Draft, Heads: c.Heads, DraftHeads: c.DraftHeads, ChatTemplate: c.ChatTemplate,
		NoDraft: c.NoDraft}
}

// given returns the server that --url names.
func (c *launchCmd) given() (agents.Gateway, error) {
	if c.Target != "" || len(c.Draft) > 0 {
		return agents.Gateway{}, tandem.Errorf("", tandem.Invalid, "--url with --target or --draft: want one of them")
	}
	url := strings.TrimSuffix(strings.TrimRight(c.URL, "/"), "/v1")
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return agents.Gateway{}, tandem.Errorf("", tandem.Invalid, "--url %.200s: want http://HOST:PORT", c.URL)
	}
	keys, err := start.Tokens(c.Web)
	if err != nil {
		return agents.Gateway{}, err
	}
	return agents.Gateway{URL: url, Key: append(keys, "any")[0]}, nil
}

// serve starts the processes, runs the program beside them, or prints its settings, and ends them.
func (c *launchCmd) serve(a *app, program agents.Program, path string, last *agents.Last) error {
	keys, err := start.Tokens(c.Web)
	if err != nil {
		return err
	}
	if len(keys) == 0 && !c.Print {
		keys = []string{last.Key} // so that other users of the machine cannot connect
		c.APIKey = keys
	}
	if err := c.Web.Settle(); err != nil {
		return err
	}
	if c.Web.URL() == "" || strings.HasPrefix(c.HTTP, "unix:") {
		return tandem.Errorf("", tandem.Invalid, "--http %s: a program needs a host and a port", c.HTTP)
	}
	if !c.Print {
		c.HTTP = start.FreePort(c.HTTP)
		c.keep()
	}
	s, err := c.processes(a, "", settings.Logging{}, launchSessions)
	if err != nil {
		return err
	}
	if no, err := chats.Missing(c.ChatTemplate, s.TargetFile); err != nil || no != "" {
		return errors.Join(err, tandem.Errorf("", tandem.Unsupported, "%s needs a model that chats, and %s does not: %s", program.Name,
			terminal.Shown(s.TargetFile), no))
	}
	server := agents.Gateway{URL: c.Web.URL(), Key: append(keys, "any")[0]}
	if c.Print {
		info, err := engine.Inspect(s.TargetFile)
		if err != nil {
			return err
		}
		room := s.Room.One
		if room == 0 {
			room = c.Sizes.ContextOf(info.Config.Context)
		}
		return c.print(a, program, server, agents.Description{Model: roles.ModelName(s.TargetFile), Context: room})
	}
	held := &agents.Held{To: a.stderr}
	if terminal.Is(os.Stderr) {
		a.stderr = held
	}
	p, err := c.start(a, s)
	if err != nil {
		return err
	}
	server.URL = c.Web.URL()
	return p.During(a.ctx, a.force, func(ctx context.Context) error {
		if err := last.Save(c.models()); err != nil {
			a.say("tandem: %v", err)
		}
		server.Held = held
		return c.use(ctx, a, program, path, server)
	})
}

// launchStore is what prefixes may take on disk unless --prefix-store says it: an agent begins with the same thousands of tokens each time.
const launchStore settings.Size = 8 << 30

// keep has the verifier keep long prefixes on disk, unless a setting says otherwise.
func (c *launchCmd) keep() {
	if c.PrefixStore.PrefixStore == nil && c.PrefixCache != "off" {
		c.PrefixStore.PrefixStore = new(launchStore)
	}
}

// portTries bounds how often launch starts its processes because another process took their port.
const portTries = 4

// start starts the processes. Between the look whether the port is free and the gateway's use of it another process can take it, such as a
// launch at the same moment: then they start again with another port.
func (c *launchCmd) start(a *app, s start.Setup) (*group.Processes, error) {
	for try := 1; ; try++ {
		p, err := a.start(s)
		other := start.FreePort(c.HTTP)
		if err == nil || try == portTries || a.ctx.Err() != nil || other == c.HTTP {
			return p, err
		}
		a.say("tandem: another process has taken %s meanwhile: starting again with another port", c.HTTP)
		if other, err = start.FixedPort(other); err != nil {
			return nil, err
		}
		c.HTTP, s.HTTP = other, other
	}
}

// use runs the program with a server that is ready, and says what it had of it.
func (c *launchCmd) use(ctx context.Context, a *app, program agents.Program, path string, server agents.Gateway) error {
	before, err := server.Describe(ctx)
	if err != nil {
		return err
	}
	if !before.Chat {
		return tandem.Errorf("", tandem.Unsupported, "%s needs a model that chats, and that of %s does not", program.Name, server.URL)
	}
	if c.Print {
		return c.print(a, program, server, before)
	}
	status, err := c.run(ctx, a, program, path, server, before)
	if err == nil {
		a.say("tandem: %s", server.Used(context.WithoutCancel(ctx), before).Line())
	}
	switch {
	case err == nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil && status != 0:
		err = exitStatus(status)
	}
	return err
}

// run runs the program to its end, in a private folder that is removed with it. Its name is the same for a program and a key each time:
// programs write it into their prompts, and a kept prefix would end there.
func (c *launchCmd) run(ctx context.Context, a *app, program agents.Program, path string, server agents.Gateway,
	d agents.Description) (_ int, err error) {
	dir, err := c.privateDir(fmt.Sprintf("agent-%s-%.4x", program.Name, sha256.Sum256([]byte("tandem launch "+server.Key))))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	own := dir.File(program.Name)
	if err := os.Mkdir(own, 0o700); err != nil {
		return 0, err
	}
	if program, err = program.For(server.Told(d, own)); err != nil {
		return 0, err
	}
	if err := program.Write(own); err != nil {
		return 0, err
	}
	if why := program.TooSmall(d.Context); why != "" {
		a.say("tandem: %s %s; want a model with a longer context, or more memory for it (docs/guides/agents.md)", program.Name, why)
	}
	var started atomic.Pointer[agents.Running]
	restore := a.interrupts.Set(func() { // before the program may have the terminal's
		if r := started.Load(); r != nil {
			r.Interrupt()
		}
	})
	running, err := program.Start(path, c.Args, os.Environ())
	if err != nil {
		restore()
		return 0, err
	}
	started.Store(running)
	if server.Held != nil {
		defer server.Held.Hold()()
	}
	status, err := running.Wait(ctx, a.force)
	a.interrupts.Set(func() { restore() }) // the interrupt that has ended the program may come here only now; the next one counts
	return status, err
}

// privateDir makes a folder for the program: in the cache's, since Codex keeps no programs of its own in a folder for temporary files, else
// where run directories are.
func (c *launchCmd) privateDir(name string) (*supervise.RunDir, error) {
	if c.RunDir == "" {
		if kept, err := start.OpenCache(c.CacheFolder); err == nil && os.MkdirAll(kept.Folder(), 0o700) == nil {
			if dir, err := supervise.NamedDir(kept.Folder(), name); err == nil {
				return dir, nil
			}
		}
	}
	return supervise.NamedDir(c.RunDir, name)
}

// print prints the program's settings as commands of a shell.
func (c *launchCmd) print(a *app, program agents.Program, server agents.Gateway, d agents.Description) error {
	p, err := program.For(server.Told(d, "{dir}"))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(terminal.Printable{To: a.stdout}, "# %s, tried with version %s (%s), and the server %s\n%s", p.Title, p.Version,
		p.Install, server.URL, p.Script(c.Args))
	return err
}
