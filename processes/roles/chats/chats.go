// Package chats renders conversations into prompts of a model.
package chats

import (
	"context"
	"io"
	"maps"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/calls"
	"github.com/tandem-llm/tandem/text/chat"
	"github.com/tandem-llm/tandem/text/token"
)

// room renders conversations for a model; it implements conversation.Chat.
type room struct {
	template *chat.Template
	vocab    *token.Vocab
	defaults conversation.Variables // variables for the template, where a request has none
	format   *calls.Format          // how answers hold calls and thoughts
	turns    turns                  // what turns the template shows
	slow     error                  // see Slow
}

// Open returns the renderer of conversations with a model: by the template in file, else by the model's own, nil if there is neither. If
// the model's own template cannot be used, the renderer refuses every chat and says why. kwargs is a JSON object of variables for the
// template, "" for none. The second result is vocab with the markers and ends that the template adds.
func Open(file, kwargs, model string, vocab *token.Vocab) (conversation.Chat, *token.Vocab, error) {
	defaults, err := variables(kwargs)
	if err != nil {
		return nil, vocab, err
	}
	var special chat.Special
	if t, ok := vocab.BOS(); ok {
		special.BOS = vocab.Piece(t)
	}
	if t, ok := vocab.EOS(); ok {
		special.EOS = vocab.Piece(t)
	}
	if file != "" {
		t, err := readTemplate(file, special)
		if err != nil || t == nil {
			return nil, vocab, err
		}
		return newRoom(t, vocab, defaults)
	}
	f, err := gguf.Open(model)
	if err != nil {
		return nil, vocab, err
	}
	defer f.Close()
	t, err := chat.FromGGUF(f, vocab)
	switch {
	case err != nil:
		return noChat{tandem.Errorf("chat", tandem.Unsupported,
			"the chat template of model %s cannot be used: %w: give one with --chat-template", roles.ModelName(model), err)}, vocab, nil
	case t == nil:
		return nil, vocab, nil
	}
	return newRoom(t, vocab, defaults)
}

// Missing returns the reason why a model's chats are refused and what would help, or "" if they work. Arguments and errors are those of
// Open.
func Missing(file, model string) (string, error) {
	vocab, err := token.Open(model)
	if err != nil {
		return "", err
	}
	c, _, err := Open(file, "", model, vocab)
	switch no := c.(type) {
	case nil:
		return "its file has no chat template, as those of base models: want --target FILE of a chat model, such as " +
			"Qwen2.5-Coder-1.5B-Instruct", err
	case noChat:
		return no.err.Error(), err
	}
	return "", err
}

func newRoom(t *chat.Template, vocab *token.Vocab, defaults conversation.Variables) (conversation.Chat, *token.Vocab, error) {
	ends, slow := t.AfterTurn(context.Background())
	vocab = vocab.WithTemplate(t.Source(), ends...)
	r := room{template: t, vocab: vocab, defaults: defaults, format: calls.Find(t.Source()), slow: slow}
	if slow == nil {
		r.turns = tried(context.Background(), t)
	}
	if r.turns.inWords { // which are Hermes'
		r.format = r.format.With(calls.Hermes)
	}
	return r, vocab, nil
}

// Slow returns the error of a template that takes too long to show how it ends a turn, nil for all others. Its chats work without what
// such a text would add to the model's own ends.
func Slow(c conversation.Chat) error {
	if r, ok := c.(room); ok && r.slow != nil {
		return tandem.Errorf("", tandem.Invalid, "the ends of turns are not read from the chat template: %w for two short turns", r.slow)
	}
	return nil
}

// noChat refuses every conversation.
type noChat struct{ err error }

// Prompt implements conversation.Chat.
func (n noChat) Prompt(context.Context, conversation.Conversation) (conversation.Prompt, error) {
	return conversation.Prompt{}, n.err
}

// Reads implements conversation.Chat.
func (n noChat) Reads(string) bool { return false }

// variables reads --chat-template-kwargs.
func variables(kwargs string) (conversation.Variables, error) {
	if kwargs == "" {
		return nil, nil
	}
	v, err := conversation.ParseVariables("", kwargs)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--chat-template-kwargs: %w", err)
	}
	return v, nil
}

// maxTemplate bounds a template file in bytes.
const maxTemplate = 256 << 10

// Check refuses a template file, "" for none, and variables that Open would refuse. Errors: Invalid.
func Check(file, kwargs string) error {
	if _, err := variables(kwargs); err != nil || file == "" {
		return err
	}
	_, err := readTemplate(file, chat.Special{})
	return err
}

// readTemplate reads the file of --chat-template; nil for an empty one, such as /dev/null, which takes the model's own away.
func readTemplate(path string, special chat.Special) (*chat.Template, error) {
	file, err := files.Open(path)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--chat-template %s: %w", path, files.Reason(err))
	}
	defer file.Close()
	source, err := io.ReadAll(io.LimitReader(file, maxTemplate+1))
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--chat-template %s: %w", path, files.Reason(err))
	}
	if strings.TrimSpace(string(source)) == "" {
		return nil, nil
	}
	t, err := chat.Parse(string(source), special)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--chat-template %s: %w", path, err)
	}
	return t, nil
}

// Prompt implements conversation.Chat. Markers come only from the template; the begin-of-text marker is added if the
// model wants it and the template has not written it.
func (c room) Prompt(ctx context.Context, of conversation.Conversation) (conversation.Prompt, error) {
	if c.turns.inWords {
		of = inWords(of)
	}
	if len(of.Tools) > 0 && !c.template.Reads("tools") {
		of.Messages = conversation.Told(of.Messages, describe(of.Tools))
	}
	if c.format.ShortIDs {
		of.Messages = shortIDs(of.Messages)
	}
	if of.Must && len(of.Tools) > 0 {
		of.Messages = conversation.Told(of.Messages, mustCall(of))
	}
	of.Messages = c.turns.of(of.Messages)
	turns := make([]chat.Message, len(of.Messages))
	for i, m := range of.Messages {
		turns[i] = chat.Message{Role: m.Role, Content: m.Content, Name: m.Name, Reasoning: m.Reasoning,
			ToolCallID: m.ToolCallID, ToolCalls: m.ToolCalls}
	}
	o := chat.Options{AddGenerationPrompt: !of.Continue, Tools: of.Tools, Extra: conversation.Variables{}}
	maps.Copy(o.Extra, c.defaults)
	maps.Copy(o.Extra, of.Variables)
	r, err := c.template.Render(ctx, turns, o)
	if err != nil {
		return conversation.Prompt{}, err
	}
	if of.Continue {
		r = r.UpTo(of.Messages[len(of.Messages)-1].Content)
	}
	return conversation.Prompt{Text: r.Text, Tokens: func() []tandem.Token { return c.tokens(r) }, Output: c.output(of, r.Text)}, nil
}

// output says how the answer behind a prompt is read, and which answers are allowed.
func (c room) output(of conversation.Conversation, prompt string) (out conversation.Output) {
	tools := len(of.Tools) > 0
	if tools || of.Answer != nil {
		d := calls.Demand{Answer: of.Answer, Tools: calls.Parse(of.Tools), Must: of.Must, Single: of.Single,
			Thinking: c.format.Thinks(prompt), Template: c.Source(), Mark: c.vocab.Mark}
		for i := range d.Tools {
			d.Tools[i].Strict = of.Strict[d.Tools[i].Name]
		}
		out.Allowed, out.Loose = c.format.Allowed(d)
	}
	if !c.format.Reads(c.Source(), tools) {
		return out
	}
	o := calls.Options{Thinking: c.format.Thinks(prompt), Single: of.Single}
	if of.Continue {
		o.Thinking, o.Text = c.format.Within(of.Messages[len(of.Messages)-1].Content)
	}
	if tools {
		o.Tools = calls.Parse(of.Tools)
	}
	out.Reader, out.Written = func() *calls.Reader { return c.format.Reader(o) }, c.format.Written(tools)
	out.ShortIDs = c.format.ShortIDs
	return out
}

// Source returns the template.
func (c room) Source() string { return c.template.Source() }

// Reads implements conversation.Chat.
func (c room) Reads(name string) bool { return c.template.Reads(name) }

// tokens returns the tokens of a rendered conversation.
func (c room) tokens(r chat.Rendered) []tandem.Token {
	guarded := make([]token.Span, len(r.User))
	for i, s := range r.User {
		guarded[i] = token.Span(s)
	}
	tokens := c.vocab.EncodeGuarded(r.Text, guarded)
	bos, has := c.vocab.BOS()
	if around := c.vocab.Encode("", true); has && len(around) > 0 && around[0] == bos && (len(tokens) == 0 || tokens[0] != bos) {
		tokens = append([]tandem.Token{bos}, tokens...)
	}
	return tokens
}
