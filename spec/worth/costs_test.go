package worth

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

func TestCosts(t *testing.T) {
	ms := time.Millisecond
	c := NewCosts([]tandem.Cost{{Rows: 1, Time: 39 * ms}, {Rows: 8, Time: 43 * ms}, {Rows: 12, Time: 54 * ms}, {Rows: 16, Time: 66 * ms},
		{Rows: 16, Context: 500, Time: 68 * ms},
		{Rows: 0, Time: ms}, {Rows: 3, Time: -ms}}, DefaultCostTuning)

	about := func(rows int, want time.Duration) {
		t.Helper()
		if got := c.Time(rows); got < want*98/100 || got > want*102/100 {
			t.Errorf("%d rows: %v, want about %v", rows, got, want)
		}
	}
	about(1, 39*ms)
	about(10, 48500*time.Microsecond)
	about(16, 67*ms)
	about(24, 93*ms)
	about(0, 39*ms)
	for range 200 { // the memory has become faster
		c.Observe(1, nil, 26*ms)
	}
	about(1, 26*ms)
	if got := c.Time(16); got > 50*ms {
		t.Errorf("16 rows: %v after all rows have become faster", got)
	}
	for range 100 {
		c.Observe(16, nil, 80*ms)
		c.Observe(1, nil, 26*ms)
	}
	if got := c.Time(16); got < 72*ms || got > 82*ms {
		t.Errorf("16 rows: %v, want about 80 ms", got)
	}
	was := c.Time(4)
	c.Observe(4, nil, 10*time.Second) // a stall
	if got := c.Time(4); got > was*12/10 {
		t.Errorf("one stall moved %v to %v", was, got)
	}
	c.Observe(0, nil, ms)
	c.Observe(1, nil, -ms)

	blind := NewCosts(nil, DefaultCostTuning)
	if blind.Time(1) != 0 {
		t.Errorf("%v without any measurement", blind.Time(1))
	}
	blind.Observe(8, nil, 20*ms)
	if got := blind.Time(8); got < 19*ms || got > 21*ms {
		t.Errorf("8 rows: %v after one observation of 20 ms", got)
	}
}

func TestCostsNeverFall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var measured []tandem.Cost
		for i := range rapid.IntRange(0, 8).Draw(t, "points") {
			measured = append(measured, tandem.Cost{Rows: rapid.IntRange(1, 40).Draw(t, fmt.Sprint("rows ", i)),
				Time: time.Duration(rapid.IntRange(1, 1e6).Draw(t, fmt.Sprint("time ", i)))})
		}
		c := NewCosts(measured, DefaultCostTuning)
		for i := range rapid.IntRange(1, 50).Draw(t, "observed") {
			c.Observe(rapid.IntRange(1, 60).Draw(t, fmt.Sprint("at ", i)), nil,
				time.Duration(rapid.IntRange(1, 1e6).Draw(t, fmt.Sprint("took ", i))))
		}
		for rows := 1; rows < 80; rows++ {
			if a, b := c.Time(rows), c.Time(rows+1); a < 0 || b < a {
				t.Fatalf("%d rows take %v, %d rows %v", rows, a, rows+1, b)
			}
		}
	})
}
