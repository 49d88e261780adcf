package test

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestBenchDevices: two placements on the processor give the same ids, drafting ahead has its figures, and a placement or device that is
// not there is an error that says so, after the others have run.
func TestBenchDevices(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	w := newWorld(t)
	args := []string{"bench", "devices", "--json", "--context", "1", "--rounds", "1", "--count", "1", "--max-tokens", "16", "--on", "cpu",
		"--up", "--set ahead-gain=0", "--place", "one=--verifier-threads 1 --drafter-threads 1", "--place", "two=--verifier-threads 2"}
	var r struct {
		Bits   []struct{ Equal bool }
		Step   *struct{ MS float64 } `json:"draft_step"`
		Places []struct {
			Equal       bool
			Error       string
			Plain       struct{ Tokens int }
			Speculating struct{ Tokens int }
			Ahead       *struct{ Drafting, Bound float64 }
		}
	}
	e := w.labOK(args...)
	if err := json.Unmarshal([]byte(e.stdout), &r); err != nil {
		t.Fatalf("%v in %.300s", err, e.stdout)
	}
	if len(r.Bits) != 2 || !r.Bits[0].Equal || !r.Bits[1].Equal || r.Step == nil || r.Step.MS <= 0 || len(r.Places) != 2 {
		t.Fatalf("%s", e.stdout)
	}
	for _, p := range r.Places {
		if !p.Equal || p.Plain.Tokens == 0 || p.Speculating.Tokens != p.Plain.Tokens || p.Ahead == nil || p.Ahead.Drafting <= 0 ||
			p.Ahead.Bound < 1 {
			t.Errorf("%+v", p)
		}
	}
	bad := w.lab(append(args[:len(args)-1:len(args)-1], "two=--no-such-flag")...)
	if bad.code != 1 || !strings.Contains(bad.stderr, "not measured: two: unknown flag --no-such-flag") || !strings.Contains(bad.stdout, `"one"`) {
		t.Errorf("exit code %d: %s\n%s", bad.code, bad.stderr, bad.stdout)
	}
	for want, flags := range map[string][]string{"--on is \"gpu\"": {"--on", "gpu"}, "--place \"x\"": {"--on", "none", "--place", "x"},
		draftModel + "x": {"--on", "none", "--draft", draftModel + "x"}} {
		if e := w.lab(append([]string{"bench", "devices"}, flags...)...); e.code == 0 || !strings.Contains(e.stderr, want) {
			t.Errorf("%q: exit code %d: %s", flags, e.code, e.stderr)
		}
	}
}
