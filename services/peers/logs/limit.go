// Package logs keeps logs from being flooded by what others cause.
package logs

import (
	"sync"
	"time"
)

const window = time.Minute

// Most is the number of lines of one kind that a Limit allows in a minute.
const Most = 10

// Limit allows Most lines of one kind a minute. The zero value is ready. Safe for concurrent use.
type Limit struct {
	mu      sync.Mutex
	begun   time.Time // of the window
	lines   int
	dropped int // since the last line that was allowed
}

// Allow reports whether a line may be logged at now, and how many were dropped since the last that was allowed.
func (l *Limit) Allow(now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.begun) >= window {
		l.begun, l.lines = now, 0
	}
	if l.lines == Most {
		l.dropped++
		return 0, false
	}
	l.lines++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
