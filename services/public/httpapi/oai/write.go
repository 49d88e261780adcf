package oai

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// Words are how tokens are written.
type Words struct {
	Of    func(tandem.Token) Word
	Texts func(prev ...tandem.Token) func(tandem.Token) string // what each token behind prev adds to the text
}

// Writer writes the answer to a chat or a completion.
type Writer struct {
	Head         Head
	Chat         bool
	IncludeUsage bool        // a stream ends with the usage of all choices
	Stream       *sse.Stream // takes the events; nil: the answer is sent as a whole
	Words        Words

	choices []*written
}

// NewHead returns the fields with which every answer begins; its id ends with name.
func NewHead(chat, chunk bool, name, model string, created int64) Head {
	h := Head{ID: "cmpl-" + name, Object: "text_completion", Created: created, Model: model}
	if chat {
		h.ID, h.Object = "chat"+h.ID, "chat.completion"
		if chunk {
			h.Object += ".chunk"
		}
	}
	return h
}

// written is one choice.
type written struct {
	*Writer
	of      *answer.Choice
	head    Head
	at      *Offsets // where a completion's next token begins
	whole   answer.Whole
	account Account // what an answer tells that is sent as a whole
}

// Sink returns what takes the events of a choice.
func (w *Writer) Sink(of *answer.Choice) func(*answer.Event) error {
	c := &written{Writer: w, of: of, head: w.Head}
	if of.Request.Sampling.Logprobs && !w.Chat { // a character that begins in the prompt belongs to the output
		c.at = &Offsets{At: of.Chars, Text: w.Words.Texts(of.Request.Tokens...)}
	}
	w.choices = append(w.choices, c)
	if w.Stream == nil {
		return c.keep
	}
	return c.send
}

// keep takes an event of an answer that is sent as a whole.
func (c *written) keep(e *answer.Event) error {
	if d := e.Output; d != nil && c.of.Request.Report {
		c.account.Tokens = append(c.account.Tokens, OriginTokens(*d, c.Words.Of)...)
		if r := NewRound(d.Round, c.Words.Of); r != nil {
			c.account.Rounds = append(c.account.Rounds, *r)
		}
	}
	return c.whole.Add(e)
}

// send sends an event as a chunk.
func (c *written) send(e *answer.Event) error {
	switch e.Kind {
	case answer.Started:
		c.head = c.head.By(string(e.Identity))
		if !c.Chat {
			return nil
		}
		_, err := c.Stream.Step(c.of.Index, 0, "", c.chunk(Choice{Delta: &Turn{Role: "assistant", Content: ""}}))
		return err
	case answer.Progress: // an id would say that the stream can be taken up behind it
		piece, none := Choice{Delta: &Turn{Role: "assistant", Content: Null}}, ""
		if !c.Chat {
			piece = Choice{Text: &none}
		}
		out := c.chunk(piece)
		out.Progress = NewPromptProgress(*e.Progress)
		return c.Stream.Send("", out)
	case answer.Ended:
		return c.last(e)
	}
	tokens, report, logprobs := 0, (*Account)(nil), any(nil)
	if e.Output != nil {
		tokens, report, logprobs = c.told(*e.Output)
	}
	if e.Kind == answer.Text && e.Text == "" && tokens == 0 {
		return nil
	}
	chunk := func(rest string) any {
		out := c.chunk(c.piece(e, rest))
		out.Choices[0].Logprobs, out.Tandem = logprobs, report
		return out
	}
	if e.Kind != answer.Call {
		_, err := c.Stream.Delta(c.of.Index, tokens, "", e.Text, chunk)
		return err
	}
	sent, err := c.Stream.Step(c.of.Index, tokens, "", chunk(e.Text))
	if !sent && tokens > 0 { // the client has the call, but not all that is told of its tokens
		e.Kind = answer.Text
		_, err = c.Stream.Delta(c.of.Index, tokens, "", "", chunk)
	}
	return err
}

// told returns what is told of an output's tokens that the client has not, and how many these are.
func (c *written) told(d tandem.Delta) (tokens int, report *Account, logprobs any) {
	rest := c.Stream.Output(c.of.Index, d)
	if n := len(d.Logprobs) - len(rest.Logprobs); n > 0 && c.at != nil { // the places in the text go on behind them
		c.logprobs(d.Tokens[:n], d.Logprobs[:n])
	}
	if len(rest.Logprobs) > 0 {
		tokens, logprobs = len(rest.Tokens), c.logprobs(rest.Tokens, rest.Logprobs)
	}
	if c.of.Request.Report {
		tokens = len(rest.Tokens)
		report = &Account{Tokens: OriginTokens(rest, c.Words.Of), Round: NewRound(rest.Round, c.Words.Of)}
	}
	return tokens, report, logprobs
}

// logprobs returns the log-probabilities of the tokens that come next.
func (c *written) logprobs(tokens []tandem.Token, all []tandem.Logprob) any {
	if c.Chat {
		return NewChatLogprobs(tokens, all, c.Words.Of)
	}
	return NewLogprobs(tokens, all, c.at, c.Words.Of)
}

// chunk returns a chunk of the choice.
func (c *written) chunk(piece Choice) Chunk {
	piece.Index = c.of.Index
	out := Chunk{Head: c.head, Choices: []Choice{piece}}
	if c.IncludeUsage {
		out.Usage = Null
	}
	return out
}

// piece returns a piece with a text.
func (c *written) piece(e *answer.Event, text string) Choice {
	switch {
	case !c.Chat:
		return Choice{Text: &text}
	case e.Kind == answer.Text:
		return Choice{Delta: &Turn{Content: text}}
	case e.Kind == answer.Thought:
		return Choice{Delta: &Turn{Reasoning: text}}
	}
	call := answer.Tool{Custom: e.Custom}
	if e.Kind == answer.Call {
		call.ID, call.Name = e.ID, text
	} else {
		call.Arguments = text
	}
	out := newToolCall(call)
	out.Index = &e.Call
	return Choice{Delta: &Turn{ToolCalls: []conversation.ToolCall{out}}}
}

// newToolCall returns a call or, without a name, a piece of its arguments.
func newToolCall(t answer.Tool) conversation.ToolCall {
	c := conversation.ToolCall{ID: t.ID}
	if t.Custom {
		c.Custom = &conversation.CustomCall{Name: t.Name, Input: t.Arguments}
	} else {
		c.Function = conversation.FunctionCall{Name: t.Name, Arguments: t.Arguments}
	}
	switch {
	case t.ID == "":
	case t.Custom:
		c.Type = "custom"
	default:
		c.Type = "function"
	}
	return c
}

// last sends the last chunk of a choice.
func (c *written) last(e *answer.Event) error {
	_ = c.whole.Add(e)
	last, none := Choice{Delta: &Turn{}}, ""
	if !c.Chat {
		last = Choice{Text: &none}
	}
	last.Finish = c.finish()
	out := c.chunk(last)
	out.Timings = new(Timings)
	out.Timings.Add(*e.Result, c.of.First)
	out.Tandem = c.drawn()
	_, err := c.Stream.Step(c.of.Index, 0, "", out)
	return err
}

// finish returns why the choice ended, in this API's words.
func (c *written) finish() *string {
	why := string(c.whole.Result.Finish)
	if c.whole.Called {
		why = "tool_calls"
	}
	return &why
}

// drawn returns the account of how the choice was drawn, with its statistics if a report is asked for.
func (c *written) drawn() *Account {
	c.account.Sampling, c.account.Repeated = NewDrawn(c.of.Request.Sampling), c.whole.Result.Repeated
	if c.of.Request.Report {
		c.account.Stats = NewStats(c.whole.Result, c.of.Began)
	}
	return &c.account
}

// choice returns a choice of an answer that is sent as a whole.
func (c *written) choice() Choice {
	text := c.whole.Text.String()
	out := Choice{Index: c.of.Index, Finish: c.finish(), Tandem: c.drawn()}
	if c.of.Request.Sampling.Logprobs {
		out.Logprobs = c.logprobs(c.whole.Tokens, c.whole.Logprobs)
	}
	if !c.Chat {
		out.Text = &text
		return out
	}
	out.Message = &Turn{Role: "assistant", Content: text, Reasoning: c.whole.Thought.String()}
	for _, t := range c.whole.Calls {
		out.Message.ToolCalls = append(out.Message.ToolCalls, newToolCall(t))
	}
	if text == "" && len(out.Message.ToolCalls) > 0 {
		out.Message.Content = Null
	}
	return out
}

// Body returns an answer that is sent as a whole.
func (w *Writer) Body() any {
	a := Answer{Head: w.Head.By(w.identities()), Usage: w.usage(), Timings: w.timings()}
	for _, c := range w.choices {
		a.Choices = append(a.Choices, c.choice())
	}
	if len(w.choices) == 1 {
		only := a.Choices[0].Tandem
		a.Tandem = &Account{Sampling: only.Sampling, Repeated: only.Repeated, Stats: only.Stats}
	}
	return a
}

// End ends a stream.
func (w *Writer) End() error {
	if w.IncludeUsage {
		raw, _ := json.Marshal(w.usage()) // of integers alone
		if err := w.Stream.Send("", Chunk{Head: w.Head.By(w.identities()), Choices: []Choice{}, Usage: raw,
			Timings: w.timings()}); err != nil {
			return err
		}
	}
	return w.Stream.Done()
}

// Fail ends a stream with an error.
func (w *Writer) Fail(e *Error) error { return w.Stream.Last("error", e.Body(), nil) }

// identities returns the identities that computed the choices: usually one, else each once, in order.
func (w *Writer) identities() string {
	var all []string
	for _, c := range w.choices {
		if i := string(c.whole.Result.Identity); !slices.Contains(all, i) {
			all = append(all, i)
		}
	}
	return strings.Join(all, ",")
}

// usage counts the tokens of all choices.
func (w *Writer) usage() *Usage {
	u := new(Usage)
	for _, c := range w.choices {
		u.Add(c.whole.Result, c.of.First)
		if w.Chat {
			u.AddThoughts(c.whole.Thoughts)
		}
	}
	return u
}

// timings sums up those of all choices.
func (w *Writer) timings() *Timings {
	t := new(Timings)
	for _, c := range w.choices {
		t.Add(c.whole.Result, c.of.First)
	}
	return t
}
