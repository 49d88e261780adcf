package traceparent

import (
	"context"
	"net/http"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

func TestASpanTravels(t *testing.T) {
	for _, flags := range []trace.TraceFlags{0, trace.FlagsSampled} {
		want := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1, 0xab}, SpanID: trace.SpanID{2, 0xcd},
			TraceFlags: flags})
		here := trace.ContextWithSpanContext(context.Background(), want)
		h := http.Header{}
		Inject(here, h)
		if Of(here) == "" || h.Get("traceparent") != Of(here) {
			t.Errorf("injected as %v, told as %q", h, Of(here))
		}
		ways := map[string]context.Context{"header": Extract(context.Background(), h), "ticket": Adopt(context.Background(), Of(here))}
		for name, there := range ways {
			got := trace.SpanContextFromContext(there)
			if !Known(there) || !got.IsRemote() || got.TraceID() != want.TraceID() || got.SpanID() != want.SpanID() ||
				got.IsSampled() != want.IsSampled() {
				t.Errorf("%s: span %+v arrived as %+v", name, want, got)
			}
		}
		for _, bad := range []string{"", "x", "00-0-0-00", "00-00000000000000000000000000000000-0000000000000000-01"} {
			if got := Adopt(here, bad); Of(got) != Of(here) {
				t.Errorf("%q changed the span to %s", bad, Of(got))
			}
		}
	}
	h := http.Header{}
	if Inject(context.Background(), h); len(h) != 0 || Of(context.Background()) != "" || Known(context.Background()) {
		t.Errorf("no span became %v", h)
	}
}
