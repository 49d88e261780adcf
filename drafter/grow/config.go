// Package grow is what all kinds of drafts share: sessions over one draft model, the passes that they share, trees that grow from what has
// been explored, and drafting ahead of the verdict. A kind of draft (package tokens, states, prompts, blocks) puts a session's Parts
// together; package drafter chooses the kind.
package grow

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/schedule/owner"
)

// DefaultTreeRows is the TreeRows of a drafter unless told otherwise; engine.PagesFor wants it.
const DefaultTreeRows = 192

// DefaultAhead is the Ahead of a drafter unless told otherwise.
const DefaultAhead = 96

// DefaultWindow is the Window of a drafter unless told otherwise. A larger one brings little but a longer reading. Measured with 320 greedy
// tokens of Qwen2.5-Coder 1.5B behind 7,000 tokens of source text and of documentation: the 0.5B guesses 250 of them with the whole text.
// With the first 64 tokens and the last 2,048 it guesses 244, with the last 1,024 241, 512 236, 256 241. Without the first 64 it guesses
// 218 with the last 512, and 229 with the last 256.
var DefaultWindow = engine.Window{First: engine.PageTokens, Last: 256, Step: 4 * engine.PageTokens}

// Config says what a drafter works with.
type Config struct {
	Model    *engine.Model // the drafter's alone until Shutdown has returned; not closed by it
	Name     string        // Ticket.Drafter
	Pool     tandem.Pool
	Events   tandem.Events
	Counters *tandem.Counters
	TreeRows int // tree nodes of a session that the cache holds at most; default DefaultTreeRows, or fewer if the model is recurrent
	Ahead    int // tree nodes that a session runs at most while the target verifies; default DefaultAhead
	// AheadGain is how many later passes of the draft model a pass ahead must be expected to save, 0 to 1: about the share of the
	// verifier's speed that it costs. 0 is for a drafter with a processor of its own; with 1 nothing is drafted ahead.
	AheadGain float64
	Chunk     int           // prompt tokens of a pass at most; default 128
	Idle      time.Duration // a session without a call for this long is dropped; default 10 minutes
	// PrefixCache bounds how many pages of KV memory keep prefixes of ended sessions, for later sessions of the same tenant. Only pages
	// that no session needs are used. 0: all of those; negative: sessions share nothing.
	PrefixCache int
	// Window is what a draft sees of its texts if it reads tokens alone and has no recurrent layers; other drafts see all. Zero:
	// DefaultWindow. Its Last becomes TreeRows if it is less.
	Window engine.Window
	Pulse  owner.Pulse // shows the drafter's progress; may be nil
	// Resting works on Model while there are no
	// sessions, such as by measuring its passes; may be nil.
	Resting schedule.Resting
	// Features hands out the target's hidden states to a Model that reads them; nil: the model gets zeros. A row that the model reads is
	// the states of layers Taps, in this order.
	Features tandem.FeatureSource
	Taps     []int
	// FeatureWait is how long Open waits while no features come; default 5 s. Then it goes on with zeros.
	FeatureWait time.Duration
	FeatureRows int // features of a prompt that are kept at most until all have come; default 2048
}

func (c Config) withDefaults() (Config, error) {
	if c.Model == nil || c.Pool == nil || c.Counters == nil {
		return c, tandem.Errorf("drafter", tandem.Invalid, "configuration without a model, pool or counters")
	}
	if c.TreeRows == 0 {
		c.TreeRows = DefaultTreeRows
	}
	if rows, bounded := c.Model.HeldRows(); bounded {
		c.TreeRows = min(c.TreeRows, rows)
	}
	if c.Ahead == 0 {
		c.Ahead = DefaultAhead
	}
	if c.Chunk == 0 {
		c.Chunk = 1 << 7
	}
	if c.Window == (engine.Window{}) {
		c.Window = DefaultWindow
	}
	c.Window.Last = max(c.Window.Last, c.TreeRows)
	if c.Idle == 0 {
		c.Idle = 10 * time.Minute
	}
	if c.FeatureWait == 0 {
		c.FeatureWait = 5 * time.Second
	}
	if c.FeatureRows == 0 {
		c.FeatureRows = 1 << 11
	}
	if c.TreeRows < 1 || c.Ahead < 1 || c.Chunk < 1 || c.Idle < 0 || c.FeatureWait < 0 {
		return c, tandem.Errorf("drafter", tandem.Invalid,
			"tree rows %d, ahead %d, chunk %d, idle %v, wait for features %v: want at least "+
				"1, 1, 1, 0 and 0", c.TreeRows, c.Ahead, c.Chunk, c.Idle, c.FeatureWait)
	}
	if !(c.AheadGain >= 0 && c.AheadGain <= 1) {
		return c, tandem.Errorf("drafter", tandem.Invalid, "a pass ahead must save %v later passes: want 0 to 1", c.AheadGain)
	}
	c.Chunk = min(c.Chunk, c.Model.MaxRows())
	return c, nil
}
