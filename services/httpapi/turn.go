package httpapi

import (
	crand "crypto/rand"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
	"github.com/tandem-llm/tandem/text/calls"
)

// turn makes the assistant's turn of what the model writes.
type turn struct {
	reader   *calls.Reader // nil: it is text as it comes
	shortIDs bool
}

func (o Output) turn() *turn {
	t := &turn{shortIDs: o.ShortIDs}
	if o.Reader != nil {
		t.reader = o.Reader()
	}
	return t
}

// deltas returns what further output adds to the turn.
func (t *turn) deltas(text string) []oai.Turn {
	if t.reader == nil {
		return []oai.Turn{{Content: text}}
	}
	return t.turns(t.reader.Read(text))
}

// rest returns what is left at the end of the output.
func (t *turn) rest() []oai.Turn {
	if t.reader == nil {
		return nil
	}
	return t.turns(t.reader.End())
}

// turns returns pieces as deltas of a stream: a call's id, type and name come once, its arguments in pieces.
func (t *turn) turns(pieces []calls.Piece) (out []oai.Turn) {
	for _, p := range pieces {
		switch p.Kind {
		case calls.Text:
			out = append(out, oai.Turn{Content: p.Text})
		case calls.Thought:
			out = append(out, oai.Turn{Reasoning: p.Text})
		case calls.Begin:
			out = append(out, oai.Turn{ToolCalls: []oai.ToolCall{{Index: &p.Call, ID: t.id(), Type: "function",
				Function: oai.FunctionCall{Name: p.Text}}}})
		case calls.Arguments:
			out = append(out, oai.Turn{ToolCalls: []oai.ToolCall{{Index: &p.Call, Function: oai.FunctionCall{Arguments: p.Text}}}})
		}
	}
	return out
}

// whole returns the turn of a whole output.
func (t *turn) whole(text string) *oai.Turn {
	out := &oai.Turn{Role: "assistant"}
	var content, thought strings.Builder
	for _, d := range append(t.deltas(text), t.rest()...) {
		if s, ok := d.Content.(string); ok {
			content.WriteString(s)
		}
		thought.WriteString(d.Reasoning)
		for _, c := range d.ToolCalls {
			if c.ID != "" {
				c.Index = nil
				out.ToolCalls = append(out.ToolCalls, c)
				continue
			}
			out.ToolCalls[len(out.ToolCalls)-1].Function.Arguments += c.Function.Arguments
		}
	}
	out.Reasoning, out.Content = thought.String(), content.String()
	if out.Content == "" && len(out.ToolCalls) > 0 {
		out.Content = oai.Null
	}
	return out
}

// finish returns why the turn ended: a call that is complete ends it otherwise than the end of a text.
func (t *turn) finish(why tandem.FinishReason) string {
	if why == tandem.FinishStop && t.reader != nil && t.reader.Calls() > 0 {
		return "tool_calls"
	}
	return string(why)
}

// id returns a new id of a call.
func (t *turn) id() string {
	if !t.shortIDs {
		return "call_" + randomHex(12)
	}
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, 9)
	_, _ = crand.Read(b)
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b)
}
