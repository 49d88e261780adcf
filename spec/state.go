package spec

import "github.com/tandem-llm/tandem"

// RequestState is where a request stands in the pipeline of drafting and verifying (Minions, Wang et al., 2024,
// section 3.4):
//
//	pending ─ put ▶ drafted ─ taken ▶ verifying ─ verdict ▶ running ─ put ▶ drafted …
//	 │ ▲                                                       │ └ left ▶ parked
//	 │ └────────── reopened: any of the five ──────────────────┴──────────────┘      ended: any of the five ▶ done
//	 └ left ▶ parked
//
// Parked is not part of Minions: the client does not read, or others need the place or the memory, and the request waits outside the
// pipeline. A ticket that is put again while the first may still be on its way changes nothing.
type RequestState uint8

const (
	RequestPending   RequestState = iota // nothing of it is in the pool: it is new, or was opened anew
	RequestDrafted                       // its ticket is in the pool
	RequestVerifying                     // a target pass checks its tree
	RequestRunning                       // verified, and drafted for again
	RequestParked                        // it has no place: its client does not read, or others need it
	RequestDone                          // it has ended
)

// RequestStates lists all states, in order.
var RequestStates = []RequestState{RequestPending, RequestDrafted, RequestVerifying, RequestRunning, RequestParked, RequestDone}

// RequestEvent is what moves a request from one state to another.
type RequestEvent uint8

const (
	RequestPut      RequestEvent = iota // a ticket was put into the pool
	RequestTaken                        // a pass with the ticket began
	RequestVerdict                      // the verdict came
	RequestReopened                     // verifier or drafter must hold the session anew
	RequestLeft                         // its place was given back
	RequestEnded                        // with the whole text or an error
)

var (
	stateNames = [...]string{"pending", "drafted", "verifying", "running", "parked", "done"}
	eventNames = [...]string{"put", "taken", "verdict", "reopened", "left", "ended"}
)

func (s RequestState) String() string { return nameOf(stateNames[:], int(s)) }
func (e RequestEvent) String() string { return nameOf(eventNames[:], int(e)) }

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

// Next returns the state after an event. An event that is impossible in this state gives an Internal error and
// the state s.
func (s RequestState) Next(e RequestEvent) (RequestState, error) {
	switch {
	case s >= RequestDone:
	case e == RequestEnded:
		return RequestDone, nil
	case e == RequestReopened:
		return RequestPending, nil
	case s == RequestParked:
	case e == RequestLeft && (s == RequestRunning || s == RequestPending):
		return RequestParked, nil
	case e == RequestPut && s == RequestVerifying:
		return s, nil
	case e == RequestPut:
		return RequestDrafted, nil
	case e == RequestTaken && s == RequestDrafted:
		return RequestVerifying, nil
	case e == RequestVerdict && s == RequestVerifying:
		return RequestRunning, nil
	}
	return s, tandem.Errorf("state", tandem.Internal, "request is %v: %v cannot come now", s, e)
}
