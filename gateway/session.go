package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
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
	g         *common
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

func newSession(g *common, id tandem.SessionID, r tandem.Request, prompt []tandem.Token, limit int, p *admit.Slot, out *output) *session {
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

// opening describes the session as it is now.
func (s *session) opening() tandem.Opening {
	n := s.text.Len()
	return tandem.Opening{Session: s.text.Session, Epoch: s.text.Epoch, Tokens: s.text.Tokens[:n:n], Limit: tandem.Position(s.text.Limit),
		MaxNodes: s.rules.Nodes, Prompt: s.text.Prompt, Tenant: s.req.Sharing(), Vocab: s.rules.Vocab, Sampling: s.req.Sampling,
		Features: !s.req.Bounds.Plain() && s.sources.ReadStates(),
		Identity: s.target.identity, Fingerprint: s.g.cfg.Fingerprint}
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
