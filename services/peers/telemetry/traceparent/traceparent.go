// Package traceparent carries the span of a context from one process to the next, in the form of W3C Trace Context. The other
// services know nothing else of tracing.
package traceparent

import (
	"context"
	"encoding/hex"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Carrier is what a span travels in, such as an http.Header.
type Carrier interface {
	Get(key string) string // "" for none
	Set(key, value string) // in place of what was there
}

// carrier makes a Carrier OpenTelemetry's; W3C's propagator asks for no keys.
type carrier struct{ Carrier }

func (carrier) Keys() []string { return nil }

// Known reports whether ctx carries a span.
func Known(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsValid() }

// Inject writes ctx's span into c, if it carries one.
func Inject(ctx context.Context, c Carrier) { propagation.TraceContext{}.Inject(ctx, carrier{c}) }

// Extract returns ctx with the span that c names as remote parent, if c names one.
func Extract(ctx context.Context, c Carrier) context.Context {
	return propagation.TraceContext{}.Extract(ctx, carrier{c})
}

// Of returns the span that ctx carries, such as a caller's within a server, in the form of tandem.Ticket.Trace; "" for none.
func Of(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return ""
	}
	var b [55]byte
	trace, span := sc.TraceID(), sc.SpanID()
	copy(b[:], "00-")
	hex.Encode(b[3:], trace[:])
	b[35] = '-'
	hex.Encode(b[36:], span[:])
	copy(b[52:], "-00")
	if sc.IsSampled() {
		b[54] = '1'
	}
	return string(b[:])
}

// Adopt returns ctx with the span that s, as Of returns it, names as remote parent; a malformed one changes nothing.
func Adopt(ctx context.Context, s string) context.Context { return Extract(ctx, one(s)) }

// one is a carrier of a traceparent alone.
type one string

func (o one) Get(key string) string {
	if key == "traceparent" {
		return string(o)
	}
	return ""
}

func (one) Set(string, string) {}
