package httpapi

import (
	"bytes"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// heads watches the heads of the requests on a connection, because net/http drops Content-Length from a request that also has
// Transfer-Encoding. A proxy in front may go by the other of the two and so see other requests than this server does (RFC 9112, 6.1).
//
// begin is called when a connection waits for a request, and read with all bytes that come. Only a head that was seen whole after begin is
// sound: of one that came together with the body before it nothing is known.
type heads struct {
	state  atomic.Int32 // one of the constants below
	line   []byte       // the beginning of the current line, lower case, up to lengthName
	length bool         // Content-Length is there
}

const (
	headSkipped int32 = iota // not watched
	headBegun                // its lines come
	headSound                // it came whole, without Content-Length
	headOther                // it came whole, with Content-Length
)

const lengthName = "content-length:"

func (h *heads) begin() {
	h.line, h.length = h.line[:0], false
	h.state.Store(headBegun)
}

// read takes bytes that came. Only one goroutine reads a connection at a time.
func (h *heads) read(p []byte) {
	for len(p) > 0 && h.state.Load() == headBegun {
		part, ended := p, false
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			part, ended = p[:i], true
		}
		p = p[min(len(part)+1, len(p)):]
		h.line = append(h.line, bytes.ToLower(part[:min(len(part), len(lengthName)-len(h.line))])...)
		if !ended {
			return
		}
		h.end()
	}
}

// end takes the end of a line.
func (h *heads) end() {
	line := h.line
	h.line = h.line[:0]
	switch {
	case len(bytes.TrimRight(line, "\r")) > 0:
		h.length = h.length || string(line) == lengthName
	case h.length:
		h.state.Store(headOther)
	default:
		h.state.Store(headSound)
	}
}

// checkLength refuses a request whose length is told in two ways, and closes its connection.
func checkLength(c *call, h http.Header) error {
	g := guestOf(c.Context())
	if g == nil || !slices.Contains(c.TransferEncoding, "chunked") || g.heads.state.Load() == headSound {
		return nil
	}
	h.Set("Connection", "close")
	return oai.Refusal(http.StatusBadRequest, "two_lengths",
		"the request has Transfer-Encoding, and Content-Length or a request in front of it in one piece: "+
			"want one of the two, and one request at a time")
}
