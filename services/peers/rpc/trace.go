package rpc

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem/services/peers/telemetry/traceparent"
)

// carrier carries a span in gRPC metadata.
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// inject returns ctx with its span, if it has one, in the outgoing metadata.
func inject(ctx context.Context) context.Context {
	if !traceparent.Known(ctx) {
		return ctx
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	md = md.Copy()
	if md == nil {
		md = metadata.MD{}
	}
	traceparent.Inject(ctx, carrier(md))
	return metadata.NewOutgoingContext(ctx, md)
}

// extract returns ctx with the caller's span as remote parent, if the metadata name one.
func extract(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok || len(md.Get("traceparent")) == 0 {
		return ctx
	}
	return traceparent.Extract(ctx, carrier(md))
}
