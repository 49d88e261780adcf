package client

import "time"

// Request is one prompt and how to continue it; a nil field takes the gateway's default.
type Request struct {
	Prompt string   // tokenised by the gateway; unused if Tokens is set
	Tokens []uint32 // the prompt as token ids

	MaxTokens   *int     // largest number of output tokens
	Temperature *float64 // 0: always the likeliest token
	TopK        *int     // 0: all
	TopP        *float64
	MinP        *float64 // share of the likeliest token's probability; 0: all
	Seed        *uint64

	RepeatPenalty    *float64 // of the latest RepeatLast tokens; 1: none
	RepeatLast       *int     // 0: 64
	FrequencyPenalty *float64 // per time that the output holds a token, -2 to 2
	PresencePenalty  *float64 // if the output holds a token, -2 to 2
	LogitBias        map[uint32]float32
	Accept           string   // "exact" or "typical", which is lossy; "": the gateway's, usually exact
	AcceptEpsilon    *float64 // threshold of typical; 0: 0.09
	AcceptDelta      *float64 // threshold of typical; 0: 0.3
	Logprobs         bool     // each Delta tells the log-probability of its tokens
	TopLogprobs      int      // and of the TopLogprobs likeliest tokens, at most 20

	Stop      []string // the output ends before the first of these that appears; at most 64
	IgnoreEOS bool
	Report    bool // each Delta tells how its round went
	Progress  bool // the prompt's progress is told before Started, twice a second
	Written   bool // control tokens show in the text, by their written form

	Constraint *Constraint // the outputs that are allowed; nil: all

	CacheSalt string // the request finds nothing of earlier ones but of those with the same salt; "": of all

	NoDraft   bool     // plain decoding: the same text, slower
	Tree      *Tree    // bounds of the strategy's trees; nil: the strategy's own
	Strategy  string   // by its name, such as "planner" (docs/speculation.md); "": the gateway's
	Vote      string   // "auto", "none", "majority" or "tree"
	Drafters  []string // those that may draft, by name; none: the gateway's default, usually all that are alive
	Without   []string // what the strategy goes without: "branches", "adaptive", "ahead"
	FullTrace bool     // record every round in the trace
}

// Constraint says which outputs are allowed; exactly one field is set. In a chat it begins behind the thoughts.
type Constraint struct {
	Schema  string // a JSON Schema
	Object  bool   // any JSON object
	Regex   string // RE2's syntax; the whole output matches
	Choices []string
}

// Tree bounds the trees to draft.
type Tree struct{ Nodes, Depth, Width int }

// Event is one event of a generation: exactly one field is set.
type Event struct {
	Progress *PromptProgress // of a request with Progress
	Started  *Started
	Delta    *Delta
	Finished *Finished
}

// PromptProgress says how far a prompt has been read.
type PromptProgress struct {
	Total     int           // tokens of the prompt
	Cached    int           // of them: found in the verifier's memory
	Processed int           // of them: that the verifier holds, Cached included
	Time      time.Duration // for which the prompt has been read
}

// Started is the first event of a generation but for Progress: the request was admitted with these options, each in the units of Request.
type Started struct {
	Session      string
	PromptTokens []uint32
	Model        string
	Drafter      string // "" for none
	Identity     string // of the verifier: equal requests give equal texts while it stays the same
	MaxTokens    int
	Temperature  float64
	TopK         int
	TopP         float64
	MinP         float64
	Seed         uint64

	RepeatPenalty    float64
	RepeatLast       int
	FrequencyPenalty float64
	PresencePenalty  float64
	LogitBias        map[uint32]float32
	Accept           string  // "exact" or "typical"
	AcceptEpsilon    float64 // of typical; 0: 0.09
	AcceptDelta      float64 // of typical; 0: 0.3

	Tree     Tree // zero: plain decoding
	Strategy string
	Vote     string
	Drafters []string // those that may draft; none: all that are alive
	Without  []string
}

// Delta is a piece of output.
type Delta struct {
	Text     string // valid UTF-8; ends before Tokens do while a character is incomplete or a stop sequence may have begun
	Tokens   []uint32
	Drafted  []bool    // per token: guessed by a drafter, and accepted
	Logprobs []Logprob // per token, if the request wants them
	Round    *Round    // if the request has Report: how Tokens came about
}

// Logprob tells how likely a token was under the target model.
type Logprob struct {
	LogProb float32      // natural logarithm, at most 0
	Top     []TopLogprob // the likeliest tokens, likeliest first
}

// TopLogprob is one of the likeliest tokens at a position.
type TopLogprob struct {
	Token   uint32
	LogProb float32 // natural logarithm, at most 0
}

// Round tells how one piece of output came about. Times count from the request's admission.
type Round struct {
	Index    int    // from 0
	Base     int    // tokens before it, the prompt included
	Choice   string // what the strategy chose
	Why      string // its reason
	Drafters []string
	Nodes    []Node // of the tree that was verified; the first is its root, the last token before the round
	Lanes    []Lane
}

// Node is one guess.
type Node struct {
	Token    uint32
	Parent   int      // -1 for the root
	LogProb  *float32 // of the path down to it as the drafters saw it; nil if they did not say
	Votes    uint32   // bit i: the draft of Drafters[i] held it
	Accepted bool
}

// Lane is the time interval of one stage of a round.
type Lane struct {
	Stage    string // "draft", "ahead", "pool", "verify", "guess" or "commit"
	By       string // the drafter's name; "" if no drafter did it
	From, To time.Duration
}

// Finished is the last event of a generation.
type Finished struct {
	Reason             string // "stop" or "length"
	Stopped            string // the stop sequence that ended it, "" if none did
	RepeatedPiece      int    // tokens of the piece that it repeated until it was ended for that; 0 if it was not
	PromptTokens       int
	CachedPromptTokens int // of PromptTokens: found in the verifier's memory
	OutputTokens       int
	Statistics         Statistics
}

// Statistics counts one generation's speculation: Accepted + Rounds = output tokens. It has the fields of tandem.Stats, so that
// each converts to the other; the compiler checks this.
type Statistics struct {
	Rounds       int             // each commits the accepted drafts and one token of the target's own
	Drafted      int             // nodes drafted, roots not counted
	DraftedDepth int             // sum over rounds of the depth of the tree
	Accepted     int             // drafted tokens that reached the output
	PlainRounds  int             // rounds without a draft
	Reopened     int             // times a session was opened again in drafter or verifier
	Prefill      time.Duration   // from the admission until both models held the prompt
	Decode       time.Duration   // from the first round's start to the last commit
	DraftBusy    time.Duration   // draft arithmetic within rounds
	VerifyBusy   time.Duration   // target arithmetic within rounds
	Plain        time.Duration   // what plain decoding would have taken in place of Decode; 0: not known
	Coordination []time.Duration // per round: time in neither; above 10,000 rounds an even sample

	AheadHits                       int            // rounds whose tree had been begun ahead, while the target verified
	AheadTries                      int            // rounds after which a drafter went on ahead
	AheadBusy                       time.Duration  // draft arithmetic ahead of the rounds
	AheadUseful                     time.Duration  // the part of AheadBusy that went into trees
	Drafters                        []Contribution // by name
	Choices                         map[string]int // rounds by what the strategy chose, such as "plain"
	Reasons                         map[string]int // rounds by the strategy's reason, such as "best" or "plain: nobody drafts"
	Planning                        time.Duration  // spent on votes, weights, lengths and choices
	Accept                          string         // "typical" if drafts were accepted by that rule, which is lossy; "" = exact
	DraftedByDepth, AcceptedByDepth []int          // [i]: rounds whose draft was at least i+1 deep; that accepted a token at depth i+1
}

// Contribution counts what one drafter contributed to a generation.
type Contribution = struct {
	Name     string
	Rounds   int     // in which it drafted
	Drafted  int     // nodes of its own drafts, roots not counted
	Accepted int     // tokens of the output that its own draft held
	Weight   float64 // of its vote, at the end
}
