package tandem

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// Sampling says how the next token is drawn from the target's logits: add Bias, apply the penalties for
// tokens already in the text, divide by Temperature, keep the TopK likeliest tokens, then the smallest set of them with
// at least TopP of the probability, then those with at least MinP of the likeliest one's probability, and draw.
type Sampling struct {
	Temperature float64 // 0 = the likeliest token, ties to the lowest id
	TopK        int     // 0 or -1 = all
	TopP        float64 // 0 < TopP ≤ 1
	MinP        float64 // 0 ≤ MinP ≤ 1; 0 = all
	Seed        uint64  // the noise of a draw depends on (Seed, position, token) alone

	// RepeatPenalty applies to the tokens among the last RepeatLast of prompt and output: it divides positive logits and
	// multiplies others (Keskar et al., 2019; llama.cpp's window). 0 or 1 = none; else MinRepeat to MaxRepeat.
	RepeatPenalty float64
	RepeatLast    int // 0 = DefaultRepeatLast
	// FrequencyPenalty is subtracted from a token's logit for each time that the output holds it, PresencePenalty
	// once if it holds it at all; −2 to 2, 0 = none (OpenAI's definition; the prompt does not count).
	FrequencyPenalty, PresencePenalty float64
	Bias                              []Bias // ascending by token, each token once

	// Constraint says which tokens may be drawn at all; nil: every one. They are picked after bias and penalties, before all else.
	Constraint *Constraint

	// Accept is the rule by which drafted tokens are accepted. Epsilon and Delta are the thresholds of AcceptTypical; 0 = DefaultEpsilon
	// and DefaultDelta.
	Accept         Acceptance
	Epsilon, Delta float64

	// With Logprobs, verdicts carry the log-probability of each token and of the TopLogprobs (0 to 20) likeliest
	// tokens, from the softmax of the target's own logits before all of the above.
	Logprobs    bool
	TopLogprobs int
}

// Constraint says which outputs a request allows: every token that is drawn leaves a text that can become one of them. It starts with the
// output and counts the bytes of its tokens, so its state follows from the committed tokens alone. Immutable.
type Constraint struct {
	Spec   string  // canonical JSON of a grammar.Spec, at most MaxConstraint bytes
	Digest string  // of Spec and of the version of package grammar, in hexadecimal: with another one a verifier refuses the session
	Ends   []Token // tokens that end the output, ascending: allowed exactly where it may end
}

// MaxConstraint bounds Constraint.Spec in bytes.
const MaxConstraint = 256 << 10

// Acceptance is a rule by which drafted tokens are accepted.
type Acceptance string

const (
	// AcceptExact accepts a token if it is the one that the target draws at its place: the text is that of plain decoding. "" means the
	// same.
	AcceptExact Acceptance = "exact"
	// AcceptTypical accepts a token whose probability p(x) by the target is above min(Epsilon, Delta·exp(−H(p))), H the entropy in nats;
	// the token after the accepted ones is the target's likeliest (Medusa, section 3.3.2; PPD, section 4.5.2). It is lossy: the text
	// depends on what was drafted, and so on machines, load and faults. At temperature 0 it is the same as AcceptExact.
	AcceptTypical Acceptance = "typical"
)

// Thresholds of AcceptTypical where none are given: Medusa's. PPD leaves them open.
const (
	DefaultEpsilon = 0.09
	DefaultDelta   = 0.3
)

// Typical reports whether s asks for lossy acceptance.
func (s Sampling) Typical() bool { return s.Accept == AcceptTypical }

// Thresholds returns the thresholds of AcceptTypical in effect.
func (s Sampling) Thresholds() (epsilon, delta float64) {
	return cmp.Or(s.Epsilon, DefaultEpsilon), cmp.Or(s.Delta, DefaultDelta)
}

// DefaultRepeatLast is the window of RepeatPenalty where none is given, as in llama.cpp.
const DefaultRepeatLast = 64

// Bias is added to one token's logit, −100 to 100.
type Bias struct {
	Token Token
	Add   float32
}

// Shapes reports whether s changes logits by more than a temperature, so that a draw may depend on the text.
func (s Sampling) Shapes() bool {
	return s.RepeatPenalty != 0 && s.RepeatPenalty != 1 || s.FrequencyPenalty != 0 || s.PresencePenalty != 0 || len(s.Bias) > 0
}

// Origin says who guessed a token of the output.
type Origin uint8

const (
	OriginTarget Origin = iota // the target's own draw
	OriginDraft                // drafted and accepted
)

// Request is one generation as a client asks for it. No field's zero value means "default":
// front ends fill in defaults before Validate.
type Request struct {
	Prompt    string  // tokenised with special tokens added; unused if Tokens is set
	Tokens    []Token // the prompt as ids, taken as they are
	MaxTokens int
	Sampling  Sampling
	Bounds    Bounds // of the trees to draft; Bounds.Plain() for none
	Strategy  Strategy
	Vote      Vote
	Drafters  []string  // those that may draft, by name; nil = all that are alive
	Without   Technique // parts of the strategy to leave out, for comparisons
	Stop      []string  // the output ends before the first of these that appears; at most MostStops
	IgnoreEOS bool
	Written   bool // control tokens show in the text, by their written form
	FullTrace bool // record spans for every round, not one in 32
	Report    bool // each Delta of a round carries its Round
	Progress  bool // the Sink is told how far the prompt has been read
	// Repeats ends an output with FinishLength as soon as its last so many tokens repeat one piece of at most MostPiece; 0 = never, or
	// MinRepeats and more. It is for requests whose client sets no limit: a model that repeats itself goes on to the end of the context.
	Repeats int
	// Tenant names the owner of the request; "" is a tenant like any other. Requests of one tenant share memory of equal
	// prefixes, and lookup may draft from the earlier ones, so the time that a prompt or an answer takes may reveal what the same tenant
	// has asked before. Tenants never share.
	Tenant string
	// CacheSalt parts a request from the tenant's others: it shares memory of equal prefixes only with those of the same salt, what its
	// drafts learn from earlier texts with none, and nothing of it is kept on a disk. "" = none. A new salt shows what a first answer
	// takes (vLLM's cache_salt).
	CacheSalt string
}

// saltedPrefix begins the names of tenants that Sharing makes up.
const saltedPrefix = "salted:"

// Sharing returns the tenant's name under which the request's memory is shared: one of its own if it has a CacheSalt.
func (r Request) Sharing() string {
	if r.CacheSalt == "" {
		return r.Tenant
	}
	sum := sha256.Sum256([]byte(r.Tenant + "\x00" + r.CacheSalt))
	return saltedPrefix + hex.EncodeToString(sum[:16])
}

// Salted reports whether Sharing has made up a tenant's name: what such a tenant leaves is not worth keeping.
func Salted(tenant string) bool { return strings.HasPrefix(tenant, saltedPrefix) }

// Bounds of Request.Repeats: the longest piece, in tokens, and the fewest tokens that may end an output.
const (
	MostPiece  = 64
	MinRepeats = 2 * MostPiece
)

// MostStops is the number of stop sequences that a request may have.
const MostStops = 64

// Strategy decides, round by round, who drafts and how much.
type Strategy string

const (
	StrategyPlanner Strategy = "planner" // maximises expected tokens per time; plain decoding is one choice
	StrategyFixed   Strategy = "fixed"   // trees as large as Bounds allows; "" means the same
	StrategyLLMCad  Strategy = "llmcad"  // branch pacer, adaptive threshold, drafting ahead (Xu et al., 2023)
	StrategyMinions Strategy = "minions" // weighted majority of several drafters, adaptive length (Wang et al., 2024)
)

// Vote says how the drafts of several drafters become one tree.
type Vote string

const (
	VoteAuto     Vote = "auto"     // the strategy's own; "" means the same
	VoteNone     Vote = "none"     // one drafter drafts
	VoteMajority Vote = "majority" // the single path chosen by weighted majority
	VoteTree     Vote = "tree"     // all of them merged, cut to the likeliest nodes
)

// Technique is a set of techniques: parts of strategies that a request may leave out.
type Technique uint8

const (
	TechniqueBranches Technique = 1 << iota // several branches; without it, drafts are chains
	TechniqueAdaptive                       // thresholds, lengths and weights that move
	TechniqueAhead                          // drafting while the target verifies
)

// Excerpt is a file, or a part of one, that stands in front of a text with a gap.
type Excerpt struct{ Name, Text string }

// FinishReason says why a generation ended.
type FinishReason string

const (
	FinishStop   FinishReason = "stop"   // the model ended the text, or a stop sequence came
	FinishLength FinishReason = "length" // MaxTokens reached, or the context is full
)

// Started tells a client that its request was admitted.
type Started struct {
	Session      SessionID
	PromptTokens []Token
	Request      Request // with the options in effect
	Drafter      string  // "" when none is alive or none was asked for
	Identity     Identity
}

// Delta is a piece of output. Text is valid UTF-8 and may lag behind Tokens while a character is
// incomplete or a stop sequence may have begun; the last delta of a generation completes the text, without the
// stop sequence that ended it.
type Delta struct {
	Text     string
	Tokens   []Token
	Origins  []Origin  // one per token
	Logprobs []Logprob // one per token if the request wants them, else nil
	Round    *Round    // with Request.Report: how Tokens came about
}

// Round tells how one piece of output came about. Times count from the request's admission.
type Round struct {
	Index    int // from 0
	Base     Position
	Choice   string // what the strategy chose, as in Stats.Choices
	Why      string // one line, with the figures that decided
	Tree     Tree   // that was verified; node 0 is the committed token at Base-1
	Drafters []string
	Votes    []uint16 // one per node: bit i is set if the draft of Drafters[i] held the node
	Path     []int32  // accepted nodes, root not counted
	Lanes    []Lane
}

// Lane is the time interval of one stage of a round.
type Lane struct {
	Stage    string // "draft", "ahead", "pool", "verify", "guess", "commit"
	By       string // the drafter's name; "" if no drafter did it
	From, To time.Duration
}

// Sink receives one generation's output in order. An error ends the generation. Called from one
// goroutine at a time; the sink may keep the slices.
type Sink interface {
	// Progress tells how far the prompt of a request with Progress has been read: before Started, about every ProgressEvery. A report
	// that was not taken when there is a newer one is dropped.
	Progress(PromptProgress) error
	Started(Started) error // once, before the first Delta
	Delta(Delta) error     // what a round has committed
}

// PromptProgress says how far a prompt has been read.
type PromptProgress struct {
	Total     int           // tokens of the prompt
	Cached    int           // of them: found in the verifier's memory
	Processed int           // of them: that the verifier holds, Cached included
	Time      time.Duration // for which the prompt has been read
}

// Stats counts one generation's speculation. Accepted + Rounds = output tokens: each round commits
// the accepted drafts that the budget allows and one token of the target's own. client.Statistics repeats the fields,
// because package client does not import this one.
type Stats struct {
	Rounds       int
	Drafted      int             // nodes drafted, roots not counted
	DraftedDepth int             // sum over rounds of the depth of the tree
	Accepted     int             // drafted tokens that reached the output
	PlainRounds  int             // rounds without a draft
	Reopened     int             // times a session was rebuilt in drafter or verifier
	Prefill      time.Duration   // admission to both models filled
	Decode       time.Duration   // first round's start to the last commit
	DraftBusy    time.Duration   // draft arithmetic within rounds
	VerifyBusy   time.Duration   // target arithmetic within rounds
	Plain        time.Duration   // what plain decoding would have taken in place of Decode (spec/worth/gain.go); 0: not known
	Coordination []time.Duration // per round: time in neither draft nor target arithmetic; above 10,000 rounds an even sample
	AheadHits    int             // rounds whose tree had been begun ahead
	AheadTries   int             // rounds after which a drafter went on ahead
	AheadBusy    time.Duration   // draft arithmetic ahead of the rounds
	AheadUseful  time.Duration   // the part of AheadBusy that went into trees
	Drafters     []DrafterStats  // by name
	Choices      map[string]int  // rounds by what the strategy chose, such as "plain" or "go 8/4"
	Reasons      map[string]int  // rounds by the strategy's reason, such as "best", "probe" or "plain: nobody drafts"
	Planning     time.Duration   // spent on votes, weights, lengths and choices

	Accept string // "typical" if drafts were accepted by that rule, which is lossy; "" = exact

	DraftedByDepth  []int // [i]: rounds whose tree was at least i+1 deep; sums up to DraftedDepth
	AcceptedByDepth []int // [i]: rounds that took a drafted token at depth i+1; sums up to Accepted
}

// DrafterStats counts what one drafter contributed to a generation.
type DrafterStats = struct {
	Name     string
	Rounds   int     // in which it drafted
	Drafted  int     // nodes of its own drafts, roots not counted
	Accepted int     // committed tokens that its own draft held
	Weight   float64 // of its vote, at the end
}

// Result ends a generation.
type Result struct {
	Identity     Identity // of the verifier that computed the text; "" if none did
	Finish       FinishReason
	Stopped      string // the stop sequence that ended it, "" if none did
	Repeated     int    // tokens of the piece that it repeated until Request.Repeats ended it; 0 if that did not
	PromptTokens int
	CachedTokens int // prompt tokens that were found in the verifier's memory
	OutputTokens int
	Stats        Stats
}

// Generator answers requests. Safe for concurrent use.
type Generator interface {
	// Generate runs r to its end, calling s on the way. Errors: Invalid, Exhausted (queue full),
	// Canceled, Deadline, Unavailable (no verifier within the time allowed). Tokens that s received before an error are valid.
	Generate(ctx context.Context, r Request, s Sink) (Result, error)
}

// admittedKey is the key of WithAdmitted's function in a context.
type admittedKey struct{}

// WithAdmitted returns a context with which Generate calls f once, from its own goroutine, when the request is admitted: it was not
// refused, and its prompt is read from then on. An error of f ends the generation, as a Sink's does. It is a value of the context because
// few clients want it, and whoever stands between a client and the gateway then need not know of it.
func WithAdmitted(ctx context.Context, f func() error) context.Context {
	return context.WithValue(ctx, admittedKey{}, f)
}

// Admitted calls what WithAdmitted has put into ctx, if anything.
func Admitted(ctx context.Context) error {
	if f, ok := ctx.Value(admittedKey{}).(func() error); ok {
		return f()
	}
	return nil
}

// techniqueNames are the names of single techniques, by bit.
var techniqueNames = [...]string{"branches", "adaptive", "ahead"}

// ParseTechniques returns the set of the named techniques.
func ParseTechniques(names []string) (t Technique, err error) {
next:
	for _, name := range names {
		for bit, known := range techniqueNames {
			if name == known {
				t |= 1 << bit
				continue next
			}
		}
		return 0, invalid("without", "technique %.50q: want %s", name, strings.Join(techniqueNames[:], ", "))
	}
	return t, nil
}

// Names returns the names of the techniques in t; nil for none.
func (t Technique) Names() (names []string) {
	for bit, name := range techniqueNames {
		if t&(1<<bit) != 0 {
			names = append(names, name)
		}
	}
	return names
}
