package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/peer"
	"github.com/tandem-llm/tandem/gateway/round"
	"github.com/tandem-llm/tandem/gateway/source"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/learn"
)

// session is one admitted request: its committed text, and the loop that continues it. What it does not decide itself it has as values:
// package round decides each round, sources draft, writer makes text, output hands it to the client, admission is its slot at the gate,
// account its statistics.
// One goroutine owns it (live); peers reach it only through box and sources, its client only through out.
//
//	open ─▶ round ─ verdict ─▶ commit ─▶ round … ─▶ finished
//	         ▲ └─ lost, refused or garbage ─▶ reopen ┐ └─ too much is unread ─▶ park
//	         └────────── epoch + 1 ◀─────────────────┴─────── read ◀────────────┘
//
// A round has sources propose as the strategy wants it, else puts the root alone; waits for the verdict; puts the root alone again while
// none comes. Plain decoding is this loop without a source.
//
//  1. text only grows, in commit alone; its hash is always that of its tokens.
//  2. A verdict is looked at only if its epoch, base and hash are those asked for. Loss, repetition and
//     reordering of tickets and verdicts therefore cost time, never tokens.
//  3. Under the exact rule the tokens of a verdict continue the same text whatever tree was verified,
//     so the root alone may be put at any time in place of a tree that was lost or is late, and
//     either answer is right.
//  4. Every wait ends by a timer and by the request's context. Every repair without a commit since the last is counted (round.Losses), and
//     too many of them, or too long without the verifier, end the request.
//  5. A round commits at least one token; accepted = committed − 1, so Accepted + Rounds = text − prompt.
//  6. A committed token is put into out once, in order, before the next round begins.
//  7. All verifiers that hold it have the identity of the first, because another would continue with another text. Until one
//     with that identity is there, the session waits as if its verifier were lost (open).
//  8. A peer that breaks a contract costs its own session speed: a drafter is given up for the session; for a verifier
//     the session is opened again, and further violations in a row end it (4).
//
// The obvious alternative is one scheduler for all sessions, fed with verdicts. It would need a state for every wait
// below, which a goroutine per request has for nothing. Nor does the gateway put a lost tree again: it may not have a copy
// of a single drafter's, and the root alone repairs the rare loss in one plain round.
type session struct {
	g         *Gateway
	req       tandem.Request
	text      round.Text
	rules     round.Rules
	losses    round.Losses
	box       *mailbox
	sources   *source.Set
	drafting  source.Session // what sources know of it
	strategy  strategy.Strategy
	shared    *strategy.Shared // the gateway's, as this session's verifier has it
	weights   *learn.Weights
	target    target
	admission admission
	writer    writer
	repeats   repeats
	repeated  int // tokens of the piece that ended the text
	out       *output
	account   account
	spans     spans
	turn      turn                // the latest; kept here so that a round allocates little
	begun     time.Time           // when it was admitted
	started   bool                // the client knows that it has started
	finish    tandem.FinishReason // "" while it runs
	pace      time.Duration       // running mean of the time of a round
	ahead     bool                // drafters may still draft ahead of the latest round
}

func newSession(g *Gateway, id tandem.SessionID, r tandem.Request, prompt []tandem.Token, limit int, p *admit.Slot, out *output) *session {
	c := &g.cfg
	s := &session{
		g: g, req: r, out: out, box: newMailbox(), begun: time.Now(), account: newAccount(id), spans: spans{full: r.FullTrace},
		text: round.Text{Session: id, Tokens: append(make([]tandem.Token, 0, len(prompt)+min(r.MaxTokens, 1024)), prompt...),
			Hash: tandem.EmptyPrefix.Add(prompt...), Prompt: len(prompt), Limit: limit},
		rules: round.Rules{Wait: c.Timeouts.Round, VerifierWait: c.Timeouts.VerifierWait, Nodes: max(r.Bounds.Nodes, 1),
			Vocab: c.Vocab.Size(), Logprobs: r.Sampling.Logprobs},
		admission: admission{slot: p, ahead: firstAhead, counted: first(len(prompt), r.MaxTokens)},
	}
	s.box.stamps, s.repeats.limit = r.Report, r.Repeats
	s.writer = newWriter(c.Vocab, r, s.text.Tokens[:len(prompt):len(prompt)])
	s.drafting = source.Session{Text: &s.text, Opening: s.opening, Nodes: s.rules.Nodes, Sampling: r.Sampling, Tenant: r.Sharing(),
		Names:  r.Drafters,
		Traced: func(ctx context.Context) context.Context { return s.spans.open(ctx, c.Events) }}
	s.sources = g.sources.NewSet(&s.drafting)
	s.shared = g.shared.At(&s.target.verifier)
	s.adopt()
	return s
}

// adopt takes the request's strategy as it is now. What a strategy before it has learned is handed on.
func (s *session) adopt() {
	if s.strategy != nil {
		s.strategy.HandOn()
	}
	s.strategy, s.weights = strategy.New(s.req, s.text.Prompt, s.shared)
	s.sources.Adopt(s.strategy)
}

// live takes the session from its opening to its end, and gives back what it holds. For its client it ends
// when all of its output is read.
func (s *session) live(ctx context.Context) (res tandem.Result, err error) {
	defer s.out.end()
	defer s.g.shared.Enter()()
	defer func() { s.g.gate.Leave(s.admission.slot) }()
	defer s.close() // after the result: a failure leaves the peers nothing to forget
	err = peer.Guard(func() error { return s.run(ctx) })
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
	s.g.pace.count(n, t.wall, t.Choice == strategy.Plain)
	s.shared.Verified(t.Verdict, t.Ahead() || s.ahead)
	s.ahead = t.Ahead()
	s.sources.Committed(n)
	o := t.Outcome(n, s.finish != "", t.wall)
	o.Idle = s.sources.Idle(t.Root, t.Bounds, t.Drafts)
	s.strategy.Learn(o)
	s.sources.TakeGuesses(t.Verdict.Guesses, t.Guesses, t.Verdict.Guessing)
	s.sources.TakeSuccessors(t.Verified(), n, &t.Verdict)
	s.account.stats.Planning += time.Since(planning)
	wall := t.wall
	if t.Tickets > 1 {
		wall = t.Busy + max(t.Verdict.Busy, 0) + max(t.Verdict.Guessing, 0) // the rest was a loss, not the pace of rounds
	}
	s.pace = learn.Mean(s.pace, wall)
}

// update brings the sources up to date.
func (s *session) update(ctx context.Context) {
	s.account.stats.Reopened += s.sources.Update(ctx, s.text.Bounds(&s.req, s.rules.Nodes))
}

// hook lets a test change how the session drafts.
func (s *session) hook() {
	before := s.req
	r := s.req
	s.g.cfg.RoundHook(s.account.stats.Rounds+1, &r)
	s.req.Bounds, s.req.Strategy, s.req.Vote, s.req.Drafters, s.req.Without = r.Bounds, r.Strategy, r.Vote, r.Drafters, r.Without
	if before.Strategy != r.Strategy || before.Vote != r.Vote || before.Without != r.Without {
		s.adopt()
	}
	if !slices.Equal(before.Drafters, r.Drafters) {
		s.sources.Allow(r.Drafters)
	}
}

// close ends the session at all peers, in the background: the request's caller need not wait, the
// gateway's Shutdown does. The strategy hands on what it has learned.
func (s *session) close() {
	s.g.forget(s.text.Session)
	if s.target.touched {
		s.g.tasks.run(func() { s.g.closer.Close(s.text.Session, s.g.cfg.Verifier.Close) })
	}
	s.sources.Close()
	s.strategy.HandOn()
	if s.g.cfg.Remember != nil && s.target.held {
		s.g.cfg.Remember(s.drafting.Tenant, s.text.Tokens)
	}
}

// ended returns the error of a session whose request's ctx has ended.
func (s *session) ended(ctx context.Context) error {
	return ended(ctx, "in session "+s.text.Session.String())
}
