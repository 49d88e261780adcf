package tandem_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestExperts(t *testing.T) {
	e := tandem.CountExperts([]int{6, 3, 2, 0, 1})
	if !slices.Equal(e, tandem.Experts{6, 9, 11, 12}) || e.All() != 12 || e.Validate(5) != nil {
		t.Errorf("%v of all %d rows (%v)", e, e.All(), e.Validate(5))
	}
	if none := tandem.CountExperts(nil); none != nil || none.All() != 0 || none.Validate(3) != nil {
		t.Errorf("experts of no rows: %v", none)
	}
	for _, c := range []struct {
		e    tandem.Experts
		rows int
	}{{e, 4}, {e, 9}, {e, 0}, {tandem.Experts{}, 1}, {tandem.Experts{0}, 1}, {tandem.Experts{-1}, 1}, {tandem.Experts{4, 9}, 2},
		{tandem.Experts{4, 3}, 2}, {tandem.Experts{tandem.MostUsed + 1}, 1}, {tandem.Experts{1 << 23, 1 << 24, 1<<24 + 1}, 3}} {
		if err := c.e.Validate(c.rows); !errors.Is(err, tandem.Corrupt) {
			t.Errorf("%v of %d rows: %v, want Corrupt", c.e, c.rows, err)
		}
	}
	for _, c := range []tandem.Cost{{Rows: 1}, {Time: 1}, {Rows: 1, Time: 1, Context: -1}, {Rows: 1, Time: 1, Experts: -1},
		{Rows: 1, Time: 1, Experts: tandem.MostUsed + 1}, {Rows: 1, Time: 1, Expert: -1}} {
		if c.Valid() {
			t.Errorf("%+v is valid", c)
		}
	}
}
