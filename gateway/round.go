package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
)

// answer is the result of one ask.
type answer struct {
	decision strategy.Decision
	asks     []ask   // of decision
	drafts   []draft // of those that answered in time, in the order of asks
	tree     tandem.Tree
	by       string          // who drafted tree, "vote" for several
	voted    int             // index in drafts of the majority's; 0 with one
	proposed tandem.Proposed // of tree; zero if not drafted
	drafted  bool            // a ticket with tree is in the pool, or is to be put
	merged   bool            // of several drafters' trees
	own      bool            // the session puts the ticket with tree, not a drafter
	root     tandem.Token    // of tree
	bounds   tandem.Bounds   // of the round
	ways     []string        // of the target's own that the ticket asks
	reserve  int             // nodes kept for prompt nodes
	prompts  int             // prompt nodes in the ticket that was put
	verdict  tandem.Verdict
	tickets  int           // put in all
	fault    error         // why there is no verdict to commit: the session must be rebuilt
	delta    tandem.Delta  // set by commit
	atEnd    bool          // text or budget ended with this round
	wall     time.Duration // from the start of the round to its commit
	why      string        // explain's answer, once asked
	put      time.Time     // of the first ticket that the session put itself, for a report
}

// ask is a drafter and the proposal for it.
type ask struct {
	of       *liaison
	proposal tandem.Proposal
}

// outcome returns what a strategy may learn from.
func (a *answer) outcome() *strategy.Outcome {
	o := &strategy.Outcome{Decision: a.decision, Drafts: make([]strategy.Draft, len(a.drafts)), Tree: a.tree, Merged: a.merged,
		Voted: a.voted, Verdict: a.verdict,
		Judged: a.judged(), Tokens: len(a.delta.Tokens), AtEnd: a.atEnd, Lossy: a.tickets > 1, Rest: a.coordination(),
		Wall: a.wall - max(a.verdict.Guessing, 0) + a.guessing(), Prompts: a.prompts}
	for i, d := range a.drafts {
		o.Drafts[i] = strategy.Draft{Drafter: d.by.of.Name, Got: d.got, Extra: d.extra}
	}
	return o
}

// judged reports whether the whole tree was verified, so that the verdict says something about it.
func (a *answer) judged() bool {
	return a.drafted && a.tree.Len() > 1 && a.verdict.Nodes == a.tree.Len()+a.prompts
}

// coordination is the part of the round that was neither draft nor target arithmetic.
func (a *answer) coordination() time.Duration {
	return max(a.wall-a.proposed.Busy-max(a.verdict.Busy, 0)-max(a.verdict.Guessing, 0), 0)
}

// attributes describe the round for telemetry.
func (s *session) attributes(a *answer) []tandem.Attr {
	if s.g.cfg.Events.BeginFunc == nil {
		return nil
	}
	attrs := []tandem.Attr{number("nodes", a.proposed.Nodes), number("depth", a.proposed.Depth), number("accepted", len(a.verdict.Path)),
		text("strategy", string(cmp.Or(s.req.Strategy, tandem.StrategyFixed))), text("choice", a.decision.Choice), text("why", s.why(a))}
	switch {
	case a.fault != nil:
		return append(attrs, text("outcome", "stale"))
	case !a.drafted:
		return attrs
	}
	outcome := "partial"
	switch path := len(a.verdict.Path); {
	case a.proposed.Nodes > 1 && a.verdict.Nodes < 2:
		outcome = "expired" // the tree was lost or late, and the root alone was verified
	case path == 0:
		outcome = "rejected"
	case path == a.proposed.Depth:
		outcome = "accepted"
	}
	return append(attrs, text("drafter", a.by), text("outcome", outcome))
}

// ask puts one ticket, or has the drafter put one, and waits for its verdict. Repeated tickets are sent with
// the context again, so that the trace does not grow with them.
func (s *session) ask(ctx, again context.Context) (a answer, err error) {
	q := s.question()
	came := s.g.verifier.Next() // before the ticket: a restart in between must not go unseen
	s.box.arm(q)
	s.draft(ctx, q, &a)
	s.follow(again, &a)
	if err = s.await(ctx, again, q, &a, came); err != nil || a.fault != nil {
		return a, err
	}
	if v := a.verdict; v.Kind == tandem.Unsupported { // no other try would give another result
		s.g.cfg.Counters.Add("verifier."+v.Kind.String(), 1)
		return a, &tandem.Error{Op: op, Kind: tandem.Corrupt, Field: "model", Err: errors.New(v.Message)}
	}
	a.fault = s.check(&a)
	return a, nil
}

// draft has a tree drafted as the strategy wants it, within what the rest of the budget can use. A tree of
// several drafters is left in a; a single drafter puts the ticket with its tree itself.
func (s *session) draft(ctx context.Context, q question, a *answer) {
	planning := time.Now()
	ready, bounds := s.ready(), s.bounds()
	s.decide(a, ready, bounds)
	a.root, a.bounds, a.ways = s.tokens[q.base-1], bounds, s.wanted()
	a.reserve = s.reserve(a.ways)
	s.stats.Planning += time.Since(planning)
	if len(a.asks) == 0 {
		return
	}
	if a.decision.Vote != tandem.VoteNone {
		s.out.flush() // drafting takes long enough
		s.vote(ctx, q, a)
		return
	}
	by := a.asks[0].of
	a.own = by.of.Way != nil || a.reserve > 0
	if by.of.Way == nil {
		s.out.flush()
	}
	d, err := by.propose(ctx, s.wish(q, a.asks[0], a, a.own))
	if err != nil {
		return
	}
	a.drafts, a.by, a.proposed, a.tree = []draft{d}, by.of.Name, d.got, d.got.Tree
	if by.of.Way != nil {
		a.proposed.Busy = 0 // within this round
	}
	a.drafted = !a.own || a.tree.Len() > 1
}

// decide has the strategy decide what the round drafts.
func (s *session) decide(a *answer, ready []*liaison, b tandem.Bounds) {
	names := make([]string, len(ready))
	for i, l := range ready {
		names[i] = l.of.Name
	}
	if a.decision = s.strategy.Decide(names, b); len(ready) == 0 || b.Plain() {
		a.decision.Reason = s.idle(b)
	}
	a.asks = make([]ask, len(a.decision.Asks))
	for i, k := range a.decision.Asks {
		a.asks[i] = ask{ready[slices.Index(names, k.Drafter)], k.Proposal}
	}
}

// ready returns the drafters that can be asked now, at most as many as a vote can count.
func (s *session) ready() (out []*liaison) {
	for _, l := range s.liaisons {
		if len(out) < mostVotes && l.ready() {
			out = append(out, l)
		}
	}
	return out
}

// bounds returns those of the request, as far as its budget still reaches.
func (s *session) bounds() tandem.Bounds {
	b := s.req.Bounds
	if s.req.Without&tandem.TechniqueBranches != 0 {
		b.Width, b.Nodes = min(b.Width, 1), min(b.Nodes, b.Depth+1)
	}
	b.Nodes = min(b.Nodes, s.nodes)
	b.Depth = min(b.Depth, s.limit-len(s.tokens)-1)
	return b
}

// wish completes the proposal for a drafter.
func (s *session) wish(q question, k ask, a *answer, returned bool) wish {
	p, from := k.proposal, k.of.acked
	p.SelfDrafts, p.Bounds.Nodes = a.ways, min(p.Bounds.Nodes, s.nodes-a.reserve)
	p.Session, p.Epoch, p.Base, p.Hash = s.id, q.epoch, q.base, q.hash
	p.From, p.Suffix, p.Return = from, s.tokens[from:q.base:q.base], returned
	if p.Growth != tandem.GrowPacer { // whose thresholds are of plain probabilities
		p.Temper = spec.DraftTemper(s.req.Sampling.Temperature)
	}
	return wish{Proposal: p, root: s.tokens[q.base-1], nodes: s.nodes}
}

// question returns the question for the session's current state.
func (s *session) question() question {
	return question{epoch: s.epoch, base: tandem.Position(len(s.tokens)), hash: s.hash}
}

// await sets a.verdict to the answer to q, whatever its kind, or a.fault if the verifier seems lost.
// While no answer comes it puts the root alone: at once if no ticket has been put yet, and again
// whenever the verifier came up or the wait, doubled each time, is over. An error ends the request.
func (s *session) await(ctx, again context.Context, q question, a *answer, came <-chan struct{}) error {
	t := s.g.cfg.Timeouts
	wait, retry := max(t.Round, min(10*s.pace, t.VerifierWait/8)), quickWait
	overdue := false // the drafter's own ticket
	timer := time.NewTimer(wait)
	defer timer.Stop()
	put := func(ctx context.Context) {
		if a.fault = s.put(ctx, q, a); a.fault != nil {
			s.g.cfg.Counters.Add("pool."+tandem.KindOf(a.fault).String(), 1)
			s.suspect()
			pause := retry
			if errors.Is(a.fault, tandem.Exhausted) {
				pause = min(pause, fullPause)
			}
			timer.Reset(pause)
			retry = min(2*retry, slowWait)
			return
		}
		if a.tickets > 0 {
			s.g.cfg.Counters.Add("tickets.repeated", 1)
		}
		timer.Reset(wait << a.tickets)
		a.tickets, retry = a.tickets+1, quickWait
	}
	if a.drafted && !a.own {
		a.tickets = 1
		timer.Reset(min(wait, max(10*s.pace, drafterWait))) // one more ticket costs nothing; the drafter's may be missing
	} else if ctx.Err() == nil && !s.box.answered() {
		put(ctx)
	}
	s.out.flush()
	for {
		select {
		case v := <-s.box.answer:
			if v.Kind != tandem.Invalid || !a.drafted && a.prompts == 0 {
				a.verdict, a.fault = v, nil
				s.came(a, overdue)
				return nil
			}
			s.refused(a)
			s.box.arm(q)
			put(again)
			continue
		case <-came:
			came = s.g.verifier.Next()
			a.tickets = min(a.tickets, 1) // the others went to its predecessor
		case <-timer.C:
			overdue = overdue || a.drafted && !a.own && a.tickets == 1
		case <-ctx.Done():
			return s.ended(ctx)
		}
		s.suspect()
		if a.tickets < mostTickets && time.Since(s.lost) <= t.VerifierWait {
			put(again)
			continue
		}
		if a.fault == nil {
			s.g.cfg.Counters.Add("verifier.silent", 1)
			a.fault = tandem.Errorf(op, tandem.Unavailable, "verifier answered none of %d tickets", a.tickets)
		}
		return nil
	}
}

// came notes whether a single drafter's ticket reached the verifier, as far as the verdict tells.
func (s *session) came(a *answer, overdue bool) {
	if !a.drafted || a.own || a.verdict.Kind != tandem.OK || a.proposed.Nodes < 2 {
		return
	}
	switch by := a.drafts[0].by; {
	case a.verdict.Nodes > 1:
		by.missed = 0
	case overdue && a.verdict.Nodes == 1:
		by.miss()
	}
}

// put submits a ticket: with the merged tree if there is one that has not been put yet, else
// with the root alone.
func (s *session) put(ctx context.Context, q question, a *answer) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.g.cfg.Timeouts.Round)
	defer cancel()
	ctx, end := s.g.cfg.Events.Begin(ctx, tandem.StageSend)
	defer func() { end(err) }()
	t := tandem.Ticket{Session: s.id, Epoch: q.epoch, Base: q.base, Hash: q.hash, Tree: tandem.Root(s.tokens[q.base-1]),
		SelfDrafts: a.ways}
	if a.tickets == 0 {
		if a.drafted && a.own {
			t.Drafter, t.Tree = a.by, a.tree
		}
		t.Tree = s.promptTree(t.Tree, a)
	}
	t.Trace = s.g.cfg.Events.Carrier(ctx)
	if s.req.Report && a.put.IsZero() {
		a.put = time.Now()
	}
	return s.g.cfg.Verifier.Submit(ctx, t)
}

// refused handles a tree that the verifier refused because it breaks a contract; the session is intact. If a
// drafter put the tree itself, it is to blame; for a merged tree nobody is.
func (s *session) refused(a *answer) {
	for _, d := range a.drafts {
		if a.own {
			d.by.quarantine()
		} else {
			d.by.offend()
		}
	}
	if l := s.prompter(a.ways); l != nil && a.prompts > 0 {
		s.g.cfg.Counters.Add("guesses.refused", 1)
		l.quarantine()
	}
	a.drafted, a.merged, a.own, a.prompts, a.reserve = false, false, false, 0, 0
}

// check returns nil if the verdict may be committed, else why the session must be rebuilt.
func (s *session) check(a *answer) error {
	v := a.verdict
	if v.Kind != tandem.OK {
		s.g.cfg.Counters.Add("verifier."+v.Kind.String(), 1)
		return tandem.Errorf(op, v.Kind, "verifier answered %v: %s", v.Kind, v.Message)
	}
	nodes := s.nodes
	if a.judged() {
		nodes = a.tree.Len() // of prompt nodes none is in a path
	}
	err := wellFormed(v, nodes, s.g.cfg.Vocab.Size())
	if err == nil {
		err = checkLogprobs(v, s.req.Sampling.Logprobs, s.g.cfg.Vocab.Size())
	}
	if err != nil {
		s.g.cfg.Counters.Add("verdicts.garbage", 1)
		for _, d := range a.drafts {
			d.by.quarantine() // it may have to do with the tree
		}
	}
	return err
}

// wellFormed checks a verdict against the contract of tandem.Verdict.
func wellFormed(v tandem.Verdict, maxNodes, vocab int) error {
	if len(v.Tokens) != len(v.Path)+1 {
		return tandem.Errorf(op, tandem.Corrupt, "verdict has %d tokens for a path of %d nodes: want %d", len(v.Tokens), len(v.Path),
			len(v.Path)+1)
	}
	last := int32(0)
	for _, n := range v.Path {
		if n <= last || int(n) >= maxNodes {
			return tandem.Errorf(op, tandem.Corrupt, "verdict accepts node %d after node %d of at most %d", n, last, maxNodes)
		}
		last = n
	}
	for _, t := range v.Tokens {
		if t < 0 || int(t) >= vocab {
			return tandem.Errorf(op, tandem.Corrupt, "verdict has token %d: vocabulary has %d", t, vocab)
		}
	}
	return nil
}

// rebuild opens the session again at both peers from its committed tokens, in a new epoch. It fails
// after too many attempts or too long a time.
func (s *session) rebuild(ctx context.Context, cause error) error {
	s.suspect()
	s.repairs++
	kind := tandem.KindOf(cause)
	switch kind {
	case tandem.Exhausted, tandem.Corrupt:
	case tandem.UnknownSession, tandem.Stale, tandem.Unavailable, tandem.Deadline, tandem.Canceled:
		kind = tandem.Unavailable
	default:
		kind = tandem.Internal
	}
	if waited := time.Since(s.lost); s.repairs > mostRepairs || waited > s.g.cfg.Timeouts.VerifierWait {
		return tandem.Errorf(op, kind, "session %s got no further at %d tokens in %v and %d attempts: %w",
			s.id, len(s.tokens), waited.Round(time.Millisecond), s.repairs, cause)
	}
	if s.repairs > 1 {
		select {
		case <-time.After(min(firstWait<<s.repairs, longWait)):
		case <-ctx.Done():
			return s.ended(ctx)
		}
	}
	s.epoch++
	s.restart(ctx)
	s.stats.Reopened++
	return s.openVerifier(ctx)
}

// restart opens the session at the drafters in its new epoch.
func (s *session) restart(ctx context.Context) {
	for _, l := range s.liaisons {
		l.restart(ctx, s.opening())
	}
}

// suspect notes the first sign that the verifier is lost.
func (s *session) suspect() {
	if s.lost.IsZero() {
		s.lost = time.Now()
	}
}

// ended returns the error of a session whose request's ctx has ended.
func (s *session) ended(ctx context.Context) error {
	return ended(ctx, "in session "+s.id.String())
}

// sinkError returns the error of a request whose sink refused to go on. It counts as Canceled by the client,
// unless the sink's error has another kind.
func sinkError(err error) error {
	kind := tandem.KindOf(err)
	if e := (*tandem.Error)(nil); kind == tandem.Internal && !errors.As(err, &e) {
		kind = tandem.Canceled
	}
	return tandem.Errorf(op, kind, "output not taken: %w", err)
}
