package schedule

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
)

// makeRoom takes the memory that x needs for a part. The model gives up kept prefixes first. If that is not enough, sessions are dropped
// with an error of kind Exhausted, one after the other, as victim chooses them; it may choose x, and then makeRoom returns false. Whoever
// has opened a session opens it again when there is room.
//
// The oldest session is dropped only when it is alone, so it always gets further, and each one is the oldest in the end: sessions of which
// each holds a part of the memory and wants more cannot stop each other for ever. Rooms open only sessions that fit into the whole memory.
func (s *Schedule) makeRoom(x Session, p *engine.Part) bool {
	for {
		var err error
		if !s.guard(x, func() { err = s.cfg.Model.Reserve(p) }) {
			return false
		}
		switch {
		case err == nil:
			return true
		case tandem.KindOf(err) != tandem.Exhausted:
			s.Fail(x, err)
			return false
		}
		v := s.victim()
		t := v.entry()
		s.cfg.Counters.Add("sessions.crowded_out", 1)
		s.Drop(v, tandem.Errorf(s.cfg.Name, tandem.Exhausted, "session %v has to wait for memory, after %d tokens: %w", t.ID,
			t.Seq.Len(), err))
		if v == x {
			return false
		}
	}
}

// victim returns the session to drop when memory is missing: the youngest of the tenant that has most pages, so that a tenant that has no
// more than the others loses nothing to them. The oldest of all is left out, unless it is the only one. There must be a session.
func (s *Schedule) victim() (v Session) {
	var oldest Session
	for _, x := range s.sessions {
		if oldest == nil || x.entry().number < oldest.entry().number {
			oldest = x
		}
	}
	pages := map[string]int{}
	for _, x := range s.sessions {
		pages[x.entry().tenant] += x.entry().Seq.Pages()
	}
	v = oldest
	for _, x := range s.sessions {
		if x == oldest {
			continue
		}
		t, best := x.entry(), v.entry()
		if have, most := pages[t.tenant], pages[best.tenant]; v == oldest || have > most || have == most && t.number > best.number {
			v = x
		}
	}
	return v
}
