package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/test/testkit"
)

// scripted is a generator that says what it was told to.
type scripted struct {
	deltas []tandem.Delta
	result tandem.Result
	err    error
	during func()
}

func (s scripted) Generate(_ context.Context, _ tandem.Request, to tandem.Sink) (tandem.Result, error) {
	if err := to.Started(tandem.Started{}); err != nil {
		return tandem.Result{}, err
	}
	for _, d := range s.deltas {
		if err := to.Delta(d); err != nil {
			return tandem.Result{}, err
		}
	}
	if s.during != nil {
		s.during()
	}
	return s.result, s.err
}

type noSink struct{}

func (noSink) Progress(tandem.PromptProgress) error { return nil }
func (noSink) Started(tandem.Started) error         { return nil }
func (noSink) Delta(tandem.Delta) error             { return nil }

// scrape returns what m serves, as name{label="value",…} → value.
func scrape(t *testing.T, m *Metrics) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for name, f := range families {
		for _, x := range f.GetMetric() {
			var labels []string
			for _, l := range x.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			series := name
			if len(labels) > 0 {
				series += "{" + strings.Join(labels, ",") + "}"
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				out[series] = x.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				out[series] = x.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				out[series+" count"], out[series+" sum"] = float64(x.GetHistogram().GetSampleCount()), x.GetHistogram().GetSampleSum()
			}
		}
	}
	return out
}

func want(t *testing.T, got map[string]float64, values map[string]float64) {
	t.Helper()
	for _, series := range slices.Sorted(maps.Keys(values)) {
		v, there := got[series]
		if !there {
			t.Errorf("%s is not there: want %v", series, values[series])
		} else if v != values[series] {
			t.Errorf("%s is %v: want %v", series, v, values[series])
		}
	}
}

func TestMetricsOfRequests(t *testing.T) {
	m := NewMetrics(MetricsConfig{Model: "gopher", Version: "1"})
	first := scripted{
		deltas: []tandem.Delta{{Tokens: []tandem.Token{1, 2, 3}}, {Text: "held back"}, {Tokens: []tandem.Token{4}}},
		result: tandem.Result{Finish: tandem.FinishStop, PromptTokens: 10, CachedTokens: 4, OutputTokens: 4, Stats: tandem.Stats{
			Rounds: 2, Drafted: 7, DraftedDepth: 3, Accepted: 2, PlainRounds: 1, Reopened: 1, AheadTries: 2, AheadHits: 1,
			AheadBusy:   3 * time.Second,
			AheadUseful: time.Second, Coordination: []time.Duration{time.Millisecond, 2 * time.Millisecond}, AcceptedByDepth: []int{1, 1},
			DraftedByDepth: []int{1, 1, 1},
			Drafters:       []tandem.DrafterStats{{Name: "go", Drafted: 7, Accepted: 2}}}},
		during: func() {
			want(t, scrape(t, m), map[string]float64{`tandem_sessions{state="decoding"}`: 1, `tandem_sessions{state="waiting"}`: 0,
				"tandem:generation_tokens_total": 4})
		},
	}
	if res, err := m.Wrap(first).Generate(context.Background(), tandem.Request{}, noSink{}); err != nil || res.OutputTokens != 4 {
		t.Fatalf("%+v, %v: want what the generator says", res, err)
	}
	refused := tandem.Errorf("generate", tandem.Exhausted, "full")
	if _, err := m.Wrap(scripted{err: refused}).Generate(context.Background(), tandem.Request{}, noSink{}); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	labels := `gen_ai_operation_name="chat",gen_ai_provider_name="tandem",gen_ai_request_model="gopher"`
	got := scrape(t, m)
	want(t, got, map[string]float64{
		`tandem_requests_total{code="ok"}`:                                                      1,
		`tandem_requests_total{code="exhausted"}`:                                               1,
		`tandem_requests_total{code="invalid"}`:                                                 0,
		`tandem:request_success_total{finished_reason="stop"}`:                                  1,
		"tandem:prompt_tokens_total":                                                            10,
		"tandem:generation_tokens_total":                                                        4,
		"tandem:prefix_cache_queries_total":                                                     10,
		"tandem:prefix_cache_hits_total":                                                        4,
		"tandem:spec_decode_num_drafts_total":                                                   1,
		"tandem:spec_decode_num_draft_tokens_total":                                             7,
		"tandem:spec_decode_num_accepted_tokens_total":                                          2,
		`tandem:spec_decode_num_accepted_tokens_per_pos_total{position="0"}`:                    1,
		`tandem:spec_decode_num_accepted_tokens_per_pos_total{position="1"}`:                    1,
		`tandem_spec_decode_drafts_per_pos_total{position="2"}`:                                 1,
		`tandem_rounds_total{kind="drafted"}`:                                                   1,
		`tandem_rounds_total{kind="plain"}`:                                                     1,
		"tandem_sessions_reopened_total":                                                        1,
		"tandem_ahead_tries_total":                                                              2,
		"tandem_ahead_hits_total":                                                               1,
		`tandem_ahead_seconds_total{use="useful"}`:                                              1,
		`tandem_ahead_seconds_total{use="wasted"}`:                                              2,
		`tandem_drafter_tokens_total{drafter="go",result="accepted"}`:                           2,
		`tandem_drafter_tokens_total{drafter="go",result="drafted"}`:                            7,
		"tandem_round_coordination_seconds count":                                               2,
		"tandem_round_coordination_seconds sum":                                                 0.003,
		`tandem_sessions{state="decoding"}`:                                                     0,
		`tandem_sessions{state="waiting"}`:                                                      0,
		"gen_ai_server_request_duration_seconds{error_type=\"\"," + labels + "} count":          1,
		"gen_ai_server_request_duration_seconds{error_type=\"exhausted\"," + labels + "} count": 1,
		"gen_ai_server_time_to_first_token_seconds{" + labels + "} count":                       1,
		"gen_ai_server_time_per_output_token_seconds{" + labels + "} count":                     1,
	})
}

// TestMetricsOfAGeneratorThatPanics checks that the panic goes on and nothing is left counted as running.
func TestMetricsOfAGeneratorThatPanics(t *testing.T) {
	m := NewMetrics(MetricsConfig{})
	func() {
		defer func() {
			if p := recover(); p != "as told" {
				t.Errorf("recovered %v: want the generator's panic", p)
			}
		}()
		_, _ = m.Wrap(scripted{during: func() { panic("as told") }}).Generate(context.Background(), tandem.Request{}, noSink{})
	}()
	want(t, scrape(t, m), map[string]float64{`tandem_sessions{state="decoding"}`: 0, `tandem_requests_total{code="internal"}`: 1})
}

func TestMetricsOfProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the look at the processes ages by the clock, however busy the machine is
		asked := atomic.Int32{}
		there := []public.Process{
			{Role: "gateway", Up: true, Description: tandem.Description{Name: "gateway", Counters: map[string]int64{
				"verdicts.stale_base": 2, "requests.running": 1, "requests.waiting": 5,
				"dialect.requests.llama.cpp": 3, "dialect.requests.grpc": 4, "dialect.ignored.llama.cpp.samplers": 2}}},
			{Role: "verifier", Up: true, Description: tandem.Description{Name: "verifier", Counters: map[string]int64{
				"tickets.stale_epoch": 3, "tickets.stale_": 9,
				"tickets.taken": 4, "tickets.waited_us": 2_000_000, "pool.depth": 1, "pool.limit": 32, "pool.oldest_us": 1500,
				"tickets.mapped": 3, "passes.busy_us": 500_000, "kv.pages": 7, "unheard.of": 1}}},
			{Role: "drafter", Up: true, Description: tandem.Description{Name: "go", Counters: map[string]int64{"passes.busy_us": 250_000,
				"shm.leased": 2, "shm.slots": 128,
				"pool.paused": 1, "pool.pauses": 5, "pool.paused_us": 500_000}}},
			{Role: "drafter", Up: true, Description: tandem.Description{Name: "go"}}, // another of that name
		}
		describe := func(ctx context.Context) public.Description {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("asked without a deadline")
			}
			asked.Add(1)
			return public.Description{Processes: there}
		}
		m := NewMetrics(MetricsConfig{Describe: describe})
		first := scrape(t, m)
		want(t, first, map[string]float64{
			`tandem_up{name="",process="gateway"}`:                                                        1,
			`tandem_up{name="",process="verifier"}`:                                                       1,
			`tandem_up{name="go",process="drafter"}`:                                                      1,
			`tandem:num_requests_running{name="",process="gateway"}`:                                      1,
			`tandem:num_requests_waiting{name="",process="gateway"}`:                                      5,
			`tandem_stale_drafts_total{name="",process="gateway",reason="stale_base"}`:                    2,
			`tandem_stale_drafts_total{name="",process="verifier",reason="epoch"}`:                        3,
			`tandem_pool_depth{name="",process="verifier"}`:                                               1,
			`tandem_dialect_requests_total{dialect="llama.cpp",name="",process="gateway"}`:                3,
			`tandem_dialect_requests_total{dialect="grpc",name="",process="gateway"}`:                     4,
			`tandem_ignored_fields_total{dialect="llama.cpp",field="samplers",name="",process="gateway"}`: 2,
			`tandem_pool_age_seconds_total{name="",process="verifier"}`:                                   2,
			`tandem_pool_depth_limit{name="",process="verifier"}`:                                         32,
			`tandem_pool_oldest_seconds{name="",process="verifier"}`:                                      0.0015,
			`tandem_pool_paused{name="go",process="drafter"}`:                                             1,
			`tandem_pool_pauses_total{name="go",process="drafter"}`:                                       5,
			`tandem_pool_paused_seconds_total{name="go",process="drafter"}`:                               0.5,
			`tandem_pool_tickets_total{event="mapped",name="",process="verifier"}`:                        3,
			`tandem_pool_tickets_total{event="taken",name="",process="verifier"}`:                         4,
			`tandem_device_busy_seconds_total{device="verify",name="",process="verifier"}`:                0.5,
			`tandem_device_busy_seconds_total{device="draft",name="go",process="drafter"}`:                0.25,
			`tandem_kv_pages{name="",process="verifier"}`:                                                 7,
			`tandem_shm_slots{name="go",process="drafter"}`:                                               2,
			`tandem_shm_slots_limit{name="go",process="drafter"}`:                                         128,
		})
		scrape(t, m)
		if n := asked.Load(); n != 1 {
			t.Errorf("two scrapes at once asked the processes %d times: want 1", n)
		}
		there = []public.Process{{Role: "gateway", Up: true}, {Role: "verifier"}}
		testkit.Sleep(describeAge + 10*time.Millisecond)
		later := scrape(t, m)
		want(t, later, map[string]float64{`tandem_up{name="",process="verifier"}`: 0, `tandem_up{name="go",process="drafter"}`: 0})
		if _, told := later[`tandem_pool_depth{name="",process="verifier"}`]; told {
			t.Error("a verifier that is away still tells a pool depth")
		}
	})
}

// TestMetricsBoundLabels checks that others cannot make series without bound.
func TestMetricsBoundLabels(t *testing.T) {
	var there []public.Process
	counters := map[string]int64{}
	for i := range 200 {
		counters[fmt.Sprintf("tickets.stale_%d", i)] = 1
		there = append(there, public.Process{Role: "drafter", Up: true, Description: tandem.Description{Name: fmt.Sprintf("d%d\n\"{}", i)}})
	}
	there = append(there, public.Process{Role: "verifier", Up: true, Description: tandem.Description{Counters: counters}})
	m := NewMetrics(MetricsConfig{Describe: func(context.Context) public.Description { return public.Description{Processes: there} }})
	var stats tandem.Stats
	stats.AcceptedByDepth = make([]int, 5000)
	for i := range 5000 {
		stats.Drafters = append(stats.Drafters, tandem.DrafterStats{Name: fmt.Sprint("x", i), Drafted: 1})
		stats.AcceptedByDepth[i] = 1
	}
	_, _ = m.Wrap(scripted{result: tandem.Result{Stats: stats}}).Generate(context.Background(), tandem.Request{}, noSink{})
	got := scrape(t, m)
	if len(got) > 600 {
		t.Errorf("%d series: want at most 600", len(got))
	}
	want(t, got, map[string]float64{`tandem_drafter_tokens_total{drafter="other",result="drafted"}`: 5000 - mostDrafters,
		`tandem:spec_decode_num_accepted_tokens_per_pos_total{position="63"}`: 5000 - mostPositions + 1})
}

func TestCountHTTP(t *testing.T) {
	m := NewMetrics(MetricsConfig{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := w.(http.Flusher); !ok {
			t.Error("a handler that streams cannot flush")
		}
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		if r.URL.Query().Has("bad") {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = io.WriteString(w, "x")
	})
	s := httptest.NewServer(m.Count(mux))
	defer s.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for _, path := range []string{"/v1/completions", "/v1/completions?bad", "/nowhere/1", "/nowhere/2"} {
		r, err := http.Post(s.URL+path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
	}
	want(t, scrape(t, m), map[string]float64{
		`tandem_http_requests_total{code="200",route="POST /v1/completions"}`: 1,
		`tandem_http_requests_total{code="400",route="POST /v1/completions"}`: 1,
		`tandem_http_requests_total{code="404",route="other"}`:                2,
	})
}

func BenchmarkWatchedDelta(b *testing.B) {
	m := NewMetrics(MetricsConfig{})
	x := &watchedSink{m: m, to: noSink{}, begun: time.Now()}
	d := tandem.Delta{Tokens: []tandem.Token{1, 2}}
	for b.Loop() {
		_ = x.Delta(d)
	}
}
