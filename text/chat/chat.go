// Package chat turns a conversation into the text that a model was trained to continue, by the Jinja template
// that its file carries (tokenizer.chat_template).
//
// A template is part of a downloaded file, so it is not trusted. This package reads and runs it itself, with Jinja2's grammar and
// Python's values as Hugging Face's transformers sets them up: an immutable sandbox, trim_blocks and lstrip_blocks, loop controls,
// tojson without HTML escapes. testdata/jinja2.jsonl.gz holds what Jinja2 makes of random templates. What tandem does not
// run is refused by name (docs/guides/templates.md lists it).
//
// Invariants:
//  1. Every evaluated node, loop turn and 256 bytes of copied text is a step; steps, nesting, allocated bytes and
//     output bytes are bounded by limits, each checked before the work it allows. They count work, so whether a
//     template passes depends only on it and the conversation, never on the machine's load. Processor
//     time is bounded too, far above what the steps take, in case a step costs more than expected.
//  2. Template code sees the values of value.go and the functions of this package, nothing else
//     of Go, no file, no network, no environment; the only clock is Options.Now.
//  3. Every byte of the output is known to come from the template (or the vocabulary) or from the caller.
package chat

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

const op = "chat"

// limits bound what one template may cost. A conversation of 2,000 turns and 2 MB takes 170,000 steps in ChatML.
type limits struct {
	steps  int           // nodes evaluated, loop turns, 256-byte pieces copied
	depth  int           // expressions, statements and macro calls inside one another
	spent  int           // bytes of all strings, lists and dictionaries made, including those already dropped
	output int           // bytes rendered
	cpu    time.Duration // processor time of one Render
}

// trial are the limits of one rendering that finds out what a template does. A usual one takes a tenth of them; a template that passes
// them counts as one that does nothing special.
var trial = limits{steps: 1 << 16, depth: 1000, spent: 4 << 20, output: 256 << 10, cpu: 500 * time.Millisecond}

// errLimit is in the error of a template that passes a limit.
var errLimit = errors.New("the template")

// defaults keep one rendering, with the source and its tree, below 64 MiB.
var defaults = limits{steps: 1 << 19, depth: 1000, spent: 32 << 20, output: 4 << 20, cpu: 5 * time.Second}

const (
	maxSource = 256 << 10 // bytes; the longest templates in use have some 20 KiB
	maxTokens = 32 << 10
	maxName   = 256     // bytes of a variable's or attribute's name
	maxNest   = 64      // brackets, blocks and conditionals inside one another in the source
	maxInput  = 4 << 20 // bytes of all messages, tools and further values of one Render
)

// Special are the texts of the tokens that templates name bos_token and eos_token; "" where a model has none.
type Special struct{ BOS, EOS string }

// Message is one turn of a conversation. All strings are data: nothing in them is run as template.
type Message struct {
	Role    string // "system", "user", "assistant", "tool", …, as far as the template knows them
	Content string

	Name       string // the speaker's, or that of the tool that answers; absent when ""
	Reasoning  string // message.reasoning_content; absent when ""
	ToolCallID string // message.tool_call_id; absent when ""
	// ToolCalls is message.tool_calls, a JSON array; absent when empty. Arguments, in OpenAI's API a string of JSON, become an
	// object, unless the template wants them as a string.
	ToolCalls json.RawMessage
}

// Options of one rendering.
type Options struct {
	AddGenerationPrompt bool            // end with the beginning of the assistant's turn
	Tools               json.RawMessage // JSON array of tool descriptions, none when empty; keys keep their order
	Extra               map[string]any  // further variables: nil, bool, int, float64, string, json.RawMessage, []any, map[string]any
	Now                 time.Time       // for strftime_now; zero: the time of the call
}

// Template is a parsed chat template. Immutable, safe for concurrent use.
type Template struct {
	source  string
	body    []statement
	hides   []string
	special Special
	limits  limits
	reads   map[string]bool // names of variables

	arguments sync.Once // asString is known, found with a context and limits of its own
	asString  bool      // arguments of tool calls: see wantsString
}

// Reads reports whether the template reads a variable that the caller may give.
func (t *Template) Reads(name string) bool { return t.reads[name] }

// Span is the bytes [From, To) of a text.
type Span struct{ From, To int }

// Rendered is the text of a conversation.
type Rendered struct {
	Text string

	// User lists the spans that the caller supplied (contents, names, tools, extra values; not the roles of the API), ascending
	// and disjoint. Special tokens count only wholly outside these, so that a message that contains "<|im_end|>"
	// cannot end its turn. Text must still be tokenized as one: splitting it at a span would change merges.
	User []Span
}

// Parse reads a template. Errors name the line: Invalid for a source that is not a template, Unsupported for one that uses
// something this package does not run.
func Parse(source string, special Special) (*Template, error) {
	if len(source) > maxSource {
		return nil, tandem.Errorf(op, tandem.Invalid, "chat template has %d bytes: at most %d are read", len(source), maxSource)
	}
	body, err := parse(source)
	if err != nil {
		return nil, err
	}
	hides, reads := hidden(body)
	return &Template{source: source, body: body, hides: hides, reads: reads, special: special, limits: defaults}, nil
}

// FromGGUF returns the template of a model file, nil and no error when it has none, or one of white space alone, which shows no message.
// vocab supplies bos_token and eos_token.
func FromGGUF(f *gguf.File, vocab *token.Vocab) (*Template, error) {
	const key = "tokenizer.chat_template"
	if !f.Has(key) {
		return nil, nil
	}
	source, err := f.String(key)
	if err != nil || strings.TrimSpace(source) == "" {
		return nil, err
	}
	var special Special
	if t, ok := vocab.BOS(); ok {
		special.BOS = vocab.Piece(t)
	}
	if t, ok := vocab.EOS(); ok {
		special.EOS = vocab.Piece(t)
	}
	return Parse(source, special)
}

// Missing returns the error for a chat with a model that has no template.
func Missing(model string) error {
	return tandem.Errorf(op, tandem.Unsupported, "model %s has no tokenizer.chat_template: give one with --chat-template", model)
}

// Render renders messages. Errors: Invalid when the template refuses the conversation (raise_exception), fails on it or
// passes a limit, Unsupported when it uses what this package does not run, Deadline and Canceled by ctx.
func (t *Template) Render(ctx context.Context, messages []Message, o Options) (Rendered, error) {
	return t.render(ctx, messages, o, t.quotes(messages), t.limits)
}

// Try is Render of a short conversation that finds out what the template does, within limits for that.
func (t *Template) Try(ctx context.Context, messages []Message, o Options) (Rendered, error) {
	return t.render(ctx, messages, o, t.quotes(messages), trial)
}

// quotes reports whether the arguments of the messages' calls are given to the template as strings.
func (t *Template) quotes(messages []Message) bool {
	return slices.ContainsFunc(messages, func(m Message) bool { return len(m.ToolCalls) > 0 }) && t.wantsString()
}

// render is Render within limits; asString says how the template wants the arguments of tool calls.
func (t *Template) render(ctx context.Context, messages []Message, o Options, asString bool, within limits) (Rendered, error) {
	return (&run{ctx: ctx, limits: within, now: o.Now}).render(t, messages, o, asString)
}

func (r *run) render(t *Template, messages []Message, o Options, asString bool) (out Rendered, err error) {
	runtime.LockOSThread() // so that the thread's processor time is the rendering's
	defer runtime.UnlockOSThread()
	r.begun = threadTime()
	if r.now.IsZero() {
		r.now = time.Now()
	}
	r.out = &builder{r: r}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			out, err = Rendered{}, p.err
		default:
			out, err = Rendered{}, tandem.Errorf(op, tandem.Internal, "template line %d: %v", r.line, p)
		}
	}()
	top := r.variables(t.special, messages, o, asString)
	r.exec(t.body, r.newScope(top, t.hides))
	done := r.out.text()
	return Rendered{Text: done.s, User: done.user}, nil
}

// variables returns a template's initial scope.
func (r *run) variables(special Special, messages []Message, o Options, asString bool) *scope {
	size := len(o.Tools)
	turns := &list{}
	for _, m := range messages {
		size += len(m.Role) + len(m.Content) + len(m.Name) + len(m.Reasoning) + len(m.ToolCallID) + len(m.ToolCalls)
		if size > maxInput {
			r.fail(tandem.Invalid, "the conversation has more than %d bytes", maxInput)
		}
		r.push(turns, r.message(m, asString))
	}
	sc := r.newScope(nil, nil)
	sc.set("messages", turns)
	sc.set("tools", r.decode("tools", o.Tools))
	sc.set("documents", nil)
	sc.set("add_generation_prompt", o.AddGenerationPrompt)
	sc.set("bos_token", lit(special.BOS))
	sc.set("eos_token", lit(special.EOS))
	for name, v := range o.Extra {
		sc.set(name, r.valueOf(name, v))
	}
	return sc
}

func (r *run) message(m Message, asString bool) *dict {
	d := &dict{}
	r.put(d, lit("role"), role(m.Role))
	r.put(d, lit("content"), caller(m.Content))
	for _, f := range [...]struct{ name, value string }{
		{"name", m.Name}, {"reasoning_content", m.Reasoning}, {"tool_call_id", m.ToolCallID},
	} {
		if f.value != "" {
			r.put(d, lit(f.name), caller(f.value))
		}
	}
	if len(m.ToolCalls) > 0 {
		calls := r.decode("tool_calls", m.ToolCalls)
		r.callArguments(calls, asString)
		r.put(d, lit("tool_calls"), calls)
	}
	return d
}

// run is one rendering in progress, on one goroutine. Its methods panic with a failure when the rendering cannot go
// on, and Render turns that into an error: otherwise every node of the evaluator would need an error path.
type run struct {
	ctx    context.Context
	limits limits
	begun  time.Duration // the thread's processor time then
	now    time.Time

	steps, polled int // polled: steps when the clock was last looked at
	spentBytes    int
	depth         int
	line          int // of the statement under way
	out           *builder
	printed       text   // what a filter block printed, while its filters run
	caller        *macro // of {% call %}, until its call begins
}

type failure struct{ err error }

func (r *run) fail(k tandem.Kind, format string, args ...any) {
	panic(failure{failed(r.line, k, format, args...)})
}

// failed is an error at a line; 0 for none.
func failed(line int, k tandem.Kind, format string, args ...any) error {
	err := tandem.Errorf(op, k, format, args...)
	if line > 0 {
		var e *tandem.Error
		errors.As(err, &e)
		err = tandem.Errorf(op, k, "template line %d: %w", line, e.Err)
	}
	return err
}

// step counts n units of work.
func (r *run) step(n int) {
	r.steps += n
	if r.steps > r.limits.steps {
		r.fail(tandem.Invalid, "%w takes more than %d steps", errLimit, r.limits.steps)
	}
	if r.steps-r.polled < 1024 {
		return
	}
	r.polled = r.steps
	if err := r.ctx.Err(); err != nil {
		r.fail(tandem.KindOf(err), "%w", err)
	}
	if threadTime()-r.begun > r.limits.cpu {
		r.fail(tandem.Invalid, "%w takes more than %v of processor time", errLimit, r.limits.cpu)
	}
}

// threadTime returns the processor time of the calling thread, 0 if the system does not tell it.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD of Linux
	var u syscall.Rusage
	if syscall.Getrusage(thread, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// spend counts bytes that are about to be allocated or read.
func (r *run) spend(bytes int) {
	r.work(bytes)
	r.spentBytes += bytes
	if r.spentBytes > r.limits.spent {
		r.fail(tandem.Invalid, "%w makes more than %d bytes of values", errLimit, r.limits.spent)
	}
}

// work counts bytes that are about to be read.
func (r *run) work(bytes int) { r.step(1 + bytes/256) }

func (r *run) enter() {
	if r.depth++; r.depth > r.limits.depth {
		r.fail(tandem.Invalid, "%w nests or calls itself more than %d deep", errLimit, r.limits.depth)
	}
}

func (r *run) leave() { r.depth-- }
