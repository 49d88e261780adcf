package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/bench/system"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/group"
	"github.com/tandem-llm/tandem/roles/hops"
	"github.com/tandem-llm/tandem/services/supervise"
	"github.com/tandem-llm/tandem/settings"
)

// hopsCmd is a drafter or verifier of empty rounds, which bench system starts.
type hopsCmd struct {
	Role string `arg:"" enum:"drafter,verifier"`
	settings.Addresses
	kernelFlags
	settings.Process
	settings.Logging
	childFlags
}

// Run runs the process until it is stopped.
func (c *hopsCmd) Run(a *app) error {
	models, err := c.models(a)
	if err != nil {
		return err
	}
	models.Device = func(threads int) (roles.Device, error) { return openCPU(threads, c.ISA) }
	peer := hops.Peer{Config: c.config(a, c.Listen, c.Process, c.Logging), Models: models, Pool: c.Pool}
	if c.Role == "drafter" {
		return hops.RunDrafter(a.ctx, peer)
	}
	if len(c.Drafter) != 1 {
		return tandem.Errorf("", tandem.Invalid, "--drafter is given %d times: want it once", len(c.Drafter))
	}
	peer.Drafter = c.Drafter[0]
	return hops.RunVerifier(a.ctx, peer)
}

// startHops starts the processes of empty rounds, with this one as their gateway, calls do with them, and ends them.
func (c *benchSystemCmd) startHops(a *app, ctx context.Context, do func(context.Context, system.Hops) error) error {
	var gateway *hops.Gateway
	p, err := group.Start(ctx, group.Config{RunDir: c.RunDir, Stderr: a.stderr,
		Dial: func(string) ([]client.Option, error) { return nil, nil },
		Specs: func(dir *supervise.RunDir, addr string) (specs []supervise.Spec, err error) {
			drafter, verifier, pool := "unix://"+dir.File("drafter.sock"), "unix://"+dir.File("verifier.sock"), group.PoolFile(dir)
			gateway, err = hops.Start(ctx, hops.Config{Verifier: verifier, Drafter: drafter, PoolFile: pool, KeepAwake: c.KeepAwake,
				Config: roles.Config{Listen: addr, SecretFile: c.SecretFile, Version: buildVersion().Version,
					Log: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}})
			if err != nil {
				return nil, err
			}
			_, threads := group.Split(runtime.NumCPU(), true, c.DrafterThreads, c.VerifierThreads)
			for name, listen := range map[string]string{"drafter": drafter, "verifier": verifier} {
				args := []string{"hops", name, "--listen", listen, "--pool", "file:" + pool, "--drafter", drafter, "--isa", c.ISA,
					"--threads", strconv.Itoa(threads), "--ready-fd", strconv.Itoa(supervise.ReadyFD),
					"--pulse-fd", strconv.Itoa(supervise.PulseFD)}
				if c.SecretFile != "" {
					args = append(args, "--set", "secret-file="+c.SecretFile)
				}
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
	return p.During(ctx, a.force, func(ctx context.Context) error {
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
