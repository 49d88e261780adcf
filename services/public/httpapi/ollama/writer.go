package ollama

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// Writer writes the answer to a chat or a generation: lines with pieces, and one with what is left. Calls are sent whole.
type Writer struct {
	Chat   bool
	Model  string
	Begun  time.Time   // when the request arrived
	Tells  bool        // the last line has the tokens of prompt and answer
	Stream *sse.Stream // takes the events; nil: the answer is sent as a whole

	prompt []tandem.Token
	whole  answer.Whole // what was not sent yet
	sent   int          // calls
	last   Chunk
}

// line returns a line with a piece.
func (w *Writer) line(text, thought string, all []Call) Chunk {
	c := Chunk{Model: w.Model, Created: time.Now().UTC().Format(time.RFC3339Nano)}
	if w.Chat {
		c.Message = &Message{Role: "assistant", Content: text, Thinking: thought, ToolCalls: all}
	} else {
		c.Response, c.Thinking = &text, thought
	}
	return c
}

// Loaded returns the answer to a body that asks for no text: the model stays loaded, or it does not.
func (w *Writer) Loaded(stay bool) Chunk {
	c := w.line("", "", nil)
	if c.Done, c.Reason = true, "load"; !stay {
		c.Reason = "unload"
	}
	return c
}

// Sink returns what takes the events of the only choice.
func (w *Writer) Sink(of *answer.Choice) func(*answer.Event) error {
	w.prompt = of.Request.Tokens
	return w.event
}

// event takes an event of the answer.
func (w *Writer) event(e *answer.Event) error {
	if n := len(w.whole.Calls); w.Stream != nil && e.Kind != answer.Arguments && n > w.sent {
		w.sent = n
		if err := w.Stream.Send("", w.line("", "", []Call{newCall(n-1, w.whole.Calls[n-1])})); err != nil {
			return err
		}
	}
	if text := e.Text; w.Stream != nil && text != "" && (e.Kind == answer.Text || e.Kind == answer.Thought) {
		thought := ""
		if e.Text = ""; e.Kind == answer.Thought {
			text, thought = "", text
		}
		if err := w.Stream.Send("", w.line(text, thought, nil)); err != nil {
			return err
		}
	}
	if err := w.whole.Add(e); err != nil || e.Kind != answer.Ended {
		return err
	}
	return w.end(e.Result)
}

// end completes the answer.
func (w *Writer) end(r *tandem.Result) error {
	var left []Call
	for i, t := range w.whole.Calls[w.sent:] {
		left = append(left, newCall(i, t))
	}
	w.last = w.line(w.whole.Text.String(), w.whole.Thought.String(), left)
	if w.Tells {
		w.last.Context = slices.Concat(w.prompt, w.whole.Tokens)
	}
	w.last.Done, w.last.Reason, w.last.Tandem = true, string(r.Finish), oai.Repeated(*r)
	w.last.Figures = &Figures{Total: int64(time.Since(w.Begun)), Prompt: r.PromptTokens, PromptTime: int64(r.Stats.Prefill),
		Output: r.OutputTokens, OutputTime: int64(r.Stats.Decode)}
	if w.Stream == nil {
		return nil
	}
	return w.Stream.Last("", w.last, nil)
}

// Body returns an answer that is sent as a whole.
func (w *Writer) Body() any { return w.last }

// End ends a stream, of which nothing is left to tell.
func (w *Writer) End() error { return nil }

// Fail ends a stream with an error.
func (w *Writer) Fail(e *oai.Error) error { return w.Stream.Last("", Error(e), nil) }
