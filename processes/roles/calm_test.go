package roles

import (
	"fmt"
	"testing"
)

// TestCalm: a moment is calm if the processors had little to do since the last one; a machine that never is, or does not tell, is measured
// all the same.
func TestCalm(t *testing.T) {
	stat := func(user, idle int) []byte {
		return fmt.Appendf(nil, "cpu  %d 0 10 %d 5 0 0 0 7 7\ncpu0 1 2 3\n", user, idle)
	}
	c := calm{}
	for i, x := range []struct {
		stat []byte
		want bool
	}{
		{stat(100, 100), false},  // since when?
		{stat(200, 200), false},  // half of it busy
		{stat(210, 400), true},   // a twentieth
		{stat(400, 410), false},  // another program has come
		{stat(400, 410), false},  // no time has passed
		{stat(1, 1), false},      // the machine's counters began anew
		{nil, true},              // no such file
		{[]byte("cpu x"), true},  // another system's
		{stat(100, 1000), false}, // since when?
	} {
		if got := c.after(x.stat); got != x.want {
			t.Errorf("moment %d: calm %v, want %v", i, got, x.want)
		}
	}
	waits := 1
	for user := 200; !c.after(stat(user, 1000)); user += 100 {
		waits++
	}
	if waits != mostWaits {
		t.Errorf("put off %d times on a machine that is never calm: want %d", waits, mostWaits)
	}
}
