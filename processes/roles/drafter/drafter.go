// Package drafter is a drafter process: draft models behind gRPC, with shared memory for their trees and access to the pool.
package drafter

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/drafter/translate"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/measure"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
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

// Setup says how to run a drafter process: its settings, and what the program has made of them.
type Setup struct {
	settings.Drafter // Draft are files that were found, no two of one name (Check); AheadGain is as drafter.Config has it, or Measured
	roles.Program
	Models      roles.Models
	PrefixPages int // of --prefix-cache: as drafter.Config.PrefixCache
	// Host makes a device of the cores that a verifier on this machine uses. AheadGain Measured needs it.
	Host func() (roles.Device, error)

	here  tandem.FeatureSource // the target's, in this process, of a guest: see ServeBeside
	slots int                  // trees that are held at once; 0: the usual number
}

// Measured as Setup.AheadGain means that it is measured at the start: by what passes of each draft cost the processor of Host.
const Measured = -1

// hostBytes is the size of the memory that a probe of the host reads.
const hostBytes = 256 << 20

// gains returns the AheadGain of each model.
func (c Setup) gains(ctx context.Context, r *roles.Process, models []*engine.Model) (all []float64, err error) {
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
		r.Log.Info("drafting ahead costs the verifier a share of its speed", "drafter", roles.ModelName(c.Draft[i]), "share", gain)
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

// Run runs a drafter process until ctx ends; then it returns nil. Errors: Invalid for impossible settings, those of starting, and
// Unavailable when the device of a model is lost.
func Run(ctx context.Context, c Setup) error {
	if c.InlineLimit < 0 {
		return tandem.Errorf("", tandem.Invalid, "--inline-limit is %d: want 0 or more bytes", c.InlineLimit)
	}
	if c.Advertise != "" {
		if err := rpc.CheckAddress(c.Advertise); err != nil {
			return tandem.Errorf("", tandem.Invalid, "--advertise: %w", err)
		}
	}
	if err := Check(c.Draft); err != nil {
		return err
	}
	if slices.Contains(c.Draft, Lookup) {
		return tandem.Errorf("", tandem.Invalid, "--draft %s: the gateway has that drafter, without a process: want GGUF files", Lookup)
	}
	var announcer *discovery.Announcer // set before the address is served
	r, err := roles.Start(ctx, rpc.Drafter, c.Peer, c.Program, func() { announcer.Drain(false) })
	if err != nil {
		return err
	}
	defer r.Close()
	c.Models.Wanted = roles.DraftRows(r.Sizes)
	var undo roles.Cleanup
	defer undo.Run()
	models, err := r.Load(c.Draft, c.Models, drafter.DefaultTreeRows, &undo)
	if err == nil {
		announcer, err = c.assemble(ctx, r, models, &undo)
	}
	if err != nil {
		r.Server.Close()
		return err
	}
	return r.Serve(ctx)
}

// assemble puts the drafters of loaded models together, registers and announces them.
func (c Setup) assemble(ctx context.Context, r *roles.Process, models []*engine.Model, undo *roles.Cleanup) (
	announcer *discovery.Announcer, err error) {
	access, err := r.PoolAccess(ctx, c.Pool)
	if err != nil {
		return nil, err
	}
	to, err := c.output(r, r.Pool(access), undo)
	if err != nil {
		return nil, err
	}
	drafts, err := c.drafts(ctx, r, models, to, undo)
	if err != nil {
		return nil, err
	}
	register(r, drafts, drafting.ServerConfig{Trees: to.trees, Announced: func() wire.Announcement { return announcer.What() },
		Draining: func() bool { return announcer.Draining() }})
	announcer, err = c.announce(r, drafts, to, undo)
	return announcer, err
}

// output is where the drafters' trees go.
type output struct {
	config    pool.Config
	publisher *pool.Publisher
	trees     *trees.Writer
	segment   uint64 // of shared memory, in which they are written
	socket    string // which hands it out
}

// output opens the shared memory and the way into the pool.
func (c Setup) output(r *roles.Process, p pool.Config, undo *roles.Cleanup) (to output, err error) {
	to = output{config: p, socket: roles.Besides(r.Server.Addr())}
	segment, err := r.OpenSegment(to.socket, shm.SegmentConfig{Slots: c.slots})
	if err != nil {
		return to, err
	}
	undo.Add(func() { segment.Close() })
	to.segment, to.trees = segment.ID(), trees.NewWriter(segment, c.InlineLimit, r.Counters)
	if to.publisher, err = pool.NewPublisher(pool.PublisherConfig{Config: p, Trees: to.trees}); err == nil {
		undo.Add(to.publisher.Close)
	}
	return to, err
}

// draft is a drafter that is served.
type draft struct {
	*translate.Drafter
	named drafting.Named // it
	costs *costs
}

// drafts makes the drafters of the models, which are those of the files c.Draft.
func (c Setup) drafts(ctx context.Context, r *roles.Process, models []*engine.Model, to output, undo *roles.Cleanup) ([]draft, error) {
	gains, err := c.gains(ctx, r, models)
	if err != nil {
		return nil, err
	}
	states, err := c.states(r, undo)
	if err != nil {
		return nil, err
	}
	var all []draft
	for i, path := range c.Draft {
		name, m := roles.ModelName(path), models[i]
		pulse, _ := r.Beat(name)
		config := drafter.Config{Model: m, Name: name, Pool: to.publisher, Events: r.Events, Counters: r.Counters,
			AheadGain: gains[i], PrefixCache: c.PrefixPages, Pulse: pulse, Features: states.of(name), Taps: states.taps[path]}
		if c.here != nil {
			config.FeatureRows = guestRows
		}
		costs := c.costsOf(r, &config)
		d, err := drafter.New(config)
		if err != nil {
			return nil, err
		}
		undo.Add(func() { roles.Shutdown(d.Shutdown) })
		t := translate.New(d)
		describe := withCosts(costs, d.Draft().Window().Most(), r.Describe(name, path, to.socket, m))
		all = append(all, draft{t, drafting.Named{Name: name, Drafter: t, Describe: states.describe(path, describe),
			Vocabulary: vocabulary(m.Vocab()), Target: c.target(r, name, t)}, costs})
	}
	return all, nil
}

// register serves the drafters. When a process is gone, its sessions end.
func register(r *roles.Process, drafts []draft, served drafting.ServerConfig) {
	for _, d := range drafts {
		served.Drafters = append(served.Drafters, d.named)
	}
	forget := drafting.Register(r.Server.Registrar(), served)
	r.Server.WhenGone(func(process uint64) {
		for _, d := range drafts {
			_ = d.CloseOwned(context.Background(), process)
		}
		forget(process)
	})
}

// announce tells the others of the drafters.
func (c Setup) announce(r *roles.Process, drafts []draft, to output, undo *roles.Cleanup) (*discovery.Announcer, error) {
	what := wire.Announcement{Addr: cmp.Or(c.Advertise, roles.Reachable(r.Server.Addr(), r.Certificate)), Segment: to.segment}
	for _, d := range drafts {
		told := d.named.Describe()
		what.Drafters = append(what.Drafters, wire.AnnouncedDrafter{Name: d.named.Name, Model: told.Model, Vocab: told.Vocab,
			Fingerprint: told.Fingerprint, Identity: told.Identity, Lineage: told.Lineage,
			Features: len(told.Taps) > 0, Costs: told.Costs, Window: told.Window})
	}
	announcer, err := discovery.Announce(discovery.AnnouncerConfig{Pool: to.config, What: what, Sign: r.Credentials.Sign,
		Load: announced(drafts)})
	if err != nil {
		return nil, err
	}
	undo.Add(announcer.Close)
	draining.Register(r.Server.Registrar(), "drafter", announcer.Drain)
	return announcer, nil
}

// vocabulary serves a vocabulary in parts.
func vocabulary(v *token.Vocab) func(offset, limit int) wire.Vocabulary {
	listing := sync.OnceValue(v.Listing) // hardly a gateway asks: most compare fingerprints
	return func(offset, limit int) wire.Vocabulary {
		all := listing()
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
func (c Setup) target(r *roles.Process, name string, t *translate.Drafter) func(fingerprint string, file []byte) error {
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
