package roles

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

// TestReads: a disk that brings something, however little, and one that is at a long read, go on; one that is stuck at a read for a minute,
// and one that is asked for nothing, do not.
func TestReads(t *testing.T) {
	var r reads
	now := kernels.StreamStats{}
	for i, step := range []struct {
		read   int64 // bytes more
		busy   time.Duration
		ticks  int
		goesOn bool // in all of these ticks
	}{
		{read: 0, busy: 0, ticks: 3, goesOn: false},
		{read: 1, busy: time.Second, ticks: 200, goesOn: true},
		{read: 0, busy: time.Second, ticks: 59, goesOn: true},
		{read: 0, busy: time.Second, ticks: 100, goesOn: false},
		{read: 1, busy: 0, ticks: 1, goesOn: true}, // a group of rows
		{read: 0, busy: 0, ticks: 100, goesOn: false},
	} {
		for tick := range step.ticks {
			now.Read, now.Busy = now.Read+step.read, now.Busy+step.busy
			if r.goOn(now, time.Second) != step.goesOn {
				t.Fatalf("step %d, tick %d: goes on %v, want %v", i, tick, !step.goesOn, step.goesOn)
			}
		}
	}
}
