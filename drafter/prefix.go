package drafter

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// prefix is what any drafter holds of a session: the committed tokens, as far as the gateway has told
// them.
type prefix struct {
	id       tandem.SessionID
	epoch    tandem.Epoch
	limit    tandem.Position
	maxNodes int
	vocab    int // tokens of the target
	tokens   []tandem.Token
	hash     tandem.PrefixHash // of tokens
}

// newPrefix returns the prefix of a checked opening at a drafter whose own vocabulary has own tokens.
func newPrefix(o tandem.Opening, own int) prefix {
	return prefix{id: o.Session, epoch: o.Epoch, limit: o.Limit, maxNodes: o.MaxNodes, vocab: targetVocab(o, own),
		tokens: slices.Clone(o.Tokens), hash: tandem.EmptyPrefix.Add(o.Tokens...)}
}

// targetVocab returns how many tokens the target has: as many as the drafter, unless the opening says otherwise.
func targetVocab(o tandem.Opening, own int) int {
	if o.Vocab == 0 {
		return own
	}
	return o.Vocab
}

// checkOpening refuses an impossible opening. own is the size of the drafter's own vocabulary.
func checkOpening(o tandem.Opening, own int) error {
	const op = "open"
	switch n := len(o.Tokens); {
	case o.Session == 0:
		return tandem.Errorf(op, tandem.Invalid, "session is 0: want any other number")
	case n == 0:
		return tandem.Errorf(op, tandem.Invalid, "no tokens: want at least one")
	case n > int(o.Limit):
		return tandem.Errorf(op, tandem.Invalid, "%d tokens exceed the limit of %d", n, o.Limit)
	case o.MaxNodes < 1:
		return tandem.Errorf(op, tandem.Invalid, "trees of %d nodes: want at least 1", o.MaxNodes)
	case o.Vocab < 0:
		return tandem.Errorf(op, tandem.Invalid, "a target with a vocabulary of %d: want at least 1, or 0 for the draft's", o.Vocab)
	}
	return checkTokens(op, o.Tokens, targetVocab(o, own))
}

// check refuses a proposal that the session cannot follow; it changes nothing.
func (s *prefix) check(p tandem.Proposal) error {
	const op = "propose"
	if err := checkProposal(p); err != nil {
		return err
	}
	switch held := len(s.tokens); {
	case p.Epoch != s.epoch:
		return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", p.Epoch, s.id, s.epoch)
	case p.Base < 1 || p.From < 0 || int(p.Base)-int(p.From) != len(p.Suffix):
		return tandem.Errorf(op, tandem.Invalid, "base %d from %d with %d tokens: want base = from + tokens, at least 1", p.Base, p.From,
			len(p.Suffix))
	case p.Base > s.limit:
		return tandem.Errorf(op, tandem.Invalid, "base %d exceeds the session's limit of %d", p.Base, s.limit)
	case int(p.From) > held:
		return tandem.Errorf(op, tandem.Stale, "tokens from %d: %d are held", p.From, held)
	}
	if err := checkTokens(op, p.Suffix, s.vocab); err != nil {
		return err
	}
	hash := s.hash
	if int(p.From) < len(s.tokens) {
		hash = tandem.EmptyPrefix.Add(s.tokens[:p.From]...)
	}
	if hash = hash.Add(p.Suffix...); hash != p.Hash {
		return tandem.Errorf(op, tandem.Stale, "hash of %d tokens is %016x here, %016x there", p.Base, uint64(hash), uint64(p.Hash))
	}
	if ahead := s.tokens[p.From:]; len(ahead) > len(p.Suffix) && slices.Equal(ahead[:len(p.Suffix)], p.Suffix) {
		return tandem.Errorf(op, tandem.Stale, "base %d: the session went on to %d", p.Base, len(s.tokens))
	}
	return nil
}

// follow makes the checked proposal's tokens the session's. It returns how many of those held before
// agree with them: state derived from the others is invalid.
func (s *prefix) follow(p tandem.Proposal) (keep int) {
	held := len(s.tokens)
	for keep = int(p.From); keep < min(held, int(p.Base)) && s.tokens[keep] == p.Suffix[keep-int(p.From)]; keep++ {
	}
	s.tokens = append(s.tokens[:p.From], p.Suffix...)
	s.hash = p.Hash
	return keep
}

// maxVerify is the most entries of a Plan's costs that are accepted.
const maxVerify = 1 << 12

// checkProposal refuses a proposal whose bounds, thresholds or plan make no sense.
func checkProposal(p tandem.Proposal) error {
	const op = "propose"
	chance := func(v float64) bool { return v >= 0 && v <= 1 } // not NaN
	switch plan := p.Plan; {
	case p.Bounds.Nodes < 0 || p.Bounds.Depth < 0 || p.Bounds.Width < 0:
		return tandem.Errorf(op, tandem.Invalid, "tree of %d nodes, depth %d, width %d: want 0 or more", p.Bounds.Nodes, p.Bounds.Depth,
			p.Bounds.Width)
	case p.Growth > tandem.GrowPacer:
		return tandem.Errorf(op, tandem.Invalid, "growth %d: want 0 to %d", p.Growth, tandem.GrowPacer)
	case !chance(p.Branch):
		return tandem.Errorf(op, tandem.Invalid, "branch threshold %v: want 0 to 1", p.Branch)
	case !chance(p.Stop):
		return tandem.Errorf(op, tandem.Invalid, "stop threshold %v: want 0 to 1", p.Stop)
	case !chance(p.Temper):
		return tandem.Errorf(op, tandem.Invalid, "temperature %v of the draft: want more than 0 and at most 1, or 0 for 1", p.Temper)
	case len(plan.Verify) > maxVerify:
		return tandem.Errorf(op, tandem.Invalid, "plan with costs of %d widths: at most %d allowed", len(plan.Verify), maxVerify)
	case plan.Round < 0:
		return tandem.Errorf(op, tandem.Invalid, "plan with %v for the rest of a round: want 0 or more", plan.Round)
	case !(plan.Others >= 0 && plan.Others <= math.MaxInt32):
		return tandem.Errorf(op, tandem.Invalid, "plan with %v tokens of other sessions: want 0 or more", plan.Others)
	case len(plan.Accept) > 0 && len(plan.Accept) != tandem.AcceptBins():
		return tandem.Errorf(op, tandem.Invalid, "plan with %d bins of acceptance: want %d or none", len(plan.Accept), tandem.AcceptBins())
	}
	for i, v := range p.Plan.Verify {
		if v < 0 {
			return tandem.Errorf(op, tandem.Invalid, "plan in which %d rows take %v: want 0 or more", i+1, v)
		}
	}
	for i, v := range p.Plan.Accept {
		if !chance(float64(v)) {
			return tandem.Errorf(op, tandem.Invalid, "plan with an acceptance of %v in bin %d: want 0 to 1", v, i)
		}
	}
	return nil
}

func checkTokens(op string, tokens []tandem.Token, vocab int) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= vocab {
			return tandem.Errorf(op, tandem.Invalid, "token %d is %d: vocabulary has %d", i, t, vocab)
		}
	}
	return nil
}

// send puts t into the pool, waiting while that is full: a full pool keeps the verifier busy
// already (Minions' pause). It counts "pool.pauses", and in "pool.paused" the calls that wait now.
func send(ctx context.Context, pool tandem.Pool, events tandem.Events, counters *tandem.Counters, t tandem.Ticket) (err error) {
	ctx, end := events.Begin(ctx, tandem.StageSend)
	t.Trace = events.Carrier(ctx)
	if err = pool.Put(ctx, t); tandem.KindOf(err) != tandem.Exhausted {
		end(err)
		return err
	}
	begun := time.Now()
	counters.Add("pool.pauses", 1)
	counters.Add("pool.paused", 1)
	defer func() {
		counters.Add("pool.paused", -1)
		counters.Add("pool.paused_us", time.Since(begun).Microseconds())
		end(err, tandem.Attr{Key: "paused_us", Int: time.Since(begun).Microseconds()})
	}()
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return tandem.Errorf("propose", tandem.KindOf(ctx.Err()), "waiting for room in the pool: %w", ctx.Err())
		}
		if err = pool.Put(ctx, t); tandem.KindOf(err) != tandem.Exhausted {
			return err
		}
	}
}
