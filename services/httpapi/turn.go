package httpapi

import (
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/conversation"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
	"github.com/tandem-llm/tandem/text/calls"
)

// turn is the assistant's turn in OpenAI's form.
type turn struct{ *conversation.Turn }

// deltas returns what further output adds to the turn.
func (t turn) deltas(text string, tokens int) []oai.Turn { return t.turns(t.Read(text, tokens)) }

// turns returns pieces as deltas of a stream: a call's id, type and name come first, then its arguments.
func (t turn) turns(pieces []calls.Piece) (out []oai.Turn) {
	for _, p := range pieces {
		switch p.Kind {
		case calls.Text:
			out = append(out, oai.Turn{Content: p.Text})
		case calls.Thought:
			out = append(out, oai.Turn{Reasoning: p.Text})
		case calls.Begin:
			out = append(out, oai.Turn{ToolCalls: []conversation.ToolCall{{Index: &p.Call, ID: t.ID(), Type: "function",
				Function: conversation.FunctionCall{Name: p.Text}}}})
		case calls.Arguments:
			out = append(out, oai.Turn{ToolCalls: []conversation.ToolCall{{Index: &p.Call,
				Function: conversation.FunctionCall{Arguments: p.Text}}}})
		}
	}
	return out
}

// wholeTurn puts a turn together that is answered as a whole.
type wholeTurn struct {
	turn
	content, thought strings.Builder
	calls            []conversation.ToolCall
	arguments        strings.Builder // of the last call
}

// add takes deltas.
func (m *wholeTurn) add(deltas []oai.Turn) {
	for _, d := range deltas {
		if s, ok := d.Content.(string); ok {
			m.content.WriteString(s)
		}
		m.thought.WriteString(d.Reasoning)
		for _, c := range d.ToolCalls {
			if c.ID != "" {
				m.called()
				c.Index = nil
				m.calls = append(m.calls, c)
			}
			m.arguments.WriteString(c.Function.Arguments)
		}
	}
}

// called completes the last call.
func (m *wholeTurn) called() {
	if n := len(m.calls); n > 0 {
		m.calls[n-1].Function.Arguments = m.arguments.String()
	}
	m.arguments.Reset()
}

// whole returns the turn at the end of the output, by how it ended.
func (m *wholeTurn) whole(how tandem.Result) *oai.Turn {
	m.add(m.turns(m.End(how)))
	m.called()
	out := &oai.Turn{Role: "assistant", Content: m.content.String(), Reasoning: m.thought.String(), ToolCalls: m.calls}
	if out.Content == "" && len(out.ToolCalls) > 0 {
		out.Content = oai.Null
	}
	return out
}

// finish returns why the turn ended, in this API's words.
func (t turn) finish(why tandem.FinishReason) string {
	if t.Called(why) {
		return "tool_calls"
	}
	return string(why)
}
