package figures

import (
	"fmt"
	"math"
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

// Spread is the median of repeated ratios, and an interval around their geometric mean that holds the true one.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	Sure   float64 `json:"confidence"` // that the interval holds the true ratio, 0 to 1; 0: not known
	N      int     `json:"n"`
}

// Sure is the confidence of the intervals of SpreadOf.
const Sure = 0.9

// SpreadOf returns the spread of ratios, all above 0. The interval is Student's for the mean of their logarithms: two speeds of one round
// share the machine's state, and what is left varies by factors. With one ratio Low and High are that ratio, and Sure is 0.
func SpreadOf(ratios []float64) Spread {
	n := len(ratios)
	if n < 2 {
		m := Median(ratios)
		return Spread{Median: m, Low: m, High: m, N: n}
	}
	mean, squares := 0.0, 0.0
	for _, r := range ratios {
		mean += math.Log(r) / float64(n)
	}
	for _, r := range ratios {
		squares += (math.Log(r) - mean) * (math.Log(r) - mean)
	}
	half := student(n-1) * math.Sqrt(squares/float64(n-1)/float64(n))
	return Spread{Median(ratios), math.Exp(mean - half), math.Exp(mean + half), Sure, n}
}

// Below returns by how much the geometric mean, the middle of the interval, exceeds its lower end; infinite if Sure is 0.
func (s Spread) Below() float64 {
	if s.Sure == 0 {
		return math.Inf(1)
	}
	return math.Sqrt(s.Low*s.High) - s.Low
}

// student returns the t that Student's distribution with so many degrees of freedom, 1 or more, exceeds on neither side with a chance of
// Sure, by bisection.
func student(degrees int) float64 {
	low, high := 0.0, 8.0 // 6.31 for one degree of freedom
	for high-low > 1e-9 {
		if t := (low + high) / 2; inside(t, degrees) < Sure {
			low = t
		} else {
			high = t
		}
	}
	return high
}

// inside returns the chance that |t| is not exceeded: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
func inside(t float64, degrees int) float64 {
	angle := math.Atan(t / math.Sqrt(float64(degrees)))
	sin, cos := math.Sincos(angle)
	sum, e := 0.0, degrees%2
	for term := math.Pow(cos, float64(e)); e <= degrees-2; e += 2 {
		sum += term
		term *= float64(e+1) / float64(e+2) * cos * cos
	}
	if degrees%2 == 0 {
		return sin * sum
	}
	return 2 / math.Pi * (angle + sin*sum)
}

// String returns the interval with its confidence, or "once".
func (s Spread) String() string {
	if s.N < 2 {
		return "once"
	}
	return fmt.Sprintf("%.2f to %.2f (%.0f %% of %d)", s.Low, s.High, 100*s.Sure, s.N)
}
