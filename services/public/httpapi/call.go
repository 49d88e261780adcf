package httpapi

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// call is one request under way, and its answer.
type call struct {
	*http.Request
	w      *watched
	api    api
	stall  time.Duration // as Config.Stall
	id     string        // X-Request-Id
	tenant string
	begun  time.Time
	below  string // the rest of the path, for a route of all paths below one

	digest                     string // digest of path and body, once the body was read
	ignored                    names  // fields of the body
	promptTokens, outputTokens int    // sums of all choices, once they have ended
	repeated                   int    // tokens of the piece that ended one of them
}

// left reports whether the client has closed the connection.
func (c *call) left() bool { return errors.Is(context.Cause(c.Context()), context.Canceled) }

// reply sends an answer as JSON.
func (c *call) reply(v any) error {
	c.send(http.StatusOK, v)
	return nil
}

func (c *call) send(status int, v any) {
	body := encode(v)
	c.allow(len(body))
	c.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	_, _ = c.w.Write(body)
}

// slowest is the least rate, in bytes a second, at which a client must take a long answer, after the time of Config.Stall.
const slowest = 64 << 10

// allow sets the write deadline so that the client has time to take an answer of about that many bytes.
func (c *call) allow(bytes int) {
	late := c.stall + time.Duration(bytes)*time.Second/slowest
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(late))
}

// told returns err as the client is told it.
func (c *call) told(err error) *oai.Error {
	e := *oai.FromError(err)
	e.Request = c.id
	return &e
}

// fail answers the request with err, or only logs it if an answer has begun or no client waits for one.
func (c *call) fail(err error, log *journal) {
	e := c.told(err)
	switch {
	case e.Status == http.StatusInternalServerError:
		stack := tandem.StackOf(err) // "" unless it was a panic of this process
		log.Error("request", "path", c.URL.Path, "request", c.id, "status", e.Status, "error", err, "stack", stack)
	case c.left() && e.Status != http.StatusRequestTimeout || e.Status == oai.StatusClientClosed: // a late body ends the context too
		if c.w.status == 0 {
			c.w.WriteHeader(oai.StatusClientClosed) // for the metrics: the connection is gone
		}
		c.w.status = oai.StatusClientClosed
		return
	}
	if c.w.status != 0 {
		return
	}
	if e.RetryAfter > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.RetryAfter.Seconds()))))
	}
	c.send(e.Status, c.api.errors(e))
}

// broken ends a stream with err, which send tells the client if it can still be told; nil is no error.
func (c *call) broken(events *sse.Stream, err error, counters *tandem.Counters, send func(*oai.Error) error) error {
	if begun, broken := events.State(); err != nil && begun && broken == nil && !c.left() {
		counters.Add("http.stream_errors", 1)
		_ = send(c.told(err))
	}
	return err
}

// takenUp returns the cursor behind which the stream of a request goes on, or a new one. Errors: *oai.Error.
func (c *call) takenUp(seed uint64) (*sse.Cursor, error) {
	id := c.Header.Get("Last-Event-ID")
	if id == "" {
		return &sse.Cursor{Digest: c.digest, Created: time.Now().Unix(), Seed: seed}, nil
	}
	m, ok := sse.ParseCursor(id)
	switch {
	case !ok:
		return nil, oai.Refusal(http.StatusBadRequest, "bad_event_id",
			"Last-Event-ID is %.100q: want the id of an event of this API, or none", id)
	case m.Digest != c.digest:
		return nil, oai.Refusal(http.StatusConflict, "other_request", "Last-Event-ID %.100q is of another request: want the same path and "+
			"the same body, byte for byte, to take a stream up again", id)
	}
	return m, nil
}

// count notes the tokens of choices that have ended.
func (c *call) count(choices []*choice) {
	for _, x := range choices {
		if c.outputTokens += x.result.OutputTokens; x.First {
			c.promptTokens += x.result.PromptTokens
		}
		c.repeated = max(c.repeated, x.result.Repeated)
	}
}

// choice is one generation of a call.
type choice struct {
	answer.Choice
	sink   *answer.Maker
	result tandem.Result
}

// encode returns v, which must consist of plain values, as a line of JSON.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// watched remembers the status of an answer, 0 before it has begun. While it relays another handler's, it holds an error back.
type watched struct {
	http.ResponseWriter
	status int
	relays bool
	failed int // the status of that error, 0 for none
	says   string
}

const maxNotice = 1 << 10 // bytes of the text of an error that was held back

// WriteHeader implements http.ResponseWriter.
func (w *watched) WriteHeader(status int) {
	if w.relays && status >= http.StatusBadRequest {
		w.failed = status
		return
	}
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *watched) Write(p []byte) (int, error) {
	if w.relays && w.failed != 0 {
		if len(w.says) < maxNotice {
			w.says += string(p)
		}
		return len(p), nil
	}
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController find what lies below.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = crand.Read(b)
	return hex.EncodeToString(b)
}
