package gateway

import (
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// standings keeps the state of each request (spec.RequestState), and how many are in each as the counters
// "sessions.pending", ".drafted", ".verifying", ".running" and ".parked". Safe for concurrent use.
//
// The gateway sees tickets and verdicts, but not when the verifier takes a ticket from the pool. It assumes that the
// verifier, as soon as it is free, takes all tickets that are there. So a ticket counts as taken when it
// is put while none is being verified, or when the last of those being verified has its verdict. A full batch
// and the tickets' transport are not modelled: until the next verdict a request may be called verifying
// instead of drafted, or the reverse.
type standings struct {
	counters *tandem.Counters

	mu    sync.Mutex
	live  map[*standing]struct{}
	count [len(stateCounters)]int64 // of live, by state
}

// standing is the state of one request; it belongs to its standings.
type standing struct{ state spec.RequestState }

// stateCounters are the counters of the states of requests that have not ended.
var stateCounters = [...]string{spec.RequestPending: "sessions.pending", spec.RequestDrafted: "sessions.drafted",
	spec.RequestVerifying: "sessions.verifying", spec.RequestRunning: "sessions.running", spec.RequestParked: "sessions.parked"}

func newStandings(c *tandem.Counters) *standings {
	return &standings{counters: c, live: map[*standing]struct{}{}}
}

// enter returns the standing of a new request.
func (s *standings) enter() *standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := new(standing)
	before := s.count
	s.live[x] = struct{}{}
	s.count[x.state]++
	s.publish(before)
	return x
}

// tell applies an event to a request.
func (s *standings) tell(x *standing, e spec.RequestEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.count
	if e == spec.RequestVerdict { // so its ticket was put and taken, perhaps by a drafter whose answer was lost
		for x.state < spec.RequestParked && x.state != spec.RequestVerifying {
			if x.state == spec.RequestDrafted {
				s.move(x, spec.RequestTaken)
			} else {
				s.move(x, spec.RequestPut)
			}
		}
	}
	s.move(x, e)
	if s.count[spec.RequestVerifying] == 0 && s.count[spec.RequestDrafted] > 0 {
		for o := range s.live {
			if o.state == spec.RequestDrafted {
				s.move(o, spec.RequestTaken)
			}
		}
	}
	s.publish(before)
}

// move makes one transition; an impossible one is counted and ignored. s.mu must be held.
func (s *standings) move(x *standing, e spec.RequestEvent) {
	next, err := x.state.Next(e)
	if err != nil {
		s.counters.Add("sessions.illegal", 1)
		return
	}
	s.count[x.state]--
	if x.state = next; next == spec.RequestDone {
		delete(s.live, x)
		return
	}
	s.count[next]++
}

// publish brings the counters up to date. s.mu must be held.
func (s *standings) publish(before [len(stateCounters)]int64) {
	for i, name := range stateCounters {
		if d := s.count[i] - before[i]; d != 0 {
			s.counters.Add(name, d)
		}
	}
}
