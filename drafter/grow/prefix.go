package grow

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Prefix is what any drafter holds of a session: its committed tokens, as far as the gateway has told them. It is not safe for concurrent
// use.
type Prefix struct {
	Session  tandem.SessionID
	Epoch    tandem.Epoch
	Limit    tandem.Position // tokens that the text has at most
	MaxNodes int             // nodes that a tree has at most, its root included
	Vocab    int             // tokens of the target
	Tokens   []tandem.Token  // the prefix's own: callers neither change nor keep them
	hash     tandem.PrefixHash
}

// NewPrefix returns the prefix of a checked opening at a drafter whose own vocabulary has own tokens.
func NewPrefix(o tandem.Opening, own int) Prefix {
	return Prefix{Session: o.Session, Epoch: o.Epoch, Limit: o.Limit, MaxNodes: o.MaxNodes, Vocab: targetVocab(o, own),
		Tokens: slices.Clone(o.Tokens), hash: tandem.EmptyPrefix.Add(o.Tokens...)}
}

// targetVocab returns how many tokens the target has: as many as the drafter, unless the opening says otherwise.
func targetVocab(o tandem.Opening, own int) int {
	if o.Vocab == 0 {
		return own
	}
	return o.Vocab
}

// CheckOpening refuses an impossible opening, with Invalid. own is how many tokens the drafter's own vocabulary has.
func CheckOpening(o tandem.Opening, own int) error {
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

// Check refuses a proposal that the session cannot follow; it changes nothing. Errors: Invalid for a proposal that contradicts itself,
// Stale for one of another epoch or text.
func (x *Prefix) Check(p tandem.Proposal) error {
	const op = "propose"
	if err := checkProposal(p); err != nil {
		return err
	}
	switch held := len(x.Tokens); {
	case p.Epoch != x.Epoch:
		return tandem.Errorf(op, tandem.Stale, "epoch %d of session %v: epoch %d is held", p.Epoch, x.Session, x.Epoch)
	case p.Base < 1 || p.From < 0 || int(p.Base)-int(p.From) != len(p.Suffix):
		return tandem.Errorf(op, tandem.Invalid, "base %d from %d with %d tokens: want base = from + tokens, at least 1", p.Base, p.From,
			len(p.Suffix))
	case p.Base > x.Limit:
		return tandem.Errorf(op, tandem.Invalid, "base %d exceeds the session's limit of %d", p.Base, x.Limit)
	case int(p.From) > held:
		return tandem.Errorf(op, tandem.Stale, "tokens from %d: %d are held", p.From, held)
	}
	if err := checkTokens(op, p.Suffix, x.Vocab); err != nil {
		return err
	}
	hash := x.hash
	if int(p.From) < len(x.Tokens) {
		hash = tandem.EmptyPrefix.Add(x.Tokens[:p.From]...)
	}
	if hash = hash.Add(p.Suffix...); hash != p.Hash {
		return tandem.Errorf(op, tandem.Stale, "hash of %d tokens is %016x here, %016x there", p.Base, uint64(hash), uint64(p.Hash))
	}
	if ahead := x.Tokens[p.From:]; len(ahead) > len(p.Suffix) && slices.Equal(ahead[:len(p.Suffix)], p.Suffix) {
		return tandem.Errorf(op, tandem.Stale, "base %d: the session went on to %d", p.Base, len(x.Tokens))
	}
	return nil
}

// Follow makes the checked proposal's tokens the session's. It returns how many of the tokens held before agree with them: what was
// derived from the others is no longer valid.
func (x *Prefix) Follow(p tandem.Proposal) (keep int) {
	held := len(x.Tokens)
	for keep = int(p.From); keep < min(held, int(p.Base)) && x.Tokens[keep] == p.Suffix[keep-int(p.From)]; keep++ {
	}
	x.Tokens = append(x.Tokens[:p.From], p.Suffix...)
	x.hash = p.Hash
	return keep
}

// MaxVerify is how many entries of Plan.Verify are accepted at most.
const MaxVerify = 1 << 12

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
	case len(plan.Verify) > MaxVerify:
		return tandem.Errorf(op, tandem.Invalid, "plan with costs of %d widths: at most %d allowed", len(plan.Verify), MaxVerify)
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
