// Package fleet makes one verifier of several. Each session is at one of them. It moves to another when its own is gone or drains, or has
// much more to do than another has. All verifiers of an identity continue a text with the same tokens, so a session that moves is opened
// again from what is committed, and its client cannot tell.
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

// Gateway is told what its verifiers are together.
type Gateway interface {
	// VerifierState says whether any of them is up.
	VerifierState(up bool)
	// VerifierIs describes those that are up: costs are those of passes; their KV caches hold kvTokens tokens together, in pages of
	// pageTokens, and the largest of them holds longest.
	VerifierIs(costs []tandem.Cost, kvTokens int64, pageTokens int, longest int64)
	// Measured says what passes cost at one of them; verifier is its name, as in Opened.Verifier.
	Measured(verifier string, costs []tandem.Cost)
	// SelfDraftsAre says which self-drafts the verifiers have; a session finds those of the verifier at which it is.
	SelfDraftsAre(drafts []tandem.SelfDraft)
	// Moved says that some sessions must be opened again: Submit no longer knows them.
	Moved()
}

// Config is what a fleet needs.
type Config struct {
	Gateway   Gateway
	CloseTime time.Duration // how long a member may take to forget a session that has moved
	// Grace is how long the sessions of a verifier that cannot be reached wait for it, though others could take them. If only its
	// connection broke, it comes back with all that it held; after a restart it would have to read the sessions again, as others would.
	Grace    time.Duration
	Counters *tandem.Counters // "sessions.moved", "fleet.<why>"; may be nil
	Now      func() time.Time // nil: time.Now
}

// Fleet implements Verifier with its members. Safe for concurrent use.
type Fleet struct {
	cfg     Config
	work    sync.WaitGroup // members that forget sessions
	telling sync.Mutex     // the gateway, in the order of changes

	mu sync.Mutex
	places
	up   bool // what the gateway was told last
	told sum
}

// New returns a fleet without members.
func New(c Config) *Fleet {
	if c.Counters == nil {
		c.Counters = new(tandem.Counters)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Fleet{cfg: c, places: places{sessions: map[tandem.SessionID]*placed{}, rows: 1, tokens: 1}}
}

// Wait returns when all members have forgotten the sessions that have left them, or CloseTime is over.
func (f *Fleet) Wait() { f.work.Wait() }

// Join adds a member, or gives the member of that name another verifier. load returns its load, from any goroutine; nil: not known. A
// member takes sessions once State says that it is up, or if there is no other.
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

// State says that a member has come up or cannot be reached.
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

// Is takes the description of a member that has come up.
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

// Costs takes what passes of a member cost, which it has measured since it said what it is. nil, and what is known, change nothing.
func (f *Fleet) Costs(name string, costs []tandem.Cost) {
	f.mu.Lock()
	m := f.member(name)
	news := m != nil && m.known && len(costs) > 0 && !slices.Equal(m.measured, costs)
	f.mu.Unlock()
	if !news {
		return
	}
	f.cfg.Gateway.Measured(name, costs)
	f.change(true, func() bool {
		m.measured, m.costs = costs, worth.NewCosts(costs)
		return false
	})
}

// Announced says whether a member drains, so that it takes no new sessions, and whether its lease has lapsed: it has not announced itself
// in time, though others have.
func (f *Fleet) Announced(name string, draining, lapsed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.member(name); m != nil {
		m.draining, m.lapsed = draining, lapsed
	}
}

// Of returns the member at which a session is: its name and its verifier. "" and nil: the session is at none.
func (f *Fleet) Of(id tandem.SessionID) (string, Verifier) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.sessions[id]; p != nil {
		return p.at.name, p.at.verifier
	}
	return "", nil
}

// At returns the sessions that are at a member, in no order.
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

// Open implements Verifier. It opens the session at the member where it is, or else where it is best placed. If a member is Unavailable or
// Exhausted, it tries the next best. Errors: Unavailable if there is no member, else a member's.
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

// take places o's session, unless it is at a member that can keep it; not at one of those that were tried. nil: no other is left.
func (f *Fleet) take(o tandem.Opening, tried []*member) *member {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.cfg.Now()
	p := f.sessions[o.Session]
	if p != nil && len(tried) == 0 && !p.stuck && p.at.takes(o.Identity, now) {
		return p.at
	}
	m := (*member)(nil)
	if p != nil && p.stuck && len(tried) == 0 {
		m = f.best(o, []*member{p.at}, now)
	}
	if m == nil {
		m = f.best(o, tried, now)
	}
	if m == nil {
		return nil
	}
	if p != nil && p.at != m {
		f.end(o.Session, p)
	}
	if p == nil || p.at != m {
		f.sessions[o.Session] = &placed{at: m, long: len(o.Tokens), limit: int(o.Limit)}
		m.own++
	}
	return m
}

// Place returns the member at which o's session is, or would be opened now: its name and its verifier. "" and nil: there is none. Only
// Open puts a session there, so Place may be called even after the session's end.
func (f *Fleet) Place(o tandem.Opening) (string, Verifier) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := (*member)(nil)
	if p := f.sessions[o.Session]; p != nil {
		m = p.at
	} else {
		m = f.best(o, nil, f.cfg.Now())
	}
	if m == nil {
		return "", nil
	}
	return m.name, m.verifier
}

// Any returns a member for work that belongs to no session, the one that would finish it first: its name and its verifier, as Place.
func (f *Fleet) Any() (string, Verifier) { return f.Place(tandem.Opening{}) }

// Close implements Verifier. A session that is at no member is closed already.
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

// Submit implements Verifier. Further errors: UnknownSession for a session that must be opened again.
func (f *Fleet) Submit(ctx context.Context, t tandem.Ticket) error {
	_, v := f.Of(t.Session)
	if v == nil {
		return tandem.Errorf(op, tandem.UnknownSession, "session %s moves to another verifier", t.Session)
	}
	return v.Submit(ctx, t)
}

// Belongs reports whether a verdict may be passed on: its session is at the member that has sent it, or at none. It also learns from the
// verdict how many rows and tokens a round has.
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

// end makes a session leave its member, which forgets it in the background. The caller holds f.mu.
func (f *Fleet) end(id tandem.SessionID, p *placed) {
	f.cfg.Counters.Add("sessions.moved", 1)
	f.forget(id)
	from := p.at.verifier
	f.work.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), f.cfg.CloseTime)
		defer cancel()
		_ = from.Close(ctx, id) // a member that is gone has forgotten it
	})
}

// clear makes at most so many sessions leave m, those with the shortest texts first. The caller holds f.mu, and wakes them.
func (f *Fleet) clear(m *member, most int, why string) (wake bool) {
	for _, id := range f.shortest(m)[:min(most, m.own)] {
		f.cfg.Counters.Add(why, 1)
		f.end(id, f.sessions[id])
		wake = true
	}
	return wake
}

// Balance moves sessions away from members that are gone, silent or draining, if another can take them, and from a member with much to do
// to one with little. Call it often, such as ten times a second.
func (f *Fleet) Balance() {
	f.mu.Lock()
	wake, now := false, f.cfg.Now()
	for _, m := range f.members {
		why, most := "", m.own
		switch {
		case m.own == 0:
		case !m.up && now.Sub(m.since) > f.cfg.Grace:
			why = "fleet.gone"
		case m.lapsed:
			why = "fleet.silent"
		case m.draining:
			why, most = "fleet.drained", atOnce
		}
		if why != "" && f.others(m, now) {
			wake = f.clear(m, most, why) || wake
		}
	}
	if id, p := f.unequal(now); p != nil {
		f.cfg.Counters.Add("fleet.leveled", 1)
		f.end(id, p)
		f.moved, wake = now, true
	}
	f.mu.Unlock()
	if wake {
		f.cfg.Gateway.Moved()
	}
}

// sum is what members are together.
type sum struct {
	known             int   // members that have said what they are
	kvTokens, longest int64 // of all, and of the largest
	page              int
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
