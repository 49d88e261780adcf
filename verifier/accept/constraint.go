package accept

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/text/grammar"
	"github.com/tandem-llm/tandem/text/token"
)

// Grammars makes constraints of sessions that draw from a vocabulary. Safe for concurrent use.
type Grammars struct {
	vocab  *token.Vocab
	tokens func() *grammar.Vocabulary // made once, in a second or so: see Begin

	compiled grammar.Cache // for sessions that are opened again, and for choices of one prompt
}

// NewGrammars returns what makes constraints for a vocabulary.
func NewGrammars(vocab *token.Vocab) *Grammars {
	return &Grammars{vocab: vocab, tokens: sync.OnceValue(func() *grammar.Vocabulary {
		var all []byte
		return grammar.NewVocabulary(func(t tandem.Token) []byte {
			all = all[:0]
			if vocab.IsEnd(t) {
				return nil
			}
			all, _ = vocab.AppendMarked(all, t)
			return all
		}, vocab.Size(), nil)
	})}
}

// Begin returns the constraint of a session as it is opened, nil for none: its state is that behind the output so far, which may end within
// a character or a word of a schema. Errors: Invalid for a constraint that cannot be compiled or that the output does not obey; Unavailable
// (tandem.OpIdentity) for one of another version of package grammar.
func (g *Grammars) Begin(o tandem.Opening) (*Constraint, error) {
	c := o.Sampling.Constraint
	if c == nil {
		return nil, nil
	}
	var s grammar.Spec
	err := json.Unmarshal([]byte(c.Spec), &s)
	var of *grammar.Grammar
	if err == nil {
		of, err = g.compiled.Compile(o.Tenant, s, grammar.Limits{Bytes: tandem.MaxConstraint})
	}
	if err != nil {
		return nil, tandem.Errorf("open", tandem.Invalid, "constraint: %w", err)
	}
	if digest := of.Digest(); hex.EncodeToString(digest[:]) != c.Digest {
		return nil, tandem.Errorf(tandem.OpIdentity, tandem.Unavailable,
			"session %v has a constraint %.16s, which is %.16x in the verifier: want one version of tandem", o.Session, c.Digest, digest)
	}
	out := &Constraint{tokens: g.tokens, ends: c.Ends, at: place{state: of.Start()}}
	if o.Prompt <= 0 || o.Prompt > len(o.Tokens) {
		return out, nil
	}
	for i, t := range o.Tokens[o.Prompt:] {
		if !g.follow(out, t) {
			return nil, tandem.Errorf("open", tandem.Invalid, "output token %d is %d, which the session's constraint does not allow", i, t)
		}
	}
	return out, nil
}

// follow moves a constraint on by a committed token. It needs no tokens but this one.
func (g *Grammars) follow(c *Constraint, t tandem.Token) (ok bool) {
	if _, end := slices.BinarySearch(c.ends, t); end || c.at.over {
		ok = c.at.over || c.at.state.Done()
		c.at = place{over: true}
		return ok
	}
	bytes, ok := g.vocab.AppendMarked(nil, t)
	if !ok || g.vocab.IsEnd(t) {
		return false
	}
	c.at.state, ok = c.at.state.Next(bytes)
	return ok
}

// Prepare makes what all constraints of the vocabulary draw with, unless it is there. Whoever opens a session calls it while the prompt is
// read, and waits for it before the first draw: a server that never sees a constraint goes without.
func (g *Grammars) Prepare() { g.tokens() }

// Constraint is a session's constraint behind its committed text. Not safe for concurrent use.
type Constraint struct {
	tokens func() *grammar.Vocabulary
	ends   []tandem.Token // ascending
	at     place
	mask   []uint64
}

// place is a place in an output: at its end, or at a node of a tree. It is a value.
type place struct {
	state grammar.State
	over  bool // the output has ended: nobody reads what is drawn behind it
}

// allows reports whether a token may be drawn here. A token that ends the output may be where the output may end, whatever it prints.
func (p place) allows(c *Constraint, t tandem.Token) bool {
	if _, end := slices.BinarySearch(c.ends, t); end || p.over {
		return p.over || p.state.Done()
	}
	return c.tokens().Allows(p.state, t)
}

// next returns the place behind a token that may be drawn here.
func (p place) next(c *Constraint, t tandem.Token) place {
	if _, end := slices.BinarySearch(c.ends, t); end || p.over {
		return place{over: true}
	}
	p.state, _ = c.tokens().Next(p.state, t)
	return p
}

// only returns the token that may be drawn here if there is exactly one.
func (p place) only(c *Constraint) (tandem.Token, bool) {
	switch {
	case p.over:
		return 0, false
	case p.state.Ended() && len(c.ends) == 1:
		return c.ends[0], true
	case p.state.Done():
		return 0, false
	}
	t, one := c.tokens().Single(p.state)
	return t, one && p.allows(c, t)
}

// choice is what may be drawn at a place. It implements sample.Allowed.
type choice struct {
	*Constraint
	place
}

// Allows implements sample.Allowed.
func (a choice) Allows(t tandem.Token) bool { return a.allows(a.Constraint, t) }

// Mask implements sample.Allowed. It is valid until the constraint's next mask.
func (a choice) Mask() []uint64 {
	if a.over {
		return a.tokens().Mask(grammar.State{})
	}
	a.mask = append(a.mask[:0], a.tokens().Mask(a.state)...)
	done := a.state.Done()
	for _, t := range a.ends {
		if a.mask[t/64] &^= 1 << (t % 64); done {
			a.mask[t/64] |= 1 << (t % 64)
		}
	}
	a.Constraint.mask = a.mask
	return a.mask
}

var _ sample.Allowed = choice{}
