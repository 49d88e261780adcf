package verifying

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	retryPause  = 20 * time.Millisecond // between attempts to subscribe
	refusePause = time.Second           // after a refusal: another verifier has to come
)

// Subscriber receives the verdicts on a process's sessions across restarts of the verifier. Its functions are called by
// Follow's goroutine, and a slow Deliver delays the verdicts of all sessions.
type Subscriber struct {
	Sessions func() []tandem.SessionID // as in tandem.Subscription
	Deliver  func(tandem.Verdict)
	// State is called with true when a subscription has begun, before its first verdict, and with false when it
	// breaks and at the end.
	State func(up bool)
	// Refused is called when the verifier refuses the subscription, once for each new reason; may be nil.
	Refused func(error)
}

// Follow subscribes to v's verdicts and hands them to s, in order, until ctx ends; it subscribes again whenever the
// subscription breaks.
func Follow(ctx context.Context, v tandem.Verifier, s Subscriber) {
	up, said := false, ""
	set := func(now bool) {
		if now != up {
			up = now
			s.State(now)
		}
	}
	defer set(false)
	wanted := tandem.Subscription{Sessions: s.Sessions, Began: func() { said = ""; set(true) }, Deliver: func(all []tandem.Verdict) {
		for _, x := range all {
			s.Deliver(x)
		}
	}}
	for ctx.Err() == nil {
		err := v.Verdicts(ctx, wanted)
		set(false)
		pause, other := retryPause, tandem.Refusal(err) != "" && ctx.Err() == nil
		if other {
			pause = refusePause
		}
		if (other || errors.Is(err, tandem.Unauthenticated)) && err.Error() != said && s.Refused != nil {
			said = err.Error()
			s.Refused(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}
