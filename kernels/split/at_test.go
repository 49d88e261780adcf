package split

import "testing"

func TestDivisionAt(t *testing.T) {
	d := divisions{{Rows: 1, Context: 100, Columns: 0.1}, {Rows: 1, Context: 1000, Columns: 0.2},
		{Rows: 8, Context: 100, Columns: 0.3}, {Rows: 64, Context: 500, Columns: 0.4}}
	for _, tc := range []struct {
		rows, context int
		want          float64
	}{{1, 0, 0.1}, {1, 100, 0.1}, {1, 101, 0.2}, {1, 5000, 0.2}, {2, 50, 0.3}, {8, 5000, 0.3}, {9, 1, 0.4}, {500, 9999, 0.4}} {
		if got := d.at(tc.rows, tc.context).Columns; got != tc.want {
			t.Errorf("%d rows behind %d positions: %v of the columns, want %v", tc.rows, tc.context, got, tc.want)
		}
	}
	if x := divisions(nil).at(3, 3); x.Columns != 0.5 || x.Blocks != 0.5 {
		t.Errorf("without divisions: %+v, want halves", x)
	}
}
