package terminal

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Rate shows how far a long task is, how fast it goes and how long it will still take: on a terminal one line that is overwritten and
// removed at the end, elsewhere a line each minute.
type Rate struct {
	to       io.Writer
	unit     string // what is counted
	terminal bool
	now      func() time.Time
	start    time.Time
	share    float64 // at the start
	drawn    time.Time
	begun    bool
}

// NewRate returns a Rate that writes to to, for a task that begins now. unit names what is counted, such as "tokens".
func NewRate(to io.Writer, unit string) *Rate {
	f, ok := to.(*os.File)
	return &Rate{to: to, unit: unit, terminal: ok && Is(f), now: time.Now, start: time.Now()}
}

// Step shows that n units are done, before of them ahead of this task. share is the done part of all work, 0 to 1. The first shows nothing.
func (r *Rate) Step(n, before int, share float64) {
	now := r.now()
	if !r.begun {
		r.begun, r.share, r.drawn = true, share, now
		return
	}
	every := time.Minute
	if r.terminal {
		every = 200 * time.Millisecond
	}
	if now.Sub(r.drawn) < every {
		return
	}
	r.drawn = now
	gone := now.Sub(r.start)
	line := fmt.Sprintf("%d %s, %.0f %%, %.0f %s/s", n, r.unit, 100*share, float64(n-before)/gone.Seconds(), r.unit)
	if share > r.share {
		left := time.Duration(float64(gone) * (1 - share) / (share - r.share))
		line += fmt.Sprintf(", %v left", left.Round(max(time.Second, left.Round(time.Minute)/60)))
	}
	if r.terminal {
		fmt.Fprintf(r.to, "\r%s\x1b[K", line)
	} else {
		fmt.Fprintln(r.to, line)
	}
}

// End removes the line from a terminal.
func (r *Rate) End() {
	if r.terminal && r.begun {
		fmt.Fprint(r.to, "\r\x1b[K")
	}
}
