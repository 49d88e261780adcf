package rpc

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-llm/tandem"
)

// Domain is the ErrorInfo domain of tandem's errors.
const Domain = "tandem.dev"

// retryAfter is the least RetryAfter of an Exhausted error.
const retryAfter = 50 * time.Millisecond

// code returns the gRPC code of a kind.
func code(k tandem.Kind) codes.Code {
	switch k {
	case tandem.OK:
		return codes.OK
	case tandem.Invalid:
		return codes.InvalidArgument
	case tandem.UnknownSession:
		return codes.NotFound
	case tandem.Stale:
		return codes.FailedPrecondition
	case tandem.Exhausted:
		return codes.ResourceExhausted
	case tandem.Unavailable:
		return codes.Unavailable
	case tandem.Deadline:
		return codes.DeadlineExceeded
	case tandem.Canceled:
		return codes.Canceled
	case tandem.Unsupported:
		return codes.Unimplemented
	case tandem.Corrupt:
		return codes.DataLoss
	case tandem.Unauthenticated:
		return codes.Unauthenticated
	}
	return codes.Internal
}

// ToStatus returns err as a gRPC status error: the code of its kind, its text, one ErrorInfo with the
// kind as reason and the operation as metadata, a RetryInfo for Exhausted, and a BadRequest with one violation
// for an error that names a field. Status errors and nil pass unchanged.
func ToStatus(err error) error {
	if err == nil {
		return nil
	}
	var e *tandem.Error
	if !errors.As(err, &e) {
		if _, ok := status.FromError(err); ok {
			return err
		}
	}
	kind := tandem.KindOf(err)
	info := &errdetails.ErrorInfo{Domain: Domain, Reason: strings.ToUpper(kind.String())}
	if e != nil && e.Op != "" {
		info.Metadata = map[string]string{"op": e.Op}
	}
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	details := []protoadapt.MessageV1{info}
	if kind == tandem.Exhausted {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(max(tandem.RetryAfter(err), retryAfter))})
	}
	if field := tandem.FieldOf(err); field != "" {
		details = append(details,
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: text}}})
	}
	return detailed(status.New(code(kind), text), details...).Err()
}

// FromStatus returns a gRPC error as a *tandem.Error, the inverse of ToStatus; a status that did not
// come from tandem gets the kind that its code says. io.EOF and nil pass unchanged.
func FromStatus(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	var already *tandem.Error
	if errors.As(err, &already) {
		return err
	}
	s, ok := status.FromError(err)
	if !ok {
		return &tandem.Error{Op: "rpc", Kind: tandem.KindOf(err), Err: err}
	}
	kind, op, field, wait := kindOfCode(s.Code()), "rpc", "", time.Duration(0)
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				kind, op = kindOfReason(d.GetReason(), kind), d.GetMetadata()["op"]
			}
		case *errdetails.RetryInfo:
			wait = max(0, d.GetRetryDelay().AsDuration())
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 {
				field = v[0].GetField()
			}
		}
	}
	text := s.Message()
	if op != "" {
		text = strings.TrimPrefix(text, op+": ")
	}
	return &tandem.Error{Op: op, Kind: kind, Err: errors.New(text), Field: field, RetryAfter: wait}
}

func kindOfCode(c codes.Code) tandem.Kind {
	for k := tandem.OK; k <= tandem.Unauthenticated; k++ {
		if code(k) == c {
			return k
		}
	}
	if c == codes.OutOfRange {
		return tandem.Invalid
	}
	return tandem.Internal
}

func kindOfReason(reason string, other tandem.Kind) tandem.Kind {
	for k := tandem.Invalid; k <= tandem.Unauthenticated; k++ {
		if strings.EqualFold(reason, k.String()) {
			return k
		}
	}
	return other
}

// contextError returns the reason why ctx ended in place of the error that a callee made of it.
func contextError(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && tandem.KindOf(err) == tandem.Internal {
		return ctx.Err()
	}
	return err
}

// detailed returns s with details, or s alone if they cannot be encoded.
func detailed(s *status.Status, details ...protoadapt.MessageV1) *status.Status {
	if d, err := s.WithDetails(details...); err == nil {
		return d
	}
	return s
}
