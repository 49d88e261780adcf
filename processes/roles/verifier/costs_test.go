package verifier

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/profile"
)

// TestCostsAreKept: what a verifier measured is there for the next on its socket, and for no other model, machine or
// setting.
func TestCostsAreKept(t *testing.T) {
	file := costsFile("unix://" + filepath.Join(t.TempDir(), "verifier.sock"))
	same := measured{Model: "m.gguf", Bytes: 5, Modified: time.Now().UTC(), Threads: 2, ISA: "avx2", KVType: "f16"}
	kept := same
	kept.Used, kept.Costs = 1, []tandem.Cost{{Rows: 1, Context: 100, Time: time.Millisecond},
		{Rows: 8, Context: 100, Time: 2 * time.Millisecond}}
	if got := same.read(file); got != nil {
		t.Errorf("read before there was any: %v", got)
	}
	if err := kept.write(file); err != nil {
		t.Fatal(err)
	}
	if got := same.read(file); !reflect.DeepEqual(got, &kept) {
		t.Errorf("read %v, want %v", got, kept)
	}
	for name, change := range map[string]func(*measured){
		"model":    func(m *measured) { m.Model = "n.gguf" },
		"bytes":    func(m *measured) { m.Bytes++ },
		"modified": func(m *measured) { m.Modified = m.Modified.Add(time.Second) },
		"threads":  func(m *measured) { m.Threads = 1 },
		"spare":    func(m *measured) { m.Spare = 1 },
		"isa":      func(m *measured) { m.ISA = "generic" },
		"kv type":  func(m *measured) { m.KVType = "q8_0" },
		"streamed": func(m *measured) { m.Streamed = 1 },
	} {
		other := same
		change(&other)
		if got := other.read(file); got != nil {
			t.Errorf("another %s: read %v", name, got)
		}
	}
	for name, text := range map[string]string{
		"garbage":    "{",
		"no time":    `{"Threads":2,"Used":1,"Costs":[{"Rows":1,"Context":1,"Time":0}]}`,
		"rows of -1": `{"Threads":2,"Used":1,"Costs":[{"Rows":-1,"Context":1,"Time":5}]}`,
		"no threads": `{"Threads":2,"Costs":[{"Rows":1,"Context":1,"Time":5}]}`,
		"no costs":   `{"Threads":2,"Used":1}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := (measured{Threads: 2}).read(file); got != nil {
			t.Errorf("%s: read %v", name, got)
		}
	}
	if costsFile("127.0.0.1:8453") != "" || (measured{}).write("") != nil || (measured{}).read("") != nil {
		t.Error("a process without a socket keeps costs")
	}
}

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
		err := now.look(m, made(c.version, c.fewer), "v")
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
