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

// ownDrafters are the drafters without a model, which work in the gateway's process.
type ownDrafters struct {
	names    []string         // names of all of them
	lookup   *lookup.Drafter  // drafts from texts; nil: switched off
	counters *tandem.Counters // lookup's own, so that they are not taken for the gateway's
}

// newOwnDrafters returns those that the settings do not switch off. lookup submits its tickets to v. Errors: Invalid.
func (c Setup) newOwnDrafters(r *roles.Process, vocab int, v gateway.Verifier, undo *roles.Cleanup) (out ownDrafters, err error) {
	tenants := c.Keys.Tenants()
	earlier, err := c.Earlier(len(tenants))
	if err != nil {
		return out, err
	}
	if c.Recycling {
		out.names = append(out.names, tandem.Recycling)
	}
	if !c.Lookup {
		return out, nil
	}
	out.names, out.counters = append(out.names, lookup.Name), new(tandem.Counters)
	config := lookup.Config{Name: lookup.Name, Vocab: vocab, Pool: tickets{v}, Events: r.Events, Counters: out.counters,
		Sessions: r.Sessions + roles.SpareSessions}
	if earlier > 0 {
		config.Tenants, config.Earlier = tenants, earlier
	}
	if out.lookup, err = lookup.New(config); err != nil {
		return out, err
	}
	undo.Add(func() { roles.Shutdown(out.lookup.Shutdown) })
	return out, nil
}

// describe describes lookup like a process.
func (o ownDrafters) describe(version string) []public.Process {
	if o.lookup == nil {
		return nil
	}
	return []public.Process{{Role: "drafter", Up: true, Description: tandem.Description{Name: lookup.Name, Model: lookup.Name,
		Version: version, Counters: o.counters.Snapshot(), Protocol: tandem.Protocol}}}
}
