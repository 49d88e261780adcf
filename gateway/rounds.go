package gateway

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/source"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/learn"
	"github.com/tandem-llm/tandem/spec/worth"
)

// round runs a round up to its commit; it is traced in full if the trace has room. If the action is not Commit, the session must be
// opened again first.
func (s *session) round(inGroup, muted context.Context, first bool) (t *turn, a round.Action, err error) {
	if !s.spans.round(first) {
		if t, a, err = s.ask(muted, muted); err == nil && a.Do == round.Commit {
			s.commit(t)
		}
		return t, a, err
	}
	ctx, end := s.g.cfg.Events.Begin(inGroup, tandem.StageRound, number("round", s.account.stats.Rounds+1), number("base", s.text.Len()),
		number("epoch", int(s.text.Epoch)))
	if t, a, err = s.ask(ctx, muted); err == nil && a.Do == round.Commit {
		_, endCommit := s.g.cfg.Events.Begin(ctx, tandem.StageCommit)
		s.commit(t)
		endCommit(nil, number("tokens", len(t.delta.Tokens)))
	}
	var attrs []tandem.Attr
	if s.g.cfg.Events.BeginFunc != nil {
		attrs = t.attributes(cmp.Or(s.req.Strategy, tandem.StrategyFixed))
	}
	end(err, attrs...)
	s.spans.spent += max(len(t.Asks)-1, 0)
	if t.Origin == round.Nothing && len(t.Asks) > 0 {
		s.spans.spent += strayTicketSpans
	}
	return t, a, err
}

// ask carries out what a round decides, up to its verdict. Repeated tickets are sent with the context again, so that the trace does not
// grow with them.
func (s *session) ask(ctx, again context.Context) (*turn, round.Action, error) {
	came := s.g.verifier.Next() // before the ticket: a restart in between must not go unseen
	planning := time.Now()
	t := s.plan()
	s.account.stats.Planning += time.Since(planning)
	s.box.arm(t.Question)
	took := time.Duration(0)
	if t.Begin().Do == round.Propose {
		took = s.propose(ctx, t)
	}
	planning = time.Now()
	a := t.Merged(took, s.box.answered())
	s.account.stats.Planning += time.Since(planning)
	s.sources.Follow(again, t.Follow)
	send := ctx
	if a.Do != round.Put { // a drafter has put the first
		send = again
	}
	timer := time.NewTimer(a.Wait)
	defer timer.Stop()
	for {
		t.apply(a, s.g.cfg.Counters)
		switch a.Do {
		case round.Put:
			if ctx.Err() != nil {
				a = t.Stopped()
				continue
			}
			err := s.put(send, t)
			a, send = t.Sent(time.Now(), err), again
			continue
		case round.Wait:
		case round.End:
			if a.Err == nil {
				a.Err = s.ended(ctx)
			}
			return t, a, a.Err
		default:
			return t, a, nil
		}
		if a.Wait > 0 {
			timer.Reset(a.Wait)
		}
		s.out.flush()
		select {
		case v := <-s.box.answer:
			if a = t.Answered(v); a.Do == round.Put {
				s.box.arm(t.Question)
			}
		case <-came:
			came = s.g.verifier.Next()
			a = t.VerifierUp(time.Now())
		case <-timer.C:
			a = t.Tick(time.Now())
		case <-ctx.Done():
			a = t.Stopped()
		}
	}
}

// plan begins a turn: the strategy decides what the round drafts, within what the rest of the budget can use.
func (s *session) plan() *turn {
	ready, b := s.sources.Ready(), s.text.Bounds(&s.req, s.rules.Nodes)
	names := make([]string, len(ready))
	for i, x := range ready {
		names[i] = x.Name()
	}
	p := round.Plan{Decision: s.strategy.Decide(names, b), Question: s.text.Question(), Session: s.text.Session, Root: s.text.Root(),
		Bounds: b, Pace: s.pace, Weights: s.weights}
	switch {
	case s.req.Bounds.Plain():
		p.Reason = strategy.ReasonNotAsked
	case b.Plain():
		p.Reason = strategy.ReasonBudget
	case len(ready) == 0:
		p.Reason = strategy.ReasonNobody
	}
	t := &s.turn
	*t = turn{sources: s.sources, strategy: s.strategy, asks: make([]source.Source, len(p.Asks))}
	for i, k := range p.Asks {
		t.asks[i] = ready[slices.Index(names, k.Drafter)]
	}
	p.Guesses, p.Successors = s.sources.Guesses(b), s.sources.Successors(b)
	if n := s.sources.Reserve(p.Guesses); n > 0 {
		p.Reserve, p.Prompt = n, func(x tandem.Tree) tandem.Tree { return s.sources.Prompt(x, t.Guesses, n) }
	}
	p.InPool = p.Vote == tandem.VoteNone && len(p.Asks) > 0 && t.asks[0].InPool() && p.Reserve == 0
	t.Round = round.New(p, &s.rules, &s.losses)
	return t
}

// propose has the sources draft that the round asks, several at the same time, and returns how long that took. It waits for each no longer
// than one Propose may take, and once one has answered, for the others no longer than they are worth.
func (s *session) propose(ctx context.Context, t *turn) time.Duration {
	proposal := func(i int) tandem.Proposal {
		p := t.Asks[i].Proposal
		p.SelfDrafts, p.Successors, p.Bounds.Nodes = t.Guesses, t.Successors, min(p.Bounds.Nodes, s.rules.Nodes-t.Reserve)
		return s.drafting.Complete(p, !t.InPool)
	}
	if t.Vote == tandem.VoteNone {
		if _, waits := t.asks[0].Usual(); waits {
			s.out.flush() // drafting takes long enough
		}
		t.answer(t.asks[0].Propose(ctx, proposal(0)))
		return 0
	}
	s.out.flush()
	begun, ended, calls := time.Now(), make(chan *source.Call, len(t.asks)), make([]*source.Call, 0, len(t.asks))
	var late <-chan time.Time
	ask := func(from, to int) {
		var usual []time.Duration // of those asked together: one that was found worth the wait is waited for, however long the others took
		for i, x := range t.asks[from:to] {
			if pace, waits := x.Usual(); waits {
				usual = append(usual, pace)
			}
			calls = append(calls, x.Begin(ctx, proposal(from+i), ended))
		}
		if late = nil; len(usual) > 1 && round.Patience(usual) > 0 {
			late = time.After(round.Patience(usual))
		}
	}
	later := t.Later
	ask(0, len(t.asks)-later)
	for a := (round.Action{}); a.Do != round.Merge; {
		if later > 0 && len(calls) == 0 {
			if s.strategy.Wanted(t.Outcome(0, false, 0).Drafts) {
				ask(len(t.asks)-later, len(t.asks))
			} else if t.Choice, a = t.Without, t.Skip(later); a.Do == round.Merge {
				break
			}
			later = 0
		}
		select {
		case c := <-ended:
			calls = slices.DeleteFunc(calls, func(o *source.Call) bool { return o == c })
			a = t.answer(c.Draft(ctx))
		case <-late:
			a = t.Late()
		case <-ctx.Done():
			return 0
		}
	}
	took := time.Since(begun)
	for _, c := range calls {
		if c.Ended() {
			t.answer(c.Draft(ctx))
		} else {
			c.Cut(took)
		}
	}
	return took
}

// put submits a ticket.
func (s *session) put(ctx context.Context, t *turn) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.g.cfg.Timeouts.Round)
	defer cancel()
	ctx, end := s.g.cfg.Events.Begin(ctx, tandem.StageSend)
	defer func() { end(err) }()
	if s.req.Report && t.put.IsZero() {
		t.put = time.Now()
	}
	return s.g.cfg.Verifier.Submit(ctx, t.Ticket(s.g.cfg.Events.Carrier(ctx)))
}

// commit appends the verdict's tokens to the text, as far as budget, end of text and stop sequences
// allow, and turns them into t.delta. The end token counts as output, as it does in OpenAI's and
// llama.cpp's figures, but prints nothing; the same holds for tokens of a stop sequence.
func (s *session) commit(t *turn) {
	v := &t.Verdict
	tokens := v.Tokens[:min(len(v.Tokens), s.text.Limit-s.text.Len())]
	most, piece := s.repeats.until(s.text.Tokens[s.text.Prompt:], tokens)
	n, out, ended := s.writer.write(tokens[:most])
	tokens = tokens[:n]
	s.text.Append(tokens...)
	switch {
	case ended:
		s.finish = tandem.FinishStop
	case piece > 0:
		s.finish, s.repeated = tandem.FinishLength, piece
		s.g.cfg.Counters.Add("texts.repeated", 1)
	case s.text.Len() == s.text.Limit:
		s.finish = tandem.FinishLength
	}
	if s.finish != "" {
		rest, stopped := s.writer.end()
		if out += rest; stopped {
			s.finish, s.repeated = tandem.FinishStop, 0
		}
	}
	if s.finish == tandem.FinishLength && s.req.Sampling.Constraint != nil {
		s.g.cfg.Counters.Add("constraints.cut", 1) // it is not what was asked for
	}
	t.delta = tandem.Delta{Text: out, Tokens: slices.Clone(tokens), Origins: make([]tandem.Origin, n)}
	if s.req.Sampling.Logprobs {
		t.delta.Logprobs = slices.Clone(v.Logprobs[:min(n, len(v.Logprobs))])
	}
	for i := range len(tokens) - 1 {
		t.delta.Origins[i] = tandem.OriginDraft // the last of a round always counts as the target's own
	}
	s.losses, s.admission.starved = round.Losses{}, 0
	if s.req.Report {
		t.delta.Round = t.report(s.account.stats.Rounds, s.begun, s.box.came)
	}
}

// learn counts a committed round and lets the strategy and the sources learn from it.
func (s *session) learn(t *turn) {
	s.account.round(t)
	planning := time.Now()
	n := len(t.delta.Tokens)
	s.g.pace.count(n, t.wall)
	s.shared.Verified(t.Verdict, t.Ahead() || s.ahead)
	wall := t.wall
	if t.Tickets > 1 {
		wall = t.Busy + max(t.Verdict.Busy, 0) + max(t.Verdict.Guessing, 0) // the rest was a loss, not the pace of rounds
	}
	s.account.plain.Add(worth.Spent{Rows: max(t.Verdict.Rows, t.Verdict.Nodes), Nodes: t.Verdict.Nodes, Context: int(t.Verdict.Base),
		Tokens: n, Busy: t.Verdict.Busy, Rest: t.Rest(t.wall), Beside: t.Ahead() || s.ahead || s.sources.Opening(), Took: wall,
		Model: s.sources.Models(s.req.Bounds, t.asks, t.Verdict.Nodes > 1)}, s.shared.PassAt)
	s.ahead = t.Ahead()
	s.sources.Committed(n)
	o := t.Outcome(n, s.finish != "", t.wall)
	o.Idle = s.sources.Idle(t.Root, t.Bounds, t.Drafts)
	s.strategy.Learn(o)
	s.sources.TakeGuesses(t.Verdict.Guesses, t.Guesses, t.Verdict.Guessing)
	s.sources.TakeSuccessors(t.Verified(), n, &t.Verdict)
	s.account.stats.Planning += time.Since(planning)
	s.pace = learn.Mean(s.pace, wall)
}
