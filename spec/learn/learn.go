// Package learn is the part of speculation with a memory: what rounds teach of costs and chances, of drafters and
// lengths, and the choice of what to draft next that follows from it. Like package spec it has no I/O,
// goroutine or clock, and no state of it is safe for concurrent use.
package learn

import "time"

// Mean is the running mean of a series of times, none below 1 ns, with weight 1/4 for the newest value; an old
// value of 0 counts for nothing.
func Mean(old, latest time.Duration) time.Duration {
	if old == 0 {
		return max(latest, 1)
	}
	return max(old+(latest-old)/4, 1)
}
