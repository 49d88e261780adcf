package schedule

import (
	"math"
	"time"
)

// rhythmOf is about the number of rounds in the running mean of a session's rhythm.
const rhythmOf = 4

// arrived records when something came that the session will be queued for.
func (t *Entry) arrived(at time.Time) {
	if t.answered.IsZero() || at.Before(t.answered) {
		return
	}
	took := at.Sub(t.answered)
	if t.rhythm == 0 {
		t.rhythm = took
	}
	t.rhythm += (took - t.rhythm) / rhythmOf
}

// due returns when the session is expected to be queued again; false if it is not expected, because it is queued, has just
// begun, or is overdue: it has ended, say, or its client reads slowly.
func (t *Entry) due(now time.Time) (time.Time, bool) {
	if t.Busy() || t.rhythm == 0 || now.After(t.overdue()) {
		return time.Time{}, false
	}
	return t.answered.Add(t.rhythm), true
}

// overdue returns the time after which the session is not expected any more.
func (t *Entry) overdue() time.Time { return t.answered.Add(2*t.rhythm + time.Millisecond) }

// inRounds reports whether any session is expected.
func (s *Schedule) inRounds(now time.Time) bool {
	for _, x := range s.sessions {
		if _, expected := x.entry().due(now); expected {
			return true
		}
	}
	return false
}

// undivided is the size of a batch that takes all that waits.
const undivided = math.MaxInt

// batchSize returns how many queued sessions the next pass takes at most: with Config.Batches, that share of those in rounds.
func (s *Schedule) batchSize(now time.Time) int {
	if s.cfg.Batches == 0 {
		return undivided
	}
	n, rows, away := 0, 0, time.Duration(0)
	for _, x := range s.sessions {
		t := x.entry()
		if _, expected := t.due(now); expected || t.queued && t.opening == nil {
			n, rows, away = n+1, rows+t.rows, away+t.rhythm
		}
	}
	if s.cfg.Weighed && !s.divides(n, rows, away) {
		return undivided
	}
	return max((n+s.cfg.Batches-1)/s.cfg.Batches, 1)
}

// leastGain is by how much rounds in batches must be expected to be shorter.
const leastGain = 1.05

// divides reports whether n sessions with so many rows in all, which are away for that time in all between two passes, have shorter
// rounds in batches. With T(w) the time of a pass of w rows and R the mean time away, a round takes T(w) + R undivided, and in b batches
// the larger of b·T(w/b), the passes of all batches, and T(w/b) + R. So batches do not pay where a pass hardly takes longer for more
// rows and the time away is short.
func (s *Schedule) divides(n, rows int, away time.Duration) bool {
	b := min(s.cfg.Batches, n)
	if b < 2 || away == 0 {
		return false
	}
	r, part := away/time.Duration(n), known(s.costs, (rows+b-1)/b)
	divided := max(time.Duration(b)*part, part+r)
	return part > 0 && leastGain*float64(divided) < float64(s.costs.Time(rows)+r)
}

// waits reports whether a pass should not begin yet; it then makes the owner wake when it should.
//
// In batches a pass waits until so many sessions are queued as it takes, unless they are overdue. Otherwise it waits if that saves time:
//
// Without waits sessions fall into groups that take turns: half of them do something else while the others' pass runs, and
// each group pays for reading the weights once. One pass for two groups saves T(a) + T(b) - T(a+b), the part of a pass' time
// that does not depend on rows. So a pass waits for the next session if that is due, counted from when the pass
// could have begun, within the time that sharing a pass with it saves: a wait in vain then costs no
// more than it might have gained, as in ski rental. The limit is at least a tenth of the pass, because costs
// measured on a busy machine may not show the saving. Slow sessions are not waited for, and a pass does not wait if it
// has sessions that are being opened or have been in a pass since they were queued.
//
// Measured for targets on the 0.97-billion shape, Q8_0, 2 threads, tokens/s by the costs of a quiet machine
// (go test ./verifier -run WaitsMeasured -big FILE): 8 sessions with trees of 2 nodes 132 at once, 164 waiting;
// of 4 nodes 126 and 138; of 12 nodes 73 and 72; 2 sessions with trees of 8 nodes 98 and 111. Waits of half as
// long, and fixed ones of a tenth and of a quarter of the pass, were within 4 % of these or below.
func (s *Schedule) waits(now time.Time, batch int) bool {
	if s.cfg.Patience == 0 || len(s.line) >= batch {
		return false
	}
	taken := 0
	for _, x := range s.line {
		t := x.entry()
		if t.opening != nil || t.ran {
			return false
		}
		taken += t.rows
	}
	var next *Entry
	var due time.Time
	for _, x := range s.sessions {
		if at, expected := x.entry().due(now); expected && (next == nil || at.Before(due)) {
			next, due = x.entry(), at
		}
	}
	if next == nil || taken+next.rows > s.cfg.Model.MaxRows() {
		return false
	}
	saved := s.costs.Time(taken) + s.costs.Time(next.rows) - s.costs.Time(taken+next.rows)
	saved = max(saved, s.costs.Time(taken)/10)
	until := later(s.line[0].entry().came, s.free).Add(time.Duration(s.cfg.Patience * float64(saved)))
	if batch == undivided && (due.After(until) || !now.Before(until)) {
		return false
	}
	if overdue := next.overdue(); overdue.Before(until) || batch != undivided {
		until = overdue // then another may be worth waiting for
	}
	s.hold.Reset(max(until.Sub(now), time.Microsecond))
	return true
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
