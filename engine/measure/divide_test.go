package measure

import (
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestAdjust: of two groups of cores the right one does everything four times. The left gets more than half by the times alone, and what
// the shares are adjusted to is no slower; nothing is left in the caches.
func TestAdjust(t *testing.T) {
	left, right := testdevice.CPU(t, 1), testdevice.CPU(t, 1)
	right.Repeat(4)
	both, err := split.New(left, right, split.Plan{})
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	p := Point{Rows: 8, Context: 300}
	var models []*engine.Model
	for _, d := range []kernels.Device{left, right, both} {
		m, err := engine.Open("../../models/gopher-19m-q8_0.gguf", engine.Options{Device: d, MaxRows: 64, MaxWanted: 8,
			KVPages: Pages([]Point{p})})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		models = append(models, m)
	}
	set := 0
	d := Divided{Left: models[0], Right: models[1], Both: models[2], Divide: func(x Division) error {
		set++
		return both.SetPlan(split.Plan{Points: []split.Point{{Rows: 1, Columns: x.Columns, Blocks: x.Blocks}}})
	}}
	b, err := d.Adjust(t.Context(), p, 3)
	if err != nil || len(b.Measured) != 3 {
		t.Fatal(b, err)
	}
	t.Logf("%+v, after %d passes", b, set)
	if b.RightAlone <= b.LeftAlone || b.Measured[Even].Division != (Division{0.5, 0.5}) || b.Measured[Alone].Columns <= 0.5 ||
		b.Measured[Adjusted].Time > b.Measured[Alone].Time || b.Ideal <= 0 || b.Measured[Adjusted].Time <= 0 {
		t.Errorf("%+v: want most of the columns for the left device", b)
	}
	for _, m := range models {
		if m.FreePages() != m.Pages() {
			t.Errorf("%d of %d pages are free", m.FreePages(), m.Pages())
		}
	}
}
