package schedule

import (
	"time"
)

// rest is the state of Config.Resting.
type rest struct {
	work  Resting   // nil: there is none, or no more
	due   time.Time // when it is called next, if there are no sessions then
	begun bool      // it may hold something of the model
	runs  bool      // it is being called
	wake  *time.Timer
}

// resting lets Config.Resting work if it is due and there are no sessions, and reports whether it may go on at once. Else it has the owner
// woken when it is due.
func (s *Schedule) resting() (more bool) {
	r := &s.rest
	if r.work == nil {
		return false
	}
	now := time.Now()
	if len(s.sessions) > 0 {
		r.due = now.Add(RestAfter)
		return false
	}
	if !now.Before(r.due) {
		r.begun, r.runs = true, true
		s.owner.Expect(1, 0) // a pass of which nobody knows how long it takes
		again := r.work.Rest()
		if r.runs = false; again < 0 {
			s.rouse()
			r.work = nil
			return false
		}
		s.owner.Finished()
		r.due = time.Now().Add(again)
	}
	wait := time.Until(r.due)
	if wait <= 0 {
		return true
	}
	if r.wake == nil {
		r.wake = time.AfterFunc(wait, func() { s.owner.Post(func() {}) })
	} else {
		r.wake.Reset(wait)
	}
	return false
}

// rouse ends what Config.Resting does: sessions are about to come, or the end.
func (s *Schedule) rouse() {
	r := &s.rest
	if r.begun {
		r.begun = false
		r.work.Rouse()
	}
	r.due = time.Now().Add(RestAfter)
}
