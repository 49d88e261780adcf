package measure

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

const draftPath = "../../models/gopher-draft-all-f16.gguf"

var points = []Point{{Rows: 1, Context: 40}, {Rows: 7, Context: 40}, {Rows: 7, Context: 1}, {Rows: 20, Context: 5, Prefill: true}}

func open(t *testing.T) *engine.Model {
	t.Helper()
	m, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 32, KVPages: Pages(points)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// Passes runs as many passes as asked for, announces each with the time of the last of its kind, and leaves nothing
// in the cache.
func TestPasses(t *testing.T) {
	m := open(t)
	before := make([]int, len(points))
	timings, err := Passes(t.Context(), m, points, 6, func(i int, last time.Duration) error {
		if last <= 0 && !points[i].Prefill {
			t.Errorf("pass %d of kind %d: the last took %v", before[i], i, last)
		}
		before[i]++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{6, 6, 6, 2} { // prompts in rounds 1 and 5
		if tm := &timings[i]; tm.Point != points[i] || len(tm.Times) != want || before[i] != want || tm.Best() <= 0 ||
			tm.Median() < tm.Best() || tm.Spread() < 0 {
			t.Errorf("kind %d: %d announced, %+v: want %d passes of %+v", i, before[i], tm, want, points[i])
		}
	}
	if m.FreePages() != m.Pages() {
		t.Errorf("%d of %d pages are free", m.FreePages(), m.Pages())
	}
}

func TestPassesEnd(t *testing.T) {
	m := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	stop := errors.New("stop")
	if _, err := Passes(ctx, m, points, 3, func(int, time.Duration) error { return stop }); err != stop {
		t.Errorf("error %v: want that of the function", err)
	}
	cancel()
	if _, err := Passes(ctx, m, points, 3, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v: want Canceled", err)
	}
	if _, err := Passes(t.Context(), m, []Point{{Rows: 33, Context: 1}}, 1, nil); err == nil {
		t.Error("a pass of more rows than the model takes: no error")
	}
}

// Operations has times for each kind of pass, of which products with weights take a part. They add up to no more than the passes.
func TestOperations(t *testing.T) {
	m := open(t)
	const n = 3
	all, err := Operations(t.Context(), m, points, n)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range all {
		var busy time.Duration
		kinds := map[string]bool{}
		for _, o := range b.Ops {
			kinds[o.Kind] = true
			busy += o.Busy[0]
		}
		passes := n
		if b.Prefill {
			passes = 1
		}
		if b.Point != points[i] || b.Passes != passes || busy <= 0 || busy > b.Total || b.Matrices() <= 0 || b.Matrices() >= 1 {
			t.Errorf("%+v", b)
		}
		if len(kinds) != len(b.Ops) || !kinds["matmul f16"] || !kinds["attention"] || !kinds["gate"] {
			t.Errorf("kinds %v", kinds)
		}
	}
	if m.Passes().OperationTimes() != nil {
		t.Error("passes are still timed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Operations(ctx, m, points, n); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v: want Canceled", err)
	}
}

func TestPages(t *testing.T) {
	if got := Pages(points); got != 2+2+1 { // 40 and 7 rows, 1 and 7 rows, 25 rows
		t.Errorf("%d pages: want 5", got)
	}
}

// Shares follow by their definitions from the times and limits in the result.
func TestDecodeShares(t *testing.T) {
	m := open(t)
	l := kernels.Limits{ReadBytes: 1e9, IntMACs: 1e12, FloatMACs: 1e10}
	d := &Decoded{Limits: l}
	work := m.Passes().Work()
	times := []time.Duration{2 * time.Millisecond, 4 * time.Millisecond}
	p := d.pass(m, Timing{Point: Point{Rows: 7, Context: 40}, Times: times}, []kernels.Limits{l, l})
	seconds := max(float64(work.Bytes)/1e9, 7*float64(work.FloatMACs+work.HeadFloat)/1e10)
	if work.IntMACs != 0 || work.HeadFloat != int64(m.Config().Vocab)*int64(m.Config().Dim) {
		t.Errorf("work of an F16 model: %+v", work)
	}
	if want := time.Duration(seconds * 1e9); p.Limit-want > 1 || want-p.Limit > 1 {
		t.Errorf("limit %v: want %v", p.Limit, want)
	}
	if got, want := p.Share, seconds/2e-3; got < 0.999*want || got > 1.001*want {
		t.Errorf("share %g: want %g", got, want)
	}
	if want := m.Passes().KVBytes() * 40; p.KVBytes != want || p.KVLimit != time.Duration(want) {
		t.Errorf("%d bytes of cache in %v: want %d at 1 GB/s", p.KVBytes, p.KVLimit, want)
	}
}

// TestCosts: within the budget all widths of a small model are measured several times; of a slow model, the widths that
// matter most.
func TestCosts(t *testing.T) {
	m, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 64, KVPages: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	passes := 0
	for _, c := range []struct {
		budget time.Duration
		widths []int
		passes int // at most
	}{
		{10 * time.Second, []int{1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64}, costRounds * len(costWidths)},
		{time.Nanosecond, []int{1, 8}, 8},
	} {
		passes = 0
		costs, err := Costs(t.Context(), m, c.budget, func() { passes++ })
		if err != nil {
			t.Fatal(err)
		}
		var widths []int
		for i, k := range costs {
			widths = append(widths, k.Rows)
			if k.Time <= 0 || k.Context < 1 || k.Context > costContext || i > 0 && k.Time < costs[i-1].Time {
				t.Errorf("budget %v: %+v", c.budget, costs)
			}
		}
		if c.passes == 8 {
			if len(widths) > 8 || widths[0] != 1 {
				t.Errorf("budget %v: widths %v", c.budget, widths)
			}
		} else if !slices.Equal(widths, c.widths) {
			t.Errorf("budget %v: widths %v, want %v", c.budget, widths, c.widths)
		}
		if passes > c.passes || m.FreePages() != m.Pages() {
			t.Errorf("budget %v: %d passes, want at most %d; %d of %d pages free", c.budget, passes, c.passes, m.FreePages(), m.Pages())
		}
	}
	narrow, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 5, KVPages: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer narrow.Close()
	if costs, err := Costs(t.Context(), narrow, time.Second, nil); err != nil || len(costs) != 3 || costs[2].Rows != 4 {
		t.Errorf("passes of at most 5 rows: %+v, %v", costs, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Costs(ctx, m, time.Second, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v: want Canceled", err)
	}
	full, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if _, err := Costs(t.Context(), full, time.Second, nil); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("error %v: want Exhausted", err)
	}
}

// TestCalculated: rows of a streamed model cost nothing as long as computing hides behind the disk, and what they cost in memory
// afterwards. Passes are measured in the order of their rows, since none costs in proportion to them.
// Where nothing is streamed there are none.
func TestCalculated(t *testing.T) {
	file := filepath.Join(t.TempDir(), "packed")
	d := stream.New(testdevice.CPU(t, 1), stream.Config{Memory: 12 << 20, Pack: cpu.Pack,
		Keep: func(ctx context.Context, r stream.Request) (string, func() error, error) {
			return file, func() error { return nil }, r.Make(ctx, file, nil)
		}})
	m, err := engine.Open("../../models/gopher-19m-q8_0.gguf", engine.Options{Device: d, MaxRows: 256, MaxWanted: 200, KVPages: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	costs, err := Calculated(m, d)
	if err != nil || len(costs) != len(costWidths)+1 || costs[len(costs)-1].Rows != 200 {
		t.Fatalf("%+v, %v", costs, err)
	}
	for i := 1; i < len(costs); i++ {
		if costs[i].Rows <= costs[i-1].Rows || costs[i].Time < costs[i-1].Time {
			t.Errorf("costs fall with rows: %+v", costs)
		}
	}
	if first, last := costs[0].Time, costs[len(costs)-1].Time; last < 2*first || costs[1].Time != first && first < time.Millisecond {
		t.Errorf("costs %+v: want flat ones, then rising ones", costs)
	}
	if k := costKinds(m); k[1].Rows != 2 || k[2].Rows != 4 {
		t.Errorf("measured in the order %+v", k)
	}
	if costs, err := Calculated(m, stream.New(testdevice.CPU(t, 1), stream.Config{})); err != nil || costs != nil {
		t.Errorf("nothing is streamed: %+v, %v", costs, err)
	}
}
