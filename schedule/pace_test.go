package schedule

import (
	"math"
	"testing"
	"time"
)

// TestPace: the time of a pass by its rows is learned from cold passes, single slow ones and all between, and includes the rows of other
// sessions that passes had lately.
func TestPace(t *testing.T) {
	s := New(Config{})
	defer s.hold.Stop()
	if p := s.Pace(4); p != 0 {
		t.Fatalf("%v before the first pass", p)
	}
	took := func(rows int) float64 { return 10 + float64(rows) }
	for i := range 60 {
		rows := []int{1, 1, 2, 1, 4, 8}[i%6]
		ms := took(rows)
		switch {
		case i < 3:
			ms *= 5 // weights are read for the first time
		case i%10 == 9:
			ms *= 3 // something else took the cores
		}
		s.paced(Pass{Rows: rows, Parts: 1, Spent: time.Duration(ms * 1e6)})
	}
	for _, rows := range []int{1, 2, 4, 6, 8} {
		if got := s.Pace(rows).Seconds() * 1e3; math.Abs(got/took(rows)-1) > 0.15 {
			t.Errorf("a pass of %d rows is expected to take %.1f ms: want about %.0f", rows, got, took(rows))
		}
	}
	for range 40 {
		s.paced(Pass{Rows: 8, Parts: 2, Spent: 18 * time.Millisecond})
	}
	if got := s.Pace(4).Seconds() * 1e3; math.Abs(got-18) > 2 {
		t.Errorf("4 rows beside 4 of another session are expected to take %.1f ms: want 18", got)
	}
}
