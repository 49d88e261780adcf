package responses

import (
	"cmp"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// Writer writes the answer to a request of the Responses API: items, one after another. It keeps them, because the last event holds all.
type Writer struct {
	name     string // the answer's; ids of items are made of it
	tools    map[string]bodies.Offered
	response Response
	stream   *sse.Stream // takes the events; nil: the answer is sent as a whole

	text   []byte      // the open item's
	kind   answer.Kind // the open item's; Ended if none is open
	opened bool        // the client knows that the request was taken

	mu       sync.Mutex // held while an event gets its number and is sent: what keeps the stream alive comes from another goroutine
	sequence int        // the next event's number
}

// NewWriter returns the writer of an answer of a model to what p was read from. It writes to a stream or, if that is nil, as a whole.
func NewWriter(of bodies.Asked, name, model string, created int64, to *sse.Stream) *Writer {
	return &Writer{name: name, tools: of.Tools, stream: to, response: newResponse("resp_"+name, model, created, of.Echo)}
}

// Sink returns what takes the events of the only choice.
func (w *Writer) Sink(*answer.Choice) func(*answer.Event) error {
	if w.kind = answer.Ended; w.stream != nil {
		w.sequence = w.stream.Events()
	}
	return w.event
}

// Body returns an answer that is sent as a whole.
func (w *Writer) Body() any { return w.response }

// send sends an event with its number.
func (w *Writer) send(e Event) error {
	if w.stream == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Sequence = w.sequence
	sent, err := w.stream.Step(0, 0, e.Type, e)
	if sent {
		w.sequence++
	}
	return err
}

// delta sends a piece of a text.
func (w *Writer) delta(e Event, text string) error {
	if w.stream == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sent, err := w.stream.Delta(0, 0, e.Type, text, func(rest string) any {
		e.Sequence, e.Delta = w.sequence, rest
		return e
	})
	if sent {
		w.sequence++
	}
	return err
}

// Open sends, once, the events by which a client knows that its request was taken. Its library fails if another event comes first.
// From then on the second of them, with its number, shows that the stream is alive: some clients do not count comments.
func (w *Writer) Open() error {
	if w.opened || w.stream == nil {
		return nil
	}
	w.opened = true
	begun := w.response // a copy: the answer changes meanwhile
	taken := Event{Type: "response.in_progress", Response: &begun}
	if err := w.send(Event{Type: "response.created", Response: &begun}); err != nil {
		return err
	}
	if err := w.send(taken); err != nil {
		return err
	}
	w.stream.Alive(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		taken.Sequence = w.sequence
		w.sequence++
		return w.stream.Beat(taken.Type, taken)
	})
	return nil
}

// item returns the item that is open, and its place.
func (w *Writer) item() (*Item, *int) {
	at := len(w.response.Output) - 1
	return &w.response.Output[at], &at
}

var zero = new(int)

// event takes an event of the answer.
func (w *Writer) event(e *answer.Event) error {
	switch {
	case e.Kind == answer.Started:
		return w.Open()
	case e.Kind == answer.Ended:
		return w.last(e)
	case e.Kind == answer.Call:
		return w.begin(e)
	case e.Text == "":
		return nil
	case e.Kind != answer.Arguments && e.Kind != w.kind:
		if err := w.begin(e); err != nil {
			return err
		}
	}
	w.text = append(w.text, e.Text...)
	item, at := w.item()
	told := Event{ItemID: item.ID, Output: at}
	switch {
	case e.Kind == answer.Text:
		told.Type, told.Content, told.Logprobs = "response.output_text.delta", zero, []any{}
	case e.Kind == answer.Thought:
		told.Type, told.Content = "response.reasoning_text.delta", zero
	case e.Custom:
		told.Type = "response.custom_tool_call_input.delta"
	default:
		told.Type = "response.function_call_arguments.delta"
	}
	return w.delta(told, e.Text)
}

// begin opens an item.
func (w *Writer) begin(e *answer.Event) error {
	if err := w.shut("completed"); err != nil {
		return err
	}
	id := sse.Made(w.name, len(w.response.Output))
	it := Item{Status: "in_progress"}
	switch e.Kind {
	case answer.Text:
		it.ID, it.Type, it.Role, it.Content = "msg_"+id, "message", "assistant", []Part{}
	case answer.Thought:
		it.ID, it.Type, it.Content, it.Summary = "rs_"+id, "reasoning", []Part{}, []Part{}
	default:
		it.ID, it.Type, it.CallID, it.Name = "fc_"+id, "function_call", e.ID, e.Text
		if t, ok := w.tools[e.Text]; ok {
			it.Name, it.Namespace = t.Name, t.Namespace
		}
		if e.Custom {
			it.ID, it.Type, it.Input = "ctc_"+id, "custom_tool_call", new(string)
		} else {
			it.Arguments = new(string)
		}
	}
	w.response.Output, w.kind, w.text = append(w.response.Output, it), e.Kind, w.text[:0]
	item, at := w.item()
	if err := w.send(Event{Type: "response.output_item.added", Output: at, Item: item}); err != nil || e.Kind == answer.Call {
		return err
	}
	part := w.part("")
	return w.send(Event{Type: "response.content_part.added", ItemID: item.ID, Output: at, Content: zero, Part: &part})
}

// part returns a part of the item that is open.
func (w *Writer) part(text string) Part {
	if w.kind == answer.Thought {
		return Part{Type: "reasoning_text", Text: text}
	}
	return Part{"output_text", text, []any{}, []any{}}
}

// shut ends the item that is open.
func (w *Writer) shut(status string) error {
	if w.kind == answer.Ended {
		return nil
	}
	kind := w.kind
	item, at := w.item()
	text := string(w.text)
	e := Event{ItemID: item.ID, Output: at}
	switch {
	case item.Input != nil:
		*item.Input = text
		e.Type, e.Input = "response.custom_tool_call_input.done", item.Input
	case kind == answer.Call:
		*item.Arguments = text
		e.Type, e.Arguments, e.Name = "response.function_call_arguments.done", item.Arguments, item.Name
	default:
		part := w.part(text)
		item.Content = append(item.Content, part)
		e.Type, e.Content, e.Text, e.Logprobs = "response.output_text.done", zero, &text, []any{}
		if kind == answer.Thought {
			e.Type, e.Logprobs = "response.reasoning_text.done", nil
		}
		if err := w.send(e); err != nil {
			return err
		}
		e = Event{Type: "response.content_part.done", ItemID: item.ID, Output: at, Content: zero, Part: &part}
	}
	if item.Status, w.kind = status, answer.Ended; kind == answer.Call {
		item.Status = "completed" // a call is told when it is
	}
	if err := w.send(e); err != nil {
		return err
	}
	return w.send(Event{Type: "response.output_item.done", Output: at, Item: item})
}

// last completes the answer.
func (w *Writer) last(e *answer.Event) error {
	status, r := "completed", &w.response
	if e.Result.Finish == tandem.FinishLength {
		status, r.Incomplete = "incomplete", &Incomplete{"max_output_tokens"}
	}
	if err := w.shut(status); err != nil {
		return err
	}
	r.Status, r.Usage, r.Tandem = status, newUsage(e.Result, e.Thoughts), oai.Repeated(*e.Result)
	if w.stream == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stream.Final("response."+status, Event{Type: "response." + status, Sequence: w.sequence, Response: r})
}

// End ends a stream, of which nothing is left to tell.
func (w *Writer) End() error { return nil }

// Fail ends a stream with an error, on which OpenAI's libraries raise, and the answer with it, by which Codex knows what went wrong.
func (w *Writer) Fail(told *oai.Error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := Event{Type: "error", Sequence: w.sequence, Error: &Error{Failure: Failure{
		Code: cmp.Or(told.Code, "server_error"), Message: told.Message, Request: told.Request}, Type: told.Type}}
	if told.Param != "" {
		e.Error.Param = &told.Param
	}
	if err := w.stream.Send(e.Type, e); err != nil {
		return err
	}
	failed := w.response
	failed.Status, failed.Error, failed.Output = "failed", &e.Error.Failure, []Item{}
	return w.stream.Last("response.failed", Event{Type: "response.failed", Sequence: w.sequence + 1, Response: &failed}, nil)
}
