package drafter

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// prefix is what any drafter holds of a session: the tokens that the gateway committed, as far as it was
// told.
type prefix struct {
	id       tandem.SessionID
	owner    uint64 // see tandem.Opening
	epoch    tandem.Epoch
	limit    tandem.Position
	maxNodes int
	tokens   []tandem.Token
	hash     tandem.PrefixHash // of tokens
	used     time.Time
}

// newPrefix returns the prefix of a checked opening.
func newPrefix(o tandem.Opening) prefix {
	return prefix{id: o.Session, owner: o.Owner, epoch: o.Epoch, limit: o.Limit, maxNodes: o.MaxNodes,
		tokens: slices.Clone(o.Tokens), hash: tandem.EmptyPrefix.Add(o.Tokens...), used: time.Now()}
}

// checkOpening refuses an opening that no drafter could follow.
func checkOpening(o tandem.Opening, vocab int) error {
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
	}
	return checkTokens(op, o.Tokens, vocab)
}

// replace refuses an opening that is older than what is held.
func (s *prefix) replace(o tandem.Opening) error {
	if o.Epoch < s.epoch {
		return tandem.Errorf("open", tandem.Stale, "epoch %d of session %v: epoch %d is held", o.Epoch, o.Session, s.epoch)
	}
	return nil
}

// check refuses a proposal that the session cannot follow; it changes nothing.
func (s *prefix) check(p tandem.Proposal, vocab int) error {
	const op = "propose"
	if err := checkShape(p); err != nil {
		return err
	}
	switch held := len(s.tokens); {
	case p.Epoch != s.epoch:
		return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", p.Epoch, s.id, s.epoch)
	case p.Base < 1 || p.From < 0 || int(p.Base)-int(p.From) != len(p.Suffix):
		return tandem.Errorf(op, tandem.Invalid, "base %d from %d with %d tokens: want base = from + tokens, at least 1", p.Base, p.From, len(p.Suffix))
	case p.Base > s.limit:
		return tandem.Errorf(op, tandem.Invalid, "base %d exceeds the session's limit of %d", p.Base, s.limit)
	case int(p.From) > held:
		return tandem.Errorf(op, tandem.Stale, "tokens from %d: %d are held", p.From, held)
	}
	if err := checkTokens(op, p.Suffix, vocab); err != nil {
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
// agree with them: what was made of the others is wrong.
func (s *prefix) follow(p tandem.Proposal) (keep int) {
	held := len(s.tokens)
	for keep = int(p.From); keep < min(held, int(p.Base)) && s.tokens[keep] == p.Suffix[keep-int(p.From)]; keep++ {
	}
	s.tokens = append(s.tokens[:p.From], p.Suffix...)
	s.hash = p.Hash
	s.used = time.Now()
	return keep
}

func checkTokens(op string, tokens []tandem.Token, vocab int) error {
	for i, t := range tokens {
		if t < 0 || int(t) >= vocab {
			return tandem.Errorf(op, tandem.Invalid, "token %d is %d: vocabulary has %d", i, t, vocab)
		}
	}
	return nil
}

// send puts t into the pool, waiting while that is full: the pool holds what keeps the verifier busy
// already (Minions' pause).
func send(ctx context.Context, pool tandem.Pool, events tandem.Events, t tandem.Ticket) (err error) {
	ctx, end := events.Begin(ctx, tandem.StageSend)
	defer func() { end(err) }()
	t.Trace = events.Carrier(ctx)
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		err = pool.Put(ctx, t)
		if tandem.KindOf(err) != tandem.Exhausted {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return tandem.Errorf("propose", tandem.KindOf(ctx.Err()), "waiting for room in the pool: %w", ctx.Err())
		}
	}
}
