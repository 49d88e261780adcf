package figures

import (
	"math"
	"slices"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var values []time.Duration
	if Quantile(values, 0.5) != 0 {
		t.Error("quantile of nothing is not 0")
	}
	for i := range 101 {
		values = append(values, time.Duration(100-i))
	}
	if p50, p99 := Quantile(values, 0.5), Quantile(values, 0.99); p50 != 50 || p99 != 99 {
		t.Errorf("p50 %d, p99 %d: want 50, 99", p50, p99)
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}, {[]float64{100, 1, 3, 2}, 2.5}} {
		before := slices.Clone(c.in)
		if got := Median(c.in); got != c.want || !slices.Equal(c.in, before) {
			t.Errorf("median of %v is %v: want %v, and its argument untouched", before, got, c.want)
		}
	}
}

// TestSpread: the interval is that of the sign test, whose table for 95 % says the extremes up to eight values and the second from 9 on.
func TestSpread(t *testing.T) {
	if s := SpreadOf(nil); s != (Spread{}) {
		t.Errorf("of nothing %+v", s)
	}
	for n, want := range map[int]Spread{
		1:  {Median: 1, Low: 1, High: 1, Sure: 0, N: 1},
		5:  {Median: 3, Low: 1, High: 5, Sure: 1 - 2.0/32, N: 5},
		7:  {Median: 4, Low: 1, High: 7, Sure: 1 - 2.0/128, N: 7},
		8:  {Median: 4.5, Low: 1, High: 8, Sure: 1 - 2.0/256, N: 8},
		9:  {Median: 5, Low: 2, High: 8, Sure: 1 - 20.0/512, N: 9},
		12: {Median: 6.5, Low: 3, High: 10, Sure: 1 - 2*79.0/4096, N: 12},
	} {
		var values []float64
		for i := range n {
			values = append(values, float64(1+(i*7)%n)) // 1 to n in another order, unless n is a multiple of 7
		}
		if n == 7 {
			values = []float64{4, 1, 7, 2, 6, 3, 5}
		}
		got := SpreadOf(values)
		if math.Abs(got.Sure-want.Sure) > 1e-12 {
			t.Errorf("%d values: sure to %v, want %v", n, got.Sure, want.Sure)
		}
		if got.Sure = want.Sure; got != want {
			t.Errorf("%d values: %+v, want %+v", n, got, want)
		}
	}
}
