package verifier

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
)

// recorder is a divided device that keeps how passes are to be divided.
type recorder struct {
	*split.Device
	set []kernels.Division
}

func (r *recorder) Divide(all []kernels.Division) error {
	r.set = all
	return r.Device.Divide(all)
}

// full is a device without memory for a probe.
type full struct{ *recorder }

type noProbe struct{ kernels.Device }

func (noProbe) NewProbe(int) (kernels.Probe, error) { return nil, errors.New("no memory for a probe") }

func (f full) Sides() (left, right kernels.Device) {
	left, right = f.recorder.Sides()
	return left, noProbe{right}
}

// TestDivide: on a divided device a verifier divides passes as a plan for this machine, version, model and device says, everything on one
// side too; without such a plan it guesses, and its log says that and why. Costs that it takes from the plan are the device's.
func TestDivide(t *testing.T) {
	both, err := split.New(testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	d := &recorder{Device: both}
	m, err := engine.Open("../../../models/gopher-draft-go-f16.gguf", engine.Options{Device: d, Context: 256, KVPages: 16, MaxRows: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	planned := []kernels.Division{{Rows: 1, Context: 128, Columns: 1, Blocks: 1}, {Rows: 8, Context: 128, Columns: 0, Blocks: 0}}
	what := target(m, m.About().Threads)
	made := func(change func(w *profile.What, box *profile.Box, version *string)) *profile.Plan {
		w, box, version := what, profile.ThisBox(), "v"
		if change != nil {
			change(&w, &box, &version)
		}
		p := (&profile.Plan{}).Begin(box, version)
		x := profile.Divided{What: w}
		for _, a := range planned {
			x.Points = append(x.Points, profile.DividedPoint{Division: a, NS: 1, LeftNS: 1, RightNS: 1})
		}
		p.Divide(x)
		p.Time(profile.Subject{What: w, Points: profile.Points([]tandem.Cost{{Rows: 1, Context: 128, Time: time.Millisecond}})})
		return p
	}
	for name, c := range map[string]struct {
		plan *profile.Plan
		log  string // "": the plan is used
	}{
		"a plan":          {made(nil), ""},
		"no plan":         {&profile.Plan{}, "no times of passes were measured"},
		"another device":  {made(func(w *profile.What, _ *profile.Box, _ *string) { w.Device = "cuda" }), "not on 2 of"},
		"another machine": {made(func(_ *profile.What, b *profile.Box, _ *string) { b.Cores += 9 }), "another machine"},
		"another version": {made(func(_ *profile.What, _ *profile.Box, v *string) { *v = "w" }), "by tandem w"},
		"another model":   {made(func(w *profile.What, _ *profile.Box, _ *string) { w.Identity = "0-0-0-f16-a1" }), "they differ in"},
	} {
		var log bytes.Buffer
		r := &roles.Process{}
		r.Log, r.Version = slog.New(slog.NewTextHandler(&log, nil)), "v"
		d.set = nil
		if err := (Setup{}).divide(r, m, c.plan); err != nil {
			t.Fatal(name, err)
		}
		got := log.String()
		switch {
		case c.log == "" && (!slices.Equal(d.set, planned) || got != ""):
			t.Errorf("%s: divided as %v, log %q: want %v", name, d.set, got, planned)
		case c.log != "" && (len(d.set) < 2 || d.set[0].Columns <= 0 || !strings.Contains(got, "by a guess") ||
			!strings.Contains(got, c.log)):
			t.Errorf("%s: divided as %v, log %q: want a guess because %q", name, d.set, got, c.log)
		}
		now := measured{Threads: m.About().Threads}
		if err := now.look(m, ofPlan(c.plan, "v")); (err == nil) != (c.log == "") {
			t.Errorf("%s: costs %v, %v", name, now.Costs, err)
		}
	}
	var log bytes.Buffer
	r := &roles.Process{}
	r.Log = slog.New(slog.NewTextHandler(&log, nil))
	halves, err := engine.Open("../../../models/gopher-draft-go-f16.gguf", engine.Options{Device: full{d}, KVPages: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer halves.Close()
	err = (Setup{}).divide(r, halves, &profile.Plan{})
	if err != nil || d.set != nil || !strings.Contains(log.String(), "no memory for a probe") {
		t.Errorf("without a guess: %v, divided as %v, log %q: want halves, and why", err, d.set, log.String())
	}
	alone, err := engine.Open("../../../models/gopher-draft-go-f16.gguf", engine.Options{Device: testdevice.CPU(t, 1), KVPages: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	if err := (Setup{}).divide(nil, alone, nil); err != nil {
		t.Errorf("a model on one device: %v", err)
	}
}
