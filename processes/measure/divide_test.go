package measure

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestAdjust: of two groups of cores the right one does everything four times. The left gets more than half by the times alone, and what
// the shares are adjusted to is no slower; nothing is left in the caches.
func TestAdjust(t *testing.T) {
	left, right := testdevice.CPU(t, 1), testdevice.CPU(t, 1)
	right.Repeat(4)
	both, err := split.New(left, right, nil)
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
	// The layers' store, blocks, output product, gate and up, and down, and where a layer reads what the one before has written.
	if n, most := both.Meetings(models[2].Passes().Plan()), 6*models[2].Config().Layers+5; n < 1 || n > most {
		t.Errorf("%d meetings of a pass of %d layers, want at most %d", n, models[2].Config().Layers, most)
	}
	set := 0
	d := Divided{Left: models[0], Right: models[1], Both: models[2], Divide: func(x Division) error {
		set++
		return both.Divide([]kernels.Division{{Rows: 1, Columns: x.Columns, Blocks: x.Blocks}})
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

// TestShares: with one model on two groups of cores, of which the right one does everything eight times, the left gets most of every kind
// of pass, no kind takes longer than on one side alone, and the model is left so divided. A guess from both sides' limits is a division.
func TestShares(t *testing.T) {
	left, right := testdevice.CPU(t, 1), testdevice.CPU(t, 1)
	right.Repeat(8)
	both, err := split.New(left, right, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	points := []Point{{Rows: 8, Context: 64}, {Rows: 8, Context: 300}, {Rows: 64, Prefill: true}}
	m, err := engine.Open("../../models/gopher-draft-go-f16.gguf", engine.Options{Device: both, MaxRows: 64, MaxWanted: 8,
		KVPages: Pages(points)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	called := 0
	all, err := Shares(t.Context(), m, points, func() { called++ })
	if err != nil || len(all) != len(points) || called != len(points) {
		t.Fatalf("%+v, %v, %d calls", all, err, called)
	}
	t.Logf("%+v", all)
	for i, s := range all {
		if s.Division.Rows != points[i].Rows || s.Division.Context != points[i].Context || s.Time > min(s.Left, s.Right) || s.Time <= 0 {
			t.Errorf("%+v for %+v: want it no slower than one side alone", s, points[i])
		}
	}
	for range 3 { // other tests run at the same time
		if x := all[0]; x.Right >= 2*x.Left && x.Division.Columns > 0.5 {
			break
		}
		if all, err = Shares(t.Context(), m, points, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	if x := all[0]; x.Right < 2*x.Left || x.Division.Columns <= 0.5 {
		t.Errorf("%+v: want most of the columns for the left side, which is eight times as fast", x)
	}
	if err := kernels.CheckDivisions(Divisions(all)); err != nil {
		t.Error(err)
	}
	if m.FreePages() != m.Pages() {
		t.Errorf("%d of %d pages are free", m.FreePages(), m.Pages())
	}
	err = m.Passes().Divide([]kernels.Division{{Rows: 0}})
	if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "for 0 rows") {
		t.Errorf("an impossible division: %v", err)
	}
	guess, err := GuessShares(m)
	if err != nil || len(guess) != len(guessWidths) || guess[0].Columns <= 0 || guess[0].Columns >= 1 {
		t.Errorf("%v, %v: want a share for each side, by the limits of equal cores", guess, err)
	}
}

// TestSharesBesideGPU: shares are found for a processor and a GPU in one memory, as for two groups of cores, and what a meeting costs.
func TestSharesBesideGPU(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	both, err := split.New(gpu, testdevice.CPU(t, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	p := Point{Rows: 1, Context: 64}
	m, err := engine.Open("../../models/gopher-draft-go-f16.gguf", engine.Options{Device: both, MaxRows: 64, MaxWanted: 1,
		KVPages: Pages([]Point{p})})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	all, err := Shares(t.Context(), m, []Point{p}, nil)
	if err != nil || len(all) != 1 || all[0].Time > min(all[0].Left, all[0].Right) {
		t.Errorf("%+v, %v: want it no slower than one side alone", all, err)
	}
	meeting, err := m.Passes().MeetingTime()
	if err != nil || meeting <= 0 || m.Passes().Apart() != nil {
		t.Errorf("a meeting takes %v, %v, %v", meeting, err, m.Passes().Apart())
	}
	t.Logf("%+v; a meeting takes %v", all, meeting)
}

// TestSharesOfOne: a model on one device cannot be divided.
func TestSharesOfOne(t *testing.T) {
	m, err := engine.Open("../../models/gopher-draft-go-f16.gguf", engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 8, KVPages: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	_, e1 := Shares(t.Context(), m, []Point{{Rows: 1}}, nil)
	_, e2 := GuessShares(m)
	for _, err := range []error{e1, e2, m.Passes().Divide(nil)} {
		if tandem.KindOf(err) != tandem.Unsupported || !strings.Contains(err.Error(), "is one device") {
			t.Errorf("%v: want Unsupported", err)
		}
	}
}

// TestMoveBlocks: each step of the boundary is another block, from none to all.
func TestMoveBlocks(t *testing.T) {
	move := moveBlocks(4)
	at := Division{Columns: 0.5, Blocks: 0.5}
	for _, want := range []float64{0.375, 0.125, 0, 0} {
		if at = move(at, -1); at.Blocks != want {
			t.Errorf("down to %v of 4 blocks, want %v", at.Blocks, want)
		}
	}
	for _, want := range []float64{0.125, 0.375, 0.625, 0.875, 1, 1} {
		if at = move(at, 1); at.Blocks != want || at.Columns != 0.5 {
			t.Errorf("up to %+v, want %v of 4 blocks", at, want)
		}
	}
}

// TestByTimes: of two groups of which the right does everything four times the left gets the larger share.
func TestByTimes(t *testing.T) {
	p := Point{Rows: 4, Context: 20}
	var models [2]*engine.Model
	for i, repeat := range []int{1, 4} {
		d := testdevice.CPU(t, 1)
		d.Repeat(repeat)
		m, err := engine.Open("../../models/gopher-19m-q8_0.gguf", engine.Options{Device: d, MaxRows: 32, MaxWanted: 4,
			KVPages: Pages([]Point{p})})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		models[i] = m
	}
	d := Divided{Left: models[0], Right: models[1]}
	x, err := d.ByTimes(t.Context(), p, 5)
	if err != nil || x.Columns <= 0.5 || x.Columns >= 1 || x.Blocks != x.Columns {
		t.Errorf("%+v, %v: want more than half for the left", x, err)
	}
}
