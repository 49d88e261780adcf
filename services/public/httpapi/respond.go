package httpapi

import (
	"cmp"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/responses"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
	"github.com/tandem-llm/tandem/text/calls"
)

// respond answers /v1/responses.
func (s *Server) respond(w http.ResponseWriter, c *call) error {
	var plan *responses.Plan
	o, prompts, output, err := s.readChat(w, c, func(body io.Reader, d ask.Defaults, l oai.Limits) (*oai.Call, error) {
		raw, err := readWhole(body)
		if err == nil {
			plan, err = responses.Read(c.Context(), raw, s.cfg.Strict, c.ignored.add)
		}
		if err != nil {
			return nil, err
		}
		l.Strict, l.Names = false, responses.Names // what was translated has been checked
		return oai.ReadChat(c.translated(plan.Chat), d, l)
	})
	if err != nil {
		return err
	}
	m, name := &mark{created: time.Now().Unix()}, randomHex(12)
	if o.Stream {
		if m, err = takenUp(c, o); err != nil {
			return err
		}
		name = m.name()
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
	output.Custom = plan.Custom()
	r := &responding{turn: output.Turn(), tools: plan.Tools, weight: &weight{all: s.answers}, name: name,
		response: responses.NewResponse("resp_"+name, cmp.Or(o.Model, s.cfg.Model.Name), m.created, plan.Echo)}
	r.turn.Name(name)
	defer r.weight.release()
	x.sink = r
	if o.Stream {
		return s.streamResponse(w, c, o, x, r, m)
	}
	if err := s.run(c.Context(), c, choices, r.end); err != nil {
		return o.InItsWords(r.weight.failed(err))
	}
	s.reply(w, http.StatusOK, r.response)
	return nil
}

// streamResponse runs a choice and sends its answer as it comes, behind a mark.
func (s *Server) streamResponse(w http.ResponseWriter, c *call, o *oai.Call, x *choice, r *responding, m *mark) error {
	e := sse.New(w, s.cfg.Stall, s.cfg.Ping)
	defer e.Close()
	r.sequel, r.sequence = newSequel(e, m), m.at[0].tokens
	err := o.InItsWords(s.run(tandem.WithAdmitted(c.Context(), r.opening), c, []*choice{x}, r.end))
	if err != nil {
		err = r.weight.failed(err)
	}
	return s.broken(c, e, err, r.failed)
}

// responding is the sink of an answer of the Responses API: items, one after another. The items are kept, because the last event holds all.
type responding struct {
	sequel          // without events: the answer is sent as a whole
	name     string // of the answer; ids of items are made of it
	turn     *conversation.Turn
	tools    map[string]responses.Offered
	weight   *weight
	response responses.Response
	items    []responses.Item
	text     []byte // of the item that is open
	open     bool
	kind     calls.Kind // of the item that is open
	opened   bool       // the client knows that the request was taken

	mu       sync.Mutex // held while an event gets its number and is sent: what keeps the stream alive comes from another goroutine
	sequence int        // of the next event
}

// send sends an event with its number.
func (r *responding) send(e responses.Event) error {
	if r.events == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.Sequence = r.sequence
	sent, err := r.sequel.send(e.Type, e)
	if sent {
		r.sequence++
	}
	return err
}

// delta sends a piece of a text.
func (r *responding) delta(e responses.Event, text string) error {
	if r.events == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	sent, err := r.sequel.delta(e.Type, text, func(rest string) any {
		e.Sequence, e.Delta = r.sequence, rest
		return e
	})
	if sent {
		r.sequence++
	}
	return err
}

// id returns the id of the next item.
func (r *responding) id(kind string) string { return kind + made(r.name, len(r.items)) }

// Started implements tandem.Sink.
func (r *responding) Started(e tandem.Started) error {
	if r.events != nil {
		if err := r.sent.by(e.Identity); err != nil {
			return err
		}
	}
	return r.opening()
}

// opening sends, once, the events by which a client knows that its request was taken. Its library fails if another event comes first.
// From then on the second of them, with its number, shows that the stream is alive: some clients do not count comments.
func (r *responding) opening() error {
	if r.opened || r.events == nil {
		return nil
	}
	r.opened = true
	begun := r.response // of its own: the answer changes meanwhile
	taken := responses.Event{Type: "response.in_progress", Response: &begun}
	if err := r.send(responses.Event{Type: "response.created", Response: &begun}); err != nil {
		return err
	}
	if err := r.send(taken); err != nil {
		return err
	}
	r.events.Alive(func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		taken.Sequence = r.sequence
		r.sequence++
		return r.events.SendAt(taken.Type, taken, r.sent.id(0, 0, 1))
	})
	return nil
}

// failed sends an error, on which OpenAI's libraries raise, and the answer with it, by which Codex knows what went wrong.
func (r *responding) failed(told *oai.Error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := responses.Event{Type: "error", Sequence: r.sequence, Error: &responses.Error{Failure: responses.Failure{
		Code: cmp.Or(told.Code, "server_error"), Message: told.Message, Request: told.Request}, Type: told.Type}}
	if told.Param != "" {
		e.Error.Param = &told.Param
	}
	if err := r.events.Send(e.Type, e); err != nil {
		return err
	}
	answer := r.response
	answer.Status, answer.Error = "failed", &e.Error.Failure
	return r.events.Last("response.failed", responses.Event{Type: "response.failed", Sequence: r.sequence + 1, Response: &answer}, nil)
}

// Delta implements tandem.Sink.
func (r *responding) Delta(d tandem.Delta) error {
	if err := r.weight.add(len(d.Text)); err != nil {
		return err
	}
	return r.add(r.turn.Read(d.Text, len(d.Tokens)))
}

// item returns the item that is open, and its place.
func (r *responding) item() (*responses.Item, *int) {
	at := len(r.items) - 1
	return &r.items[at], &at
}

// custom reports whether the item that is open is a call of a custom tool.
func (r *responding) custom() bool { item, _ := r.item(); return item.Type == "custom_tool_call" }

var zero = new(int)

// add takes pieces of the answer.
func (r *responding) add(pieces []calls.Piece) error {
	for _, p := range pieces {
		if p.Kind == calls.Begin || p.Kind != calls.Arguments && (!r.open || r.kind != p.Kind) {
			if err := r.begin(p); err != nil {
				return err
			}
		}
		if p.Kind == calls.Begin {
			continue
		}
		r.text = append(r.text, p.Text...)
		item, at := r.item()
		e := responses.Event{ItemID: item.ID, Output: at}
		switch {
		case p.Kind == calls.Text:
			e.Type, e.Content, e.Logprobs = "response.output_text.delta", zero, []any{}
		case p.Kind == calls.Thought:
			e.Type, e.Content = "response.reasoning_text.delta", zero
		case r.custom():
			e.Type = "response.custom_tool_call_input.delta"
		default:
			e.Type = "response.function_call_arguments.delta"
		}
		if err := r.delta(e, p.Text); err != nil {
			return err
		}
	}
	return nil
}

// begin opens an item.
func (r *responding) begin(p calls.Piece) error {
	if err := r.shut("completed"); err != nil {
		return err
	}
	it := responses.Item{Status: "in_progress"}
	switch p.Kind {
	case calls.Text:
		it.ID, it.Type, it.Role, it.Content = r.id("msg_"), "message", "assistant", []responses.Part{}
	case calls.Thought:
		it.ID, it.Type, it.Content, it.Summary = r.id("rs_"), "reasoning", []responses.Part{}, []responses.Part{}
	default:
		it.ID, it.Type, it.CallID, it.Name = r.id("fc_"), "function_call", r.turn.ID(), p.Text
		if t, ok := r.tools[p.Text]; ok {
			it.Name, it.Namespace = t.Name, t.Namespace
			if t.Custom {
				it.ID, it.Type, it.Input = r.id("ctc_"), "custom_tool_call", new(string)
			}
		}
		if it.Input == nil {
			it.Arguments = new(string)
		}
	}
	r.items, r.open, r.kind, r.text = append(r.items, it), true, p.Kind, r.text[:0]
	if p.Kind == calls.Begin {
		r.kind = calls.Arguments
	}
	item, at := r.item()
	if err := r.send(responses.Event{Type: "response.output_item.added", Output: at, Item: item}); err != nil || r.kind == calls.Arguments {
		return err
	}
	part := r.part("")
	return r.send(responses.Event{Type: "response.content_part.added", ItemID: item.ID, Output: at, Content: zero, Part: &part})
}

// part returns a part of the item that is open.
func (r *responding) part(text string) responses.Part {
	if r.kind == calls.Thought {
		return responses.Thought(text)
	}
	return responses.Text(text)
}

// shut ends the item that is open.
func (r *responding) shut(status string) error {
	if !r.open {
		return nil
	}
	r.open = false
	item, at := r.item()
	text := string(r.text)
	e := responses.Event{ItemID: item.ID, Output: at}
	switch {
	case r.kind == calls.Arguments && r.custom():
		*item.Input = text
		e.Type, e.Input = "response.custom_tool_call_input.done", item.Input
	case r.kind == calls.Arguments:
		*item.Arguments = text
		e.Type, e.Arguments, e.Name = "response.function_call_arguments.done", item.Arguments, item.Name
	default:
		part := r.part(text)
		item.Content = append(item.Content, part)
		e.Type, e.Content, e.Text, e.Logprobs = "response.output_text.done", zero, &text, []any{}
		if r.kind == calls.Thought {
			e.Type, e.Logprobs = "response.reasoning_text.done", nil
		}
		if err := r.send(e); err != nil {
			return err
		}
		e = responses.Event{Type: "response.content_part.done", ItemID: item.ID, Output: at, Content: zero, Part: &part}
	}
	if item.Status = status; r.kind == calls.Arguments {
		item.Status = "completed" // a call is told when it is
	}
	if err := r.send(e); err != nil {
		return err
	}
	return r.send(responses.Event{Type: "response.output_item.done", Output: at, Item: item})
}

// end completes the answer.
func (r *responding) end(x *choice) error {
	if err := r.add(r.turn.End(x.result)); err != nil {
		return err
	}
	status := "completed"
	if x.result.Finish == tandem.FinishLength {
		status = "incomplete"
	}
	if err := r.shut(status); err != nil {
		return err
	}
	if r.items == nil {
		r.items = []responses.Item{}
	}
	r.response = r.response.Ended(x.result, r.turn.Thoughts(), r.items)
	if r.events == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last("response."+status, responses.Event{Type: "response." + status, Sequence: r.sequence, Response: &r.response})
}
