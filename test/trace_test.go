package test

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/services/peers/telemetry/collectortest"
)

// TestTraces runs requests with a collector in this process: one trace for each, from all three
// processes, without a span whose parent or link is missing.
func TestTraces(t *testing.T) {
	t.Parallel()
	collector, err := collectortest.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer collector.Close()
	w := newWorld(t)
	var tokens []int
	drafted := 0
	for _, flags := range [][]string{{}, {"--full-trace"}, {"--no-draft"}} {
		args := append([]string{"--prompt", "package main", "--max-tokens", "200", "--ignore-eos", "--otlp-endpoint", collector.Endpoint()},
			flags...)
		g := w.generate(args...)
		tokens = append(tokens, len(g.Tokens))
	}
	// The processes have ended, and with them their exports.
	traces := map[string][]collectortest.Span{}
	for _, s := range collector.Spans() {
		traces[s.Trace] = append(traces[s.Trace], s)
		if s.Service == "tandem-drafter" {
			drafted++
		}
	}
	if drafted == 0 {
		t.Error("no span of the drafter")
	}
	if len(traces) != len(tokens) {
		t.Fatalf("%d traces for %d requests", len(traces), len(tokens))
	}
	for id, spans := range traces {
		checkTrace(t, id, spans, tokens)
	}
}

// checkTrace checks the shape of one trace and that its rounds add up to the tokens of a request.
func checkTrace(t *testing.T, id string, spans []collectortest.Span, tokens []int) {
	t.Helper()
	ids := map[string]bool{}
	services := map[string]int{}
	kinds := map[string]int{}
	for _, s := range spans {
		ids[s.ID] = true
		services[s.Service]++
		kinds[s.Kind]++
	}
	roots, sum, processed := 0, 0, 0
	for _, s := range spans {
		if s.Parent == "" {
			roots++
			if s.Kind != "SERVER" {
				t.Errorf("root %q is of kind %s: want SERVER", s.Name, s.Kind)
			}
		} else if !ids[s.Parent] {
			t.Errorf("span %q of %s has no parent in its trace", s.Name, s.Service)
		}
		for _, l := range s.Links {
			if l.Trace != id || !ids[l.ID] {
				t.Errorf("span %q of %s links to a span that is not there", s.Name, s.Service)
			}
		}
		switch s.Name {
		case "rounds":
			sum += int(s.Int("tandem.accepted") + s.Int("tandem.rounds"))
		case "process":
			processed += len(s.Links)
		}
		if s.End.Before(s.Start) {
			t.Errorf("span %q ends before it starts", s.Name)
		}
	}
	if roots != 1 {
		t.Errorf("%d roots: want 1", roots)
	}
	if services["tandem-gateway"] == 0 || services["tandem-verifier"] == 0 || kinds["PRODUCER"] == 0 || kinds["CONSUMER"] == 0 ||
		processed == 0 {
		t.Errorf("spans by process %v, by kind %v, links of process %d: want some of gateway and verifier, PRODUCER and CONSUMER", services,
			kinds, processed)
	}
	if len(spans) > 1000 {
		t.Errorf("%d spans: want at most 1000", len(spans))
	}
	found := false
	for _, n := range tokens {
		found = found || n == sum
	}
	if !found {
		t.Errorf("accepted + rounds = %d: want the tokens of one of the requests, %v", sum, tokens)
	}
	t.Logf("trace of %d spans: %v", len(spans), services)
}

// TestCollectorAway runs a request with a collector that is not there: nothing of it is seen.
func TestCollectorAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := time.Now()
	g := w.generate("--prompt", "package main", "--max-tokens", "64", "--ignore-eos", "--otlp-endpoint", "127.0.0.1:1")
	if len(g.Tokens) != 64 {
		t.Errorf("%d tokens: want 64", len(g.Tokens))
	}
	plain := w.generate("--prompt", "package main", "--max-tokens", "64", "--ignore-eos")
	if !slices.Equal(g.Tokens, plain.Tokens) {
		t.Error("the text differs from that without a collector")
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("two requests took %v", took)
	}
}
