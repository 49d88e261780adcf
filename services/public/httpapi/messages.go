package httpapi

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/anthropic"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
	"github.com/tandem-llm/tandem/text/calls"
)

// messages answers /v1/messages.
func (s *Server) messages(w http.ResponseWriter, c *call) error {
	o, prompts, output, err := s.readChat(w, c, s.readMessages(c, false))
	if err != nil {
		return err
	}
	m := &mark{}
	if o.Stream {
		if m, err = takenUp(c, o); err != nil {
			return err
		}
	}
	choices, err := s.choices(w, o, prompts)
	if err != nil {
		return err
	}
	if err := m.fits(len(choices)); err != nil {
		return err
	}
	x := choices[0]
	defer c.count(choices)
	head := anthropic.Message{ID: "msg_" + randomHex(12), Type: "message", Role: "assistant", Model: cmp.Or(o.Model, s.cfg.Model.Name),
		Content: []anthropic.Block{}}
	if o.Stream {
		head.ID = "msg_" + m.name()
		return s.streamMessage(w, c, o, x, head, output, m)
	}
	weight := &weight{all: s.answers}
	defer weight.release()
	got := &wholeTurn{turn: turn{output.Turn()}}
	x.sink = &collected{server: s, weight: weight, message: got}
	if err := s.run(c.Context(), c, choices, func(*choice) error { return nil }); err != nil {
		return o.InItsWords(weight.failed(err))
	}
	whole := got.whole(x.result)
	if whole.Reasoning != "" {
		head.Content = append(head.Content, anthropic.Thought(whole.Reasoning))
	}
	if text, _ := whole.Content.(string); text != "" {
		head.Content = append(head.Content, anthropic.Text(text))
	}
	for _, t := range whole.ToolCalls {
		head.Content = append(head.Content, anthropic.Call("toolu_"+randomHex(12), t.Function.Name, json.RawMessage(t.Function.Arguments)))
	}
	reason, sequence := anthropic.StopReason(x.result, len(whole.ToolCalls))
	head.StopReason, head.StopSequence, head.Usage = &reason, sequence, anthropic.NewUsage(x.result)
	s.reply(w, http.StatusOK, head)
	return nil
}

// readMessages returns the decoder of a body.
func (s *Server) readMessages(c *call, countOnly bool) func(io.Reader, ask.Defaults, oai.Limits) (*oai.Call, error) {
	return func(body io.Reader, d ask.Defaults, l oai.Limits) (*oai.Call, error) {
		raw, err := readWhole(body)
		if err != nil {
			return nil, err
		}
		chat, err := anthropic.Chat(c.Context(), raw, anthropic.Options{KeepAttribution: s.cfg.KeepAttribution, Ignored: c.ignored.add,
			CountOnly: countOnly, Strict: s.cfg.Strict})
		if err != nil {
			return nil, err
		}
		l.Strict, l.Names = false, anthropic.Names // what was translated has been checked
		return oai.ReadChat(c.translated(chat), d, l)
	}
}

// translatedSize is how many times the size of a body its translation takes: the body, its texts, the chat's body, and that one's texts.
const translatedSize = 4

// smallTranslated is the memory that the translation of a small body may take without being counted, as it is itself.
const smallTranslated = 8 * smallBody

// readWhole reads a body that is translated, and takes the memory for that.
func readWhole(from io.Reader) ([]byte, error) {
	raw, memory, err := oai.ReadWhole(from)
	if b, ok := from.(*body); ok && err == nil {
		if need := int64(translatedSize*len(raw) + memory); b.took > 0 || need > smallTranslated {
			err = b.hold(need)
		}
	}
	return raw, err
}

// countTokens answers /v1/messages/count_tokens.
func (s *Server) countTokens(w http.ResponseWriter, c *call) error {
	_, prompts, _, err := s.readChat(w, c, s.readMessages(c, true))
	if err != nil {
		return err
	}
	s.reply(w, http.StatusOK, map[string]int{"input_tokens": len(prompts[0].Tokens)})
	return nil
}

// messageSink sends an answer as events of the Messages API: blocks, one after another.
type messageSink struct {
	sequel
	head   anthropic.Message
	turn   *conversation.Turn
	opened bool // the client knows that the request was taken

	open  string // the type of the block that is open, "" for none
	index int    // of the next block
}

// Started implements tandem.Sink.
func (m *messageSink) Started(e tandem.Started) error {
	if err := m.sent.by(e.Identity); err != nil {
		return err
	}
	return m.opening()
}

// opening sends, once, the event by which a client knows that its request was taken. From then on pings show that the stream is alive:
// before it, comments, because no event of this API comes before message_start.
func (m *messageSink) opening() error {
	if m.opened {
		return nil
	}
	m.opened = true
	if _, err := m.sequel.send("message_start", anthropic.Event{Type: "message_start", Message: &m.head}); err != nil {
		return err
	}
	ping := func() error { return m.events.Send("ping", anthropic.Event{Type: "ping"}) }
	m.events.Alive(ping)
	if m.sent.mark.resumed {
		return nil // an error may still have a status
	}
	return ping()
}

// Delta implements tandem.Sink.
func (m *messageSink) Delta(d tandem.Delta) error {
	return m.add(m.turn.Read(d.Text, len(d.Tokens)))
}

// add sends pieces of the answer.
func (m *messageSink) add(pieces []calls.Piece) error {
	for _, p := range pieces {
		kind, block := "text", anthropic.Text("")
		switch p.Kind {
		case calls.Thought:
			kind, block = "thinking", anthropic.Thought("")
		case calls.Begin:
			if err := m.shut(); err != nil {
				return err
			}
			kind, block = "tool_use", anthropic.Call("toolu_"+randomHex(12), p.Text, json.RawMessage("{}"))
		case calls.Arguments:
			kind = "tool_use"
		}
		if m.open != kind {
			if err := m.shut(); err != nil {
				return err
			}
			index := m.index
			if err := m.send(anthropic.Event{Type: "content_block_start", Index: &index, Block: &block}); err != nil {
				return err
			}
			m.open = kind
		}
		if p.Kind != calls.Begin {
			if err := m.delta(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// delta sends a piece of the block that is open.
func (m *messageSink) delta(p calls.Piece) error {
	index := m.index
	e := anthropic.Event{Type: "content_block_delta", Index: &index}
	_, err := m.sequel.delta(e.Type, p.Text, func(rest string) any {
		switch p.Kind {
		case calls.Text:
			e.Delta = anthropic.TextDelta{Type: "text_delta", Text: rest}
		case calls.Thought:
			e.Delta = anthropic.ThoughtDelta{Type: "thinking_delta", Thinking: rest}
		case calls.Arguments:
			e.Delta = anthropic.InputDelta{Type: "input_json_delta", JSON: rest}
		}
		return e
	})
	return err
}

func (m *messageSink) send(e anthropic.Event) error {
	_, err := m.sequel.send(e.Type, e)
	return err
}

// shut ends the block that is open.
func (m *messageSink) shut() error {
	if m.open == "" {
		return nil
	}
	index := m.index
	if m.open == "thinking" {
		e := anthropic.Event{Type: "content_block_delta", Index: &index, Delta: anthropic.SignatureDelta{Type: "signature_delta"}}
		if err := m.send(e); err != nil {
			return err
		}
	}
	m.open = ""
	m.index++
	return m.send(anthropic.Event{Type: "content_block_stop", Index: &index})
}

// end sends the end of the answer.
func (m *messageSink) end(x *choice) error {
	if err := m.add(m.turn.End(x.result)); err != nil {
		return err
	}
	if err := m.shut(); err != nil {
		return err
	}
	usage := anthropic.NewUsage(x.result)
	var stop anthropic.StopDelta
	stop.StopReason, stop.StopSequence = anthropic.StopReason(x.result, m.turn.Calls())
	if err := m.send(anthropic.Event{Type: "message_delta", Usage: &usage, Delta: stop}); err != nil {
		return err
	}
	return m.last("message_stop", anthropic.Event{Type: "message_stop"})
}

// streamMessage runs a choice and sends its answer as it comes, behind a mark.
func (s *Server) streamMessage(w http.ResponseWriter, c *call, o *oai.Call, x *choice, head anthropic.Message,
	output conversation.Output, m *mark) error {
	e := sse.New(w, s.cfg.Stall, s.cfg.Ping)
	defer e.Close()
	head.Usage.Input = len(x.request.Tokens)
	sink := &messageSink{sequel: newSequel(e, m), head: head, turn: output.Turn()}
	x.sink = sink
	err := o.InItsWords(s.run(tandem.WithAdmitted(c.Context(), sink.opening), c, []*choice{x}, sink.end))
	return s.broken(c, e, err, func(told *oai.Error) error { return e.Last("error", anthropic.Error(told), nil) })
}
