// Package lookup is the drafter without a model: it proposes what followed when the end of the text stood somewhere before.
package lookup

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// Name is the name of the drafter without a model.
const Name = "lookup"

// Config says what a Drafter works with.
type Config struct {
	Name     string // Ticket.Drafter; default Name
	Vocab    int    // how many tokens the target has; an Opening.Vocab other than 0 counts in its place
	Pool     tandem.Pool
	Events   tandem.Events
	Counters *tandem.Counters
	Sessions int           // that are held at most; default 1024
	Tokens   int           // sum of the limits of all sessions, at most; default 2²⁰. A token takes about 100 bytes once it is there
	Idle     time.Duration // a session without a call for this long is dropped; default 10 minutes
	Tenants  []string      // whose earlier texts are looked through, for their own sessions alone; see Remember
	Earlier  int           // tokens of earlier texts that are kept, 12 bytes each: so many in all, the same for each tenant
}

func (c Config) withDefaults() (Config, error) {
	const op = "lookup"
	if c.Pool == nil || c.Counters == nil {
		return c, tandem.Errorf(op, tandem.Invalid, "configuration without a pool or counters")
	}
	if c.Name == "" {
		c.Name = Name
	}
	if c.Sessions == 0 {
		c.Sessions = 1 << 10
	}
	if c.Tokens == 0 {
		c.Tokens = 1 << 20
	}
	if c.Idle == 0 {
		c.Idle = 10 * time.Minute
	}
	if len(c.Tenants) > 0 && c.Earlier < len(c.Tenants) {
		return c, tandem.Errorf(op, tandem.Invalid, "%d tokens of earlier texts for %d tenants: want at least one each", c.Earlier,
			len(c.Tenants))
	}
	if c.Vocab < 1 || c.Sessions < 1 || c.Tokens < 1 || c.Idle < 0 {
		return c, tandem.Errorf(op, tandem.Invalid, "vocabulary %d, sessions %d, tokens %d, idle %v: want at least 1, 1, 1 and 0", c.Vocab,
			c.Sessions, c.Tokens, c.Idle)
	}
	return c, nil
}

// Drafter implements tandem.Drafter without a model. By a suffix automaton for each session it finds where the end of the text stood
// before, and proposes what followed there. It also looks through earlier texts of the session's tenant, if it was told to keep them. Safe
// for concurrent use.
//
// A call takes microseconds, so it works in the caller's goroutine, one call of a session at a time. Invariant
// of a session whose lock is free: the automaton is that of its tokens.
//
// A tenant's texts have memory and a lock of their own, allotted at the start. So nothing that one tenant writes changes what another's
// sessions find, how much of its texts is kept, or how long it waits.
type Drafter struct {
	cfg     Config
	sweeper *owner.Owner
	earlier map[string]*pastTexts // by tenant; never changes

	mu       sync.Mutex
	sessions map[tandem.SessionID]*session
	reserved int // sum of the sessions' limits
	closed   bool
}

type session struct {
	mu     sync.Mutex
	text   grow.Prefix // tokens and hash under mu; the rest never changes
	owner  uint64      // see tandem.Opening
	prompt int         // how many of its tokens the target did not draw
	used   time.Time
	seen   *spec.Automaton
	recall spec.Recall
	old    *pastTexts      // texts of the tenant; nil: none are kept
	place  spec.Occurrence // in old
}

// New returns a drafter with its sweeper running; Shutdown ends it. Errors: Invalid.
func New(cfg Config) (*Drafter, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Drafter{cfg: cfg, sessions: map[tandem.SessionID]*session{}, earlier: map[string]*pastTexts{}}
	for _, tenant := range cfg.Tenants {
		d.earlier[tenant] = &pastTexts{texts: spec.NewTexts(cfg.Earlier / len(cfg.Tenants))}
	}
	d.sweeper = owner.New(owner.Work{Tick: d.sweep, Every: schedule.SweepEvery(cfg.Idle),
		Fault: func(error) { cfg.Counters.Add("faults", 1) }})
	d.sweeper.Start()
	return d, nil
}

// Open implements tandem.Drafter. Further errors: Stale for an epoch older than the one held, Unsupported for a
// limit that would not fit even if the session were alone.
func (d *Drafter) Open(ctx context.Context, o tandem.Opening) (opened tandem.Opened, err error) {
	const op = "open"
	_, end := d.cfg.Events.Begin(ctx, tandem.StageOpen, tandem.Attr{Key: "epoch", Int: int64(o.Epoch)},
		tandem.Attr{Key: "tokens", Int: int64(len(o.Tokens))})
	defer func() { end(err) }()
	if err := ctx.Err(); err != nil {
		return opened, tandem.Errorf(op, tandem.KindOf(err), "session %v: %w", o.Session, err)
	}
	if err := grow.CheckOpening(o, d.cfg.Vocab); err != nil {
		return opened, err
	}
	if int(o.Limit) > d.cfg.Tokens {
		return opened, tandem.Errorf(op, tandem.Unsupported, "limit of %d tokens: %d are held in all", o.Limit, d.cfg.Tokens)
	}
	s := &session{text: grow.NewPrefix(o, d.cfg.Vocab), owner: o.Owner, used: time.Now(), old: d.earlier[o.Tenant],
		prompt: cmp.Or(o.Prompt, len(o.Tokens))}
	s.mu.Lock() // filled before any other call comes in, but not under d.mu
	defer s.mu.Unlock()
	if err := d.enter(s, o); err != nil {
		return opened, err
	}
	s.rebuild()
	return tandem.Opened{Hindsight: s.recall.Of(len(s.text.Tokens))}, nil
}

// enter puts an opened session in the place of an older one.
func (d *Drafter) enter(s *session, o tandem.Opening) error {
	const op = "open"
	d.mu.Lock()
	defer d.mu.Unlock()
	sessions, reserved := len(d.sessions)+1, d.reserved+int(s.text.Limit)
	old := d.sessions[s.text.Session]
	if old != nil {
		if o.Epoch < old.text.Epoch {
			return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", o.Epoch, o.Session, old.text.Epoch)
		}
		sessions, reserved = sessions-1, reserved-int(old.text.Limit)
	}
	switch {
	case d.closed:
		return tandem.Errorf(op, tandem.Unavailable, "drafter is shutting down")
	case sessions > d.cfg.Sessions:
		return tandem.Errorf(op, tandem.Exhausted, "%d sessions are held, as many as may be", d.cfg.Sessions)
	case reserved > d.cfg.Tokens:
		return tandem.Errorf(op, tandem.Exhausted, "%d tokens would be held with this session: at most %d allowed", reserved, d.cfg.Tokens)
	}
	if old != nil {
		d.drop(old)
	}
	d.sessions[s.text.Session], d.reserved = s, reserved
	return nil
}

// rebuild makes the automaton from the tokens.
func (s *session) rebuild() {
	s.seen, s.recall, s.place = spec.NewAutomaton(), spec.Recall{}, spec.Occurrence{}
	s.append(0)
}

// append continues the automaton with the tokens from position from on.
func (s *session) append(from int) {
	first := tandem.Bounds{Nodes: 2, Depth: 1, Width: 1}
	for i, t := range s.text.Tokens[from:] {
		recent := len(s.text.Tokens)-from-i <= tandem.MaxHindsight
		if recent {
			guess := s.guess(from+i, first)
			s.recall.Saw(from+i, guess.Len() > 1 && guess.Tokens[1] == t)
		}
		if from+i >= s.prompt {
			s.seen.Learn(t)
		}
		if s.seen.Append(t); recent {
			s.place = s.old.follow(s.place, s.text.Tokens[:from+i+1])
		} else {
			s.place = spec.Occurrence{}
		}
	}
}

// guess returns the tree below the first n tokens, which are those in the automaton.
func (s *session) guess(n int, b tandem.Bounds) tandem.Tree {
	return s.seen.Continue(b, s.old.matches(s.place, s.text.Tokens[:n], b)...)
}

// Propose implements tandem.Drafter. Further errors: Invalid for a proposal that contradicts itself.
func (d *Drafter) Propose(ctx context.Context, p tandem.Proposal) (done tandem.Proposed, err error) {
	drafting, end := d.cfg.Events.Begin(ctx, tandem.StageDraft, tandem.Attr{Key: "epoch", Int: int64(p.Epoch)},
		tandem.Attr{Key: "base", Int: int64(p.Base)}, tandem.Attr{Key: "width", Int: int64(p.Bounds.Width)},
		tandem.Attr{Key: "drafter", Str: d.cfg.Name})
	err = owner.Guard(func() (err error) { done, err = d.draft(drafting, p); return err })
	if tandem.KindOf(err) == tandem.Internal { // a panic: the session's state is unknown
		d.cfg.Counters.Add("faults", 1)
		_ = d.Close(ctx, p.Session)
	}
	if err != nil {
		d.cfg.Counters.Add("drafts."+tandem.KindOf(err).String(), 1)
		end(err)
		return tandem.Proposed{}, err
	}
	end(nil, tandem.Attr{Key: "nodes", Int: int64(done.Nodes)}, tandem.Attr{Key: "depth", Int: int64(done.Depth)})
	d.cfg.Counters.Add("drafts", 1)
	d.cfg.Counters.Add("drafts.nodes", int64(done.Nodes-1))
	if p.Return {
		return done, nil
	}
	return done, grow.Send(ctx, d.cfg.Pool, d.cfg.Events, d.cfg.Counters, p.Ticket(d.cfg.Name, grow.Clone(done.Tree)))
}

// draft brings the session up to the proposal and grows its tree.
func (d *Drafter) draft(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	const op = "propose"
	begun := time.Now()
	if err := ctx.Err(); err != nil {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.KindOf(err), "given up while drafting: %w", err)
	}
	d.mu.Lock()
	s, closed := d.sessions[p.Session], d.closed
	d.mu.Unlock()
	if closed {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.Unavailable, "drafter is shutting down")
	}
	if s == nil {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.UnknownSession, "session %v is not held", p.Session)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.text.Check(p); err != nil {
		return tandem.Proposed{}, err
	}
	s.used = time.Now()
	if held := len(s.text.Tokens); s.text.Follow(p) < held { // an automaton cannot forget
		s.rebuild()
	} else {
		s.append(held)
	}
	tree := s.guess(len(s.text.Tokens), tandem.Bounds{Nodes: min(p.Bounds.Nodes, s.text.MaxNodes), Depth: min(p.Bounds.Depth,
		int(s.text.Limit-p.Base)),
		Width: p.Bounds.Width})
	if p.Stop > 0 {
		tree = above(tree, float32(math.Log(p.Stop)))
	}
	busy := time.Since(begun)
	tree, _ = spec.Cut(tree, p.Plan, busy)
	_, depth := tree.Depths()
	return tandem.Proposed{Nodes: tree.Len(), Depth: depth, Busy: time.Since(begun), Tree: tree,
		Hindsight: s.recall.Of(len(s.text.Tokens))}, nil
}

// above keeps the nodes with at least that log-probability; they come first, because the likeliest grow first.
func above(t tandem.Tree, least float32) tandem.Tree {
	n := 1
	for n < t.Len() && t.LogProbs[n] >= least {
		n++
	}
	return tandem.Tree{Tokens: t.Tokens[:n], Parents: t.Parents[:n], LogProbs: t.LogProbs[:n]}
}

// Remember keeps a text of a tenant that has ended, prompt and output, if it is one of Config.Tenants: later sessions of that
// tenant find what stood in it. The oldest texts go when the tenant's part is full. The caller keeps tokens.
func (d *Drafter) Remember(tenant string, tokens []tandem.Token) {
	if e := d.earlier[tenant]; e != nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.texts.Add(tokens)
	}
}

// Close implements tandem.Drafter.
func (d *Drafter) Close(_ context.Context, id tandem.SessionID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[id]; s != nil {
		d.drop(s)
	}
	return nil
}

// CloseOwned forgets the sessions of an owner, such as a gateway that is gone. See tandem.Opening.
func (d *Drafter) CloseOwned(_ context.Context, owner uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.sessions {
		if s.owner == owner {
			d.drop(s)
			d.cfg.Counters.Add("sessions.orphaned", 1)
		}
	}
	return nil
}

// Shutdown frees all sessions, refuses further calls with Unavailable and waits for the sweeper, no longer than ctx.
func (d *Drafter) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	d.closed = true
	for _, s := range d.sessions {
		d.drop(s)
	}
	d.mu.Unlock()
	return d.sweeper.Stop(ctx)
}

// drop forgets a session. d.mu is held.
func (d *Drafter) drop(s *session) {
	if d.sessions[s.text.Session] == s {
		delete(d.sessions, s.text.Session)
		d.reserved -= int(s.text.Limit)
	}
}

// sweep drops idle sessions.
func (d *Drafter) sweep() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.sessions {
		if !s.mu.TryLock() {
			continue // somebody is asking
		}
		idle := time.Since(s.used) > d.cfg.Idle
		s.mu.Unlock()
		if idle {
			d.cfg.Counters.Add("sessions.idle", 1)
			d.drop(s)
		}
	}
}
