package devices

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/replay"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestWrongBits: a model on a GPU that gives a wrong bit, here an emulated one with another exponential function, is said to differ. The
// operation that is wrong is saved: from the file alone it comes out wrong on that GPU, and right on another. The page says all of this,
// what the time did not suffice for, and which pair of devices is not there.
func TestWrongBits(t *testing.T) {
	right, _ := testdevice.GPU(t, emulated.Options{})
	sources, err := emulated.Inexact()
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := cuda.New(func() (cuda.Driver, error) { return emulated.New(emulated.Options{Sources: sources}) })
	if err != nil {
		t.Fatal(err)
	}
	defer wrong.Close()
	cpu := testdevice.CPU(t, 2)
	open := func(path string, o engine.Options, d kernels.Device) (*engine.Model, func(), error) {
		o.Device = d
		m, err := engine.Open(path, o)
		if err != nil {
			return nil, nil, err
		}
		return m, m.Close, nil
	}
	c := config(nil)
	c.Target, c.Draft, c.Save = "../../models/gopher-draft-go-f16.gguf", "none.gguf", t.TempDir()
	c.Devices, c.Contexts, c.Widths, c.Rounds = []string{"cuda"}, []int{5}, []int{1, 3}, 1
	c.Open = func(device, path string, o engine.Options) (*engine.Model, func(), error) {
		if device == "cuda" {
			return open(path, o, wrong)
		}
		return open(path, o, cpu)
	}
	c.Beside = func(_, path string, o engine.Options, found func(*replay.Record, error)) (*engine.Model, func(), error) {
		return open(path, o, replay.Beside(cpu, wrong, found))
	}
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Bits) != 1 || r.Bits[0].Equal || len(r.Differ) == 0 || len(r.Saved) != 1 {
		t.Fatalf("%+v, differ %q, saved %q, failed %q", r.Bits, r.Differ, r.Saved, r.Failed)
	}
	if len(r.Passes) != 4 || r.Passes[0].Launches == 0 || r.Passes[0].MS <= 0 || r.Passes[3].Device != "cpu" || r.Passes[3].Rows != 3 {
		t.Errorf("passes %+v", r.Passes)
	}
	file := filepath.Join(c.Save, "gopher-draft-go-f16-cuda.wrong")
	x, err := replay.Load(file)
	if err != nil || !strings.HasPrefix(r.Saved[0], file+": gopher-draft-go-f16 on cuda, operation ") {
		t.Fatalf("%v; %q", err, r.Saved)
	}
	for want, d := range map[string]kernels.Device{"the same wrong bits on": wrong, "right on": right} {
		if said, err := x.Again(cpu, d); err != nil || !strings.HasPrefix(said, want) {
			t.Errorf("%q, %v: want %q", said, err, want)
		}
	}
	var page strings.Builder
	if err := r.Page(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"**Other bits than cpu.**", "\n| cuda | 3 | ", "- saved: " + file, "-replay FILE",
		"- not measured: none on cuda"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
}

// TestNoTime: what is not finished in time is named, and a pair of devices that is not there is no failure.
func TestNoTime(t *testing.T) {
	c := config([]Place{{Name: "one"}}, tandemOf{d: 0.5})
	c.Devices, c.Contexts = []string{"cuda+cpu"}, []int{1}
	c.Open = func(string, string, engine.Options) (*engine.Model, func(), error) { return nil, nil, os.ErrNotExist }
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Absent) != 2 || len(r.Failed) != 1 || len(r.Places) != 1 || len(r.Skipped) > 0 {
		t.Errorf("absent %q, failed %q, skipped %q", r.Absent, r.Failed, r.Skipped)
	}
	c.Until = time.Now().Add(-time.Second)
	if r, err = Run(t.Context(), c); err != nil || len(r.Skipped) != 4 || r.Skipped[3] != "one" || r.Err() != nil {
		t.Errorf("%v, skipped %q, %v: want all four parts", err, r.Skipped, r.Err())
	}
}

// TestEnergy: counters that begin again, sensors, and nvidia-smi; and where there is none of them, each is named.
func TestEnergy(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	none := OpenEnergy(root, filepath.Join(root, "nvidia-smi"), "0")
	none.Close()
	if len(none.Names) > 0 || len(none.Absent) != 3 {
		t.Errorf("meters %q, absent %q: want three kinds absent", none.Names, none.Absent)
	}
	const package0, ina = "sys/class/powercap/intel-rapl:0/", "sys/class/hwmon/hwmon3/"
	counter := write(package0+"energy_uj", "9000000\n", 0o600)
	write(package0+"name", "package-0\n", 0o600)
	write(package0+"max_energy_range_uj", "10000000\n", 0o600)
	write("sys/class/powercap/intel-rapl:0:0/energy_uj", "1\n", 0o600)
	for name, text := range map[string]string{"name": "ina3221", "in1_label": "VDD_GPU", "in1_input": "5000", "curr1_input": "2000",
		"in7_label": "sum of shunt voltages", "in7_input": "3"} {
		write(ina+name, text+"\n", 0o600)
	}
	smi := write("nvidia-smi", "#!/bin/sh\necho 40.0\nexec sleep 60\n", 0o700)
	e := OpenEnergy(root, smi, "0")
	before := e.Joules()
	write(package0+"energy_uj", "500000\n", 0o600)
	begun := time.Now()
	for e.Joules()[1]-before[1] < 0.1 { // ten watts
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("%q tell %v after %v", e.Names, e.Joules(), before)
		}
	}
	got := e.since(before, 2)
	e.Close()
	if !slices.Equal(e.Names, []string{"powercap package-0", "INA VDD_GPU", "nvidia-smi, the GPU"}) || len(e.Absent) > 0 {
		t.Errorf("meters %q, absent %q (%s)", e.Names, e.Absent, counter)
	}
	if got[0] != 0.75 || got[2] < 3.9*got[1] || got[2] > 4.1*got[1] {
		t.Errorf("%q tell %v: want half of 1.5 J, and four times as much on the GPU as by the sensor", e.Names, got)
	}
}
