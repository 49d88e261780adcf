package main

import (
	"context"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/verifying"
	"github.com/tandem-llm/tandem/services/wire"
)

type gatewayCmd struct {
	Target string `help:"GGUF file of the target model, for its tokenizer (default: the shipped one)." placeholder:"FILE"`
	addressFlags
	awakeFlags
	roleFlags
}

// Run runs a gateway until it is stopped.
func (c *gatewayCmd) Run(a *app) (err error) {
	path, err := targetPath(c.Target)
	if err != nil {
		return err
	}
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	vocab, err := readVocab(path)
	if err != nil {
		return err
	}
	r, err := a.startRole("gateway", or(c.Listen, gatewayAddr), c.roleFlags, nil)
	if err != nil {
		return err
	}
	defer r.flush()
	g, undo, err := c.assemble(a.ctx, r, path, vocab, info.Config)
	defer undo.run()
	if err != nil {
		r.server.Close()
		return err
	}
	err = r.serve(a.ctx)
	ctx, cancel := context.WithTimeout(context.Background(), gateway.DefaultTimeouts.Close)
	defer cancel()
	if ended := g.Shutdown(ctx); err == nil && a.ctx.Err() == nil {
		err = ended
	}
	return err
}

// assemble puts the gateway together and registers it.
func (c *gatewayCmd) assemble(ctx context.Context, r *role, path string, vocab *token.Vocab, cfg engine.Config) (g *gateway.Gateway, undo cleanup, err error) {
	access, closePool, err := c.openPool(ctx)
	if err != nil {
		return nil, undo, err
	}
	undo.add(closePool)
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: pool.Config{Access: access, Counters: r.counters}})
	if err != nil {
		return nil, undo, err
	}
	undo.add(publisher.Close)

	verifierConn, err := rpc.Dial(or(c.Verifier, verifierAddr))
	if err != nil {
		return nil, undo, err
	}
	undo.add(func() { verifierConn.Close() })
	verifier := verifying.NewClient(verifierConn)
	sessions := c.sessionsOr(defaultSessions)
	config := gateway.Config{
		Vocab: gateway.FromToken(vocab), Verifier: verifier, Pool: publisher, Sessions: sessions, Queue: 16 * sessions,
		Limits: tandem.Limits{Context: c.context(cfg.Context), Vocab: vocab.Size()},
		Events: r.events, Counters: r.counters, ModelName: modelName(path),
	}
	peers := &peers{verifier: verifier}
	var drafterConn *grpc.ClientConn
	if c.Drafter != "" {
		if drafterConn, err = rpc.Dial(c.Drafter); err != nil {
			return nil, undo, err
		}
		undo.add(func() { drafterConn.Close() })
		drafter := drafting.NewClient(drafterConn)
		config.Drafter, config.DrafterName, peers.drafter = drafter, "drafter", drafter
	}
	if g, err = gateway.New(config); err != nil {
		return nil, undo, err
	}
	var generator tandem.Generator = g
	if c.KeepAwake {
		generator = &awake{Generator: g, counters: r.counters}
	}
	public.Register(r.server.Registrar(), public.Config{
		Generator: generator, Model: modelName(path), Defaults: requestDefaults(c.Drafter != ""), Describe: peers.describer(r, modelName(path), config.Limits)})
	undo.add(follow(g, verifier, drafterConn))
	return g, undo, nil
}

// requestDefaults are what a request gets that says nothing: the defaults of generate's flags.
func requestDefaults(drafts bool) public.Defaults {
	d := public.Defaults{MaxTokens: 128, Sampling: tandem.Sampling{TopP: 1}}
	if drafts {
		d.Policy = tandem.Policy{Nodes: 16, Depth: 7, Width: 10}
	}
	return d
}

// peers are the processes behind a gateway; drafter is nil when there is none.
type peers struct {
	verifier *verifying.Client
	drafter  *drafting.Client
}

// describer tells what the gateway and the processes behind it are.
func (p *peers) describer(r *role, model string, l tandem.Limits) func(context.Context) public.Description {
	version := buildVersion().Version
	return func(ctx context.Context) public.Description {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		d := public.Description{Version: version, Model: model, Vocab: l.Vocab, Context: l.Context, Counters: r.counters.Snapshot()}
		d.Processes = append(d.Processes, public.Process{Role: "gateway", Up: true,
			Description: wire.Description{Name: "gateway", Version: version, Model: model, PID: os.Getpid(), Counters: d.Counters}})
		v, err := p.verifier.Describe(ctx)
		d.Processes = append(d.Processes, public.Process{Role: "verifier", Up: err == nil, Description: v})
		if p.drafter != nil {
			v, err = p.drafter.Describe(ctx)
			d.Processes = append(d.Processes, public.Process{Role: "drafter", Up: err == nil, Description: v})
		}
		return d
	}
}

// openPool returns how to reach the pool, and runs a server for it if none is named.
func (c *gatewayCmd) openPool(ctx context.Context) (pool.Access, func(), error) {
	if c.Pool != "" {
		access, err := poolAccess(ctx, c.Pool)
		return access, func() {}, err
	}
	server, err := pool.StartServer()
	if err != nil {
		return pool.Access{}, nil, err
	}
	undo := func() {
		server.Close()
		if c.PoolFile != "" {
			os.Remove(c.PoolFile)
		}
	}
	if c.PoolFile != "" {
		if err := writePoolFile(c.PoolFile, server.Access()); err != nil {
			undo()
			return pool.Access{}, nil, err
		}
	}
	return server.Access(), undo, nil
}

// follow hands the verifier's verdicts and the state of both peers to g until the function that it
// returns is called.
func follow(g *gateway.Gateway, verifier *verifying.Client, drafter *grpc.ClientConn) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { verifier.Run(ctx, g.Deliver, g.VerifierState) })
	if drafter != nil {
		wg.Go(func() {
			for state := drafter.GetState(); ; state = drafter.GetState() {
				if state == connectivity.Idle {
					drafter.Connect()
				}
				g.DrafterState(state == connectivity.Ready)
				if !drafter.WaitForStateChange(ctx, state) {
					return
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}
