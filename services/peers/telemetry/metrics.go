package telemetry

import (
	"context"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public"
)

// Buckets of the OpenTelemetry conventions for generative AI, seconds.
var (
	requestBuckets = []float64{0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92}
	firstBuckets   = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	tokenBuckets   = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5}
	roundBuckets   = []float64{50e-6, 100e-6, 200e-6, 400e-6, 800e-6, 1.6e-3, 3.2e-3, 6.4e-3, 12.8e-3, 51.2e-3, 0.2, 1}
)

const (
	mostPositions = 64 // labels of positions in a draft; what is deeper counts for the last
	mostDrafters  = 64 // labels of drafters; others are "other"
)

// MetricsConfig describes the gateway that metrics are about.
type MetricsConfig struct {
	Model   string // the target's name
	Version string // of tandem
	// Describe returns counters and gauges of all processes. It is called for a scrape, at most once a second, with a
	// context that ends after a second; nil: no metrics of other processes.
	Describe func(context.Context) public.Description
	// Prefilling returns how many generations have their prompt read now; nil: not known, and they count as waiting.
	Prefilling func() int
}

// Metrics counts what a gateway does, for Prometheus.
//
// Names that begin with "tandem:" have the suffix, and the meaning, of vLLM's "vllm:…"; "gen_ai_server_…" are those of
// the OpenTelemetry conventions; all others begin with "tandem_". Figures of requests come from a generator that
// Wrap watches; those of processes are fetched at the scrape. No label holds text of a prompt or an output. Safe for
// concurrent use.
type Metrics struct {
	model    string
	registry *prometheus.Registry
	drafters names

	requests                        *prometheus.CounterVec // by code
	finished                        *prometheus.CounterVec // by reason
	http                            *prometheus.CounterVec // by route and code
	active                          *sessions
	promptTokens, outputTokens      prometheus.Counter
	cacheQueries, cacheHits         prometheus.Counter
	drafts, draftTokens, accepted   prometheus.Counter
	acceptedAt, draftedAt           *prometheus.CounterVec // by position
	rounds                          *prometheus.CounterVec // by kind
	reopened                        prometheus.Counter
	aheadTries, aheadHits           prometheus.Counter
	ahead                           *prometheus.CounterVec // by use
	byDrafter                       *prometheus.CounterVec // by drafter and result
	planning                        prometheus.Counter
	duration                        *prometheus.HistogramVec // by error
	firstToken, perToken, roundRest prometheus.Observer
}

// NewMetrics returns metrics that have counted nothing.
func NewMetrics(cfg MetricsConfig) *Metrics {
	m := &Metrics{model: cfg.Model, registry: prometheus.NewRegistry()}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(v)
		return v
	}
	counter := func(name, help string) prometheus.Counter { return counters(name, help).WithLabelValues() }
	semantic := prometheus.Labels{"gen_ai_operation_name": "chat", "gen_ai_provider_name": "tandem", "gen_ai_request_model": cfg.Model}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: semantic}, labels)
		m.registry.MustRegister(v)
		return v
	}

	m.requests = counters("tandem_requests_total", "Generations that ended, by code: ok or the kind of error.", "code")
	m.http = counters("tandem_http_requests_total", "HTTP requests that were answered, by route and status code.", "route", "code")
	m.finished = counters("tandem:request_success_total", "Generations that ended well, by reason.", "finished_reason")
	m.promptTokens = counter("tandem:prompt_tokens_total", "Tokens of prompts.")
	m.outputTokens = counter("tandem:generation_tokens_total", "Tokens of output; drafted tokens that were rejected are none.")
	m.cacheQueries = counter("tandem:prefix_cache_queries_total", "Tokens of prompts that were looked for in the target's KV cache.")
	m.cacheHits = counter("tandem:prefix_cache_hits_total", "Tokens of prompts that were found in the target's KV cache.")
	m.drafts = counter("tandem:spec_decode_num_drafts_total", "Drafts that were verified: rounds with one.")
	m.draftTokens = counter("tandem:spec_decode_num_draft_tokens_total", "Drafted tokens: nodes of trees, roots not counted.")
	m.accepted = counter("tandem:spec_decode_num_accepted_tokens_total", "Drafted tokens that reached the output.")
	m.acceptedAt = counters("tandem:spec_decode_num_accepted_tokens_per_pos_total",
		"Drafted tokens that reached the output, by position in the draft, from 0.", "position")
	m.draftedAt = counters("tandem_spec_decode_drafts_per_pos_total",
		"Drafts that were so deep that they had a token at a position, from 0.", "position")
	m.rounds = counters("tandem_rounds_total", "Rounds of decoding, drafted or plain.", "kind")
	m.reopened = counter("tandem_sessions_reopened_total", "Times that a session was built again in a drafter or the verifier.")
	m.aheadTries = counter("tandem_ahead_tries_total", "Rounds after which a drafter went on while the target verified.")
	m.aheadHits = counter("tandem_ahead_hits_total", "Rounds whose draft had been begun ahead.")
	m.ahead = counters("tandem_ahead_seconds_total", "Draft arithmetic done ahead, by whether it went into drafts.", "use")
	m.byDrafter = counters("tandem_drafter_tokens_total", "Tokens by drafter: drafted by it, and accepted of what its own draft held.",
		"drafter", "result")
	m.planning = counter("tandem_planning_seconds_total", "Time spent on votes, weights, lengths and choices.")
	m.duration = histograms("gen_ai_server_request_duration_seconds", "Time from a generation's request to its end.", requestBuckets,
		"error_type")
	m.firstToken = histograms("gen_ai_server_time_to_first_token_seconds", "Time from a generation's request to its first token.",
		firstBuckets).WithLabelValues()
	m.perToken = histograms("gen_ai_server_time_per_output_token_seconds",
		"Time per token after the first, of generations that ended well.", tokenBuckets).WithLabelValues()
	rest := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tandem_round_coordination_seconds",
		Help: "Time of a round that was neither draft nor target arithmetic.", Buckets: roundBuckets})
	m.active = &sessions{prefilling: cfg.Prefilling}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "tandem_build_info", Help: "Always 1; the labels tell what runs.",
		ConstLabels: prometheus.Labels{"version": cfg.Version, "go": runtime.Version(), "model": cfg.Model}})
	build.Set(1)
	m.roundRest = rest
	m.registry.MustRegister(rest, m.active, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if cfg.Describe != nil {
		m.registry.MustRegister(newProcesses(cfg.Describe))
	}
	m.touch()
	return m
}

// touch creates the series whose labels are known, so that rates see their first event.
func (m *Metrics) touch() {
	for _, code := range []tandem.Kind{tandem.OK, tandem.Invalid, tandem.Exhausted, tandem.Canceled, tandem.Unavailable, tandem.Internal} {
		m.requests.WithLabelValues(code.String())
	}
	for _, reason := range []tandem.FinishReason{tandem.FinishStop, tandem.FinishLength} {
		m.finished.WithLabelValues(string(reason))
	}
	for _, kind := range []string{"drafted", "plain"} {
		m.rounds.WithLabelValues(kind)
	}
	for _, use := range []string{"useful", "wasted"} {
		m.ahead.WithLabelValues(use)
	}
	m.acceptedAt.WithLabelValues("0")
	m.draftedAt.WithLabelValues("0")
	m.duration.WithLabelValues("")
}

// Handler serves the metrics in the formats of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4})
}

// Wrap returns a generator that counts the requests that g answers.
func (m *Metrics) Wrap(g tandem.Generator) tandem.Generator { return &watched{m: m, to: g} }

// Count returns a handler that counts the answers of h by route and status code. The route is the pattern of the http.ServeMux below h that
// matched, so that paths cannot make labels.
func (m *Metrics) Count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &statusWriter{ResponseWriter: w}
		defer func() {
			route := r.Pattern
			if route == "" {
				route = "other"
			}
			m.http.WithLabelValues(route, strconv.Itoa(s.status())).Inc()
		}()
		h.ServeHTTP(s, r)
	})
}

// statusWriter notes the status of an answer. http.ResponseController finds what is below it.
type statusWriter struct {
	http.ResponseWriter
	code int
}

func (s *statusWriter) WriteHeader(code int) {
	if s.code == 0 && code >= 200 {
		s.code = code
	}
	s.ResponseWriter.WriteHeader(code)
}

// status is 200 for a handler that wrote nothing.
func (s *statusWriter) status() int {
	if s.code == 0 {
		return http.StatusOK
	}
	return s.code
}

// Flush implements http.Flusher, which handlers that stream ask for.
func (s *statusWriter) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }

func (s *statusWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// watched is a generator whose requests are counted.
type watched struct {
	m  *Metrics
	to tandem.Generator
}

// Generate implements tandem.Generator.
func (w *watched) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (res tandem.Result, err error) {
	x := &watchedSink{m: w.m, to: s, begun: time.Now(), now: &w.m.active.waiting}
	x.now.Add(1)
	defer func() {
		x.now.Add(-1)
		if p := recover(); p != nil {
			w.m.requests.WithLabelValues(tandem.Internal.String()).Inc()
			panic(p)
		}
	}()
	res, err = w.to.Generate(ctx, r, x)
	w.m.ended(res, err, x)
	return res, err
}

// watchedSink implements tandem.Sink for one generation.
type watchedSink struct {
	m     *Metrics
	to    tandem.Sink
	begun time.Time
	first time.Time     // the first token came; zero until then
	now   *atomic.Int64 // the gauge that counts it now: waiting or decoding
}

// Progress implements tandem.Sink.
func (x *watchedSink) Progress(p tandem.PromptProgress) error { return x.to.Progress(p) }

// Started implements tandem.Sink.
func (x *watchedSink) Started(s tandem.Started) error {
	x.now.Add(-1)
	x.now = &x.m.active.decoding
	x.now.Add(1)
	return x.to.Started(s)
}

// Delta implements tandem.Sink.
func (x *watchedSink) Delta(d tandem.Delta) error {
	if n := len(d.Tokens); n > 0 {
		if x.first.IsZero() {
			x.first = time.Now()
			x.m.firstToken.Observe(x.first.Sub(x.begun).Seconds())
		}
		x.m.outputTokens.Add(float64(n))
	}
	return x.to.Delta(d)
}

// ended counts a generation that is over; what was done before an error counts.
func (m *Metrics) ended(res tandem.Result, err error, x *watchedSink) {
	now := time.Now()
	kind := tandem.KindOf(err).String()
	m.requests.WithLabelValues(kind).Inc()
	if err != nil {
		m.duration.WithLabelValues(kind).Observe(now.Sub(x.begun).Seconds())
	} else {
		m.duration.WithLabelValues("").Observe(now.Sub(x.begun).Seconds())
		m.finished.WithLabelValues(string(res.Finish)).Inc()
		if n := res.OutputTokens - 1; n > 0 && !x.first.IsZero() {
			m.perToken.Observe(now.Sub(x.first).Seconds() / float64(n))
		}
	}
	m.promptTokens.Add(float64(res.PromptTokens))
	m.cacheQueries.Add(float64(res.PromptTokens))
	m.cacheHits.Add(float64(res.CachedTokens))
	m.speculated(res.Stats)
}

func (m *Metrics) speculated(s tandem.Stats) {
	drafted := s.Rounds - s.PlainRounds
	m.drafts.Add(float64(drafted))
	m.draftTokens.Add(float64(s.Drafted))
	m.accepted.Add(float64(s.Accepted))
	m.rounds.WithLabelValues("drafted").Add(float64(drafted))
	m.rounds.WithLabelValues("plain").Add(float64(s.PlainRounds))
	byPosition(m.acceptedAt, s.AcceptedByDepth)
	byPosition(m.draftedAt, s.DraftedByDepth)
	m.reopened.Add(float64(s.Reopened))
	m.aheadTries.Add(float64(s.AheadTries))
	m.aheadHits.Add(float64(s.AheadHits))
	useful := min(s.AheadUseful, s.AheadBusy)
	m.ahead.WithLabelValues("useful").Add(useful.Seconds())
	m.ahead.WithLabelValues("wasted").Add((s.AheadBusy - useful).Seconds())
	m.planning.Add(s.Planning.Seconds())
	for _, d := range s.Coordination {
		m.roundRest.Observe(d.Seconds())
	}
	for _, d := range s.Drafters {
		name := m.drafters.known(d.Name)
		m.byDrafter.WithLabelValues(name, "drafted").Add(float64(d.Drafted))
		m.byDrafter.WithLabelValues(name, "accepted").Add(float64(d.Accepted))
	}
}

func byPosition(c *prometheus.CounterVec, n []int) {
	for i, n := range n {
		c.WithLabelValues(strconv.Itoa(min(i, mostPositions-1))).Add(float64(n))
	}
}
