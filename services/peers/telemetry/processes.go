package telemetry

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-llm/tandem/services/public"
)

const (
	describeTime = time.Second // for one look at all processes
	describeAge  = time.Second // a look this old is still good
)

// figure is a metric made of a counter or gauge of a process. Every figure has the labels process and name on top
// of its own.
type figure struct {
	metric  string
	help    string
	gauge   bool
	scale   float64           // of the counter's unit in the metric's
	labels  map[string]string // fixed
	by      string            // label that takes the rest of a counter's name
	role    string            // of the process; "" = any
	counter string            // its name, or with by the beginning of it
}

// Gauges of a gateway about the sessions that the verifier is reading: how many, and their tokens.
const (
	Prefills     = "prefill.sessions"
	PrefillTotal = "prefill.tokens"
	PrefillDone  = "prefill.tokens_done"
)

const (
	helpStale   = "Drafts and verdicts that came too late or for another state of their session, by reason."
	helpPool    = "Tickets by what became of them."
	helpBusy    = "Time that a device was in passes of a model, draft or verify, or made the target's own guesses: guess."
	helpPass    = "Passes of a model."
	helpConn    = "Connections to a server that was full: refused, or displaced by a newer one because they did least."
	helpGuesses = "What the target's own ways of guessing did: asked, made, failed and their prompt_rows in the verifier; taken, " +
		"garbage, unasked and refused in the gateway."
	helpExperts = "Experts of a model that passes used, counted layer by layer and each once in a pass: what passes read of them."

	streamExperts = "tandem_stream_experts_total"
	helpStreamed  = "Experts of a streamed target, by layer: used by passes; of them missed, read once they were chosen, and foretold, " +
		"which a guess had read; guessed, read because of guesses. The others were in memory."

	helpCalls   = "Requests that were let in, by whose API they speak; of gRPC, generations."
	helpIgnored = "Fields of requests that had no effect, by API and name; names that no program was seen to send are \"other\"."

	helpRows = "Rows of passes of a model: nodes of drafts and pieces of prompts."
)

// figures lists the processes' counters that are exported, and as which metrics. The rooms that count name the
// counters; one that a process does not have is left out.
var figures = []figure{
	{metric: "tandem:num_requests_running", help: "Requests that run.", gauge: true, role: "gateway", counter: "requests.running"},
	{metric: "tandem:num_requests_waiting", help: "Requests that wait until they may run.", gauge: true, role: "gateway",
		counter: "requests.waiting"},
	{metric: "tandem_parked_sessions", help: "Requests that gave their slot back, because their clients do not read or others need it.",
		gauge: true, role: "gateway",
		counter: "sessions.parked"},
	{metric: "tandem_session_parkings_total",
		help: "Times that a request gave its slot back, because its client did not read or others needed it.",
		role: "gateway", counter: "sessions.parkings"},
	{metric: "tandem_prefill_tokens", help: "Tokens of the sessions that the verifier is reading now: to be read in all, and done.",
		gauge: true, labels: map[string]string{"what": "total"}, role: "gateway", counter: PrefillTotal},
	{metric: "tandem_prefill_tokens", help: "Tokens of the sessions that the verifier is reading now: to be read in all, and done.",
		gauge: true, labels: map[string]string{"what": "done"}, role: "gateway", counter: PrefillDone},
	{metric: "tandem_pool_depth", help: "Tickets that wait in the pool now.", gauge: true, role: "verifier", counter: "pool.depth"},
	{metric: "tandem_pool_depth_limit", help: "Tickets that may wait in the pool. Drafters pause while as many do.",
		gauge: true, role: "verifier", counter: "pool.limit"},
	{metric: "tandem_pool_oldest_seconds", help: "How long the first of the tickets in the pool has waited; 0 for none.", gauge: true,
		scale: 1e-6, role: "verifier", counter: "pool.oldest_us"},
	{metric: "tandem_pool_paused", help: "Drafts that wait for room in the pool now.", gauge: true, role: "drafter",
		counter: "pool.paused"},
	{metric: "tandem_pool_pauses_total", help: "Drafts that had to wait for room in the pool.", role: "drafter", counter: "pool.pauses"},
	{metric: "tandem_pool_paused_seconds_total", help: "Time that drafts waited for room in the pool, all together.", scale: 1e-6,
		role: "drafter", counter: "pool.paused_us"},
	{metric: "tandem_pool_age_seconds_total",
		help:  "Time that tickets waited in the pool, all together; over tandem_pool_tickets_total{event=\"taken\"} it is their mean age.",
		scale: 1e-6, role: "verifier", counter: "tickets.waited_us"},
	{metric: "tandem_stale_drafts_total", help: helpStale, by: "reason", role: "verifier", counter: "tickets.stale_"},
	{metric: "tandem_stale_drafts_total", help: helpStale, labels: map[string]string{"reason": "expired"}, role: "verifier",
		counter: "tickets.expired"},
	{metric: "tandem_stale_drafts_total", help: helpStale, labels: map[string]string{"reason": "unknown_session"}, role: "verifier",
		counter: "tickets.unknown_session"},
	{metric: "tandem_stale_drafts_total", help: helpStale, by: "reason", role: "gateway", counter: "verdicts."},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "taken"}, role: "verifier",
		counter: "tickets.taken"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "mapped"}, role: "verifier",
		counter: "tickets.mapped"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "claimed"}, role: "verifier",
		counter: "tickets.claimed"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "direct"}, counter: "tickets.direct"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "put"}, counter: "tickets.put"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "resent"}, counter: "tickets.resent"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "full"}, counter: "tickets.pool_full"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "no_slot"}, counter: "tickets.no_slot"},
	{metric: "tandem_pool_tickets_total", help: helpPool, labels: map[string]string{"event": "garbage"}, role: "verifier",
		counter: "tickets.garbage"},
	{metric: "tandem_device_busy_seconds_total", help: helpBusy, scale: 1e-6, labels: map[string]string{"device": "verify"},
		role: "verifier", counter: "passes.busy_us"},
	{metric: "tandem_device_busy_seconds_total", help: helpBusy, scale: 1e-6, labels: map[string]string{"device": "draft"}, role: "drafter",
		counter: "passes.busy_us"},
	{metric: "tandem_device_busy_seconds_total", help: helpBusy, scale: 1e-6, labels: map[string]string{"device": "guess"},
		role: "verifier", counter: "guessing.busy_us"},
	{metric: "tandem_passes_total", help: helpPass, labels: map[string]string{"device": "verify"}, role: "verifier", counter: "passes"},
	{metric: "tandem_passes_total", help: helpPass, labels: map[string]string{"device": "draft"}, role: "drafter", counter: "passes"},
	{metric: "tandem_pass_rows_total", help: helpRows, labels: map[string]string{"device": "verify"}, role: "verifier",
		counter: "passes.rows"},
	{metric: "tandem_pass_rows_total", help: helpRows, labels: map[string]string{"device": "draft"}, role: "drafter",
		counter: "passes.rows"},
	{metric: "tandem_pass_experts_total", help: helpExperts, labels: map[string]string{"device": "verify"}, role: "verifier",
		counter: "passes.experts"},
	{metric: "tandem_pass_experts_total", help: helpExperts, labels: map[string]string{"device": "draft"}, role: "drafter",
		counter: "passes.experts"},
	{metric: "tandem_guesses_total", help: helpGuesses, by: "event", role: "verifier", counter: "guesses."},
	{metric: "tandem_guesses_total", help: helpGuesses, by: "event", role: "gateway", counter: "guesses."},
	{metric: "tandem_kv_pages", help: "Pages of the KV cache that hold something.", gauge: true, counter: "kv.pages"},
	{metric: "tandem_kv_pages_limit", help: "Pages of the KV cache.", gauge: true, counter: "kv.pages_limit"},
	{metric: "tandem_stream_resident_bytes", help: "Weights of a streamed target that stay in memory.", gauge: true, role: "verifier",
		counter: "stream.resident_bytes"},
	{metric: "tandem_stream_pass_bytes", help: "Weights that each pass of a streamed target reads.", gauge: true, role: "verifier",
		counter: "stream.pass_bytes"},
	{metric: "tandem_stream_read_bytes_total", help: "Weights read from the disk.", role: "verifier", counter: "stream.read_bytes"},
	{metric: "tandem_stream_wait_seconds_total", help: "Time that passes waited for weights.", scale: 1e-6, role: "verifier",
		counter: "stream.waited_us"},
	{metric: "tandem_stream_disk_busy_seconds_total", help: "Time in which at least one read of weights was in progress.", scale: 1e-6,
		role: "verifier", counter: "stream.busy_us"},
	{metric: streamExperts, help: helpStreamed, labels: map[string]string{"event": "used"}, by: "layer", role: "verifier",
		counter: "stream.layer_experts_used."},
	{metric: streamExperts, help: helpStreamed, labels: map[string]string{"event": "missed"}, by: "layer", role: "verifier",
		counter: "stream.layer_experts_missed."},
	{metric: streamExperts, help: helpStreamed, labels: map[string]string{"event": "foretold"}, by: "layer", role: "verifier",
		counter: "stream.layer_experts_foretold."},
	{metric: streamExperts, help: helpStreamed, labels: map[string]string{"event": "guessed"}, by: "layer", role: "verifier",
		counter: "stream.layer_experts_guessed."},
	{metric: "tandem_prefix_pages", help: "Free pages of the KV cache that hold prefixes of ended sessions.", gauge: true,
		counter: "prefix.pages"},
	{metric: "tandem_prefix_hits_total", help: "Sessions opened with a prefix that was found in the KV cache.", counter: "prefix.hits"},
	{metric: "tandem_prefix_reused_tokens_total", help: "Prompt tokens found in the KV cache.", counter: "prefix.reused_tokens"},
	{metric: "tandem_prefix_evicted_pages_total", help: "Pages of prefixes whose memory was needed.", counter: "prefix.evicted_pages"},
	{metric: "tandem_prefix_states", help: "Prefixes kept with the states of recurrent layers.", gauge: true, counter: "prefix.states"},
	{metric: "tandem_prefix_lost_states_total", help: "States of prefixes whose memory was needed.", counter: "prefix.lost"},
	{metric: "tandem_store_restored_tokens_total", help: "Prompt tokens whose keys and values were read from disk.", role: "verifier",
		counter: "store.restored_tokens"},
	{metric: "tandem_store_read_bytes_total", help: "Bytes of prefixes read from disk.", role: "verifier", counter: "store.read_bytes"},
	{metric: "tandem_store_read_seconds_total", help: "Time in which prefixes were read from disk.", scale: 1e-6, role: "verifier",
		counter: "store.read_us"},
	{metric: "tandem_store_written_bytes_total", help: "Bytes of prefixes written to disk.", role: "verifier",
		counter: "store.written_bytes"},
	{metric: "tandem_shm_slots", help: "Slots of shared memory that are leased.", gauge: true, counter: "shm.leased"},
	{metric: "tandem_shm_slots_limit", help: "Slots of shared memory.", gauge: true, counter: "shm.slots"},
	{metric: "tandem_restarts_total", help: "Times that up started the process again.", counter: "restarts"},
	{metric: "tandem_watchdog_kills_total", help: "Times that up killed the process because it hung.", counter: "watchdog.kills"},
	{metric: "tandem_refusals_total",
		help: "Processes, sessions and calls that were refused because two processes do not belong together, by what differs.",
		by:   "reason", counter: "refused."},
	{metric: "tandem_connections_total", help: helpConn, labels: map[string]string{"server": "http"}, by: "event", role: "gateway",
		counter: "http.connections."},
	{metric: "tandem_connections_total", help: helpConn, labels: map[string]string{"server": "grpc"}, by: "event",
		counter: "rpc.connections."},
	{metric: "tandem_dialect_requests_total", help: helpCalls, by: "dialect", role: "gateway", counter: "dialect.requests."},
	ignoredOf("chat"), ignoredOf("completions"), ignoredOf("responses"), ignoredOf("messages"), ignoredOf("ollama"), ignoredOf("llama.cpp"),
	ignoredOf("embeddings"),
	{metric: "tandem_constraints_total", help: "Answers of a form that were cut or could not go on, and tools without their schema.",
		by: "event", counter: "constraints."},
	{metric: "tandem_faults_total", help: "Panics in a pass or a call that were caught.", counter: "faults"},
	{metric: "tandem_lost_spans_total", help: "Spans that the collector did not take.", counter: "telemetry.lost_spans"},
}

// ignoredOf returns the figure of the fields that requests of an API had in vain.
func ignoredOf(dialect string) figure {
	return figure{metric: "tandem_ignored_fields_total", help: helpIgnored, labels: map[string]string{"dialect": dialect}, by: "field",
		role: "gateway", counter: "dialect.ignored." + dialect + "."}
}

// processes is a prometheus.Collector of what the processes behind a gateway tell. A process that is away is a
// tandem_up of 0, never an error.
type processes struct {
	describe func(context.Context) public.Description
	up       *prometheus.Desc
	descs    map[string]*prometheus.Desc
	drafters names

	mu   sync.Mutex // held while the processes are asked, so that scrapes at once ask once
	at   time.Time
	last public.Description
	seen map[string]bool // drafters that were there once
}

func newProcesses(describe func(context.Context) public.Description) *processes {
	p := &processes{describe: describe, descs: map[string]*prometheus.Desc{}, seen: map[string]bool{},
		up: prometheus.NewDesc("tandem_up", "1 if the gateway can reach the process, 0 if it is away.", []string{"process", "name"}, nil)}
	for _, f := range figures {
		if p.descs[f.metric] == nil {
			p.descs[f.metric] = prometheus.NewDesc(f.metric, f.help, append([]string{"process", "name"}, f.labelNames()...), nil)
		}
	}
	return p
}

// labelNames returns the names of a figure's own labels, ascending.
func (f figure) labelNames() []string {
	out := slices.Collect(maps.Keys(f.labels))
	if f.by != "" {
		out = append(out, f.by)
	}
	slices.Sort(out)
	return out
}

// Describe implements prometheus.Collector.
func (p *processes) Describe(ch chan<- *prometheus.Desc) {
	ch <- p.up
	for _, d := range p.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (p *processes) Collect(ch chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) >= describeAge {
		ctx, cancel := context.WithTimeout(context.Background(), describeTime)
		p.last = p.describe(ctx)
		cancel()
		p.at = time.Now()
	}
	for _, x := range p.instances() {
		up := 0.0
		if x.Up {
			up = 1
		}
		ch <- prometheus.MustNewConstMetric(p.up, prometheus.GaugeValue, up, x.role, x.name)
		for _, f := range figures {
			if f.role == "" || f.role == x.role {
				p.tell(ch, f, x)
			}
		}
	}
}

// instance is a process by its labels.
type instance struct {
	public.Process
	role, name string
}

// instances returns the processes, each with distinct labels: gateway and verifier have no name, because there is one of
// each; drafters have theirs, each once. A drafter that is gone is reported as down.
func (p *processes) instances() (out []instance) {
	there := map[[2]string]bool{}
	for _, x := range p.last.Processes {
		i := instance{Process: x, role: x.Role}
		if x.Role == "drafter" {
			if i.name = x.Name; i.name == "" {
				i.name = x.Model
			}
			i.name = p.drafters.known(i.name)
			if len(p.seen) < mostDrafters {
				p.seen[i.name] = true
			}
		}
		if key := [2]string{i.role, i.name}; !there[key] {
			there[key] = true
			out = append(out, i)
		}
	}
	for name := range p.seen {
		if !there[[2]string{"drafter", name}] {
			out = append(out, instance{role: "drafter", name: name})
		}
	}
	return out
}

// tell sends x's value of f.
func (p *processes) tell(ch chan<- prometheus.Metric, f figure, x instance) {
	kind, scale := prometheus.CounterValue, f.scale
	if f.gauge {
		kind = prometheus.GaugeValue
	}
	if scale == 0 {
		scale = 1
	}
	send := func(n int64, rest string) {
		labels := []string{x.role, x.name}
		for _, name := range f.labelNames() {
			if name == f.by {
				labels = append(labels, rest)
			} else {
				labels = append(labels, f.labels[name])
			}
		}
		if m, err := prometheus.NewConstMetric(p.descs[f.metric], kind, float64(n)*scale, labels...); err == nil {
			ch <- m
		}
	}
	if f.by == "" {
		if n, there := x.Counters[f.counter]; there {
			send(n, "")
		}
		return
	}
	told := 0
	for _, name := range slices.Sorted(maps.Keys(x.Counters)) {
		if rest, ok := strings.CutPrefix(name, f.counter); ok && rest != "" && told < mostReasons {
			told++
			send(x.Counters[name], rest)
		}
	}
}

// mostReasons bounds the series that a process can make by the names of its counters.
const mostReasons = 64

// names bounds the number of labels that other processes can create. The zero value is ready; safe for concurrent use.
type names struct {
	mu   sync.Mutex
	seen map[string]bool
}

// known returns name if it is one of the first mostDrafters, else "other".
func (n *names) known(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.seen[name]:
	case len(n.seen) >= mostDrafters:
		return "other"
	case n.seen == nil:
		n.seen = map[string]bool{name: true}
	default:
		n.seen[name] = true
	}
	return name
}
