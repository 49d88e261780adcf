package tandem

import (
	"math"
	"unicode/utf8"
)

// Limits bound what a request may ask for. A zero field is the default of DefaultLimits.
type Limits struct {
	PromptBytes int // longest prompt in bytes
	Context     int // positions a session can hold: prompt and output together
	Nodes       int // largest tree, root included
	Depth       int
	Width       int
	Vocab       int // tokens given as ids must be below it
}

// DefaultLimits are the limits of a server that was told nothing.
var DefaultLimits = Limits{PromptBytes: 4 << 20, Context: math.MaxInt32, Nodes: 256, Depth: 64, Width: 64, Vocab: math.MaxInt32}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	for _, f := range []struct{ v, def *int }{{&l.PromptBytes, &d.PromptBytes}, {&l.Context, &d.Context},
		{&l.Nodes, &d.Nodes}, {&l.Depth, &d.Depth}, {&l.Width, &d.Width}, {&l.Vocab, &d.Vocab}} {
		if *f.v == 0 {
			*f.v = *f.def
		}
	}
	return l
}

// Validate is the one check of a request, whichever front end it came through. The length of a
// textual prompt in tokens is checked by ValidatePromptTokens once it is known.
func (r Request) Validate(l Limits) error {
	const op = "request"
	l = l.withDefaults()
	switch {
	case r.Tokens == nil && r.Prompt == "":
		return Errorf(op, Invalid, "prompt is empty: want at least one character")
	case len(r.Prompt) > l.PromptBytes:
		return Errorf(op, Invalid, "prompt has %d bytes: at most %d allowed", len(r.Prompt), l.PromptBytes)
	case !utf8.ValidString(r.Prompt):
		return Errorf(op, Invalid, "prompt is not valid UTF-8 at byte %d", invalidUTF8(r.Prompt))
	case r.MaxTokens < 1:
		return Errorf(op, Invalid, "max_tokens is %d: want at least 1", r.MaxTokens)
	}
	if r.Tokens != nil {
		if err := ValidatePromptTokens(r.Tokens, l); err != nil {
			return err
		}
	}
	if err := r.Sampling.validate(); err != nil {
		return err
	}
	if err := r.validateSpeculation(); err != nil {
		return err
	}
	if r.Policy == (Policy{}) {
		return nil
	}
	return r.Policy.validate(l)
}

// maxDrafters is the number of drafters that a request may name.
const maxDrafters = 16

func (r Request) validateSpeculation() error {
	const op = "request"
	switch r.Strategy {
	case "", StrategyPlanner, StrategyFixed, StrategyLLMCad, StrategyMinions:
	default:
		return Errorf(op, Invalid, "strategy is %q: want %s, %s, %s or %s", r.Strategy, StrategyPlanner, StrategyFixed, StrategyLLMCad, StrategyMinions)
	}
	switch r.Vote {
	case "", VoteAuto, VoteNone, VoteMajority, VoteTree:
	default:
		return Errorf(op, Invalid, "vote is %q: want %s, %s, %s or %s", r.Vote, VoteAuto, VoteNone, VoteMajority, VoteTree)
	}
	if n := len(r.Drafters); n > maxDrafters {
		return Errorf(op, Invalid, "%d drafters are named: at most %d allowed", n, maxDrafters)
	}
	seen := map[string]bool{}
	for _, name := range r.Drafters {
		if name == "" || len(name) > 200 || seen[name] {
			return Errorf(op, Invalid, "drafter %.210q: want a name of 1 to 200 bytes, each once", name)
		}
		seen[name] = true
	}
	if all := TechniqueBranches | TechniqueAdaptive | TechniqueAhead; r.Off&^all != 0 {
		return Errorf(op, Invalid, "techniques %#x are to be off: want a set within %#x", uint8(r.Off), uint8(all))
	}
	return nil
}

// ValidatePromptTokens checks a tokenised prompt against the context and the vocabulary.
func ValidatePromptTokens(tokens []Token, l Limits) error {
	const op = "request"
	l = l.withDefaults()
	switch {
	case len(tokens) == 0:
		return Errorf(op, Invalid, "prompt is empty: want at least one token")
	case len(tokens) >= l.Context:
		return Errorf(op, Invalid, "prompt has %d tokens: the context holds %d, and at least one must be left to generate", len(tokens), l.Context)
	}
	for i, t := range tokens {
		if t < 0 || int(t) >= l.Vocab {
			return Errorf(op, Invalid, "prompt token %d is %d: vocabulary has %d", i, t, l.Vocab)
		}
	}
	return nil
}

func (s Sampling) validate() error {
	const op = "request"
	switch {
	case math.IsNaN(s.Temperature) || s.Temperature < 0 || s.Temperature > 100:
		return Errorf(op, Invalid, "temperature is %v: want 0 to 100", s.Temperature)
	case s.TopK < 0:
		return Errorf(op, Invalid, "top_k is %d: want 0 (all) or more", s.TopK)
	case math.IsNaN(s.TopP) || s.TopP <= 0 || s.TopP > 1:
		return Errorf(op, Invalid, "top_p is %v: want more than 0 and at most 1", s.TopP)
	}
	return nil
}

func (p Policy) validate(l Limits) error {
	const op = "tree"
	l = l.withDefaults()
	for _, f := range []struct {
		name       string
		v, lo, top int
	}{{"nodes", p.Nodes, 2, l.Nodes}, {"depth", p.Depth, 1, l.Depth}, {"width", p.Width, 1, l.Width}} {
		if f.v < f.lo || f.v > f.top {
			return Errorf(op, Invalid, "tree %d/%d/%d: %s is %d: want %d to %d", p.Nodes, p.Depth, p.Width, f.name, f.v, f.lo, f.top)
		}
	}
	return nil
}

func invalidUTF8(s string) int {
	for i, r := range s {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return i
			}
		}
	}
	return len(s)
}
