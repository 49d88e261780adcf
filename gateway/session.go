package gateway

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/admit"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/stop"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

const (
	mostRepairs = 8                      // rebuilds of a session without a commit in between
	mostTickets = 3                      // tickets of one round without an answer, after which the verifier is lost
	firstWait   = 20 * time.Millisecond  // before an operation on a lost verifier is tried again; doubles
	longWait    = time.Second            //
	quickWait   = 2 * time.Millisecond   // before a ticket that the pool refused is put again; doubles
	slowWait    = 250 * time.Millisecond //
	drafterWait = 500 * time.Millisecond // for the verdict on a ticket that a drafter put, at least
	fullPause   = 5 * time.Millisecond   // longest wait while the pool is merely full, which is never for long
	mostVotes   = 16                     // drafters that are asked for one round
	mostSamples = 10000                  // of a session's coordination times; of more rounds an even sample is kept
	mostChoices = 64                     // different ones that are counted by name; the rest is "other"
)

// session is one admitted request: its committed tokens, and the loop that continues them.
// One goroutine owns it (live); peers reach it only through box, opening and call, its client only through out.
//
//	open ─▶ ask ─ verdict ─▶ commit ─▶ ask … ─▶ finished
//	         ▲ └─ lost, refused or garbage ─▶ rebuild ┐ └─ too much is unread ─▶ park
//	         └────────── epoch + 1 ◀──────────────────┴─────── read ◀────────────┘
//
// ask: have drafters propose as the strategy wants it, else put the root alone; wait for the verdict; put
// the root alone again while none comes. Plain decoding is this loop without a drafter.
//
//  1. tokens only grow, in commit alone; hash is always that of tokens.
//  2. A verdict is looked at only if its epoch, base and hash are those asked for. Loss, repetition and
//     reordering of tickets and verdicts therefore cost time, never tokens.
//  3. Under the exact rule the tokens of a verdict continue the same text whatever tree was verified,
//     so the root alone may be put at any time in place of a tree that was lost or is late, and
//     either answer is right.
//  4. Every wait ends by a timer and by the request's context. Every rebuild without a commit since the
//     last is counted, and too many of them, or too long without the verifier, end the request.
//  5. A round commits at least one token; accepted = committed − 1, so Accepted + Rounds = len(tokens) − prompt.
//  6. A committed token is put into out once, in order, before the next round begins.
//  7. All verifiers that hold it have the identity of the first, because another would continue with another text. Until one
//     with that identity is there, the session waits as if its verifier were lost (openVerifier).
//  8. A peer that breaks a contract costs its own session speed: a drafter is given up for the session; for a verifier
//     the session is rebuilt, and further violations in a row end it (4).
//
// The obvious alternative is one scheduler for all sessions, fed with verdicts. It would need a state for every wait
// below, which a goroutine per request has for nothing. Nor does the gateway put a lost tree again: it may not have a copy
// of a single drafter's, and the root alone repairs the rare loss in one plain round.
type session struct {
	g        *Gateway
	id       tandem.SessionID
	req      tandem.Request
	out      *outlet
	place    *admit.Place
	parked   time.Duration  // in all, since its prompt was in
	counted  int            // tokens that the gate counts it with
	ahead    int            // of these, beyond its own, when they were last set
	starved  int            // times that the verifier had no room for it, since the last commit
	prompt   int            // tokens of the prompt
	cached   int            // of the prompt's, found in the verifier's memory; valid once looked
	looked   bool           // a verifier has looked
	told     bool           // the client knows that it has started
	tokens   []tandem.Token // committed, the prompt first
	hash     tandem.PrefixHash
	limit    int // the most that tokens grows to
	epoch    tandem.Epoch
	box      *mailbox
	nodes    int                        // no tree has more
	liaisons []*liaison                 // of the drafters that may draft; the first is asked if one is enough
	listed   uint64                     // the roster's version that liaisons is right for
	wants    map[*roster.Life]bool      // drafters for which it is decided whether the session is opened there
	closing  map[string]<-chan struct{} // by drafter: a Close at its previous life
	who      map[string]*tandem.DrafterStats
	weights  *learn.Weights
	strategy strategy.Strategy
	sampler  *rand.Rand
	decoder  Decoder
	spans    spans
	stats    tandem.Stats
	finish   tandem.FinishReason // "" while it runs
	early    []early             // guesses whose tokens are not all known yet
	repairs  int                 // rebuilds since the last commit
	lost     time.Time           // first sign that the verifier is lost; zero since the last commit or Open
	pace     time.Duration       // running mean of the time of a round
	touched  bool                // the verifier may hold the session
	identity tandem.Identity     // of the verifier that began it, which all that follow must have; valid once held
	held     bool                // a verifier has held it
	begun    time.Time // when it was admitted
	stops    *stop.Sequences
}

func newSession(g *Gateway, id tandem.SessionID, r tandem.Request, prompt []tandem.Token, p *admit.Place, out *outlet) *session {
	s := &session{
		g: g, id: id, req: r, out: out, place: p, box: newMailbox(),
		prompt:  len(prompt),
		tokens:  append(make([]tandem.Token, 0, len(prompt)+min(r.MaxTokens, 1024)), prompt...),
		hash:    tandem.EmptyPrefix.Add(prompt...),
		limit:   len(prompt) + min(r.MaxTokens, g.cfg.Limits.Context-len(prompt)),
		spans:   spans{full: r.FullTrace},
		nodes:   max(r.Bounds.Nodes, 1),
		closing: map[string]<-chan struct{}{}, who: map[string]*tandem.DrafterStats{},
		ahead: firstAhead, counted: first(len(prompt), r.MaxTokens),
		sampler: rand.New(rand.NewPCG(uint64(id), 0)), begun: time.Now(), stops: stop.New(r.Stop),
	}
	s.box.stamps = r.Report
	s.adopt()
	s.decoder = g.cfg.Vocab.NewDecoder(s.tokens[:s.prompt:s.prompt]...)
	return s
}

// run takes the session from its opening to its end.
func (s *session) run(ctx context.Context) error {
	s.muster(ctx)
	if err := s.openVerifier(ctx); err != nil {
		return err
	}
	t := s.g.cfg.Timeouts
	s.settle(ctx, min(max(time.Since(s.begun), t.ProposeMin), t.ProposeMax))
	s.told = true
	s.stats.Prefill = time.Since(s.begun) - s.parked
	s.parked = 0
	started := tandem.Started{Session: s.id, PromptTokens: append([]tandem.Token(nil), s.tokens...), Request: s.req}
	started.Request.MaxTokens = s.limit - s.prompt
	started.Drafter, started.Identity = s.drafters(), s.identity
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
	events, size, before := s.g.cfg.Events, s.spans.group(), s.stats
	inGroup, end := events.Begin(ctx, tandem.StageRounds, number("first_round", before.Rounds+1))
	defer func() {
		end(err, number("rounds", s.stats.Rounds-before.Rounds), number("accepted", s.stats.Accepted-before.Accepted),
			number("drafted", s.stats.Drafted-before.Drafted))
	}()
	muted := events.Mute(inGroup)
	for done := 0; done < size && s.finish == ""; {
		if s.g.cfg.RoundHook != nil {
			s.out.flush() // a hook may wait for the client
			s.hook()
		}
		s.muster(ctx)
		asked := time.Now()
		a, err := s.round(inGroup, muted, done == 0)
		if err != nil {
			return err
		}
		if a.fault != nil {
			if err := s.mend(ctx, &a); err != nil {
				return err
			}
			continue
		}
		done++
		s.stats.Decode = time.Since(decoding) - s.parked
		a.wall = time.Since(asked)
		s.account(&a)
		s.count()
		if err := s.say(ctx, a.delta); err != nil {
			return err
		}
		if s.finish == "" && s.g.gate.Asked(s.place).Err() != nil {
			if err := s.stepAside(ctx); err != nil {
				return err
			}
			if err := s.openVerifier(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// round asks once and commits the answer; it is traced in full if the trace has room. A nil error
// with a.fault set means that the session must be rebuilt first.
func (s *session) round(inGroup, muted context.Context, first bool) (a answer, err error) {
	if s.spans.round(first) {
		ctx, end := s.g.cfg.Events.Begin(inGroup, tandem.StageRound, number("round", s.stats.Rounds+1), number("base", len(s.tokens)),
			number("epoch", int(s.epoch)))
		if a, err = s.ask(ctx, muted); err == nil && a.fault == nil {
			_, endCommit := s.g.cfg.Events.Begin(ctx, tandem.StageCommit)
			s.commit(&a)
			endCommit(nil, number("tokens", len(a.delta.Tokens)))
		}
		end(err, s.attributes(&a)...)
		s.spans.spent += max(len(a.asks)-1, 0)
		if !a.drafted && len(a.asks) > 0 {
			s.spans.spent += strayTicketSpans
		}
		return a, err
	}
	if a, err = s.ask(muted, muted); err == nil && a.fault == nil {
		s.commit(&a)
	}
	return a, err
}

// commit appends the verdict's tokens to the committed ones, as far as budget, end of text and stop sequences
// allow, and turns them into a.delta. The end token counts as output, as it does in OpenAI's and
// llama.cpp's figures, but prints nothing; the same holds for tokens of a stop sequence.
func (s *session) commit(a *answer) {
	v := a.verdict
	tokens := v.Tokens[:min(len(v.Tokens), s.limit-len(s.tokens))]
	n, out := s.write(tokens)
	tokens = tokens[:n]
	s.tokens = append(s.tokens, tokens...)
	s.hash = s.hash.Add(tokens...)
	if s.finish == "" && len(s.tokens) == s.limit {
		s.finish = tandem.FinishLength
	}
	if s.finish != "" {
		out += s.endText()
	}
	a.delta = tandem.Delta{Text: out, Tokens: slices.Clone(tokens), Origins: make([]tandem.Origin, n)}
	if s.req.Sampling.Logprobs {
		a.delta.Logprobs = slices.Clone(v.Logprobs[:min(n, len(v.Logprobs))])
	}
	for i := range len(tokens) - 1 {
		a.delta.Origins[i] = tandem.OriginDraft // the last of a round always counts as the target's own
	}
	a.atEnd = s.finish != ""
	s.repairs, s.starved, s.lost = 0, 0, time.Time{}
	if s.req.Report {
		a.delta.Round = s.report(a)
	}
}

// write turns tokens into text, up to the one that ends it, which sets finish, and returns how many it took.
func (s *session) write(tokens []tandem.Token) (n int, out string) {
	var b strings.Builder
	for i, t := range tokens {
		if s.g.cfg.Vocab.IsEnd(t) {
			if s.req.IgnoreEOS {
				continue
			}
			s.finish = tandem.FinishStop
			return i + 1, b.String()
		}
		piece, stopped := s.stops.Next(s.decoder.Next(t))
		if b.WriteString(piece); stopped {
			s.finish = tandem.FinishStop
			return i + 1, b.String()
		}
	}
	return len(tokens), b.String()
}

// endText returns the text that was held back, without a stop sequence, when the text is over.
func (s *session) endText() string {
	if s.stops.Done() {
		return ""
	}
	out, _ := s.stops.Next(s.decoder.Flush())
	rest, stopped := s.stops.End()
	if stopped {
		s.finish = tandem.FinishStop
	}
	return out + rest
}

// account counts a committed round and lets the strategy learn from it.
func (s *session) account(a *answer) {
	st := &s.stats
	st.Rounds++
	st.Accepted += len(a.delta.Tokens) - 1
	st.AcceptedByDepth = deeper(st.AcceptedByDepth, len(a.delta.Tokens)-1)
	depth := 0
	switch path := len(a.verdict.Path); {
	case a.proposed.Nodes > 1:
		st.Drafted += a.proposed.Nodes - 1
		depth = a.proposed.Depth
	case path > 0: // the drafter's answer was lost or late, its ticket was not
		st.Drafted += max(a.verdict.Nodes-1, path)
		depth = path
	default:
		st.PlainRounds++
	}
	st.DraftedDepth += depth
	st.DraftedByDepth = deeper(st.DraftedByDepth, depth)
	busy := max(a.verdict.Busy, 0)
	st.VerifyBusy += busy
	for _, d := range a.drafts {
		s.tally(a, d)
	}
	s.aheads(a)
	if rest := a.coordination(); len(st.Coordination) < mostSamples {
		st.Coordination = append(st.Coordination, rest)
	} else if i := s.sampler.IntN(st.Rounds); i < mostSamples {
		st.Coordination[i] = rest // algorithm R: every round is as likely to be kept
	}
	choice := a.decision.Choice
	if st.Choices == nil {
		st.Choices = map[string]int{}
	}
	if _, known := st.Choices[choice]; !known && len(st.Choices) >= mostChoices {
		choice = "other"
	}
	st.Choices[choice]++
	if st.Reasons == nil {
		st.Reasons = map[string]int{}
	}
	st.Reasons[a.reason()]++
	planning := time.Now()
	s.g.shared.Verified(a.verdict)
	s.look(a.delta.Tokens)
	s.compare(len(s.tokens) - len(a.delta.Tokens))
	o := a.outcome()
	o.Idle = s.idleWays(a)
	s.strategy.Learn(o)
	s.hearGuesses(a.verdict.Guesses, a.ways, a.verdict.Guessing)
	st.Planning += time.Since(planning)
	wall := a.wall
	if a.tickets > 1 {
		wall = a.proposed.Busy + busy + max(a.verdict.Guessing, 0) // the rest was a loss, not the pace of rounds
	}
	s.pace = learn.Mean(s.pace, wall)
}

// deeper counts a round of that depth in n: n[i] counts the rounds of depth i+1 and more.
func deeper(n []int, depth int) []int {
	for len(n) < depth {
		n = append(n, 0)
	}
	for i := range depth {
		n[i]++
	}
	return n
}

// tally counts what one drafter contributed to a round.
func (s *session) tally(a *answer, d draft) {
	st := s.who[d.by.of.Name]
	if st == nil {
		st = &tandem.DrafterStats{Name: d.by.of.Name}
		s.who[st.Name] = st
	}
	st.Rounds++
	st.Drafted += d.got.Nodes - 1
	switch {
	case d.got.Tree.Len() > 0:
		st.Accepted += spec.Held(d.got.Tree, a.delta.Tokens)
	case a.drafted: // it did not say what it had drafted
		st.Accepted += len(a.delta.Tokens) - 1
	}
	s.stats.DraftBusy += d.got.Busy
}

// aheads counts what was drafted ahead of a round. A reused node counts as much useful arithmetic as a node drafted
// within the round costs, at most what was spent ahead.
func (s *session) aheads(a *answer) {
	hit, tried := false, false
	for _, d := range a.drafts {
		went := d.by.went
		d.by.went = d.ahead
		s.stats.AheadBusy += d.got.Ahead
		tried = tried || went
		hit = hit || went && d.got.Reused > 0
		if fresh := d.got.Nodes - 1 - d.got.Reused; fresh > 0 && d.got.Busy > 0 {
			d.by.node = learn.Mean(d.by.node, d.got.Busy/time.Duration(fresh))
		}
		useful := d.got.Ahead
		if d.by.node > 0 {
			useful = min(useful, time.Duration(d.got.Reused)*d.by.node)
		}
		if d.got.Reused > 0 {
			s.stats.AheadUseful += useful
		}
	}
	if hit {
		s.stats.AheadHits++
	}
	if tried {
		s.stats.AheadTries++
	}
}

// close ends the session at both peers, in the background: the request's caller need not wait, the
// gateway's Shutdown does. The strategy hands on what it has learned.
func (s *session) close() {
	s.g.forget(s.id)
	if s.touched {
		s.g.crew.run(func() { s.g.shut(s.id, s.g.cfg.Verifier.Close) })
	}
	for _, l := range s.liaisons {
		l.retire(s.id)
	}
	s.strategy.HandOn()
	if s.g.cfg.Remember != nil && s.held {
		s.g.cfg.Remember(s.req.Tenant, s.tokens)
	}
}

// feeds reports whether the verifier is to keep the target's states, for a drafter at which the session is opened.
func (s *session) feeds() bool {
	return !s.req.Bounds.Plain() && slices.ContainsFunc(s.liaisons, func(l *liaison) bool {
		return l.of.Features && l.state != liaisonNew && l.state != liaisonOff || l.of.Features && !s.strategy.Several()
	})
}

func (s *session) opening() tandem.Opening {
	n := len(s.tokens)
	return tandem.Opening{Session: s.id, Epoch: s.epoch, Tokens: s.tokens[:n:n], Limit: tandem.Position(s.limit),
		MaxNodes: s.nodes, Prompt: s.prompt, Tenant: s.req.Tenant, Vocab: s.g.cfg.Vocab.Size(), Sampling: s.req.Sampling,
		Features: s.feeds(),
		Identity: s.identity, Fingerprint: s.g.cfg.Fingerprint}
}

func (s *session) result() tandem.Result {
	s.stats.Drafters = nil
	if s.req.Sampling.Typical() {
		s.stats.Accept = string(tandem.AcceptTypical)
	}
	for _, name := range slices.Sorted(maps.Keys(s.who)) {
		st := *s.who[name]
		st.Weight = s.weights.Of(name)
		s.stats.Drafters = append(s.stats.Drafters, st)
	}
	return tandem.Result{Identity: s.identity, Finish: s.finish, Stopped: s.stops.Text(), PromptTokens: s.prompt, CachedTokens: s.cached,
		OutputTokens: len(s.tokens) - s.prompt, Stats: s.stats}
}
