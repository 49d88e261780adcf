// Package fleet makes one verifier of several: each session is at one of them, and goes to another when that one is gone, drains, or has
// much more to do than another has. Every verifier of an identity continues a text with the same tokens, so a session that moves is opened
// again from what is committed, and nobody can tell.
package fleet

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

const op = "fleet"

// Verifier is what a fleet needs of one, with the contracts of tandem.Verifier.
type Verifier interface {
	Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) // returns when the prompt is in the cache
	Close(ctx context.Context, id tandem.SessionID) error              // frees the session's memory
	Submit(ctx context.Context, t tandem.Ticket) error                 // of a session that is open there
}

// Gateway is told what its verifiers are together.
type Gateway interface {
	// VerifierState says whether any of them is up.
	VerifierState(up bool)
	// VerifierIs says what their passes cost, how many tokens their KV caches hold together, in pages of pageTokens, and how many the
	// largest of them holds.
	VerifierIs(costs []tandem.Cost, kvTokens int64, pageTokens int, longest int64)
	// Measured says what passes cost at one of them, as Opened.Verifier names it.
	Measured(verifier string, costs []tandem.Cost)
	// SelfDraftsAre says which self-drafts a session may find.
	SelfDraftsAre(drafts []tandem.SelfDraft)
	// Moved says that sessions are to be opened again: Submit knows them no more.
	Moved()
}

// Config is what a fleet needs.
type Config struct {
	Gateway   Gateway
	CloseTime time.Duration // for a member to forget a session that has moved
	// Grace is how long sessions wait for a verifier that cannot be reached, if others could take them: a restarted one finds the session's
	// prefix in no memory either, but a connection that broke comes back with everything.
	Grace    time.Duration
	Counters *tandem.Counters // "sessions.moved", "fleet.<why>"; may be nil
	Now      func() time.Time // nil: time.Now
}

// Load is what a member has to do, and what it holds.
type Load struct {
	Sessions int // of all gateways
	Waiting  int // tickets that wait for a pass
	// Cached returns how many of the first tokens of a prompt it holds in its memory; nil: not known.
	Cached func(tenant string, tokens []tandem.Token) int
}

// member is a verifier of the fleet.
type member struct {
	name     string
	verifier Verifier
	known    bool // it has said what it is, since it came up
	identity tandem.Identity
	measured []tandem.Cost
	costs    *worth.Costs // of its passes, as it has measured them; nominal before
	kvTokens int64
	page     int
	drafts   []tandem.SelfDraft
	load     func() Load // nil: not known

	up, draining, lapsed bool
	since                time.Time // of up, or of its end
	avoid                time.Time // until then others are preferred: an Open failed
	own                  int       // sessions of this gateway that are there
}

// placed is a session that is at a member, or is being opened there.
type placed struct {
	at    *member
	held  bool // it was opened
	stuck bool // an Open there was given up, so the next is elsewhere
	long  int  // tokens when it was opened
	limit int
}

// Fleet implements Verifier with its members. Safe for concurrent use.
type Fleet struct {
	cfg     Config
	work    sync.WaitGroup // members that forget sessions
	telling sync.Mutex     // the gateway, in the order of changes

	mu       sync.Mutex
	members  []*member // by name
	sessions map[tandem.SessionID]*placed
	rows     float64         // of a tree, and
	tokens   float64         // of a round: running means, 1 before the first verdict
	main     tandem.Identity // of new sessions while a member of it is up; "": not known
	moved    time.Time       // when the latest session went to a member with less to do
	up       bool            // what the gateway was told last
	told     sum
}

// New returns a fleet without members.
func New(c Config) *Fleet {
	if c.Counters == nil {
		c.Counters = new(tandem.Counters)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Fleet{cfg: c, sessions: map[tandem.SessionID]*placed{}, rows: 1, tokens: 1}
}

// Wait returns when all members have forgotten what has left them.
func (f *Fleet) Wait() { f.work.Wait() }

// Join adds a member, or gives one another verifier. It takes sessions once State says that it is up, or if there is no other.
func (f *Fleet) Join(name string, v Verifier, load func() Load) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.member(name); m != nil {
		m.verifier, m.load = v, load
		return
	}
	f.members = append(f.members, &member{name: name, verifier: v, load: load, costs: worth.NewCosts(nil)})
	slices.SortFunc(f.members, func(a, b *member) int { return cmp.Compare(a.name, b.name) })
}

// Leave removes a member that is gone. Its sessions move.
func (f *Fleet) Leave(name string) {
	f.change(false, func() (wake bool) {
		m := f.member(name)
		if m == nil {
			return false
		}
		f.members = slices.DeleteFunc(f.members, func(x *member) bool { return x == m })
		return f.clear(m, len(f.sessions), "fleet.gone")
	})
}

// State says that a member came up or cannot be reached.
func (f *Fleet) State(name string, up bool) {
	f.change(false, func() bool {
		m := f.member(name)
		if m == nil || m.up == up {
			return false
		}
		m.up, m.since, m.known = up, f.cfg.Now(), m.known && up
		return up // a session that it held asks it again, and learns whether it still does
	})
}

// Is says what a member that came up is.
func (f *Fleet) Is(name string, d tandem.Description) {
	f.cfg.Gateway.Measured(name, d.Costs)
	f.change(true, func() bool {
		if m := f.member(name); m != nil {
			m.known, m.identity, m.kvTokens, m.page, m.drafts = true, d.Identity, d.KVCapacity, d.PageTokens, d.SelfDrafts
			m.measured, m.costs = d.Costs, worth.NewCosts(d.Costs)
		}
		return false
	})
}

// Announced says whether a member takes new sessions, and whether it has not been heard for its lease although others are.
func (f *Fleet) Announced(name string, draining, lapsed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.member(name); m != nil {
		m.draining, m.lapsed = draining, lapsed
	}
}

// Of returns the name of the member at which a session is, and its verifier; "" and nil: at none.
func (f *Fleet) Of(id tandem.SessionID) (string, Verifier) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.sessions[id]; p != nil {
		return p.at.name, p.at.verifier
	}
	return "", nil
}

// At returns the sessions that are at a member.
func (f *Fleet) At(name string) (ids []tandem.SessionID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, p := range f.sessions {
		if p.at.name == name {
			ids = append(ids, id)
		}
	}
	return ids
}

// Members returns how many members there are.
func (f *Fleet) Members() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.members)
}

// Open implements Verifier.Open: at the member where the session is, or is best placed, and at another one if that one cannot take it.
func (f *Fleet) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	var tried []*member
	var first error
	for {
		m := f.take(o, tried)
		if m == nil {
			return tandem.Opened{}, cmp.Or(first, tandem.Errorf(op, tandem.Unavailable, "no verifier is known"))
		}
		opened, err := m.verifier.Open(ctx, o)
		if err == nil {
			f.opened(o.Session, m)
			opened.Verifier = m.name
			return opened, nil
		}
		if ctx.Err() != nil {
			f.stalled(o.Session, m)
			return tandem.Opened{}, err
		}
		kind := tandem.KindOf(err)
		if kind != tandem.Unavailable && kind != tandem.Exhausted {
			return tandem.Opened{}, err
		}
		f.failed(m, kind)
		if tried = append(tried, m); first == nil || tandem.Refusal(first) != "" {
			first = err // of the best place; that one has another model says the least
		}
	}
}

// Close implements Verifier.Close.
func (f *Fleet) Close(ctx context.Context, id tandem.SessionID) error {
	f.mu.Lock()
	p := f.sessions[id]
	f.forget(id)
	f.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.at.verifier.Close(ctx, id)
}

// Submit implements Verifier.Submit. Errors: also UnknownSession for a session that is to be opened again.
func (f *Fleet) Submit(ctx context.Context, t tandem.Ticket) error {
	_, v := f.Of(t.Session)
	if v == nil {
		return tandem.Errorf(op, tandem.UnknownSession, "session %s moves to another verifier", t.Session)
	}
	return v.Submit(ctx, t)
}

// Belongs reports whether a verdict that a member has sent may be for its session as that is placed now. It learns what rounds are like.
func (f *Fleet) Belongs(name string, v tandem.Verdict) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v.Kind == tandem.OK {
		f.rows += worth.CostGain * (float64(v.Nodes) - f.rows)
		f.tokens += worth.CostGain * (float64(len(v.Tokens)) - f.tokens)
	}
	p := f.sessions[v.Session]
	return p == nil || p.at.name == name
}

func (f *Fleet) member(name string) *member {
	for _, m := range f.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// forget removes a session. The caller holds f.mu.
func (f *Fleet) forget(id tandem.SessionID) {
	if p := f.sessions[id]; p != nil {
		p.at.own--
		delete(f.sessions, id)
	}
}

// opened notes that m holds a session.
func (f *Fleet) opened(id tandem.SessionID, m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.sessions[id]; p != nil && p.at == m {
		p.held, p.stuck = true, false
	}
}

// stalled notes that an Open at m was given up: it made no progress, or its request has ended.
func (f *Fleet) stalled(id tandem.SessionID, m *member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.sessions[id]; p != nil && p.at == m {
		p.stuck = true
	}
}

// avoided is how long a member at which an Open has failed is not preferred.
const avoided = time.Second

// failed notes that m could not take a session.
func (f *Fleet) failed(m *member, kind tandem.Kind) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kind == tandem.Unavailable {
		m.avoid = f.cfg.Now().Add(avoided)
	}
}

// sum is what members are together.
type sum struct {
	known             int   // members that have said what they are
	kvTokens, longest int64 // of all, and of the largest
	page              int
}

// elect keeps the identity of new sessions while a member of it is up, so that equal requests have equal texts wherever they are placed.
// Else it is that of most members.
func (f *Fleet) elect() {
	times := map[tandem.Identity]int{}
	for _, m := range f.members {
		if m.up && m.known {
			times[m.identity]++
		}
	}
	if times[f.main] > 0 {
		return
	}
	for _, m := range f.members {
		if n := times[m.identity]; n > 0 && n > times[f.main] {
			f.main = m.identity
		}
	}
}

// change changes members, and tells the gateway what they are together now, and whether sessions have to move. said: a member has said what
// it is.
func (f *Fleet) change(said bool, do func() (wake bool)) {
	f.telling.Lock()
	defer f.telling.Unlock()
	f.mu.Lock()
	wake := do()
	f.elect()
	up, costs, is := false, []tandem.Cost(nil), sum{}
	var drafts []tandem.SelfDraft
	for _, m := range f.members {
		if up = up || m.up; !m.up || !m.known {
			continue
		}
		if costs == nil {
			costs = m.measured
		}
		is.known, is.page = is.known+1, cmp.Or(is.page, m.page)
		is.kvTokens, is.longest = is.kvTokens+m.kvTokens, max(is.longest, m.kvTokens)
		for _, d := range m.drafts {
			if !slices.ContainsFunc(drafts, func(x tandem.SelfDraft) bool { return x.Name == d.Name }) {
				drafts = append(drafts, d)
			}
		}
	}
	news := is.known > 0 && (said || is != f.told) // without a member nothing is known that would replace what was
	if news {
		f.told = is
	}
	came := up != f.up
	f.up = up
	f.mu.Unlock()
	g := f.cfg.Gateway
	if came {
		g.VerifierState(up)
	}
	if news {
		g.VerifierIs(costs, is.kvTokens, is.page, is.longest)
		g.SelfDraftsAre(drafts)
	}
	if wake {
		g.Moved()
	}
}
