package outbox

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestVerdictsGoToTheirOwners: to every subscription of the owner, of a session that is not held to whoever had it or says so first,
// and to nobody else.
func TestVerdictsGoToTheirOwners(t *testing.T) {
	counters := new(tandem.Counters)
	b := New(counters)
	var subs [4]*Subscriber // of nobody, of a twice, of b
	for i, owner := range []uint64{0, 0xa, 0xa, 0xb} {
		var err error
		if subs[i], err = b.Subscribe(owner); err != nil {
			t.Fatal(err)
		}
	}
	b.Miss(0xa, 1, 2) // sessions of a that are not held any more
	b.Miss(0xb, 2, 3) // b says that it has one of them as well
	put := func(ids ...tandem.SessionID) {
		for _, id := range ids {
			b.Put(b.Owner(id), tandem.Verdict{Session: id})
		}
	}
	want := func(what string, lists ...[]tandem.SessionID) {
		t.Helper()
		for i, sub := range subs {
			var got []tandem.SessionID
			for _, v := range sub.Pending(mostWaiting) {
				got = append(got, v.Session)
			}
			if !slices.Equal(got, lists[i]) {
				t.Errorf("%s: subscriber %d heard of %v: want %v", what, i, got, lists[i])
			}
		}
	}
	ids := func(ids ...tandem.SessionID) []tandem.SessionID { return ids }
	put(1, 2, 3, 4)
	want("nothing is held", ids(4), ids(1, 2), ids(1, 2), ids(3))
	b.Found(3)
	b.Put(0xa, tandem.Verdict{Session: 3})
	want("one is held by another now", nil, ids(3), ids(3), nil)
	b.Found(1) // closed
	b.Forget(0xb)
	put(1, 2)
	want("one was closed", ids(1), ids(2), ids(2), nil)
	b.Unsubscribe(subs[0])
	put(1)
	want("nobody listens", nil, nil, nil, nil)
	if n := counters.Snapshot()["verdicts.unowned"]; n != 1 {
		t.Errorf("%d verdicts counted as nobody's: want 1", n)
	}
}

// TestMissingSessionsAreBounded: whoever claims more than any gateway runs does so at its own expense.
func TestMissingSessionsAreBounded(t *testing.T) {
	b := New(new(tandem.Counters))
	b.Miss(0xb, 1)
	for id := range tandem.SessionID(2 * MostMissing) {
		b.Miss(0xa, id+1)
	}
	if n := len(b.missing[0xa]); n != MostMissing || b.Owner(1) != 0xb || b.Owner(2*MostMissing) != 0xa {
		t.Errorf("%d sessions are remembered, session 1 is %x's", n, b.Owner(1))
	}
}

// TestSubscriptionsOfOneOwner are few: each costs memory and every verdict's time.
func TestSubscriptionsOfOneOwner(t *testing.T) {
	b := New(new(tandem.Counters))
	for i := range mostSubscriptions {
		if _, err := b.Subscribe(1); err != nil {
			t.Fatalf("subscription %d: %v", i, err)
		}
	}
	if _, err := b.Subscribe(1); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("one too many: %v", err)
	}
	if _, err := b.Subscribe(2); err != nil {
		t.Errorf("another owner: %v", err)
	}
}

// TestSlowSubscriberIsCutOff: nobody waits for it, and it hears what had come before.
func TestSlowSubscriberIsCutOff(t *testing.T) {
	counters := new(tandem.Counters)
	b := New(counters)
	ended, read, begun := make(chan error), make(chan struct{}), make(chan struct{})
	heard := 0
	go func() {
		ended <- b.Verdicts(context.Background(), tandem.Subscription{Began: func() { close(begun) }, Deliver: func(all []tandem.Verdict) {
			<-read
			heard += len(all)
		}})
	}()
	<-begun
	put := 0
	for ; counters.Snapshot()["verdicts.cut_off"] == 0; put++ {
		start := time.Now()
		b.Put(0, tandem.Verdict{})
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
	if len(b.subs) != 0 {
		t.Error("subscription is left")
	}
	b.Close()
	if err := b.Verdicts(context.Background(), tandem.Subscription{}); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("after the end: %v: want unavailable", err)
	}
}
