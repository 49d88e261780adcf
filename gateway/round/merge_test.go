package round

import (
	"testing"
	"time"
)

func TestPatience(t *testing.T) {
	for _, test := range []struct {
		paces []int // ms
		want  float64
	}{
		{[]int{3, 3, 30}, 13},
		{[]int{3, 0, 30}, 0}, // nothing is known of one
		{[]int{30, 3}, 60},
		{[]int{1, 1, 1}, 11}, // 10 ms is what an expert brings in a round of 40
		{[]int{2, 9, 3, 10}, 19},
		{[]int{20, 30, 40}, 60},
	} {
		var usual []time.Duration
		for _, p := range test.paces {
			usual = append(usual, time.Duration(p)*time.Millisecond)
		}
		if got := Patience(usual, 40*time.Millisecond); got != time.Duration(test.want*1e6) {
			t.Errorf("paces %v: %v, want %v ms", test.paces, got, test.want)
		}
	}
}
