package peer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestClosingIsRepeated closes a session at peers that hang for a while, are gone, or hang while the gateway shuts down.
func TestClosingIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ending := false
		c := &Closer{Timeout: time.Second, Counters: new(tandem.Counters), Ending: func() bool { return ending }}
		close := func(hangs int, answer error) (calls int) {
			c.Close(7, func(ctx context.Context, id tandem.SessionID) error {
				if calls++; id != 7 || calls > hangs {
					return answer
				}
				<-ctx.Done()
				return tandem.Errorf("close", tandem.Deadline, "%w", ctx.Err())
			})
			return calls
		}
		if n := close(3, nil); n != 4 {
			t.Errorf("a peer that hung three times was told %d times: want 4", n)
		}
		if n := close(0, tandem.Errorf("close", tandem.Unavailable, "gone")); n != 1 {
			t.Errorf("a peer that is gone was told %d times: want 1", n)
		}
		begun := time.Now()
		if n := close(1000, nil); n != mostCloses || time.Since(begun) > time.Minute {
			t.Errorf("a peer that hangs for ever was told %d times in %v: want %d", n, time.Since(begun), mostCloses)
		}
		ending = true
		if n := close(1000, nil); n != 1 {
			t.Errorf("at the gateway's end a peer was told %d times: want 1", n)
		}
		if n := c.Counters.Snapshot()["sessions.close_failed"]; n != 3+1+mostCloses+1 {
			t.Errorf("%d failures counted: want %d", n, 3+1+mostCloses+1)
		}
	})
}
