package llamacpp

import (
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// Writer writes the answer to a completion: one, or an array of several.
type Writer struct {
	Of      bodies.Native
	Model   string
	Context int      // positions of a session
	Stops   []string // the client's own
	Begun   time.Time
	Word    func(tandem.Token) oai.Word
	Prompt  func([]tandem.Token) string // how a prompt is written
	Hold    func(bytes int) error       // takes room for so many bytes of an answer that is sent as a whole
	Stream  *sse.Stream                 // takes the events; nil: the answer is sent as a whole

	choices []*written
}

// written is one choice.
type written struct {
	*Writer
	of      *answer.Choice
	whole   answer.Whole // the answer so far if it is sent as a whole; else tokens that were not sent yet
	probs   []Prob
	newLine bool
	count   int       // tokens
	first   time.Time // when the first of them came
	answer  any       // once it is complete
}

// Sink returns what takes the events of a choice.
func (w *Writer) Sink(of *answer.Choice) func(*answer.Event) error {
	c := &written{Writer: w, of: of}
	w.choices = append(w.choices, c)
	return c.event
}

// event takes an event of the answer.
func (c *written) event(e *answer.Event) error {
	text := e.Text
	if c.Stream != nil {
		e.Text = "" // it is sent at once
	}
	_ = c.whole.Add(e)
	switch {
	case e.Kind == answer.Progress && c.Stream != nil:
		return c.Stream.Send("", Piece{Index: c.of.Index, Tokens: []tandem.Token{}, Slot: -1, Evaluated: len(c.of.Request.Tokens),
			Progress: oai.NewPromptProgress(*e.Progress)})
	case e.Kind == answer.Started || e.Kind == answer.Progress:
		return nil
	case e.Kind == answer.Ended:
		return c.end(e.Result)
	}
	if d := e.Output; d != nil {
		if c.first.IsZero() {
			c.first = time.Now()
		}
		c.count += len(d.Tokens)
		c.probs = append(c.probs, NewProbs(d.Tokens, d.Logprobs, c.Word)...)
	}
	if c.newLine = c.newLine || strings.Contains(text, "\n"); c.Stream == nil || text == "" {
		return nil
	}
	return c.piece(text)
}

// piece sends what has come.
func (c *written) piece(text string) error {
	p := Piece{Index: c.of.Index, Content: text, Tokens: c.whole.Tokens, Slot: -1, Predicted: c.count, Evaluated: len(c.of.Request.Tokens),
		Probs: c.probs}
	if c.Of.Times { // how much of the prompt was in the cache is known at the end
		p.Timings = new(oai.Timings)
		p.Timings.Add(tandem.Result{PromptTokens: p.Evaluated, OutputTokens: c.count, Stats: tandem.Stats{Prefill: c.first.Sub(c.Begun),
			Decode: time.Since(c.first)}}, true)
	}
	c.whole, c.probs = answer.Whole{}, nil
	return c.Stream.Send("", p)
}

// end completes the answer.
func (c *written) end(r *tandem.Result) error {
	if c.Stream != nil && (len(c.whole.Tokens) > 0 || len(c.probs) > 0) {
		if err := c.piece(""); err != nil {
			return err
		}
	}
	word := r.Stopped
	if !slices.Contains(c.Stops, word) { // a marker that ends a gap
		word = ""
	}
	prompt := c.Prompt(c.of.Request.Tokens)
	if c.Stream == nil {
		if err := c.Hold(len(prompt)); err != nil {
			return err
		}
	}
	a := Answer{Index: c.of.Index, Content: c.whole.Text.String(), Tokens: []tandem.Token{}, Model: c.Model, Prompt: prompt,
		Settings: NewSettings(c.of.Request, c.Of, c.Stops, c.Stream != nil, c.Context), NewLine: c.newLine, Probs: c.probs}
	if c.Of.Tokens {
		a.Tokens = append(a.Tokens, c.whole.Tokens...)
	}
	c.answer = only(c.Of.Fields, a.Ended(*r, word, c.Context))
	if c.Stream == nil {
		return nil
	}
	return c.Stream.Send("", c.answer)
}

// Body returns an answer that is sent as a whole.
func (w *Writer) Body() any {
	if len(w.choices) == 1 {
		return w.choices[0].answer
	}
	all := make([]any, len(w.choices))
	for i, c := range w.choices {
		all[i] = c.answer
	}
	return all
}

// End ends a stream, of which nothing is left to tell.
func (w *Writer) End() error { return nil }

// Fail ends a stream with an error.
func (w *Writer) Fail(e *oai.Error) error { return w.Stream.Last("", Error(e), nil) }
