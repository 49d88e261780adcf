package answer

import (
	"strings"

	"github.com/tandem-llm/tandem"
)

// Whole is an answer put together of its events.
type Whole struct {
	Text, Thought strings.Builder
	Calls         []Tool
	Tokens        []tandem.Token // the output's
	Logprobs      []tandem.Logprob
	Called        bool // it ended with calls of tools
	Result        tandem.Result
	Thoughts      int // tokens
}

// Tool is a call of a tool.
type Tool struct {
	ID, Name  string
	Custom    bool   // the tool takes a text
	Arguments string // a text for a custom tool, else a JSON object
}

// Add takes the next event.
func (w *Whole) Add(e *Event) error {
	switch e.Kind {
	case Text:
		w.Text.WriteString(e.Text)
	case Thought:
		w.Thought.WriteString(e.Text)
	case Call:
		w.Calls = append(w.Calls, Tool{ID: e.ID, Name: e.Text, Custom: e.Custom})
	case Arguments:
		w.Calls[len(w.Calls)-1].Arguments += e.Text
	case Ended:
		w.Result, w.Thoughts, w.Called = *e.Result, e.Thoughts, e.Called()
	}
	if e.Output != nil {
		w.Tokens, w.Logprobs = append(w.Tokens, e.Output.Tokens...), append(w.Logprobs, e.Output.Logprobs...)
	}
	return nil
}
