package httpapi

import (
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
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
		case calls.Begin, calls.Arguments:
			out = append(out, oai.Turn{ToolCalls: []conversation.ToolCall{t.call(p)}})
		}
	}
	return out
}

// call returns a piece of a call.
func (t turn) call(p calls.Piece) conversation.ToolCall {
	c := conversation.ToolCall{Index: &p.Call}
	begins, custom := p.Kind == calls.Begin, t.Custom(p.Call)
	switch {
	case begins && custom:
		c.Type, c.Custom = "custom", &conversation.CustomCall{Name: p.Text}
	case begins:
		c.Type, c.Function.Name = "function", p.Text
	case custom:
		c.Custom = &conversation.CustomCall{Input: p.Text}
	default:
		c.Function.Arguments = p.Text
	}
	if begins {
		c.ID = t.ID()
	}
	return c
}

// wholeTurn puts a turn together that is answered as a whole.
type wholeTurn struct {
	turn
	content, thought strings.Builder
	calls            []conversation.ToolCall
	arguments        strings.Builder // of the last call, or its text
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
			if m.arguments.WriteString(c.Function.Arguments); c.Custom != nil {
				m.arguments.WriteString(c.Custom.Input)
			}
		}
	}
}

// called completes the last call.
func (m *wholeTurn) called() {
	if n := len(m.calls) - 1; n >= 0 && m.calls[n].Custom != nil {
		m.calls[n].Custom.Input = m.arguments.String()
	} else if n >= 0 {
		m.calls[n].Function.Arguments = m.arguments.String()
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
