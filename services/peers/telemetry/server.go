package telemetry

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/telemetry/traceparent"
)

// HTTP returns h with a server span around every POST: generations, and the few other calls that have a body. It goes on with the trace
// that the client names in a traceparent header. The span is named after the pattern that the handler has set at its end, and has the id
// of the request that the answer tells.
func (t *Telemetry) HTTP(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			h.ServeHTTP(w, r)
			return
		}
		ctx := traceparent.Extract(r.Context(), r.Header)
		ctx, span := t.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", r.Method), attribute.String("url.path", r.URL.Path),
				attribute.String("url.scheme", "http")))
		defer span.End()
		inside := r.WithContext(ctx)
		inside.Header = r.Header.Clone() // the parent is the span in the context
		inside.Header.Del("traceparent")
		inside.Header.Del("tracestate")
		s := &statusWriter{ResponseWriter: w}
		h.ServeHTTP(s, inside)
		r.Pattern = inside.Pattern
		if r.Pattern != "" {
			route := strings.TrimPrefix(r.Pattern, r.Method+" ")
			span.SetName(r.Method + " " + route)
			span.SetAttributes(attribute.String("http.route", route))
		}
		status := s.status()
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if id := w.Header().Get("X-Request-Id"); id != "" {
			span.SetAttributes(attribute.String("tandem.request_id", id))
		}
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
	})
}

// RPC returns g with a server span around every generation, for the front end of that gRPC method, whose context
// carries the span of its caller if there is one.
func (t *Telemetry) RPC(method string, g tandem.Generator) tandem.Generator {
	if t == nil {
		return g
	}
	return &served{t: t, method: method, to: g}
}

type served struct {
	t      *Telemetry
	method string
	to     tandem.Generator
}

// Generate implements tandem.Generator.
func (s *served) Generate(ctx context.Context, r tandem.Request, sink tandem.Sink) (tandem.Result, error) {
	ctx, span := s.t.tracer.Start(ctx, s.method, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("rpc.system.name", "grpc"), attribute.String("rpc.method", s.method)))
	defer span.End()
	res, err := s.to.Generate(ctx, r, sink)
	kind := tandem.KindOf(err)
	span.SetAttributes(attribute.String("rpc.response.status_code", strings.ToUpper(kind.String())))
	switch kind {
	case tandem.OK, tandem.Invalid, tandem.Exhausted, tandem.Canceled: // the client's doing
	default:
		span.SetStatus(codes.Error, kind.String())
	}
	return res, err
}
