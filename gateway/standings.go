package gateway

import (
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// standings keeps the state of each request (spec.RequestState), and how many are in each as the counters
// "sessions.pending", ".drafted", ".verifying" and ".running". Safe for concurrent use.
//
// The gateway hears of tickets and verdicts, not of what the verifier takes from the pool. It goes by what the
// verifier does: as soon as it is free it takes all tickets that are there. So a ticket is taken when it
// is put and none is being verified, or when the last of those being verified has its verdict. A batch that is
// full, and time for tickets on their way, it does not know of: until the next verdict it may say verifying
// for drafted, or the other way round.
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
	spec.RequestVerifying: "sessions.verifying", spec.RequestRunning: "sessions.running"}

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

// tell takes what has happened to a request.
func (s *standings) tell(x *standing, e spec.RequestEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.count
	if e == spec.RequestVerdict { // so its ticket was put, be it by a drafter that was not heard any more, and taken
		for x.state < spec.RequestDone && x.state != spec.RequestVerifying {
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

// move takes one step; one that cannot be is counted, and nothing happens. s.mu must be held.
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
