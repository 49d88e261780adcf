// Package states writes down what a target computes over texts, as data for training drafts of exactly the file that is served: token
// ids, hidden states after chosen layers, and the likeliest next tokens. docs/states.md describes the files.
//
// Texts are taken in the order of their hashes, so a run that is bounded still sees some of every folder. A row's result does not depend on
// what else is in a pass, and a text's answer depends on its own seed. So a run that was interrupted goes on behind its last shard, and
// writes the bytes that it would have written without the interruption.
package states

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/text/token"
)

const (
	op        = "states"
	passRows  = 64       // rows of a pass
	shardSize = 32 << 20 // bytes of arrays after which a shard ends, between two texts
)

// Config says what to run and what to keep of it.
type Config struct {
	Model   string   // path of the target's GGUF file
	Texts   []string // files and folders of plain text, which is cut into pieces of Context tokens
	Prompts []string // files of JSON lines: see Chat
	// MakePrompts: Texts are not run themselves. The model answers instructions made of them (commented functions, headings, manual pages).
	MakePrompts bool
	Raw         bool   // prompts are texts that the target continues, without its chat template
	Out         string // folder of shards

	Taps    []int // hidden states to keep, as in engine.Options
	Top     int   // likeliest tokens to keep of each position
	Context int   // tokens of a text at most, its answer included; 0: the model's context

	Sessions     int // texts that are run at once
	AnswerTokens int // of an answer, at most
	Sampling     tandem.Sampling

	MaxTokens int   // of all texts together; 0: no bound
	MaxSize   int64 // bytes of all shards together; 0: no bound
	ShardSize int64 // bytes of arrays after which a shard ends; 0: the default

	Vocab    *token.Vocab // the model's, with the ends of turns that its chat template writes
	Render   Renderer     // nil: there are no chats
	Template string       // names what Render does; a run that goes on with another name is refused
	Open     Opener
	Progress func(Progress) // called by one goroutine at a time; nil: nothing is called
}

// Opener opens the model with options o, to which it adds the device. Run calls closed, which frees both.
type Opener func(o engine.Options) (m *engine.Model, closed func(), err error)

// Renderer makes the tokens of a conversation: all of it if the last message is the assistant's, else the prompt for its answer. prompt is
// the number of tokens before the answer.
type Renderer func(ctx context.Context, c Chat) (tokens []tandem.Token, prompt int, err error)

// Progress is how far a run is.
type Progress struct {
	Tokens, Before int     // tokens so far, and those of them that an earlier run has written
	Share          float64 // of the work that is done, 0 to 1
}

// Validate returns Invalid for settings that cannot be run, in the words of the command line.
func (c *Config) Validate() error {
	bad := func(format string, args ...any) error { return tandem.Errorf("", tandem.Invalid, format, args...) }
	s := c.Sampling
	switch {
	case len(c.Texts)+len(c.Prompts) == 0:
		return bad("no texts: want --texts PATH or --prompts FILE")
	case c.MakePrompts && len(c.Texts) == 0:
		return bad("--make-prompts makes instructions of texts: want --texts PATH")
	case c.MakePrompts && c.Raw:
		return bad("--make-prompts with --raw: instructions need the chat template, want one of the two")
	case c.Out == "":
		return bad("--out is empty: want a folder for the shards")
	case len(c.Taps) == 0:
		return bad("--taps is empty: want numbers of layers, like 2,12,-1")
	case c.Top < 1 || c.Top > 64:
		return bad("--top is %d: want 1 to 64", c.Top)
	case c.Context < 0 || c.Context == 1:
		return bad("--ctx is %d: want 2 or more, or 0 for the model's context", c.Context)
	case c.Sessions < 1 || c.Sessions > passRows:
		return bad("--sessions is %d: want 1 to %d", c.Sessions, passRows)
	case c.AnswerTokens < 1:
		return bad("--answer-tokens is %d: want 1 or more", c.AnswerTokens)
	case !(s.Temperature >= 0 && s.Temperature <= 100):
		return bad("--temperature is %v: want 0 to 100", s.Temperature)
	case s.TopK < 0:
		return bad("--top-k is %d: want 0 or more", s.TopK)
	case !(s.TopP > 0 && s.TopP <= 1):
		return bad("--top-p is %v: want more than 0, up to 1", s.TopP)
	case c.MaxTokens < 0:
		return bad("--max-tokens is %d: want 0 or more", c.MaxTokens)
	case c.MaxSize < 0:
		return bad("--max-size is %d: want 0 or more", c.MaxSize)
	}
	for i, t := range c.Taps {
		if slices.Contains(c.Taps[:i], t) {
			return bad("--taps %v: %d is named twice", c.Taps, t)
		}
	}
	return nil
}

// Result is what a folder of shards holds after a run, whichever run has written it. LeftOut, Before, Seconds and Rate are of this run.
type Result struct {
	Model      string          `json:"model"`
	Identity   tandem.Identity `json:"identity"`
	Shards     int             `json:"shards"`
	Bytes      int64           `json:"bytes"`
	Texts      int             `json:"texts"` // pieces of plain text count one by one
	Held       int             `json:"held"`  // texts that are held out
	Tokens     int             `json:"tokens"`
	HeldTokens int             `json:"held_tokens"`
	Answers    int             `json:"answers"` // texts that the target has answered
	TooLong    int             `json:"too_long"`
	LeftOut    int             `json:"left_out"` // files in folders that are no text
	Before     int             `json:"before"`   // tokens that an earlier run has written
	Seconds    float64         `json:"seconds"`
	Rate       float64         `json:"tokens_per_second"` // of this run
	Shape      Shape           `json:"shape"`
}

// String returns the result as a line.
func (r *Result) String() string {
	s := fmt.Sprintf("%d tokens of %d texts (%d held out) in %d shards, %s", r.Tokens, r.Texts, r.Held, r.Shards, memory.Bytes(r.Bytes))
	if r.TooLong > 0 {
		s += fmt.Sprintf("; %d chats skipped, longer than --ctx", r.TooLong)
	}
	if r.LeftOut > 0 {
		s += fmt.Sprintf("; %d files left out, no text", r.LeftOut)
	}
	if r.Rate > 0 {
		s += fmt.Sprintf("; %.0f tokens/s", r.Rate)
	}
	return s
}

// Run runs the texts that have no shard yet, and writes their shards. Errors: Validate's; Invalid for texts that cannot be read, or a
// folder that other arguments or another model have written; Corrupt for damaged shards; Exhausted for a full disk; the model's, and ctx's
// once it has ended. Shards that are complete then stay, and a later Run goes on behind them.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	info, err := engine.Inspect(c.Model)
	if err == nil {
		err = engine.CheckTarget(c.Model, info.Config)
	}
	if err != nil {
		return nil, err
	}
	list, err := c.list()
	if err != nil {
		return nil, err
	}
	if c.Context == 0 || c.Context > info.Config.Context {
		c.Context = info.Config.Context
	}
	m, closed, err := c.Open(engine.Options{Context: c.Context, Taps: c.Taps, MaxRows: passRows, Sequences: c.Sessions,
		KVPages: engine.PagesFor(c.Sessions, c.Context, 0)})
	if err != nil {
		return nil, err
	}
	defer closed()
	if c.ShardSize == 0 {
		c.ShardSize = shardSize
	}
	f, err := openFolder(c.Out, c.arguments(m, list), c.shape(m))
	if err != nil {
		return nil, err
	}
	defer f.close()
	r := &run{Config: &c, model: m, folder: f, feeder: feeder{Config: &c, texts: list.texts, at: f.next}, weight: list.weight(),
		before: f.tokens}
	begun := time.Now()
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	result := f.result(begun, r.before)
	result.LeftOut = list.leftOut
	return result, nil
}

// shape returns what the arrays of shards look like.
func (c *Config) shape(m *engine.Model) Shape {
	of := m.Config()
	return Shape{Name: of.Name, Identity: m.Names().Identity, Lineage: m.Names().Lineage, Vocabulary: m.Names().Vocabulary,
		Layers: of.Layers, Dim: of.Dim, Vocab: of.Vocab, Taps: c.Taps, Top: min(c.Top, of.Vocab)}
}

// arguments returns what must be the same for a run to go on, by the names of the command line.
func (c *Config) arguments(m *engine.Model, l *list) map[string]string {
	s := c.Sampling
	return map[string]string{
		"--model's identity": fmt.Sprint(m.Names().Identity), "--model's vocabulary": m.Names().Vocabulary,
		"--texts and --prompts": fmt.Sprintf("%d texts with the sum %s", len(l.texts), l.sum), "--raw": fmt.Sprint(c.Raw),
		"--make-prompts": fmt.Sprint(c.MakePrompts),
		"--taps":         strings.Trim(fmt.Sprint(c.Taps), "[]"), "--top": fmt.Sprint(c.Top), "--ctx": fmt.Sprint(c.Context),
		"--answer-tokens": fmt.Sprint(c.AnswerTokens), "--temperature": fmt.Sprint(s.Temperature), "--top-k": fmt.Sprint(s.TopK),
		"--top-p": fmt.Sprint(s.TopP), "--seed": fmt.Sprint(s.Seed), "--max-tokens": fmt.Sprint(c.MaxTokens),
		"--max-size": fmt.Sprint(c.MaxSize), "the chat template": c.Template, "size of a shard": fmt.Sprint(c.ShardSize),
	}
}

// left returns how many tokens of a text named origin still fit into the bounds.
func (c *Config) left(f *folder, tokens int, size int64, origin string) int {
	n := math.MaxInt
	if c.MaxTokens > 0 {
		n = c.MaxTokens - tokens
	}
	if c.MaxSize > 0 {
		n = min(n, int((c.MaxSize-size-perShard-textSize(origin))/f.shape.tokenSize()))
	}
	return max(n, 0)
}

// UsualTaps returns the taps that drafts of the EAGLE-3 type are trained with if none are named: after a low, a middle and a high layer of
// a model with that many layers.
func UsualTaps(layers int) []int {
	taps := []int{max(1, layers/4), max(1, layers/2), max(1, layers-1)}
	return slices.Compact(taps)
}
