// Package anthropic writes the answers of Anthropic's Messages API.
package anthropic

import (
	crand "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// usage counts tokens; input tokens without those that were found in the cache.
type usage struct {
	Input   int `json:"input_tokens"`
	Created int `json:"cache_creation_input_tokens"`
	Cached  int `json:"cache_read_input_tokens"`
	Output  int `json:"output_tokens"`
}

func newUsage(r tandem.Result) usage {
	return usage{Input: r.PromptTokens - r.CachedTokens, Cached: r.CachedTokens, Output: r.OutputTokens}
}

// reply is an answer.
type reply struct {
	ID           string    `json:"id"`
	Type         string    `json:"type"` // "message"
	Role         string    `json:"role"`
	Model        string    `json:"model"`
	Content      []content `json:"content"`
	StopReason   *string   `json:"stop_reason"`
	StopSequence *string   `json:"stop_sequence"`
	Usage        usage     `json:"usage"`
}

// content is a block of an answer, or a piece of one; only the fields of its type are there.
type content struct {
	Type      string          `json:"type"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	JSON      *string         `json:"partial_json,omitempty"`
	Signature *string         `json:"signature,omitempty"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
}

// textBlock returns a block of text, thought one of a thought, toolUse one of a call. A thought needs no signature: whoever sends it back
// is believed.
func textBlock(s string) content { return content{Type: "text", Text: &s} }
func thought(s string) content {
	return content{Type: "thinking", Thinking: &s, Signature: new(string)}
}
func toolUse(name, input string) content {
	b := make([]byte, 12)
	_, _ = crand.Read(b)
	return content{Type: "tool_use", ID: "toolu_" + hex.EncodeToString(b), Name: name, Input: json.RawMessage(input)}
}

// event is one event of a stream; only the fields of its type are there.
type event struct {
	Type    string   `json:"type"`
	Message *reply   `json:"message,omitempty"`
	Index   *int     `json:"index,omitempty"`
	Block   *content `json:"content_block,omitempty"`
	Delta   any      `json:"delta,omitempty"` // content or stop
	Usage   *usage   `json:"usage,omitempty"`
}

// stop ends a message.
type stop struct {
	Reason   string  `json:"stop_reason"`
	Sequence *string `json:"stop_sequence"` // the client's that ended it
}

// newStop returns why an answer with that many calls ended, in this API's words.
func newStop(r *tandem.Result, calls int) stop {
	switch {
	case r.Finish == tandem.FinishLength:
		return stop{"max_tokens", nil}
	case calls > 0:
		return stop{"tool_use", nil}
	case r.Stopped != "":
		return stop{"stop_sequence", &r.Stopped}
	}
	return stop{"end_turn", nil}
}

// Writer writes the answer to a request of the Messages API: blocks, one after another.
type Writer struct {
	Stream *sse.Stream // takes the events; nil: the answer is sent as a whole

	head   reply
	whole  answer.Whole
	opened bool   // the client knows that the request was taken
	open   string // the type of the block that is open, "" for none
	index  int    // the next block's
}

// NewWriter returns the writer of an answer of a model, whose id ends with name, to a stream or, if that is nil, as a whole.
func NewWriter(name, model string, to *sse.Stream) *Writer {
	return &Writer{Stream: to, head: reply{ID: "msg_" + name, Type: "message", Role: "assistant", Model: model, Content: []content{}}}
}

// Sink returns what takes the events of the only choice.
func (w *Writer) Sink(of *answer.Choice) func(*answer.Event) error {
	if w.Stream == nil {
		return w.whole.Add
	}
	w.head.Usage.Input = len(of.Request.Tokens)
	return w.event
}

// Body returns an answer that is sent as a whole.
func (w *Writer) Body() any {
	m, all := w.head, &w.whole
	if all.Thought.Len() > 0 {
		m.Content = append(m.Content, thought(all.Thought.String()))
	}
	if all.Text.Len() > 0 {
		m.Content = append(m.Content, textBlock(all.Text.String()))
	}
	for _, t := range all.Calls {
		m.Content = append(m.Content, toolUse(t.Name, t.Arguments))
	}
	end := newStop(&all.Result, len(all.Calls))
	m.StopReason, m.StopSequence, m.Usage = &end.Reason, end.Sequence, newUsage(all.Result)
	return m
}

// Open sends, once, the event by which a client knows that its request was taken. From then on pings show that the stream is alive: before
// it, comments, because no event of this API comes before message_start.
func (w *Writer) Open() error {
	if w.opened || w.Stream == nil {
		return nil
	}
	w.opened = true
	if err := w.send(event{Type: "message_start", Message: &w.head}); err != nil {
		return err
	}
	ping := func() error { return w.Stream.Send("ping", event{Type: "ping"}) }
	w.Stream.Alive(ping)
	if w.Stream.Resumed() {
		return nil // an error may still have a status
	}
	return ping()
}

// event sends an event of the answer.
func (w *Writer) event(e *answer.Event) error {
	block := content{}
	switch e.Kind {
	case answer.Started:
		return w.Open()
	case answer.Ended:
		return w.last(e)
	case answer.Call:
		if err := w.shut(); err != nil {
			return err
		}
		return w.begin(toolUse(e.Text, "{}"))
	case answer.Text:
		block = textBlock("")
	case answer.Thought:
		block = thought("")
	case answer.Arguments:
		block = content{Type: "tool_use"}
	}
	if e.Text == "" {
		return nil
	}
	if w.open != block.Type {
		if err := w.shut(); err != nil {
			return err
		}
		if err := w.begin(block); err != nil {
			return err
		}
	}
	_, err := w.Stream.Delta(0, 0, "content_block_delta", e.Text, func(rest string) any {
		d := content{Type: "text_delta", Text: &rest}
		switch e.Kind {
		case answer.Thought:
			d = content{Type: "thinking_delta", Thinking: &rest}
		case answer.Arguments:
			d = content{Type: "input_json_delta", JSON: &rest}
		}
		return event{Type: "content_block_delta", Index: &w.index, Delta: d}
	})
	return err
}

func (w *Writer) send(e event) error {
	_, err := w.Stream.Step(0, 0, e.Type, e)
	return err
}

// begin opens a block.
func (w *Writer) begin(block content) error {
	w.open = block.Type
	return w.send(event{Type: "content_block_start", Index: &w.index, Block: &block})
}

// shut ends the block that is open.
func (w *Writer) shut() error {
	if w.open == "" {
		return nil
	}
	if w.open == "thinking" {
		signed := content{Type: "signature_delta", Signature: new(string)}
		if err := w.send(event{Type: "content_block_delta", Index: &w.index, Delta: signed}); err != nil {
			return err
		}
	}
	err := w.send(event{Type: "content_block_stop", Index: &w.index})
	w.open = ""
	w.index++
	return err
}

// last sends the end of the answer.
func (w *Writer) last(e *answer.Event) error {
	if err := w.shut(); err != nil {
		return err
	}
	usage := newUsage(*e.Result)
	if err := w.send(event{Type: "message_delta", Usage: &usage, Delta: newStop(e.Result, e.Calls)}); err != nil {
		return err
	}
	return w.Stream.Final("message_stop", event{Type: "message_stop"})
}

// End ends a stream, of which nothing is left to tell.
func (w *Writer) End() error { return nil }

// Fail ends a stream with an error.
func (w *Writer) Fail(e *oai.Error) error { return w.Stream.Last("error", Error(e), nil) }

// Error returns an error's body.
func Error(e *oai.Error) any {
	type details struct {
		Code        string   `json:"error_code"`
		Unsupported []string `json:"unsupported"`
	}
	type inner struct {
		Type    string   `json:"type"`
		Message string   `json:"message"`
		Details *details `json:"details,omitempty"`
	}
	out := struct {
		Type    string `json:"type"`
		Error   inner  `json:"error"`
		Request string `json:"request_id,omitempty"`
	}{"error", inner{Type: errorTypes[e.Status], Message: e.Message}, e.Request}
	if out.Error.Type == "" {
		out.Error.Type = "invalid_request_error"
		if e.Status >= http.StatusInternalServerError {
			out.Error.Type = "api_error"
		}
	}
	switch e.Code {
	case "thread_unsupported_request":
		out.Error.Details = &details{e.Code, []string{}}
	case "context_length_exceeded": // programs find the two numbers by these words
		out.Error.Message = e.TooLong.Words()
	}
	return out
}

// errorTypes are this API's names of statuses.
var errorTypes = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error",
	http.StatusGatewayTimeout: "timeout_error", http.StatusServiceUnavailable: "overloaded_error",
}
