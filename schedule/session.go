package schedule

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule/owner"
)

// Session is a room's part of a session; it embeds an Entry, which has defaults for some of the methods. All methods run on the owner's
// goroutine, and a panic in one of them drops only that session.
type Session interface {
	// Missing returns how many tokens must be computed before the work that the session was opened or queued for can begin: of its
	// prompt, or of the text that was committed while it did something else.
	Missing() int
	// Want returns the session's part in the next pass, no larger than space; without rows if it does not fit. While
	// tokens are missing, the part has as many of them as fit.
	Want(space Space) Part
	// Take uses what a pass has computed for the part. The part's wanted rows begin at row first of out.
	Take(p Part, out *engine.Output, first int, pass Pass)
	// Settle does the work that can wait until all sessions of the pass have answered. An error drops the session.
	Settle() error
	// Opened is called when the prompt is in.
	Opened()
	// Spare returns a part that nobody waits for; without rows if there is none, and then it is not asked again until
	// Schedule.Spare is called.
	Spare(space Space) Part
	// Left is called when the session is no longer held, with the reason; nil if it had only been idle for too long.
	Left(err error)

	entry() *Entry
}

// Entry is the schedule's state of a session.
type Entry struct {
	ID    tandem.SessionID
	Owner uint64 // see tandem.Opening
	Epoch tandem.Epoch
	Seq   Sequence

	tenant  string
	number  uint64 // of all sessions that were entered, in order
	opening *Call  // ends when the prompt is in; nil from then on
	reused  int    // tokens of the prompt that were found in memory
	queued  bool
	ran     bool      // it was in a pass since it was queued
	lags    bool      // more than a few tokens are missing; fill sets this and sits
	sits    bool      // it sits out the pass that is being filled
	inPass  bool      // mark used by rotated
	call    *Call     // ends with the work that it is queued for; may be nil
	came    time.Time // when that work came
	used    time.Time // when work for it last came or ended

	answered time.Time     // when work that it was queued for last ended well; zero before the first time
	rhythm   time.Duration // running mean of the time from answered until it is queued again; 0 before the first
	rows     int           // of its next part, about; while it is not queued, of the last
	turn     int           // others come first until the schedule has run so many passes
}

// NewEntry returns the Entry of the session that o opens, whose state in the model is seq.
func NewEntry(o tandem.Opening, seq Sequence) Entry {
	return Entry{ID: o.Session, Owner: o.Owner, Epoch: o.Epoch, Seq: seq, tenant: o.Tenant}
}

func (t *Entry) entry() *Entry { return t }

// Settle, Opened, Spare and Left are defaults that do nothing.
func (t *Entry) Settle() error      { return nil }
func (t *Entry) Opened()            {}
func (t *Entry) Spare(_ Space) Part { return Part{} }
func (t *Entry) Left(_ error)       {}

// Opening reports whether the session's prompt is not in yet.
func (t *Entry) Opening() bool { return t.opening != nil }

// Reused returns how many tokens of the prompt were found in memory.
func (t *Entry) Reused() int { return t.reused }

// Busy reports whether the session is opened or queued.
func (t *Entry) Busy() bool { return t.opening != nil || t.queued }

// Sequence is the part of a session's state in the model that a schedule needs.
type Sequence interface {
	Len() int   // positions that are held
	Pages() int // of memory in which it lies, those that it shares included
	// Resume takes over as much of the prompt as others have computed by now, and returns how many positions it took over.
	Resume() int
	// Follows reports whether it is better to wait for what o is about to compute, because Resume will find it.
	Follows(o Sequence) bool
	// Distrust makes sure that no other sequence finds what was computed.
	Distrust()
	// Close gives the memory back.
	Close()
}

// Shared returns s as a Sequence.
func Shared(s *engine.Sequence) Sequence { return shared{s} }

type shared struct{ *engine.Sequence }

func (s shared) Follows(o Sequence) bool {
	other, ok := o.(shared)
	return ok && s.Sequence.Follows(other.Sequence)
}

// Call is a caller's wait for a session. It ends once.
type Call struct {
	ctx   context.Context
	ended chan error
	found int          // tokens that the session held when it was entered
	held  atomic.Int64 // tokens that the session holds, while it is opened
}

// NewCall returns a call that is given up when ctx ends; the work that it waits for then ends too.
func NewCall(ctx context.Context) *Call { return &Call{ctx: ctx, ended: make(chan error, 1)} }

// Wait returns the error with which the call ended, or that of its caller giving up.
func (c *Call) Wait() error {
	select {
	case err := <-c.ended:
		return err
	case <-c.ctx.Done():
		return c.GivenUp()
	}
}

// GivenUp returns why the caller does not wait any more, Canceled or Deadline, or nil.
func (c *Call) GivenUp() error {
	err := c.ctx.Err()
	if err == nil {
		return nil
	}
	return tandem.Errorf("schedule", tandem.KindOf(err), "given up while waiting for passes: %w", err)
}

// End ends the call; only the first End counts.
func (c *Call) End(err error) {
	select {
	case c.ended <- err:
	default:
	}
}

// Queue lets x take part in passes until End, which also ends call unless that is nil. came is when the work arrived, rows
// about the size of its first part. x must not be queued. It may still be opened: then its parts wait for the prompt.
func (s *Schedule) Queue(x Session, call *Call, came time.Time, rows int) {
	t := x.entry()
	t.arrived(came)
	t.queued, t.ran, t.call, t.came, t.rows, t.used = true, false, call, came, rows, time.Now()
	if t.opening == nil {
		s.line = append(s.line, x)
	}
}

// End ends the work that x is opened or queued for: its callers get err.
func (s *Schedule) End(x Session, err error) {
	t := x.entry()
	if !t.Busy() {
		return
	}
	s.line = slices.DeleteFunc(s.line, func(o Session) bool { return o == x })
	t.used, s.answered = time.Now(), true
	if t.opening != nil {
		t.opening.End(err)
	}
	if t.call != nil {
		t.call.End(err)
	}
	if t.queued && err == nil {
		t.answered = t.used
	}
	t.opening, t.call, t.queued = nil, nil, false
}

// opened ends the wait for a prompt that is in.
func (s *Schedule) opened(x Session) {
	t := x.entry()
	if t.reused > 0 {
		s.cfg.Counters.Add("prefix.hits", 1)
		s.cfg.Counters.Add("prefix.reused_tokens", int64(t.reused))
	}
	t.opening.End(nil)
	t.opening, t.used, s.answered = nil, time.Now(), true
	if !t.queued {
		s.line = slices.DeleteFunc(s.line, func(o Session) bool { return o == x })
	}
}

// Spare lets x have parts in passes that nobody waits for, until it has no more or Rest.
func (s *Schedule) Spare(x Session) { s.spare = append(s.spare, x) }

// Rest undoes Spare.
func (s *Schedule) Rest(x Session) {
	s.spare = slices.DeleteFunc(s.spare, func(o Session) bool { return o == x })
}

// Drop forgets a session but keeps what it has computed for others. Its callers get err.
func (s *Schedule) Drop(x Session, err error) {
	t := x.entry()
	delete(s.sessions, t.ID)
	s.Rest(x)
	s.End(x, err)
	if failed := owner.Guard(func() error { x.Left(err); return nil }); failed != nil {
		s.cfg.Counters.Add("faults", 1)
	}
	t.Seq.Close()
	s.countEvicted()
}

// Fail drops a session after a fault of tandem's own. It will be opened again from its tokens alone, since nothing computed
// for it can be trusted. Its end is Unavailable if err is, as for a process that will start again, else Internal.
func (s *Schedule) Fail(x Session, err error) {
	s.cfg.Counters.Add("faults", 1)
	t := x.entry()
	t.Seq.Distrust()
	kind := tandem.Internal
	if tandem.KindOf(err) == tandem.Unavailable {
		kind = tandem.Unavailable
	}
	s.Drop(x, tandem.Errorf(s.cfg.Name, kind, "session %v: %w", t.ID, err))
}
