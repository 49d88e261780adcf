package verifier

import (
	"context"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
)

const (
	mostWaiting       = 256  // verdicts that a subscriber may lag behind
	mostTogether      = 64   // that it is given at once
	mostSubscriptions = 16   // of one owner: one, and those whose broken connections were not yet noticed
	mostMissing       = 8192 // sessions of one owner that are remembered without being held: many times what a gateway runs
)

// outbox gives each verdict to the owner of its session, without waiting for it. A verdict on a session that is not held goes to
// its last owner, or to the process that claims it, which then opens it again. Safe for concurrent use.
type outbox struct {
	counters *tandem.Counters

	mu      sync.Mutex
	subs    map[uint64][]*subscriber                 // by owner
	missing map[uint64]map[tandem.SessionID]struct{} // by owner: its sessions that are not held
	closed  bool
}

// subscriber is one call of Verdicts. Its channel is closed, under outbox.mu, when it is cut off or the verifier ends.
type subscriber struct {
	owner    uint64
	verdicts chan tandem.Verdict
	slow     bool // set before the channel closes
}

func newOutbox(c *tandem.Counters) *outbox {
	return &outbox{counters: c, subs: map[uint64][]*subscriber{}, missing: map[uint64]map[tandem.SessionID]struct{}{}}
}

// put delivers v to owner's subscribers. One that lags too far behind is cut off; a verdict without a recipient is dropped.
func (b *outbox) put(owner uint64, v tandem.Verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.subs[owner]) == 0 {
		b.counters.Add("verdicts.unowned", 1)
		return
	}
	for _, sub := range slices.Clone(b.subs[owner]) {
		select {
		case sub.verdicts <- v:
		default:
			b.counters.Add("verdicts.cut_off", 1)
			sub.slow = true
			b.end(sub)
		}
	}
}

// miss remembers the owner of sessions that are not held any more.
func (b *outbox) miss(owner uint64, ids ...tandem.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		if owner == 0 || b.ownerOf(id) != 0 {
			continue // unknown sessions go to owner 0 in any case
		}
		of := b.missing[owner]
		if of == nil {
			of = map[tandem.SessionID]struct{}{}
			b.missing[owner] = of
		}
		if len(of) >= mostMissing {
			for other := range of {
				delete(of, other)
				break
			}
		}
		of[id] = struct{}{}
	}
}

// whose returns the owner of a session that is not held, 0 if unknown.
func (b *outbox) whose(id tandem.SessionID) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ownerOf(id)
}

// ownerOf is whose with mu held.
func (b *outbox) ownerOf(id tandem.SessionID) uint64 {
	for owner, of := range b.missing {
		if _, is := of[id]; is {
			return owner
		}
	}
	return 0
}

// found forgets a session that is held again or has been closed.
func (b *outbox) found(id tandem.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for owner, of := range b.missing {
		if delete(of, id); len(of) == 0 {
			delete(b.missing, owner)
		}
	}
}

// forget forgets the sessions of an owner that is gone.
func (b *outbox) forget(owner uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.missing, owner)
}

// subscribe returns a new subscriber, which has ended already if the verifier has. Errors: Exhausted.
func (b *outbox) subscribe(owner uint64) (*subscriber, error) {
	sub := &subscriber{owner: owner, verdicts: make(chan tandem.Verdict, mostWaiting)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.subs[owner]); n >= mostSubscriptions {
		return nil, tandem.Errorf("verifier", tandem.Exhausted, "the process has %d subscriptions to verdicts: want one", n)
	}
	b.subs[owner] = append(b.subs[owner], sub)
	if b.closed {
		b.end(sub)
	}
	return sub, nil
}

func (b *outbox) unsubscribe(sub *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(sub)
}

// close ends every subscription; later ones end at once.
func (b *outbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, subs := range b.subs {
		for _, sub := range slices.Clone(subs) {
			b.end(sub)
		}
	}
}

// end ends sub if it has not ended. Called with mu held.
func (b *outbox) end(sub *subscriber) {
	subs := b.subs[sub.owner]
	i := slices.Index(subs, sub)
	if i < 0 {
		return
	}
	if subs = slices.Delete(subs, i, i+1); len(subs) == 0 {
		delete(b.subs, sub.owner)
	} else {
		b.subs[sub.owner] = subs
	}
	close(sub.verdicts)
}

// gather returns v and the verdicts that are already there after it.
func (sub *subscriber) gather(v tandem.Verdict) []tandem.Verdict {
	out := []tandem.Verdict{v}
	for len(out) < mostTogether {
		select {
		case v, ok := <-sub.verdicts:
			if !ok {
				return out
			}
			out = append(out, v)
		default:
			return out
		}
	}
	return out
}

// reason says why a subscriber whose channel is closed has ended.
func (sub *subscriber) reason() error {
	if sub.slow {
		return tandem.Errorf("verifier", tandem.Exhausted, "subscriber lags %d verdicts behind", cap(sub.verdicts))
	}
	return tandem.Errorf("verifier", tandem.Unavailable, "shutting down")
}

// Verdicts implements tandem.Verifier.
func (v *Verifier) Verdicts(ctx context.Context, s tandem.Subscription) error {
	sub, err := v.out.subscribe(s.Owner)
	if err != nil {
		return err
	}
	defer v.out.unsubscribe(sub)
	if s.Sessions != nil {
		v.out.miss(s.Owner, s.Sessions()...)
	}
	if s.Began != nil {
		s.Began()
	}
	for {
		select {
		case <-ctx.Done():
			return tandem.Errorf("verifier", tandem.KindOf(ctx.Err()), "subscription to verdicts: %w", ctx.Err())
		case first, ok := <-sub.verdicts:
			if !ok {
				return sub.reason()
			}
			s.Deliver(sub.gather(first))
		}
	}
}

// ownerOf returns the owner of a ticket's session.
func (v *Verifier) ownerOf(c *check) uint64 {
	if c.s != nil {
		return c.s.Owner
	}
	if s := v.session(c.ticket.Session); s != nil {
		return s.Owner
	}
	return v.out.whose(c.ticket.Session)
}
