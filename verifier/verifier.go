// Package verifier checks token trees with the target model: it holds the model's state of many
// sessions and turns tickets into verdicts, many tickets in one pass.
//
// It reads from top to bottom: Verifier is what other goroutines call; admission takes openings and tickets to sessions; pass.go is what
// a session does in a pass; session, check (a ticket on its way) and queue lie below. Each package under this one has its own state, and
// knows no session.
package verifier

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec/worth"
	"github.com/tandem-llm/tandem/verifier/accept"
	"github.com/tandem-llm/tandem/verifier/disk"
	"github.com/tandem-llm/tandem/verifier/embed"
	"github.com/tandem-llm/tandem/verifier/features"
	"github.com/tandem-llm/tandem/verifier/guesses"
	"github.com/tandem-llm/tandem/verifier/outbox"
)

// Config says what a verifier works with.
type Config struct {
	Model      *engine.Model // the verifier's alone until Shutdown has returned; not closed by it
	Events     tandem.Events
	Counters   *tandem.Counters
	MaxWaiting int           // tickets that may wait for a pass: the bound of the pool; default 32
	Chunk      int           // prompt tokens per pass, fewer while other sessions are in rounds; default 128
	Batches    int           // the sessions in rounds are divided into so many, each with passes of its own; 0: a pass takes all that waits
	Weighed    bool          // divide sessions only while that is expected to be faster
	Costs      []tandem.Cost // of the model's passes, as measured; passes observed later refine them
	// SelfDrafts describe what Guesser can do, with what was measured of it; nil: as Guesser does.
	SelfDrafts []tandem.SelfDraft
	Guesser    guesses.Guesser // makes the target's own guesses; nil: Model does
	FirstShare float64         // share of a prompt's time that making guesses for Opened may add; default 0.02
	Idle       time.Duration   // a session without a ticket this long is dropped; default 60 s
	// PrefixCache bounds the pages of KV memory that keep prefixes of ended sessions for later ones of the same
	// tenant. Only pages that no session needs are used. 0: all such pages; negative: sessions share nothing.
	PrefixCache int
	Resting     schedule.Resting  // works on Model while there are no sessions, such as by measuring its passes; may be nil
	Store       disk.KeeperConfig // keeps long prefixes in files; without Files: they are kept in memory alone
	Pulse       owner.Pulse       // shows the verifier's progress; may be nil
	// Taps are the hidden states that Model hands out (engine.Options.Taps), for Features; nil: none. FeatureBytes bounds the memory
	// that they take; default features.DefaultBytes.
	Taps         []int
	FeatureBytes int
	// Process describes the process and its model; Describe adds what the verifier knows. nil: it tells this and the counters alone.
	Process func() tandem.Description
}

func (c Config) withDefaults() (Config, error) {
	if c.Model == nil || c.Counters == nil {
		return c, tandem.Errorf("verifier", tandem.Invalid, "configuration without a model or counters")
	}
	if c.MaxWaiting == 0 {
		c.MaxWaiting = 32
	}
	if c.Chunk == 0 {
		c.Chunk = 128
	}
	if c.Idle == 0 {
		c.Idle = time.Minute
	}
	if c.Guesser == nil {
		c.Guesser = c.Model
	}
	if c.SelfDrafts == nil {
		c.SelfDrafts = c.Guesser.SelfDrafts()
	}
	if c.FirstShare == 0 {
		c.FirstShare = worth.GuessShare
	}
	if c.FeatureBytes == 0 {
		c.FeatureBytes = features.DefaultBytes
	}
	if err := engine.CheckTarget("target "+c.Model.Config().Name, c.Model.Config()); err != nil {
		return c, err
	}
	if len(c.Taps) > tandem.MostTaps || c.FeatureBytes < 0 {
		return c, tandem.Errorf("verifier", tandem.Invalid, "%d taps and %d bytes of features: want at most %d taps and 0 bytes or more",
			len(c.Taps), c.FeatureBytes, tandem.MostTaps)
	}
	if c.MaxWaiting < 1 || c.Chunk < 1 || c.Idle < 0 || c.Batches < 0 {
		return c, tandem.Errorf("verifier", tandem.Invalid,
			"room for %d waiting tickets, chunk %d, idle %v, %d batches: want at least 1, 1, 0 and 0",
			c.MaxWaiting, c.Chunk, c.Idle, c.Batches)
	}
	return c, nil
}

// Verifier implements tandem.Verifier over the target model.
//
// All sessions belong to one goroutine, the schedule's. Submit hands tickets over to it, as many as the queue takes;
// the verifier answers tickets that need no pass at once, and queues the sessions of the others. A pass takes all
// queued sessions that fit, one part each: the root, which extends the prefix, and below it the tree.
// A tree is verified whole, in one pass. After the pass each tree is accepted from the root down (package accept), and the accepted nodes
// become positions of the cache. Tickets that ask for the target's own guesses are answered last, after one run of the heads for all of
// them (guesses.Maker). Sessions join and leave between any two passes. How a pass is filled, with prompts beside trees, is the schedule's
// business.
//
// Invariants of a session between passes:
//  1. Its text is what the gateway committed when it opened the session, plus the tokens of every verdict
//     since: the verifier decides them, so it need not be told.
//  2. Once the prompt is in, the cache holds all tokens but the last, which is the next tree's root.
//  3. At most one ticket of a session waits: one for tokens that end at its base. The verdict on the previous
//     base is kept and given again to a repeated ticket; so a lost verdict costs no pass,
//     and nothing need detect the loss.
//
// A wrong ticket is counted and answered by a verdict of the error's kind, because no caller waits for Submit's outcome. A
// drafter that sent garbage a few times is distrusted for a while; see ledger.
//
// Which goroutine may touch what: admission, the sessions that it makes, their tickets and what they share (type shared) belong to the
// schedule's goroutine, so methods here reach them by sched.Do and sched.Post alone. The other fields are safe for concurrent use: each
// has a lock of its own, under which it calls nothing that could wait.
type Verifier struct {
	cfg      Config
	sched    *schedule.Schedule
	queue    *queue // tickets that wait for a pass
	out      *outbox.Outbox
	features *features.Store // nil: none are handed out
	keeper   *disk.Keeper    // nil: prefixes are in memory alone
	texts    embed.Texts
	load     *counter
	costs    atomic.Pointer[[]tandem.Cost]
	guesses  *guesses.Maker // the schedule's

	admission admission
}

// New returns a verifier with its goroutine running; Shutdown ends it. Errors: Invalid for a value out of its range; Unsupported for a
// store of a model whose keys and values are not to be had as bytes.
func New(cfg Config) (*Verifier, error) {
	v, err := build(cfg)
	if err == nil {
		v.sched.Start()
	}
	return v, err
}

// hops is the number of goroutines that a verdict passes on its way out: the stream's, and two of gRPC's behind it.
const hops = 3

// build returns a verifier whose schedule has not been started.
func build(cfg Config) (*Verifier, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	m, counters := cfg.Model, cfg.Counters
	m.Prefixes().Bound(cfg.PrefixCache)
	out := outbox.New(counters)
	maker := &guesses.Maker{Guesser: cfg.Guesser, SelfDrafts: cfg.SelfDrafts, Costs: cfg.Costs,
		FirstShare: cfg.FirstShare, Counters: counters}
	sched := schedule.New(schedule.Config{Name: "verifier", Model: m, Events: cfg.Events, Counters: counters,
		Chunk: cfg.Chunk, Batches: cfg.Batches, Costs: cfg.Costs, Idle: cfg.Idle, Patience: 1, Hops: hops, Pulse: cfg.Pulse,
		Answer: maker.Run, Last: out.Close, Resting: cfg.Resting})
	v := &Verifier{cfg: cfg, sched: sched, guesses: maker, queue: newQueue(cfg.MaxWaiting, counters), out: out,
		features: features.New(cfg.Taps, m.FeatureWidth(), cfg.FeatureBytes, counters),
		texts:    embed.Texts{Model: m, Schedule: sched, Counters: counters}, load: &counter{model: m, sched: sched}}
	v.costs.Store(&cfg.Costs)
	if cfg.Store.Files != nil {
		if v.keeper, err = disk.New(cfg.Store, m, sched, counters); err != nil {
			return nil, err
		}
	}
	v.admission = admission{blames: ledger{counters: counters}, shared: &shared{model: m, events: cfg.Events, counters: counters,
		sched: sched, out: out, features: v.features, keeper: v.keeper, guesses: maker, grammars: accept.NewGrammars(m.Vocab()),
		crowded: crowded{}}}
	return v, nil
}

// Submit implements tandem.Verifier: every ticket comes this way, through the pool or past it. Errors: Exhausted while cfg.MaxWaiting
// tickets wait for a pass, Unavailable after Shutdown, that of a ctx that has ended.
func (v *Verifier) Submit(ctx context.Context, t tandem.Ticket) error {
	if err := ctx.Err(); err != nil {
		return tandem.Errorf("verifier", tandem.KindOf(err), "ticket of session %v: %w", t.Session, err)
	}
	at := v.queue.enter(t)
	if at == nil {
		return tandem.Errorf("verifier", tandem.Exhausted, "%d tickets wait for a pass, as many as may", v.cfg.MaxWaiting)
	}
	if !v.sched.Post(func() { v.admission.take(t, at) }) {
		at.leave()
		return tandem.Errorf("verifier", tandem.Unavailable, "shutting down")
	}
	return nil
}

// Open implements tandem.Verifier. It returns when all tokens but the last are in the cache; a prefix that other sessions of the tenant
// have computed is not computed again (engine.Model.NewShared), nor is one that Config.Store has. Further errors: Stale for an epoch
// older than the one held; Unavailable for a session of another identity or vocabulary; Exhausted if there is no memory for the prompt
// beside the sessions that are held, or if these needed it before the prompt was in; Invalid for a limit beyond all of the memory; those of
// accept.Grammars.Begin.
func (v *Verifier) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	allowed, err := v.constraint(o)
	if err != nil {
		return tandem.Opened{Identity: v.cfg.Model.Names().Identity}, err
	}
	if allowed != nil {
		var made sync.WaitGroup
		made.Go(v.admission.grammars.Prepare) // beside the prompt's passes
		defer made.Wait()
	}
	found, parted := v.keeper.Restore(ctx, o, func() error {
		_, err := checkOpening(v.cfg.Model, v.cfg.Counters, o)
		return err
	})
	defer found.Leave()
	var s *session
	opened, err := v.sched.Open(ctx, o, func() (_ schedule.Session, err error) {
		defer found.Done()
		found.Put()
		if s, err = v.admission.open(o, allowed); err == nil {
			s.seq.Parts(parted)
		}
		return s, err
	})
	if err == nil {
		opened.Guesses = s.first
	}
	opened.Identity = v.cfg.Model.Names().Identity
	return opened, err
}

// constraint returns the constraint of a session that is opened, nil for none. It is made here and not by the schedule's goroutine, whose
// passes would wait for it.
func (v *Verifier) constraint(o tandem.Opening) (*accept.Constraint, error) {
	if o.Sampling.Constraint == nil {
		return nil, nil
	}
	if _, err := checkOpening(v.cfg.Model, v.cfg.Counters, o); err != nil {
		return nil, err
	}
	return v.admission.grammars.Begin(o)
}

// Measured replaces what is known of the costs of passes, also in Describe. batches and weighed are as Config's Batches and Weighed. Only
// Config.Resting may call it, from its Rest.
func (v *Verifier) Measured(costs []tandem.Cost, batches int, weighed bool) {
	v.sched.Measured(costs)
	v.sched.SetBatches(batches, weighed)
	v.guesses.Costs = costs
	v.costs.Store(&costs)
}

// Costs returns what is known of the costs of passes, as Describe tells it: do not change it.
func (v *Verifier) Costs() []tandem.Cost { return *v.costs.Load() }

// Goes reports that the running pass makes progress: see schedule.Schedule. Safe for concurrent use.
func (v *Verifier) Goes() { v.sched.Goes() }

// Close implements tandem.Verifier.
func (v *Verifier) Close(ctx context.Context, id tandem.SessionID) error {
	return v.sched.Do(ctx, func() error {
		v.sched.Close(id)
		v.admission.found(id)
		return nil
	})
}

// CloseOwned forgets the sessions of an owner, such as a gateway that is gone. See tandem.Opening. Errors: Unavailable after Shutdown,
// that of ctx.
func (v *Verifier) CloseOwned(ctx context.Context, owner uint64) error {
	return v.sched.Do(ctx, func() error {
		v.sched.CloseOwned(owner)
		v.out.Forget(owner)
		return nil
	})
}

// Verdicts implements tandem.Verifier. Further errors: Exhausted for a subscriber that lags far behind, or one of many of its process.
func (v *Verifier) Verdicts(ctx context.Context, s tandem.Subscription) error {
	return v.out.Verdicts(ctx, s)
}

// Vectors implements tandem.VectorSource: see embed.Texts. Further errors: Unavailable for texts of another vocabulary.
func (v *Verifier) Vectors(ctx context.Context, q tandem.VectorQuery) (tandem.Vectors, error) {
	if err := belongs(v.cfg.Model, v.cfg.Counters, tandem.Opening{Fingerprint: q.Fingerprint}); err != nil {
		return tandem.Vectors{Identity: v.cfg.Model.Names().Identity}, err
	}
	return v.texts.Vectors(ctx, q)
}

// Features implements tandem.FeatureSource. It is Unsupported without Config.Taps.
func (v *Verifier) Features(ctx context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	return v.features.Features(ctx, q)
}

// FeatureBytes returns how much memory features take now. Safe for concurrent use.
func (v *Verifier) FeatureBytes() int64 { return v.features.Bytes() }

// Waiting returns which tickets wait for a pass now. Safe for concurrent use.
func (v *Verifier) Waiting() Waiting { return v.queue.waiting() }

// Load returns the load without waiting for a pass: sessions and prefixes are as of a moment ago, which a long pass makes longer. Safe for
// concurrent use.
func (v *Verifier) Load() Load {
	l := v.load.latest()
	l.FreePages, l.Waiting = v.cfg.Model.FreePages(), v.queue.waiting().Tickets
	return l
}

// Describe implements tandem.Verifier.
func (v *Verifier) Describe(context.Context) (tandem.Description, error) {
	d := tandem.Description{Counters: v.cfg.Counters.Snapshot(), Protocol: tandem.Protocol}
	if v.cfg.Process != nil {
		d = v.cfg.Process()
	}
	d.PageTokens, d.Costs, d.SelfDrafts = engine.PageTokens, v.Costs(), slices.Clone(v.cfg.SelfDrafts)
	d.Taps = v.cfg.Taps
	return d, nil
}

// Shutdown writes what is to be kept in files, for a second at most, ends calls of Open with Unavailable, frees all sessions and waits for
// the verifier's goroutine, no longer than ctx; subscriptions to verdicts end with Unavailable. The model may be closed after it has
// returned nil.
func (v *Verifier) Shutdown(ctx context.Context) error {
	err := v.keeper.Close(ctx, func() {
		for x := range v.sched.Sessions() {
			if s, ok := x.(*session); ok {
				s.store(true)
			}
		}
	})
	if err != nil {
		return err
	}
	return v.sched.Stop(ctx)
}

var (
	_ tandem.Verifier      = (*Verifier)(nil)
	_ tandem.VectorSource  = (*Verifier)(nil)
	_ tandem.FeatureSource = (*Verifier)(nil)
)
