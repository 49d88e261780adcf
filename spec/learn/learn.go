// Package learn is the part of speculation with a memory: it learns costs, chances, drafters' weights and
// lengths from rounds, and chooses what to draft next. Like package spec it has no I/O,
// goroutine or clock, and none of its types is safe for concurrent use.
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
