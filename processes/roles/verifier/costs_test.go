package verifier

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/profile"
)

// TestSlower: only widths that both know, and that trees have, count.
func TestSlower(t *testing.T) {
	costs := func(of ...int) (out []tandem.Cost) {
		for i := 0; i < len(of); i += 2 {
			out = append(out, tandem.Cost{Rows: of[i], Time: time.Duration(of[i+1])})
		}
		return out
	}
	for _, c := range []struct {
		a, b []tandem.Cost
		want float64
	}{
		{costs(1, 10, 8, 30), costs(1, 10, 8, 20), 1.25},
		{costs(1, 10, 4, 99, 32, 900), costs(1, 20, 32, 10), 0.5},
		{costs(1, 10), costs(2, 10), math.Inf(1)},
	} {
		if got := slower(c.a, c.b); got != c.want {
			t.Errorf("%v against %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// TestSpareThreads: a verifier leaves threads alone that do not make its passes quicker, and passes go on with either number.
func TestSpareThreads(t *testing.T) {
	m, err := engine.Open("../../../models/gopher-19m-q8_0.gguf", engine.Options{Device: testdevice.CPU(t, 2), Context: 256, KVPages: 16,
		MaxRows: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	now := measured{Threads: 2, Spare: 1}
	if err := now.measure(t.Context(), m, nil); err != nil {
		t.Fatal(err)
	}
	if now.Used != m.About().Threads || now.Used < 1 || now.Used > 2 || len(now.Costs) == 0 {
		t.Errorf("uses %d threads, model has %d, %d costs", now.Used, m.About().Threads, len(now.Costs))
	}
	for spare, want := range map[int]int{0: 2, 2: 2, -1: 2} {
		now := measured{Threads: 2, Spare: spare}
		err := errors.Join(m.Passes().SetThreads(2), now.measure(t.Context(), m, nil))
		if err != nil || now.Used != want || m.About().Threads != want {
			t.Errorf("%d to spare: uses %d threads (%v), want %d", spare, now.Used, err, want)
		}
	}
}

// TestPlan: costs and threads come from a plan of this machine, version and model; any other plan is an error that says why.
func TestPlan(t *testing.T) {
	m, err := engine.Open("../../../models/gopher-19m-q8_0.gguf", engine.Options{Device: testdevice.CPU(t, 2), Context: 256, KVPages: 16,
		MaxRows: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	made := func(version string, fewer time.Duration) *profile.Plan {
		p := (&profile.Plan{}).Begin(profile.ThisBox(), version)
		for threads, ms := range map[int]time.Duration{1: fewer, 2: 10 * time.Millisecond} {
			p.Time(profile.Subject{What: profile.What{Kind: "target", Identity: m.Names().Identity, Threads: threads,
				Device: m.About().Kernels},
				Points: profile.Points([]tandem.Cost{{Rows: 1, Context: 128, Time: ms}, {Rows: 1, Context: 512, Time: 50 * ms}})})
		}
		return p
	}
	for _, c := range []struct {
		version     string
		fewer       time.Duration
		spare, used int
		want        string
	}{
		{"v", 10 * time.Millisecond, 1, 1, ""}, {"v", 19 * time.Millisecond, 1, 2, ""}, {"v", 10 * time.Millisecond, 0, 2, ""},
		{"v", 10 * time.Millisecond, 2, 2, ""}, {"w", 10 * time.Millisecond, 1, 2, "measured by tandem w, this is v"},
	} {
		now := measured{Threads: 2, Spare: c.spare}
		if err := m.Passes().SetThreads(2); err != nil {
			t.Fatal(err)
		}
		err := now.look(m, ofPlan(made(c.version, c.fewer), "v"))
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) || m.About().Threads != 2 || now.Costs != nil {
				t.Errorf("%+v: %v, %d threads", c, err, m.About().Threads)
			}
			continue
		}
		if err != nil || now.Used != c.used || m.About().Threads != c.used || len(now.Costs) != 2 {
			t.Errorf("%+v: %v, uses %d threads, %d costs", c, err, now.Used, len(now.Costs))
		}
	}
}
