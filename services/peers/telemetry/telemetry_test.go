package telemetry

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/telemetry/collectortest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func collector(t *testing.T) *collectortest.Collector {
	t.Helper()
	c, err := collectortest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func setup(t *testing.T, cfg Config) *Telemetry {
	t.Helper()
	tel, err := Setup(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tel.Shutdown)
	return tel
}

func number(key string, n int64) tandem.Attr { return tandem.Attr{Key: key, Int: n} }
func text(key, s string) tandem.Attr         { return tandem.Attr{Key: key, Str: s} }

// find returns the one span of that name.
func find(t *testing.T, spans []collectortest.Span, name string) collectortest.Span {
	t.Helper()
	i := slices.IndexFunc(spans, func(s collectortest.Span) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("no span %q among %d", name, len(spans))
	}
	return spans[i]
}

func TestOneTraceOverThreeProcesses(t *testing.T) {
	col := collector(t)
	gateway := setup(t, Config{Service: "tandem-gateway", Version: "1", Endpoint: col.Endpoint(), Roots: true})
	drafter := setup(t, Config{Service: "tandem-drafter", Endpoint: "http://" + col.Endpoint()})
	verifier := setup(t, Config{Service: "tandem-verifier", Endpoint: col.Endpoint()})
	g, d, v := gateway.Events(), drafter.Events(), verifier.Events()

	ctx, endChat := g.Begin(context.Background(), tandem.StageRequest, text("model", "gopher"), text("session", "ab"))
	round, endRound := g.Begin(ctx, tandem.StageRound, number("round", 1))
	overThere := d.Adopt(context.Background(), g.Carrier(round))
	draft, endDraft := d.Begin(overThere, tandem.StageDraft)
	send, endSend := d.Begin(draft, tandem.StageSend)
	ticket := d.Carrier(send)
	endSend(nil)
	endDraft(nil, number("nodes", 16))
	process, endProcess := v.Begin(v.Adopt(context.Background(), ticket), tandem.StageProcess, tandem.Link(ticket))
	_, endVerify := v.Begin(process, tandem.StageVerify)
	endVerify(nil)
	endProcess(nil, text("outcome", "accepted"), number("accepted", 0))
	endRound(tandem.Errorf("verify", tandem.Deadline, "the prompt said secret"))
	endChat(nil, number("tokens_in", 5), number("tokens_out", 9), number("rounds", 3), text("finish", "stop"))
	for _, tel := range []*Telemetry{gateway, drafter, verifier} {
		tel.Shutdown()
	}

	spans := col.Spans()
	if len(spans) != 6 {
		t.Fatalf("%d spans: want 6", len(spans))
	}
	chat := find(t, spans, "chat gopher")
	for child, parent := range map[string]string{"round": "chat gopher", "draft": "round", "send": "draft", "process": "send",
		"verify": "process"} {
		c, p := find(t, spans, child), find(t, spans, parent)
		if c.Parent != p.ID || c.Trace != chat.Trace {
			t.Errorf("%s is a child of %s in trace %s: want %s (%s) in %s", child, c.Parent, c.Trace, p.ID, parent, chat.Trace)
		}
	}
	if chat.Parent != "" || chat.Kind != "SERVER" || chat.Service != "tandem-gateway" {
		t.Errorf("chat is %+v", chat)
	}
	for key, want := range map[string]any{"gen_ai.operation.name": "chat", "gen_ai.request.model": "gopher",
		"gen_ai.usage.input_tokens":  int64(5),
		"gen_ai.usage.output_tokens": int64(9), "tandem.rounds": int64(3), "tandem.session": "ab",
		"gen_ai.response.finish_reasons": []any{"stop"}} {
		if !reflect.DeepEqual(chat.Attrs[key], want) {
			t.Errorf("chat has %s = %v: want %v", key, chat.Attrs[key], want)
		}
	}
	snd, proc := find(t, spans, "send"), find(t, spans, "process")
	if snd.Kind != "PRODUCER" || snd.Service != "tandem-drafter" || proc.Kind != "CONSUMER" || proc.Service != "tandem-verifier" {
		t.Errorf("send is %s of %s, process is %s of %s", snd.Kind, snd.Service, proc.Kind, proc.Service)
	}
	if len(proc.Links) != 1 || proc.Links[0] != (collectortest.Ref{Trace: snd.Trace, ID: snd.ID}) {
		t.Errorf("process is linked to %v: want send", proc.Links)
	}
	if n, there := proc.Attrs["tandem.accepted"]; !there || n != int64(0) || proc.Attrs["tandem.outcome"] != "accepted" {
		t.Errorf("process has %v", proc.Attrs)
	}
	if r := find(t, spans, "round"); r.Error != "deadline" || r.Attrs["error.type"] != "deadline" || proc.Error != "" {
		t.Errorf("round has error %q, process %q", r.Error, proc.Error)
	}
	for _, s := range spans {
		for k, v := range s.Attrs {
			if text, _ := v.(string); strings.Contains(text, "secret") || strings.Contains(s.Error, "secret") {
				t.Errorf("%s tells what the prompt said in %s", s.Name, k)
			}
		}
	}
}

func TestMutedStagesAreNotRecordedAnywhere(t *testing.T) {
	col := collector(t)
	gateway := setup(t, Config{Service: "g", Endpoint: col.Endpoint(), Roots: true})
	verifier := setup(t, Config{Service: "v", Endpoint: col.Endpoint()})
	g, v := gateway.Events(), verifier.Events()
	ctx, end := g.Begin(context.Background(), tandem.StageRequest, text("model", "m"))
	muted, endMuted := g.Begin(g.Mute(ctx), tandem.StageRound)
	carrier := g.Carrier(muted)
	if !strings.HasSuffix(carrier, "-00") {
		t.Errorf("muted carrier is %q", carrier)
	}
	_, endThere := v.Begin(v.Adopt(context.Background(), carrier), tandem.StageProcess, tandem.Link(carrier))
	_, endRootless := g.Begin(g.Mute(context.Background()), tandem.StageRound)
	_, endOrphan := v.Begin(context.Background(), tandem.StageOpen) // a verifier begins no trace
	_, endGarbage := v.Begin(v.Adopt(context.Background(), "00-garbage"), tandem.StageOpen)
	for _, e := range []tandem.End{endMuted, endThere, endRootless, endOrphan, endGarbage, end} {
		e(nil, number("x", 1))
	}
	gateway.Shutdown()
	verifier.Shutdown()
	if spans := col.Spans(); len(spans) != 1 || spans[0].Name != "chat m" {
		t.Errorf("recorded %+v: want the request alone", spans)
	}
}

func TestCollectorDown(t *testing.T) {
	counters := new(tandem.Counters)
	tel := setup(t, Config{Service: "g", Endpoint: "127.0.0.1:1", Roots: true, Counters: counters})
	start := time.Now()
	for range 5000 {
		_, end := tel.Events().Begin(context.Background(), tandem.StageRound)
		end(nil)
	}
	if d := time.Since(start); d > 20*time.Second { // there is no collector to wait for
		t.Errorf("5000 spans took %v", d)
	}
	start = time.Now()
	tel.Shutdown()
	if d := time.Since(start); d > shutdownTime+20*time.Second {
		t.Errorf("shutdown took %v: want at most %v", d, shutdownTime)
	}
	if counters.Snapshot()["telemetry.lost_spans"] == 0 {
		t.Error("lost spans are not counted")
	}
}

// TestCollectorComesLate: one that starts seconds after the process is found within about a second of its start.
func TestCollectorComesLate(t *testing.T) {
	t.Parallel()
	gone, err := collectortest.Start()
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	tel := setup(t, Config{Service: "g", Endpoint: gone.Endpoint(), Roots: true})
	record := func(until func() bool) {
		for ; !until(); time.Sleep(100 * time.Millisecond) {
			_, end := tel.Events().Begin(context.Background(), tandem.StageRound)
			end(nil)
		}
	}
	begun := time.Now()
	record(func() bool { return time.Since(begun) > 5500*time.Millisecond }) // gRPC's usual next attempt is 9 s after the first
	col, err := collectortest.StartAt(gone.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	defer col.Close()
	begun = time.Now()
	record(func() bool { return len(col.Spans()) > 0 || time.Since(begun) > time.Minute })
	if late := time.Since(begun); late > 3*time.Second {
		t.Errorf("a collector was found %v after its start: want about a second", late)
	}
}

func TestOff(t *testing.T) {
	for _, key := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		t.Setenv(key, "")
	}
	tel := setup(t, Config{Service: "g"})
	if tel != nil {
		t.Fatal("telemetry is on without an endpoint")
	}
	if e := tel.Events(); e.BeginFunc != nil || e.CarrierFunc != nil || e.AdoptFunc != nil || e.MuteFunc != nil {
		t.Error("telemetry that is off has callbacks")
	}
	tel.Shutdown()
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		_, end := tel.Events().Begin(ctx, tandem.StageRound)
		end(nil)
	}); n > 0 {
		t.Errorf("telemetry that is off allocates %v times", n)
	}
}

func TestEndpoint(t *testing.T) {
	for name, c := range map[string]struct {
		configured string
		env        map[string]string
		want       string
	}{
		"nothing":      {"", nil, ""},
		"flag":         {"a:1", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "b:1", "OTEL_SDK_DISABLED": "true"}, "a:1"},
		"environment":  {"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:1"}, "http://b:1"},
		"traces first": {"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "b:1", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "c:1"}, "c:1"},
		"disabled":     {"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "b:1", "OTEL_SDK_DISABLED": "TRUE"}, ""},
		"none":         {"", map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "b:1", "OTEL_TRACES_EXPORTER": "none"}, ""},
	} {
		if got := endpoint(c.configured, func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("%s: %q: want %q", name, got, c.want)
		}
	}
	for _, bad := range []string{"host", "http://", "grpc://host:1", "host:1:2", ":4317"} {
		if _, err := Setup(context.Background(), Config{Endpoint: bad}); !errors.Is(err, tandem.Invalid) {
			t.Errorf("%q: %v: want invalid", bad, err)
		}
	}
}

func BenchmarkRecordedStage(b *testing.B) {
	tel, err := Setup(context.Background(), Config{Service: "g", Endpoint: "127.0.0.1:1", Roots: true})
	if err != nil {
		b.Fatal(err)
	}
	defer tel.Shutdown()
	e := tel.Events()
	for b.Loop() {
		_, end := e.Begin(context.Background(), tandem.StageRound, number("round", 1))
		end(nil, number("accepted", 2))
	}
}
