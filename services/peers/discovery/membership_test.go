package discovery

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem/services/peers/wire"
)

// TestPredecessor: what a process announced last, and is late, does not make it the member again in place of its successor; it may be the
// member again when that is not heard any more.
func TestPredecessor(t *testing.T) {
	m, now := newMembership(Verifiers, DefaultBeat, DefaultLease), time.Unix(1, 0)
	e := &entry{Process: Process{Addr: "a:1"}, seen: now, called: true}
	m.entries["a:1"] = e
	hear := func(instance, sequence uint64, draining bool) {
		m.hear(now, e, wire.Announcement{Addr: "a:1", Instance: instance, Sequence: sequence, Draining: draining})
	}
	want := func(instance uint64, draining bool) {
		t.Helper()
		if e.Instance != instance || e.Draining != draining {
			t.Errorf("instance %d, draining %v: want %d, %v", e.Instance, e.Draining, instance, draining)
		}
	}
	hear(7, 1, false)
	hear(7, 2, true)
	hear(5, 1, false)
	want(5, false)
	hear(7, 3, true)
	m.tell(now, e, wire.Announcement{Addr: "a:1", Instance: 7, Draining: true})
	want(5, false)
	now = now.Add(m.holds() + 1)
	hear(7, 4, false)
	want(7, false)
	hear(5, 2, false)
	want(7, false)
	hear(9, 1, false)
	want(9, false)
}
