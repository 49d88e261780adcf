package gateway

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/public"
)

// tickets makes a verifier the pool of a drafter in this process.
type tickets struct{ gateway.Verifier }

// Put implements tandem.Pool.
func (t tickets) Put(ctx context.Context, k tandem.Ticket) error { return t.Submit(ctx, k) }

// addOwn gives a gateway the drafters without a model, which work in this process, unless they are switched off. It returns the names that
// are taken with them, and a function that describes lookup like a process.
func (c Config) addOwn(r *roles.Process, vocab int, v gateway.Verifier, to *gateway.Config, undo *roles.Cleanup) (
	taken []string, describe func() []public.Process, err error) {
	if to.Recycling = c.Recycling; c.Recycling {
		taken = append(taken, tandem.Recycling)
	}
	if c.NoLookup {
		return taken, func() []public.Process { return nil }, nil
	}
	counters := new(tandem.Counters) // its own, so that they are not taken for the gateway's
	config := lookup.Config{Name: lookup.Name, Vocab: vocab, Pool: tickets{v}, Events: r.Events, Counters: counters,
		Sessions: r.Sessions + roles.SpareSessions}
	if c.EarlierTexts > 0 {
		config.Tenants, config.Earlier = c.Keys.Tenants(), c.EarlierTexts
	}
	l, err := lookup.New(config)
	if err != nil {
		return nil, nil, err
	}
	undo.Add(func() { roles.Shutdown(l.Shutdown) })
	to.Drafters = append(to.Drafters, gateway.Enlisted{Name: lookup.Name, Drafter: l, Last: true})
	to.Remember = l.Remember
	return append(taken, lookup.Name), func() []public.Process {
		return []public.Process{{Role: "drafter", Up: true, Description: tandem.Description{Name: lookup.Name,
			Model: lookup.Name, Version: r.Version, Counters: counters.Snapshot(), Protocol: tandem.Protocol}}}
	}, nil
}
