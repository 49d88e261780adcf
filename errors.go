package tandem

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// Values of Error.Op by which a peer refuses another because the two do not match. Such an error is Unavailable, because the
// right peer may still come.
const (
	OpIdentity   = "identity"   // it would compute another text than the session began with
	OpVocabulary = "vocabulary" // its token ids stand for other texts
	OpProtocol   = "protocol"   // it speaks another version of tandem's protocol
)

// OtherIdentity returns the error of a session that began with one identity and came to a verifier of another.
func OtherIdentity(id SessionID, began, here Identity) error {
	return Errorf(OpIdentity, Unavailable, "session %v began with %s, but the verifier is %s: they differ in %s",
		id, began, orNone(here), began.Difference(here))
}

func orNone(i Identity) string {
	if i == "" {
		return "an unknown identity"
	}
	return string(i)
}

// Refusal returns err's Op if it is one of the operations above, else "".
func Refusal(err error) string {
	if e := (*Error)(nil); errors.As(err, &e) && e.Kind == Unavailable {
		switch e.Op {
		case OpIdentity, OpVocabulary, OpProtocol:
			return e.Op
		}
	}
	return ""
}

// Kind classifies an error for its receiver. The numbers are part of the wire: append only.
type Kind uint8

const (
	OK              Kind = iota // no error
	Invalid                     // the caller's value is wrong; trying again is useless
	UnknownSession              // the process does not hold that session; open it again
	Stale                       // it belongs to another epoch, base, prefix or generation, which is gone
	Exhausted                   // no room now; trying again later may work
	Unavailable                 // a peer is down or restarting
	Deadline                    // not done in the time allowed
	Canceled                    // the caller gave up
	Unsupported                 // valid, but not something tandem does
	Corrupt                     // data that contradicts itself: a damaged file, a garbage ticket
	Internal                    // a fault of tandem's own
	Unauthenticated             // no bearer token, or one that is not known
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

	Field      string        // for Invalid: the wrong field of the request, such as "top_p"; "" if none is to blame
	RetryAfter time.Duration // for Exhausted: how long to wait before trying again; 0 if unknown
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

// Panic is the cause of an Internal error that was a panic. Its text does not hold the stack, which is for the log and not for clients.
type Panic struct {
	Value any
	Stack string
}

func (p *Panic) Error() string { return fmt.Sprint("panic: ", p.Value) }

// Panicked returns the error of a panic that was recovered with this value. Call it in the deferred function that recovered, where the
// stack is still that of the panic.
func Panicked(op string, value any) error {
	return &Error{Op: op, Kind: Internal, Err: &Panic{Value: value, Stack: string(debug.Stack())}}
}

// StackOf returns the stack of the panic that caused err, "" if none did, or if it came from another process.
func StackOf(err error) string {
	var p *Panic
	if errors.As(err, &p) {
		return p.Stack
	}
	return ""
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

// RetryAfter returns how long to wait before trying again, from the first error in err's chain that says so; 0 if
// none does.
func RetryAfter(err error) time.Duration {
	for e := (*Error)(nil); errors.As(err, &e); err = e.Err {
		if e.RetryAfter > 0 {
			return e.RetryAfter
		}
	}
	return 0
}

// FieldOf returns the wrong field of the request, from the first error in err's chain that names one; "" if none does.
func FieldOf(err error) string {
	for e := (*Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Field != "" {
			return e.Field
		}
	}
	return ""
}
