package roster

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestConduct follows one drafter through offences, being put aside, and good behaviour.
func TestConduct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Conduct
		offend := func(n int, want time.Duration) {
			t.Helper()
			for i := range n {
				if aside := c.Offend(time.Now()); aside != (i == n-1) {
					t.Errorf("put aside after offence %d of %d: %v", i+1, n, aside)
				}
			}
			testkit.Sleep(want - time.Millisecond)
			if !c.Aside() {
				t.Errorf("asked again before %v", want)
			}
			testkit.Sleep(time.Millisecond)
			if c.Aside() {
				t.Errorf("still put aside after %v", want)
			}
		}
		offend(3, 30*time.Second)
		for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
			offend(3, want*time.Minute)
		}
		c.Good()
		offend(3, 30*time.Second)
		c.Good()
		for range 10 { // seldom enough
			if c.Offend(time.Now()) {
				t.Error("put aside for an offence every 40 s")
			}
			testkit.Sleep(40 * time.Second)
		}
	})
}
