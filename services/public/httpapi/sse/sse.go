// Package sse sends server-sent events to clients that may be slow, silent or gone.
package sse

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
)

// Writer writes server-sent events. Each is flushed by itself; a call returns when the connection has taken it.
// When nothing has been written for the ping time it sends a comment, so that proxies and clients see that the
// connection is alive: every reader of events skips comments. Nothing, not even the header, is sent before the first event
// or comment, so that an earlier error can have its own status. Safe for concurrent use.
type Writer struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	stall time.Duration
	ping  time.Duration

	comment string
	lines   bool // lines of JSON are written, not events

	mu     sync.Mutex
	buf    bytes.Buffer
	enc    *json.Encoder // into buf
	timer  *time.Timer
	alive  func() error // sends what is sent after the ping time
	begun  bool
	closed bool
	err    error         // why nothing more is written to the connection
	waited time.Duration // for the latest writes
	writes int           // writes that took so long, fewer than stallWrites
}

const (
	stallWrites = 32       // about a kilobyte: a client that takes no more in the stall time is given up
	keptBuffer  = 32 << 10 // bytes: a larger event's memory is given back

	// comment is not followed by an empty line: OpenAI's Python client takes one for an event without data, once an event had an id.
	comment = ": ping\n"
	// blank is the comment of JSON lines, which have none: a line may begin with spaces, by JSON's grammar (RFC 8259, section 2).
	blank = " "
)

// New returns a writer of a request's answer; it must be closed before the handler returns. A client that keeps its
// output waiting for the stall time is given up.
func New(w http.ResponseWriter, stall, ping time.Duration) *Writer {
	e := &Writer{w: w, rc: http.NewResponseController(w), stall: stall, ping: ping, comment: comment}
	e.alive = e.Comment
	e.enc = json.NewEncoder(&e.buf)
	e.enc.SetEscapeHTML(false)
	e.mu.Lock() // it may fire before it is known
	defer e.mu.Unlock()
	e.timer = time.AfterFunc(ping, e.tick)
	return e
}

// Alive makes the writer call send, in place of Comment, when nothing has been written for the ping time: some clients do not count
// comments. send must write something.
func (e *Writer) Alive(send func() error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alive = send
}

// Lines makes the writer send lines of JSON (NDJSON) in place of events, and spaces in place of comments. It returns the writer.
func (e *Writer) Lines() *Writer {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lines, e.comment = true, blank
	return e
}

// Comment sends what readers skip.
func (e *Writer) Comment() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.write([]byte(e.comment))
}

// Send sends v as one event of a kind, "" for the default.
func (e *Writer) Send(kind string, v any) error { return e.SendAt(kind, v, nil) }

// SendAt is Send with an id (nil: none). id is called when it is the event's turn, and must not use the writer.
func (e *Writer) SendAt(kind string, v any, id func() string) error {
	return e.send(kind, v, id, false)
}

// Last is SendAt for the last event: nothing follows it, not even comments that show that the connection is alive.
func (e *Writer) Last(kind string, v any, id func() string) error { return e.send(kind, v, id, true) }

func (e *Writer) send(kind string, v any, id func() string, last bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.closed = e.closed || last }()
	e.buf.Reset()
	if id != nil {
		e.buf.WriteString("id: " + id() + "\n")
	}
	if kind != "" {
		e.buf.WriteString("event: " + kind + "\n")
	}
	if !e.lines {
		e.buf.WriteString("data: ")
	}
	if err := e.enc.Encode(v); err != nil { // ends the line
		return tandem.Errorf("http", tandem.Internal, "event: %w", err)
	}
	if !e.lines {
		e.buf.WriteByte('\n')
	}
	err := e.write(e.buf.Bytes())
	if e.buf.Cap() > keptBuffer {
		e.buf = bytes.Buffer{}
	}
	return err
}

// Done ends the stream as OpenAI's do.
func (e *Writer) Done() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.write([]byte("data: [DONE]\n\n"))
	e.closed = true
	return err
}

// Close ends the pings; the handler may return then.
func (e *Writer) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.timer.Stop()
}

// State returns whether anything was sent, and the error of the connection.
func (e *Writer) State() (begun bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.begun, e.err
}

// tick says that the connection is alive.
func (e *Writer) tick() {
	e.mu.Lock()
	send := e.alive
	e.mu.Unlock()
	_ = send()
}

// write writes and flushes p; e is locked.
func (e *Writer) write(p []byte) error {
	if e.closed || e.err != nil {
		return e.err
	}
	if !e.begun {
		e.begun = true
		h := e.w.Header()
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		if e.lines {
			h.Set("Content-Type", "application/x-ndjson")
		}
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		e.w.WriteHeader(http.StatusOK)
	}
	if e.writes++; e.writes == stallWrites {
		e.writes, e.waited = 0, 0
	}
	begun := time.Now()
	_ = e.rc.SetWriteDeadline(begun.Add(e.stall - e.waited))
	_, err := e.w.Write(p)
	if err == nil {
		err = e.rc.Flush()
	}
	e.waited += time.Since(begun)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.err = tandem.Errorf("http", tandem.Deadline, "the client kept its output waiting for %v: want %d events taken in that time",
			e.stall, stallWrites)
	case err != nil:
		e.err = tandem.Errorf("http", tandem.Canceled, "the client takes no more: %w", err)
	}
	e.timer.Reset(e.ping)
	return e.err
}
