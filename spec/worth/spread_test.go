package worth

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

const us = time.Microsecond

// mixed is a model of 48 layers with 8 of 128 experts each: a pass takes 10 ms, half a millisecond a row, and 50 µs an expert. A row
// chooses among all experts with the chance `apart`, else those of the row before it.
func mixed(rows int, apart float64) (used int, took time.Duration) {
	n := 128 * (1 - math.Pow(1-8.0/128, 1+apart*float64(rows-1)))
	used = 48 * int(math.Round(n))
	return used, 10*time.Millisecond + time.Duration(rows)*500*us + time.Duration(used)*50*us
}

func measuredMixed(widths ...int) (costs []tandem.Cost) {
	for _, w := range widths {
		used, took := mixed(w, 1)
		c := tandem.Cost{Rows: w, Time: took, Experts: used}
		if w == 8 || w == 16 {
			c.Expert = 50 * us
		}
		costs = append(costs, c)
	}
	return costs
}

func passOf(rows int, apart float64) (e tandem.Experts, took time.Duration) {
	for n := 1; n < rows; n *= 2 {
		used, _ := mixed(n, apart)
		e = append(e, int32(used))
	}
	used, took := mixed(rows, apart)
	return append(e, int32(used)), took
}

func near(t *testing.T, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s: %.4g, want about %.4g", what, got, want)
	}
}

// TestCostsOfExperts: before the first pass, costs are those measured. Passes whose rows share more experts than the measured ones did
// make rows cheaper, wider ones than any pass too; that is no change of the machine.
func TestCostsOfExperts(t *testing.T) {
	for _, widths := range [][]int{{1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64}, {1, 8, 16}, {1, 8}} {
		c := NewCosts(measuredMixed(widths...))
		for _, w := range widths {
			_, took := mixed(w, 1)
			near(t, "as measured", c.Time(w).Seconds(), took.Seconds(), 0.045)
		}
		_, three := mixed(3, 1) // between two measured widths the first rows cost more
		near(t, "between", c.Time(3).Seconds(), three.Seconds(), 0.07)
		const apart = 0.4
		for i := range 60 {
			e, took := passOf([]int{1, 8, 11}[i%3], apart)
			c.Observe([]int{1, 8, 11}[i%3], e, took)
		}
		for rows, share := range map[int]float64{1: 0.01, 2: 0.03, 4: 0.03, 8: 0.03, 11: 0.06} {
			_, took := mixed(rows, apart)
			near(t, "learned", c.Time(rows).Seconds(), took.Seconds(), share)
		}
		near(t, "the machine", c.scale, 1, 0.05)
		_, wide := mixed(16, 1)
		if got := c.Time(16); got > wide*9/10 {
			t.Errorf("16 rows take %v: want much less than %v, which they took where no rows were alike", got, wide)
		}
	}
}

// TestCostsOfSomeExperts: a table that does not tell about experts at every width is one of rows alone.
func TestCostsOfSomeExperts(t *testing.T) {
	costs := measuredMixed(1, 8, 16)
	costs[1].Experts = 0
	c := NewCosts(costs)
	before := c.Time(12)
	if c.expert != 0 {
		t.Errorf("an expert costs %v s", c.expert)
	}
	e, _ := passOf(12, 0.2)
	c.Observe(12, e, before)
	if c.Time(12) != before {
		t.Errorf("12 rows cost %v, then %v", before, c.Time(12))
	}
	if hostile := NewCosts([]tandem.Cost{{Rows: 1, Time: 1, Experts: 9, Expert: time.Hour}}); hostile.Time(1) != 1 {
		t.Errorf("a pass of 1 ns takes %v", hostile.Time(1))
	}
}

// TestSpread: what is expected never falls with the rows, no row adds more than the one before it, and experts of one row are known.
func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var costs []tandem.Cost
		each := rapid.IntRange(1, 400).Draw(t, "each")
		if rapid.Bool().Draw(t, "measured") {
			for rows, used := 1, each; rows < 100; rows *= rapid.IntRange(2, 9).Draw(t, "further") {
				costs = append(costs, tandem.Cost{Rows: rows, Time: time.Duration(rows) * us, Experts: used, Expert: 3})
				used += rapid.IntRange(0, each*rows).Draw(t, "more")
			}
		}
		s, c := NewSpread(costs), NewCosts(costs)
		for range rapid.IntRange(0, 20).Draw(t, "passes") {
			added := []int{each}
			for range rapid.IntRange(0, 40).Draw(t, "rows") {
				added = append(added, rapid.IntRange(0, each).Draw(t, "added"))
			}
			e := tandem.CountExperts(added)
			if err := e.Validate(len(added)); err != nil {
				t.Fatal(err)
			}
			s.Observe(len(added), e)
			c.Observe(len(added), e, time.Duration(rapid.IntRange(1, 1e9).Draw(t, "time")))
			if s.Used(1) != float64(each) {
				t.Fatalf("one row uses %v, want %d", s.Used(1), each)
			}
		}
		step := math.Inf(1)
		for rows := 1; rows < 300; rows++ {
			more := s.Used(rows+1) - s.Used(rows)
			if more < 0 || more > step+1e-6 {
				t.Fatalf("row %d adds %v experts, the one before %v", rows+1, more, step)
			}
			step = more
			if c.Time(rows+1) < c.Time(rows) {
				t.Fatalf("%d rows take %v, one more %v", rows, c.Time(rows), c.Time(rows+1))
			}
		}
	})
}

// TestSpreadOfGarbage: what no pass can have used says nothing.
func TestSpreadOfGarbage(t *testing.T) {
	s := NewSpread(measuredMixed(1, 8))
	before := s.Used(8)
	for _, e := range []tandem.Experts{{}, {0}, {-4, 8}, {384, 5000}, {384}, {1, 2, 3}} {
		s.Observe(2, e)
	}
	s.Observe(0, tandem.Experts{1})
	if s.Used(8) != before {
		t.Errorf("%v experts of 8 rows, then %v", before, s.Used(8))
	}
	if none := NewSpread(nil); none.Used(8) != 0 || none.Used(0) != 0 || none.Used(1<<30) != 0 {
		t.Errorf("experts of a model about which nothing is known: %v", none.Used(8))
	}
}
