package fleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	// moveEvery is how often a session may move to another member with shorter rounds.
	moveEvery = time.Second
	// atOnce is how many sessions leave a draining member at a time, so that their prompts do not all wait for each other.
	atOnce = 2
)

// Verifier is what a fleet needs of one of its members. Its contracts are those of tandem.Verifier.
type Verifier interface {
	Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) // returns when the prompt is in the cache
	Close(ctx context.Context, id tandem.SessionID) error              // frees the session's memory
	Submit(ctx context.Context, t tandem.Ticket) error                 // of a session that is open there
}

// Load says what a member has to do, and what it holds.
type Load struct {
	Sessions int // of all gateways
	Waiting  int // tickets that wait for a pass
	// Cached returns how many of the first tokens of a tenant's prompt the member holds in memory; nil: not known.
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

// places are the members of a fleet and the sessions that are at them: where a session is to be, by what is known now. It calls nobody and
// waits for nothing; the fleet's mutex guards it.
type places struct {
	members  []*member // by name
	sessions map[tandem.SessionID]*placed
	rows     float64         // of a tree, and
	tokens   float64         // of a round: running means, 1 before the first verdict
	main     tandem.Identity // of new sessions while a member of it is up; "": not known
	moved    time.Time       // when the latest session went to a member with less to do
}

func (f *places) member(name string) *member {
	for _, m := range f.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// forget removes a session.
func (f *places) forget(id tandem.SessionID) {
	if p := f.sessions[id]; p != nil {
		p.at.own--
		delete(f.sessions, id)
	}
}

// elect keeps the identity of new sessions while a member of it is up, so that equal requests have equal texts wherever they are placed.
// Else it is that of most members.
func (f *places) elect() {
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

// takes reports whether m is a good place for a session of that identity.
func (m *member) takes(identity tandem.Identity, now time.Time) bool {
	return m.up && !m.draining && !m.lapsed && now.After(m.avoid) && m.fits(identity)
}

// fits reports whether m may compute a session of that identity, as far as is known.
func (m *member) fits(identity tandem.Identity) bool {
	return identity == "" || m.identity == "" || m.identity == identity
}

// best returns the member at which a session is done first, of those that take it. If none does, it is the first that may come back, so
// that the session waits for it, or learns why it cannot; but none if one was tried before.
func (f *places) best(o tandem.Opening, tried []*member, now time.Time) *member {
	best := f.first(o, cmp.Or(o.Identity, f.main), tried, now)
	if best == nil && o.Identity == "" {
		best = f.first(o, "", tried, now)
	}
	if best != nil || len(tried) > 0 {
		return best
	}
	rank := func(m *member) int {
		r := 0
		for _, good := range []bool{m.fits(o.Identity), m.up, !m.draining, !m.lapsed, now.After(m.avoid)} {
			if r *= 2; !good {
				r++
			}
		}
		return r
	}
	for _, m := range f.members {
		if best == nil || rank(m) < rank(best) {
			best = m
		}
	}
	return best
}

// first returns the member of an identity, "" for any, at which o's session is done first, of those that take it.
func (f *places) first(o tandem.Opening, identity tandem.Identity, tried []*member, now time.Time) (best *member) {
	least := time.Duration(0)
	for _, m := range f.members {
		if !m.takes(identity, now) || slices.Contains(tried, m) {
			continue
		}
		if t := f.predict(m, o); best == nil || t < least {
			best, least = m, t
		}
	}
	return best
}

// predict returns how long o's session would take at m. First m answers the tickets that wait there, and reads the prompt, but not the part
// that it has in its cache. Then the session's rounds share passes with those of m's other sessions.
//
//	T_R(prompt − cached + rows · waiting) + tokens left / tokens of a round · T(rows · (sessions + 1))
func (f *places) predict(m *member, o tandem.Opening) time.Duration {
	l := m.now()
	cached := 0
	if l.Cached != nil {
		cached = min(l.Cached(o.Tenant, o.Tokens), len(o.Tokens))
	}
	return m.costs.Read(len(o.Tokens)-cached+int(f.rows*float64(l.Waiting))) + f.rest(m, int(o.Limit)-len(o.Tokens), 1)
}

// now returns m's load as it announced it last, with at least the sessions that this gateway has opened there.
func (m *member) now() (l Load) {
	if m.load != nil {
		l = m.load()
	}
	l.Sessions = max(l.Sessions, m.own)
	return l
}

// round returns how long rounds take at m with so many sessions more.
func (f *places) round(m *member, more int) time.Duration {
	return m.costs.Time(int(f.rows * float64(max(m.now().Sessions+more, 1))))
}

// rest returns how long a session takes at m for the rest of its tokens, of which it hardly writes more than a usual answer has.
func (f *places) rest(m *member, left, more int) time.Duration {
	return time.Duration(float64(min(max(left, 1), worth.UsualOutput)) / f.tokens * float64(f.round(m, more)))
}

// shortest returns the sessions at m, those with the shortest texts first.
func (f *places) shortest(m *member) []tandem.SessionID {
	ids := slices.Collect(maps.Keys(f.sessions))
	ids = slices.DeleteFunc(ids, func(id tandem.SessionID) bool { return f.sessions[id].at != m })
	slices.SortFunc(ids, func(a, b tandem.SessionID) int {
		return cmp.Or(cmp.Compare(f.sessions[a].long, f.sessions[b].long), cmp.Compare(a, b))
	})
	return ids
}

// others reports whether another member can take m's sessions.
func (f *places) others(m *member, now time.Time) bool {
	return slices.ContainsFunc(f.members, func(x *member) bool { return x != m && x.known && x.takes(m.identity, now) })
}

// unequal returns a session that is to leave the member with the longest rounds, nil: none. At another member it is done sooner by more
// than twice the time that reading its text again takes, which the sessions there wait for as well. So a member that has come finds work.
func (f *places) unequal(now time.Time) (id tandem.SessionID, _ *placed) {
	if now.Sub(f.moved) < moveEvery {
		return id, nil
	}
	var from *member
	for _, m := range f.members {
		if m.own > 0 && m.takes("", now) && (from == nil || f.round(m, 0) > f.round(from, 0)) {
			from = m
		}
	}
	if from == nil {
		return id, nil
	}
	for _, id := range f.shortest(from) {
		p := f.sessions[id]
		if !p.held {
			continue
		}
		for _, to := range f.members {
			if to == from || !to.known || to.identity != from.identity || !to.takes("", now) {
				continue
			}
			if left := p.limit - p.long; f.rest(from, left, 0)-f.rest(to, left, 1) > 2*to.costs.Read(p.long) {
				return id, p
			}
		}
		break // no longer text would be worth it
	}
	return id, nil
}
