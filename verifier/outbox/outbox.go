// Package outbox gives verdicts to the processes that wait for them.
package outbox

import (
	"context"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
)

const (
	mostWaiting       = 256 // verdicts that a subscriber may lag behind
	mostTogether      = 64  // that it is given at once
	mostSubscriptions = 16  // of one owner: one, and those whose broken connections were not yet noticed
	// MostMissing is how many sessions of one owner are remembered that are not held: many times what a gateway runs.
	MostMissing = 8192
)

// Outbox gives each verdict to the owner of its session, without waiting for it. A verdict on a session that is not held goes to
// its last owner, or to the process that claims it, which then opens it again. An owner is the number of a process (tandem.Opening), 0 if
// unknown. Safe for concurrent use.
type Outbox struct {
	counters *tandem.Counters

	mu      sync.Mutex
	subs    map[uint64][]*Subscriber                 // by owner
	missing map[uint64]map[tandem.SessionID]struct{} // by owner: its sessions that are not held
	closed  bool
}

// Subscriber gets the verdicts on the sessions of one owner. Its channel is closed, under Outbox.mu, when it is cut off or the outbox is
// closed.
type Subscriber struct {
	owner    uint64
	verdicts chan tandem.Verdict
	slow     bool // set before the channel closes
}

// New returns an outbox without subscribers.
func New(c *tandem.Counters) *Outbox {
	return &Outbox{counters: c, subs: map[uint64][]*Subscriber{}, missing: map[uint64]map[tandem.SessionID]struct{}{}}
}

// Put delivers v to owner's subscribers. One that lags too far behind is cut off; a verdict without a recipient is dropped.
func (b *Outbox) Put(owner uint64, v tandem.Verdict) {
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

// Miss remembers owner as that of sessions that are not held any more, unless they have one already. Beyond MostMissing of one owner,
// another of its sessions is forgotten for each that comes.
func (b *Outbox) Miss(owner uint64, ids ...tandem.SessionID) {
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
		if len(of) >= MostMissing {
			for other := range of {
				delete(of, other)
				break
			}
		}
		of[id] = struct{}{}
	}
}

// Owner returns the owner of a session that is not held, 0 if unknown.
func (b *Outbox) Owner(id tandem.SessionID) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ownerOf(id)
}

// ownerOf is whose with mu held.
func (b *Outbox) ownerOf(id tandem.SessionID) uint64 {
	for owner, of := range b.missing {
		if _, is := of[id]; is {
			return owner
		}
	}
	return 0
}

// Found forgets the owner of a session that is held again or has been closed.
func (b *Outbox) Found(id tandem.SessionID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for owner, of := range b.missing {
		if delete(of, id); len(of) == 0 {
			delete(b.missing, owner)
		}
	}
}

// Forget forgets the sessions of an owner that is gone.
func (b *Outbox) Forget(owner uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.missing, owner)
}

// Subscribe returns a new subscriber, which has ended already if the outbox is closed; Unsubscribe ends it. Errors: Exhausted.
func (b *Outbox) Subscribe(owner uint64) (*Subscriber, error) {
	sub := &Subscriber{owner: owner, verdicts: make(chan tandem.Verdict, mostWaiting)}
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

// Unsubscribe ends sub, unless it has ended.
func (b *Outbox) Unsubscribe(sub *Subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(sub)
}

// Close ends every subscription; later ones end at once. To close it twice does no harm.
func (b *Outbox) Close() {
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
func (b *Outbox) end(sub *Subscriber) {
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

// Pending returns the verdicts that have come and were not returned yet, no more than most; none if it has ended.
func (sub *Subscriber) Pending(most int) (out []tandem.Verdict) {
	for len(out) < most {
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
func (sub *Subscriber) reason() error {
	if sub.slow {
		return tandem.Errorf("verifier", tandem.Exhausted, "subscriber lags %d verdicts behind", cap(sub.verdicts))
	}
	return tandem.Errorf("verifier", tandem.Unavailable, "shutting down")
}

// Verdicts implements tandem.Verifier. Errors: Exhausted for one subscription too many, or one that lags behind; Unavailable after Close;
// that of ctx.
func (b *Outbox) Verdicts(ctx context.Context, s tandem.Subscription) error {
	sub, err := b.Subscribe(s.Owner)
	if err != nil {
		return err
	}
	defer b.Unsubscribe(sub)
	if s.Sessions != nil {
		b.Miss(s.Owner, s.Sessions()...)
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
			s.Deliver(append([]tandem.Verdict{first}, sub.Pending(mostTogether-1)...))
		}
	}
}
