package worth

import (
	"math"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestForecast: the best chain is that of the equation, worked out by hand.
func TestForecast(t *testing.T) {
	const ms = time.Millisecond
	flat := []tandem.Cost{{Rows: 1, Time: 20 * ms}, {Rows: 17, Time: 20 * ms}}
	all := NewCosts(flat)
	for name, c := range map[string]struct {
		t       Terms
		drafted int
		tokens  float64
		time    time.Duration
	}{
		"no draft":               {Terms{Verify: all}, 0, 1, 20 * ms},
		"a draft that costs all": {Terms{Verify: all, Draft: 20 * ms, Right: []float64{.5}}, 0, 1, 20 * ms},
		"a free draft":           {Terms{Verify: all, Right: []float64{.5}}, 4, 1.9375, 20 * ms},
		"right once":             {Terms{Verify: all, Draft: 4 * ms, Right: []float64{.9, 0}}, 1, 1.9, 24 * ms},
		"reads":                  {Terms{Verify: all, Draft: 10 * ms, Right: []float64{1, 1, 0}, Read: 500 * ms}, 2, 3, 520 * ms},
		"reads ahead": {Terms{Verify: all, Draft: 10 * ms, Right: []float64{1, 1, 0}, Read: 500 * ms, Ahead: 15 * ms}, 2, 3,
			505 * ms},
		"computes while it reads": {Terms{Verify: all, Draft: 10 * ms, Right: []float64{1, 0}, Read: 15 * ms, Ahead: 15 * ms}, 1, 2,
			30 * ms},
	} {
		if got := c.t.Best(4); got.Drafted != c.drafted || math.Abs(got.Tokens-c.tokens) > 1e-9 || got.Time != c.time {
			t.Errorf("%s: %+v", name, got)
		}
	}
	// 442437 ns times the rate of one token in 442437 ns is a little less than one token
	if got := (Terms{Verify: NewCosts([]tandem.Cost{{Rows: 1, Time: 442437}})}).Best(4); got.Tokens != 1 {
		t.Errorf("plain decoding brings %v tokens a round, want 1", got.Tokens)
	}
	if got := (Terms{Verify: NewCosts(flat[:1]), Right: []float64{1}}).Best(4); got.Drafted != 0 {
		t.Errorf("a pass that was not measured: %+v", got)
	}
}
