package figures

import (
	"fmt"
	"slices"
)

// Median returns the middle of values, the mean of the middle two, 0 if there are none.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(values))
	return (s[(n-1)/2] + s[n/2]) / 2
}

// Spread is the median of repeated measurements and an interval that holds the true median.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Sure   float64 `json:"confidence"` // that it does
	N      int     `json:"n"`
}

// wantSure is the confidence that an interval has if there are enough measurements for it: six.
const wantSure = 0.95

// SpreadOf returns the spread of values. Its interval lies between two of them. How far out they lie is counted as in the sign test: each
// value is above the true median with a chance of one half, whatever the values' distribution. With too few values the interval is from
// the least to the most.
func SpreadOf(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(values))
	out := Spread{Median: Median(s), N: n}
	// outside is the chance that the true median is below s[k] or above s[n-1-k]: twice that of at most k heads in n throws.
	chance, outside := 1.0, 0.0
	for range n {
		chance /= 2
	}
	for k := 0; k < (n+1)/2; k++ {
		outside += 2 * chance
		if k > 0 && 1-outside < wantSure {
			break
		}
		out.Low, out.High, out.Sure = s[k], s[n-1-k], max(0, 1-outside)
		chance *= float64(n-k) / float64(k+1)
	}
	return out
}

// String returns the interval.
func (s Spread) String() string {
	if s.N < 2 {
		return "once"
	}
	return fmt.Sprintf("%.2f to %.2f (%.0f %% of %d)", s.Low, s.High, 100*s.Sure, s.N)
}
