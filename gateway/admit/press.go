package admit

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

const (
	// pressAfter is how long a request waits before one of a tenant that has more is asked to yield.
	pressAfter = time.Second
	pressEvery = 100 * time.Millisecond // how often that is checked
	// A request keeps its slot, once the peers hold it, for stays or for staysFor times as long as opening it took, whichever is more. So
	// at most a fifth of its time goes into being opened again.
	stays    = time.Second
	staysFor = 4
	// mostBroken bounds the doublings of the time for which a request that is still being opened keeps its slot.
	mostBroken = 6
)

// Asked returns a context that ends when another tenant's request waits for the slot, so that this one should Yield, or when the slot was
// given back. The request must be inside; each time that it comes in again it has a new context.
func (g *Gate) Asked(p *Slot) context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	return p.asked
}

// Opened says that verifier and drafters hold a request that is inside. Call it after each time that the request came in: how long opening
// it took decides how long it keeps its slot. Repeated calls change nothing.
func (g *Gate) Opened(p *Slot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.opened.IsZero() {
		p.opened = time.Now()
		p.reopens, p.broken = p.opened.Sub(p.begun), 0
	}
}

// watch sees to it that press is called while requests of several tenants are here and some wait. g.mu must be held.
func (g *Gate) watch() {
	if waiting, _ := g.waiting(); g.pressed || waiting == 0 || len(g.tenants) < 2 {
		return
	}
	g.pressed = true
	time.AfterFunc(pressEvery, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.pressed = false
		g.press(time.Now())
		g.watch()
	})
}

// press asks requests to yield for those that have waited for long, one for each. Only a tenant with more than the other's share is asked,
// and only if it then has at least as much as the other with one more request, or if the other has nothing at all: else two tenants would
// take slots from each other without end. Where there are more tenants than slots, they take turns. g.mu must be held.
func (g *Gate) press(now time.Time) {
	asked := 0
	for p := range g.inside {
		if p.asked.Err() != nil {
			asked++
		}
	}
	for _, t := range g.order() {
		w := t.waiting[0]
		if now.Sub(w.since) < pressAfter {
			continue
		}
		if asked > 0 { // somebody is about to leave for it
			asked--
		} else if p := g.victim(t, w, now); p != nil {
			p.ask()
		}
	}
}

// victim returns the request that is to make room for w of tenant t, nil for none: the youngest that may be asked of the tenant with the
// largest share. g.mu must be held.
func (g *Gate) victim(t *tenant, w *Slot, now time.Time) *Slot {
	others := slices.DeleteFunc(slices.Collect(maps.Values(g.tenants)), func(o *tenant) bool { return o == t || o.inside == 0 })
	slices.SortFunc(others, func(a, b *tenant) int {
		return cmp.Or(cmp.Compare(g.share(b), g.share(a)), cmp.Compare(b.served, a.served))
	})
	for _, o := range others {
		var youngest *Slot
		for p := range g.inside {
			if p.need.Tenant == o.name && p.mayLeave(now) && (youngest == nil || p.came > youngest.came) {
				youngest = p
			}
		}
		if youngest == nil {
			continue
		}
		less, more := *o, *t
		less.inside, less.held = o.inside-1, o.held-g.pages(youngest)
		more.inside, more.held = t.inside+1, t.held+g.pages(w)
		if t.inside == 0 || g.share(&less) >= g.share(&more) {
			return youngest
		}
	}
	return nil
}

// mayLeave reports whether a request has had its slot for long enough.
func (p *Slot) mayLeave(now time.Time) bool {
	switch {
	case p.asked.Err() != nil:
		return false
	case p.opened.IsZero():
		return now.Sub(p.begun) >= max(stays<<min(p.broken, mostBroken), 2*p.reopens)
	}
	return now.Sub(p.opened) >= max(stays, staysFor*p.reopens)
}
