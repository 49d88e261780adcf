package round

import (
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	// MostRepairs is how many times a session is repaired without a commit in between; then its request fails.
	MostRepairs = 1 << 3
	firstPause  = 20 * time.Millisecond // before a session is opened again; doubles
	longPause   = time.Second
)

// Losses counts how often a session was repaired since its last commit, and since when its verifier seems lost. The zero value is a
// session that advances.
type Losses struct {
	Repairs int
	Since   time.Time // the first sign that the verifier is lost; zero: there is none
}

// Suspect notes a sign that the verifier is lost.
func (l *Losses) Suspect(now time.Time) {
	if l.Since.IsZero() {
		l.Since = now
	}
}

// Repair counts one more repair, and reports whether there are more than MostRepairs.
func (l *Losses) Repair() (tooMany bool) {
	l.Repairs++
	return l.Repairs > MostRepairs
}

// Reopen counts a repair because of cause, and returns how long to wait before the session is opened again. An error ends the request:
// there were too many repairs, or the verifier has seemed lost for longer than most. The error names t's session and length.
func (l *Losses) Reopen(now time.Time, most time.Duration, t *Text, cause error) (pause time.Duration, err error) {
	l.Suspect(now)
	tooMany, waited := l.Repair(), now.Sub(l.Since)
	if tooMany || waited > most {
		kind := tandem.KindOf(cause)
		switch kind {
		case tandem.Exhausted, tandem.Corrupt:
		case tandem.UnknownSession, tandem.Stale, tandem.Unavailable, tandem.Deadline, tandem.Canceled:
			kind = tandem.Unavailable
		default:
			kind = tandem.Internal
		}
		limit := fmt.Sprintf("%d attempts", l.Repairs)
		if !tooMany {
			limit = fmt.Sprint(waited.Round(time.Millisecond))
		}
		return 0, tandem.Errorf(op, kind, "session %s got no further at %d tokens in %s: %w", t.Session, t.Len(), limit, cause)
	}
	if l.Repairs > 1 {
		pause = min(firstPause<<l.Repairs, longPause)
	}
	return pause, nil
}
