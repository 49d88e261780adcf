package discovery

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// membership decides which processes of a kind are there, as plain values: what was heard, reached and told goes in, with the time. It
// knows no goroutine, connection or clock; its table has them. It has one user.
//
//  1. An address has one entry: a process that was restarted at its old address takes the entry over.
//  2. An announcement changes an entry only if its instance is another one or its sequence is later. An instance that was replaced
//     is believed again only when its successor is not heard any more: its last announcements may be late.
//  3. An entry is removed only if its process was not heard for three beats, although NATS was connected all
//     the time, and cannot be reached by gRPC. A configured one is never removed. With a registry it is a lease in place of
//     three beats, or less if the process has taken its key away.
//  4. A process that is known by several addresses, such as a configured and an announced one, is shown once, by the address at which
//     it was first reached, until that fails. Its instance tells that it is the same.
//  5. Processes of several hosts may announce the same socket or address of loopback. The one that can be reached here says by its
//     instance which announcements are its own.
type membership struct {
	kind        Kind
	beat, lease time.Duration
	leased      bool              // there is a registry
	since       time.Time         // when NATS was connected; zero while it is away
	entries     map[string]*entry // by Kind.id
}

// mostEarlier is how many earlier instances of an address are remembered.
const mostEarlier = 8

func newMembership(kind Kind, beat, lease time.Duration) membership {
	return membership{kind: kind, beat: beat, lease: lease, entries: map[string]*entry{}}
}

// server notes whether NATS is connected, and reports whether it came just now.
func (m *membership) server(now time.Time, connected bool) (came bool) {
	switch {
	case !connected:
		m.since = time.Time{}
	case m.since.IsZero():
		m.since = now
		return true
	}
	return false
}

// hear records an announcement of the process at e's address. It reports false if the announcement is not newer than what is known.
func (m *membership) hear(now time.Time, e *entry, a wire.Announcement) bool {
	if a.Instance == e.Instance && a.Sequence <= e.sequence || m.replaced(now, e, a.Instance) {
		return false
	}
	e.replace(a.Instance)
	e.Instance, e.sequence, e.seen, e.Segment = a.Instance, a.Sequence, now, a.Segment
	e.Lease = now.Add(m.holds())
	e.record(now, a)
	return true
}

// tell records what the process at e's address told when it was asked.
func (m *membership) tell(now time.Time, e *entry, a wire.Announcement) {
	if m.replaced(now, e, a.Instance) && !rpc.OnThisHost(e.Addr) { // there the one that was heard may be another host's
		return
	}
	if a.Instance != 0 && a.Instance != e.Instance {
		e.replace(a.Instance)
		e.Instance, e.sequence = a.Instance, 0
	}
	e.confirmed = a.Instance != 0
	e.record(now, a)
}

// otherHosts reports whether an announcement is of a process of another host with the same socket or address of loopback.
func (e *entry) otherHosts(a wire.Announcement) bool {
	return e.confirmed && e.Up && a.Instance != e.Instance && rpc.OnThisHost(e.Addr)
}

// replaced reports whether an instance is one that had e's address before, and its successor is still heard.
func (m *membership) replaced(now time.Time, e *entry, instance uint64) bool {
	return slices.Contains(e.earlier, instance) && now.Sub(e.seen) <= m.holds()
}

// replace notes that e's instance has a successor.
func (e *entry) replace(by uint64) {
	e.earlier = slices.DeleteFunc(e.earlier, func(x uint64) bool { return x == by })
	if e.Instance == 0 || e.Instance == by {
		return
	}
	if len(e.earlier) >= mostEarlier {
		e.earlier = slices.Delete(e.earlier, 0, 1)
	}
	e.earlier = append(e.earlier, e.Instance)
}

// record takes over what a process tells of itself.
func (e *entry) record(now time.Time, a wire.Announcement) {
	e.Drafters, e.Verifier, e.Gateway, e.Draining = a.Drafters, a.Verifier, a.Gateway, a.Draining
	e.told = now
}

// withdraw records that a process has taken its key out of the registry: it does not wait for its lease. A successor at its address does,
// of which the key is by now. instance 0: whoever is there.
func (m *membership) withdraw(key string, instance uint64) {
	for id, e := range m.entries {
		if m.kind.key(id) == key && (instance == 0 || instance == e.Instance) {
			e.seen = time.Time{}
		}
	}
}

// holds is how long an announcement holds.
func (m *membership) holds() time.Duration {
	beats := missedBeats * m.beat
	if m.leased {
		return max(beats, m.lease)
	}
	return beats
}

// lapsed reports whether a process that was seen then has missed its lease, although NATS was connected all the time.
func (m *membership) lapsed(now, seen time.Time) bool {
	return now.Sub(seen) > m.holds() && !m.since.IsZero() && now.Sub(m.since) > m.holds()
}

// sweep updates the entries that are called, by whether they can be reached, and removes the entries that are gone. Those to ask again
// may have a successor at their address, or be those of another host.
func (m *membership) sweep(now time.Time, reached func(*entry) bool) (gone, again []*entry) {
	for id, e := range m.entries {
		lapsed := m.lapsed(now, e.seen)
		if !e.called {
			e.Up = !lapsed
		} else {
			up := reached(e)
			if up && !e.Up {
				e.confirmed = false
				if !e.static && (e.Draining || rpc.OnThisHost(e.Addr)) {
					again = append(again, e)
				}
			}
			e.Up = up
		}
		e.Lapsed = lapsed && !e.Lease.IsZero()
		if !e.Up && !e.static && lapsed {
			delete(m.entries, id)
			gone = append(gone, e)
		}
	}
	return gone, again
}
