package gateway

import (
	"context"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	mostRepairs = 8                      // rebuilds of a session without a commit in between
	mostTickets = 3                      // tickets of one round without an answer, after which the verifier is lost
	firstWait   = 20 * time.Millisecond  // before an operation on a lost verifier is tried again; doubles
	longWait    = time.Second            //
	fullWait    = 5 * time.Second        // for room in the verifier's memory
	quickWait   = 2 * time.Millisecond   // before a ticket that the pool refused is put again; doubles
	slowWait    = 250 * time.Millisecond //
)

// session is one admitted request: the truth about what it has said, and the loop that goes on from
// there. One goroutine, the caller's, owns it; peers reach it through box and draft.task alone.
//
//	open ─▶ ask ─ verdict ─▶ commit ─▶ ask … ─▶ finished
//	         ▲ └─ lost, refused or garbage ─▶ rebuild ┐
//	         └────────── epoch + 1 ◀──────────────────┘
//
// ask: have the drafter propose, else put the root alone; wait for the verdict; put the root alone
// again while none comes. Plain decoding is this loop with a drafter that is off.
//
//  1. tokens only grow, in commit alone; hash is always that of tokens.
//  2. A verdict is looked at only if its epoch, base and hash are those asked for. Loss, repetition and
//     reordering of tickets and verdicts therefore cost time, never tokens.
//  3. Under the exact rule the tokens of a verdict continue the same text whatever tree was asked about,
//     so the root alone may be put at any time in place of a tree that was lost or is late, and
//     whichever of the two is answered first is right.
//  4. Every wait ends by a timer and by the request's context. Every rebuild without a commit since the
//     last is counted, and too many of them, or too long without the verifier, end the request.
//  5. A round commits at least one token; accepted = committed − 1, so Accepted + Rounds = len(tokens) − prompt.
//  6. A committed token reaches the sink once, in order, before the next round begins.
//  7. What breaks a contract costs its own session speed: the drafter is given up for the session, the
//     verifier rebuilt; the next violation in a row brings it nearer to its end (4).
//
// The obvious other way is one scheduler for all sessions, fed with verdicts. It would need a queue per
// sink to keep a slow client from stopping the others, and every wait below as a state; a goroutine per
// request has both for nothing. Nor does the gateway keep the tree to put it again: it would have to
// travel here and back for the rare loss that the root alone repairs in one plain round.
type session struct {
	g       *Gateway
	id      tandem.SessionID
	req     tandem.Request
	sink    tandem.Sink
	prompt  int            // tokens of the prompt
	tokens  []tandem.Token // committed, the prompt first
	hash    tandem.PrefixHash
	limit   int // tokens never grows beyond
	epoch   tandem.Epoch
	box     *mailbox
	draft   drafting
	decoder Decoder
	spans   spans
	stats   tandem.Stats
	finish  tandem.FinishReason // "" while it runs
	repairs int                 // rebuilds since the last commit
	lost    time.Time           // first sign that the verifier is lost; zero since the last commit or Open
	pace    time.Duration       // running mean of the time of a round
	touched bool                // the verifier may hold the session
}

func newSession(g *Gateway, id tandem.SessionID, r tandem.Request, prompt []tandem.Token, sink tandem.Sink) *session {
	s := &session{
		g: g, id: id, req: r, sink: sink, box: newMailbox(),
		prompt: len(prompt),
		tokens: append(make([]tandem.Token, 0, len(prompt)+min(r.MaxTokens, 1024)), prompt...),
		hash:   tandem.EmptyPrefix.Add(prompt...),
		limit:  len(prompt) + min(r.MaxTokens, g.cfg.Limits.Context-len(prompt)),
		spans:  spans{full: r.FullTrace},
	}
	s.draft = drafting{g: g, spans: &s.spans}
	s.decoder = g.cfg.Vocab.NewDecoder(s.tokens[:s.prompt:s.prompt]...)
	return s
}

// run takes the session from its opening to its end.
func (s *session) run(ctx context.Context) error {
	begun := time.Now()
	if s.g.cfg.Drafter != nil && !s.req.Policy.Plain() {
		s.draft.start(ctx, s.opening())
	}
	if err := s.openVerifier(ctx); err != nil {
		return err
	}
	t := s.g.cfg.Timeouts
	s.draft.settle(ctx, min(max(time.Since(begun), t.ProposeMin), t.ProposeMax))
	s.stats.Prefill = time.Since(begun)
	started := tandem.Started{Session: s.id, PromptTokens: append([]tandem.Token(nil), s.tokens...), Request: s.req}
	started.Request.MaxTokens = s.limit - s.prompt
	if s.draft.state == draftReady {
		started.Drafter = s.g.cfg.DrafterName
	}
	if err := s.sink.Started(started); err != nil {
		return sinkError(err)
	}
	begun = time.Now()
	for s.finish == "" {
		if err := s.group(ctx, begun); err != nil {
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
		if s.draft.tick(ctx, s.opening) {
			s.stats.Reopened++
		}
		asked := time.Now()
		a, err := s.round(inGroup, muted, done == 0)
		if err != nil {
			return err
		}
		if a.fault != nil {
			if err := s.rebuild(ctx, a.fault); err != nil {
				return err
			}
			continue
		}
		done++
		s.stats.Decode = time.Since(decoding)
		s.account(a, time.Since(asked))
		if err := s.sink.Delta(a.delta); err != nil {
			return sinkError(err)
		}
	}
	return nil
}

// round asks once and commits the answer, recorded in full if the trace has room for it. A nil error
// with a.fault set means that the session must be rebuilt first.
func (s *session) round(inGroup, muted context.Context, first bool) (a answer, err error) {
	if s.spans.round(first) {
		ctx, end := s.g.cfg.Events.Begin(inGroup, tandem.StageRound, number("round", s.stats.Rounds+1), number("base", len(s.tokens)), number("epoch", int(s.epoch)))
		if a, err = s.ask(ctx, muted); err == nil && a.fault == nil {
			_, endCommit := s.g.cfg.Events.Begin(ctx, tandem.StageCommit)
			s.commit(&a)
			endCommit(nil, number("tokens", len(a.delta.Tokens)))
		}
		end(err, a.attributes(s.g.cfg.DrafterName)...)
		if !a.drafted && s.draft.state != draftOff {
			s.spans.spent += strayTicketSpans
		}
		return a, err
	}
	if a, err = s.ask(muted, muted); err == nil && a.fault == nil {
		s.commit(&a)
	}
	return a, err
}

// commit makes the verdict's tokens part of the truth, as far as budget and end of text let them
// through, and turns them into a.delta. The end token counts as output, as it does in OpenAI's and
// llama.cpp's figures, but prints nothing.
func (s *session) commit(a *answer) {
	vocab := s.g.cfg.Vocab
	tokens := a.verdict.Tokens[:min(len(a.verdict.Tokens), s.limit-len(s.tokens))]
	var out strings.Builder
	for i, t := range tokens {
		switch {
		case !vocab.IsEnd(t):
			out.WriteString(s.decoder.Next(t))
			continue
		case s.req.IgnoreEOS:
			continue
		}
		tokens, s.finish = tokens[:i+1], tandem.FinishStop
		break
	}
	s.tokens = append(s.tokens, tokens...)
	s.hash = s.hash.Add(tokens...)
	if s.finish == "" && len(s.tokens) == s.limit {
		s.finish = tandem.FinishLength
	}
	if s.finish != "" {
		out.WriteString(s.decoder.Flush())
	}
	a.delta = tandem.Delta{Text: out.String(), Tokens: append([]tandem.Token(nil), tokens...), Origins: make([]tandem.Origin, len(tokens))}
	for i := range len(tokens) - 1 {
		a.delta.Origins[i] = tandem.OriginDraft // the last of a round always counts as the target's own
	}
	s.repairs, s.lost = 0, time.Time{}
}

// account counts a committed round that took wall, sink excluded.
func (s *session) account(a answer, wall time.Duration) {
	st := &s.stats
	st.Rounds++
	st.Accepted += len(a.delta.Tokens) - 1
	switch path := len(a.verdict.Path); {
	case a.proposed.Nodes > 1:
		st.Drafted += a.proposed.Nodes - 1
		st.DraftedDepth += a.proposed.Depth
	case path > 0: // the drafter's answer was lost or late, its ticket was not
		st.Drafted += max(a.verdict.Nodes-1, path)
		st.DraftedDepth += path
	default:
		st.PlainRounds++
	}
	busy := max(a.verdict.Busy, 0)
	st.DraftBusy += a.proposed.Busy
	st.VerifyBusy += busy
	st.Coordination = append(st.Coordination, max(wall-a.proposed.Busy-busy, 0))
	if a.tickets > 1 {
		wall = a.proposed.Busy + busy // the rest was a loss, not the pace of rounds
	}
	s.pace = mean(s.pace, wall)
}

// close ends the session at both peers, in the background: the request's caller need not wait, the
// gateway's Shutdown does.
func (s *session) close() {
	s.g.forget(s.id)
	opened := s.draft.cancelTask()
	shut := func(f func(context.Context, tandem.SessionID) error) {
		ctx, cancel := context.WithTimeout(context.Background(), s.g.cfg.Timeouts.Close)
		defer cancel()
		if guard(func() error { return f(ctx, s.id) }) != nil {
			s.g.cfg.Counters.Add("sessions.close_failed", 1) // the peer is gone, or drops it when idle
		}
	}
	if s.touched {
		s.g.crew.run(func() { shut(s.g.cfg.Verifier.Close) })
	}
	if opened != nil {
		s.g.crew.run(func() {
			<-opened // an Open that overtook the Close would hold the session for ever
			shut(s.g.cfg.Drafter.Close)
		})
	}
}

func (s *session) opening() tandem.Opening {
	n := len(s.tokens)
	return tandem.Opening{Session: s.id, Epoch: s.epoch, Tokens: s.tokens[:n:n], Limit: tandem.Position(s.limit),
		MaxNodes: s.maxNodes(), Sampling: s.req.Sampling}
}

func (s *session) maxNodes() int { return max(s.req.Policy.Nodes, 1) }

func (s *session) result() tandem.Result {
	return tandem.Result{Finish: s.finish, PromptTokens: s.prompt, OutputTokens: len(s.tokens) - s.prompt, Stats: s.stats}
}
