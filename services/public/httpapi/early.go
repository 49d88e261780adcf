package httpapi

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// earlyHeaders follow the status line of the answers that net/http gives by itself, before a handler is called: to a request whose
// header is too large, or that is no HTTP. It writes each to the connection at once.
const earlyHeaders = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// earlyCodes are the codes of those refusals.
var earlyCodes = map[int]string{http.StatusRequestHeaderFieldsTooLarge: "header_too_large", http.StatusNotImplemented: "unsupported_coding",
	http.StatusHTTPVersionNotSupported: "unsupported_version", http.StatusExpectationFailed: "unsupported_expectation"}

// inOurForm returns p, or the same answer in OpenAI's form if net/http gives it by itself. p is what is written at once.
func inOurForm(p []byte) []byte {
	const proto = "HTTP/1.1 "
	if !bytes.HasPrefix(p, []byte(proto)) || len(p) < len(proto)+3 || p[len(proto)] < '4' {
		return p
	}
	end := bytes.Index(p, []byte("\r\n"))
	if end < 0 {
		return p
	}
	status, err := strconv.Atoi(string(p[len(proto) : len(proto)+3]))
	early := bytes.HasPrefix(p[end:], []byte(earlyHeaders)) || status == http.StatusExpectationFailed // handlers never answer with this one
	if err != nil || !early {
		return p
	}
	says := strings.ToLower(string(p[len(proto)+4 : end]))
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		says = "the request's header has more than " + strconv.Itoa(maxHeader>>10) + " KiB: want less"
	case http.StatusExpectationFailed:
		says = "the header Expect is not supported: want 100-continue, or none"
	case http.StatusBadRequest:
		says = "the request is no HTTP that can be read: " + strings.TrimPrefix(says, "bad request: ")
	}
	code := earlyCodes[status]
	if code == "" {
		code = "bad_request"
	}
	body := encode(oai.Refusal(status, code, "%s", says).Body())
	return []byte(string(p[:end]) + "\r\nContent-Type: application/json; charset=utf-8\r\nConnection: close\r\nContent-Length: " +
		strconv.Itoa(len(body)) + "\r\n\r\n" + string(body))
}
