package gateway

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
)

// open opens the session at a verifier. begun reports that the prefill had begun: see session.notHeld.
func (s *simSession) open() {
	s.enter("opening")
	s.verifier = s.w.place(s)
	v, epoch, length, hash, begun := s.verifier, s.text.Epoch, s.text.Len(), s.text.Hash, false
	tokens := s.text.Tokens[:length:length]
	var opened tandem.Opened
	var failed error
	s.call(v.simNode, "open", DefaultTimeouts.Stall, func(reply func(func())) {
		v.open(s.w, s, epoch, tokens, hash, func(o tandem.Opened, err error) {
			reply(func() { opened, failed, begun = o, err, err == nil })
		})
	}, func(err error) {
		if err == nil {
			err = failed
		}
		if err == nil && s.held && opened.Identity != s.identity {
			err = tandem.OtherIdentity(s.id, s.identity, opened.Identity)
		}
		if err == nil {
			s.identity, s.held = opened.Identity, true
			s.losses.Since = time.Time{}
			s.wait = firstWait
			s.begin()
			return
		}
		s.notHeld(begun, err)
	})
}

// notHeld is session.notHeld.
func (s *simSession) notHeld(begun bool, err error) {
	now := s.g.time(s.w)
	s.losses.Suspect(now)
	kind, late := tandem.KindOf(err), tandem.Unavailable
	switch {
	case begun && s.losses.Repair():
		s.end(tandem.Errorf("sim", tandem.Unavailable, "broken off: %w", err))
		return
	case tandem.Refusal(err) != "" && !s.held:
		s.end(err)
		return
	case kind == tandem.Exhausted && len(s.g.sessions) > 1 && s.w.chance(0.5):
		s.giveWay(time.Second)
		return
	case kind == tandem.Exhausted:
		late = tandem.Exhausted
	case kind == tandem.Stale || kind == tandem.UnknownSession:
		if s.losses.Repair() {
			s.end(err)
			return
		}
		s.text.Epoch++
	}
	if now.Sub(s.losses.Since) > DefaultTimeouts.VerifierWait {
		s.end(tandem.Errorf("sim", late, "not taken: %w", err))
		return
	}
	s.enter("waiting for a verifier")
	s.wait = min(max(2*s.wait, firstWait), longWait)
	s.timer(s.wait, "open again", s.open)
}

// reopen is session.reopen.
func (s *simSession) reopen(cause error) {
	pause, err := s.losses.Reopen(s.g.time(s.w), DefaultTimeouts.VerifierWait, &s.text, cause)
	if err != nil {
		s.end(err)
		return
	}
	s.restart()
	s.enter("pausing before it is opened again")
	s.timer(pause, "reopen", s.open)
}

// restart begins the next epoch.
func (s *simSession) restart() {
	s.text.Epoch++
	for i := range s.drafters {
		s.drafters[i].ready = false
	}
}

// giveWay closes the session and opens it again after others had its slot.
func (s *simSession) giveWay(most time.Duration) {
	s.enter("gave way")
	s.closeAll()
	s.timer(100*time.Millisecond+s.w.upTo(most), "comes back", s.back)
}

func (s *simSession) back() {
	s.restart()
	s.losses.Since = time.Time{}
	s.open()
}

// park waits for the client.
func (s *simSession) park() {
	s.enter("parked")
	s.closeAll()
	s.timer(DefaultTimeouts.Unread, "unread too long", func() { s.end(tandem.Errorf("sim", tandem.Deadline, "nothing was read")) })
}

func (s *simSession) cancel() {
	if s.finished {
		return
	}
	if a := s.round.Stopped(); a.Do != round.End {
		s.w.fail("s%d: a stopped round wants %+v", s.id, a)
	}
	s.end(tandem.Errorf("sim", tandem.Canceled, "cancelled"))
}

// closeAll closes the session at all peers, in the background.
func (s *simSession) closeAll() {
	for _, v := range s.w.verifiers {
		if v == s.verifier {
			s.w.close(s.g, v.simNode, s.id, 30, func() { v.close(s.id) })
		}
	}
	for i, d := range s.w.drafters {
		s.drafters[i].ready = false
		s.w.close(s.g, d.simNode, s.id, 30, func() { d.close(s.id) })
	}
}

// close is peer.Closer.
func (w *sim) close(g *simGateway, to *simNode, id tandem.SessionID, tries int, f func()) {
	w.call(g.simNode, to, "close", id, DefaultTimeouts.Close, func(reply func(func())) {
		f()
		reply(func() {})
	}, func(err error) {
		if tandem.KindOf(err) == tandem.Deadline && err != nil && tries > 1 {
			w.close(g, to, id, tries-1, f)
		}
	})
}
