// Package httpapi serves a tandem.Generator over HTTP with OpenAI's API, llama.cpp's endpoints for tokens,
// health for orchestrators, metrics, and a playground page.
//
// A call is decoded and validated as a whole (package oai, then tandem.Request.Validate), then each of its choices is
// one generation in a goroutine of its own. Output goes to the connection from there, one write for each piece: nothing
// is queued between a generation and its client, so a slow client slows its own generation, and a client that takes
// nothing for Config.Stall is given up.
package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// Config is what a server serves. Zero durations and sizes take the default named beside them.
type Config struct {
	Listen      string // "host:port", port 0 lets the system choose, or "unix:///path"
	Generator   tandem.Generator
	Embedder    tandem.Embedder // makes vectors; nil: there are none
	Width       int             // numbers in a vector; 0: the model makes none
	Model       Model
	Build       string        // version of this program
	Defaults    ask.Defaults  // what requests leave out; ask.ToTheEnd as MaxTokens: to the end of the context
	Limits      tandem.Limits // the generator's; Context and Vocab must be set
	Vocab       Vocab
	Chat        conversation.Chat                        // renders chats; nil: the model has no chat template, and chats are refused
	Health      func(context.Context) Health             // whether requests are answered; nil: always
	Loading     func() string                            // why requests cannot be answered yet, "" once they can; nil: they can
	Describe    func(context.Context) public.Description // answers /tandem/v1/describe; nil: not found
	Slots       func() []Slot                            // answers /slots, as Monitor.Slots; nil: there are none
	Drafters    func() []string                          // names that requests may use now; nil: not told
	Metrics     http.Handler                             // serves /metrics; nil: not found
	MetricsKeys *access.Keys                             // the only keys that open /metrics; nil: Keys do
	Models      Models                                   // fetches and removes models for clients; nil: they may not
	PullKeys    *access.Keys                             // the only keys that open Models; nil: Keys do
	Page        http.Handler                             // serves / and /playground/; nil: not found
	Keys        *access.Keys                             // clients' keys; nil: everybody is let in, as one tenant
	Hosts       []string                                 // further names in Host headers, where not all are allowed: see checkHost
	Origins     []string                                 // of pages that may read answers, "*" for all if there are keys: see checkOrigin
	// KeepAttribution leaves in a system block by which Claude Code tells Anthropic who asks, and which changes with every request.
	KeepAttribution bool
	Strict          bool          // refuse fields that would be ignored, and names of models that are not served
	Insecure        bool          // other machines may reach the address although there are no keys
	Grace           time.Duration // for calls in progress when Run's context ends: 2 s
	Ping            time.Duration // a stream that was silent for this long sends a comment: 5 s
	Stall           time.Duration // a client that keeps its output waiting for this long is given up: 30 s
	Body            time.Duration // longest time for a client to send a body: 30 s
	MaxBody         int64         // bytes: 8 MiB
	// connections at once, see limited: 1024, or half of the files that the process may have open
	MaxConns int
	Log      *slog.Logger                    // nil discards
	Texts    *budget.Texts                   // memory for tokenising prompts, shared within the process; nil: its own
	Counters *tandem.Counters                // "http.requests.<status>", "http.panics"; may be nil
	Wrap     func(http.Handler) http.Handler // wraps the handler of all requests, which sets their Pattern; may be nil
}

// Model is what clients are told of the model.
type Model struct {
	Name         string   // the name in answers
	Aliases      []string // further names in the list of models
	Architecture string
	Created      time.Time // when its file was written; zero: when the server started
	File         string    // its name
	Template     string    // the source of its chat template, "" for none
	Bytes        int64     // size of its files
	Parameters   int64
	Stored       string        // the type of its weights, as Q4_K_M
	Trained      int           // positions that it was made for; 0: not known
	Digest       func() string // digest of its files, at least 12 characters; nil: one of its name
}

// Vocab is the target's vocabulary. Safe for concurrent use.
type Vocab interface {
	// Encode splits text into tokens; special adds the begin-of-text token where the model wants one.
	Encode(text string, special bool) []tandem.Token
	// EncodeWithControl also takes control tokens that are written in text as those tokens.
	EncodeWithControl(text string, special bool) []tandem.Token
	// FillIn returns the tokens after which the model writes what belongs between two texts, with files of the same project in front, or
	// the names of the markers for that which the model's file lacks.
	FillIn(before, behind string, files ...tandem.Excerpt) (tokens []tandem.Token, lacking []string)
	// GapEnds returns the written forms of the markers with which a model may end what it has filled in, besides ends of a text.
	GapEnds() []string
	// AtLeast returns a lower bound of the number of tokens in text, without making them.
	AtLeast(text string) int
	AppendBytes(dst []byte, t tandem.Token) []byte // what t prints; nothing for a control token
	// AppendWritten appends what t prints or, if that is nothing, how t is written.
	AppendWritten(dst []byte, t tandem.Token) []byte
	// DecodeWritten returns what tokens print, control tokens by their written form.
	DecodeWritten(tokens []tandem.Token) string
	// Texts returns what each token that follows prev adds to the text; a character comes with its last token.
	Texts(prev ...tandem.Token) func(tandem.Token) string
}

// Health is the state that load balancers ask for.
type Health struct {
	Ready  bool
	Reason string // why it is not ready
}

const (
	op           = "http"
	defaultGrace = 2 * time.Second
	defaultPing  = 5 * time.Second
	defaultStall = 30 * time.Second
	defaultBody  = 30 * time.Second
	defaultConns = 1024
	defaultMax   = 8 << 20

	headerTime = 10 * time.Second
	idleTime   = 2 * time.Minute
	maxHeader  = 64 << 10
)

// withDefaults returns c filled in. Errors: Invalid.
func (c Config) withDefaults() (Config, error) {
	switch {
	case c.Generator == nil || c.Vocab == nil:
		return c, tandem.Errorf(op, tandem.Invalid, "generator or vocabulary is missing: want both")
	case c.Model.Name == "":
		return c, tandem.Errorf(op, tandem.Invalid, "the model has no name: want one")
	case c.Limits.Context < 2 || c.Limits.Vocab < 1:
		return c, tandem.Errorf(op, tandem.Invalid, "context is %d and vocabulary %d: want those of the model", c.Limits.Context,
			c.Limits.Vocab)
	}
	var err error
	if c.Hosts, err = allowedHosts(c.Hosts); err != nil {
		return c, err
	}
	if c.Origins, err = allowedOrigins(c.Origins, c.Keys != nil); err != nil {
		return c, err
	}
	if err = c.Model.check(); err != nil {
		return c, err
	}
	c.Model = c.Model.withDefaults()
	for _, d := range []struct {
		v   *time.Duration
		def time.Duration
	}{{&c.Grace, defaultGrace}, {&c.Ping, defaultPing}, {&c.Stall, defaultStall}, {&c.Body, defaultBody}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if c.MaxBody == 0 {
		c.MaxBody = defaultMax
	}
	if c.MaxConns == 0 {
		c.MaxConns = rpc.Room(defaultConns, 2)
	}
	if c.Limits.PromptBytes == 0 {
		c.Limits.PromptBytes = tandem.DefaultLimits.PromptBytes
	}
	if c.Health == nil {
		c.Health = func(context.Context) Health { return Health{Ready: true} }
	}
	if c.Drafters == nil {
		c.Drafters = func() []string { return nil }
	}
	if c.Loading == nil {
		c.Loading = func() string { return "" }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Texts == nil {
		c.Texts = budget.NewTexts()
	}
	if c.Counters == nil {
		c.Counters = new(tandem.Counters)
	}
	return c, nil
}

// withDefaults returns m filled in.
func (m Model) withDefaults() Model {
	if m.Digest == nil {
		of := sha256.Sum256([]byte(m.Name))
		m.Digest = func() string { return hex.EncodeToString(of[:]) }
	}
	if m.Created.Unix() < 0 { // clients read it into a number without a sign
		m.Created = time.Now()
	}
	return m
}
