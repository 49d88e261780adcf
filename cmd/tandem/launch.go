package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/agents"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/supervise"
)

type launchCmd struct {
	Program string   `arg:"" help:"claude, codex, opencode, qwen, cn or aider."`
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
	last, err := openLast(cacheFlags{c.CacheFolder})
	if err != nil {
		return err
	}
	if err := last.models(&c.serverFlags); err != nil {
		return err
	}
	return c.serve(a, program, path, last)
}

// given returns the server that --url names.
func (c *launchCmd) given() (served, error) {
	if c.Target != "" || len(c.Draft) > 0 {
		return served{}, tandem.Errorf("", tandem.Invalid, "--url with --target or --draft: want one of them")
	}
	url := strings.TrimSuffix(strings.TrimRight(c.URL, "/"), "/v1")
	if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
		return served{}, tandem.Errorf("", tandem.Invalid, "--url %.200s: want http://HOST:PORT", c.URL)
	}
	keys, err := c.tokens()
	if err != nil {
		return served{}, err
	}
	return served{url: url, key: append(keys, "any")[0]}, nil
}

// serve starts the processes, runs the program beside them, or prints its settings, and ends them.
func (c *launchCmd) serve(a *app, program agents.Program, path string, last *lastUsed) error {
	keys, err := c.tokens()
	if err != nil {
		return err
	}
	if len(keys) == 0 && !c.Print {
		keys = []string{last.Key} // so that other users of the machine cannot connect
		c.APIKey = keys
	}
	if err := c.settle(); err != nil {
		return err
	}
	if c.url() == "" || strings.HasPrefix(c.HTTP, "unix:") {
		return tandem.Errorf("", tandem.Invalid, "--http %s: a program needs a host and a port", c.HTTP)
	}
	if !c.Print {
		c.HTTP = free(c.HTTP)
		c.keep()
	}
	l, err := c.processes(a, "", settings.Logging{}, launchSessions)
	if err != nil {
		return err
	}
	if no, err := chats.Missing(c.ChatTemplate, l.target); err != nil || no != "" {
		return errors.Join(err, tandem.Errorf("", tandem.Unsupported, "%s needs a model that chats, and %s does not: %s", program.Name,
			terminal.Shown(l.target), no))
	}
	server := served{url: c.url(), key: append(keys, "any")[0]}
	if c.Print {
		info, err := engine.Inspect(l.target)
		if err != nil {
			return err
		}
		room := l.room.One
		if room == 0 {
			room = roles.Sizes(c.Sizes).ContextOf(info.Config.Context)
		}
		return c.print(a, program, server, description{Model: roles.ModelName(l.target), Context: room})
	}
	held := &agents.Held{To: a.stderr}
	if terminal.Is(os.Stderr) {
		a.stderr = held
	}
	p, err := c.start(a, l)
	if err != nil {
		return err
	}
	server.url = c.url()
	return p.During(a.ctx, a.force, func(ctx context.Context) error {
		if err := last.save(&c.serverFlags); err != nil {
			a.say("tandem: %v", err)
		}
		server.ours, server.held = true, held
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
func (c *launchCmd) start(a *app, l launch) (*group.Processes, error) {
	for try := 1; ; try++ {
		p, err := a.startProcesses(l)
		other := free(c.HTTP)
		if err == nil || try == portTries || a.ctx.Err() != nil || other == c.HTTP {
			return p, err
		}
		a.say("tandem: another process has taken %s meanwhile: starting again with another port", c.HTTP)
		if other, err = fixed(other); err != nil {
			return nil, err
		}
		c.HTTP, l.HTTP = other, other
	}
}

// free returns addr, or addr with a port that is free now if its own is in use.
func free(addr string) string {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		l.Close()
		return addr
	}
	if host, _, wrong := net.SplitHostPort(addr); wrong == nil {
		return net.JoinHostPort(host, "0")
	}
	return addr // refused later
}

// use runs the program with a server that is ready, and says what it had of it.
func (c *launchCmd) use(ctx context.Context, a *app, program agents.Program, path string, server served) error {
	before, err := server.describe(ctx)
	if err != nil {
		return err
	}
	if !before.Chat {
		return tandem.Errorf("", tandem.Unsupported, "%s needs a model that chats, and that of %s does not", program.Name, server.url)
	}
	if c.Print {
		return c.print(a, program, server, before)
	}
	status, err := c.run(ctx, a, program, path, server, before)
	if err == nil {
		a.say("tandem: %s", server.use(context.WithoutCancel(ctx), before).Line())
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
func (c *launchCmd) run(ctx context.Context, a *app, program agents.Program, path string, server served, d description) (_ int, err error) {
	dir, err := c.privateDir(fmt.Sprintf("agent-%s-%.4x", program.Name, sha256.Sum256([]byte("tandem launch "+server.key))))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	own := dir.File(program.Name)
	if err := os.Mkdir(own, 0o700); err != nil {
		return 0, err
	}
	if program, err = program.For(server.told(d, own)); err != nil {
		return 0, err
	}
	if err := program.Write(own); err != nil {
		return 0, err
	}
	if why := program.TooSmall(d.Context); why != "" {
		a.say("tandem: %s %s; want a model with a longer context, or more memory for it (docs/guides/agents.md)", program.Name, why)
	}
	running, err := program.Start(path, c.Args, os.Environ())
	if err != nil {
		return 0, err
	}
	defer a.interrupts.Set(running.Interrupt)()
	if server.held != nil {
		defer server.held.Hold()()
	}
	return running.Wait(ctx, a.force)
}

// privateDir makes a folder for the program: in the cache's, since Codex keeps no programs of its own in a folder for temporary files, else
// where run directories are.
func (c *launchCmd) privateDir(name string) (*supervise.RunDir, error) {
	if c.RunDir == "" {
		if kept, err := (cacheFlags{c.CacheFolder}).open(); err == nil && os.MkdirAll(kept.Folder(), 0o700) == nil {
			if dir, err := supervise.NamedDir(kept.Folder(), name); err == nil {
				return dir, nil
			}
		}
	}
	return supervise.NamedDir(c.RunDir, name)
}

// print prints the program's settings as commands of a shell.
func (c *launchCmd) print(a *app, program agents.Program, server served, d description) error {
	p, err := program.For(server.told(d, "{dir}"))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(terminal.Printable{To: a.stdout}, "# %s, tried with version %s (%s), and the server %s\n%s", p.Title, p.Version,
		p.Install, server.url, p.Script(c.Args))
	return err
}

// told returns what a program is told of the server. A model's name that settings cannot hold is replaced: the server takes any.
func (s served) told(d description, dir string) agents.Server {
	name := d.Model
	if name == "" || strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.:", r))
	}) {
		name = "tandem"
	}
	return agents.Server{URL: s.url, Key: s.key, Model: name, Context: d.Context, Dir: dir}
}

// use returns what was had of the server since before. A server of our own is asked for a few tokens of plain decoding if it did too little
// of it.
func (s served) use(ctx context.Context, before description) (u agents.Use) {
	after, err := s.quiet(ctx)
	if err != nil {
		return u
	}
	diff := func(name string) int64 { return after.Counters[name] - before.Counters[name] }
	u = agents.Use{Tokens: diff(gateway.RoundTokens), Time: micro(diff(gateway.RoundTime)), PlainRounds: diff(gateway.PlainRounds),
		PlainTime: micro(diff(gateway.PlainTime)), Drafts: after.Defaults.Speculation.Enabled && len(after.Drafters) > 0,
		Exact: after.Defaults.Accept == string(tandem.AcceptExact)}
	if !s.ours || !u.Drafts || u.Tokens < leastTokens || u.PlainRounds >= agents.LeastPlain || s.plain(ctx) != nil {
		return u
	}
	before = after
	if after, err = s.quiet(ctx); err == nil {
		u.PlainRounds, u.PlainTime, u.Sampled = diff(gateway.PlainRounds), micro(diff(gateway.PlainTime)), true
	}
	return u
}
