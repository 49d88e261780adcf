package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/measure"
)

// TestBoundary measures on one device in place of two: every context has its times, the kept one is among them, and the best boundary is a
// share.
func TestBoundary(t *testing.T) {
	d := testdevice.CPU(t, 1)
	b := &Boundary{Name: "m", Config: engine.Config{Heads: 4, KVHeads: 2, HeadDim: 32}, Contexts: []int{300, 16}, Kept: 256, Rows: 4,
		Rounds: 1, Left: d, Right: testdevice.CPU(t, 1), Both: d, Divide: func(measure.Division) error { return nil }}
	r, err := b.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range r.Context {
		if x.Context != []int{16, 256, 300}[i] || x.Blocks != x.Context/256+1 || x.LeftUS <= 0 || x.RightUS <= 0 || x.StaticUS <= 0 ||
			x.KeptUS <= 0 || x.MovingUS <= 0 || x.IdealUS >= x.LeftUS || x.Moving < 0 || x.Moving > 1 {
			t.Errorf("%+v", x)
		}
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || len(r.Context) != 3 || !strings.Contains(out.String(), "as at 256") {
		t.Error(out.String(), err)
	}
	b.Contexts = []int{0}
	if _, err := b.Run(t.Context()); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "--context [0]") {
		t.Errorf("a context of 0: %v", err)
	}
}

// TestRanked: the shipped model's passes are measured divided by rows and columns, and two groups of cores meet in much less than a pass.
func TestRanked(t *testing.T) {
	devices := [2]kernels.Device{testdevice.CPU(t, 1), testdevice.CPU(t, 1)}
	m, err := engine.Open("../../models/gopher-draft-go-f16.gguf", engine.Options{
		Device: devices[0], KVPages: 8, MaxRows: 16, MaxWanted: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	s := Split{Devices: devices, Passes: Passes{Rounds: 1}}
	b := &measure.Balance{Ideal: 1, Measured: []measure.DividedTime{measure.Alone: {Division: measure.Division{Columns: 0.5}}}}
	r, err := s.ranked(t.Context(), m.Passes().Plan(), measure.Point{Rows: 3, Context: 20}, b)
	if err != nil || r.MS <= 0 || r.KVHeads < 1 || r.FFN < 256 {
		t.Errorf("%+v, %v", r, err)
	}
	if us, err := meetingUS(devices); err != nil || us <= 0 || us > 10_000 {
		t.Errorf("a meeting takes %v µs, %v", us, err)
	}
}
