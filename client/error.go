package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reason classifies an error; compare with errors.Is(err, client.Exhausted).
type Reason string

// The reasons of a gateway's errors.
const (
	Invalid        Reason = "INVALID"         // the request is wrong; trying again is useless
	UnknownSession Reason = "UNKNOWN_SESSION" // the gateway lost the session
	Stale          Reason = "STALE"           // what the call was about has changed
	Exhausted      Reason = "EXHAUSTED"       // no room now; see Error.RetryAfter
	Unavailable    Reason = "UNAVAILABLE"     // the gateway or a process behind it is down or restarting
	Deadline       Reason = "DEADLINE"        // not done in the time allowed
	Canceled       Reason = "CANCELED"        // the caller gave up
	Unsupported    Reason = "UNSUPPORTED"     // valid, but not something tandem does
	Corrupt        Reason = "CORRUPT"         // data that contradicts itself
	Internal       Reason = "INTERNAL"        // a fault of tandem's own
)

// Error makes a Reason a target for errors.Is.
func (r Reason) Error() string { return string(r) }

// Error is the one error type of this package.
type Error struct {
	Reason     Reason
	Message    string        // what was wrong, with the value, and what would be right
	RetryAfter time.Duration // for Exhausted; 0 if the gateway did not say
}

func (e *Error) Error() string { return e.Message }

// Is reports whether target is e's Reason, or the context error that corresponds to it.
func (e *Error) Is(target error) bool {
	r, ok := target.(Reason)
	return ok && r == e.Reason || target == context.Canceled && e.Reason == Canceled ||
		target == context.DeadlineExceeded && e.Reason == Deadline
}

// fromStatus returns a gRPC error as an *Error; nil and an *Error pass unchanged.
func fromStatus(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	s := status.Convert(err)
	out := &Error{Reason: ofCode(s.Code()), Message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == "tandem.dev" {
				out.Reason = Reason(d.GetReason())
			}
		case *errdetails.RetryInfo:
			out.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	return out
}

func ofCode(c codes.Code) Reason {
	switch c {
	case codes.InvalidArgument, codes.OutOfRange:
		return Invalid
	case codes.NotFound:
		return UnknownSession
	case codes.FailedPrecondition, codes.Aborted:
		return Stale
	case codes.ResourceExhausted:
		return Exhausted
	case codes.Unavailable:
		return Unavailable
	case codes.DeadlineExceeded:
		return Deadline
	case codes.Canceled:
		return Canceled
	case codes.Unimplemented:
		return Unsupported
	case codes.DataLoss:
		return Corrupt
	}
	return Internal
}
