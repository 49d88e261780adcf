package verifier

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// take returns the sessions of the verdicts that have come to sub.
func take(sub *subscriber) (ids []tandem.SessionID) {
	for len(sub.verdicts) > 0 {
		ids = append(ids, (<-sub.verdicts).Session)
	}
	return ids
}

// TestVerdictsGoToTheirOwners: to every subscription of the owner, of a session that is not held to whoever had it or says so first,
// and to nobody else.
func TestVerdictsGoToTheirOwners(t *testing.T) {
	v := newBench(t)
	v.out.unsubscribe(v.heard)
	var subs [4]*subscriber // of nobody, of a twice, of b
	for i, owner := range []uint64{0, 0xa, 0xa, 0xb} {
		var err error
		if subs[i], err = v.out.subscribe(owner); err != nil {
			t.Fatal(err)
		}
	}
	v.out.miss(0xa, 1, 2) // sessions of a that are not held any more
	v.out.miss(0xb, 2, 3) // b says that it has one of them as well
	put := func(ids ...tandem.SessionID) {
		for _, id := range ids {
			c := &check{ticket: tandem.Ticket{Session: id}}
			v.out.put(v.ownerOf(c), tandem.Verdict{Session: id})
		}
	}
	want := func(what string, lists ...[]tandem.SessionID) {
		t.Helper()
		for i, sub := range subs {
			if got := take(sub); !slices.Equal(got, lists[i]) {
				t.Errorf("%s: subscriber %d heard of %v: want %v", what, i, got, lists[i])
			}
		}
	}
	ids := func(ids ...tandem.SessionID) []tandem.SessionID { return ids }
	put(1, 2, 3, 4)
	want("nothing is held", ids(4), ids(1, 2), ids(1, 2), ids(3))
	for id, owner := range map[tandem.SessionID]uint64{3: 0xa, 5: 0xb} {
		o := tandem.Opening{Session: id, Owner: owner, Tokens: []tandem.Token{1}, Limit: 10, MaxNodes: 1,
			Sampling: tandem.Sampling{TopP: 1}}
		if _, err := v.enter(o); err != nil {
			t.Fatal(err)
		}
	}
	put(3, 5)
	want("one is held by another now", nil, ids(3), ids(3), ids(5))
	v.out.found(1) // closed
	v.out.forget(0xb)
	put(1, 2)
	want("one was closed", ids(1), ids(2), ids(2), nil)
	v.out.unsubscribe(subs[0])
	put(1)
	want("nobody listens", nil, nil, nil, nil)
	if n := v.cfg.Counters.Snapshot()["verdicts.unowned"]; n != 1 {
		t.Errorf("%d verdicts counted as nobody's: want 1", n)
	}
}

// TestMissingSessionsAreBounded: whoever claims more than any gateway runs does so at its own expense.
func TestMissingSessionsAreBounded(t *testing.T) {
	b := newOutbox(new(tandem.Counters))
	b.miss(0xb, 1)
	for id := range tandem.SessionID(2 * mostMissing) {
		b.miss(0xa, id+1)
	}
	if n := len(b.missing[0xa]); n != mostMissing || b.whose(1) != 0xb || b.whose(2*mostMissing) != 0xa {
		t.Errorf("%d sessions are remembered, session 1 is %x's", n, b.whose(1))
	}
}

// TestSubscriptionsOfOneOwner are few: each costs memory and every verdict's time.
func TestSubscriptionsOfOneOwner(t *testing.T) {
	b := newOutbox(new(tandem.Counters))
	for i := range mostSubscriptions {
		if _, err := b.subscribe(1); err != nil {
			t.Fatalf("subscription %d: %v", i, err)
		}
	}
	if _, err := b.subscribe(1); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := b.subscribe(2); err != nil {
		t.Errorf("another owner: %v", err)
	}
}

// TestSlowSubscriberIsCutOff: nobody waits for it, and it hears what had come before.
func TestSlowSubscriberIsCutOff(t *testing.T) {
	counters := new(tandem.Counters)
	v := &Verifier{out: newOutbox(counters)}
	ended, read, begun := make(chan error), make(chan struct{}), make(chan struct{})
	heard := 0
	go func() {
		ended <- v.Verdicts(context.Background(), tandem.Subscription{Began: func() { close(begun) }, Deliver: func(all []tandem.Verdict) {
			<-read
			heard += len(all)
		}})
	}()
	<-begun
	put := 0
	for ; counters.Snapshot()["verdicts.cut_off"] == 0; put++ {
		start := time.Now()
		v.out.put(0, tandem.Verdict{})
		if d := time.Since(start); d > 10*time.Second {
			t.Fatalf("put waited %v for a slow subscriber", d)
		}
		if put > 10*mostWaiting {
			t.Fatal("slow subscriber is never cut off")
		}
	}
	close(read)
	if err := <-ended; !errors.Is(err, tandem.Exhausted) || heard != put-1 {
		t.Errorf("cut off with %v after %d of %d verdicts: want exhausted after all but the last", err, heard, put)
	}
	if len(v.out.subs) != 0 {
		t.Error("subscription is left")
	}
	v.out.close()
	if err := v.Verdicts(context.Background(), tandem.Subscription{}); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("after the end: %v: want unavailable", err)
	}
}
