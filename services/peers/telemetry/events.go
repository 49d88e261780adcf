package telemetry

import (
	"context"
	"crypto/rand"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/telemetry/traceparent"
)

// Events returns callbacks that record stages as spans of provider. A request's attributes follow the
// OpenTelemetry conventions for generative AI where these have a name, and every other attribute is
// prefixed "tandem.". No text of a prompt, an output or an error's message is recorded.
func Events(provider trace.TracerProvider) tandem.Events {
	r := &recorder{provider.Tracer(scope)}
	return tandem.Events{BeginFunc: r.begin, CarrierFunc: traceparent.Of, AdoptFunc: traceparent.Adopt, MuteFunc: mute}
}

// scope names the instrumentation in exported spans.
const scope = "github.com/tandem-llm/tandem"

type recorder struct{ tracer trace.Tracer }

func nothing(error, ...tandem.Attr) {}

func (r *recorder) begin(ctx context.Context, s tandem.Stage, attrs []tandem.Attr) (context.Context, tandem.End) {
	if parent := trace.SpanContextFromContext(ctx); parent.IsValid() && !parent.IsSampled() {
		return ctx, nothing // muted, or not sampled by the caller: stages below must not be recorded either
	}
	name := string(s)
	opts := make([]trace.SpanStartOption, 0, 4)
	switch s {
	case tandem.StageRequest:
		if !trace.SpanFromContext(ctx).IsRecording() { // no front end of this process has a span for it
			opts = append(opts, trace.WithSpanKind(trace.SpanKindServer))
		}
		opts = append(opts, trace.WithAttributes(attribute.String("gen_ai.operation.name", "chat"),
			attribute.String("gen_ai.provider.name", "tandem")))
		for _, a := range attrs {
			if a.Key == "model" {
				name += " " + a.Str
			}
		}
	case tandem.StageSend:
		opts = append(opts, trace.WithSpanKind(trace.SpanKindProducer))
	case tandem.StageProcess:
		opts = append(opts, trace.WithSpanKind(trace.SpanKindConsumer))
	}
	values, links := split(s, attrs)
	ctx, span := r.tracer.Start(ctx, name, append(opts, trace.WithAttributes(values...), trace.WithLinks(links...))...)
	if !span.IsRecording() {
		return ctx, nothing
	}
	return ctx, func(err error, attrs ...tandem.Attr) {
		values, links := split(s, attrs)
		span.SetAttributes(values...)
		for _, l := range links {
			span.AddLink(l)
		}
		if err != nil {
			kind := tandem.KindOf(err).String()
			span.SetAttributes(attribute.String("error.type", kind))
			span.SetStatus(codes.Error, kind)
		}
		span.End()
	}
}

// split sorts attributes into span attributes and links.
func split(s tandem.Stage, attrs []tandem.Attr) (values []attribute.KeyValue, links []trace.Link) {
	for _, a := range attrs {
		if a.Key == "link" {
			if sc := trace.SpanContextFromContext(traceparent.Adopt(context.Background(), a.Str)); sc.IsValid() {
				links = append(links, trace.Link{SpanContext: sc})
			}
			continue
		}
		if a != (tandem.Attr{Key: "finish"}) { // a request that failed has no finish reason
			values = append(values, value(s, a))
		}
	}
	return values, links
}

// value names one attribute.
func value(s tandem.Stage, a tandem.Attr) attribute.KeyValue {
	if s == tandem.StageRequest {
		switch a.Key {
		case "model":
			return attribute.String("gen_ai.request.model", a.Str)
		case "tokens_in":
			return attribute.Int64("gen_ai.usage.input_tokens", a.Int)
		case "tokens_cached":
			return attribute.Int64("gen_ai.usage.cache_read.input_tokens", a.Int)
		case "tokens_out":
			return attribute.Int64("gen_ai.usage.output_tokens", a.Int)
		case "max_tokens":
			return attribute.Int64("gen_ai.request.max_tokens", a.Int)
		case "finish":
			return attribute.StringSlice("gen_ai.response.finish_reasons", []string{a.Str})
		}
	}
	switch {
	case a.Str != "":
		return attribute.String("tandem."+a.Key, a.Str)
	case a.Key == "device_ns":
		return attribute.Float64("tandem.device_ms", float64(a.Int)/1e6)
	}
	return attribute.Int64("tandem."+a.Key, a.Int)
}

// mute returns ctx with its span, or a made-up one, as a parent that is not sampled.
func mute(ctx context.Context) context.Context {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		var id trace.TraceID
		var span trace.SpanID
		_, _ = rand.Read(id[:])
		_, _ = rand.Read(span[:])
		sc = trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span})
	}
	return trace.ContextWithSpanContext(ctx, sc.WithTraceFlags(sc.TraceFlags().WithSampled(false)))
}
