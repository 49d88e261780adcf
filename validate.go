package tandem

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
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
	// Strategies that a request may name, in the order in which errors list them; nil: the default. They are only read.
	Strategies []Strategy
}

// DefaultLimits are the limits of a server that sets none.
var DefaultLimits = Limits{PromptBytes: 4 << 20, Context: math.MaxInt32, Nodes: 256, Depth: 64, Width: 64, Vocab: math.MaxInt32,
	Strategies: []Strategy{StrategyPlanner, StrategyFixed, StrategyLLMCad, StrategyMinions}}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	for _, f := range []struct{ v, def *int }{{&l.PromptBytes, &d.PromptBytes}, {&l.Context, &d.Context},
		{&l.Nodes, &d.Nodes}, {&l.Depth, &d.Depth}, {&l.Width, &d.Width}, {&l.Vocab, &d.Vocab}} {
		if *f.v == 0 {
			*f.v = *f.def
		}
	}
	if l.Strategies == nil {
		l.Strategies = d.Strategies
	}
	return l
}

// Validate checks a request of any front end. Its errors name the wrong field as proto/tandem/v1 calls it; see
// Error.Field. The length of a textual prompt in tokens is checked by ValidatePromptTokens once it is known.
func (r Request) Validate(l Limits) error {
	l = l.withDefaults()
	switch {
	case r.Tokens == nil && r.Prompt == "":
		return invalid("prompt", "prompt is empty: want at least one character")
	case len(r.Prompt) > l.PromptBytes:
		return invalid("prompt", "prompt has %d bytes: at most %d allowed", len(r.Prompt), l.PromptBytes)
	case !utf8.ValidString(r.Prompt):
		return invalid("prompt", "prompt is not valid UTF-8 at byte %d", invalidUTF8(r.Prompt))
	case r.MaxTokens < 1:
		return invalid("max_tokens", "max_tokens is %d: want at least 1", r.MaxTokens)
	case r.Repeats != 0 && r.Repeats < MinRepeats:
		return invalid("repeats", "repeats is %d: want 0 for no limit, or at least %d", r.Repeats, MinRepeats)
	case len(r.CacheSalt) > maxTenant:
		return invalid("cache_salt", "cache_salt has %d bytes: want at most %d", len(r.CacheSalt), maxTenant)
	case len(r.Tenant) > maxTenant || !utf8.ValidString(r.Tenant):
		return invalid("tenant", "tenant has %d bytes: want at most %d of valid UTF-8", len(r.Tenant), maxTenant)
	}
	if r.Tokens != nil {
		if err := ValidatePromptTokens(r.Tokens, l); err != nil {
			return err
		}
	}
	if err := r.Sampling.Validate(l); err != nil {
		return err
	}
	if r.IgnoreEOS && r.Sampling.Constraint != nil {
		return invalid("ignore_eos", "ignore_eos is true with a constraint, behind whose texts only the end is allowed: leave one out")
	}
	if err := r.validateStop(); err != nil {
		return err
	}
	if err := r.validateSpeculation(l); err != nil {
		return err
	}
	if r.Bounds == (Bounds{}) {
		return nil
	}
	return r.Bounds.validate(l)
}

const (
	maxDrafters = 16  // that a request may name
	maxStop     = 256 // bytes of a stop sequence
	maxTenant   = 128 // bytes of a tenant's name
	maxBias     = 300 // tokens of a logit_bias
	maxTop      = 20  // tokens of top_logprobs
)

// Bounds of Sampling's fields. A smaller repeat penalty would make logits too large for a float32.
const (
	MaxTemperature = 100
	MinRepeat      = 0.01
	MaxRepeat      = 10
	MaxRepeatLast  = 4096
)

// invalid returns an error that blames a field.
func invalid(field, format string, args ...any) error {
	return &Error{Op: "request", Kind: Invalid, Field: field, Err: fmt.Errorf(format, args...)}
}

// join lists names.
func join[S ~string](names []S) string {
	var b strings.Builder
	for i, n := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(string(n))
	}
	return b.String()
}

func (r Request) validateStop() error {
	if n := len(r.Stop); n > MostStops {
		return invalid("stop", "stop has %d sequences: at most %d allowed", n, MostStops)
	}
	for i, s := range r.Stop {
		switch {
		case s == "" || len(s) > maxStop:
			return invalid("stop", "stop sequence %d has %d bytes: want 1 to %d", i, len(s), maxStop)
		case !utf8.ValidString(s):
			return invalid("stop", "stop sequence %d is not valid UTF-8 at byte %d", i, invalidUTF8(s))
		}
	}
	return nil
}

func (r Request) validateSpeculation(l Limits) error {
	if n := len(l.Strategies) - 1; r.Strategy != "" && !slices.Contains(l.Strategies, r.Strategy) {
		return invalid("strategy", "strategy is %.50q: want %s or %s", r.Strategy, join(l.Strategies[:n]), l.Strategies[n])
	}
	switch r.Vote {
	case "", VoteAuto, VoteNone, VoteMajority, VoteTree:
	default:
		return invalid("vote", "vote is %.50q: want %s, %s, %s or %s", r.Vote, VoteAuto, VoteNone, VoteMajority, VoteTree)
	}
	if n := len(r.Drafters); n > maxDrafters {
		return invalid("drafters", "%d drafters are named: at most %d allowed", n, maxDrafters)
	}
	seen := map[string]bool{}
	for _, name := range r.Drafters {
		if name == "" || len(name) > 200 || seen[name] {
			return invalid("drafters", "drafter %.210q: want a name of 1 to 200 bytes, each once", name)
		}
		seen[name] = true
	}
	if all := TechniqueBranches | TechniqueAdaptive | TechniqueAhead; r.Without&^all != 0 {
		return invalid("without", "techniques %#x: want a set within %#x", uint8(r.Without), uint8(all))
	}
	return nil
}

// ValidatePromptTokens checks a tokenised prompt against the context and the vocabulary.
func ValidatePromptTokens(tokens []Token, l Limits) error {
	l = l.withDefaults()
	switch {
	case len(tokens) == 0:
		return invalid("prompt", "prompt is empty: want at least one token")
	case len(tokens) >= l.Context:
		return invalid("prompt", "prompt has %d tokens: the context holds %d, and at least one must be left to generate", len(tokens),
			l.Context)
	}
	for i, t := range tokens {
		if t < 0 || int(t) >= l.Vocab {
			return invalid("prompt", "prompt token %d is %d: vocabulary has %d", i, t, l.Vocab)
		}
	}
	return nil
}

// Validate checks s alone, against l.Vocab; its errors are like those of Request.Validate.
func (s Sampling) Validate(l Limits) error {
	l = l.withDefaults()
	for _, f := range []struct {
		name      string
		v, lo, hi float64
	}{
		{"temperature", s.Temperature, 0, MaxTemperature}, {"min_p", s.MinP, 0, 1},
		{"accept_epsilon", s.Epsilon, 0, 1}, {"accept_delta", s.Delta, 0, 1},
		{"frequency_penalty", s.FrequencyPenalty, -2, 2}, {"presence_penalty", s.PresencePenalty, -2, 2},
	} {
		if !(f.v >= f.lo && f.v <= f.hi) { // a NaN is neither
			return invalid(f.name, "%s is %v: want %v to %v", f.name, f.v, f.lo, f.hi)
		}
	}
	switch {
	case s.RepeatPenalty != 0 && !(s.RepeatPenalty >= MinRepeat && s.RepeatPenalty <= MaxRepeat):
		return invalid("repeat_penalty", "repeat_penalty is %v: want %v to %v, or 0 for none", s.RepeatPenalty, MinRepeat, MaxRepeat)
	case s.TopK < -1:
		return invalid("top_k", "top_k is %d: want 1 or more, or 0 or -1 for all", s.TopK)
	case !(s.TopP > 0 && s.TopP <= 1):
		return invalid("top_p", "top_p is %v: want more than 0 and at most 1", s.TopP)
	case s.RepeatLast < 0 || s.RepeatLast > MaxRepeatLast:
		return invalid("repeat_last", "repeat_last is %d: want 1 to %d", s.RepeatLast, MaxRepeatLast)
	case s.Accept != "" && s.Accept != AcceptExact && s.Accept != AcceptTypical:
		return invalid("accept", "accept is %.50q: want exact or typical", s.Accept)
	case !s.Typical() && (s.Epsilon != 0 || s.Delta != 0):
		return invalid("accept", "accept_epsilon is %v and accept_delta %v with accept %q: want them with typical alone", s.Epsilon,
			s.Delta, cmp.Or(s.Accept, AcceptExact))
	case s.TopLogprobs < 0 || s.TopLogprobs > maxTop:
		return invalid("top_logprobs", "top_logprobs is %d: want 0 to %d", s.TopLogprobs, maxTop)
	case s.TopLogprobs > 0 && !s.Logprobs:
		return invalid("top_logprobs", "top_logprobs is %d without logprobs: want logprobs as well", s.TopLogprobs)
	case len(s.Bias) > maxBias:
		return invalid("logit_bias", "logit_bias has %d tokens: at most %d allowed", len(s.Bias), maxBias)
	}
	for i, b := range s.Bias {
		switch {
		case b.Token < 0 || int(b.Token) >= l.Vocab:
			return invalid("logit_bias", "logit_bias names token %d: vocabulary has %d", b.Token, l.Vocab)
		case i > 0 && b.Token <= s.Bias[i-1].Token:
			return invalid("logit_bias", "logit_bias names token %d after token %d: want each once, ascending", b.Token, s.Bias[i-1].Token)
		case !(b.Add >= -100 && b.Add <= 100):
			return invalid("logit_bias", "logit_bias of token %d is %v: want -100 to 100", b.Token, b.Add)
		}
	}
	return s.Constraint.validate(l)
}

// validate checks a constraint's form; nil is none.
func (c *Constraint) validate(l Limits) error {
	const digest = 64 // digits of SHA-256
	switch {
	case c == nil:
		return nil
	case c.Spec == "" || len(c.Spec) > MaxConstraint:
		return invalid("constraint", "constraint has %d bytes: want 1 to %d", len(c.Spec), MaxConstraint)
	case len(c.Digest) != digest:
		return invalid("constraint", "constraint has a digest of %d bytes: want %d", len(c.Digest), digest)
	}
	for i, t := range c.Ends {
		if t < 0 || int(t) >= l.Vocab || i > 0 && t <= c.Ends[i-1] {
			return invalid("constraint", "constraint ends with token %d: want tokens of a vocabulary of %d, ascending", t, l.Vocab)
		}
	}
	return nil
}

func (b Bounds) validate(l Limits) error {
	l = l.withDefaults()
	for _, f := range []struct {
		name       string
		v, lo, top int
	}{{"nodes", b.Nodes, 2, l.Nodes}, {"depth", b.Depth, 1, l.Depth}, {"width", b.Width, 1, l.Width}} {
		if f.v < f.lo || f.v > f.top {
			return &Error{Op: "tree", Kind: Invalid, Field: f.name,
				Err: fmt.Errorf("tree %d/%d/%d: %s is %d: want %d to %d", b.Nodes, b.Depth, b.Width, f.name, f.v, f.lo, f.top)}
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
