package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Kind classifies an error; compare with errors.Is(err, client.Exhausted).
type Kind string

// The kinds of a gateway's errors.
const (
	Invalid         Kind = "INVALID"         // the request is wrong; trying again is useless
	UnknownSession  Kind = "UNKNOWN_SESSION" // the gateway lost the session
	Stale           Kind = "STALE"           // what the call was about has changed
	Exhausted       Kind = "EXHAUSTED"       // no room now; see Error.RetryAfter
	Unavailable     Kind = "UNAVAILABLE"     // the gateway or a process behind it is down or restarting
	Deadline        Kind = "DEADLINE"        // not done in the time allowed
	Canceled        Kind = "CANCELED"        // the caller gave up
	Unsupported     Kind = "UNSUPPORTED"     // valid, but not something tandem does
	Corrupt         Kind = "CORRUPT"         // data that contradicts itself
	Internal        Kind = "INTERNAL"        // a fault of tandem's own
	Unauthenticated Kind = "UNAUTHENTICATED" // no token, or not one of the gateway's; see WithToken
)

// Error makes a Kind a target for errors.Is.
func (k Kind) Error() string { return string(k) }

// Error is the one error type of this package.
type Error struct {
	Kind       Kind
	Message    string        // what was wrong, with the value, and what would be right
	Field      string        // for Invalid: the field of the request, such as "sampling.top_p"; "" if none is to blame
	RetryAfter time.Duration // for Exhausted; 0 if the gateway did not say

	answered bool // a gateway said it
}

func (e *Error) Error() string { return e.Message }

// Is reports whether target is e's Kind, or the context error that corresponds to it.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind || target == context.Canceled && e.Kind == Canceled ||
		target == context.DeadlineExceeded && e.Kind == Deadline
}

// fromStatus returns a gRPC error as an *Error; nil and an *Error pass unchanged.
func fromStatus(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	s := status.Convert(err)
	out := &Error{Kind: ofCode(s.Code()), Message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == "tandem.dev" {
				out.Kind, out.answered = Kind(d.GetReason()), true
			}
		case *errdetails.RetryInfo:
			out.RetryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 {
				out.Field = v[0].GetField()
			}
		}
	}
	return out
}

func ofCode(c codes.Code) Kind {
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
	case codes.Unauthenticated, codes.PermissionDenied:
		return Unauthenticated
	}
	return Internal
}
