// Package chat turns a conversation into the text that a model was trained to continue, by the Jinja template
// that its file carries (tokenizer.chat_template).
//
// A template is part of a downloaded file, so it is not trusted. This package reads and runs it itself, with Jinja2's grammar and
// Python's values as Hugging Face's transformers sets them up: an immutable sandbox, trim_blocks and lstrip_blocks, loop controls,
// tojson without HTML escapes. testdata/jinja2.jsonl.gz holds what Jinja2 makes of random templates. What tandem does not
// run is refused by name (docs/guides/templates.md lists it).
//
// A lexer and a parser (lex, parse, expr, names) make the tree. A run evaluates and runs its nodes (eval, call, exec, loop). Values (value,
// text, number) and what templates do with them (attributes, compare, strings, filters, sorting, tests, functions, format, json, print)
// know nothing of the run but its meter.
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
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

const op = "chat"

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
	AddGenerationPrompt bool                       // end with the beginning of the assistant's turn
	Tools               json.RawMessage            // JSON array of tool descriptions, none when empty; keys keep their order
	Extra               map[string]json.RawMessage // further variables
	Now                 time.Time                  // for strftime_now; zero: the time of the call
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
	body, hides, reads, err := parse(source)
	if err != nil {
		return nil, err
	}
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
	return t.metered(&meter{ctx: ctx, limits: within}, messages, o, asString)
}

func (t *Template) metered(m *meter, messages []Message, o Options, asString bool) (out Rendered, err error) {
	runtime.LockOSThread() // so that the thread's processor time is the rendering's
	defer runtime.UnlockOSThread()
	m.begun = threadTime()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			out, err = Rendered{}, p.err
		default:
			out, err = Rendered{}, tandem.Errorf(op, tandem.Internal, "template line %d: %v", m.line, p)
		}
	}()
	r := &run{meter: m, out: &builder{m: m, most: m.limits.output}}
	r.exec(t.body, r.newScope(t.variables(r, messages, o, asString), t.hides))
	done := r.out.text()
	return Rendered{Text: done.s, User: done.user}, nil
}

// variables returns the scope that a template begins with.
func (t *Template) variables(r *run, messages []Message, o Options, asString bool) *scope {
	m := r.meter
	size := len(o.Tools)
	turns := &list{}
	for _, turn := range messages {
		size += len(turn.Role) + len(turn.Content) + len(turn.Name) + len(turn.Reasoning) + len(turn.ToolCallID) + len(turn.ToolCalls)
		m.invalidIf(size > maxInput, "the conversation has more than %d bytes", maxInput)
		turns.push(m, turn.value(m, asString))
	}
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	sc := &scope{}
	r.set(sc, "strftime_now", strftimeNow(o.Now))
	r.set(sc, "messages", turns)
	r.set(sc, "tools", decode(m, "tools", o.Tools))
	r.set(sc, "documents", nil)
	r.set(sc, "add_generation_prompt", o.AddGenerationPrompt)
	r.set(sc, "bos_token", lit(t.special.BOS))
	r.set(sc, "eos_token", lit(t.special.EOS))
	for name, v := range o.Extra {
		r.set(sc, name, decode(m, name, v))
	}
	return sc
}

// value returns a message as a template's value.
func (turn Message) value(m *meter, asString bool) *dict {
	d := &dict{}
	d.put(m, lit("role"), role(turn.Role))
	d.put(m, lit("content"), caller(turn.Content))
	for _, f := range [...]struct{ name, value string }{
		{"name", turn.Name}, {"reasoning_content", turn.Reasoning}, {"tool_call_id", turn.ToolCallID},
	} {
		if f.value != "" {
			d.put(m, lit(f.name), caller(f.value))
		}
	}
	if len(turn.ToolCalls) > 0 {
		calls := decode(m, "tool_calls", turn.ToolCalls)
		callArguments(m, calls, asString)
		d.put(m, lit("tool_calls"), calls)
	}
	return d
}
