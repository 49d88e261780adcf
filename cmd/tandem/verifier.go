package main

import (
	"context"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/verifying"
	"github.com/tandem-llm/tandem/verifier"
)

type verifierCmd struct {
	Target string `help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE"`
	addressFlags
	kernelFlags
	roleFlags
}

// Run runs a verifier until it is stopped.
func (c *verifierCmd) Run(a *app) error {
	path, err := targetPath(c.Target)
	if err != nil {
		return err
	}
	var server *verifying.Server // set before the address is served
	r, err := a.startRole("verifier", or(c.Listen, verifierAddr), c.roleFlags, func() { server.Close() })
	if err != nil {
		return err
	}
	defer r.flush()
	server, undo, err := c.assemble(a.ctx, r, path)
	defer undo.run()
	if err != nil {
		r.server.Close()
		return err
	}
	server.Register(r.server.Registrar())
	return r.serve(a.ctx)
}

// assemble loads the model, puts the verifier together and starts its work on the pool.
func (c *verifierCmd) assemble(ctx context.Context, r *role, path string) (server *verifying.Server, undo cleanup, err error) {
	access, err := poolAccess(ctx, c.Pool)
	if err != nil {
		return nil, undo, err
	}
	m, err := r.loadModel(path, c.kernelFlags, treeRows)
	if err != nil {
		return nil, undo, err
	}
	undo.add(m.Close)
	v, err := verifier.New(verifier.Config{Model: m, Events: r.events, Counters: r.counters,
		Deliver: func(d tandem.Verdict) { server.Deliver(d) }})
	if err != nil {
		return nil, undo, err
	}
	undo.add(func() { shutdown(v.Shutdown) })
	server = verifying.NewServer(verifying.Config{Verifier: v, Describe: r.describe("verifier", path, "", m), Counters: r.counters})

	source := pool.SourceConfig{Config: pool.Config{Access: access, Counters: r.counters}, MaxNodes: treeRows, Vocab: m.Vocab().Size()}
	if c.Drafter != "" {
		conn, err := rpc.Dial(c.Drafter)
		if err != nil {
			return nil, undo, err
		}
		undo.add(func() { conn.Close() })
		claimer := drafting.NewClaimer(drafting.NewClient(conn))
		undo.add(claimer.Close)
		source.Claimer = claimer
	}
	tickets, err := pool.NewSource(source)
	if err != nil {
		return nil, undo, err
	}
	undo.add(tickets.Close)
	running, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = v.Run(running, tickets) }) // ends with running alone
	undo.add(func() {
		stop()
		wg.Wait()
	})
	return server, undo, nil
}
