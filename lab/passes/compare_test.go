package passes

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/measure"
)

// off is a device whose rows of a buffer differ in one bit in passes of so many rows.
type off struct {
	kernels.Device
	rows int
}

func (d off) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	r, err := d.Device.Compile(p, w, c)
	return &offRunner{Runner: r, at: d.rows}, err
}

type offRunner struct {
	kernels.Runner
	at, rows int
}

func (r *offRunner) Run(a *kernels.Pass) error {
	r.rows = a.Rows
	return r.Runner.Run(a)
}

func (r *offRunner) Row(b kernels.Buf, i int) []float32 {
	row := r.Runner.Row(b, i)
	if r.rows == r.at && i == r.at-1 {
		row[3] = math.Float32frombits(math.Float32bits(row[3]) ^ 1)
	}
	return row
}

// TestCompare: a GPU has the processor's bits in every pass, and one wrong bit in the widest tree is found.
func TestCompare(t *testing.T) {
	contexts := []int{70}
	open := func(d kernels.Device) *engine.Model {
		t.Helper()
		o := CompareOptions(contexts)
		o.Device = d
		m, err := engine.Open("../../models/gopher-draft-all-f16.gguf", o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	want := open(testdevice.CPU(t, 1))
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	c, err := Compare(t.Context(), want, open(gpu), contexts)
	if err != nil || len(c.Differ) > 0 {
		t.Fatalf("%v, differ in %q", err, c.Differ)
	}
	if passes, rows := 2+len(compareWidths), 70+(1+2+3+4+5+8+9+16+33+64)+3*compareBeside; c.Passes != passes || c.Rows != rows ||
		c.Numbers != int64(rows*want.Config().Vocab) {
		t.Errorf("%+v: want %d passes of %d rows", c, passes, rows)
	}
	other := open(off{testdevice.CPU(t, 2), 33})
	wrong, err := Compare(t.Context(), want, other, contexts)
	if err != nil || len(wrong.Differ) != 1 || !strings.HasPrefix(wrong.Differ[0], "a tree of 33 rows behind ") ||
		!strings.HasSuffix(wrong.Differ[0], ": row 32 of 33, logit 3") {
		t.Errorf("one wrong bit: %v, %q", err, wrong.Differ)
	}
	if _, err := Compare(t.Context(), want, other, []int{1 << 20}); err == nil {
		t.Error("a context that the model does not have: no error")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Compare(ended, want, other, contexts); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
}

// TestMeasureStep: a step is compared with what its device reads, and a GPU tells what launches take that do nothing.
func TestMeasureStep(t *testing.T) {
	at := []measure.Point{{Rows: 1, Context: 40}}
	open := func(d kernels.Device) *engine.Model {
		m, err := engine.Open("../../models/gopher-draft-all-f16.gguf", engine.Options{Device: d, MaxRows: 64, KVPages: measure.Pages(at)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	s, err := MeasureStep(t.Context(), open(testdevice.CPU(t, 1)), 40, 2)
	if err != nil {
		t.Fatal(err)
	}
	if s.Best <= 0 || s.Median < s.Best || s.Read <= 0 || s.ReadBytes <= 0 || s.Limit() != s.Read || s.Launches != 0 || s.Empty != 0 {
		t.Errorf("on the processor: %+v", s)
	}
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	m := open(gpu)
	if _, err := measure.Passes(t.Context(), m, at, 1, nil); err != nil {
		t.Fatal(err)
	}
	// for each of 2 layers the four products and attention, with what follows on them; and what is beside layers
	if launches, least, err := m.Passes().LeastTime(3); err != nil || launches < 12 || launches > 60 || least <= 0 {
		t.Errorf("on a GPU: %d launches, %v, %v", launches, least, err)
	}
}
