package test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
)

// TestPs: what runs is listed, and what it does is counted.
func TestPs(t *testing.T) {
	t.Parallel()
	g := up(t)
	w := g.w
	addr := "unix://" + w.tmp + "/g.sock"
	w.ok("generate", "--addr", addr, "--prompt", "import os", "--max-tokens", "8")
	var ps struct {
		Model     string
		Processes []struct {
			Role     string
			Up       bool
			PID      int
			Threads  int
			Counters map[string]int64
		}
	}
	if e := w.ok("ps", "--addr", addr, "--json"); json.Unmarshal([]byte(e.stdout), &ps) != nil {
		t.Fatalf("ps printed %q", e.stdout)
	}
	roles := map[string]bool{}
	for _, p := range ps.Processes {
		roles[p.Role] = roles[p.Role] || p.Up && p.PID > 0 // lookup is a drafter without a process
		if p.Role == "verifier" && (p.Threads < 1 || p.Counters["verdicts"] < 1) {
			t.Errorf("verifier: %+v", p)
		}
	}
	if ps.Model == "" || !roles["gateway"] || !roles["verifier"] || !roles["drafter"] {
		t.Errorf("ps: %+v", ps)
	}
	if e := w.ok("ps", "--addr", addr); !strings.Contains(e.stdout, "\npool: 0 of 32 tickets\n") {
		t.Errorf("ps printed %q", e.stdout)
	}
	if e := w.ok("top", "--addr", addr, "--every", "100ms", "--count",
		"2"); len(regexp.MustCompile(`(?m)passes/s.* busy +[0-9]+ %.* nodes/s$`).FindAllString(e.stdout, -1)) != 2 {
		t.Errorf("top printed %q", e.stdout)
	}
	refused(t, w.run("top", "--addr", addr, "--every", "1ms"), "want at least 100ms")
	if e := w.run("ps", "--addr", "127.0.0.1:1"); e.code != 1 || e.stderr == "" {
		t.Errorf("ps of nobody: exit code %d, %q", e.code, e.stderr)
	}
}
