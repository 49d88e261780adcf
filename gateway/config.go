package gateway

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Vocab is what the gateway needs of the target's tokenizer. Safe for concurrent use.
type Vocab interface {
	// Size returns the number of tokens; ids are below it.
	Size() int
	// Encode splits text into tokens; special adds the begin-of-text token where the model wants one.
	Encode(text string, special bool) []tandem.Token
	// IsEnd reports whether t ends a text.
	IsEnd(t tandem.Token) bool
	// NewDecoder returns a decoder of the tokens that follow prev, which has one user. If written is set, control tokens appear in their
	// written form.
	NewDecoder(written bool, prev ...tandem.Token) Decoder
}

// Decoder turns tokens into text, in whole UTF-8 characters. Not safe for concurrent use.
type Decoder interface {
	// Next returns the text that t completes; it may be empty.
	Next(t tandem.Token) string
	// Flush returns the rest of the text. Incomplete characters are replaced by U+FFFD.
	Flush() string
}

// Timeouts bound every wait of a session. A zero field means the value in DefaultTimeouts; a negative one is refused.
type Timeouts struct {
	// ProposeMin and ProposeMax bound the deadline of one Propose. Within them it is the smaller of two times: ten times the running mean,
	// and the mean + 200 ms + the time of the tokens to be read and drafted. With several drafters the wait is shorter (round.Patience).
	ProposeMin, ProposeMax time.Duration
	// Round is the wait for a verdict before the ticket is put again; it doubles with each repetition.
	Round time.Duration
	// Stall is how long an Open of either model may go without progress (peer.Progress). The prefill itself may take any time.
	Stall time.Duration
	// VerifierWait is how long a session waits for a lost verifier before its request fails.
	VerifierWait time.Duration
	// Close bounds one attempt to close a session at a peer. A peer that does not answer is asked again.
	Close time.Duration
	// Unread is how long a client may leave a piece of its output unread before its request fails.
	Unread time.Duration
}

// DefaultTimeouts are the timeouts of a gateway that sets none.
var DefaultTimeouts = Timeouts{
	ProposeMin: 50 * time.Millisecond, ProposeMax: time.Second,
	Round: 2 * time.Second, Stall: 20 * time.Second, VerifierWait: time.Minute, Close: 2 * time.Second, Unread: 30 * time.Second,
}

// Verifier is what the sessions of a gateway need of a verifier, or of a fleet of them. Its contracts are those of tandem.Verifier.
type Verifier interface {
	Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) // returns when the prompt is in the cache
	Close(ctx context.Context, id tandem.SessionID) error              // frees the session's memory
	Submit(ctx context.Context, t tandem.Ticket) error                 // its verdict comes by Gateway.Deliver
}

// Config is what New needs. Vocab and Verifier are required.
type Config struct {
	Vocab    Vocab
	Verifier Verifier
	Drafters []Enlisted // enlisted from the start; without any, rounds are plain until one is enlisted
	// Recycling lets sessions draft from the likely tokens of earlier verdicts, as the drafter named tandem.Recycling.
	Recycling bool
	Limits    tandem.Limits // zero fields: tandem.DefaultLimits; Vocab: the vocabulary's size
	Sessions  int           // requests that run at once; 0 = 8
	Queue     int           // requests that may wait beyond those; tenants share both (admit.Gate)
	Unread    int           // bytes of output that may wait to be read by a client before its request is parked; 0 = 64 KiB
	Timeouts  Timeouts
	Events    tandem.Events
	Counters  *tandem.Counters // nil: not counted
	ModelName string           // the target's, for telemetry
	// Fingerprint is that of Vocab: a verifier with another one is refused. "": they are not compared.
	Fingerprint string
	Rules       Rules
	Embedding   Embedding
	// Remember is called with the text of each session that has ended, prompt and output. It must neither keep the slice nor block. nil:
	// it is not called.
	Remember func(tenant string, tokens []tandem.Token)
	// Earned is called behind each answer, with what it says of draft models. It must not block. nil: it is not called.
	Earned func(worth.Earned)
	// RoundHook, for tests, may change how a request is drafted before each of its rounds, the first
	// being 1: Bounds (never to more nodes than it began with), Strategy, Vote, Drafters, Without. It is
	// called from the session's goroutine; nil in production.
	RoundHook func(round int, r *tandem.Request)
}

// Embedding is what Embed needs.
type Embedding struct {
	Source  tandem.VectorSource // the verifier; nil: there are no vectors
	Pooling tandem.Pooling      // "": the model's is not known
	Unknown string              // the error's text while Pooling is "": why it is not known, and what to do about that
	Width   int                 // numbers in one of the model's states, and so in a vector
}

// Made returns how many numbers a vector has; 0: no vectors are made.
func (e Embedding) Made() int {
	if e.Pooling == "" {
		return 0
	}
	return e.Width
}

// Enlisted is a drafter that a gateway may ask, under the name that requests know it by.
type Enlisted = roster.Enlisted

// Rules are the constants of the strategies.
type Rules = strategy.Rules

// withDefaults returns c checked and with every default filled in.
func (c Config) withDefaults() (Config, error) {
	const op = "gateway"
	switch {
	case c.Vocab == nil:
		return c, tandem.Errorf(op, tandem.Invalid, "configuration has no vocabulary")
	case c.Verifier == nil:
		return c, tandem.Errorf(op, tandem.Invalid, "configuration has no verifier")
	case c.Sessions < 0:
		return c, tandem.Errorf(op, tandem.Invalid, "sessions is %d: want 1 or more, or 0 for the default", c.Sessions)
	case c.Queue < 0:
		return c, tandem.Errorf(op, tandem.Invalid, "queue is %d: want 0 or more", c.Queue)
	case c.Unread < 0:
		return c, tandem.Errorf(op, tandem.Invalid, "unread output is %d bytes: want 1 or more, or 0 for the default", c.Unread)
	case c.Limits.Context < 0 || c.Limits.Context > math.MaxInt32:
		return c, tandem.Errorf(op, tandem.Invalid, "context is %d: want 1 to %d, or 0 for no limit", c.Limits.Context, math.MaxInt32)
	}
	for i, m := range c.Drafters {
		switch {
		case m.Name == "" || m.Drafter == nil:
			return c, tandem.Errorf(op, tandem.Invalid, "drafter %d, %q: want a name and a drafter", i, m.Name)
		case slices.Contains(tandem.SelfDrafts(), m.Name):
			return c, tandem.Errorf(op, tandem.Invalid, "drafter %d, %q: the name is that of a self-draft: want any but %v",
				i, m.Name, tandem.SelfDrafts())
		case m.Name == tandem.Recycling || m.Name == tandem.Grammar:
			return c, tandem.Errorf(op, tandem.Invalid, "drafter %d, %q: the name is that of the gateway's own drafter: want another",
				i, m.Name)
		case slices.ContainsFunc(c.Drafters[:i], func(o Enlisted) bool { return o.Name == m.Name }):
			return c, tandem.Errorf(op, tandem.Invalid, "drafter %q is there twice: want each name once", m.Name)
		}
	}
	c.Sessions = cmp.Or(c.Sessions, 8)
	c.Unread = cmp.Or(c.Unread, 64<<10)
	c.Limits.Context = cmp.Or(c.Limits.Context, tandem.DefaultLimits.Context)
	c.Limits.Vocab = cmp.Or(c.Limits.Vocab, c.Vocab.Size())
	if c.Limits.Strategies == nil {
		c.Limits.Strategies = strategy.Names()
	}
	if c.Counters == nil {
		c.Counters = new(tandem.Counters)
	}
	var err error
	if c.Rules, err = c.Rules.WithDefaults(); err == nil {
		err = c.Timeouts.fill()
	}
	return c, err
}

// fill sets the default of each field that is zero, and checks the others.
func (t *Timeouts) fill() error {
	const op = "gateway"
	d := DefaultTimeouts
	for _, f := range []struct {
		name string
		v    *time.Duration
		def  time.Duration
	}{{"propose-min", &t.ProposeMin, d.ProposeMin}, {"propose-max", &t.ProposeMax, d.ProposeMax}, {"round", &t.Round, d.Round},
		{"stall", &t.Stall, d.Stall}, {"verifier-wait", &t.VerifierWait, d.VerifierWait}, {"close", &t.Close, d.Close},
		{"unread", &t.Unread, d.Unread}} {
		if *f.v < 0 {
			return tandem.Errorf(op, tandem.Invalid, "%s timeout is %v: want more than 0, or 0 for the default", f.name, *f.v)
		}
		*f.v = cmp.Or(*f.v, f.def)
	}
	if t.ProposeMax < t.ProposeMin {
		return tandem.Errorf(op, tandem.Invalid, "propose timeouts are %v to %v: want the least first", t.ProposeMin, t.ProposeMax)
	}
	return nil
}
