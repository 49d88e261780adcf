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
		{Rows: 0, Time: ms}, {Rows: 3, Time: -ms}})

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

	blind := NewCosts(nil)
	if one, many := blind.Time(1), blind.Time(1+NominalRows); one <= 0 || many < one*19/10 || many > 2*one {
		t.Errorf("%v and %v without any measurement: want times, the second about twice the first", one, many)
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
		c := NewCosts(measured)
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

// TestParts: what reading and drafting take is made of passes; a pass behind a longer text takes as much longer as was measured.
func TestParts(t *testing.T) {
	const ms = time.Millisecond
	c := NewCosts(Linear(20*ms, 2*ms, 11)) // 22 ms, 42 ms
	for what, x := range map[string]struct{ got, want time.Duration }{
		"six rows":                {c.Time(6), 32 * ms},
		"more than were measured": {c.Time(16), 52 * ms},
		"no token":                {c.Read(0), 0},
		"two pieces and a rest":   {c.Read(25), 2*42*ms + 26*ms},
		"no pass":                 {c.Draft(0, 1, 3), 0},
		"three passes":            {c.Draft(3, 1, 0), 66 * ms},
		"and four tokens to read": {c.Draft(3, 1, 4), 30*ms + 44*ms},
	} {
		if off := x.got - x.want; off < -1000 || off > 1000 {
			t.Errorf("%s: %v, want %v", what, x.got, x.want)
		}
	}
	c = NewCosts([]tandem.Cost{{Rows: 1, Time: 20 * ms}, {Rows: 1, Context: 1000, Time: 30 * ms},
		{Rows: 9, Time: 40 * ms}, {Rows: 9, Context: 1000, Time: 90 * ms}})
	for context, want := range map[int][2]time.Duration{0: {20 * ms, 30 * ms}, 1000: {30 * ms, 60 * ms}, 2000: {40 * ms, 90 * ms}} {
		for i, rows := range []int{1, 5} {
			if off := c.TimeAt(rows, context) - want[i]; off < -1000 || off > 1000 {
				t.Errorf("%d rows behind %d positions: %v, want %v", rows, context, c.TimeAt(rows, context), want[i])
			}
		}
	}
}
