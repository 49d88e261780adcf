package gateway

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// simGateway is a gateway's sessions.
type simGateway struct {
	*simNode
	step     time.Duration // of its clock
	sessions []*simSession
}

// time is what the gateway's clock shows.
func (g *simGateway) time(w *sim) time.Time { return time.Unix(0, 0).Add(w.now + g.step) }

func (g *simGateway) session(id tandem.SessionID) *simSession {
	for _, s := range g.sessions {
		if s.id == id {
			return s
		}
	}
	return nil
}

// simSession carries out what its rounds decide, as session does.
type simSession struct {
	w        *sim
	g        *simGateway
	client   *simClient
	id       tandem.SessionID
	seed     uint64
	text     round.Text
	hash     tandem.PrefixHash // of the text; this and all else that is compared is kept apart from what is tested
	rules    round.Rules
	losses   round.Losses
	box      *mailbox
	round    round.Round
	drafters [simDrafters]simAsked
	verifier *simVerifier // that holds it, or is to
	identity tandem.Identity
	held     bool
	state    string
	life     int // counts the states: what was begun in an earlier one changes nothing
	armed    int // timers of this state
	wait     time.Duration
	rounds   int
	asked    time.Duration
	pace     time.Duration
	done     [2]int64 // epoch and base of the latest commit
	finished bool
}

// simAsked is what a session knows of a drafter.
type simAsked struct {
	ready, opening, off bool
	retry, pause        time.Duration
	missed              int
}

// enter leaves all timers of the state before behind.
func (s *simSession) enter(state string) { s.state, s.life, s.armed = state, s.life+1, 0 }

// timer moves the session after a time, if it is still in this state.
func (s *simSession) timer(d time.Duration, what string, f func()) {
	s.armed++
	s.w.add(d, simEvent{in: s.g.simNode, what: what, who: s.id, of: s, life: s.life, do: func() {
		s.armed--
		f()
	}})
}

// call calls a process for this state.
func (s *simSession) call(to *simNode, what string, limit time.Duration, serve func(reply func(func())), done func(error)) {
	life := s.life
	s.armed++ // a call has a deadline
	s.w.call(s.g.simNode, to, what, s.id, limit, serve, func(err error) {
		if s.life == life {
			s.armed--
			done(err)
		}
	})
}

// begin begins a round.
func (s *simSession) begin() {
	s.enter("drafting")
	s.asked = s.w.now
	p := s.plan()
	s.round = round.New(p, &s.rules, &s.losses)
	s.box.arm(p.Question)
	if s.round.Begin().Do == round.Propose {
		s.propose()
		return
	}
	s.merged()
}

// plan draws what a round asks: any number of drafters that are ready, in any way.
func (s *simSession) plan() round.Plan {
	w := s.w
	p := round.Plan{Question: s.text.Question(), Session: s.id, Root: s.text.Root(), Pace: s.pace, Weights: w.weights}
	p.Vote, p.Decision.Nodes = tandem.VoteNone, simNodes
	room := s.text.Limit - s.text.Len() - 1
	for i := range s.drafters {
		if d := &s.drafters[i]; d.ready && room > 0 && w.chance(0.8) {
			p.Asks = append(p.Asks, strategy.Ask{Drafter: w.drafters[i].name})
		} else if !d.ready && !d.off && !d.opening && w.now >= d.retry {
			s.openDrafter(i)
		}
	}
	switch {
	case len(p.Asks) > 1:
		p.Vote = [2]tandem.Vote{tandem.VoteTree, tandem.VoteMajority}[w.rng.IntN(2)]
		p.Later = w.rng.IntN(len(p.Asks))
	case len(p.Asks) == 1:
		p.InPool = w.chance(0.7)
	}
	if !p.InPool && w.chance(0.1) {
		p.Reserve = 1
		p.Prompt = func(t tandem.Tree) tandem.Tree {
			return tandem.Tree{Tokens: append(slices.Clip(t.Tokens), 0), Parents: append(slices.Clip(t.Parents), 0), Prompts: 1}
		}
	}
	p.Bounds = tandem.Bounds{Nodes: simNodes - p.Reserve, Depth: min(4, room), Width: 2}
	return p
}

// propose asks the round's drafters, those that come later not at first.
func (s *simSession) propose() {
	r, now := &s.round, len(s.round.Asks)-s.round.Later
	open, later := now, s.round.Later
	var step func(a round.Action)
	step = func(a round.Action) {
		switch {
		case a.Do == round.Merge:
			s.merged()
		case open == 0 && later > 0:
			n := later
			if later = 0; s.w.chance(0.5) {
				step(r.Skip(n))
				return
			}
			open = n
			for _, k := range r.Asks[now:] {
				s.ask(k.Drafter, func(d *round.Draft) { open--; step(r.Answer(d)) })
			}
		}
	}
	if now > 1 {
		s.timer(30*time.Millisecond, "others are late", func() { step(r.Late()) })
	}
	for _, k := range r.Asks[:now] {
		s.ask(k.Drafter, func(d *round.Draft) { open--; step(r.Answer(d)) })
	}
}

// proposalOf is what a drafter is asked, with what it guesses by.
type proposalOf struct {
	round.Question
	session       tandem.SessionID
	root          tandem.Token
	bounds        tandem.Bounds
	seed, weights uint64
}

// ask has a drafter propose.
func (s *simSession) ask(name string, answer func(*round.Draft)) {
	i := slices.IndexFunc(s.w.drafters, func(d *simDrafter) bool { return d.name == name })
	d, q, inPool, root := s.w.drafters[i], s.round.Question, s.round.InPool, s.round.Root
	of := proposalOf{Question: q, session: s.id, root: root, bounds: s.round.Bounds, seed: s.seed, weights: s.w.weightsOf(s.identity)}
	var got tandem.Proposed
	var failed error
	s.call(d.simNode, "propose", 500*time.Millisecond, func(reply func(func())) {
		d.propose(s.w, s, of, inPool, func(p tandem.Proposed, err error) { reply(func() { got, failed = p, err }) })
	}, func(err error) {
		if err == nil {
			err = failed
		}
		a := &s.drafters[i]
		k := round.Ask{Proposal: tandem.Proposal{Base: q.Base, Return: !inPool}, Root: root, Nodes: simNodes}
		switch {
		case err != nil:
			a.rest(s.w)
			answer(nil)
		case k.Check(got, vocabSize) != nil:
			a.ready, a.off = false, true
			answer(nil)
		default:
			a.pause = 0
			answer(&round.Draft{Drafter: name, Got: got, Busy: got.Busy})
		}
	})
}

func (a *simAsked) rest(w *sim) {
	a.ready = false
	a.retry, a.pause = w.now+max(a.pause, 50*time.Millisecond), min(max(2*a.pause, 50*time.Millisecond), 5*time.Second)
}

// openDrafter opens the session at a drafter, whatever state the session is in.
func (s *simSession) openDrafter(i int) {
	a, d, id, epoch, g := &s.drafters[i], s.w.drafters[i], s.id, s.text.Epoch, s.g
	a.opening = true
	s.w.call(g.simNode, d.simNode, "open drafter", id, DefaultTimeouts.Stall, func(reply func(func())) {
		d.open(s.w, g, id, epoch)
		reply(func() {})
	}, func(err error) {
		if a.opening = false; err == nil && !s.finished {
			a.ready = s.text.Epoch == epoch && !a.off
		} else {
			a.rest(s.w)
		}
		if s.finished { // an Open that overtook the Close
			s.w.close(g, d.simNode, id, 30, func() { d.close(id) })
		}
	})
}

// merged goes on once no more drafts come.
func (s *simSession) merged() {
	s.enter("asking")
	if s.round.InPool && len(s.round.Drafts) > 0 {
		s.enter("waiting")
	}
	s.carry(s.round.Merged(s.w.now-s.asked, s.box.answered()))
}

// carry carries out an action of the round, as session.ask does.
func (s *simSession) carry(a round.Action) {
	if s.round.Tickets > 3 {
		s.w.fail("s%d: %d tickets in a round", s.id, s.round.Tickets)
	}
	if a.Count != "" {
		s.w.reached[a.Count]++
	}
	if a.Judge != round.Fine {
		s.judge(a.Judge)
	}
	switch a.Do {
	case round.Put:
		s.put()
	case round.Wait:
		if a.Wait > 0 && s.w.planted != "no timer" {
			s.enter("waiting")
			s.timer(a.Wait, "tick", func() { s.carry(s.round.Tick(s.g.time(s.w))) })
		} else if a.Wait > 0 {
			s.enter("waiting")
		}
		s.answered()
	case round.Commit:
		s.commit()
	case round.MakeRoom:
		s.w.reached["make room"]++
		if len(s.g.sessions) > 1 {
			s.giveWay(time.Second)
			return
		}
		s.reopen(a.Err)
	case round.Reopen:
		s.reopen(a.Err)
	case round.End:
		s.w.reached["end"]++
		s.end(a.Err)
	default:
		s.w.fail("s%d: action %+v in a round", s.id, a)
	}
}

// put puts a ticket into the pool, or gives it to the verifier itself, which answers.
func (s *simSession) put() {
	t, v, w := s.round.Ticket(""), s.verifier, s.w
	s.enter("putting")
	if w.chance(0.5) {
		s.timer(0, "put", func() {
			w.send(s.g.simNode, v.simNode, false, "ticket", s.id, func() { _ = v.submit(w, s.g, t) })
			s.sent(nil)
		})
		return
	}
	var refused error
	s.call(v.simNode, "submit", DefaultTimeouts.Round, func(reply func(func())) {
		err := v.submit(w, s.g, t)
		reply(func() { refused = err })
	}, func(err error) {
		if err == nil {
			err = refused
		}
		s.sent(err)
	})
}

func (s *simSession) sent(err error) { s.carry(s.round.Sent(s.g.time(s.w), err)) }

// answered takes the verdict if it is there.
func (s *simSession) answered() {
	if s.state != "waiting" || !s.box.answered() {
		return
	}
	a := s.round.Answered(<-s.box.answer)
	if a.Do == round.Put {
		s.box.arm(s.round.Question)
	}
	s.carry(a)
}

// judge is source.process.Judge.
func (s *simSession) judge(j round.Judgement) {
	s.w.reached[[...]string{round.Arrived: "arrived", round.Missed: "missed", round.Suspicious: "suspicious",
		round.Garbage: "garbage"}[j]]++
	for _, d := range s.round.Drafts {
		i := slices.IndexFunc(s.w.drafters, func(x *simDrafter) bool { return x.name == d.Drafter })
		switch a := &s.drafters[i]; j {
		case round.Arrived:
			a.missed = 0
		case round.Missed:
			if a.missed++; a.missed == 2 {
				a.ready, a.off = false, true
			}
		default:
			a.ready, a.off = false, true
		}
	}
}

// commit commits the verdict and goes on, and holds it against the truth.
func (s *simSession) commit() {
	w, v, q := s.w, s.round.Verdict, s.round.Question
	switch key := [2]int64{int64(v.Epoch), int64(v.Base)}; {
	case v.Epoch != q.Epoch || v.Base != q.Base || v.Hash != q.Hash:
		w.fail("s%d: the verdict on %d/%d/%x is committed to %d/%d/%x", s.id, v.Epoch, v.Base, v.Hash, q.Epoch, q.Base, q.Hash)
	case s.rounds > 0 && (key[1] <= s.done[1] || key[0] < s.done[0]):
		w.fail("s%d: commits epoch %d, base %d after epoch %d, base %d", s.id, key[0], key[1], s.done[0], s.done[1])
	default:
		s.done = key
	}
	if len(v.Tokens) == 0 {
		w.fail("s%d: an empty verdict is committed", s.id)
	}
	s.rounds++
	w.commits++
	tokens := v.Tokens[:min(len(v.Tokens), s.text.Limit-s.text.Len())]
	ended := false
	for i, t := range tokens {
		if want := simNext(w.weightsOf(s.identity), s.seed, s.hash, len(s.text.Tokens)+i); t != want {
			w.fail("s%d: token %d is %d: want %d", s.id, len(s.text.Tokens)+i, t, want)
		}
		s.hash = s.hash.Add(t)
		if t == eos {
			tokens, ended = tokens[:i+1], true
			break
		}
	}
	s.text.Append(tokens...)
	s.losses = round.Losses{}
	s.pace = (3*s.pace + w.now - s.asked) / 4
	s.stray()
	unread := s.client.take(w, s)
	ended = ended || s.text.Len() == s.text.Limit
	switch round.Next(ended, unread, w.chance(0.002)) {
	case round.End:
		s.end(nil)
	case round.Park:
		s.w.reached["park"]++
		s.park()
	case round.GiveWay:
		s.giveWay(3 * time.Second)
	default:
		s.begin()
	}
}

// stray lets a round that has ended have further events, which change nothing.
func (s *simSession) stray() {
	if !s.w.chance(0.05) {
		return
	}
	r := s.round
	for _, a := range []round.Action{r.Answered(r.Verdict), r.Answer(&round.Draft{}), r.Late(), r.Tick(s.g.time(s.w))} {
		if a != (round.Action{}) {
			s.w.fail("s%d: a round that was over still wants %+v", s.id, a)
		}
	}
}

// end ends the request.
func (s *simSession) end(err error) {
	s.enter("ended")
	s.finished = true
	s.closeAll()
	s.g.sessions = slices.DeleteFunc(s.g.sessions, func(x *simSession) bool { return x == s })
	s.client.ended(s.w, err)
}

func (s *simSession) describe() string {
	return fmt.Sprintf("s%d of %s is %s at %d of %d tokens, epoch %d", s.id, s.g.name, s.state, s.text.Len(), s.text.Limit, s.text.Epoch)
}
