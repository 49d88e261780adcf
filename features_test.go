package tandem_test

import (
	"testing"

	"github.com/tandem-llm/tandem"
)

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
