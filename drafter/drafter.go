// Package drafter guesses what the target will say: it holds a draft model's state of many sessions,
// grows token trees for them in shared passes, and puts the trees into the pool.
package drafter

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// DefaultTreeRows is how many tree nodes of a session the draft model's cache holds unless told
// otherwise; engine.PagesFor wants it.
const DefaultTreeRows = 192

// DefaultAhead is how many tree nodes a session runs at most while the target verifies, unless told
// otherwise.
const DefaultAhead = 96

// DefaultWindow is the Window of a drafter unless told otherwise. Of 320 greedy tokens of the 1.5B behind 7,000 tokens of source text and
// of documentation, Qwen2.5-Coder 0.5B guesses 250 with the whole text; with the first 64 tokens and the last 2,048 244, 1,024 241, 512
// 236, 256 241; without the first, 512 218, 256 229. So between 256 and 1,024 a larger window brings nothing but a longer reading.
var DefaultWindow = engine.Window{First: engine.PageTokens, Last: 256, Step: 4 * engine.PageTokens}

// maxWidth is the most candidates that a pass of the engine returns for a row.
const maxWidth = 1 << 6

// Config says what a drafter works with.
type Config struct {
	Model    *engine.Model // the drafter's alone until Shutdown has returned; not closed by it
	Name     string        // Ticket.Drafter
	Pool     tandem.Pool
	Events   tandem.Events
	Counters *tandem.Counters
	TreeRows int // tree nodes per session to run at most; default DefaultTreeRows, or fewer if the model is recurrent
	Ahead    int // tree nodes to run ahead of a proposal at most; default DefaultAhead
	// AheadGain is how many later passes a pass ahead must be expected to save: about what it costs the
	// verifier on shared cores; 0 if the drafter has its own processor, 1: it never drafts ahead.
	AheadGain float64
	Chunk     int           // prompt tokens per pass; default 128
	Idle      time.Duration // a session without a call for this long is dropped; default 10 minutes
	// PrefixCache bounds the pages of KV memory that keep prefixes of ended sessions for later ones of the same
	// tenant. Only pages that no session needs are used. 0: all such pages; negative: sessions share nothing.
	PrefixCache int
	// Window is what a draft that reads tokens alone, without recurrent layers, sees of its texts; zero: DefaultWindow. Last is at least
	// TreeRows. Other drafts see all.
	Window engine.Window
	Pulse  owner.Pulse // shows the drafter's progress; may be nil
	// Features hands out the target's hidden states, for a Model that reads them: those of Taps, in this order. nil: it gets zeros.
	Features tandem.FeatureSource
	Taps     []int
	// FeatureWait is how long Open waits for features without any coming; default 5 s. Then it goes on with zeros.
	FeatureWait time.Duration
}

func (c Config) withDefaults() (Config, error) {
	if c.Model == nil || c.Pool == nil || c.Counters == nil {
		return c, tandem.Errorf("drafter", tandem.Invalid, "configuration without a model, pool or counters")
	}
	if c.TreeRows == 0 {
		c.TreeRows = DefaultTreeRows
	}
	if rows, bounded := c.Model.HeldRows(); bounded {
		c.TreeRows = min(c.TreeRows, rows)
	}
	if c.Ahead == 0 {
		c.Ahead = DefaultAhead
	}
	if c.Chunk == 0 {
		c.Chunk = 1 << 7
	}
	if c.Window == (engine.Window{}) {
		c.Window = DefaultWindow
	}
	c.Window.Last = max(c.Window.Last, c.TreeRows)
	if c.Idle == 0 {
		c.Idle = 10 * time.Minute
	}
	if c.FeatureWait == 0 {
		c.FeatureWait = 5 * time.Second
	}
	if features, _ := c.Model.StateWidth(); features > 0 && (len(c.Taps) == 0 || features%len(c.Taps) != 0) || c.FeatureWait < 0 {
		return c, tandem.Errorf("drafter", tandem.Invalid, "a draft that reads %d values of states, taps %v and a wait of %v for them: "+
			"want states of equal width, and 0 or more", features, c.Taps, c.FeatureWait)
	}
	if b := c.Model.Block(); b.Rows > min(c.TreeRows, c.Model.MaxRows(), c.Model.MaxWanted()) {
		return c, tandem.Errorf("drafter", tandem.Invalid, "a draft of blocks of %d rows with passes of %d, %d of them with logits, and "+
			"%d tree rows: want at least %d each", b.Rows, c.Model.MaxRows(), c.Model.MaxWanted(), c.TreeRows, b.Rows)
	}
	if c.TreeRows < 1 || c.Ahead < 1 || c.Chunk < 1 || c.Idle < 0 {
		return c, tandem.Errorf("drafter", tandem.Invalid, "tree rows %d, ahead %d, chunk %d, idle %v: want at least 1, 1, 1 and 0",
			c.TreeRows, c.Ahead, c.Chunk, c.Idle)
	}
	if !(c.AheadGain >= 0 && c.AheadGain <= 1) {
		return c, tandem.Errorf("drafter", tandem.Invalid, "a pass ahead is to spare %v: want 0 to 1", c.AheadGain)
	}
	c.Chunk = min(c.Chunk, c.Model.MaxRows())
	return c, nil
}

// Drafter implements tandem.Drafter over one draft model.
//
// All sessions belong to one goroutine, the schedule's. A call becomes a job of its session: Open the prefill
// of all tokens but the last, Propose the growth of a tree. While there are jobs the schedule runs passes
// of the model: each takes the next rows of every tree that is growing and fills up with pieces of
// prompts, so that neither a long prompt nor another session's tree delays a job for longer than
// a pass. While there are no jobs it drafts ahead for sessions that wait for the target, a small pass at a
// time, so that a new job does not wait for long. Waiting, above all for the pool, happens in the
// caller's goroutine.
//
// The model's results are kept (spec.Explored): a row that the next tree wants costs nothing if it was run
// before, whether for a tree that was cut, for a branch that was not taken, or ahead of time.
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
	cfg        Config
	sched      *schedule.Schedule
	sampler    sample.Sampler   // the schedule's goroutine's
	states     sync.Map         // *stateGrower by session, of those that read the target's
	held       int              // features of a prompt that are kept at most until all have come
	way        tandem.SelfDraft // of the model's prompt tokens; no Levels: it has none
	trust      [2]spec.Trust    // in those, of sessions that take the likeliest token, and that draw
	background background       // asks for features that no call waits for

	children *spec.Children // of all sessions; the schedule's goroutine's
}

// hops is the number of goroutines that a tree passes on its way out: the caller's, which puts it into the pool. With a larger number
// fewer trees arrive in time for a pass of the target: 3.7 of 8 sessions instead of 4.4, measured with passes of a few milliseconds.
const hops = 1

// New returns a drafter with its goroutine running; Shutdown ends it.
func New(cfg Config) (*Drafter, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cfg.Model.Prefixes().Bound(cfg.PrefixCache)
	d := &Drafter{cfg: cfg, way: promptsOf(cfg.Model), held: heldRows, children: spec.NewChildren(nil),
		background: newBackground()}
	d.sched = schedule.New(schedule.Config{Name: "drafter", Model: cfg.Model, Events: cfg.Events,
		Counters: cfg.Counters,
		Chunk:    cfg.Chunk, Spare: aheadRows, Idle: cfg.Idle, Patience: 1, Hops: hops, Pulse: cfg.Pulse})
	d.sched.Start()
	return d, nil
}

// Window returns what the model sees of its texts; the zero value: all.
func (d *Drafter) Window() engine.Window {
	config := d.cfg.Model.Config()
	if features, _ := d.cfg.Model.StateWidth(); features > 0 || config.Recurrent() {
		return engine.Window{}
	}
	w := d.cfg.Window
	w.Last = max(w.Last, config.Window)
	return w
}

// Open implements tandem.Drafter. It returns when all tokens but the last that the model will see are in the cache; a prefix that other
// sessions of the tenant have computed is not computed again (engine.Model.NewShared). Further errors: Unsupported if the tokens
// exceed the draft model's context, Stale for an epoch older than the one held, Exhausted if there is no memory for them beside
// the sessions that are held: then there are no drafts for this one until it is opened later.
func (d *Drafter) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	var s *session
	opened, err := d.sched.Open(ctx, o, func() (_ schedule.Session, err error) {
		s, err = d.open(o)
		return s, err
	})
	if err != nil {
		return opened, err
	}
	if err = s.grower.open(ctx, o); err != nil {
		return opened, err
	}
	opened.Identity, opened.Hindsight = d.cfg.Model.Names().Identity, s.hindsight
	return opened, nil
}

// Propose implements tandem.Drafter. Further errors: Unsupported if the tokens exceed the draft model's
// context, Invalid for a proposal that contradicts itself, Exhausted if an older session needed the memory; then the session is dropped.
func (d *Drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	drafting, end := d.cfg.Events.Begin(ctx, tandem.StageDraft, tandem.Attr{Key: "epoch", Int: int64(p.Epoch)},
		tandem.Attr{Key: "base", Int: int64(p.Base)}, tandem.Attr{Key: "width", Int: int64(p.Bounds.Width)},
		tandem.Attr{Key: "drafter", Str: d.cfg.Name})
	j, came := newJob(drafting), time.Now()
	err := d.begin(ctx, p, j, came)
	if err == nil {
		err = j.Wait()
	}
	if err != nil {
		d.cfg.Counters.Add("drafts."+tandem.KindOf(err).String(), 1)
		end(err)
		return tandem.Proposed{}, err
	}
	_, depth := j.tree.Depths()
	done := tandem.Proposed{Nodes: j.tree.Len(), Depth: depth, Busy: j.busy, Passes: j.passes, Reused: j.reused, Ahead: j.ahead,
		Tree: j.tree, Hindsight: j.hindsight}
	end(nil, tandem.Attr{Key: "nodes", Int: int64(done.Nodes)}, tandem.Attr{Key: "depth", Int: int64(depth)},
		tandem.Attr{Key: "passes", Int: int64(done.Passes)}, tandem.Attr{Key: "reused", Int: int64(done.Reused)},
		tandem.Attr{Key: "device_ns", Int: int64(done.Busy)})
	d.cfg.Counters.Add("drafts", 1)
	d.cfg.Counters.Add("drafts.nodes", int64(done.Nodes-1))
	if p.Return {
		return done, nil
	}
	return done, grow.Send(ctx, d.cfg.Pool, d.cfg.Events, d.cfg.Counters, p.Ticket(d.cfg.Name, grow.Clone(j.tree)))
}

// Close implements tandem.Drafter.
func (d *Drafter) Close(ctx context.Context, id tandem.SessionID) error {
	return d.sched.Do(ctx, func() error { d.sched.Close(id); return nil })
}

// CloseOwned forgets the sessions of an owner, such as a gateway that is gone. See tandem.Opening.
func (d *Drafter) CloseOwned(ctx context.Context, owner uint64) error {
	return d.sched.Do(ctx, func() error { d.sched.CloseOwned(owner); return nil })
}

// Shutdown ends all calls with Unavailable, frees all sessions and waits for the drafter's goroutine, no
// longer than ctx. The model may be closed after it has returned nil.
func (d *Drafter) Shutdown(ctx context.Context) error {
	d.background.stop()
	return d.sched.Stop(ctx)
}
