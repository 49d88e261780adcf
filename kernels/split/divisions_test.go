package split_test

import (
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestWrongDivisions: shares that are none, and divisions out of order, are refused, and those before stay.
func TestWrongDivisions(t *testing.T) {
	d := pair(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil)
	for want, points := range map[string][]kernels.Division{
		"-0.1 of the columns":  {{Rows: 1, Columns: -0.1}},
		"NaN of the blocks":    {{Rows: 1, Blocks: math.NaN()}},
		"1.5 of the columns":   {{Rows: 1, Columns: 1.5}},
		"for 0 rows":           {{}},
		"behind -1 positions":  {{Rows: 1, Context: -1}},
		"comes after 8 behind": {{Rows: 8}, {Rows: 1}},
		"want ascending":       {{Rows: 8, Context: 2}, {Rows: 8, Context: 2}},
	} {
		if err := d.Divide(points); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one that says %q", points, err, want)
		}
	}
	if _, err := split.New(testdevice.CPU(t, 1), testdevice.CPU(t, 1), []kernels.Division{{}}); err == nil {
		t.Error("a device with a wrong division")
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
