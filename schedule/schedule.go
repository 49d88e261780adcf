// Package schedule runs the passes of one model for sessions that share it: which sessions are in a pass and with how many
// rows, how prompts get in beside rounds, what waits for what, and which sessions a fault drops. The room that uses it decides
// which rows a session wants, and what to do with the results.
package schedule

import (
	"context"
	"iter"
	"maps"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Model is what passes run on: an *engine.Model.
type Model interface {
	// Forward runs one pass. If it returns an error, no sequence has changed. After a panic the state of the sequences is unknown.
	Forward(batch []engine.Part, topK int) (*engine.Output, error)
	// Reserve takes the memory that a pass with the part needs; Exhausted if there is too little, and then nothing has changed.
	Reserve(part *engine.Part) error
	MaxRows() int              // of a pass
	MaxWanted() int            // rows of a pass that get logits, at most
	Prefixes() engine.Prefixes // that are kept in memory
}

// Config says how a model is shared. A field has a default only if its comment says so.
type Config struct {
	Name     string // of the room, for errors: verifier
	Model    Model  // used only by the schedule until Stop has returned; not closed by it
	Events   tandem.Events
	Counters *tandem.Counters
	Chunk    int           // rows of prompts in a pass at most, at least 1
	Spare    int           // rows of a pass that nobody waits for at most
	Costs    []tandem.Cost // of passes, as measured; corrected by observed passes
	Idle     time.Duration // a session without work for this long is dropped
	Patience float64       // factor on how long a pass waits for a part that is due; 0: passes do not wait
	Batches  int           // that the sessions in rounds are divided into; a pass takes one of them. 0: a pass takes all that waits
	Weighed  bool          // divide sessions into Batches only while that is expected to be faster (Schedule.divides)
	Hops     int           // goroutines that an answer passes through on its way out, which get a turn before the next pass
	Pulse    owner.Pulse   // is told of the schedule's progress; may be nil
	Answer   func()        // called after each pass when its sessions have taken their parts, for answers made together; may be nil
	Last     func()        // called at the very end, when all sessions are dropped; may be nil
	Resting  Resting       // works while there are no sessions; may be nil
}

// Resting is work on a schedule's model for which nobody waits, such as measuring what passes cost. Both methods are called on the owner's
// goroutine, and after a panic no more.
type Resting interface {
	// Rest runs one pass of the model at most, and returns after which time it has more to do; negative: never. It is called while there
	// have been no sessions for RestAfter. A request that comes meanwhile waits for that pass.
	Rest() (again time.Duration)
	// Rouse gives back all that it holds of the model: sessions are about to come.
	Rouse()
}

// RestAfter is how long there must have been no session before Resting is called. So a program that asks one question after the other never
// waits for it. Assumed: people pause for longer.
const RestAfter = time.Second

// Schedule shares the passes of one model among sessions.
//
// All sessions belong to one goroutine, the owner's; so do all methods but Open, Post, Do, Start and Stop. A session is
// opened until its prompt is in the cache. From then on, whenever a room has work for it, it is queued until the room says
// that the work has ended. While sessions are queued or opened the owner runs passes, which fill makes up. While there are
// none it runs passes for sessions with spare work.
//
// Memory for keys and values is taken as passes need it. When there is none, sessions are dropped until there is; see makeRoom.
//
// A panic in a session's part drops only that session, a panic in a pass all sessions of the pass. Dropped sessions are opened again from
// their tokens.
type Schedule struct {
	cfg   Config
	owner *owner.Owner

	sessions map[tandem.SessionID]Session // the owner's, as all below
	line     []Session                    // opened or queued; those that waited longest first
	spare    []Session                    // with work that nobody waits for; those that waited longest first
	costs    *worth.Costs                 // of passes by rows
	pace     *worth.Costs                 // of passes without prompts that somebody waits for, by rows
	latest   [10][2]float64               // of the latest two such passes, by the doublings of their rows: time over the expected
	beside   float64                      // running mean of the rows in these that belong to other sessions
	free     time.Time                    // when the last pass ended
	hold     *time.Timer                  // wakes the owner at the end of a wait
	passes   int                          // with parts of queued sessions, so far
	entered  uint64                       // sessions so far
	crowded  bool                         // the last pass had no room for pieces, although some wait
	evicted  int64                        // pages of prefixes counted so far
	answered bool                         // a wait has ended since callers last had a turn
	stepping bool                         // a pass is planned or running
	steps    atomic.Uint64                // passes that have ended, and parts of passes that take long
	passing  atomic.Int64                 // time that the running pass should take, in nanoseconds: -1 if unknown; 0: none is running
	parts    []Part                       // of the pass that is planned
	running  []Part                       // the parts that run now
	batch    []engine.Part
	scratch  []Session
	rest     rest
}

// New returns a schedule. Until Start, passes run only when Step is called.
func New(cfg Config) *Schedule {
	s := &Schedule{cfg: cfg, sessions: map[tandem.SessionID]Session{}, costs: worth.NewCosts(cfg.Costs),
		pace: worth.NewCosts(cfg.Costs)}
	s.owner = owner.New(owner.Work{Step: s.Step, Fault: s.fault, Tick: s.sweep, Every: SweepEvery(cfg.Idle), Last: s.last,
		Pulse: cfg.Pulse})
	s.hold = time.AfterFunc(time.Hour, func() { s.owner.Post(func() {}) })
	s.hold.Stop()
	s.rest = rest{work: cfg.Resting, due: time.Now().Add(RestAfter)}
	return s
}

// SweepEvery returns how often to look for sessions that were idle for that long.
func SweepEvery(idle time.Duration) time.Duration { return max(idle/4, time.Millisecond) }

// Start starts the owner's goroutine, once.
func (s *Schedule) Start() { s.owner.Start() }

// Post makes fn run on the owner's goroutine and returns at once; false after Stop.
func (s *Schedule) Post(fn func()) bool { return s.owner.Post(fn) }

// Do runs fn on the owner's goroutine, between two passes, and returns its error. See owner.Owner.
func (s *Schedule) Do(ctx context.Context, fn func() error) error { return s.owner.Do(ctx, fn) }

// Stop ends all waits with Unavailable, drops all sessions and waits for the owner's goroutine, no longer than ctx. The model may be
// closed after Stop has returned nil.
func (s *Schedule) Stop(ctx context.Context) error { return s.owner.Stop(ctx) }

// Open calls enter on the owner's goroutine to make a session, and returns when its prompt is in, with the number of its tokens
// that were found in memory. If it fails, or ctx ends first, the session is dropped.
func (s *Schedule) Open(ctx context.Context, o tandem.Opening, enter func() (Session, error)) (opened tandem.Opened, err error) {
	ctx, end := s.cfg.Events.Begin(ctx, tandem.StageOpen, tandem.Attr{Key: "epoch", Int: int64(o.Epoch)},
		tandem.Attr{Key: "tokens", Int: int64(len(o.Tokens))})
	defer func() { end(err, tandem.Attr{Key: "reused", Int: int64(opened.Reused)}) }()
	call := NewCall(ctx)
	var x Session
	err = s.owner.Do(ctx, func() (err error) {
		s.rouse()
		made, err := enter()
		s.countEvicted()
		if err == nil {
			x = made
			s.Enter(x, call)
		}
		return err
	})
	if err != nil {
		return opened, err
	}
	opened.Cached = call.found
	if err = s.await(call, o.Progress); err != nil {
		s.owner.Post(func() {
			if s.Holds(x) {
				s.Drop(x, err)
			}
		})
		return opened, err
	}
	opened.Reused = x.entry().reused
	return opened, nil
}

// await waits for a call to end, and tells the progress meanwhile, unless told is nil.
func (s *Schedule) await(call *Call, told func(tandem.Progress)) error {
	if told == nil {
		return call.Wait()
	}
	every := time.NewTicker(tandem.ProgressEvery)
	defer every.Stop()
	for {
		p := s.Progress()
		p.Held, p.Cached = int(call.held.Load()), call.found
		told(p)
		select {
		case err := <-call.ended:
			return err
		case <-call.ctx.Done():
			return call.GivenUp()
		case <-every.C:
		}
	}
}

// Progress returns the progress of the passes. Safe for concurrent use.
func (s *Schedule) Progress() tandem.Progress {
	return tandem.Progress{Steps: s.steps.Load(), Pass: time.Duration(s.passing.Load())}
}

// Goes reports that the running pass makes progress, for example by reading more of its weights from a disk. Safe for concurrent use.
func (s *Schedule) Goes() { s.steps.Add(1) }

// Replace drops the session that o is to replace; Stale if that has a later epoch.
func (s *Schedule) Replace(o tandem.Opening) error {
	const op = "open"
	old := s.sessions[o.Session]
	if old == nil {
		return nil
	}
	if epoch := old.entry().Epoch; o.Epoch < epoch {
		return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", o.Epoch, o.Session, epoch)
	}
	s.Drop(old, tandem.Errorf(op, tandem.Stale, "session %v was opened again", o.Session))
	return nil
}

// Enter adds a session. The call ends when its prompt is in.
func (s *Schedule) Enter(x Session, call *Call) {
	t := x.entry()
	s.entered++
	t.number, t.reused, t.opening, t.used = s.entered, t.Seq.Len(), call, time.Now()
	call.found = t.reused
	call.held.Store(int64(t.reused))
	s.sessions[t.ID] = x
	s.line = append(s.line, x)
}

// Close forgets a session, if it is held.
func (s *Schedule) Close(id tandem.SessionID) {
	if x := s.sessions[id]; x != nil {
		s.Drop(x, tandem.Errorf(s.cfg.Name, tandem.UnknownSession, "session %v was closed", id))
	}
}

// CloseOwned forgets the sessions that were opened by a process that is gone. See tandem.Opening.
func (s *Schedule) CloseOwned(owner uint64) {
	for id, x := range s.sessions {
		if x.entry().Owner == owner {
			s.Drop(x, tandem.Errorf(s.cfg.Name, tandem.UnknownSession, "the process that had opened session %v is gone", id))
			s.cfg.Counters.Add("sessions.orphaned", 1)
		}
	}
}

// Session returns the session of that id, or nil.
func (s *Schedule) Session(id tandem.SessionID) Session { return s.sessions[id] }

// Sessions returns all sessions.
func (s *Schedule) Sessions() iter.Seq[Session] { return maps.Values(s.sessions) }

// Holds reports whether x is still one of the sessions.
func (s *Schedule) Holds(x Session) bool { return s.sessions[x.entry().ID] == x }

// Load counts the sessions by their state.
type Load struct {
	Sessions int
	Opening  int // whose prompt is not in
	Queued   int
	Spare    int // with work that nobody waits for
}

// Load returns the current load.
func (s *Schedule) Load() Load {
	l := Load{Sessions: len(s.sessions), Spare: len(s.spare)}
	for _, x := range s.line {
		if x.entry().opening != nil {
			l.Opening++
		}
		if x.entry().queued {
			l.Queued++
		}
	}
	return l
}

// Pace returns the expected time of a pass without prompts that has so many rows of one session, and as many rows of other
// sessions as such passes had lately; 0 if nothing is known of it.
func (s *Schedule) Pace(rows int) time.Duration { return known(s.pace, rows+int(s.beside+0.5)) }

// known returns the time of a pass of so many rows; 0 if no pass was measured or observed.
func known(c *worth.Costs, rows int) time.Duration {
	if !c.Known() {
		return 0
	}
	return c.Time(rows)
}

// RowTime returns the expected time of a row of a prompt that is computed alone; 0 if nothing is known of it. Only the owner may call it.
func (s *Schedule) RowTime() time.Duration {
	rows := min(s.cfg.Chunk, s.cfg.Model.MaxRows())
	return known(s.costs, rows) / time.Duration(rows)
}

// Measured replaces what is known of the costs of passes by what was measured. Only the owner may call it.
func (s *Schedule) Measured(costs []tandem.Cost) {
	s.cfg.Costs, s.costs, s.pace = costs, worth.NewCosts(costs), worth.NewCosts(costs)
	clear(s.latest[:])
}

// SetPatience changes Config.Patience, for measurements.
func (s *Schedule) SetPatience(x float64) { s.cfg.Patience = x }

// SetBatches changes Config.Batches and Config.Weighed, for measurements.
func (s *Schedule) SetBatches(n int, weighed bool) { s.cfg.Batches, s.cfg.Weighed = n, weighed }

func (s *Schedule) last() {
	s.hold.Stop()
	s.rouse()
	for _, x := range s.sessions {
		s.Drop(x, tandem.Errorf(s.cfg.Name, tandem.Unavailable, "%s is shutting down", s.cfg.Name))
	}
	if s.cfg.Last != nil {
		s.cfg.Last()
	}
}

// sweep drops idle sessions.
func (s *Schedule) sweep() {
	for _, x := range s.sessions {
		if t := x.entry(); !t.Busy() && time.Since(t.used) > s.cfg.Idle {
			s.cfg.Counters.Add("sessions.idle", 1)
			s.Drop(x, nil)
		}
	}
}

// countEvicted counts the pages of earlier prefixes evicted since the last time.
func (s *Schedule) countEvicted() {
	if now := s.cfg.Model.Prefixes().Evicted(); now > s.evicted {
		s.cfg.Counters.Add("prefix.evicted_pages", now-s.evicted)
		s.evicted = now
	}
}
