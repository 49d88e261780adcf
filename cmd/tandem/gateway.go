package main

import (
	"context"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/services/discovery"
	"github.com/tandem-llm/tandem/services/drafting"
	httpapi "github.com/tandem-llm/tandem/services/httpapi"
	"github.com/tandem-llm/tandem/services/httpapi/playground"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/verifying"
)

type gatewayCmd struct {
	Target string `help:"GGUF file of the target model, for its tokenizer (default: the shipped one)." placeholder:"FILE"`
	addressFlags
	awakeFlags
	speculationFlags
	ruleFlags
	roleFlags
	httpFlags
}

// front is a gateway with what its clients reach it by, besides the role's gRPC server.
type front struct {
	*gateway.Gateway
	web *httpapi.Server // nil for none
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
	rules, err := c.rules()
	if err != nil {
		return err
	}
	defaults, err := c.defaults()
	if err != nil {
		return err
	}
	r, err := a.startRole("gateway", or(c.Listen, gatewayAddr), c.roleFlags, nil)
	if err != nil {
		return err
	}
	defer r.flush()
	g, undo, err := c.assemble(a.ctx, r, gateway.Config{
		Vocab: gateway.FromToken(vocab), Limits: tandem.Limits{Context: c.context(info.Config.Context), Vocab: vocab.Size()},
		ModelName: modelName(path), Rules: rules}, defaults, model{path, info.Config.Arch, vocab})
	defer undo.run()
	if err != nil {
		r.server.Close()
		return err
	}
	err = r.serveWith(a.ctx, g.web)
	ctx, cancel := context.WithTimeout(context.Background(), gateway.DefaultTimeouts.Close)
	defer cancel()
	if ended := g.Shutdown(ctx); err == nil && a.ctx.Err() == nil {
		err = ended
	}
	return err
}

// assemble puts the gateway together from the rest of its configuration and registers it.
func (c *gatewayCmd) assemble(ctx context.Context, r *role, config gateway.Config, defaults public.Defaults, target model) (out front, undo cleanup, err error) {
	keys, err := c.keys()
	if err != nil {
		return out, undo, err
	}
	access, closePool, err := c.openPool(ctx, r)
	if err != nil {
		return out, undo, err
	}
	undo.add(closePool)
	poolConfig := pool.Config{Access: access, Counters: r.counters}
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: poolConfig})
	if err != nil {
		return out, undo, err
	}
	undo.add(publisher.Close)

	verifierConn, err := r.identity.Dial(or(c.Verifier, verifierAddr))
	if err != nil {
		return out, undo, err
	}
	undo.add(func() { verifierConn.Close() })
	verifier := verifying.NewClient(verifierConn)
	tickets := &pool.Fallback{First: publisher, Second: verifier, Up: publisher.Connected, Counters: r.counters}
	config.Verifier, config.Pool, config.Events, config.Counters = verifier, tickets, r.events, r.counters
	config.Sessions = c.sessionsOr(defaultSessions)
	config.Queue = 16 * config.Sessions
	g, err := gateway.New(config)
	if err != nil {
		return out, undo, err
	}
	members := newMembers(g, target.vocab, r, tickets)
	table, err := discovery.NewTable(discovery.Config{Pool: poolConfig, Dial: r.identity.Dial, Static: c.Drafter, Counters: r.counters, Changed: members.update})
	if err != nil {
		return out, undo, err
	}
	undo.add(table.Close)
	peers := &peers{verifier: verifier, members: members}
	var generator tandem.Generator = g
	if c.KeepAwake {
		generator = &awake{Generator: g, counters: r.counters}
	}
	monitor := httpapi.NewMonitor(generator, r.events.Mute)
	describe := peers.describer(r, config.ModelName, config.Limits)
	metrics := newMetrics(r, g, config.ModelName, describe)
	generator = metrics.Wrap(monitor)
	public.Register(r.server.Registrar(), public.Config{Generator: r.traces.RPC(public.Method, generator), Model: config.ModelName, Defaults: defaults, Describe: describe,
		Vocab: target.vocab, Keys: keys})
	out = front{Gateway: g}
	if c.HTTP != off {
		out.web, err = c.web(httpapi.Config{Generator: generator, Defaults: defaults, Limits: config.Limits, Describe: describe, Drafters: members.names,
			Health: monitor.Health, Loading: monitor.Loading, Metrics: metrics.Handler(), Wrap: func(h http.Handler) http.Handler { return metrics.Count(r.traces.HTTP(h)) }, Page: playground.Handler(), Keys: keys,
			Insecure: c.InsecureListen, Grace: c.Grace, Log: r.log, Counters: r.counters}, target)
		if err != nil {
			return out, undo, err
		}
	}
	undo.add(follow(g, verifier, monitor.VerifierState))
	return out, undo, nil
}

// defaults are what requests get that say nothing.
func (s speculationFlags) defaults() (public.Defaults, error) {
	r := tandem.Request{Prompt: "x", MaxTokens: 128, Sampling: tandem.Sampling{TopP: 1}}
	err := s.speculate(&r)
	if err == nil {
		err = r.Validate(tandem.Limits{})
	}
	return public.Defaults{MaxTokens: r.MaxTokens, Sampling: r.Sampling, Bounds: r.Bounds, Strategy: r.Strategy, Vote: r.Vote,
		Drafters: r.Drafters, Without: r.Without}, err
}

// peers are the processes behind a gateway.
type peers struct {
	verifier *verifying.Client
	members  *members
}

// describer tells what the gateway and the processes behind it are.
func (p *peers) describer(r *role, model string, l tandem.Limits) func(context.Context) public.Description {
	self := r.describeProcess("gateway", "")
	return func(ctx context.Context) public.Description {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		here := self()
		here.Model = model
		d := public.Description{Version: here.Version, Model: model, Vocab: l.Vocab, Context: l.Context, Counters: here.Counters}
		d.Processes = append(d.Processes, public.Process{Role: "gateway", Up: true, Description: here})
		v, err := p.verifier.Describe(ctx)
		d.Processes = append(d.Processes, public.Process{Role: "verifier", Up: err == nil, Description: v})
		for _, x := range p.members.processes() {
			v, err := drafting.NewClient(x.Conn, "").Describe(ctx)
			if v.Name == "" && len(x.Drafters) > 0 { // away
				v.Name = x.Drafters[0].Name
			}
			if v.Model = x.models(); v.Model == "" {
				v.Model = v.Name
			}
			d.Processes = append(d.Processes, public.Process{Role: "drafter", Up: err == nil && x.used > 0, Description: v})
		}
		return d
	}
}

// openPool returns how to reach the pool, and runs a server for it if none is named.
func (c *gatewayCmd) openPool(ctx context.Context, r *role) (pool.Access, func(), error) {
	switch {
	case c.Pool != "" && c.PoolListen != "":
		return pool.Access{}, nil, tandem.Errorf("", tandem.Invalid, "--pool and --pool-listen together: want one, a pool that is there or one to serve")
	case c.Pool != "":
		access, err := r.poolAccess(ctx, c.Pool)
		return access, func() {}, err
	}
	server, err := c.startPool(r.identity)
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
		written := server.Access()
		written.URL = reachableURL(written.URL, r.identity)
		if err := writePoolFile(c.PoolFile, written); err != nil {
			undo()
			return pool.Access{}, nil, err
		}
	}
	access := server.Access()
	if access.TLS = r.identity.Client(); access.TLS != nil {
		access.TLS.ServerName = r.identity.Name() // whatever the address, it is this process
	}
	return access, undo, nil
}

// follow hands the verifier's verdicts and state to g, and its state to another, until the function that it returns is
// called.
func follow(g *gateway.Gateway, verifier *verifying.Client, state func(up bool)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		verifier.Run(ctx, g.Deliver, func(up bool) {
			g.VerifierState(up)
			state(up)
			if up {
				wg.Go(func() { introduce(ctx, g, verifier) })
			}
		})
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// introduce tells g what a verifier that has come up is, unless it is gone again.
func introduce(ctx context.Context, g *gateway.Gateway, verifier *verifying.Client) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if d, err := verifier.Describe(ctx); err == nil {
		g.VerifierIs(d.Costs, d.KVCapacity, d.PageTokens)
	}
}
