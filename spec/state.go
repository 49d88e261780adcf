package spec

import "github.com/tandem-llm/tandem"

// RequestState is where a request stands in the pipeline of drafting and verifying (Minions, Wang et al., 2024,
// section 3.4):
//
//	pending ─ put ▶ drafted ─ taken ▶ verifying ─ verdict ▶ running ─ put ▶ drafted …
//	   ▲                                                       │
//	   └────────── reopened: any of the four ──────────────────┘      ended: any of the four ▶ done
//
// A ticket that is put again while the first may still be on its way changes nothing.
type RequestState uint8

const (
	RequestPending   RequestState = iota // nothing of it is in the pool: it is new, or was opened anew
	RequestDrafted                       // its ticket is in the pool
	RequestVerifying                     // a pass of the target checks its tree
	RequestRunning                       // verified, and drafted for again
	RequestDone                          // it has ended
)

// RequestStates lists all states, in order.
var RequestStates = []RequestState{RequestPending, RequestDrafted, RequestVerifying, RequestRunning, RequestDone}

// RequestEvent is what moves a request from one state to another.
type RequestEvent uint8

const (
	RequestPut      RequestEvent = iota // a ticket was put into the pool
	RequestTaken                        // a pass began that the ticket is in
	RequestVerdict                      // the verdict came
	RequestReopened                     // verifier or drafter must hold the session anew
	RequestEnded                        // with the whole text or an error
)

var (
	stateNames = [...]string{"pending", "drafted", "verifying", "running", "done"}
	eventNames = [...]string{"put", "taken", "verdict", "reopened", "ended"}
)

func (s RequestState) String() string { return nameOf(stateNames[:], int(s)) }
func (e RequestEvent) String() string { return nameOf(eventNames[:], int(e)) }

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

// Next returns the state after an event. An event that cannot come in this state is an Internal error, and the
// state stays.
func (s RequestState) Next(e RequestEvent) (RequestState, error) {
	switch {
	case s > RequestRunning:
	case e == RequestEnded:
		return RequestDone, nil
	case e == RequestReopened:
		return RequestPending, nil
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
