package httpapi

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
)

const (
	smallBody  = 64 << 10 // bytes: such bodies are read at once
	mostBodies = 8        // larger bodies that are read and decoded at once
)

// bodyTypes are what curl and client libraries say that JSON is; "" is nothing.
var bodyTypes = map[string]bool{"": true, "application/json": true, "text/json": true, "text/plain": true, "application/x-www-form-urlencoded": true}

// body reads a request's body; the caller must call done once it is decoded. Errors: *oai.Error, Exhausted.
func (s *Server) body(w http.ResponseWriter, c *call) (body []byte, done func(), err error) {
	done = func() {}
	kind, _, _ := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if !bodyTypes[kind] {
		return nil, done, oai.Refusal(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Type is %.100q: want application/json", kind)
	}
	if e := c.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil, done, oai.Refusal(http.StatusUnsupportedMediaType, "unsupported_media_type", "Content-Encoding is %.100q: want none", e)
	}
	if c.ContentLength > s.cfg.MaxBody {
		return nil, done, s.tooLarge()
	}
	if c.ContentLength < 0 || c.ContentLength > smallBody {
		if done, err = s.enter(c); err != nil {
			return nil, func() {}, err
		}
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.cfg.Body))
	body, err = io.ReadAll(http.MaxBytesReader(w, c.Body, s.cfg.MaxBody))
	if err == nil {
		_ = rc.SetReadDeadline(time.Time{}) // a client that stays silent from now on is one that waits
		return body, done, nil
	}
	done()
	if errors.As(err, new(*http.MaxBytesError)) {
		return nil, func() {}, s.tooLarge()
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, func() {}, tandem.Errorf(op, tandem.Canceled, "the client left while it sent the body")
	}
	w.Header().Set("Connection", "close")
	return nil, func() {}, oai.Refusal(http.StatusRequestTimeout, "body_timeout", "the body did not come within %v", s.cfg.Body)
}

func (s *Server) tooLarge() error {
	return oai.Refusal(http.StatusRequestEntityTooLarge, "body_too_large", "the body has more than %d bytes", s.cfg.MaxBody)
}

// enter waits for one of the places of large bodies.
func (s *Server) enter(c *call) (leave func(), err error) {
	late := time.NewTimer(s.cfg.Body)
	defer late.Stop()
	select {
	case s.bodies <- struct{}{}:
		return func() { <-s.bodies }, nil
	case <-late.C:
		return nil, tandem.Errorf(op, tandem.Exhausted, "%d large bodies are being read: try again", mostBodies)
	case <-c.Context().Done():
		return nil, tandem.Errorf(op, tandem.Canceled, "the client left while it waited")
	}
}
