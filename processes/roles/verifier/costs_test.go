package verifier

import (
	"bytes"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
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

func always() bool { return true }

// TestMeasuredInIdleMoments: a first start knows nothing. Then passes are measured one at a time, with all threads and without the spare
// ones; between two of them the model is as it was, and who comes finds all of its memory. The next start has what was found.
func TestMeasuredInIdleMoments(t *testing.T) {
	m, err := engine.Open("../../../models/gopher-19m-q8_0.gguf", engine.Options{Device: testdevice.CPU(t, 2), Context: 256, KVPages: 16,
		MaxRows: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var log bytes.Buffer
	r := &roles.Process{Program: roles.Program{Version: "v", Calm: always, Log: slog.New(slog.NewTextHandler(&log, nil))}}
	plan := &profile.Plan{Format: profile.Format}
	for spare, kinds := range map[int]int{0: 1, 1: 2, 2: 1} {
		c := Setup{}
		c.Measure, c.SpareThreads, c.Cache = true, spare, t.TempDir()
		if err := m.Passes().SetThreads(2); err != nil {
			t.Fatal(err)
		}
		now, measuring := c.costsOf(r, m, plan)
		if now.Costs != nil || now.left() || measuring == nil || measuring.Rest() <= 0 {
			t.Fatalf("a first start has %+v, or measures before it serves", now)
		}
		var told [][]roles.Measured
		measuring.Begin(func(all []roles.Measured) {
			told = append(told, all)
			var fewer []tandem.Cost
			if len(all) > 1 {
				fewer = all[1].Costs
			}
			if err := now.choose(m, all[0].Costs, fewer); err != nil {
				t.Error(err)
			}
		})
		for range 4 {
			if again := measuring.Rest(); again != 0 {
				t.Fatalf("after a pass: again after %v, want at once", again)
			}
		}
		_, other := c.costsOf(r, m, plan)
		if other.Begin(func([]roles.Measured) {}); other.Rest() <= 0 {
			t.Error("two measure at a time")
		}
		measuring.Rouse()
		if m.FreePages() != m.Pages() {
			t.Errorf("%d of %d pages are free for who comes", m.FreePages(), m.Pages())
		}
		passes := 0
		for again := time.Duration(0); again >= 0; passes++ {
			again = measuring.Rest()
			if m.About().Threads != now.Used {
				t.Fatalf("%d threads between passes: want %d", m.About().Threads, now.Used)
			}
		}
		if len(told) != 2 || len(told[1]) != kinds || passes < 8 || len(now.Costs) == 0 || m.About().Threads != now.Used {
			t.Fatalf("%d passes told %d times, %+v", passes, len(told), now)
		}
		for i, again := range told[1][0].Costs {
			if first := told[0][0].Costs; i < len(first) && first[i].Rows == again.Rows && again.Time > first[i].Time {
				t.Errorf("%v after %v: want the least of both", again, first[i])
			}
		}
		if err := m.Passes().SetThreads(2); err != nil {
			t.Fatal(err)
		}
		next, measuring := c.costsOf(r, m, plan)
		if measuring != nil || next.Used != now.Used || !slices.Equal(next.Costs, now.Costs) || m.About().Threads != now.Used {
			t.Errorf("the next start has %+v: want %+v", next, now)
		}
	}
	if strings.Contains(log.String(), "WARN") {
		t.Errorf("logged %s", &log)
	}
}

// TestCannotKeep: where nothing can be kept costs are measured and used, and that is said once.
func TestCannotKeep(t *testing.T) {
	m, err := engine.Open("../../../models/gopher-19m-q8_0.gguf", engine.Options{Device: testdevice.CPU(t, 1), Context: 256, KVPages: 16,
		MaxRows: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var log bytes.Buffer
	r := &roles.Process{Program: roles.Program{Version: "v", Calm: always, Log: slog.New(slog.NewTextHandler(&log, nil))}}
	c := Setup{}
	c.Measure, c.Cache = true, filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(c.Cache, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, measuring := c.costsOf(r, m, &profile.Plan{})
	told := 0
	measuring.Begin(func(all []roles.Measured) { told += len(all[0].Costs) })
	for again := time.Duration(0); again >= 0; {
		again = measuring.Rest()
	}
	if n := strings.Count(log.String(), "are not kept"); told == 0 || n != 1 {
		t.Errorf("told %d costs, said %d times that they are not kept: %s", told, n, &log)
	}
	c.Measure = false
	if now, measuring := c.costsOf(r, m, &profile.Plan{}); measuring != nil || now.Costs != nil {
		t.Error("measures, though it is not to")
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
