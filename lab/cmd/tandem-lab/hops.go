package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem/app/bench/prompts"
	"github.com/tandem-llm/tandem/app/bench/system"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/group"
	"github.com/tandem-llm/tandem/processes/roles/hops"
	"github.com/tandem-llm/tandem/services/peers/supervise"
	"github.com/tandem-llm/tandem/text/token"
)

// hopsCmd compares the coordination of real rounds with that of rounds in which nothing is computed.
type hopsCmd struct {
	Target   string   `help:"GGUF file of the target (default: the shipped one)." placeholder:"FILE"`
	Draft    []string `help:"GGUF file of a draft; may be repeated (default: the shipped experts)." placeholder:"FILE" sep:"none"`
	Prompts  string   `help:"JSON lines with id, domain and prompt (default: the shipped ones)." placeholder:"FILE"`
	Scenario []string `help:"Only this class of prompts; may be repeated." placeholder:"NAME"`
	Count    int      `help:"Prompts of each class; 0 = all." default:"4"`
	Threads  int      `help:"Threads of the verifier of empty rounds; 0 = all cores." default:"0"`
	requestFlags
	tandemFlags
	output
}

// version is what processes of empty rounds call theirs.
const version = "lab"

// Run measures real and empty rounds in turn.
func (c *hopsCmd) Run(a *app) (err error) {
	const suite, leastRounds = "hops", 100
	conf := system.Config{Suites: []string{suite}, Scenario: c.Scenario, Count: c.Count, Repeat: 1, Rounds: leastRounds, Parallel: 1}
	if conf.Request, err = c.request("x"); err != nil {
		return err
	}
	if conf.Target, err = find.Target(c.Target); err != nil {
		return err
	}
	if conf.Drafts, err = find.Drafts(c.Draft, c.Target, conf.Request); err != nil {
		return err
	}
	conf.Prompts = cmp.Or(c.Prompts, prompts.Texts)
	vocab, err := token.Open(conf.Target)
	if err != nil {
		return err
	}
	conf.Vocab = vocab.Size()
	conf.Start = func(g system.Group, do func(context.Context, system.Processes) error) error {
		flags := []string{"--target", g.Target, "--sessions", strconv.Itoa(g.Sessions), "--set", "prefix-cache=off"}
		for _, d := range g.Drafts {
			flags = append(flags, "--draft", d)
		}
		return c.start(a.ctx, a, flags, func(ctx context.Context, p talk.Processes) error { return do(ctx, p) })
	}
	conf.StartHops = func(ctx context.Context, do func(context.Context, system.Hops) error) error {
		return c.startEmpty(a, ctx, do)
	}
	r, err := system.Run(a.ctx, conf)
	if r == nil {
		return err
	}
	if failed := c.show(a, r); failed != nil || err != nil {
		return errors.Join(err, failed)
	}
	return r.Err()
}

// emptyCmd is a drafter or verifier of empty rounds, which hops starts.
type emptyCmd struct {
	Role    string `arg:"" enum:"drafter,verifier"`
	Listen  string
	Pool    string
	Drafter string
	ISA     string `name:"isa"`
	Threads int
	ReadyFD int `name:"ready-fd"`
	PulseFD int `name:"pulse-fd"`
}

// Run runs the process until it is stopped.
func (c *emptyCmd) Run(a *app) error {
	log := slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	peer := hops.Peer{Pool: c.Pool, Drafter: c.Drafter,
		Config: roles.Config{Listen: c.Listen, ReadyFD: c.ReadyFD, PulseFD: c.PulseFD, Version: version, Log: log},
		Models: roles.Models{Threads: c.Threads, Options: engine.Options{KVType: "f16"},
			Device: func(threads int) (roles.Device, error) { return device.Opener{ISA: c.ISA}.CPU(threads) }}}
	if c.Role == "drafter" {
		return hops.RunDrafter(a.ctx, peer)
	}
	return hops.RunVerifier(a.ctx, peer)
}

// startEmpty starts the processes of empty rounds, with this one as their gateway, calls do with them, and ends them.
func (c *hopsCmd) startEmpty(a *app, ctx context.Context, do func(context.Context, system.Hops) error) error {
	var gateway *hops.Gateway
	p, err := group.Start(ctx, group.Config{Stderr: a.stderr,
		Dial: func(string) ([]client.Option, error) { return nil, nil },
		Specs: func(dir *supervise.RunDir, addr string) (specs []supervise.Spec, err error) {
			drafter, verifier, pool := "unix://"+dir.File("drafter.sock"), "unix://"+dir.File("verifier.sock"), group.PoolFile(dir)
			gateway, err = hops.Start(ctx, hops.Config{Verifier: verifier, Drafter: drafter, PoolFile: pool, KeepAwake: true,
				Config: roles.Config{Listen: addr, Version: version,
					Log: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}})
			if err != nil {
				return nil, err
			}
			_, threads := group.Split(runtime.NumCPU(), 1, 0, c.Threads)
			for name, listen := range map[string]string{"drafter": drafter, "verifier": verifier} {
				args := []string{"empty", name, "--listen", listen, "--pool", "file:" + pool, "--drafter", drafter, "--isa", "auto",
					"--threads", strconv.Itoa(threads), "--ready-fd", strconv.Itoa(supervise.ReadyFD),
					"--pulse-fd", strconv.Itoa(supervise.PulseFD)}
				specs = append(specs, supervise.Spec{Name: name, Args: args})
			}
			return specs, nil
		}})
	if gateway != nil {
		defer gateway.Close()
	}
	if err != nil {
		return fmt.Errorf("processes of empty rounds: %w", err)
	}
	return p.During(ctx, ctx, func(ctx context.Context) error {
		if err := gateway.Await(ctx); err != nil {
			return err
		}
		return do(ctx, emptyRounds{gateway})
	})
}

// emptyRounds implements system.Hops.
type emptyRounds struct{ gateway *hops.Gateway }

// Rounds implements system.Hops.
func (e emptyRounds) Rounds(ctx context.Context, n int, s system.EmptyRound) ([]time.Duration, error) {
	return e.gateway.Rounds(ctx, n, hops.Shape(s))
}
