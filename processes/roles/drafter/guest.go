package drafter

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

const (
	guestSlots = 32  // trees that a guest holds at once, of 8 KiB each: a slot is free when its readers have read it
	guestRows  = 256 // hidden states of a prompt that it gathers before it computes with them: a pass of the target
)

// Beside returns how the only draft of c is loaded beside its target; nil: c has none.
func (c Setup) Beside() *roles.Guest {
	if len(c.Draft) == 0 {
		return nil
	}
	return &roles.Guest{Path: c.Draft[0], Nodes: drafter.DefaultTreeRows, Threads: c.Threads}
}

// ServeBeside serves the only draft of c, a draft with states whose model m is loaded, in the process of its target, as Run does in one of
// its own: at an address of its own, beside the target's, and with everything else that others see of a drafter. target hands out the
// states that the draft reads. It goes on until undo runs. When it fails later, a line says so, and the target is served without it.
// Errors: Run's.
func ServeBeside(c Setup, host *roles.Process, m *engine.Model, target tandem.FeatureSource, undo *roles.Cleanup) error {
	ctx, end := context.WithCancel(context.Background())
	var announcer *discovery.Announcer // set before the address is served
	r, err := host.Host(ctx, rpc.Drafter, m, func() { announcer.Drain(false) })
	if err != nil {
		end()
		return err
	}
	undo.Add(r.Close)
	c.Verifier, c.here, c.slots = []string{host.Server.Addr()}, target, guestSlots
	if announcer, err = c.assemble(ctx, r, []*engine.Model{m}, undo); err != nil {
		end()
		r.Server.Close()
		return err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := r.Serve(ctx); err != nil {
			r.Log.Error("the draft beside the target is not served any more", "draft", c.Draft[0], "error", err)
		}
	}()
	undo.Add(func() {
		end()
		<-served
	})
	return nil
}
