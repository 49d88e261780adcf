package rpc

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// carrier lets the W3C propagator read and write gRPC metadata.
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}

// inject returns ctx with its span, if it has one, in the outgoing metadata.
func inject(ctx context.Context) context.Context {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	if md == nil {
		md = metadata.MD{}
	}
	propagation.TraceContext{}.Inject(ctx, carrier(md))
	return metadata.NewOutgoingContext(ctx, md)
}

// extract returns ctx with the caller's span as remote parent, if the metadata name one.
func extract(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok || len(md.Get("traceparent")) == 0 {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, carrier(md))
}

// Traceparent returns the span that ctx carries, such as its caller's within a server, in the form of
// tandem.Ticket.Trace; "" for none.
func Traceparent(ctx context.Context) string {
	md := carrier{}
	propagation.TraceContext{}.Inject(ctx, md)
	return md.Get("traceparent")
}
