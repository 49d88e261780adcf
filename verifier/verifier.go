// Package verifier checks token trees with the target model: it holds the model's state of many
// sessions and turns tickets into verdicts, many tickets in one pass.
package verifier

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Config says what a verifier works with.
type Config struct {
	Model      *engine.Model // the verifier's alone until Shutdown has returned; not closed by it
	Events     tandem.Events
	Counters   *tandem.Counters
	MaxWaiting int           // tickets that may wait for a pass: the bound of the pool; default 32
	Chunk      int           // prompt tokens per pass, fewer while other sessions are in rounds; default 128
	Batches    int           // that the sessions in rounds are divided into, a pass for each; 0: a pass takes all that waits
	Weighed    bool          // divide sessions only while that is expected to be faster
	Costs      []tandem.Cost // of the model's passes, as measured; passes observed later refine them
	// SelfDrafts are Guesser's, with what was measured of them; nil: without.
	SelfDrafts []tandem.SelfDraft
	Guesser    Guesser       // makes the target's own guesses; nil: Model does
	FirstShare float64       // of a prompt's time that guesses in Opened may add; default 0.02
	Idle       time.Duration // a session without a ticket this long is dropped; default 60 s
	// PrefixCache bounds the pages of KV memory that keep prefixes of ended sessions for later ones of the same
	// tenant. Only pages that no session needs are used. 0: all such pages; negative: sessions share nothing.
	PrefixCache int
	Store       StoreConfig // keeps long prefixes in files; without Files: they are kept in memory alone
	Pulse       owner.Pulse // shows the verifier's progress; may be nil
	// Taps are the hidden states that Model hands out (engine.Options.Taps), for Features; nil: none. FeatureBytes bounds the memory
	// that they take; default DefaultFeatureBytes.
	Taps         []int
	FeatureBytes int
	// Process describes the process and its model; Describe adds what the verifier knows. nil: nothing.
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
		c.FeatureBytes = DefaultFeatureBytes
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
// All sessions belong to one goroutine, the schedule's. Submit hands tickets over to it, as many as there is room for;
// the verifier answers tickets that need no pass at once, and queues the sessions of the others. A pass takes all
// queued sessions that fit, one part each: the root, which extends the prefix, and below it the tree.
// A tree is verified whole, in one pass. After the pass each
// tree is accepted from the root down and the accepted nodes become positions of the cache. Tickets that ask for the target's own
// guesses are answered last, after one run of the heads for all of them; see guess. Sessions join and
// leave between any two passes. How a pass is filled, with prompts beside trees, is the schedule's business.
//
// Invariants of a session between passes:
//  1. tokens is what the gateway committed when it opened the session, plus the tokens of every verdict
//     since: the verifier decides them, so it need not be told.
//  2. Once the prompt is in, the cache holds all tokens but the last, which is the next tree's root.
//  3. At most one ticket of a session waits: one for tokens that end at its base. The verdict on the previous
//     base is kept and given again to a repeated ticket; so a lost verdict costs no pass,
//     and nothing need detect the loss.
//
// A wrong ticket is counted and answered by a verdict of the error's kind, because no caller waits for Submit's outcome. A
// drafter that sent garbage a few times is distrusted for a while; see ledger.
type Verifier struct {
	cfg   Config
	sched *schedule.Schedule
	room  *room // of tickets that wait for a pass
	out   *outbox

	features *features // nil: none are handed out
	keeper   *keeper   // nil: prefixes are in memory alone
	counted  counted

	blames     ledger                        // of drafters; the schedule's goroutine's, as all below
	crowded    map[tandem.SessionID]struct{} // dropped for lack of memory, and neither opened again nor closed since
	sampler    sample.Sampler
	asking     []*asking                // sessions of the pass whose answers wait for guesses
	took       map[string]time.Duration // running means of what guesses take, by self-draft
	selfDrafts []tandem.SelfDraft       // the target's; never changed
}

// New returns a verifier with its goroutine running; Shutdown ends it.
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
	cfg.Model.Prefixes().Bound(cfg.PrefixCache)
	out := newOutbox(cfg.Counters)
	v := &Verifier{cfg: cfg, room: newRoom(cfg.MaxWaiting, cfg.Counters), out: out, blames: ledger{counters: cfg.Counters},
		crowded: map[tandem.SessionID]struct{}{}, took: map[string]time.Duration{}, selfDrafts: cfg.SelfDrafts,
		features: newFeatures(cfg.Taps, cfg.Model.FeatureWidth(), cfg.FeatureBytes, cfg.Counters)}
	v.sched = schedule.New(schedule.Config{Name: "verifier", Model: cfg.Model, Events: cfg.Events, Counters: cfg.Counters,
		Chunk: cfg.Chunk, Batches: cfg.Batches, Costs: cfg.Costs, Idle: cfg.Idle, Patience: 1, Hops: hops, Pulse: cfg.Pulse,
		Answer: v.guess, Last: out.close})
	if cfg.Store.Files != nil {
		if v.keeper, err = newKeeper(cfg.Store, v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Submit implements tandem.Verifier: every ticket comes this way, through the pool or past it. Errors: Exhausted while cfg.MaxWaiting
// tickets wait for a pass, Unavailable after Shutdown, that of a ctx that has ended.
func (v *Verifier) Submit(ctx context.Context, t tandem.Ticket) error {
	if err := ctx.Err(); err != nil {
		return tandem.Errorf("verifier", tandem.KindOf(err), "ticket of session %v: %w", t.Session, err)
	}
	at := v.room.enter(t)
	if at == nil {
		return tandem.Errorf("verifier", tandem.Exhausted, "%d tickets wait for a pass, as many as may", v.cfg.MaxWaiting)
	}
	if !v.sched.Post(func() { v.admit(t, at) }) {
		v.room.leave(at)
		return tandem.Errorf("verifier", tandem.Unavailable, "shutting down")
	}
	return nil
}

// Open implements tandem.Verifier. It returns when all tokens but the last are in the cache; a prefix that other sessions of the tenant
// have computed is not computed again (engine.Model.NewShared), nor is one that Config.Store has. Further errors: Stale for an epoch
// older than the one held; Unavailable for a session of another identity or vocabulary; Exhausted if there is no memory for the prompt
// beside the sessions that are held, or if these needed it before the prompt was in; Invalid for a limit beyond all of the memory.
func (v *Verifier) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	var s *session
	var found *arrival
	parted := 0
	if v.keeper != nil {
		found, parted = v.keeper.restore(ctx, o)
		defer found.leave()
	}
	opened, err := v.sched.Open(ctx, o, func() (_ schedule.Session, err error) {
		defer found.done()
		found.put()
		if s, err = v.open(o); err == nil {
			s.seq.Parts(parted)
		}
		return s, err
	})
	if err == nil {
		opened.Guesses = s.guesses
	}
	opened.Identity = v.cfg.Model.Names().Identity
	return opened, err
}

// Goes reports that the running pass makes progress: see schedule.Schedule.
func (v *Verifier) Goes() { v.sched.Goes() }

// Close implements tandem.Verifier.
func (v *Verifier) Close(ctx context.Context, id tandem.SessionID) error {
	return v.sched.Do(ctx, func() error {
		v.sched.Close(id)
		v.out.found(id)
		delete(v.crowded, id)
		return nil
	})
}

// CloseOwned forgets the sessions of an owner, such as a gateway that is gone. See tandem.Opening.
func (v *Verifier) CloseOwned(ctx context.Context, owner uint64) error {
	return v.sched.Do(ctx, func() error {
		v.sched.CloseOwned(owner)
		v.out.forget(owner)
		return nil
	})
}

// Describe implements tandem.Verifier.
func (v *Verifier) Describe(context.Context) (tandem.Description, error) {
	d := tandem.Description{Counters: v.cfg.Counters.Snapshot(), Protocol: tandem.Protocol}
	if v.cfg.Process != nil {
		d = v.cfg.Process()
	}
	d.PageTokens, d.Costs, d.SelfDrafts = engine.PageTokens, v.cfg.Costs, slices.Clone(v.selfDrafts)
	d.Taps = v.cfg.Taps
	return d, nil
}

// Shutdown writes what is to be kept in files, for a second at most, ends calls of Open with Unavailable, frees all sessions and waits for
// the verifier's goroutine, no longer than ctx; subscriptions to verdicts end with Unavailable. The model may be closed after it has
// returned nil.
func (v *Verifier) Shutdown(ctx context.Context) error {
	if v.keeper != nil {
		v.keeper.flush(ctx)
		if err := v.keeper.stop(ctx); err != nil {
			return err
		}
	}
	return v.sched.Stop(ctx)
}

var _ tandem.Verifier = (*Verifier)(nil)
