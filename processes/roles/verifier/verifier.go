// Package verifier is a verifier process: the target model behind gRPC, which verifies the pool's tickets.
package verifier

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	drafters "github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/verifying"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/verifier"
	"github.com/tandem-llm/tandem/verifier/disk"
)

// Setup says how to run a verifier process: its settings, and what the program has made of them.
type Setup struct {
	settings.Verifier // Target and Plan are files that were found, "" for no plan; SpareThreads is 0 if no drafter uses its processors
	roles.Program
	Models      roles.Models
	PrefixPages int             // of --prefix-cache: as verifier.Config.PrefixCache
	PrefixFiles prefixes.Config // of --prefix-store; Limit 0: none
	Guest       drafters.Setup  // of --beside-draft, its only draft; without one none runs in this process
}

// WhatPays as Setup.Batches means two batches, while that is expected to be faster, where drafters have processors of their own: if
// Setup.DraftersApart says so, or if the verifier leaves its SpareThreads to them. Elsewhere a pass takes all that waits.
const WhatPays = -1

// batches returns verifier.Config's Batches and Weighed. left: the verifier goes on without its SpareThreads.
func (c Setup) batches(left bool) (batches int, weighed bool) {
	switch {
	case c.Batches != WhatPays:
		return c.Batches, false
	case c.DraftersApart || left:
		return 2, true
	}
	return 0, false
}

// Run runs a verifier process until ctx ends; then it returns nil. Errors: Invalid for impossible settings, those of starting, and
// Unavailable when the device of the model is lost.
func Run(ctx context.Context, c Setup) error {
	if c.Advertise != "" {
		if err := rpc.CheckAddress(c.Advertise); err != nil {
			return tandem.Errorf("", tandem.Invalid, "--advertise: %w", err)
		}
	}
	var server *verifying.Server // set before the address is served, as the announcer
	var announcer *discovery.Announcer
	r, err := roles.Start(ctx, rpc.Verifier, c.Peer, c.Program, func() {
		announcer.Drain(false)
		server.Close()
	})
	if err != nil {
		return err
	}
	defer r.Close()
	server, announcer, undo, err := c.assemble(ctx, r)
	defer undo.Run()
	if err != nil {
		r.Server.Close()
		return err
	}
	server.Register(r.Server.Registrar())
	return r.Serve(ctx)
}

// assemble loads the model, puts the verifier together and starts its work on the pool.
func (c Setup) assemble(ctx context.Context, r *roles.Process) (
	server *verifying.Server, announcer *discovery.Announcer, undo roles.Cleanup, err error) {
	access, err := r.PoolAccess(ctx, c.Pool)
	if err != nil {
		return nil, nil, undo, err
	}
	m, guest, plan, err := c.load(r, &undo)
	if err != nil {
		return nil, nil, undo, err
	}
	costs, measuring := c.costsOf(r, m, plan)
	segment, socket, err := c.segment(r, &undo)
	if err != nil {
		return nil, nil, undo, err
	}
	selfDrafts, err := c.selfDrafts(ctx, r, m, plan)
	if err != nil {
		return nil, nil, undo, err
	}
	config := verifier.Config{Model: m, Costs: costs.Costs, SelfDrafts: selfDrafts, Process: r.Describe("verifier", c.Target, socket, m)}
	config.Batches, config.Weighed = c.batches(costs.left())
	if measuring != nil {
		config.Resting = measuring
	}
	v, err := c.start(r, config, &undo)
	if err != nil {
		return nil, nil, undo, err
	}
	if measuring != nil {
		measuring.Begin(func(all []roles.Measured) { c.tell(r, v, m, costs, all) })
	}
	mapped := new(shm.Set) // the shared memory of drafters and gateways on this host
	server = verifying.NewServer(verifying.ServerConfig{Verifier: v, Vectors: v, Features: v, Segment: segment, Counters: r.Counters,
		MaxNodes: tandem.DefaultLimits.Nodes, Vocab: m.Vocab().Size(),
		Announced: func() wire.Announcement { return announcer.What() }, Draining: func() bool { return announcer.Draining() },
		Map: func(socket string) func() {
			return shm.NewLink(shm.Verifier, mapped, func(context.Context) (string, error) { return socket, nil }).Close
		}})
	r.Server.WhenGone(func(process uint64) {
		_ = v.CloseOwned(context.Background(), process)
		server.Forget(process)
	})
	announcer, err = c.join(ctx, r, v, m.Vocab().Size(), r.Pool(access), mapped, &undo)
	if err == nil && guest != nil {
		if err = drafters.ServeBeside(c.Guest, r, guest, v, &undo); r.Spares(c.Guest.Draft[0], err) {
			err = nil
		}
	}
	return server, announcer, undo, err
}

// tell passes on what was measured: costs of passes on all threads, and on those without SpareThreads.
func (c Setup) tell(r *roles.Process, v *verifier.Verifier, m *engine.Model, now *measured, all []roles.Measured) {
	var fewer []tandem.Cost
	if len(all) > 1 {
		fewer = all[1].Costs
	}
	if err := now.choose(m, all[0].Costs, fewer); err != nil {
		r.Log.Warn("costs of passes not used", "error", err)
		return
	}
	batches, weighed := c.batches(now.left())
	v.Measured(slices.Clone(now.Costs), batches, weighed)
}

// load loads the target, with its part of the memory, and its guest, if there is one, and divides the target's passes.
func (c Setup) load(r *roles.Process, undo *roles.Cleanup) (target, guest *engine.Model, plan *profile.Plan, err error) {
	if taps := c.Taps.Taps; len(taps) > 0 {
		c.Models.Options.Taps, c.Models.Beside = taps, int64(c.FeatureMemory<<20)
	}
	if c.Models.Guest = c.Guest.Beside(); c.Models.Guest == nil && c.Models.Beside > 0 {
		c.Models.Beside += featureSlots * featureSlot
	}
	models, err := r.Load([]string{c.Target}, c.Models, tandem.DefaultLimits.Nodes, undo)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(models) > 1 {
		guest = models[1]
	}
	plan = c.plan(r)
	return models[0], guest, plan, c.divide(r, models[0], plan)
}

// start starts a verifier, of whose configuration it fills in what settings and the process say, and shows its progress.
func (c Setup) start(r *roles.Process, config verifier.Config, undo *roles.Cleanup) (*verifier.Verifier, error) {
	m := config.Model
	if streamed(m) > 0 {
		config.Chunk = m.MaxRows() // a pass reads as much for one row as for the widest
	}
	pulse, goes := r.Beat(roles.ModelName(c.Target))
	config.Events, config.Counters, config.Pulse = r.Events, r.Counters, pulse
	config.PrefixCache, config.Store, config.Taps, config.FeatureBytes = c.PrefixPages, c.store(r, m), c.Taps.Taps, c.FeatureMemory<<20
	v, err := verifier.New(config)
	if err != nil {
		return nil, err
	}
	undo.Add(func() { roles.Shutdown(v.Shutdown) })
	undo.Add(r.Reading(m, func() { goes(); v.Goes() }))
	r.Gauge("features.bytes", v.FeatureBytes)
	return v, nil
}

// join takes tickets from the pool, on a queue of its own, finds the drafters whose trees they name, and announces the verifier.
func (c Setup) join(ctx context.Context, r *roles.Process, v *verifier.Verifier, vocab int, p pool.Config, mapped *shm.Set,
	undo *roles.Cleanup) (*discovery.Announcer, error) {
	memory := discovery.NewMemory(shm.Verifier, mapped)
	table, err := discovery.NewTable(discovery.TableConfig{Pool: p, Dial: r.Credentials.Dialer(rpc.Drafter),
		Vouch: r.Credentials.Vouch, Static: c.Drafter,
		Counters: r.Counters, Log: r.Log, Changed: memory.Update, Refused: r.Refused})
	if err != nil {
		return nil, err
	}
	undo.Add(table.Close)
	undo.Add(memory.Close)
	queue := strconv.FormatUint(discovery.NewInstance(), 36)
	tickets, err := pool.NewConsumer(pool.ConsumerConfig{Config: p, MaxNodes: tandem.DefaultLimits.Nodes, Vocab: vocab, Queue: queue,
		Submit: v.Submit, Segments: mapped, Fetcher: memory})
	if err != nil {
		return nil, err
	}
	undo.Add(tickets.Close)
	r.Tell(func(counters map[string]int64) { tellPool(counters, v.Waiting()) })
	return c.announce(ctx, r, v, p, queue, undo)
}

// store opens the files with long prefixes; none, and a warning, if that is not possible.
func (c Setup) store(r *roles.Process, m *engine.Model) disk.KeeperConfig {
	p := c.PrefixFiles
	if p.Limit == 0 {
		return disk.KeeperConfig{}
	}
	none := func(why string) disk.KeeperConfig {
		r.Log.Warn("--prefix-store: nothing is kept on disk", "why", why)
		return disk.KeeperConfig{}
	}
	switch {
	case c.PrefixPages < 0:
		return none("--prefix-cache is off")
	case m.Copies() == nil:
		return none("keys and values are not, or not alone, in the memory of " + m.About().String())
	}
	p.Model, p.Page, p.Log = disk.StoredAs(m), engine.PageTokens, r.Log
	files, err := prefixes.Open(p)
	if err != nil {
		return none(err.Error())
	}
	return disk.KeeperConfig{Files: files, Log: r.Log}
}

const (
	// featureSlots is how many answers with features may be read at a time: one of each drafter and session.
	featureSlots = 32
	// featureSlot is room for the largest answer.
	featureSlot = 256 << 10
)

// segment makes the shared memory in which drafters on this host find features; nil and "" if there are none to hand out, or no drafter
// can be on this host. Beside a guest others get them in messages.
func (c Setup) segment(r *roles.Process, undo *roles.Cleanup) (*shm.Segment, string, error) {
	socket := roles.Besides(r.Server.Addr())
	if len(c.Taps.Taps) == 0 || socket == "" || len(c.Guest.Draft) > 0 {
		return nil, "", nil
	}
	segment, err := r.OpenSegment(socket, shm.SegmentConfig{Slots: featureSlots, SlotSize: featureSlot})
	if err != nil {
		return nil, "", err
	}
	undo.Add(func() { segment.Close() })
	return segment, socket, nil
}

// tellPool adds the pool's state: how many tickets wait, the bound, how old the first is, and who drafted them.
func tellPool(counters map[string]int64, w verifier.Waiting) {
	counters["pool.depth"], counters["pool.limit"], counters["pool.oldest_us"] = int64(w.Tickets), int64(w.Most), w.Oldest.Microseconds()
	for name, n := range w.Of {
		counters[PoolOf+cmp.Or(name[:min(len(name), longestDrafter)], "gateway")] += int64(n)
	}
}

// PoolOf is the prefix of the counters of tickets in the pool by drafter. The gateway's own tickets have no draft.
const PoolOf = "pool.of."

const longestDrafter = 64 // bytes of a name
