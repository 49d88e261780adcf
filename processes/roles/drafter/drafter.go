// Package drafter is a drafter process: draft models behind gRPC, with shared memory for their trees and access to the pool.
package drafter

import (
	"cmp"
	"context"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/drafter/translate"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/text/token"
)

// Lookup is the name of the drafter without a model, which is in the gateway's process.
const Lookup = lookup.Name

// most is the number of drafters in one process.
const most = 16

// Config configures a drafter process.
type Config struct {
	roles.Config
	Models      roles.Models
	Drafts      []string // GGUF files of draft models, no two of one name: see Check
	Pool        string   // as roles.Process.PoolAccess takes it
	InlineLimit int      // trees larger than this many bytes go through shared memory to processes on this host; 0 = all
	Advertise   string   // address under which the other processes reach it; "": where it listens
	AheadGain   float64  // as drafter.Config has it; Measured: by what passes of each draft cost the processor of Host
	PrefixCache int      // likewise
	// Verifiers holds at most one address, of the verifier that drafts ask for the target's hidden states where a gateway names none. None:
	// its default socket.
	Verifiers []string
	// Host makes a device of the cores that a verifier on this machine uses. AheadGain Measured needs it.
	Host func() (roles.Device, error)
}

// Measured as Config.AheadGain means that it is measured at the start, for drafts on a processor of their own.
const Measured = -1

// hostBytes is the size of the memory that a probe of the host reads.
const hostBytes = 256 << 20

// gains returns the AheadGain of each model.
func (c Config) gains(ctx context.Context, r *roles.Process, models []*engine.Model) (all []float64, err error) {
	if c.AheadGain != Measured {
		return slices.Repeat([]float64{c.AheadGain}, len(models)), nil
	}
	host, err := c.Host()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	probe, err := host.NewProbe(hostBytes)
	if err != nil {
		return nil, err
	}
	defer probe.Close()
	for i, m := range models {
		r.Alive()
		gain, err := measure.Burden(ctx, m, probe)
		if err != nil {
			return nil, err
		}
		r.Log.Info("drafting ahead costs the verifier a share of its speed", "drafter", roles.ModelName(c.Drafts[i]), "share", gain)
		all = append(all, gain)
	}
	return all, nil
}

// Check refuses drafts that cannot be in one process. Errors: Invalid.
func Check(drafts []string) error {
	times := map[string]int{}
	for _, d := range drafts {
		times[roles.ModelName(d)]++
	}
	for _, d := range drafts {
		if n := times[roles.ModelName(d)]; n > 1 {
			return tandem.Errorf("", tandem.Invalid, "--draft is given %d times with the name %s: want each name once", n,
				roles.ModelName(d))
		}
	}
	if len(drafts) > most {
		return tandem.Errorf("", tandem.Invalid, "--draft is given %d times: at most %d fit in one process", len(drafts), most)
	}
	return nil
}

// Run runs a drafter process until ctx ends.
func Run(ctx context.Context, c Config) (err error) {
	if c.InlineLimit < 0 {
		return tandem.Errorf("", tandem.Invalid, "--inline-limit is %d: want 0 or more bytes", c.InlineLimit)
	}
	if c.Advertise != "" {
		if err := rpc.CheckAddress(c.Advertise); err != nil {
			return tandem.Errorf("", tandem.Invalid, "--advertise: %w", err)
		}
	}
	if err := Check(c.Drafts); err != nil {
		return err
	}
	if slices.Contains(c.Drafts, Lookup) {
		return tandem.Errorf("", tandem.Invalid, "--draft %s: the gateway has that drafter, without a process: want GGUF files", Lookup)
	}
	var announcer *discovery.Announcer // set before the address is served
	r, err := roles.Start(ctx, rpc.Drafter, c.Config, func() { announcer.Drain(false) })
	if err != nil {
		return err
	}
	defer r.Close()
	c.Models.Wanted = roles.DraftRows(r.Sizes)
	announcer, undo, err := c.assemble(ctx, r)
	defer undo.Run()
	if err != nil {
		r.Server.Close()
		return err
	}
	return r.Serve(ctx)
}

// assemble loads the models, puts the drafters together, registers and announces them.
func (c Config) assemble(ctx context.Context, r *roles.Process) (announcer *discovery.Announcer, undo roles.Cleanup, err error) {
	models, err := r.Load(c.Drafts, c.Models, drafter.DefaultTreeRows, &undo)
	if err != nil {
		return nil, undo, err
	}
	socket := roles.Besides(r.Server.Addr())
	segment, err := r.OpenSegment(socket, shm.SegmentConfig{})
	if err != nil {
		return nil, undo, err
	}
	undo.Add(func() { segment.Close() })
	written := trees.NewWriter(segment, c.InlineLimit, r.Counters)
	access, err := r.PoolAccess(ctx, c.Pool)
	if err != nil {
		return nil, undo, err
	}
	poolConfig := r.Pool(access)
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: poolConfig, Trees: written})
	if err != nil {
		return nil, undo, err
	}
	undo.Add(publisher.Close)
	gains, err := c.gains(ctx, r, models)
	if err != nil {
		return nil, undo, err
	}
	served := drafting.ServerConfig{Trees: written, Announced: func() wire.Announcement { return announcer.What() },
		Draining: func() bool { return announcer.Draining() }}
	states, err := c.states(r, &undo)
	if err != nil {
		return nil, undo, err
	}
	var closers []func(ctx context.Context, owner uint64) error
	what := wire.Announcement{Addr: cmp.Or(c.Advertise, roles.Reachable(r.Server.Addr(), r.Certificate)), Segment: segment.ID()}
	for i, path := range c.Drafts {
		name, m := roles.ModelName(path), models[i]
		pulse, _ := r.Beat(name)
		d, err := drafter.New(drafter.Config{Model: m, Name: name, Pool: publisher, Events: r.Events, Counters: r.Counters,
			AheadGain: gains[i], PrefixCache: c.PrefixCache, Pulse: pulse, Features: states.of(name), Taps: states.taps[path]})
		if err != nil {
			return nil, undo, err
		}
		undo.Add(func() { roles.Shutdown(d.Shutdown) })
		translator := translate.New(d)
		closers = append(closers, translator.CloseOwned)
		describe := states.describe(path, withCosts(costsOf(ctx, r, name, m), d.Draft().Window().Most(), r.Describe(name, path, socket, m)))
		served.Drafters = append(served.Drafters, drafting.Named{Name: name, Drafter: translator, Describe: describe,
			Vocabulary: vocabulary(m.Vocab()), Target: c.target(r, name, translator)})
		told := describe()
		what.Drafters = append(what.Drafters, wire.AnnouncedDrafter{Name: name, Model: told.Model, Vocab: told.Vocab,
			Fingerprint: told.Fingerprint, Identity: told.Identity, Lineage: told.Lineage,
			Features: len(told.Taps) > 0, Costs: told.Costs, Window: told.Window})
	}
	serve(r, served, closers)
	announcer, err = discovery.Announce(discovery.AnnouncerConfig{Pool: poolConfig, What: what, Sign: r.Credentials.Sign})
	if err != nil {
		return nil, undo, err
	}
	undo.Add(announcer.Close)
	draining.Register(r.Server.Registrar(), "drafter", announcer.Drain)
	return announcer, undo, nil
}

// serve registers the drafters. When a process is gone, closers end its sessions.
func serve(r *roles.Process, served drafting.ServerConfig, closers []func(ctx context.Context, owner uint64) error) {
	forget := drafting.Register(r.Server.Registrar(), served)
	r.Server.WhenGone(func(process uint64) {
		for _, end := range closers {
			_ = end(context.Background(), process)
		}
		forget(process)
	})
}

// vocabulary serves a vocabulary in parts.
func vocabulary(v *token.Vocab) func(offset, limit int) wire.Vocabulary {
	all := v.Listing()
	return func(offset, limit int) wire.Vocabulary {
		from := min(max(0, offset), len(all.Pieces))
		to := min(from+max(0, limit), len(all.Pieces))
		out := wire.Vocabulary{Tokenizer: all.Tokenizer, EOS: all.EOS, Kinds: all.Kinds[from:to]}
		for _, p := range all.Pieces[from:to] {
			out.Pieces = append(out.Pieces, []byte(p))
		}
		return out
	}
}

// target takes the vocabularies of targets whose tokens mean other texts than the draft's.
func (c Config) target(r *roles.Process, name string, t *translate.Drafter) func(fingerprint string, file []byte) error {
	return func(fingerprint string, file []byte) error {
		v, err := token.Parse(file)
		if err != nil {
			return err
		}
		if is := roles.Fingerprint(v.Fingerprint()); is != fingerprint {
			return tandem.Errorf("target", tandem.Invalid,
				"the vocabulary that was told has fingerprint %s: want that of the target, %.50s", is,
				fingerprint)
		}
		if err := t.Target(fingerprint, v); err != nil {
			return err
		}
		r.Log.Info("draft translates: its tokens mean other texts than the target's", "drafter", name, "target", fingerprint)
		return nil
	}
}
