package tandem

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind classifies an error for its receiver. The numbers are part of the wire: append only.
type Kind uint8

const (
	OK              Kind = iota
	Invalid              // the caller's value is wrong; trying again is useless
	UnknownSession       // the process does not hold that session; open it again
	Stale                // another epoch, base, prefix or generation; what it belongs to is gone
	Exhausted            // no room now; trying again later may work
	Unavailable          // a peer is down or restarting
	Deadline             // not done in the time allowed
	Canceled             // the caller gave up
	Unsupported          // valid, but not something tandem does
	Corrupt              // data that contradicts itself: a damaged file, a garbage ticket
	Internal             // a fault of tandem's own
	Unauthenticated      // no bearer token, or one that is not known
)

var kindNames = [...]string{"ok", "invalid", "unknown_session", "stale", "exhausted", "unavailable",
	"deadline", "canceled", "unsupported", "corrupt", "internal", "unauthenticated"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Error makes a Kind a target for errors.Is: errors.Is(err, tandem.Stale).
func (k Kind) Error() string { return k.String() }

// Error is tandem's one error type; it survives the wire. Err's text names what was wrong, with the
// value, and what would be right.
type Error struct {
	Op   string // the operation or room that found it, lower case: "gguf", "verify"
	Kind Kind
	Err  error

	Field      string        // of Invalid: the field of the request that was wrong, such as "top_p"; "" if none is to blame
	RetryAfter time.Duration // of Exhausted: when trying again may work; 0 if nobody can say
}

func (e *Error) Error() string {
	if e.Op == "" {
		return e.Err.Error()
	}
	return e.Op + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is e's Kind.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// Errorf returns an *Error with a formatted cause; %w works.
func Errorf(op string, k Kind, format string, args ...any) error {
	return &Error{Op: op, Kind: k, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of err: OK for nil, Deadline and Canceled for context errors, Internal for
// an error that carries none.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case err == nil:
		return OK
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	case errors.Is(err, context.Canceled):
		return Canceled
	}
	return Internal
}

// RetryAfter returns when trying again may work, as the first error of err's chain says that knows; 0 if
// none does.
func RetryAfter(err error) time.Duration {
	for e := (*Error)(nil); errors.As(err, &e); err = e.Err {
		if e.RetryAfter > 0 {
			return e.RetryAfter
		}
	}
	return 0
}

// FieldOf returns the field of the request that was wrong, as the first error of err's chain says that names
// one; "" if none does.
func FieldOf(err error) string {
	for e := (*Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Field != "" {
			return e.Field
		}
	}
	return ""
}
