package tandem

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"
)

// Opening asks a drafter or verifier to hold a session.
type Opening struct {
	Session    SessionID
	Epoch      Epoch
	Tokens     []Token  // committed so far, at least one; the receiver must not change them
	Limit      Position // the session never holds more committed tokens than this
	MaxNodes   int      // no tree of the session has more nodes, root included
	Prompt     int      // how many of Tokens are the prompt, the others being output; 0 = all
	Tenant     string   // sessions of one tenant may share memory of equal prefixes; see Request.Tenant
	Owner      uint64   // the process that opens the session; the session ends with it; 0: none
	Vocab      int      // the target's vocabulary size: drafted tokens are below it, whatever the draft model has; 0: the receiver's own
	Sampling   Sampling
	SelfDrafts []string // of the target (Guess.SelfDraft) whose guesses Opened is to carry; unknown ones are ignored
	Features   bool     // hidden states of committed tokens will be asked for (FeatureSource), the prompt's included

	// Progress is called with the receiver's progress when it has begun, and then every ProgressEvery until Open returns, by the goroutine
	// that called Open. May be nil.
	Progress func(Progress)

	Identity    Identity // that the session began with; "": it begins now, with the receiver's
	Fingerprint string   // of the vocabulary of Tokens; "": unknown
	Place       Place    // of the verifier that holds the session, for a drafter
	Translate   bool     // the receiver's own tokens mean other texts; it was told those of Fingerprint
}

// Place says where the verifier is that holds a session. The zero Place is the one verifier of a group that has no other.
type Place struct {
	Queue string // of its tickets in the pool; "": the one that all share
	Addr  string // as rpc.Dial takes it, for a drafter that asks it for features; "": the drafter's own setting says it
}

// MostQueue bounds the name of a queue, in bytes.
const MostQueue = 64

// Validate returns Invalid if p's queue cannot be the name of one: letters, digits, '-' and '_'.
func (p Place) Validate() error {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if len(p.Queue) > MostQueue || strings.ContainsFunc(p.Queue, odd) {
		return Errorf("place", Invalid, "queue %.80q: want at most %d letters, digits, - and _", p.Queue, MostQueue)
	}
	return nil
}

// ProgressEvery is how often Opening.Progress is called.
const ProgressEvery = 500 * time.Millisecond

// Progress tells how far an Open has come, and how far the receiver with all of its work: an Open that waits for others makes progress as
// they do.
type Progress struct {
	Held   int           // how many of Opening.Tokens the receiver holds
	Cached int           // how many of these it held when Open began
	Steps  uint64        // grows whenever the receiver has finished a pass, or a part of one that takes long, for whatever session
	Pass   time.Duration // that its current pass should take; 0: none is running
}

// PassMay returns how long a pass that should take d may take before it counts as hanging; 0 for 0. A negative d is not known; then the
// result is long, because the first pass of a large model may be.
func PassMay(d time.Duration) time.Duration {
	const times, unknown, most = 10, time.Minute, 24 * time.Hour
	if d < 0 {
		d = unknown
	}
	return times * min(d, most)
}

// Opened describes a session that was just opened.
type Opened struct {
	Identity  Identity  // of the receiver; "" for a drafter without a model
	Verifier  string    // which of a fleet's holds it: a name for the gateway alone
	Reused    int       // how many of Opening.Tokens were found in memory that another session of the tenant had filled
	Cached    int       // how many of these when Open began; the others were computed by others meanwhile
	Hindsight Hindsight // from a drafter: on Opening.Tokens
	Guesses   []Guess   // from a verifier: on what follows Opening.Tokens, if asked and known
}

// The target's self-drafts: what its side files let it guess. They are named where drafters are named and on the wire, so no drafter may
// have these names. A new one is a constant here and in SelfDrafts, and the layout of its file in modelfile/side; if it guesses in a way
// that none of the sorts there is, also passes in engine/guess.
const (
	Medusa    = "medusa"    // heads on the target's last hidden state (Cai et al., 2024; Ghidorah)
	PPD       = "ppd"       // rows with trained prompt tokens in the target's pass (PPD)
	Assistant = "assistant" // a draft that reads the target's keys and values, beside it (Gemma 4)
)

// SelfDrafts lists the reserved names.
func SelfDrafts() []string { return []string{Medusa, PPD, Assistant} }

// Recycling names the drafter that drafts from Verdict.Successors of earlier rounds (Luo et al., 2024). It belongs to the gateway, so no
// other drafter may have its name.
const Recycling = "recycling"

// Grammar names the drafter that drafts what the request's constraint forces. It belongs to the gateway, too.
const Grammar = "grammar"

// Guess holds a self-draft's candidates for the tokens after the last committed one.
type Guess struct {
	SelfDraft string
	// Levels[i] holds the likeliest tokens i+1 places after the last committed one, likeliest first, each once, with the self-draft's own
	// log-probabilities (nats). Every level guesses alone: it does not know which tokens come before. At most MostLevels
	// levels of at most MostCandidates tokens.
	Levels [][]TopLogprob
}

// The bounds of a Guess: its levels, and the tokens of each. Validate checks them.
const (
	MostLevels     = 16
	MostCandidates = 16
)

// Validate returns Corrupt if g breaks its bounds or names a token that is not below vocab.
func (g Guess) Validate(vocab int) error {
	const op = "guess"
	if len(g.Levels) > MostLevels {
		return Errorf(op, Corrupt, "%.20q guesses %d levels: want at most %d", g.SelfDraft, len(g.Levels), MostLevels)
	}
	for i, level := range g.Levels {
		if len(level) > MostCandidates {
			return Errorf(op, Corrupt, "%.20q has %d candidates in level %d: want at most %d", g.SelfDraft, len(level), i, MostCandidates)
		}
		seen := map[Token]bool{}
		for _, c := range level {
			if c.Token < 0 || int(c.Token) >= vocab || seen[c.Token] || !(c.LogProb <= 1e-3) {
				return Errorf(op, Corrupt, "%.20q guesses token %d in level %d with log-probability %v: want tokens below %d, each once, "+
					"and at most 0", g.SelfDraft, c.Token, i, c.LogProb, vocab)
			}
			seen[c.Token] = true
		}
	}
	return nil
}

// SelfDraft describes a self-draft that a verifier offers.
type SelfDraft struct {
	Name    string // Medusa …
	Levels  int    // how far it guesses
	Members int    // PPD: rows for each prompt token (its ensemble); embedding number = member·Levels + level
	// Greedy and Sampled correct the probabilities of its levels, at temperature 0 and above, as measured on calibration text
	// (package profile). A slope of 0: not measured.
	Greedy, Sampled [MostLevels]Line
	Time            time.Duration // of a guess, as measured; 0: not measured
}

// Line turns the probability p that a self-draft gives a candidate into the chance that it is right, if those above it are:
// logit(chance) = Slope·logit(p) + Bias (Platt, 1999).
type Line struct {
	Slope float64 `json:"slope"`
	Bias  float64 `json:"bias"`
}

// Bounds of lines.
const (
	MostSlope = 8  // and more than 0
	MostBias  = 16 // and at least the negative of it
)

// Valid reports whether l is within its bounds.
func (l Line) Valid() bool {
	return l.Slope > 0 && l.Slope <= MostSlope && math.Abs(l.Bias) <= MostBias
}

// Valid reports whether a verifier can have w: its name is reserved, and its numbers are within their bounds.
func (w SelfDraft) Valid() bool {
	if !slices.Contains(SelfDrafts(), w.Name) || w.Levels < 1 || w.Levels > MostLevels ||
		w.Members < 0 || w.Members > MostPrompts/w.Levels || w.Time < 0 {
		return false
	}
	for i := range w.Levels {
		if w.Greedy[i] != (Line{}) && !w.Greedy[i].Valid() || w.Sampled[i] != (Line{}) && !w.Sampled[i].Valid() {
			return false
		}
	}
	return true
}

// Hindsight says which of a session's latest tokens a drafter would have guessed, whether or not it was asked to draft there. It
// shows what the drafter is worth on this text.
type Hindsight struct {
	Tokens int    // how many of the latest tokens it covers, 0 to MaxHindsight
	Hits   uint64 // bit i: the token i places before the last was the drafter's first choice
}

// MaxHindsight is the most tokens that a Hindsight covers.
const MaxHindsight = 64

// Validate returns Corrupt if Tokens is out of range or Hits has bits beyond Tokens.
func (h Hindsight) Validate() error {
	if h.Tokens < 0 || h.Tokens > MaxHindsight || h.Tokens < MaxHindsight && h.Hits>>h.Tokens != 0 {
		return Errorf("hindsight", Corrupt, "hits %#x among %d tokens: want 0 to %d tokens, and hits among them", h.Hits, h.Tokens,
			MaxHindsight)
	}
	return nil
}

// Proposal asks a drafter for one tree.
type Proposal struct {
	Session    SessionID
	Epoch      Epoch
	Base       Position   // number of committed tokens; the tree's root is the token at Base-1
	Hash       PrefixHash // of the committed tokens [0, Base)
	From       Position   // Suffix holds the committed tokens [From, Base)
	Suffix     []Token    // From is where the gateway's previous message to this drafter ended
	Bounds     Bounds     // of the tree
	Growth     Growth
	Branch     float64  // GrowPacer: a candidate other than the best opens a branch if its probability is at least this
	Stop       float64  // drafting ends when every branch has fallen below this probability (LLMCad's α); 0 = never
	Temper     float64  // temperature of the draft's probabilities, 0 < Temper ≤ 1; a lower one favours likely tokens; 0 = 1
	Plan       Plan     // decides the tree's width and depth within Bounds; zero = Bounds alone
	Return     bool     // put no ticket: the caller merges this tree with others and puts one itself
	Ahead      bool     // after the answer, go on drafting for the next round
	SelfDrafts []string // of the ticket that the drafter puts
	Successors int      // likewise
	Place      Place    // of the session now
}

// Growth is an order in which a tree grows.
type Growth uint8

const (
	GrowLevels Growth = iota // the likeliest nodes of each level (EAGLE-2, Dovetail)
	GrowBest                 // the likeliest nodes of any level (SpecExec)
	GrowPacer                // the branch furthest below its fair share (LLMCad)
)

// Proposed describes the tree that a drafter put into the pool or, with Proposal.Return, only returns.
type Proposed struct {
	Nodes  int           // root included
	Depth  int           // of the deepest node; the root has depth 0
	Busy   time.Duration // spent in draft arithmetic within this call
	Passes int           // of the draft model within this call
	Reused int           // nodes that were drafted ahead, before this call
	Ahead  time.Duration // draft arithmetic done ahead since the previous answer
	Tree   Tree          // as it went into the pool, with LogProbs
	// Hindsight covers the committed tokens [0, Base).
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
	Session    SessionID
	Epoch      Epoch
	Base       Position   // as in Proposal
	Hash       PrefixHash // as in Proposal
	Drafter    string     // who drafted; "" for the gateway's own tickets without a draft
	Tree       Tree       // node 0 is the committed token at Base-1
	SelfDrafts []string   // whose guesses the verdict is to carry; unknown ones are ignored
	Successors int        // how many of the target's likeliest tokens after each node the verdict is to carry, 0 to MostSuccessors
	Trace      string     // W3C traceparent of the sending stage; "" when not traced
	Queue      string     // of the pool in which it goes (Place.Queue); it does not travel
}

// Ticket returns the ticket that answers p with a drafter's tree. It shares p's and t's memory, and has no Trace.
func (p Proposal) Ticket(drafter string, t Tree) Ticket {
	return Ticket{Session: p.Session, Epoch: p.Epoch, Base: p.Base, Hash: p.Hash, Drafter: drafter, Tree: t, SelfDrafts: p.SelfDrafts,
		Successors: p.Successors, Queue: p.Place.Queue}
}

// Pool carries the tickets of all drafters and gateways to the verifier in one queue. Implementations may lose, repeat and reorder
// tickets.
type Pool interface {
	// Put hands a ticket over; t.Tree is the pool's from then on. Errors: Exhausted (the pool is full:
	// wait and try again), Unavailable.
	Put(ctx context.Context, t Ticket) error
}

// Verifier checks trees with the target model. The rooms use only this interface, whether the verifier is in this process,
// behind gRPC or behind a pool. Safe for concurrent use by many sessions.
type Verifier interface {
	// Open makes the verifier hold a session, prefilled with o.Tokens; a session of that id that it held
	// before is replaced. Errors: Exhausted (no KV memory), Invalid, Unavailable. If o names another identity or vocabulary than
	// the verifier's, it is Unavailable with OpIdentity or OpVocabulary: the session has to wait for the right verifier.
	Open(ctx context.Context, o Opening) (Opened, error)
	// Close forgets the session and frees its memory. Closing an unknown session is no error.
	Close(ctx context.Context, id SessionID) error
	// Submit hands over one ticket and does not wait for its verdict; t.Tree is the verifier's from then on. The ticket
	// may still be lost after Submit returned nil. Errors: Exhausted (as many wait as may: try again), Unavailable; over
	// the wire also UnknownSession (not a session of the caller's) and Invalid or Corrupt (not a valid ticket).
	Submit(ctx context.Context, t Ticket) error
	// Verdicts passes s the verdicts on its owner's sessions until ctx ends or the subscription breaks, and returns why it
	// ended; verdicts may then have been lost. Errors: ctx's, Exhausted (s lags too far behind, or its owner has too many
	// subscriptions), Unavailable, and those by which peers refuse each other (Refusal).
	Verdicts(ctx context.Context, s Subscription) error
	// Describe returns the verifier's current description. Errors: Unavailable.
	Describe(ctx context.Context) (Description, error)
}

// Subscription says whose verdicts are wanted. Its functions are called from one goroutine at a time.
type Subscription struct {
	// Owner is the process that opened the sessions, as in Opening; 0: sessions without an owner, and unknown ones. Over the wire
	// it is always the calling process, and this field is ignored.
	Owner uint64
	// Sessions returns the owner's current sessions, so that a restarted verifier can report those that it does not
	// hold; nil: none. Called whenever the subscription begins or begins again.
	Sessions func() []SessionID
	Began    func()          // called when the subscription has begun, before its first verdict; may be nil
	Deliver  func([]Verdict) // takes verdicts in order, several at once if they came together; if it is slow, s lags
}

// Description tells what a drafter or verifier process is.
type Description struct {
	Name          string // as tickets carry it
	Version       string // of tandem
	Model         string
	File          string // of the model
	Vocab         int    // size of the vocabulary
	Fingerprint   string // of the vocabulary: equal for equal vocabularies
	Context       int    // of the model, tokens
	KVCapacity    int64  // tokens, over all sessions
	Threads       int
	Device        string // "cpu", "cuda"; "" for a process without a model
	ISA           string // of the device's kernels
	PID           int
	SegmentSocket string // unix socket that hands out the process's shared memory; "" for none
	Counters      map[string]int64
	Costs         []Cost   // of passes, measured at the process's start; a drafter's widest reads a prompt: only its last row has logits
	Window        int      // tokens of a text that a drafter reads at most, however long the text is; 0: all
	Drafters      []string // names of the process's drafters, in order
	PageTokens    int      // tokens that share a page of the KV cache
	Protocol      int      // that it speaks; 0 is older than protocol 1
	Identity      Identity
	Lineage       string      // of the model
	SelfDrafts    []SelfDraft // of a verifier: those of its target
	Taps          []int       // a verifier: of the features that it hands out; a drafter: of those that it reads; nil: none
	Instance      uint64      // of the process, another one at each start; 0: it does not announce itself
	Draining      bool        // it finishes what it has and takes nothing new
}

// SelfDraftNames returns the names of d.SelfDrafts.
func (d Description) SelfDraftNames() (names []string) {
	for _, w := range d.SelfDrafts {
		names = append(names, w.Name)
	}
	return names
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
	Batch    int           // number of tickets that shared the pass
	Rows     int           // rows of the pass: those of all trees and pieces of prompts
	Experts  Experts       // that the pass used; nil: a target without experts, or not known
	Busy     time.Duration // the pass and the draws, arithmetic only
	Logprobs []Logprob     // one per token of Tokens if the session's Sampling wants them, else nil
	Guesses  []Guess       // on what follows Tokens, of the self-drafts that the ticket names; a repeated verdict repeats them
	Guessing time.Duration // the arithmetic of Guesses, not in Busy
	// Successors are the tokens that the target's own logits make likeliest after each verified node with a token, accepted or not, the
	// root first: as many for each as the ticket asks for, likeliest first, ties to lower ids. nil: not asked for.
	Successors []Token
	// Kind is OK, or why there is no verdict: UnknownSession, Stale, Invalid, Internal, or Exhausted: the verifier has no KV memory for the
	// session beside older ones. Then the gateway closes it, and opens it again when others need less.
	Kind    Kind
	Message string // for Kind ≠ OK: what was wrong
}

// MostSuccessors bounds Ticket.Successors.
const MostSuccessors = 8

// SuccessorsOf returns those of node i of the verified tree, of a verdict on a ticket that asked for n; nil: there are none. The slice is
// v's.
func (v Verdict) SuccessorsOf(i, n int) []Token {
	if n < 1 || (i+1)*n > len(v.Successors) {
		return nil
	}
	return v.Successors[i*n : (i+1)*n]
}

// Logprob tells how likely a token was.
type Logprob struct {
	LogProb float32      // natural logarithm, at most 0
	Top     []TopLogprob // the likeliest tokens, likeliest first, ties to lower ids
}

// TopLogprob is one of the likeliest tokens at a position.
type TopLogprob struct {
	Token   Token
	LogProb float32
}

// Protocol is the version of the messages between gateway, drafter and verifier. It grows when an older process would be
// misunderstood; messages only gain fields, and names stay. Processes of another protocol are refused; 0 is older than protocol 1.
// Since 2 sessions are opened by Hold, which tells its progress; since 3 by a constraint, which an older verifier would not obey.
const Protocol = 3
