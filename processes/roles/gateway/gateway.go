// Package gateway is a gateway process: the front ends that clients call, the pool's server, and a gateway that is kept informed of
// the processes behind it.
package gateway

import (
	"context"

	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/supervise"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/httpapi"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Run runs a gateway process until ctx ends.
func Run(ctx context.Context, c Setup) (err error) {
	target, err := c.readTarget()
	if err != nil {
		return err
	}
	r, err := roles.Start(ctx, rpc.Gateway, c.Peer, c.Program, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	if slow := chats.Slow(target.chat); slow != nil {
		r.Log.Warn(slow.Error())
	}
	c.Keys.Report(r.Log, r.Counters)
	c.MetricsKeys.Report(r.Log, r.Counters)
	c.PullKeys.Report(r.Log, r.Counters)
	var undo roles.Cleanup
	defer undo.Run()
	g, web, err := c.assemble(ctx, r, target, &undo)
	if err != nil {
		r.Server.Close()
		return err
	}
	err = serveWith(ctx, r, web)
	last, cancel := context.WithTimeout(context.Background(), gateway.DefaultTimeouts.Close)
	defer cancel()
	if ended := g.Shutdown(last); err == nil && ctx.Err() == nil {
		err = ended
	}
	return err
}

// assemble makes the parts of a gateway process, each from those before it: the pool, what verifies, what drafts, the gateway between
// them, and what clients call. Then it begins to follow the other processes, and announces this one. undo ends them, also after an error.
func (c Setup) assemble(ctx context.Context, r *roles.Process, target model, undo *roles.Cleanup) (
	*gateway.Gateway, *httpapi.Server, error) {
	if err := c.meet(r.Certificate); err != nil {
		return nil, nil, err
	}
	vocab := sparing{target.vocab, budget.NewTexts()}
	pool, err := c.joinPool(ctx, r, undo)
	if err != nil {
		return nil, nil, err
	}
	verifiers := newVerifiers(r, target, c.Verifier, pool)
	own, err := c.newOwnDrafters(r, target.vocab.Size(), verifiers, undo)
	if err != nil {
		return nil, nil, err
	}
	g, err := gateway.New(c.config(r, target, vocab, verifiers, own))
	if err != nil {
		return nil, nil, err
	}
	drafters, err := newDrafters(r, target, c.Drafter, pool.config, g, verifiers, own, undo)
	if err != nil {
		return nil, nil, err
	}
	fleet := &membership{verifiers: verifiers}
	service := newService(r, target, g, c.KeepAwake, peers{verifiers, drafters, own, fleet})
	service.serveRPC(c, vocab)
	web, err := service.openHTTP(ctx, c, vocab.texts, drafters.Names, undo)
	if err != nil {
		return nil, nil, err
	}
	if err := verifiers.begin(g, service.monitor, drafters.Members, undo); err != nil {
		return nil, nil, err
	}
	return g, web, fleet.join(r, pool.config, g, target.file(), web, undo)
}

// config returns the configuration of the gateway between verifiers and drafters.
func (c Setup) config(r *roles.Process, target model, vocab sparing, v *verifiers, own ownDrafters) gateway.Config {
	out := gateway.Config{Vocab: vocab, Verifier: v, Limits: target.limits, Sessions: r.Sessions, Queue: roles.QueuePerSession * r.Sessions,
		Events: r.Events, Counters: r.Counters, ModelName: target.file(), Fingerprint: target.fingerprint, Rules: c.Rules,
		Embedding: target.embedding, Recycling: c.Recycling}
	out.Embedding.Source = v
	if r.ReadyFD != 0 {
		out.Earned = func(e worth.Earned) { _ = supervise.Tell(r.ReadyFD, e.String()) } // nobody waits for it
	}
	if own.lookup != nil {
		out.Drafters, out.Remember = []gateway.Enlisted{{Name: lookup.Name, Drafter: own.lookup, Last: true}}, own.lookup.Remember
	}
	return out
}
