package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/spec/worth"
)

// live takes the session from its opening to its end, and gives back what it holds. For its client it ends
// when all of its output is read.
func (s *session) live(ctx context.Context) (res tandem.Result, err error) {
	defer s.out.end()
	defer s.g.shared.Enter()()
	defer func() { s.g.gate.Leave(s.admission.slot) }()
	defer s.close() // after the result: a failure leaves the peers nothing to forget
	err = peer.Guard(func() error { return s.run(ctx) })
	var earned worth.Earned
	if s.account.stats.Plain, earned = s.account.plain.Time(s.shared.PassAt); err == nil && s.g.cfg.Earned != nil {
		s.g.cfg.Earned(earned)
	}
	s.g.pace.plain.Add(int64(s.account.stats.Plain))
	res = s.account.result(s.req, s.weights)
	res.Identity, res.CachedTokens = s.target.identity, s.target.cached
	res.Finish, res.Stopped, res.Repeated = s.finish, s.writer.stops.Text(), s.repeated
	res.PromptTokens, res.OutputTokens = s.text.Prompt, s.text.Len()-s.text.Prompt
	return res, err
}

// run opens the session and runs its rounds.
func (s *session) run(ctx context.Context) error {
	s.update(ctx)
	if err := s.open(ctx); err != nil {
		return err
	}
	t := s.g.cfg.Timeouts
	s.sources.Settle(ctx, min(max(time.Since(s.begun), t.ProposeMin), t.ProposeMax))
	s.started = true
	s.account.stats.Prefill = time.Since(s.begun) - s.admission.parked
	s.admission.parked = 0
	started := tandem.Started{Session: s.text.Session, PromptTokens: slices.Clone(s.text.Tokens), Request: s.req,
		Drafter: s.sources.Holding(), Identity: s.target.identity}
	started.Request.MaxTokens = s.text.Limit - s.text.Prompt
	if err := s.out.start(started); err != nil {
		return err
	}
	decoding := time.Now()
	for s.finish == "" {
		if err := s.group(ctx, decoding); err != nil {
			return err
		}
	}
	return nil
}

// group runs the rounds of one StageRounds. decoding is when the first round of all began.
func (s *session) group(ctx context.Context, decoding time.Time) (err error) {
	st := &s.account.stats
	events, size, before := s.g.cfg.Events, s.spans.group(), *st
	inGroup, end := events.Begin(ctx, tandem.StageRounds, number("first_round", before.Rounds+1))
	defer func() {
		end(err, number("rounds", st.Rounds-before.Rounds), number("accepted", st.Accepted-before.Accepted),
			number("drafted", st.Drafted-before.Drafted))
	}()
	muted := events.Mute(inGroup)
	for done := 0; done < size && s.finish == ""; {
		if s.g.cfg.RoundHook != nil {
			s.out.flush() // a hook may wait for the client
			s.hook()
		}
		s.update(ctx)
		asked := time.Now()
		t, a, err := s.round(inGroup, muted, done == 0)
		if err != nil {
			return err
		}
		if a.Do != round.Commit {
			if err := s.reopen(ctx, a); err != nil {
				return err
			}
			continue
		}
		done++
		st.Decode = time.Since(decoding) - s.admission.parked
		t.wall = time.Since(asked)
		s.learn(t)
		s.admission.grow(s.g.gate, &s.text)
		if err := s.next(ctx, t.delta); err != nil {
			return err
		}
	}
	return nil
}

// next hands a round's output to the client and does what has to be done before the next round.
func (s *session) next(ctx context.Context, d tandem.Delta) error {
	unread, err := s.out.give(ctx, d, s.finish != "")
	if err != nil {
		return err
	}
	claimed := func() bool { return s.g.gate.Asked(s.admission.slot).Err() != nil }
	what := round.Next(s.finish != "", unread, claimed())
	if what == round.Park {
		if err := s.park(ctx); err != nil {
			return err
		}
		what = round.Next(false, false, claimed())
	}
	if what == round.GiveWay {
		if err := s.yield(ctx, steppedAside, admit.Want{}); err != nil {
			return err
		}
		return s.open(ctx)
	}
	return nil
}
