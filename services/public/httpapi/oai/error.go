// Package oai writes the answers and errors of OpenAI's chats and completions as tandem speaks them.
package oai

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem"
)

// Error is an error answer in OpenAI's form.
type Error struct {
	Status     int // HTTP status
	Message    string
	Type       string
	Param      string // the field that was wrong, "" for none
	Code       string // "" for none
	RetryAfter time.Duration
	TooLong    Excess // by how much a prompt exceeds the context
	Request    string // the id of the request, "" if it is not told
}

// Excess is a prompt that is too long.
type Excess struct {
	Tokens, Context int
}

// Words returns what Anthropic's API says of it: programs find the two numbers by these words.
func (x Excess) Words() string {
	return fmt.Sprintf("prompt is too long: %d tokens > %d maximum", x.Tokens, x.Context-1)
}

func (e *Error) Error() string { return e.Message }

// StatusClientClosed is the status that nginx logs for a client that left; no client receives it.
const StatusClientClosed = 499

// errorBody is Error's JSON: absent values are null there, not left out.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
		Request string  `json:"request_id,omitempty"`
	} `json:"error"`
}

// Body returns what to send as JSON.
func (e *Error) Body() any {
	var b errorBody
	b.Error.Message, b.Error.Type, b.Error.Request = e.Message, e.Type, e.Request
	if e.Param != "" {
		b.Error.Param = &e.Param
	}
	if e.Code != "" {
		b.Error.Code = &e.Code
	}
	return b
}

// Refusal returns an error of a request that is wrong as a whole.
func Refusal(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Type: "invalid_request_error", Code: code, Message: fmt.Sprintf(format, args...)}
}

// FromError returns err as an answer. Clients do not see the text of internal errors, which may hold a
// stack.
func FromError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	out := &Error{Type: "invalid_request_error", Message: err.Error(), Param: tandem.FieldOf(err), RetryAfter: tandem.RetryAfter(err)}
	switch tandem.KindOf(err) {
	case tandem.Invalid:
		out.Status, out.Code = http.StatusBadRequest, "invalid_value"
	case tandem.Unsupported:
		out.Status, out.Code = http.StatusBadRequest, "unsupported_value"
	case tandem.Unauthenticated:
		out.Status, out.Code = http.StatusUnauthorized, "invalid_api_key"
	case tandem.Exhausted:
		out.Status, out.Type, out.Code = http.StatusTooManyRequests, "rate_limit_error", "rate_limit_exceeded"
	case tandem.Unavailable, tandem.UnknownSession, tandem.Stale:
		out.Status, out.Type, out.Code = http.StatusServiceUnavailable, "unavailable_error", "unavailable"
	case tandem.Deadline:
		out.Status, out.Type, out.Code = http.StatusGatewayTimeout, "timeout_error", "timeout"
	case tandem.Canceled:
		out.Status, out.Type, out.Code = StatusClientClosed, "canceled_error", "canceled"
	default:
		out.Status, out.Type, out.Code = http.StatusInternalServerError, "server_error", "internal"
		if out.Param == "model" && tandem.KindOf(err) == tandem.Corrupt { // the model's fault, which its owner can mend
			out.Code = "model_fault"
			break
		}
		out.Message = "internal error: the gateway's log has it under this X-Request-Id"
	}
	if retries(out.Status) && out.RetryAfter <= 0 {
		out.RetryAfter = time.Second
	}
	return out
}

// retries reports whether trying again may help.
func retries(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

// TooLong is the error of a prompt with that many tokens, or more if not exact, which the context does not hold. It begins with OpenAI's
// words: programs find the two numbers by them.
func TooLong(param string, tokens int, exact bool, context int) error {
	least, what := "", "prompt"
	if !exact {
		least = "at least "
	}
	if param == "messages" {
		what = param
	}
	e := Refusal(400, "context_length_exceeded",
		"This model's maximum context length is %d tokens. However, your %s resulted in %s%d tokens. "+
			"At least one token must be left to generate: shorten the %s.", context, what, least, tokens, what)
	e.Param, e.TooLong = param, Excess{tokens, context}
	return e
}

// InputTooLong is TooLong for a text that is embedded.
func InputTooLong(param string, tokens int, exact bool, context int) error {
	least := ""
	if !exact {
		least = "at least "
	}
	e := Refusal(400, "context_length_exceeded",
		"This model's maximum context length is %d tokens. However, your %s resulted in %s%d tokens: shorten it.", context, param, least,
		tokens)
	e.Param, e.TooLong = param, Excess{tokens, context}
	return e
}
