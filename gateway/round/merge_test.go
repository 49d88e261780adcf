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
		{[]int{3, 3, 30}, 60}, // the round was weighed with the slowest
		{[]int{3, 0, 30}, 0},  // nothing is known of one
		{[]int{1, 1, 1}, 2},
		{[]int{2, 9, 3, 10}, 20},
		{nil, 0},
	} {
		var usual []time.Duration
		for _, p := range test.paces {
			usual = append(usual, time.Duration(p)*time.Millisecond)
		}
		if got := Patience(usual); got != time.Duration(test.want*1e6) {
			t.Errorf("paces %v: %v, want %v ms", test.paces, got, test.want)
		}
	}
}
