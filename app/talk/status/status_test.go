package status

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestPoolLine: ps says what waits in the pool, and whose it is.
func TestPoolLine(t *testing.T) {
	told := map[string]int64{"pool.depth": 3, "pool.limit": 3, "pool.oldest_us": 1240, "pool.of.first": 1, "pool.of.gateway": 1,
		"pool.of.go": 1}
	for want, all := range map[string][]Process{
		"pool: 3 of 3 tickets (first 1, gateway 1, go 1), the oldest for 1.2 ms; 2 drafts wait for room": {
			{Role: "verifier", Counters: told}, {Role: "drafter", Counters: map[string]int64{"pool.paused": 2}}},
		"pool: 0 of 3 tickets": {{Role: "verifier", Counters: map[string]int64{"pool.limit": 3}}},
		"":                     {{Role: "verifier"}, {Role: "drafter", Counters: map[string]int64{"pool.paused": 2}}},
	} {
		if line := poolLine(all); line != want {
			t.Errorf("ps says %q: want %q", line, want)
		}
	}
}

// TestPrefillLine: ps says how far the prompts of which sessions have been read.
func TestPrefillLine(t *testing.T) {
	told := map[string]int64{"prefill.sessions": 2, "prefill.tokens": 31000, "prefill.tokens_done": 4720, "prefill.of.00b.done": 3520,
		"prefill.of.00b.total": 23000, "prefill.of.00a.done": 1200, "prefill.of.00a.total": 8000}
	for want, all := range map[string][]Process{
		"prefilling: 2 sessions, 4720 of 31000 tokens (00a 1200 of 8000, 00b 3520 of 23000)": {{Role: "gateway", Counters: told}},
		"": {{Role: "gateway", Counters: map[string]int64{"prefill.sessions": 0}}, {Role: "verifier", Counters: told}},
	} {
		if line := prefillLine(all); line != want {
			t.Errorf("ps says %q: want %q", line, want)
		}
	}
}

// TestMeasured: what a profile says of a draft and this target stands below the table, and nothing where it says nothing.
func TestMeasured(t *testing.T) {
	s := Status{Processes: []Process{{Role: "gateway"}, {Role: "verifier", Identity: "t"}, {Role: "drafter", Identity: "a"},
		{Role: "drafter", Identity: "b"}}}
	s.Measured(func(target, draft string) string {
		if target == "t" && draft == "a" {
			return "draft a brings 1.20 x here"
		}
		return ""
	})
	var out strings.Builder
	if err := s.Print(&out); err != nil || !strings.HasSuffix(out.String(), "\ndraft a brings 1.20 x here\n") {
		t.Errorf("%v: %s", err, out.String())
	}
}

// TestFleet: the members of the fleet are a table of their own, with load and lease; there is none without members.
func TestFleet(t *testing.T) {
	lease := int64(1260)
	d := &tandemv1.DescribeResponse{Fleet: []*tandemv1.Member{
		{Role: "gateway", Address: "box:8451", State: "up", Model: "m", Running: 2, Waiting: 1, LeaseMs: &lease, Host: "box"},
		{Role: "verifier", Address: "box:8452", State: "draining", Model: "m", Identity: "i-1", Running: 3, Pages: 90, FreePages: 40}}}
	var out strings.Builder
	verbose := Of(d)
	verbose.Verbose = true
	if err := verbose.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\nFLEET ", "gateway   up        box:8451  2        1        -           1.3 s  m      -\n",
		"verifier  draining  box:8452  3        0        40 of 90    -      m      i-1\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("ps prints\n%s\nwant %q in it", out.String(), want)
		}
	}
	for addr, want := range map[string]string{"unix:///a": "unix:///a on box", "127.0.0.1:1": "127.0.0.1:1 on box",
		"10.0.0.1:1": "10.0.0.1:1"} {
		if got := (Member{Address: addr, Host: "box"}).where(); got != want {
			t.Errorf("a gateway at %s is shown at %q, want %q", addr, got, want)
		}
	}
	b, err := json.Marshal(Of(d))
	if err != nil || !strings.Contains(string(b), `"address":"box:8451","state":"up","model":"m","running":2,"waiting":1,"lease_seconds":1.26`) {
		t.Errorf("%v: %s", err, b)
	}
	out.Reset()
	if err := (Status{}).Print(&out); err != nil || strings.Contains(out.String(), "FLEET") {
		t.Errorf("without members: %v: %s", err, out.String())
	}
}

// TestPrintFitsABox: ps fits 100 columns for the shipped models on one box, whose fleet is not listed again; -v shows ids.
func TestPrintFitsABox(t *testing.T) {
	const id = "c538fa5bfdb124b20a3255850b948d30-78da3287-4153ded1-f16-a3"
	s := Status{Processes: []Process{{Role: "gateway", Up: true, PID: 4194304, Model: "qwen2.5-coder-1.5b-instruct-q4_k_m",
		Counters: map[string]int64{"restarts": 0, "drafters.away_us.gopher-draft-go-f16": 2700,
			"drafters.away_us.gopher-draft-prose-f16": 3200, "drafters.away_us.gopher-draft-py-f16": 2700, "drafters.away_us.lookup": 1}},
		{Role: "verifier", Up: true, PID: 4194303, Device: "cuda:0", Threads: 64, ISA: "avx512", Model: "gopher-19m", Identity: id,
			Counters: map[string]int64{"kv.pages": 123456, "restarts": 12}},
		{Role: "drafter", Up: true, PID: 4194302, Device: "cpu", Threads: 64, ISA: "avx512",
			Model: "gopher-draft-go, gopher-draft-py, gopher-draft-prose", Identity: id},
		{Role: "drafter", Up: true, Model: "lookup"}},
		Fleet: []Member{{Role: "gateway", State: "up", Address: "127.0.0.1:8451", Host: "box"},
			{Role: "verifier", State: "up", Identity: id}}}
	print := func() string {
		var out strings.Builder
		if err := s.Print(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	out := print()
	for line := range strings.Lines(out) {
		if n := len(strings.TrimSuffix(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.HasSuffix(line, " \n") {
			t.Errorf("spaces at the end of %q", line)
		}
	}
	if strings.Contains(out, id) || strings.Contains(out, "FLEET") || strings.Count(out, "\n") != 9 ||
		!strings.Contains(out, "  gopher-draft-go\n") || !strings.Contains(out, "   gopher-draft-prose\n") {
		t.Errorf("ps prints\n%s", out)
	}
	s.Verbose = true
	if out := print(); strings.Count(out, id) != 3 || !strings.Contains(out, "123456") || !strings.Contains(out, "FLEET") {
		t.Errorf("ps -v prints\n%s", out)
	}
	s.Verbose, s.Fleet[1].State = false, "draining"
	if out := print(); !strings.Contains(out, "draining") {
		t.Errorf("ps of a verifier that drains prints\n%s", out)
	}
}

// TestActivityFitsALine: top's line of a busy machine fits 100 columns.
func TestActivityFitsALine(t *testing.T) {
	at := func(n int64, second int) Activity {
		return ActivityOf(&tandemv1.DescribeResponse{Processes: []*tandemv1.Process{
			{Role: "verifier", Counters: map[string]int64{"passes": n, "passes.rows": 10 * n, "verdicts": n, "passes.busy_us": 1e6}},
			{Role: "drafter", Counters: map[string]int64{"drafts": n, "drafts.nodes": 9 * n}}}}, time.Unix(int64(second), 0))
	}
	var out strings.Builder
	if err := at(999, 1).Print(&out, at(0, 0)); err != nil || len(out.String()) > 101 ||
		!strings.Contains(out.String(), "999.0 passes/s of 10.0 rows  999 verdicts/s  busy 0 %  999 drafts/s of 8991 nodes/s\n") {
		t.Errorf("%v: %q", err, out.String())
	}
}
