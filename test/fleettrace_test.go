package test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/peers/draining"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/telemetry/collectortest"
)

// TestFleetTrace: a request whose session moves to another verifier, because its own is drained, is one trace, with spans of its gateway,
// of the drafter and of both verifiers, and without a span of the other gateway.
func TestFleetTrace(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	collector, err := collectortest.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer collector.Close()
	f := startFleet(t, "--set", "otlp-endpoint="+collector.Endpoint())
	f.up("up", 3)
	for i := range f.gateways {
		f.moved(f.clients[i], client.Request{Prompt: "// Package reader reads", MaxTokens: new(900), IgnoreEOS: true,
			Strategy: "fixed", Tree: &client.Tree{Nodes: 4, Depth: 3, Width: 2}})
		spans := collector.Wait(20*time.Second, func(all []collectortest.Span) bool {
			missing, _ := f.lacks(all, i)
			return missing == ""
		})
		if missing, processes := f.lacks(spans, i); missing != "" {
			t.Errorf("gateway %d: the trace lacks %s; spans by process: %v", i, missing, processes)
		}
	}
}

// moved sends a request to the first verifier, and has that drained while the request runs, so that the session goes to the second one.
func (f *fleet) moved(c *client.Client, r client.Request) {
	f.t.Helper()
	f.drain(1, false)
	f.drain(2, false)
	f.up("draining", 2)
	tokens, reopened, begun := 0, 0, false
	for e, err := range c.Generate(f.t.Context(), r) {
		if err != nil {
			f.t.Fatal(err)
		}
		if e.Delta != nil {
			tokens += len(e.Delta.Tokens)
		}
		if e.Finished != nil {
			reopened = int(e.Finished.Statistics.Reopened)
		}
		if !begun && tokens > 0 {
			begun = true
			f.drain(1, true)
			f.drain(0, false)
		}
	}
	if tokens != *r.MaxTokens || reopened == 0 {
		f.t.Fatalf("%d tokens: want %d; the session was opened again %d times: want at least once", tokens, *r.MaxTokens, reopened)
	}
	f.drain(0, true)
	f.drain(2, true)
	f.up("up", 3)
}

// drain has a verifier take no sessions, or take them again. It is quicker than the command, which is a process of its own.
func (f *fleet) drain(i int, undo bool) {
	f.t.Helper()
	conn, err := rpc.Dial(f.addrs[i])
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := draining.Drain(f.t.Context(), conn, undo); err != nil {
		f.t.Fatal(err)
	}
}

// lacks says what is missing of the trace of the one request through a gateway, "" if nothing is.
func (f *fleet) lacks(all []collectortest.Span, gateway int) (missing string, processes map[string]int) {
	names := map[int64]string{int64(f.drafter.cmd.Process.Pid): "drafter"}
	for i, p := range f.gateways {
		names[int64(p.cmd.Process.Pid)] = "another gateway"
		if i == gateway {
			names[int64(p.cmd.Process.Pid)] = "gateway"
		}
	}
	for i, p := range f.verifiers {
		names[int64(p.cmd.Process.Pid)] = fmt.Sprint("verifier ", i)
	}
	processes = map[string]int{}
	traces, ids, roots := map[string]bool{}, map[string]bool{}, 0
	for _, s := range all {
		if names[s.PID] == "gateway" {
			traces[s.Trace] = true
		}
	}
	spans := slices.DeleteFunc(all, func(s collectortest.Span) bool { return !traces[s.Trace] })
	for _, s := range spans {
		ids[s.ID] = true
		processes[names[s.PID]]++
		if s.Parent == "" {
			roots++
		}
	}
	for _, s := range spans {
		if s.Parent != "" && !ids[s.Parent] {
			return "the parent of " + s.Service + "'s span " + s.Name, processes
		}
	}
	for _, name := range []string{"gateway", "drafter", "verifier 0", "verifier 1"} {
		if processes[name] == 0 {
			return "spans of the " + name, processes
		}
	}
	if len(traces) != 1 || roots != 1 || processes["another gateway"] != 0 {
		return "its unity: spans of several traces, with several roots, or of another gateway", processes
	}
	return "", processes
}
