// Package verifier checks token trees with the target model: it holds the model's state of many
// sessions and turns tickets into verdicts, many tickets in one pass.
package verifier

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec/learn"
)

// Config says what a verifier works with.
type Config struct {
	Model    *engine.Model        // the verifier's alone until Shutdown has returned; not closed by it
	Deliver  func(tandem.Verdict) // takes every verdict; called on the verifier's goroutine: must not block
	Events   tandem.Events
	Counters *tandem.Counters
	Batch    int           // tickets that may wait for their verdicts; default 32
	Chunk    int           // prompt tokens per pass, fewer while other sessions are in rounds; default 128
	Costs    []tandem.Cost // of the model's passes, as measured; those observed are learned from as well
	Idle     time.Duration // a session without a ticket this long is dropped; default 60 s
	// PrefixCache bounds the pages of KV memory that hold prefixes of sessions that have ended, for later ones of the same
	// tenant; they are pages that no session needs. 0: all such pages; negative: sessions share nothing.
	PrefixCache int
}

func (c Config) withDefaults() (Config, error) {
	if c.Model == nil || c.Deliver == nil || c.Counters == nil {
		return c, tandem.Errorf("verifier", tandem.Invalid, "configuration without a model, a receiver of verdicts or counters")
	}
	if c.Batch == 0 {
		c.Batch = 32
	}
	if c.Chunk == 0 {
		c.Chunk = 128
	}
	if c.Idle == 0 {
		c.Idle = time.Minute
	}
	if c.Batch < 1 || c.Chunk < 1 || c.Idle < 0 {
		return c, tandem.Errorf("verifier", tandem.Invalid, "batch %d, chunk %d, idle %v: want at least 1, 1 and 0", c.Batch, c.Chunk, c.Idle)
	}
	return c, nil
}

// Verifier implements tandem.Verifier over the target model.
//
// All sessions belong to one goroutine, the owner. Run takes tickets from the pool and hands them over;
// the owner answers at once what needs no model, and puts the others in a queue. A pass takes all
// queued tickets that fit, one segment each: the root, which extends the prefix, and below it the tree.
// Rows that are left go to prompts, as far as that keeps nobody's round waiting for long. After the pass each
// tree is accepted from the root down and the accepted nodes become positions of the cache. Sessions join and
// leave between any two passes. How a pass is filled is told beside plan.
//
// Invariants of a session between passes:
//  1. tokens is what the gateway committed when it opened the session, plus the tokens of every verdict
//     since: the verifier decides them, so it need not be told.
//  2. Once the prompt is in, the cache holds all tokens but the last, which is the next tree's root.
//  3. At most one ticket of a session waits: one for tokens that end at its base. The verdict on the base
//     before is kept and given again to a ticket that was repeated; so a lost verdict costs no pass,
//     and whether it was lost need not be known.
//
// A ticket answers to nobody: what is wrong with one is counted and told in a verdict of that kind. A drafter
// whose trees were garbage a few times is not listened to for a while; see ledger.
type Verifier struct {
	cfg   Config
	owner *owner.Owner
	room  chan struct{} // one token per ticket that waits for its verdict

	sessions map[tandem.SessionID]*session // the owner's, as all below
	opening  []*session                    // whose prompt is not in yet, first come first
	queue    []*check                      // tickets for the next passes, first come first
	evicted  int64                         // pages of prefixes, as counted
	blames   ledger                        // of drafters
	costs    *learn.Costs                  // of passes by rows
	free     time.Time                     // when the last pass ended
	hold     *time.Timer                   // wakes the owner at the end of a wait for more tickets
	passes   int                           // with tickets, so far
	stepping bool                          // a pass is planned or running
	inPass   []share                       // what it consists of
	segments []engine.Part
	sampler  sample.Sampler
}

// New returns a verifier with its goroutine running; Shutdown ends it.
func New(cfg Config) (*Verifier, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	v := &Verifier{cfg: cfg, room: make(chan struct{}, cfg.Batch), sessions: map[tandem.SessionID]*session{},
		blames: ledger{counters: cfg.Counters}, costs: learn.NewCosts(cfg.Costs)}
	cfg.Model.BoundPrefixes(cfg.PrefixCache)
	v.hold = time.AfterFunc(time.Hour, func() { v.owner.Post(func() {}) })
	v.hold.Stop()
	v.owner = owner.Start(owner.Work{Step: v.step, Fault: v.fault, Tick: v.sweep, Every: max(cfg.Idle/4, time.Millisecond), Last: v.last})
	return v, nil
}

// Run takes tickets from src and answers each with a verdict, until src returns an error, which it
// returns. It leaves tickets in the pool while cfg.Batch of them wait here, so that the pool's bound
// holds drafters back.
func (v *Verifier) Run(ctx context.Context, src tandem.TicketSource) error {
	for {
		tickets, err := src.Take(ctx, v.cfg.Batch)
		if err != nil {
			return err
		}
		came := time.Now()
		for len(tickets) > 0 {
			n, err := v.reserve(ctx, len(tickets))
			if err != nil {
				return err
			}
			group := tickets[:n:n]
			tickets = tickets[n:]
			posted := v.owner.Post(func() {
				for _, t := range group {
					v.admit(t, came)
				}
			})
			if !posted {
				return tandem.Errorf("verifier", tandem.Unavailable, "shutting down")
			}
		}
	}
}

// Submit hands over one ticket that goes past the pool, such as a gateway's whose pool is down; its tree is the verifier's from then
// on. Errors: Exhausted while cfg.Batch tickets wait, Unavailable after Shutdown, that of a ctx that has ended.
func (v *Verifier) Submit(ctx context.Context, t tandem.Ticket) error {
	if err := ctx.Err(); err != nil {
		return tandem.Errorf("verifier", tandem.KindOf(err), "ticket of session %v: %w", t.Session, err)
	}
	select {
	case v.room <- struct{}{}:
	default:
		return tandem.Errorf("verifier", tandem.Exhausted, "%d tickets wait for a pass, as many as may", v.cfg.Batch)
	}
	came := time.Now()
	if !v.owner.Post(func() { v.admit(t, came) }) {
		<-v.room
		return tandem.Errorf("verifier", tandem.Unavailable, "shutting down")
	}
	return nil
}

// reserve waits for room for a ticket, and takes room for up to most.
func (v *Verifier) reserve(ctx context.Context, most int) (n int, err error) {
	select {
	case v.room <- struct{}{}:
	case <-ctx.Done():
		return 0, tandem.Errorf("verifier", tandem.KindOf(ctx.Err()), "waiting for a pass: %w", ctx.Err())
	}
	for n = 1; n < most; n++ {
		select {
		case v.room <- struct{}{}:
		default:
			return n, nil
		}
	}
	return n, nil
}

// Open implements tandem.Verifier. It returns when all tokens but the last are in the cache: those of their begin that other
// sessions of the tenant have computed are not computed again (engine.Model.NewShared). Besides: Stale for an epoch
// older than the one held.
func (v *Verifier) Open(ctx context.Context, o tandem.Opening) (opened tandem.Opened, err error) {
	ctx, end := v.cfg.Events.Begin(ctx, tandem.StageOpen, tandem.Attr{Key: "epoch", Int: int64(o.Epoch)},
		tandem.Attr{Key: "tokens", Int: int64(len(o.Tokens))})
	defer func() { end(err, tandem.Attr{Key: "reused", Int: int64(opened.Reused)}) }()
	p := &prompt{ctx: ctx, ended: make(chan error, 1)}
	if err := v.owner.Do(ctx, func() error { return v.open(o, p) }); err != nil {
		return opened, err
	}
	select {
	case err = <-p.ended:
	case <-ctx.Done():
		err = tandem.Errorf("open", tandem.KindOf(ctx.Err()), "given up during prefill: %w", ctx.Err())
	}
	if err != nil {
		v.owner.Post(func() {
			if s := v.sessions[o.Session]; s != nil && s.opened == p {
				v.drop(s, err)
			}
		})
		return opened, err
	}
	opened.Reused = p.reused
	return opened, nil
}

// Close implements tandem.Verifier.
func (v *Verifier) Close(ctx context.Context, id tandem.SessionID) error {
	return v.owner.Do(ctx, func() error {
		if s := v.sessions[id]; s != nil {
			v.drop(s, tandem.Errorf("verifier", tandem.UnknownSession, "session %v was closed", id))
		}
		return nil
	})
}

// CloseOwned forgets the sessions that owner has opened: a gateway that is gone. See tandem.Opening.
func (v *Verifier) CloseOwned(ctx context.Context, owner uint64) error {
	return v.owner.Do(ctx, func() error {
		for _, s := range v.sessions {
			if s.owner == owner {
				v.drop(s, tandem.Errorf("verifier", tandem.UnknownSession, "the process that had opened session %v is gone", s.id))
				v.cfg.Counters.Add("sessions.orphaned", 1)
			}
		}
		return nil
	})
}

// Shutdown ends calls of Open with Unavailable, frees all sessions and waits for the verifier's
// goroutine, no longer than ctx. The model may be closed after it has returned nil. Whoever calls Run
// must end its ctx.
func (v *Verifier) Shutdown(ctx context.Context) error { return v.owner.Stop(ctx) }

func (v *Verifier) last() {
	v.hold.Stop()
	for _, s := range v.sessions {
		v.drop(s, tandem.Errorf("verifier", tandem.Unavailable, "verifier is shutting down"))
	}
}

// sweep drops sessions that nobody asked for.
func (v *Verifier) sweep() {
	for _, s := range v.sessions {
		if s.prompt == nil && s.ticket == nil && time.Since(s.used) > v.cfg.Idle {
			v.cfg.Counters.Add("sessions.idle", 1)
			v.drop(s, nil)
		}
	}
}
