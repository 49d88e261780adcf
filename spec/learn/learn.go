// Package learn is what the strategies of papers learn from rounds: drafters' weights and lengths (Minions), thresholds (LLMCad). Like
// package spec it has no I/O, goroutine or clock, and none of its types is safe for concurrent use.
package learn

import (
	"time"

	"github.com/tandem-llm/tandem/spec/worth"
)

// Mean returns the running mean old moved towards latest by worth.CostGain; at least 1 ns. old 0: latest is the first value.
func Mean(old, latest time.Duration) time.Duration {
	if old == 0 {
		return max(latest, 1)
	}
	return max(old+time.Duration(worth.CostGain*float64(latest-old)), 1)
}
