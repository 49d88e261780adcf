package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"hash"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

const (
	nestedSize  = 768           // bytes of the largest object in an array that a reader keeps until the message is complete
	smallNested = 8 * smallBody // bytes of such objects that do not count, as a small body does not
)

// bodyTypes are the content types that curl and client libraries send for JSON; "" is none.
var bodyTypes = map[string]bool{"": true, "application/json": true, "text/json": true, "text/plain": true,
	"application/x-www-form-urlencoded": true}

// body is a request's body while it arrives. It is decoded as it is read, so it takes no more memory than the result.
// Stages: up to smallBody is read at once; then it takes a step out of reading.memory before each stepBody that it reads, and holds all
// until done. A body that is late, or slow while others wait, is refused with 408, one that waited too long with 429.
type body struct {
	r    *reading
	c    *call
	rc   *http.ResponseController
	from io.Reader
	due  time.Time // all of it must be here
	n    atomic.Int64

	held    int64        // bytes; bodies' lock guards it
	took    int64        // the same, for the reader
	times   int64        // how many times its size its texts take while they are put together; 0: once
	nested  int64        // objects and arrays in arrays that were read, where they are put together
	since   atomic.Int64 // it reads on, by ticks
	at      atomic.Int64 // n of then
	tooSlow atomic.Bool
	err     error
	sum     hash.Hash // the digest of what was read
}

// reading reads the bodies of requests. Safe for concurrent use.
type reading struct {
	memory   *largeBodies
	most     int64         // bytes of a body
	time     time.Duration // longest time for a client to send one
	limits   bodies.Limits // what may be kept of one
	defaults ask.Defaults
	model    Model
	loading  func() string
	log      *journal
}

func newReading(cfg Config, s common) *reading {
	r := &reading{memory: s.bodies, most: cfg.MaxBody, time: cfg.Body, defaults: cfg.Defaults, model: cfg.Model, loading: cfg.Loading,
		log: s.log,
		limits: bodies.Limits{Text: cfg.Limits.PromptBytes, Tokens: cfg.Limits.Context, Vocab: cfg.Limits.Vocab, Strict: cfg.Strict,
			KeepAttribution: cfg.KeepAttribution, Encode: func(text string) []tandem.Token { return cfg.Vocab.Encode(text, false) }}}
	if cfg.Chat != nil {
		r.limits.Reads = cfg.Chat.Reads
	}
	return r
}

// loaded returns an error while the model is loading.
func (r *reading) loaded() error {
	if reason := r.loading(); reason != "" {
		return tandem.Errorf(op, tandem.Unavailable, "the model is loading: %s", reason)
	}
	return nil
}

// body reads a request's body by decode, which returns the name of the model that it asks for. The caller must call done when it keeps
// nothing of the body any more.
func (r *reading) body(c *call, decode func(*body, bodies.Limits) (model string, err error)) (*body, error) {
	b, err := r.open(c)
	if err != nil {
		return nil, err
	}
	kept, l := false, r.limits
	defer func() { // also if decode panics
		if !kept {
			b.done()
		}
	}()
	l.Ignored, l.Nested = c.ignored.add, func(n int64) { b.nested = n }
	model, err := decode(b, l)
	r.log.ignored(c)
	if err == nil {
		err = r.served(model)
	}
	if err != nil {
		return nil, b.refused(c.w, err)
	}
	kept, c.digest = true, sse.Digest(c.URL.Path, b.sum.Sum(nil))
	return b, nil
}

// served refuses a model that is not this server's, if it is strict: there is one model, which answers under any name and says its own.
func (r *reading) served(model string) error {
	if !r.limits.Strict || model == "" || slices.Contains(r.model.names(), model) {
		return nil
	}
	return r.model.lacks(model)
}

// open returns a request's body; the caller must call done when it keeps nothing of it any more. Errors: *oai.Error.
func (r *reading) open(c *call) (*body, error) {
	kind, _, _ := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if !bodyTypes[kind] {
		return nil, oai.Refusal(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Type is %.100q: want application/json",
			kind)
	}
	if e := c.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, oai.Refusal(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Encoding is %.100q: want none", e)
	}
	if c.ContentLength > r.most {
		return nil, r.tooLarge()
	}
	b := &body{r: r, c: c, rc: http.NewResponseController(c.w), from: http.MaxBytesReader(c.w, c.Body, r.most),
		due: time.Now().Add(r.time), sum: sha256.New()}
	_ = b.rc.SetReadDeadline(b.due)
	guestOf(c.Context()).reads(true)
	return b, nil
}

// Read implements io.Reader. Errors are sticky: io.EOF, *oai.Error, Canceled, Exhausted.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	for b.room() <= 0 {
		if b.err = b.wait(); b.err != nil {
			return 0, b.err
		}
	}
	n, err := b.from.Read(p[:min(int64(len(p)), b.room())])
	b.n.Add(int64(n))
	b.sum.Write(p[:n])
	if err != nil {
		b.err = b.explain(err)
		b.read()
	}
	return n, b.err
}

// room returns how many bytes may be read with the memory that b has taken.
func (b *body) room() int64 {
	return smallBody + (b.took-max(b.nested*nestedSize-smallNested, 0))/max(b.times, 1) - b.n.Load()
}

// explain turns an error of the connection into the one for the client.
func (b *body) explain(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		_ = b.rc.SetReadDeadline(time.Time{}) // from now on a silent client is one that waits
		return io.EOF
	case errors.As(err, new(*http.MaxBytesError)):
		return b.r.tooLarge()
	case b.tooSlow.Load():
		return oai.Refusal(http.StatusRequestTimeout, "body_timeout",
			"the body came with less than %d KiB a second while others waited: try again", leastRate>>10)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return oai.Refusal(http.StatusRequestTimeout, "body_timeout", "the body did not come within %v", b.r.time)
	}
	return tandem.Errorf(op, tandem.Canceled, "the client left while it sent the body")
}

// wait takes a step of memory. The time that it has to wait does not count against the client.
func (b *body) wait() error {
	begun := time.Now()
	waited := false
	ctx, cancel := context.WithTimeout(b.c.Context(), b.r.time)
	defer cancel()
	err := b.r.memory.grow(ctx, b, func() {
		waited = true
		b.r.memory.read(b)
		_ = b.rc.SetReadDeadline(time.Time{})
	})
	switch {
	case err != nil && b.c.Context().Err() != nil:
		return tandem.Errorf(op, tandem.Canceled, "the client left while it waited")
	case err != nil:
		return tandem.Errorf(op, tandem.Exhausted, "large bodies of others are being read, for %v by now: try again", b.r.time)
	}
	b.took += stepBody
	if waited {
		b.due = b.due.Add(time.Since(begun))
		_ = b.rc.SetReadDeadline(b.due)
	}
	return nil
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
	b.r.memory.read(b)
}

// done gives the body's memory back. It may be called again.
func (b *body) done() {
	b.read()
	b.r.memory.release(b)
}

// refused returns err, which ends the request, and makes a client that is still sending stop.
func (b *body) refused(w http.ResponseWriter, err error) error {
	var e *oai.Error
	if errors.As(b.err, &e) && e.Status == http.StatusRequestTimeout {
		w.Header().Set("Connection", "close")
	}
	return err
}

func (r *reading) tooLarge() error {
	return oai.Refusal(http.StatusRequestEntityTooLarge, "body_too_large", "the body has more than %d bytes", r.most)
}
