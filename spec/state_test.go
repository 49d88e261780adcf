package spec

import (
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestRequestStates goes over every state and event; what is not in the table must be refused.
func TestRequestStates(t *testing.T) {
	type move struct {
		from RequestState
		by   RequestEvent
	}
	allowed := map[move]RequestState{
		{RequestPending, RequestPut}: RequestDrafted, {RequestDrafted, RequestPut}: RequestDrafted,
		{RequestVerifying, RequestPut}: RequestVerifying, {RequestRunning, RequestPut}: RequestDrafted,
		{RequestDrafted, RequestTaken}: RequestVerifying, {RequestVerifying, RequestVerdict}: RequestRunning,
		{RequestRunning, RequestLeft}: RequestParked, {RequestPending, RequestLeft}: RequestParked,
	}
	for _, s := range RequestStates[:5] {
		allowed[move{s, RequestReopened}], allowed[move{s, RequestEnded}] = RequestPending, RequestDone
	}
	for _, s := range RequestStates {
		for e := RequestPut; e <= RequestEnded+1; e++ {
			want, ok := allowed[move{s, e}]
			got, err := s.Next(e)
			if ok && (err != nil || got != want) {
				t.Errorf("%v, %v: %v, %v: want %v", s, e, got, err, want)
			}
			if !ok && (tandem.KindOf(err) != tandem.Internal || got != s) {
				t.Errorf("%v, %v: %v, %v: want an internal error and no change", s, e, got, err)
			}
		}
	}
	life, now := "", RequestPending
	for _, e := range []RequestEvent{RequestPut, RequestTaken, RequestVerdict, RequestPut, RequestTaken, RequestReopened, RequestPut,
		RequestTaken, RequestVerdict, RequestLeft, RequestReopened, RequestPut, RequestEnded} {
		life += now.String() + " "
		next, err := now.Next(e)
		if err != nil {
			t.Fatal(err)
		}
		now = next
	}
	want := "pending drafted verifying running drafted verifying pending drafted verifying running parked pending drafted done"
	if life+now.String() != want {
		t.Errorf("a life is %s%v: want %s", life, now, want)
	}
	if RequestState(9).String() != "unknown" || RequestEvent(9).String() != "unknown" || RequestVerdict.String() != "verdict" {
		t.Error("names of states and events are wrong")
	}
}
