// Package answer makes one stream of events of what a generation writes. Every front end, gRPC and each API over HTTP, tells its clients
// these events in its own form, one by one or put together.
package answer

import (
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/calls"
)

// Kind is what an event tells.
type Kind uint8

// An answer is Started, then pieces of the four kinds, then Ended. Progress comes before, of a request that asks for it.
const (
	Started   Kind = iota
	Text           // a piece of the answer's text
	Thought        // a piece of what the model thinks
	Call           // the beginning of a call of a tool: Text is the tool's name
	Arguments      // a piece of the latest call's arguments: of a JSON object or, for a custom tool, of a text
	Ended
	Progress // the prompt has been read so far
)

// Event is one event of an answer. It and what it points to are valid until the sink returns.
type Event struct {
	Kind   Kind
	Text   string
	Call   int    // which call, from 0, in Call and Arguments
	ID     string // the call's, in Call
	Custom bool   // the tool takes a text, in Call and Arguments
	// Output is what a piece was read from. Only the first piece of an output has it. Output that makes no piece comes with an empty Text:
	// half a character, or the beginning of a marker or of a stop sequence.
	Output *tandem.Delta

	Identity tandem.Identity // in Started
	Started  *tandem.Started // in Started
	Progress *tandem.PromptProgress

	Result   *tandem.Result // in Ended: usage, and why the answer ended
	Thoughts int            // in Ended: tokens that were thoughts
	Calls    int            // in Ended: calls of tools
}

// Called reports whether an answer ended with calls of tools, which is another end than that of a text.
func (e *Event) Called() bool { return e.Result.Finish == tandem.FinishStop && e.Calls > 0 }

// Choice is one of the generations that answer a request.
type Choice struct {
	Index   int
	First   bool // the first choice of its prompt: the others find what it has computed
	Chars   int  // characters of its prompt, where log-probabilities are told by their places
	Request tandem.Request
	Began   time.Duration // when its first token came, from the request's arrival; 0 before
}

// Maker makes the events of one answer of a generator's output: it implements tandem.Sink. Not safe for concurrent use.
type Maker struct {
	sink   func(*Event) error
	output conversation.Output
	reader *calls.Reader // finds calls and thoughts; nil: the output is text as it comes
	name   string        // what ids of calls are made of; "": they are random
	made   int           // ids
	custom map[int]bool  // calls of tools that take a text
	within bool          // the last piece was of a thought
	tokens int           // number of tokens that were thoughts

	event Event // the latest one, and the output that it is of: a generation makes thousands
	delta tandem.Delta
}

// New returns the maker of an answer that is read as output says, and told to sink. Ids of calls follow from name and their order, so that
// an answer whose stream is taken up again has the same ones; without a name they are random.
func New(output conversation.Output, name string, sink func(*Event) error) *Maker {
	m := &Maker{sink: sink, output: output, name: name, custom: map[int]bool{}}
	if output.Reader != nil {
		m.reader = output.Reader()
	}
	return m
}

// Started implements tandem.Sink.
func (m *Maker) Started(e tandem.Started) error {
	return m.send(Event{Kind: Started, Identity: e.Identity, Started: &e})
}

// Progress implements tandem.Sink.
func (m *Maker) Progress(p tandem.PromptProgress) error {
	return m.send(Event{Kind: Progress, Progress: &p})
}

// Delta implements tandem.Sink.
func (m *Maker) Delta(d tandem.Delta) error {
	var pieces []calls.Piece
	switch {
	case m.reader != nil:
		pieces = m.reader.Read(d.Text)
	case d.Text != "":
		pieces = []calls.Piece{{Kind: calls.Text, Text: d.Text}}
	}
	m.count(pieces, len(d.Tokens))
	if m.delta = d; len(pieces) == 0 {
		return m.send(Event{Kind: Text, Output: &m.delta})
	}
	return m.tell(pieces, &m.delta)
}

func (m *Maker) send(e Event) error {
	m.event = e
	return m.sink(&m.event)
}

// End tells what is left at the end of the output, and how it ended.
func (m *Maker) End(how tandem.Result) error {
	e := Event{Kind: Ended, Result: &how}
	if m.reader != nil {
		if err := m.tell(m.reader.End(how.Finish != tandem.FinishStop || how.Stopped != ""), nil); err != nil {
			return err
		}
		e.Calls = m.reader.Calls()
	}
	e.Thoughts = m.tokens
	return m.send(e)
}

var kinds = [...]Kind{calls.Text: Text, calls.Thought: Thought, calls.Begin: Call, calls.Arguments: Arguments}

// tell tells pieces of an output.
func (m *Maker) tell(pieces []calls.Piece, of *tandem.Delta) error {
	for _, p := range pieces {
		e := Event{Kind: kinds[p.Kind], Text: p.Text, Call: p.Call, Output: of}
		switch of = nil; p.Kind {
		case calls.Begin:
			m.custom[p.Call] = m.output.Custom[p.Text]
			e.ID, e.Custom = m.id(), m.custom[p.Call]
		case calls.Arguments:
			if e.Custom = m.custom[p.Call]; e.Custom {
				e.Text = conversation.CustomInput(p.Text)
			}
		}
		if err := m.send(e); err != nil {
			return err
		}
	}
	return nil
}

// count counts the tokens of thoughts: of output that ends one, by their part of its bytes.
func (m *Maker) count(pieces []calls.Piece, tokens int) {
	thought, all := 0, 0
	for _, p := range pieces {
		all += len(p.Text)
		if m.within = p.Kind == calls.Thought; m.within {
			thought += len(p.Text)
		}
	}
	switch {
	case all > 0:
		m.tokens += (tokens*thought + all/2) / all
	case m.within: // markers, and the beginning of what may be one
		m.tokens += tokens
	}
}

// id returns the id of the next call.
func (m *Maker) id() string {
	var b [12]byte
	if m.name == "" {
		_, _ = crand.Read(b[:])
	} else {
		sum := sha256.Sum256(fmt.Appendf(nil, "call %s %d", m.name, m.made))
		b = [12]byte(sum[:12])
	}
	m.made++
	if !m.output.ShortIDs {
		return "call_" + hex.EncodeToString(b[:])
	}
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 9)
	for i := range id {
		id[i] = letters[int(b[i])%len(letters)]
	}
	return string(id)
}
