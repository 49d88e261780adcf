package main

import (
	"context"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/discovery"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/verifying"
	"github.com/tandem-llm/tandem/services/wire"
	"github.com/tandem-llm/tandem/verifier"
)

type verifierCmd struct {
	Target string `help:"GGUF file of the target model (default: the shipped one)." placeholder:"FILE"`
	addressFlags
	kernelFlags
	prefixFlags
	roleFlags
	measureFlags
	spareFlags
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
	access, err := r.poolAccess(ctx, c.Pool)
	if err != nil {
		return nil, undo, err
	}
	prefixes, err := c.prefixFlags.pages()
	if err != nil {
		return nil, undo, err
	}
	models, err := r.loadModels([]string{path}, c.kernelFlags, treeRows)
	if err != nil {
		return nil, undo, err
	}
	m := models[0]
	undo.add(m.Close)
	var costs []tandem.Cost
	if c.Measure {
		costs = r.costs(ctx, m, path, c.Listen, c.KVType, c.SpareThreads)
	}
	v, err := verifier.New(verifier.Config{Model: m, Events: r.events, Counters: r.counters, Costs: costs, PrefixCache: prefixes,
		Deliver: func(d tandem.Verdict) { server.Deliver(d) }})
	if err != nil {
		return nil, undo, err
	}
	undo.add(func() { shutdown(v.Shutdown) })
	describe := r.describe("verifier", path, "", m)
	server = verifying.NewServer(verifying.Config{Verifier: v, Counters: r.counters, Submit: v.Submit, MaxNodes: treeRows, Vocab: m.Vocab().Size(),
		Describe: func() wire.Description {
			d := describe()
			d.Costs, d.PageTokens = costs, kvPageRows
			return d
		}})
	r.server.WhenGone(func(process uint64) { _ = v.CloseOwned(context.Background(), process) })

	poolConfig := pool.Config{Access: access, Counters: r.counters}
	claimers := new(discovery.Claimers)
	table, err := discovery.NewTable(discovery.Config{Pool: poolConfig, Dial: r.identity.Dial, Static: c.Drafter, Counters: r.counters, Changed: claimers.Update})
	if err != nil {
		return nil, undo, err
	}
	undo.add(table.Close)
	undo.add(claimers.Close)
	source := pool.SourceConfig{Config: poolConfig, MaxNodes: treeRows, Vocab: m.Vocab().Size(), Claimer: claimers}
	tickets, err := pool.NewSource(source)
	if err != nil {
		return nil, undo, err
	}
	r.gauge("pool.depth", func() int64 { return int64(tickets.Depth()) })
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
