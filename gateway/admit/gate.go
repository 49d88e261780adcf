// Package admit lets requests run while there are slots and memory for them. Others wait in order.
package admit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

const op = "generate"

const (
	// mostPassed is how many later requests may be admitted before one that waits for memory: enough that
	// short requests use what a long one cannot, few enough that it need not wait for long.
	mostPassed = 4
	// firstRetry is the RetryAfter of a refused request while none has ended yet.
	firstRetry = time.Second
	// meanOf is about how many requests the running mean of durations covers.
	meanOf = 8
)

// Gate lets a request run when a slot is free and the verifier has KV memory for it. A bounded number of others wait. Whatever becomes
// free goes to those that wait, so no newcomer can overtake them. Safe for concurrent use.
//
// Whose turn it is. The tenant with the smallest share comes first; its share is that of the slots or that of the memory, whichever is
// larger (dominant resource fairness, Ghodsi et al., 2011). Among equals, such as those that hold nothing, the one served longest ago
// comes first; among those never served, the one that came first. Within a tenant it is first come, first served. So a lone tenant may
// have all slots. A newcomer gets the next slot that becomes free, however many requests of the other wait. Without keys all are one
// tenant, and it is first come, first served for all.
//
// A request keeps its slot until it ends, unless a tenant with less has waited for more than a second: see press.
//
// One exception: while the first request in this order does not fit in the free memory, later ones that fit may pass it, mostPassed times;
// then all wait until it fits. Requests of tenants with a smaller share come before it anyway, and do not count: a tenant that holds much
// cannot stop the others by asking for more.
//
// The queue is shared too: when it is full, the tenant with the most requests in it loses its youngest. So a tenant that has at most an
// equal share of the queue is never refused because of the others. A tenant may have as many requests parked as the queue has room for, or
// as there are slots, whichever is more.
//
// A request counts at first with what it holds for a while to come (Need.First), not with the most that it may grow to: most requests end
// long before that. As it grows it counts with more (Grow), even if there is no more memory. So the requests inside may together want more
// than there is. Then the verifier has no memory for one of them, which gives its slot back (Yield).
//
// Invariants, once the capacity has been the same since the requests inside came in and none has grown: (1) at most sessions requests are
// inside, and their pages are at most those of the capacity; (2) at most queue requests wait, those that return not counted; (3) while any
// wait, a slot or memory for the first of those that may not be passed is missing; (4) no request that waits needs more pages than the
// largest verifier has.
type Gate struct {
	sessions int // may run at once
	queue    int // may wait

	mu      sync.Mutex
	total   int // pages of all verifiers; 0 while unknown: then sessions alone count
	one     int // pages of the largest verifier
	page    int // tokens of a page
	inside  map[*Slot]struct{}
	held    int                // pages of those inside
	tenants map[string]*tenant // those inside or waiting, and, while any wait, former ones
	came    uint64             // requests so far
	served  uint64             // admissions so far
	pressed bool               // press is due
	short   time.Time          // until then the verifier has no memory for more than those inside
	mean    time.Duration      // running mean of the time that requests were inside; 0 before the first has ended
}

// New returns a gate at which sessions requests run at once and queue more wait. Until Capacity is called, slots alone count.
func New(sessions, queue int) *Gate {
	return &Gate{sessions: sessions, queue: queue, inside: map[*Slot]struct{}{}, tenants: map[string]*tenant{}}
}

// Capacity sets the memory that requests share: the KV caches of all verifiers hold kvTokens tokens, in pages of pageTokens, and the
// largest of them holds longest. 0 tokens or pages mean that it is unknown; then slots alone count. A session lies in one cache, so
// requests that wait for more than longest are refused (Invalid).
func (g *Gate) Capacity(kvTokens int64, pageTokens int, longest int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.total, g.one, g.page, g.held = 0, 0, 0, 0
	if kvTokens > 0 && pageTokens > 0 {
		g.total, g.one, g.page = int(kvTokens/int64(pageTokens)), int(longest/int64(pageTokens)), pageTokens
	}
	for _, t := range g.tenants {
		t.held = 0
		t.waiting = slices.DeleteFunc(t.waiting, func(p *Slot) bool {
			if p.err = g.impossible(p.whole()); p.err == nil {
				return false
			}
			close(p.turn)
			return true
		})
	}
	for p := range g.inside {
		g.held += g.pages(p)
		g.tenants[p.need.Tenant].held += g.pages(p)
	}
	g.admit()
}

// Longest returns the most tokens that one request may have beside rows rows for trees: what the memory of the largest verifier leaves,
// but at most limit; limit if that memory is unknown.
func (g *Gate) Longest(limit, rows int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total == 0 {
		return limit
	}
	return min(limit, max(0, g.one*g.page-(rows+g.page-1)/g.page*g.page))
}

// Whole returns tokens rounded up to whole pages of the verifier's memory; tokens itself while the size of a page is unknown.
func (g *Gate) Whole(tokens int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.page == 0 {
		return tokens
	}
	return (tokens + g.page - 1) / g.page * g.page
}

// Enter waits for a slot, which the caller must Leave. Errors: Invalid (the request needs more memory than there is), Exhausted (the queue
// is full; with the time after which to try again), or why ctx ended. After an error there is nothing to leave.
func (g *Gate) Enter(ctx context.Context, n Need) (*Slot, error) {
	if ctx.Err() != nil {
		return nil, ended(ctx, "before it was admitted")
	}
	p, err := g.join(n)
	if err != nil {
		return nil, err
	}
	return p, g.wait(ctx, p)
}

// Return waits until a parked request may run again. The request comes before the others of its tenant, but not before other tenants whose
// turn it is, and a full queue does not refuse it. Otherwise the errors are those of Enter. The caller must Leave in any case.
func (g *Gate) Return(ctx context.Context, p *Slot) error {
	if err := g.rejoin(p); err != nil {
		return err
	}
	return g.wait(ctx, p)
}

// wait waits for p's turn.
func (g *Gate) wait(ctx context.Context, p *Slot) error {
	select {
	case <-p.turn:
		return p.err
	case <-ctx.Done():
		g.giveUp(p)
		return ended(ctx, "while it waited for a slot")
	}
}

// join puts a request into the queue, and through the gate if a slot is free.
func (g *Gate) join(n Need) (*Slot, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.impossible(n); err != nil {
		return nil, err
	}
	g.came++
	p, t := newSlot(n, g.came), g.tenant(n.Tenant)
	t.waiting = append(t.waiting, p)
	g.admit()
	g.watch()
	if _, queued := g.waiting(); queued <= g.queue || !slices.Contains(t.waiting, p) {
		return p, nil
	}
	if most := g.longest(); most.queued() > t.queued() {
		youngest := most.waiting[len(most.waiting)-1]
		youngest.err = g.refuse(most)
		g.unqueue(youngest)
		close(youngest.turn)
		return p, nil
	}
	err := g.refuse(t)
	g.unqueue(p)
	g.forget()
	return nil, err
}

// rejoin puts a request that was parked at the head of its tenant's queue, behind those that have come back before it.
func (g *Gate) rejoin(p *Slot) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.impossible(p.whole()); err != nil {
		return err
	}
	g.unpark(p)
	g.enqueue(p)
	g.admit()
	return nil
}

// enqueue puts a request that was inside before at the head of its tenant's queue, behind those that have come back before it.
// g.mu must be held.
func (g *Gate) enqueue(p *Slot) {
	g.came++
	p.turn, p.number, p.passed, p.returned, p.since = make(chan struct{}), g.came, 0, true, time.Now()
	t := g.tenant(p.need.Tenant)
	at := slices.IndexFunc(t.waiting, func(o *Slot) bool { return !o.returned })
	if at < 0 {
		at = len(t.waiting)
	}
	t.waiting = slices.Insert(t.waiting, at, p)
	g.watch()
}

// tenant returns the named tenant, a new one if need be. g.mu must be held.
func (g *Gate) tenant(name string) *tenant {
	t := g.tenants[name]
	if t == nil {
		t = &tenant{name: name}
		g.tenants[name] = t
	}
	return t
}

// waiting returns how many requests wait, and how many of them count against the queue's length. g.mu must be held.
func (g *Gate) waiting() (all, queued int) {
	for _, t := range g.tenants {
		all += len(t.waiting)
		queued += t.queued()
	}
	return all, queued
}

// longest returns the tenant with the most requests in the queue; of several the one that was served last.
// g.mu must be held; there must be a tenant.
func (g *Gate) longest() *tenant {
	return slices.MaxFunc(slices.Collect(maps.Values(g.tenants)), func(a, b *tenant) int {
		return cmp.Or(cmp.Compare(a.queued(), b.queued()), cmp.Compare(a.served, b.served), cmp.Compare(a.name, b.name))
	})
}

// unqueue ends p's wait, if it waits. g.mu must be held.
func (g *Gate) unqueue(p *Slot) {
	t := g.tenants[p.need.Tenant]
	if t == nil {
		return
	}
	if i := slices.Index(t.waiting, p); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
}

// forget drops tenants that have no requests here. While any request waits it keeps them, because the order depends on
// when each was last served; there are no more of them than keys. g.mu must be held.
func (g *Gate) forget() {
	if all, _ := g.waiting(); all == 0 {
		maps.DeleteFunc(g.tenants, func(_ string, t *tenant) bool { return t.inside+t.parked == 0 })
	}
}

// impossible refuses what could not run even alone. g.mu must be held.
func (g *Gate) impossible(n Need) error {
	if g.total == 0 || n.pages(g.page) <= g.one {
		return nil
	}
	return tandem.Errorf(op, tandem.Invalid,
		"prompt and max_tokens make %d tokens, with %d rows for trees %d pages of %d Tokens: the verifier's memory holds %d pages",
		n.Tokens, n.Rows, n.pages(g.page), g.page, g.one)
}

// refuse returns the error that t may not wait, with the time after which to try again: that of the requests
// before this one, at the rate at which those inside end. g.mu must be held.
func (g *Gate) refuse(t *tenant) error {
	waiting, _ := g.waiting()
	after := firstRetry
	if g.mean > 0 {
		after = g.mean * time.Duration(waiting) / time.Duration(max(len(g.inside), 1))
	}
	own := ""
	if t.name != "" {
		own = fmt.Sprintf(", %d of them yours", len(t.waiting)-1)
	}
	err := tandem.Errorf(op, tandem.Exhausted, "%d requests run and %d wait%s, and no more may: try again in %v",
		len(g.inside), waiting-1, own, after.Round(time.Millisecond))
	err.(*tandem.Error).RetryAfter = after
	return err
}

func (g *Gate) pages(p *Slot) int {
	if g.total == 0 {
		return 0
	}
	return p.need.pages(g.page)
}

// fits reports whether p may come in beside those inside, as far as memory goes. g.mu must be held.
func (g *Gate) fits(p *Slot) bool {
	if p.alone && len(g.inside) > 0 {
		return false
	}
	return g.total == 0 || g.held+g.pages(p) <= g.total
}

// admit lets in all requests that may run now. g.mu must be held.
func (g *Gate) admit() {
	for len(g.inside) < g.sessions && (len(g.inside) == 0 || !time.Now().Before(g.short)) {
		p := g.next()
		if p == nil {
			return
		}
		g.unqueue(p)
		t, n := g.tenants[p.need.Tenant], g.pages(p)
		g.served++
		t.served = g.served
		t.inside, t.held, g.held = t.inside+1, t.held+n, g.held+n
		g.inside[p] = struct{}{}
		p.begun, p.opened = time.Now(), time.Time{}
		p.asked, p.ask = context.WithCancel(context.Background())
		close(p.turn)
	}
}

// next returns the request to admit next if there is a slot, nil for none. g.mu must be held.
func (g *Gate) next() *Slot {
	var before []*Slot
	for _, t := range g.order() {
		for _, p := range t.waiting {
			if g.fits(p) {
				for _, o := range before {
					o.passed++
				}
				return p
			}
			if p.passed == mostPassed {
				return nil
			}
			before = append(before, p)
		}
	}
	return nil
}

// order returns the tenants that wait, the one whose turn it is first. g.mu must be held.
func (g *Gate) order() []*tenant {
	var out []*tenant
	for _, t := range g.tenants {
		if len(t.waiting) > 0 {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b *tenant) int {
		return cmp.Or(cmp.Compare(g.share(a), g.share(b)), cmp.Compare(a.served, b.served), cmp.Compare(a.since(), b.since()))
	})
	return out
}

// share returns t's dominant share, in units of 1/(sessions · total). g.mu must be held.
func (g *Gate) share(t *tenant) int { return max(t.inside*max(g.total, 1), t.held*g.sessions) }

// giveUp ends a request's wait.
func (g *Gate) giveUp(p *Slot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unqueue(p)
	g.remove(p) // its turn may have come in the same moment
	g.admit()
	g.forget()
}

// Park gives a slot back until the request wants to Return. Errors: Exhausted if too many requests of its tenant are parked; then nothing
// changes. The caller must Leave in any case.
func (g *Gate) Park(p *Slot) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.tenants[p.need.Tenant]
	if most := max(g.queue, g.sessions); t.parked >= most {
		return tandem.Errorf(op, tandem.Exhausted,
			"%d requests wait for their clients to read, and no more may: want output read as it comes", t.parked)
	}
	p.parked = true
	t.parked++
	g.leave(p)
	return nil
}

// unpark takes p off the parked requests, if it is parked. g.mu must be held.
func (g *Gate) unpark(p *Slot) {
	if p.parked {
		p.parked = false
		g.tenants[p.need.Tenant].parked--
	}
}

// Leave ends a request at the gate: it gives its slot back, or ends its parking. Leaving without a slot, as after a Return that failed, is
// harmless.
func (g *Gate) Leave(p *Slot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unpark(p)
	g.leave(p)
}

// leave gives a slot back. g.mu must be held.
func (g *Gate) leave(p *Slot) {
	defer g.forget()
	if !g.remove(p) {
		return
	}
	took := time.Since(p.begun)
	if g.mean == 0 {
		g.mean = took
	}
	g.mean += (took - g.mean) / meanOf
	g.admit()
}

// remove forgets a slot inside, and reports whether p had one. g.mu must be held.
func (g *Gate) remove(p *Slot) bool {
	if _, in := g.inside[p]; !in {
		return false
	}
	t, n := g.tenants[p.need.Tenant], g.pages(p)
	delete(g.inside, p)
	p.ask() // nobody looks any more
	t.inside, t.held, g.held = t.inside-1, t.held-n, g.held-n
	g.short = time.Time{}
	return true
}

// Load returns how many requests are inside and how many wait. Parked ones do neither.
func (g *Gate) Load() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	waiting, _ = g.waiting()
	return len(g.inside), waiting
}

// ended returns the error of a request whose ctx has ended.
func ended(ctx context.Context, at string) error {
	cause := context.Cause(ctx)
	return tandem.Errorf(op, tandem.KindOf(cause), "ended %s: %w", at, cause)
}
