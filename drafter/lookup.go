package drafter

import (
	"cmp"
	"context"
	"math"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
	"github.com/tandem-llm/tandem/spec"
)

// LookupName is the name of the drafter without a model.
const LookupName = "lookup"

// LookupConfig says what a Lookup works with.
type LookupConfig struct {
	Name     string // Ticket.Drafter; default LookupName
	Vocab    int    // tokens are below it, and below Opening.Vocab
	Pool     tandem.Pool
	Events   tandem.Events
	Counters *tandem.Counters
	Sessions int           // held at most; default 1024
	Tokens   int           // of all sessions, each counted by its limit; about 100 bytes each once used; default 2²⁰
	Idle     time.Duration // a session without a call for this long is dropped; default 10 minutes
	Tenants  []string      // whose earlier texts are looked through, for their own sessions alone; see Remember
	Earlier  int           // tokens of earlier texts that are kept in all, 12 bytes each: an equal part for each tenant
}

func (c LookupConfig) withDefaults() (LookupConfig, error) {
	const op = "lookup"
	if c.Pool == nil || c.Counters == nil {
		return c, tandem.Errorf(op, tandem.Invalid, "configuration without a pool or counters")
	}
	if c.Name == "" {
		c.Name = LookupName
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

// Lookup implements tandem.Drafter without a model: it finds earlier occurrences of the end of the text and
// proposes what followed them, by a suffix automaton for each session. It also looks through earlier texts of the session's tenant,
// if it was told to keep them.
//
// A call takes microseconds, so it works in the caller's goroutine, one call of a session at a time. Invariant
// of a session whose lock is free: the automaton is that of its tokens.
//
// A tenant's texts have memory and a lock of their own, allotted at the start. So nothing that one tenant writes changes what another's
// sessions find, how much of its texts is kept, or how long it waits.
type Lookup struct {
	cfg     LookupConfig
	sweeper *owner.Owner
	earlier map[string]*pastTexts // by tenant; never changes

	mu       sync.Mutex
	sessions map[tandem.SessionID]*lookupSession
	reserved int // sum of the sessions' limits
	closed   bool
}

type lookupSession struct {
	mu     sync.Mutex
	prefix        // tokens and hash under mu; the rest never changes
	owner  uint64 // see tandem.Opening
	prompt int    // how many of its tokens the target did not draw
	used   time.Time
	text   *spec.Automaton
	recall spec.Recall
	old    *pastTexts // texts of the tenant; nil: none are kept
	place  spec.Place // in old
}

// NewLookup returns a drafter with its sweeper running; Shutdown ends it.
func NewLookup(cfg LookupConfig) (*Lookup, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Lookup{cfg: cfg, sessions: map[tandem.SessionID]*lookupSession{}, earlier: map[string]*pastTexts{}}
	for _, tenant := range cfg.Tenants {
		l.earlier[tenant] = &pastTexts{texts: spec.NewTexts(cfg.Earlier / len(cfg.Tenants))}
	}
	l.sweeper = owner.New(owner.Work{Tick: l.sweep, Every: schedule.SweepEvery(cfg.Idle),
		Fault: func(error) { cfg.Counters.Add("faults", 1) }})
	l.sweeper.Start()
	return l, nil
}

// Open implements tandem.Drafter. Further errors: Stale for an epoch older than the one held, Unsupported for a
// limit that would not fit even if the session were alone.
func (l *Lookup) Open(ctx context.Context, o tandem.Opening) (opened tandem.Opened, err error) {
	const op = "open"
	_, end := l.cfg.Events.Begin(ctx, tandem.StageOpen, tandem.Attr{Key: "epoch", Int: int64(o.Epoch)},
		tandem.Attr{Key: "tokens", Int: int64(len(o.Tokens))})
	defer func() { end(err) }()
	if err := ctx.Err(); err != nil {
		return opened, tandem.Errorf(op, tandem.KindOf(err), "session %v: %w", o.Session, err)
	}
	if err := checkOpening(o, l.cfg.Vocab); err != nil {
		return opened, err
	}
	if int(o.Limit) > l.cfg.Tokens {
		return opened, tandem.Errorf(op, tandem.Unsupported, "limit of %d tokens: %d are held in all", o.Limit, l.cfg.Tokens)
	}
	s := &lookupSession{prefix: newPrefix(o, l.cfg.Vocab), owner: o.Owner, used: time.Now(), old: l.earlier[o.Tenant],
		prompt: cmp.Or(o.Prompt, len(o.Tokens))}
	s.mu.Lock() // filled before any other call comes in, but not under l.mu
	defer s.mu.Unlock()
	if err := l.enter(s, o); err != nil {
		return opened, err
	}
	s.rebuild()
	return tandem.Opened{Hindsight: s.recall.Of(len(s.tokens))}, nil
}

// enter puts an opened session in the place of an older one.
func (l *Lookup) enter(s *lookupSession, o tandem.Opening) error {
	const op = "open"
	l.mu.Lock()
	defer l.mu.Unlock()
	sessions, reserved := len(l.sessions)+1, l.reserved+int(s.limit)
	old := l.sessions[s.id]
	if old != nil {
		if o.Epoch < old.epoch {
			return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", o.Epoch, o.Session, old.epoch)
		}
		sessions, reserved = sessions-1, reserved-int(old.limit)
	}
	switch {
	case l.closed:
		return tandem.Errorf(op, tandem.Unavailable, "drafter is shutting down")
	case sessions > l.cfg.Sessions:
		return tandem.Errorf(op, tandem.Exhausted, "%d sessions are held, as many as may be", l.cfg.Sessions)
	case reserved > l.cfg.Tokens:
		return tandem.Errorf(op, tandem.Exhausted, "%d tokens would be held with this session: at most %d allowed", reserved, l.cfg.Tokens)
	}
	if old != nil {
		l.drop(old)
	}
	l.sessions[s.id], l.reserved = s, reserved
	return nil
}

// rebuild makes the automaton from the tokens.
func (s *lookupSession) rebuild() {
	s.text, s.recall, s.place = spec.NewAutomaton(), spec.Recall{}, spec.Place{}
	s.append(0)
}

// append continues the automaton with the tokens from position from on.
func (s *lookupSession) append(from int) {
	first := tandem.Bounds{Nodes: 2, Depth: 1, Width: 1}
	for i, t := range s.tokens[from:] {
		recent := len(s.tokens)-from-i <= tandem.MaxHindsight
		if recent {
			guess := s.guess(from+i, first)
			s.recall.Saw(from+i, guess.Len() > 1 && guess.Tokens[1] == t)
		}
		if from+i >= s.prompt {
			s.text.Learn(t)
		}
		if s.text.Append(t); recent {
			s.place = s.old.follow(s.place, s.tokens[:from+i+1])
		} else {
			s.place = spec.Place{}
		}
	}
}

// guess returns the tree below the first n tokens, which are those in the automaton.
func (s *lookupSession) guess(n int, b tandem.Bounds) tandem.Tree {
	return s.text.Continue(b, s.old.matches(s.place, s.tokens[:n], b)...)
}

// Propose implements tandem.Drafter. Further errors: Invalid for a proposal that contradicts itself.
func (l *Lookup) Propose(ctx context.Context, p tandem.Proposal) (done tandem.Proposed, err error) {
	drafting, end := l.cfg.Events.Begin(ctx, tandem.StageDraft, tandem.Attr{Key: "epoch", Int: int64(p.Epoch)},
		tandem.Attr{Key: "base", Int: int64(p.Base)}, tandem.Attr{Key: "width", Int: int64(p.Bounds.Width)},
		tandem.Attr{Key: "drafter", Str: l.cfg.Name})
	err = owner.Guard(func() (err error) { done, err = l.draft(drafting, p); return err })
	if tandem.KindOf(err) == tandem.Internal { // a panic: the session's state is unknown
		l.cfg.Counters.Add("faults", 1)
		_ = l.Close(ctx, p.Session)
	}
	if err != nil {
		l.cfg.Counters.Add("drafts."+tandem.KindOf(err).String(), 1)
		end(err)
		return tandem.Proposed{}, err
	}
	end(nil, tandem.Attr{Key: "nodes", Int: int64(done.Nodes)}, tandem.Attr{Key: "depth", Int: int64(done.Depth)})
	l.cfg.Counters.Add("drafts", 1)
	l.cfg.Counters.Add("drafts.nodes", int64(done.Nodes-1))
	if p.Return {
		return done, nil
	}
	return done, send(ctx, l.cfg.Pool, l.cfg.Events, l.cfg.Counters, p.Ticket(l.cfg.Name, clone(done.Tree)))
}

// draft brings the session up to the proposal and grows its tree.
func (l *Lookup) draft(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	const op = "propose"
	begun := time.Now()
	if err := ctx.Err(); err != nil {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.KindOf(err), "given up while drafting: %w", err)
	}
	l.mu.Lock()
	s, closed := l.sessions[p.Session], l.closed
	l.mu.Unlock()
	if closed {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.Unavailable, "drafter is shutting down")
	}
	if s == nil {
		return tandem.Proposed{}, tandem.Errorf(op, tandem.UnknownSession, "session %v is not held", p.Session)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.check(p); err != nil {
		return tandem.Proposed{}, err
	}
	s.used = time.Now()
	if held := len(s.tokens); s.follow(p) < held { // an automaton cannot forget
		s.rebuild()
	} else {
		s.append(held)
	}
	tree := s.guess(len(s.tokens), tandem.Bounds{Nodes: min(p.Bounds.Nodes, s.maxNodes), Depth: min(p.Bounds.Depth, int(s.limit-p.Base)),
		Width: p.Bounds.Width})
	if p.Stop > 0 {
		tree = above(tree, float32(math.Log(p.Stop)))
	}
	busy := time.Since(begun)
	tree, _ = spec.Cut(tree, p.Plan, busy)
	_, depth := tree.Depths()
	return tandem.Proposed{Nodes: tree.Len(), Depth: depth, Busy: time.Since(begun), Tree: tree, Hindsight: s.recall.Of(len(s.tokens))}, nil
}

// above keeps the nodes with at least that log-probability; they come first, because the likeliest grow first.
func above(t tandem.Tree, least float32) tandem.Tree {
	n := 1
	for n < t.Len() && t.LogProbs[n] >= least {
		n++
	}
	return tandem.Tree{Tokens: t.Tokens[:n], Parents: t.Parents[:n], LogProbs: t.LogProbs[:n]}
}

// Close implements tandem.Drafter.
func (l *Lookup) Close(_ context.Context, id tandem.SessionID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.sessions[id]; s != nil {
		l.drop(s)
	}
	return nil
}

// CloseOwned forgets the sessions of an owner, such as a gateway that is gone. See tandem.Opening.
func (l *Lookup) CloseOwned(_ context.Context, owner uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		if s.owner == owner {
			l.drop(s)
			l.cfg.Counters.Add("sessions.orphaned", 1)
		}
	}
	return nil
}

// Shutdown frees all sessions, refuses further calls with Unavailable and waits for the sweeper, no longer than ctx.
func (l *Lookup) Shutdown(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	for _, s := range l.sessions {
		l.drop(s)
	}
	l.mu.Unlock()
	return l.sweeper.Stop(ctx)
}

// drop forgets a session. l.mu is held.
func (l *Lookup) drop(s *lookupSession) {
	if l.sessions[s.id] == s {
		delete(l.sessions, s.id)
		l.reserved -= int(s.limit)
	}
}

// sweep drops idle sessions.
func (l *Lookup) sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.sessions {
		if !s.mu.TryLock() {
			continue // somebody is asking
		}
		idle := time.Since(s.used) > l.cfg.Idle
		s.mu.Unlock()
		if idle {
			l.cfg.Counters.Add("sessions.idle", 1)
			l.drop(s)
		}
	}
}
