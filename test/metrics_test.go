package test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tandem-llm/tandem/client"
)

// metrics are the families that a gateway exports.
type metrics map[string]*dto.MetricFamily

// scrape asks a gateway for its metrics, as Prometheus does.
func scrape(t testing.TB, addr string) metrics {
	t.Helper()
	r, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK || !strings.HasPrefix(r.Header.Get("Content-Type"), "text/plain") {
		t.Fatalf("status %s, type %q: want 200 and text/plain", r.Status, r.Header.Get("Content-Type"))
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// sum adds up the series of a metric that have these labels ("name=value"); of a histogram, its observations.
func (m metrics) sum(name string, labels ...string) (total float64) {
	for _, x := range m[name].GetMetric() {
		has := map[string]bool{}
		for _, l := range x.GetLabel() {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !has[l] }) {
			continue
		}
		total += x.GetCounter().GetValue() + x.GetGauge().GetValue() + float64(x.GetHistogram().GetSampleCount())
	}
	return total
}

// TestMetrics runs requests and compares what /metrics tells with what the clients were told.
func TestMetrics(t *testing.T) {
	t.Parallel()
	listen := freePort(t)
	g := up(t, "--http", listen)
	before := scrape(t, listen)
	for p, want := range map[string]float64{"process=gateway": 1, "process=verifier": 1, "process=drafter": 2, "name=lookup": 1} {
		if got := before.sum("tandem_up", p); got != want {
			t.Errorf("tandem_up{%s} is %v: want %v", p, got, want)
		}
	}
	n, seed := 96, uint64(3)
	var rounds, plain, drafted, accepted, prompt, cached, output int
	requests := []client.Request{{Strategy: "fixed", Tree: &client.Tree{Nodes: 8, Depth: 4, Width: 2}}, {Strategy: "llmcad"},
		{NoDraft: true}, {}}
	for _, r := range requests {
		r.Prompt, r.MaxTokens, r.Seed, r.IgnoreEOS = "func (r *Reader) Read(", &n, &seed, true
		f := g.run(t, r).finished
		s := f.Statistics
		rounds, plain, drafted, accepted = rounds+s.Rounds, plain+s.PlainRounds, drafted+s.Drafted, accepted+s.Accepted
		prompt, cached, output = prompt+f.PromptTokens, cached+f.CachedPromptTokens, output+f.OutputTokens
	}
	if _, err := g.try(t.Context(), client.Request{Prompt: "x", Temperature: new(-1.0)}); err == nil {
		t.Fatal("a temperature of -1 was not refused")
	}
	time.Sleep(1100 * time.Millisecond) // figures of processes are a second old at most
	after := scrape(t, listen)
	for name, want := range map[string]int{
		"tandem:spec_decode_num_drafts_total":                  rounds - plain,
		"tandem:spec_decode_num_draft_tokens_total":            drafted,
		"tandem:spec_decode_num_accepted_tokens_total":         accepted,
		"tandem:spec_decode_num_accepted_tokens_per_pos_total": accepted, // all positions together
		"tandem:prompt_tokens_total":                           prompt,
		"tandem:prefix_cache_hits_total":                       cached,
		"tandem:generation_tokens_total":                       output,
		"tandem_rounds_total":                                  rounds,
		"tandem_round_coordination_seconds":                    rounds,
		"gen_ai_server_time_to_first_token_seconds":            len(requests),
		"gen_ai_server_time_per_output_token_seconds":          len(requests),
	} {
		if got := after.sum(name) - before.sum(name); got != float64(want) {
			t.Errorf("%s rose by %v: the clients were told %d", name, got, want)
		}
	}
	if ok, bad := after.sum("tandem_requests_total", "code=ok"),
		after.sum("tandem_requests_total", "code=invalid"); ok != float64(len(requests)) || bad != 1 {
		t.Errorf("requests: %v ok and %v invalid: want %d and 1", ok, bad, len(requests))
	}
	if deep, first := after.sum("tandem:spec_decode_num_accepted_tokens_per_pos_total", "position=1"),
		after.sum("tandem:spec_decode_num_accepted_tokens_per_pos_total", "position=0"); deep > first || first == 0 {
		t.Errorf("%v drafted tokens accepted at position 0 and %v at 1: want some, and fewer deeper", first, deep)
	}
	for _, name := range []string{"tandem_device_busy_seconds_total", "tandem_passes_total"} {
		for _, device := range []string{"draft", "verify"} {
			if after.sum(name, "device="+device) <= before.sum(name, "device="+device) {
				t.Errorf("%s of %s did not rise", name, device)
			}
		}
	}
	if got := after.sum("tandem_pool_tickets_total", "event=taken") - before.sum("tandem_pool_tickets_total",
		"event=taken"); got < float64(rounds) {
		t.Errorf("%v tickets were taken in %d rounds", got, rounds)
	}
	for _, gauge := range []string{"tandem_sessions", "tandem:num_requests_running", "tandem:num_requests_waiting", "tandem_pool_depth"} {
		if v := after.sum(gauge); after[gauge] == nil || v != 0 {
			t.Errorf("%s is %v when all is quiet: want 0", gauge, v)
		}
	}
	monotonic(t, before, after)
	dashboard(t, after)
}

// monotonic fails the test where a counter fell, or a series went away.
func monotonic(t *testing.T, before, after metrics) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		f := before[name]
		if f.GetType() == dto.MetricType_GAUGE {
			continue
		}
		if after[name] == nil {
			t.Errorf("%s went away", name)
			continue
		}
		for _, x := range f.GetMetric() {
			var labels []string
			for _, l := range x.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if was, is := before.sum(name, labels...), after.sum(name, labels...); is < was {
				t.Errorf("%s%v fell from %v to %v", name, labels, was, is)
			}
		}
		if (f.GetType() == dto.MetricType_COUNTER) != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is of type %v: want the ending _total for counters alone", name, f.GetType())
		}
	}
}

// absent are metrics of the dashboard that appear only once something has happened.
var absent = []string{"tandem_stale_drafts_total", "tandem_faults_total", "tandem_lost_spans_total"}

// dashboard checks that every metric that Grafana's dashboard asks for is exported.
func dashboard(t *testing.T, exported metrics) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join("..", "deploy", "grafana", "tandem.json"))
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		UID    string `json:"uid"`
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(file, &board); err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`\b(?:tandem[:_]|gen_ai_|process_|go_)[a-z0-9_:]+`)
	used := map[string]bool{}
	for _, p := range board.Panels {
		for _, x := range p.Targets {
			found := names.FindAllString(x.Expr, -1)
			if len(found) == 0 {
				t.Errorf("panel %q asks for no metric: %s", p.Title, x.Expr)
			}
			for _, name := range found {
				used[name] = true
				name = strings.TrimSuffix(name, "_bucket")
				if exported[name] == nil && !slices.Contains(absent, name) {
					t.Errorf("panel %q asks for %s, which is not exported", p.Title, name)
				}
			}
		}
	}
	if len(used) < 30 {
		t.Errorf("the dashboard uses %d metrics: want the most of what is exported", len(used))
	}
}

// TestMetricsOfAnAbsentVerifier kills the verifier: scrapes go on, and tell that it is away.
func TestMetricsOfAnAbsentVerifier(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("kills a process")
	}
	listen := freePort(t)
	g := up(t, "--http", listen, "--no-draft")
	stop(t, g.w.one(t, "verifier")) // not killed: the supervisor would start another within milliseconds
	testkit.Eventually(t, "the verifier is told to be away",
		func() bool { return scrape(t, listen).sum("tandem_up", "process=verifier") == 0 })
	m := scrape(t, listen)
	if m.sum("tandem_up", "process=gateway") != 1 || m["tandem:generation_tokens_total"] == nil {
		t.Error("the gateway's own metrics are gone with the verifier")
	}
}

// stop stops a process until the end of the test.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
}

// TestTraceFile writes the trace of a request and reads it as Perfetto does.
func TestTraceFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file, picture := filepath.Join(t.TempDir(), "t.json"), filepath.Join(t.TempDir(), "t.svg")
	e := w.labOK("trace", "--json", "--prompt", "func (r *Reader) Read(", "--max-tokens", "64", "--ignore-eos", "--strategy", "fixed",
		"--tree", "8/4/2", "--seed", "1", "-o", file, "--svg", picture)
	g := w.decode(e.stdout)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		Events []struct {
			Name, Ph, Cat string
			Ts, Dur       float64
			Pid, Tid      int
			Args          map[string]any
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(b, &trace); err != nil {
		t.Fatal(err)
	}
	lanes, busy, last, accepted, end := map[int]string{}, map[string]float64{}, 0.0, 0, map[int]float64{}
	rounds := map[float64]bool{}
	for _, x := range trace.Events {
		if x.Ph == "M" {
			if x.Name == "thread_name" {
				lanes[x.Tid] = x.Args["name"].(string)
			}
			continue
		}
		if x.Ph != "X" || x.Dur <= 0 || x.Ts < last || lanes[x.Tid] == "" {
			t.Errorf("event %+v after %v µs: want a complete one in a lane, in order, of some time", x, last)
		}
		if x.Ts < end[x.Tid]-0.001 {
			t.Errorf("event %s of %s begins at %v µs, before the one before it has ended at %v", x.Name, lanes[x.Tid], x.Ts, end[x.Tid])
		}
		last, end[x.Tid] = x.Ts, x.Ts+x.Dur
		busy[x.Cat] += x.Dur
		if x.Cat == "commit" {
			rounds[x.Args["round"].(float64)] = true
			accepted += int(x.Args["accepted"].(float64))
		}
	}
	names := slices.Sorted(maps.Values(lanes))
	if fmt.Sprint(names) != "[ahead gopher-draft-all-f16 commit draft gopher-draft-all-f16 pool verify]" {
		t.Errorf("lanes %v", names)
	}
	if len(rounds) != g.Stats.Rounds || accepted < g.Stats.Accepted {
		t.Errorf("%d rounds with %d accepted nodes: the statistics have %d and %d", len(rounds), accepted, g.Stats.Rounds, g.Stats.Accepted)
	}
	var stats struct {
		Stats struct {
			Verify float64 `json:"verify_ms"`
			Decode float64 `json:"decode_ms"`
		} `json:"stats"`
	}
	if err := json.Unmarshal([]byte(e.stdout), &stats); err != nil {
		t.Fatal(err)
	}
	sum := (busy["draft"] + busy["pool"] + busy["verify"] + busy["commit"]) / 1000
	if v := busy["verify"] / 1000; v < 0.9*stats.Stats.Verify || v > 1.01*stats.Stats.Verify || sum > 1.05*stats.Stats.Decode ||
		sum < 0.5*stats.Stats.Decode {
		t.Errorf("verify lasts %.1f ms, all lanes of rounds %.1f ms: the statistics say %.1f of %.1f ms", v, sum, stats.Stats.Verify,
			stats.Stats.Decode)
	}
	svg, err := os.ReadFile(picture)
	if err != nil || !strings.HasPrefix(string(svg), "<svg ") || strings.Count(string(svg), "<rect") < 20 {
		t.Errorf("picture of %d bytes, %v: want one of twelve rounds", len(svg), err)
	}
	e = w.lab("trace", "--prompt", "x", "--max-tokens", "1", "-o", "/nowhere/t.json")
	if e.code != 2 || !strings.HasPrefix(e.stderr, "tandem-lab: --out /nowhere/t.json") || strings.Count(e.stderr, "\n") != 1 {
		t.Errorf("a file that cannot be written: exit code %d, %q", e.code, e.stderr)
	}
}
