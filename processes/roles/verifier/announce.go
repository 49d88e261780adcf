package verifier

import (
	"cmp"
	"context"

	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/verifier"
)

// announce tells gateways of the verifier, and of the queue of its tickets, through the pool's server, until undo runs, and serves the call
// that drains it.
func (c Setup) announce(ctx context.Context, r *roles.Process, v *verifier.Verifier, p pool.Config, queue string, undo *roles.Cleanup) (
	*discovery.Announcer, error) {
	d, err := v.Describe(ctx)
	if err != nil {
		return nil, err
	}
	told := discovery.VerifierOf(d)
	told.Queue = queue
	announcer, err := discovery.Announce(discovery.AnnouncerConfig{Pool: p, Sign: r.Credentials.Sign,
		What: wire.Announcement{Addr: cmp.Or(c.Advertise, roles.Reachable(r.Server.Addr(), r.Certificate)), Verifier: told},
		Load: func(what *wire.Announcement) {
			load, now := v.Load(), *what.Verifier
			now.Costs = v.Costs()
			now.Load = wire.VerifierLoad{FreePages: load.FreePages, Sessions: load.Sessions, Waiting: load.Waiting,
				Prefixes: p.PrefixKey(r.Credentials.Secret).Summary(told.Identity, load.Prefixes)}
			what.Verifier = &now
		}})
	if err != nil {
		return nil, err
	}
	undo.Add(announcer.Close)
	draining.Register(r.Server.Registrar(), "verifier", announcer.Drain)
	return announcer, nil
}
