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

// TestSpread: the interval is exp(mean ± t·s/√n) of the logarithms, with the t of published tables for 90 %.
func TestSpread(t *testing.T) {
	if s := SpreadOf(nil); s != (Spread{}) || !math.IsInf(s.Below(), 1) {
		t.Errorf("of nothing %+v", s)
	}
	if s := SpreadOf([]float64{3}); s != (Spread{Median: 3, Low: 3, High: 3, N: 1}) || !math.IsInf(s.Below(), 1) || s.String() != "once" {
		t.Errorf("of one ratio %+v, %s", s, s)
	}
	for degrees, want := range map[int]float64{1: 6.314, 2: 2.920, 3: 2.353, 4: 2.132, 5: 2.015, 10: 1.812, 30: 1.697, 120: 1.658} {
		if got := student(degrees); math.Abs(got-want) > 0.0005 {
			t.Errorf("t with %d degrees of freedom is %.4f: want %.3f", degrees, got, want)
		}
	}
	// Logarithms .1, .2 and .6: mean .3, standard deviation .26458.
	got, half := SpreadOf([]float64{math.Exp(0.6), math.Exp(0.1), math.Exp(0.2)}), 2.91999*0.264575/math.Sqrt(3)
	want := Spread{math.Exp(0.2), math.Exp(0.3 - half), math.Exp(0.3 + half), 0.9, 3}
	if math.Abs(got.Low-want.Low)+math.Abs(got.High-want.High) > 1e-5 || got.Median != want.Median || got.Sure != 0.9 || got.N != 3 {
		t.Errorf("%+v: want %+v", got, want)
	}
	if below := math.Exp(0.3) - got.Low; math.Abs(got.Below()-below) > 1e-9 {
		t.Errorf("the lower end is %v below: want %v", got.Below(), below)
	}
}
