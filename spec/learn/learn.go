// Package learn is what the strategies of papers learn from rounds: drafters' weights and lengths (Minions), thresholds (LLMCad). Like
// package spec it has no I/O, goroutine or clock, and none of its types is safe for concurrent use.
package learn

import (
	"time"

	"github.com/tandem-llm/tandem/spec/worth"
)

// Mean is the running mean of a series of times, none below 1 ns, with weight worth.CostGain for the newest value; an old
// value of 0 counts for nothing.
func Mean(old, latest time.Duration) time.Duration {
	if old == 0 {
		return max(latest, 1)
	}
	return max(old+time.Duration(worth.CostGain*float64(latest-old)), 1)
}
