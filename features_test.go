package tandem_test

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestHalves: every half survives, and what lies between two of them goes to the nearer one, at a tie to the even one.
func TestHalves(t *testing.T) {
	one := func(x float32) uint16 {
		var h [1]uint16
		tandem.PackHalf(h[:], []float32{x})
		return h[0]
	}
	value := func(h uint16) float32 {
		var x [1]float32
		if finite := tandem.UnpackHalf(x[:], []uint16{h}); finite != (h>>10&31 != 31) {
			t.Fatalf("half %#x: finite %v", h, finite)
		}
		return x[0]
	}
	for i := range 0x7c00 {
		h := uint16(i)
		x := value(h)
		if one(x) != h || one(-x) != h|0x8000 {
			t.Fatalf("half %#x is %v, which becomes %#x, and %#x with a minus", h, x, one(x), one(-x))
		}
		if h == 0x7bff {
			break
		}
		middle := (x + value(h+1)) / 2 // exact
		even := h + h&1
		if one(middle) != even || one(math.Nextafter32(middle, 0)) != h || one(math.Nextafter32(middle, 1e9)) != h+1 {
			t.Fatalf("around %v between %#x and %#x: %#x %#x %#x", middle, h, h+1, one(math.Nextafter32(middle, 0)), one(middle),
				one(math.Nextafter32(middle, 1e9)))
		}
	}
	inf := float32(math.Inf(1))
	for x, want := range map[float32]uint16{65504: 0x7bff, 65519: 0x7bff, 65520: 0x7bff, 1e9: 0x7bff, inf: 0x7bff, -inf: 0xfbff, 1e-30: 0} {
		if got := one(x); got != want {
			t.Errorf("%v becomes %#x: want %#x", x, got, want)
		}
	}
	if h := one(float32(math.NaN())); h>>10&31 != 31 || h&1023 == 0 || !math.IsNaN(float64(value(h))) {
		t.Errorf("NaN becomes %#x", h)
	}
}

func TestFeaturesValidate(t *testing.T) {
	q := tandem.FeatureQuery{Session: 1, From: 3, Until: 6}
	good := tandem.Features{From: 4, Taps: []int{2, -1}, Width: 4, Rows: make([]uint16, 8)}
	if err := good.Validate(q); err != nil || good.Len() != 2 {
		t.Fatalf("%d rows, %v", good.Len(), err)
	}
	for name, change := range map[string]func(*tandem.Features){
		"no taps":         func(f *tandem.Features) { f.Taps = nil },
		"many taps":       func(f *tandem.Features) { f.Taps, f.Width, f.Rows = make([]int, 17), 17, nil },
		"no width":        func(f *tandem.Features) { f.Width = 0 },
		"negative width":  func(f *tandem.Features) { f.Width = -4 },
		"unequal states":  func(f *tandem.Features) { f.Width, f.Rows = 5, make([]uint16, 10) },
		"half a row":      func(f *tandem.Features) { f.Rows = f.Rows[:7] },
		"too early":       func(f *tandem.Features) { f.From = 2 },
		"too late":        func(f *tandem.Features) { f.From, f.Rows = 7, nil },
		"too many rows":   func(f *tandem.Features) { f.Rows = make([]uint16, 12) },
		"beyond the end ": func(f *tandem.Features) { f.From = 6 },
	} {
		f := good
		change(&f)
		if err := f.Validate(q); tandem.KindOf(err) != tandem.Corrupt {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, q := range []tandem.FeatureQuery{{From: 1, Until: 2}, {Session: 1, From: -1, Until: 2}, {Session: 1, From: 2, Until: 2}} {
		if err := q.Validate(); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
