package split_test

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

func TestPlanAt(t *testing.T) {
	p := split.Plan{Points: []split.Point{{Rows: 1, Context: 100, Columns: 0.1}, {Rows: 1, Context: 1000, Columns: 0.2},
		{Rows: 8, Context: 100, Columns: 0.3}, {Rows: 64, Context: 500, Columns: 0.4}}}
	for _, tc := range []struct {
		rows, context int
		want          float64
	}{{1, 0, 0.1}, {1, 100, 0.1}, {1, 101, 0.2}, {1, 5000, 0.2}, {2, 50, 0.3}, {8, 5000, 0.3}, {9, 1, 0.4}, {500, 9999, 0.4}} {
		if got := p.At(tc.rows, tc.context).Columns; got != tc.want {
			t.Errorf("%d rows behind %d positions: %v of the columns, want %v", tc.rows, tc.context, got, tc.want)
		}
	}
	if x := (&split.Plan{}).At(3, 3); x.Columns != 0.5 || x.Blocks != 0.5 {
		t.Errorf("without a plan: %+v, want halves", x)
	}
}

// TestWrongPlans: shares that are none, and points out of order, are refused, and the plan before stays.
func TestWrongPlans(t *testing.T) {
	d := pair(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), split.Plan{})
	for want, points := range map[string][]split.Point{
		"-0.1 of the columns":  {{Rows: 1, Columns: -0.1}},
		"NaN of the blocks":    {{Rows: 1, Blocks: math.NaN()}},
		"1.5 of the columns":   {{Rows: 1, Columns: 1.5}},
		"for 0 rows":           {{}},
		"behind -1 positions":  {{Rows: 1, Context: -1}},
		"comes after 8 behind": {{Rows: 8}, {Rows: 1}},
		"want ascending":       {{Rows: 8, Context: 2}, {Rows: 8, Context: 2}},
	} {
		if err := d.SetPlan(split.Plan{Points: points}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one that says %q", points, err, want)
		}
	}
	if _, err := split.New(testdevice.CPU(t, 1), testdevice.CPU(t, 1), split.Plan{Points: []split.Point{{}}}); err == nil {
		t.Error("a device with a wrong plan")
	}
}

// TestCuts: the cut of a range is a multiple of a group, at its ends for shares of nothing and of all, and both parts make the whole.
func TestCuts(t *testing.T) {
	for _, r := range []kernels.Range{{From: 0, To: 64}, {From: 32, To: 90}, {From: 0, To: 1 << 20}} {
		for left := range int32(kernels.Shares + 1) {
			a, b := r.Part(kernels.Left, left), r.Part(kernels.Right, left)
			if a.From != r.From || b.To != r.To || a.To != b.From || a.To < r.From || a.To > r.To ||
				a.To%kernels.GroupRows != 0 && a.To != r.To {
				t.Fatalf("%v with %d shares: %v and %v", r, left, a, b)
			}
			if left == 0 && a.To != r.From || left == kernels.Shares && a.To != r.To {
				t.Fatalf("%v with %d shares is cut at %d", r, left, a.To)
			}
		}
	}
}
