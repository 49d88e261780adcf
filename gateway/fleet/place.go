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

// Place returns the name of the member at which o's session is, or would be opened now, and its verifier; "" and nil: there is none. Only
// Open puts a session there: who asks may do so after the session's end.
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

// take places o's session, unless it is at a member that can keep it; not at one of those that were tried. nil: no other is
// left.
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
func (f *Fleet) best(o tandem.Opening, tried []*member, now time.Time) *member {
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
func (f *Fleet) first(o tandem.Opening, identity tandem.Identity, tried []*member, now time.Time) (best *member) {
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

// Any returns the name of a member for what belongs to no session, the one with the shortest rounds, and its verifier.
func (f *Fleet) Any() (string, Verifier) { return f.Place(tandem.Opening{}) }

// predict returns when o's session would be done at m: its prompt is read, but for what m holds of it, behind the tickets that wait, and
// then its rounds share passes with those of the sessions that m has. A cached prefix counts as the time that it saves.
//
//	T_R(prompt − cached + rows · waiting) + tokens left / tokens of a round · T(rows · (sessions + 1))
func (f *Fleet) predict(m *member, o tandem.Opening) time.Duration {
	l := m.now()
	cached := 0
	if l.Cached != nil {
		cached = min(l.Cached(o.Tenant, o.Tokens), len(o.Tokens))
	}
	return m.costs.Read(len(o.Tokens)-cached+int(f.rows*float64(l.Waiting))) + f.rest(m, int(o.Limit)-len(o.Tokens), 1)
}

// now returns m's load. Sessions that this gateway has opened there since it was announced count.
func (m *member) now() (l Load) {
	if m.load != nil {
		l = m.load()
	}
	l.Sessions = max(l.Sessions, m.own)
	return l
}

// round returns how long rounds take at m with so many sessions more.
func (f *Fleet) round(m *member, more int) time.Duration {
	return m.costs.Time(int(f.rows * float64(max(m.now().Sessions+more, 1))))
}

// rest returns how long a session takes at m for the rest of its tokens, of which it hardly writes more than a usual answer has.
func (f *Fleet) rest(m *member, left, more int) time.Duration {
	return time.Duration(float64(min(max(left, 1), worth.UsualOutput)) / f.tokens * float64(f.round(m, more)))
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

// shortest returns the sessions at m, those with the shortest texts first.
func (f *Fleet) shortest(m *member) []tandem.SessionID {
	ids := slices.Collect(maps.Keys(f.sessions))
	ids = slices.DeleteFunc(ids, func(id tandem.SessionID) bool { return f.sessions[id].at != m })
	slices.SortFunc(ids, func(a, b tandem.SessionID) int {
		return cmp.Or(cmp.Compare(f.sessions[a].long, f.sessions[b].long), cmp.Compare(a, b))
	})
	return ids
}

// Balance moves sessions: away from members that are gone, silent or draining, if another can take them, and from one with much to do to
// one with little. It is called often, such as ten times a second.
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
	wake = f.level(now) || wake
	f.mu.Unlock()
	if wake {
		f.cfg.Gateway.Moved()
	}
}

// others reports whether another member can take m's sessions.
func (f *Fleet) others(m *member, now time.Time) bool {
	return slices.ContainsFunc(f.members, func(x *member) bool { return x != m && x.known && x.takes(m.identity, now) })
}

// level moves a session from the member with the longest rounds to another, if it then is done sooner by more than twice the time that
// reading its text again takes, which the sessions there wait for as well. So a member that has come finds work.
func (f *Fleet) level(now time.Time) (wake bool) {
	if now.Sub(f.moved) < moveEvery {
		return false
	}
	var from *member
	for _, m := range f.members {
		if m.own > 0 && m.takes("", now) && (from == nil || f.round(m, 0) > f.round(from, 0)) {
			from = m
		}
	}
	if from == nil {
		return false
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
				f.cfg.Counters.Add("fleet.leveled", 1)
				f.end(id, p)
				f.moved = now
				return true
			}
		}
		return false // no longer text would be worth it
	}
	return false
}
