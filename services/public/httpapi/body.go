package httpapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"mime"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// bodyTypes are the content types that curl and client libraries send for JSON; "" is none.
var bodyTypes = map[string]bool{"": true, "application/json": true, "text/json": true, "text/plain": true,
	"application/x-www-form-urlencoded": true}

// body is a request's body while it arrives. It is decoded as it is read, so it takes no more memory than the result.
// Stages: up to smallBody is read at once; then it takes a step out of Server.bodies before each stepBody that it reads, and holds all
// until done. A body that is late, or slow while others wait, is refused with 408, one that waited too long with 429.
type body struct {
	s    *Server
	c    *call
	rc   *http.ResponseController
	from io.Reader
	due  time.Time // all of it must be here
	n    atomic.Int64

	held    int64        // bytes; bodies' lock guards it
	took    int64        // the same, for the reader
	since   atomic.Int64 // it reads on, by ticks
	at      atomic.Int64 // n of then
	tooSlow atomic.Bool
	err     error
	sum     hash.Hash // of what was read
}

// open returns a request's body; the caller must call done when it keeps nothing of it any more. Errors: *oai.Error.
func (s *Server) open(w http.ResponseWriter, c *call) (*body, error) {
	kind, _, _ := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if !bodyTypes[kind] {
		return nil, oai.Refusal(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Type is %.100q: want application/json",
			kind)
	}
	if e := c.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, oai.Refusal(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Encoding is %.100q: want none", e)
	}
	if c.ContentLength > s.cfg.MaxBody {
		return nil, s.tooLarge()
	}
	b := &body{s: s, c: c, rc: http.NewResponseController(w), from: http.MaxBytesReader(w, c.Body, s.cfg.MaxBody),
		due: time.Now().Add(s.cfg.Body), sum: sha256.New()}
	_ = b.rc.SetReadDeadline(b.due)
	guestOf(c.Context()).reads(true)
	return b, nil
}

// Read implements io.Reader. Errors are sticky: io.EOF, *oai.Error, Canceled, Exhausted.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.n.Load() >= smallBody+b.took {
		if b.err = b.wait(); b.err != nil {
			return 0, b.err
		}
	}
	n, err := b.from.Read(p[:min(int64(len(p)), smallBody+b.took-b.n.Load())])
	b.n.Add(int64(n))
	b.sum.Write(p[:n])
	if err != nil {
		b.err = b.explain(err)
		b.read()
	}
	return n, b.err
}

// explain turns an error of the connection into the one for the client.
func (b *body) explain(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		_ = b.rc.SetReadDeadline(time.Time{}) // from now on a silent client is one that waits
		return io.EOF
	case errors.As(err, new(*http.MaxBytesError)):
		return b.s.tooLarge()
	case b.tooSlow.Load():
		return oai.Refusal(http.StatusRequestTimeout, "body_timeout",
			"the body came with less than %d KiB a second while others waited: try again", leastRate>>10)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return oai.Refusal(http.StatusRequestTimeout, "body_timeout", "the body did not come within %v", b.s.cfg.Body)
	}
	return tandem.Errorf(op, tandem.Canceled, "the client left while it sent the body")
}

// wait takes a step of memory. The time that it has to wait does not count against the client.
func (b *body) wait() error {
	begun := time.Now()
	waited := false
	ctx, cancel := context.WithTimeout(b.c.Context(), b.s.cfg.Body)
	defer cancel()
	err := b.s.bodies.grow(ctx, b, func() {
		waited = true
		b.s.bodies.read(b)
		_ = b.rc.SetReadDeadline(time.Time{})
	})
	switch {
	case err != nil && b.c.Context().Err() != nil:
		return tandem.Errorf(op, tandem.Canceled, "the client left while it waited")
	case err != nil:
		return tandem.Errorf(op, tandem.Exhausted, "large bodies of others are being read, for %v by now: try again", b.s.cfg.Body)
	}
	b.took += stepBody
	if waited {
		b.due = b.due.Add(time.Since(begun))
		_ = b.rc.SetReadDeadline(b.due)
	}
	return nil
}

// translated reads what a body was translated into, until the client has gone.
type translated struct {
	ctx context.Context
	of  *bytes.Reader
}

func (c *call) translated(chat []byte) *translated {
	return &translated{c.Context(), bytes.NewReader(chat)}
}

func (t *translated) Read(p []byte) (int, error) {
	if t.ctx.Err() != nil {
		return 0, tandem.Errorf(op, tandem.Canceled, "the client left while its body was read")
	}
	return t.of.Read(p)
}

// hold takes memory for what becomes of a body that is here, so that it holds so many bytes in all.
func (b *body) hold(bytes int64) error {
	for smallBody+b.took < bytes {
		if err := b.wait(); err != nil {
			return err
		}
	}
	b.read() // a body that is here is not slow
	_ = b.rc.SetReadDeadline(time.Time{})
	return nil
}

// readsOn begins to measure the rate at which the body comes.
func (b *body) readsOn(now time.Time) {
	b.since.Store(ticks(now))
	b.at.Store(b.n.Load())
}

// read notes that the reading has ended.
func (b *body) read() {
	guestOf(b.c.Context()).reads(false)
	b.s.bodies.read(b)
}

// done gives the body's memory back. It may be called again.
func (b *body) done() {
	b.read()
	b.s.bodies.release(b)
}

// refused returns err, which ends the request, and makes a client that is still sending stop.
func (b *body) refused(w http.ResponseWriter, err error) error {
	var e *oai.Error
	if errors.As(b.err, &e) && e.Status == http.StatusRequestTimeout {
		w.Header().Set("Connection", "close")
	}
	return err
}

func (s *Server) tooLarge() error {
	return oai.Refusal(http.StatusRequestEntityTooLarge, "body_too_large", "the body has more than %d bytes", s.cfg.MaxBody)
}

// limits returns what may be kept of a call's body.
func (s *Server) limits(c *call) oai.Limits {
	l := oai.Limits{Text: s.cfg.Limits.PromptBytes, Tokens: s.cfg.Limits.Context, Strict: s.cfg.Strict, Ignored: c.ignored.add}
	if s.cfg.Chat != nil {
		l.Reads = s.cfg.Chat.Reads
	}
	return l
}

// texts waits for the memory in which a text of n bytes becomes tokens. Errors: Exhausted, Canceled.
func (s *Server) texts(ctx context.Context, n int) (giveBack func(), err error) {
	return s.cfg.Texts.Within(ctx, n, s.cfg.Body)
}
