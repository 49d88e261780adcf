// Package tandem is the vocabulary of speculative decoding in tandem: the values that drafter,
// verifier and gateway exchange, the interfaces between them, and their contracts.
//
// One round: the gateway asks a Drafter to Propose a Tree for a session; the drafter puts a Ticket
// with that tree into the Pool; the verifier takes tickets, checks all their trees in one pass of the
// target model and answers each with a Verdict; the gateway commits the verdict's tokens and starts
// the next round. The gateway alone owns the truth: the committed tokens of every session and its
// Epoch. Everything else can be lost and computed again.
//
// This package imports only the standard library, and every other package may import it.
package tandem

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

// Token is an index into the vocabulary of the target model, 0 ≤ t < vocabulary size.
type Token int32

// Position is an absolute index into a session's tokens; 0 is the first prompt token.
type Position int32

// SessionID names one request's decoding state in all three processes. Zero names no session.
type SessionID uint64

// NewSessionID returns a random non-zero id.
func NewSessionID() SessionID {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails: crypto/rand aborts the process instead
		if id := SessionID(binary.LittleEndian.Uint64(b[:])); id != 0 {
			return id
		}
	}
}

func (s SessionID) String() string { return fmt.Sprintf("%016x", uint64(s)) }

// Epoch counts how often a session was opened again from its committed tokens. A ticket or verdict of
// another epoch is stale.
type Epoch uint32

// PrefixHash is the FNV-1a hash (64 bits) of a sequence of tokens, four little-endian bytes each. It
// tells two processes apart that believe in different prefixes; it is no defence against an attacker.
type PrefixHash uint64

// EmptyPrefix is the hash of no tokens.
const EmptyPrefix PrefixHash = 14695981039346656037

// Add returns the hash of the sequence followed by tokens.
func (h PrefixHash) Add(tokens ...Token) PrefixHash {
	for _, t := range tokens {
		for s := 0; s < 32; s += 8 {
			h = (h ^ PrefixHash(byte(uint32(t)>>s))) * 1099511628211
		}
	}
	return h
}

// Sampling says how the next token is drawn from the target's logits: add Bias, apply the penalties for
// what the text holds already, divide by Temperature, keep the TopK likeliest, of those the smallest set with at
// least TopP of the probability, of those what has at least MinP of the likeliest's probability, draw.
type Sampling struct {
	Temperature float64 // 0 = the likeliest token, ties to the lowest id
	TopK        int     // 0 = all
	TopP        float64 // 0 < TopP ≤ 1
	MinP        float64 // 0 ≤ MinP ≤ 1; 0 = all
	Seed        uint64  // the draw at a position depends on (Seed, position) alone

	// RepeatPenalty divides positive logits and multiplies others of the tokens among the last RepeatLast of
	// prompt and output (Keskar et al., 2019; llama.cpp's window). 0 or 1 = none; else more than 0, at most 10.
	RepeatPenalty float64
	RepeatLast    int // 0 = DefaultRepeatLast
	// FrequencyPenalty is subtracted from a token's logit for each time that the output holds it, PresencePenalty
	// once if it holds it at all; −2 to 2, 0 = none (OpenAI's definition; the prompt does not count).
	FrequencyPenalty, PresencePenalty float64
	Bias                              []Bias // ascending by token, each token once

	// Logprobs has verdicts tell the log-probability of each token, and TopLogprobs those of so many likeliest
	// (0 to 20): of the softmax of the target's own logits, before everything above.
	Logprobs    bool
	TopLogprobs int
}

// DefaultRepeatLast is the window of RepeatPenalty where none is given, as in llama.cpp.
const DefaultRepeatLast = 64

// Bias is added to one token's logit, −100 to 100.
type Bias struct {
	Token Token
	Add   float32
}

// Shapes reports whether s changes logits by more than a temperature, so that a draw needs to know the text.
func (s Sampling) Shapes() bool {
	return s.RepeatPenalty != 0 && s.RepeatPenalty != 1 || s.FrequencyPenalty != 0 || s.PresencePenalty != 0 || len(s.Bias) > 0
}

// Opening asks a drafter or verifier to hold a session.
type Opening struct {
	Session  SessionID
	Epoch    Epoch
	Tokens   []Token  // committed so far, at least one; read-only for the receiver
	Limit    Position // the session never holds more committed tokens than this
	MaxNodes int      // no tree of the session has more nodes, root included
	Prompt   int      // so many of Tokens are the prompt, the others output; 0 = all
	Tenant   string   // whose sessions may share memory of equal prefixes with it; see Request.Tenant
	Owner    uint64   // the process that opens the session, which ends with it; 0: nobody
	Sampling Sampling
}

// Opened says how a session was made.
type Opened struct {
	Reused    int       // of Opening.Tokens: found in memory that another session of the tenant had filled
	Hindsight Hindsight // of a drafter, on Opening.Tokens
}

// Hindsight says which of the latest tokens of a session a drafter would have guessed: what it is worth on this text, whether or
// not it was asked to draft there.
type Hindsight struct {
	Tokens int    // known of so many, at most MaxHindsight; 0: of none
	Hits   uint64 // bit i: the token i before the last was the drafter's first choice
}

// MaxHindsight is the most tokens that a Hindsight covers.
const MaxHindsight = 64

// Validate returns Corrupt for what no drafter could know.
func (h Hindsight) Validate() error {
	if h.Tokens < 0 || h.Tokens > MaxHindsight || h.Tokens < MaxHindsight && h.Hits>>h.Tokens != 0 {
		return Errorf("hindsight", Corrupt, "hits %#x among %d tokens: want 0 to %d tokens, and hits among them", h.Hits, h.Tokens, MaxHindsight)
	}
	return nil
}

// Proposal asks a drafter for one tree.
type Proposal struct {
	Session SessionID
	Epoch   Epoch
	Base    Position   // number of committed tokens; the tree's root is the token at Base-1
	Hash    PrefixHash // of the committed tokens [0, Base)
	From    Position   // Suffix holds the committed tokens [From, Base)
	Suffix  []Token    // what the gateway last told this drafter ends at From
	Policy  Policy     // bounds of the tree
	Growth  Growth
	Branch  float64 // GrowPacer: a candidate beyond the best with at least this probability opens a branch
	Stop    float64 // drafting ends when no branch has this probability any more (LLMCad's α); 0 = never
	Temper  float64 // temperature of the draft's probabilities, 0 < Temper ≤ 1, below which its favourites count for more; 0 = 1
	Plan    Plan    // what the tree's width and depth are decided by, within Policy; zero = Policy alone
	Return  bool    // put no ticket: the caller merges this tree with others and puts one itself
	Ahead   bool    // go on drafting after the answer, for what may come next
}

// Cost is the time that a pass of a model takes on this machine.
type Cost struct {
	Rows    int // all with logits
	Context int // committed positions before them
	Time    time.Duration
}

// Growth is an order in which a tree grows.
type Growth uint8

const (
	GrowLevels Growth = iota // the likeliest nodes of each level (EAGLE-2, Dovetail)
	GrowBest                 // the likeliest nodes of any level (SpecExec)
	GrowPacer                // the branch furthest below its fair share (LLMCad)
)

// Plan holds costs and chances. Whoever has drafted a tree keeps those of its likeliest nodes that make
// expected tokens per time the largest (spec.Cut).
type Plan struct {
	Verify []time.Duration // Verify[w-1]: a target pass in which this tree has w rows; nil: no plan
	Round  time.Duration   // the rest of a round, drafting excepted
	Others float64         // tokens that other sessions gain from the same pass
	Accept []float32       // chance of a node by its AcceptBin; nil: as the draft model says
}

// acceptBins is the number of bins of Plan.Accept, each half a nat of cumulative log-probability wide.
const acceptBins = 24

// AcceptBin returns the bin of a node with that cumulative log-probability, 0 for the likeliest.
func AcceptBin(logProb float32) int {
	if !(logProb < 0) {
		return 0
	}
	return int(min(-2*logProb, acceptBins-1))
}

// AcceptBins returns the number of bins of Plan.Accept.
func AcceptBins() int { return acceptBins }

// Proposed describes the tree that a drafter put into the pool, or returns it.
type Proposed struct {
	Nodes  int           // root included
	Depth  int           // of the deepest node; the root has depth 0
	Busy   time.Duration // spent in draft arithmetic within this call
	Passes int           // of the draft model within this call
	Reused int           // nodes that were drafted ahead, before this call
	Ahead  time.Duration // draft arithmetic done ahead since the answer before this one
	Tree   Tree          // as it went into the pool, with LogProbs
	// Hindsight is of the committed tokens [0, Base).
	Hindsight Hindsight
}

// Drafter guesses what the target will say. Safe for concurrent use by many sessions.
type Drafter interface {
	// Open makes the drafter hold a session, prefilled with o.Tokens; a session of that id that it held
	// before is replaced. Errors: Exhausted (no KV memory), Invalid, Unavailable.
	Open(ctx context.Context, o Opening) (Opened, error)
	// Propose drafts a tree below the last committed token and puts a ticket with it into the pool
	// before it returns. Errors: UnknownSession (open it again), Stale (another epoch, or Hash differs
	// from what the drafter holds: open it again), Unavailable. After any error the caller may
	// put a ticket with a root alone.
	Propose(ctx context.Context, p Proposal) (Proposed, error)
	// Close forgets the session and frees its memory. Closing an unknown session is no error.
	Close(ctx context.Context, id SessionID) error
}

// Ticket asks the verifier to check one tree. At most one ticket per (Session, Epoch, Base) counts.
type Ticket struct {
	Session SessionID
	Epoch   Epoch
	Base    Position   // as in Proposal
	Hash    PrefixHash // as in Proposal
	Drafter string     // who drafted; "" for the gateway's own tickets without a draft
	Tree    Tree       // node 0 is the committed token at Base-1
	Trace   string     // W3C traceparent of the sending stage; "" when not traced
}

// Pool takes tickets to the verifier. Implementations may lose, repeat and reorder tickets.
type Pool interface {
	// Put hands a ticket over; t.Tree is the pool's from then on. Errors: Exhausted (the pool holds a
	// full verifier batch: wait and try again), Unavailable.
	Put(ctx context.Context, t Ticket) error
}

// TicketSource is the verifier's end of the pool.
type TicketSource interface {
	// Take waits for one ticket, then returns it with up to max-1 more that are there already.
	// It returns an error only when ctx has ended or the source was closed. Trees are validated
	// (Tree.Validate); a ticket whose tree could not be obtained has Tree.Tokens == nil, and one whose
	// tree was garbage has Tokens that are empty but not nil.
	Take(ctx context.Context, max int) ([]Ticket, error)
}

// Verifier checks trees with the target model. Safe for concurrent use by many sessions.
type Verifier interface {
	// Open makes the verifier hold a session, prefilled with o.Tokens; a session of that id that it held
	// before is replaced. Errors: Exhausted (no KV memory), Invalid, Unavailable.
	Open(ctx context.Context, o Opening) (Opened, error)
	// Close forgets the session and frees its memory. Closing an unknown session is no error.
	Close(ctx context.Context, id SessionID) error
}

// Verdict answers one ticket.
type Verdict struct {
	Session  SessionID
	Epoch    Epoch
	Base     Position
	Hash     PrefixHash
	Path     []int32       // accepted nodes below the root, each a child of the one before
	Tokens   []Token       // the tokens of Path and, last, the target's own next token: len(Path)+1
	Nodes    int           // nodes verified, root included
	Batch    int           // tickets that shared the pass
	Rows     int           // rows of the pass: those of all trees and pieces of prompts
	Busy     time.Duration // the pass and the draws, arithmetic only
	Logprobs []Logprob     // one per token of Tokens if the session's Sampling wants them, else nil
	Kind     Kind          // OK, or why there is no verdict: UnknownSession, Stale, Invalid, Internal
	Message  string        // for Kind ≠ OK: what was wrong
}

// Logprob tells how likely a token was.
type Logprob struct {
	LogProb float32      // natural logarithm, at most 0
	Top     []TopLogprob // the likeliest tokens, likeliest first, ties to lower ids
}

// TopLogprob is a token that might have been.
type TopLogprob struct {
	Token   Token
	LogProb float32
}

// Origin says who guessed a token of the output.
type Origin uint8

const (
	OriginTarget Origin = iota // the target's own draw
	OriginDraft                // drafted and accepted
)

// Request is one generation as a client asks for it. The zero value of no field means "default":
// front ends fill defaults in before Validate.
type Request struct {
	Prompt    string  // tokenised with special tokens added; unused if Tokens is set
	Tokens    []Token // the prompt as ids, taken as they are
	MaxTokens int
	Sampling  Sampling
	Policy    Policy // bounds of the trees to draft; Policy.Plain() for none
	Strategy  Strategy
	Vote      Vote
	Drafters  []string  // those that may draft, by name; nil = all that are alive
	Off       Technique // what a strategy goes without, for comparisons
	Stop      []string  // the output ends before the first of them that it would hold; at most MostStops
	IgnoreEOS bool
	FullTrace bool // record every round as spans of its own, not one in 32
	Report    bool // each Delta of a round carries its Round
	// Tenant names whose request it is; "" is a tenant like any other. Requests of one tenant share memory of equal
	// prefixes, so that one may tell from the time its prompt takes what another has asked; others never do.
	Tenant string
}

// MostStops is the number of stop sequences that a request may have.
const MostStops = 4

// Strategy decides, round by round, who drafts and how much.
type Strategy string

const (
	StrategyPlanner Strategy = "planner" // the best of expected tokens per time, plain decoding included
	StrategyFixed   Strategy = "fixed"   // the trees of Policy; "" means the same
	StrategyLLMCad  Strategy = "llmcad"  // branch pacer, adaptive threshold, drafting ahead (Xu et al., 2023)
	StrategyMinions Strategy = "minions" // weighted majority of several drafters, adaptive length (Wang et al., 2024)
)

// DefaultPolicy returns the trees of a request that names a strategy and no tree: the shape of the fixed strategy; for those
// that choose a shape themselves bounds wider than they want, so that a plan and not the bound decides.
func DefaultPolicy(s Strategy) Policy {
	if s == StrategyFixed || s == "" {
		return Policy{Nodes: 16, Depth: 7, Width: 10}
	}
	return Policy{Nodes: 32, Depth: 8, Width: 8}
}

// Vote says how the drafts of several drafters become one tree.
type Vote string

const (
	VoteAuto     Vote = "auto"     // the strategy's own; "" means the same
	VoteNone     Vote = "none"     // one drafter drafts
	VoteMajority Vote = "majority" // the single path that the weighted majority goes
	VoteTree     Vote = "tree"     // all of them merged, cut to the likeliest nodes
)

// Technique is a set of techniques that can be switched off one by one.
type Technique uint8

const (
	TechniqueBranches Technique = 1 << iota // several branches: without, drafts are chains
	TechniqueAdaptive                       // thresholds, lengths and weights that move
	TechniqueAhead                          // drafting while the target verifies
)

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
}

// Delta is a piece of output. Text is valid UTF-8 and may lag behind Tokens while a character is
// incomplete or a stop sequence may have begun; the last delta of a generation leaves nothing out but a stop
// sequence that ended it.
type Delta struct {
	Text     string
	Tokens   []Token
	Origins  []Origin  // one per token
	Logprobs []Logprob // one per token if the request wants them, else nil
	Round    *Round    // of Request.Report: how Tokens came about
}

// Round tells how one piece of output came about. Times count from the request's admission.
type Round struct {
	Index    int // from 0
	Base     Position
	Choice   string // what the strategy chose, as in Stats.Choices
	Why      string // one line, with the figures that decided
	Tree     Tree   // that was verified; node 0 is the committed token at Base-1
	Drafters []string
	Votes    []uint16 // one per node: bit i is set where the draft of Drafters[i] held the node
	Path     []int32  // accepted nodes, root not counted
	Lanes    []Lane
}

// Lane is a stretch of time that one stage of a round took.
type Lane struct {
	Stage    string // "draft", "ahead", "pool", "verify", "commit"
	By       string // the drafter's name; "" where there is one of the kind
	From, To time.Duration
}

// Sink receives one generation's output in order. An error ends the generation. Called from one
// goroutine at a time; slices are the sink's to keep.
type Sink interface {
	Started(Started) error
	Delta(Delta) error
}

// Stats counts one generation's speculation. Accepted + Rounds = output tokens: each round commits
// the accepted drafts that the budget lets through and one token of the target's own.
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
	Coordination []time.Duration // per round: what was neither draft nor target arithmetic; of more than 10,000 rounds an even sample
	AheadHits    int             // rounds whose tree had been begun ahead
	AheadTries   int             // rounds after which a drafter went on ahead
	AheadBusy    time.Duration   // draft arithmetic ahead of the rounds
	AheadUseful  time.Duration   // the part of it that went into trees
	Drafters     []DrafterStats  // by name
	Choices      map[string]int  // rounds by what the strategy chose, such as "plain" or "go 8/4"
	Reasons      map[string]int  // rounds by why, such as "best", "probe" or "plain: nobody drafts"
	Planning     time.Duration   // spent on votes, weights, lengths and choices

	DraftedByDepth  []int // [i]: rounds whose tree was at least i+1 deep; sums up to DraftedDepth
	AcceptedByDepth []int // [i]: rounds that took a drafted token at depth i+1; sums up to Accepted
}

// DrafterStats counts what one drafter contributed to a generation.
type DrafterStats struct {
	Name     string
	Rounds   int     // in which it drafted
	Drafted  int     // nodes of its own drafts, roots not counted
	Accepted int     // committed tokens that its own draft held
	Weight   float64 // of its vote, at the end
}

// Result ends a generation.
type Result struct {
	Finish       FinishReason
	Stopped      string // the stop sequence that ended it, "" if none did
	PromptTokens int
	CachedTokens int // of the prompt: found in the verifier's memory
	OutputTokens int
	Stats        Stats
}

// Generator answers requests. Safe for concurrent use.
type Generator interface {
	// Generate runs r to its end, calling s on the way. Errors: Invalid, Exhausted (queue full),
	// Canceled, Deadline, Unavailable (no verifier within the time allowed). The tokens that s saw before an error were right.
	Generate(ctx context.Context, r Request, s Sink) (Result, error)
}
