// Package drafter guesses what the target will say: it holds a draft model's state of many sessions,
// grows token trees for them in shared passes, and puts the trees into the pool.
package drafter

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
)

// DefaultTreeRows is how many tree nodes of a session the draft model's cache holds unless told
// otherwise; engine.PagesFor wants it.
const DefaultTreeRows = 192

// DefaultAhead is how many tree nodes a session runs at most while the target verifies, unless told
// otherwise.
const DefaultAhead = 96

// maxWidth is the most candidates that a pass of the engine returns for a row.
const maxWidth = 64

// Config says what a drafter works with.
type Config struct {
	Model    *engine.Model // the drafter's alone until Shutdown has returned; not closed by it
	Name     string        // Ticket.Drafter
	Pool     tandem.Pool
	Events   tandem.Events
	Counters *tandem.Counters
	TreeRows int // tree nodes per session to run at most; default DefaultTreeRows
	Ahead    int // tree nodes to run ahead of a proposal at most; default DefaultAhead
	// AheadGain is how many later passes a pass ahead must be expected to spare: about what it costs the
	// verifier on cores that both use, 0 where the drafter has a processor of its own.
	AheadGain float64
	Chunk     int           // prompt tokens per pass; default 128
	Idle      time.Duration // a session nobody asked for this long is dropped; default 10 minutes
	// PrefixCache bounds the pages of KV memory that hold prefixes of sessions that have ended, for later ones of the same
	// tenant; they are pages that no session needs. 0: all such pages; negative: sessions share nothing.
	PrefixCache int
}

func (c Config) withDefaults() (Config, error) {
	if c.Model == nil || c.Pool == nil || c.Counters == nil {
		return c, tandem.Errorf("drafter", tandem.Invalid, "configuration without a model, pool or counters")
	}
	if c.TreeRows == 0 {
		c.TreeRows = DefaultTreeRows
	}
	if c.Ahead == 0 {
		c.Ahead = DefaultAhead
	}
	if c.Chunk == 0 {
		c.Chunk = 128
	}
	if c.Idle == 0 {
		c.Idle = 10 * time.Minute
	}
	if c.TreeRows < 1 || c.Ahead < 1 || c.Chunk < 1 || c.Idle < 0 {
		return c, tandem.Errorf("drafter", tandem.Invalid, "tree rows %d, ahead %d, chunk %d, idle %v: want at least 1, 1, 1 and 0", c.TreeRows, c.Ahead, c.Chunk, c.Idle)
	}
	if !(c.AheadGain >= 0 && c.AheadGain <= 1) {
		return c, tandem.Errorf("drafter", tandem.Invalid, "a pass ahead is to spare %v: want 0 to 1", c.AheadGain)
	}
	c.Chunk = min(c.Chunk, c.Model.MaxRows())
	return c, nil
}

// Drafter implements tandem.Drafter over one draft model.
//
// All sessions belong to one goroutine, the owner. A call becomes a job of its session: Open the prefill
// of all tokens but the last, Propose the growth of a tree. While there are jobs the owner runs passes
// of the model: each takes the next rows of every tree that is growing and fills up with pieces of
// prompts, so that neither a long prompt nor another session's tree holds anybody up for longer than
// a pass. While there are none it goes on for sessions that wait for the target, a small pass at a time,
// so that a job waits no longer for that either. What waits, the pool above all, waits in the
// caller's goroutine.
//
// What the model has said stays (spec.Explored): rows that the next tree wants and that were run before
// cost nothing, be it for a tree that was cut, for a branch that was not taken, or ahead of time.
//
// Invariants of a session between passes:
//  1. tokens is what the gateway committed, as far as the drafter was told; hash is its hash.
//  2. The cache holds tokens[:Len], Len < len(tokens) unless something is explored: the last token is left
//     out so that the next pass starts from its logits.
//  3. If something is explored, Len = len(tokens), its root is the last token, and its node i is tree row i-1.
//  4. The cache is rolled back only where it contradicts the committed tokens or the root must be run
//     again; nodes that were run become positions, and their descendants stay tree rows, without being run
//     again.
type Drafter struct {
	cfg   Config
	owner *owner.Owner

	sessions map[tandem.SessionID]*session // the owner's
	active   []*session                    // with a job; those that waited longest first
	ahead    []*session                    // going on while the target verifies; those that waited longest first
	pace     time.Duration                 // running mean of a tree pass
	evicted  int64                         // pages of prefixes, as counted
	answered bool                          // a job has ended since the last step
	stepping bool                          // a pass is planned or running
	inPass   []share                       // what it consists of
	segments []engine.Part
}

// New returns a drafter with its goroutine running; Shutdown ends it.
func New(cfg Config) (*Drafter, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Drafter{cfg: cfg, sessions: map[tandem.SessionID]*session{}}
	cfg.Model.BoundPrefixes(cfg.PrefixCache)
	d.owner = owner.Start(owner.Work{Step: d.step, Fault: d.fault, Tick: d.sweep, Every: max(cfg.Idle/4, time.Millisecond), Last: d.last})
	return d, nil
}

// Open implements tandem.Drafter. It returns when all tokens but the last are in the cache: those of their begin that other
// sessions of the tenant have computed are not computed again (engine.Model.NewShared). Besides: Unsupported if the tokens
// exceed the draft model's context, Stale for an epoch older than the one held.
func (d *Drafter) Open(ctx context.Context, o tandem.Opening) (opened tandem.Opened, err error) {
	ctx, end := d.cfg.Events.Begin(ctx, tandem.StageOpen, tandem.Attr{Key: "epoch", Int: int64(o.Epoch)},
		tandem.Attr{Key: "tokens", Int: int64(len(o.Tokens))})
	defer func() { end(err, tandem.Attr{Key: "reused", Int: int64(opened.Reused)}) }()
	j := newJob(ctx)
	if err := d.owner.Do(ctx, func() error { return d.open(o, j) }); err != nil {
		return opened, err
	}
	err = j.wait()
	if err != nil {
		d.owner.Post(func() {
			if s := d.sessions[o.Session]; s != nil && s.opened == j {
				d.drop(s, err)
			}
		})
		return opened, err
	}
	return tandem.Opened{Reused: j.reused, Hindsight: j.hindsight}, nil
}

// Propose implements tandem.Drafter. Besides: Unsupported when the tokens exceed the draft model's
// context, Invalid for a proposal that contradicts itself.
func (d *Drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	drafting, end := d.cfg.Events.Begin(ctx, tandem.StageDraft, tandem.Attr{Key: "epoch", Int: int64(p.Epoch)},
		tandem.Attr{Key: "base", Int: int64(p.Base)}, tandem.Attr{Key: "width", Int: int64(p.Bounds.Width)}, tandem.Attr{Key: "drafter", Str: d.cfg.Name})
	j := newJob(drafting)
	err := tandem.Errorf("propose", tandem.Unavailable, "drafter is shutting down")
	if d.owner.Post(func() { d.start(p, j) }) { // not Do: one wait is enough
		err = j.wait()
	}
	if err != nil {
		d.cfg.Counters.Add("drafts."+tandem.KindOf(err).String(), 1)
		end(err)
		return tandem.Proposed{}, err
	}
	_, depth := j.tree.Depths()
	done := tandem.Proposed{Nodes: j.tree.Len(), Depth: depth, Busy: j.busy, Passes: j.passes, Reused: j.reused, Ahead: j.ahead, Tree: j.tree, Hindsight: j.hindsight}
	end(nil, tandem.Attr{Key: "nodes", Int: int64(done.Nodes)}, tandem.Attr{Key: "depth", Int: int64(depth)},
		tandem.Attr{Key: "passes", Int: int64(done.Passes)}, tandem.Attr{Key: "reused", Int: int64(done.Reused)},
		tandem.Attr{Key: "device_ns", Int: int64(done.Busy)})
	d.cfg.Counters.Add("drafts", 1)
	d.cfg.Counters.Add("drafts.nodes", int64(done.Nodes-1))
	if p.Return {
		return done, nil
	}
	return done, send(ctx, d.cfg.Pool, d.cfg.Events, tandem.Ticket{Session: p.Session, Epoch: p.Epoch, Base: p.Base, Hash: p.Hash,
		Drafter: d.cfg.Name, Tree: clone(j.tree)})
}

// clone returns a copy of t: the pool owns one, the caller of Propose another.
func clone(t tandem.Tree) tandem.Tree {
	return tandem.Tree{Tokens: slices.Clone(t.Tokens), Parents: slices.Clone(t.Parents), LogProbs: slices.Clone(t.LogProbs)}
}

// Close implements tandem.Drafter.
func (d *Drafter) Close(ctx context.Context, id tandem.SessionID) error {
	return d.owner.Do(ctx, func() error {
		if s := d.sessions[id]; s != nil {
			d.drop(s, tandem.Errorf("drafter", tandem.UnknownSession, "session %v was closed", id))
		}
		return nil
	})
}

// CloseOwned forgets the sessions that owner has opened: a gateway that is gone. See tandem.Opening.
func (d *Drafter) CloseOwned(ctx context.Context, owner uint64) error {
	return d.owner.Do(ctx, func() error {
		for _, s := range d.sessions {
			if s.owner == owner {
				d.drop(s, tandem.Errorf("drafter", tandem.UnknownSession, "the process that had opened session %v is gone", s.id))
				d.cfg.Counters.Add("sessions.orphaned", 1)
			}
		}
		return nil
	})
}

// Shutdown ends all calls with Unavailable, frees all sessions and waits for the drafter's goroutine, no
// longer than ctx. The model may be closed after it has returned nil.
func (d *Drafter) Shutdown(ctx context.Context) error { return d.owner.Stop(ctx) }

func (d *Drafter) last() {
	for _, s := range d.sessions {
		d.drop(s, tandem.Errorf("drafter", tandem.Unavailable, "drafter is shutting down"))
	}
}

// sweep drops sessions that nobody asked for.
func (d *Drafter) sweep() {
	for _, s := range d.sessions {
		if s.job == nil && time.Since(s.used) > d.cfg.Idle {
			d.cfg.Counters.Add("sessions.idle", 1)
			d.drop(s, nil)
		}
	}
}
