package telemetry

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/telemetry/collectortest"
)

// chatting is a generator that records its request's span, as a gateway does.
type chatting struct {
	events tandem.Events
	err    error
}

func (c chatting) Generate(ctx context.Context, _ tandem.Request, _ tandem.Sink) (tandem.Result, error) {
	_, end := c.events.Begin(ctx, tandem.StageRequest, text("model", "m"), number("max_tokens", 7))
	end(c.err, number("tokens_cached", 3))
	return tandem.Result{}, c.err
}

func TestServerSpans(t *testing.T) {
	col := collector(t)
	tel := setup(t, Config{Service: "tandem-gateway", Endpoint: col.Endpoint(), Roots: true})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("traceparent") != "" {
			t.Error("the handler still finds the client's span, and would take it for the parent")
		}
		if r.URL.Query().Has("broken") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("X-Request-Id", "the-id")
		_, _ = chatting{events: tel.Events()}.Generate(r.Context(), tandem.Request{}, noSink{})
	})
	mux.HandleFunc("POST /api/chat", func(w http.ResponseWriter, _ *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(http.ResponseWriter, *http.Request) {})
	var pattern string
	h := tel.HTTP(mux)
	do := func(method, path, parent string) {
		r := httptest.NewRequest(method, path, nil)
		if parent != "" {
			r.Header.Set("traceparent", parent)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		pattern = r.Pattern
	}
	do("GET", "/v1/models", "")
	do("POST", "/v1/completions?broken", "")
	do("POST", "/v1/completions", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	last := pattern
	do("POST", "/api/chat", "")
	if pattern = last; pattern != "POST /v1/completions" {
		t.Errorf("pattern %q: want it to be told to whoever is outside", pattern)
	}
	for _, err := range []error{nil, tandem.Errorf("x", tandem.Invalid, "bad"), tandem.Errorf("x", tandem.Internal, "broken")} {
		_, got := tel.RPC("s/Generate", chatting{tel.Events(), err}).Generate(context.Background(), tandem.Request{}, noSink{})
		if !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	tel.Shutdown()

	spans := col.Spans()
	byKind, byError := map[string]int{}, map[string]int{}
	var posts []collectortest.Span
	for _, s := range spans {
		byKind[s.Kind]++
		byError[s.Name+" "+s.Error]++
		if s.Name == "POST /v1/completions" {
			posts = append(posts, s)
		}
	}
	find(t, spans, "POST /api/chat") // generations of all APIs have one
	if len(spans) != 10 || byKind["SERVER"] != 6 || byKind["INTERNAL"] != 4 || len(posts) != 2 {
		t.Fatalf("%d spans %v, %d of POST: want 6 servers, of them 2 POST, with 4 chats", len(spans), byKind, len(posts))
	}
	if byError["s/Generate "] != 2 || byError["s/Generate internal"] != 1 || byError["POST /v1/completions Service Unavailable"] != 1 {
		t.Errorf("errors %v: want those that are the server's doing", byError)
	}
	for _, s := range posts {
		if s.Error == "" && (s.Trace != "0af7651916cd43dd8448eb211c80319c" || s.Parent != "b7ad6b7169203331" ||
			s.Int("http.response.status_code") != 200 || s.Attrs["http.route"] != "/v1/completions" ||
			s.Attrs["tandem.request_id"] != "the-id") {
			t.Errorf("span %+v: want one that goes on with the client's trace", s)
		}
	}
	chat := find(t, spans, "chat m")
	if chat.Parent == "" || chat.Int("gen_ai.request.max_tokens") != 7 || chat.Int("gen_ai.usage.cache_read.input_tokens") != 3 {
		t.Errorf("chat is %+v: want a child of a server span with its attributes", chat)
	}
}

func TestServerSpansOff(t *testing.T) {
	var off *Telemetry
	if h := http.NotFoundHandler(); off.HTTP(h) == nil {
		t.Error("no handler")
	}
	g := &chatting{}
	if off.RPC("m", g) != tandem.Generator(g) {
		t.Error("telemetry that is off stands in the way")
	}
}
