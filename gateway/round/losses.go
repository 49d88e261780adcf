package round

import (
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	// MostRepairs is how often a session is repaired without a commit in between.
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

// Repair counts one more repair, and reports whether that is too many.
func (l *Losses) Repair() (tooMany bool) {
	l.Repairs++
	return l.Repairs > MostRepairs
}

// Reopen decides whether a session is opened again because of cause, and after which pause. An error ends the request: after too many
// attempts, or more than most time.
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
