package worth

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// CostTuning holds the numbers of Costs and Spread that were tuned by hand.
type CostTuning struct {
	Gain float64 // weight of a new observation in the running ratios of observed to predicted time
	// Trust is how many observations of a region make its own ratio count as much as that of all: few, because measurements from a busy
	// start should be forgotten soon.
	Trust       float64
	Fade        float64 // factor on the weight of a point's own ratio with each later observation at any point
	Outlier     float64 // factor by which one observation may differ from the expected time: a stalled pass is not a new cost
	MostExperts float64 // largest share of a measured pass that experts cost
	SpreadGain  float64 // weight of a new pass in the running means of a Spread
	SpreadTrust float64 // passes that the measurement at the start counts for in a Spread: few, because its tokens are no text
}

// DefaultCostTuning holds the numbers in use.
var DefaultCostTuning = CostTuning{Gain: 0.1, Trust: 1, Fade: 0.98, Outlier: 2, MostExperts: 0.95, SpreadGain: 0.05, SpreadTrust: 2}

// Costs is T_V(W), the time of a target pass by its rows: measured at start, corrected by the times of passes
// while it serves. Not safe for concurrent use.
//
// The measured points are joined by straight lines, so that steps stay where they were measured. Two
// kinds of running ratios correct them: one for all, because memory bandwidth and clock rates change every
// width at once, and one for each measured point, because contexts and kernels do not. A point's own ratio
// fades while others are observed, so an old ratio does not stay for ever.
//
// A pass of a model with experts reads those that its rows chose, so its time depends on which tokens are in it. What one more expert costs
// is measured at the start; how many a pass of so many rows uses is learned from passes (Spread), and each pass is
// judged by those that it has used. So a row is priced by the experts that it is expected to add.
type Costs struct {
	t      CostTuning
	knots  []knot // by rows, at least one
	spread *Spread
	expert float64 // seconds that one more expert costs; 0: a model without, or not known
	scale  float64
	seen   int  // observations, up to the number at which the gain is CostTuning.Gain
	blind  bool // nothing was measured: the shape is a guess, scaled by the first observation
	steady []float64
}

type knot struct {
	rows     int
	measured float64 // seconds, without experts
	ratio    float64 // of observed to expected × scale
	weight   float64 // of that ratio, in observations
}

// NewCosts returns costs as measured; of several measurements with the same rows the mean counts. Points
// without rows or time are ignored. Without any, a pass is assumed to cost the same up to 8 rows and in
// proportion to its rows beyond, and Time is 0 until the first observation.
func NewCosts(measured []tandem.Cost, t CostTuning) *Costs {
	c := &Costs{t: t, scale: 1, spread: NewSpread(measured, t), expert: expertOf(measured, t.MostExperts)}
	times := map[int][]float64{}
	for _, m := range measured {
		if m.Rows > 0 && m.Time > 0 {
			times[m.Rows] = append(times[m.Rows], m.Time.Seconds()-c.expert*float64(m.Experts))
		}
	}
	if c.blind = len(times) == 0; c.blind {
		for rows := 1; rows <= 256; rows *= 2 {
			c.knots = append(c.knots, knot{rows: rows, measured: max(float64(rows)/8, 1), ratio: 1})
		}
	}
	for rows, list := range times {
		sum := 0.0
		for _, t := range list {
			sum += t
		}
		c.knots = append(c.knots, knot{rows: rows, measured: sum / float64(len(list)), ratio: 1})
	}
	slices.SortFunc(c.knots, func(a, b knot) int { return cmp.Compare(a.rows, b.rows) })
	c.steady = make([]float64, len(c.knots))
	c.correct()
	return c
}

// expertOf returns the seconds that one more expert costs, by what was measured: the mean over widths. Experts cost at most that
// share of a measured pass.
func expertOf(measured []tandem.Cost, share float64) float64 {
	sum, n, most := 0.0, 0.0, math.Inf(1)
	for _, m := range measured {
		if m.Rows < 1 || m.Time <= 0 {
			continue
		}
		if m.Experts < 1 { // this point cannot be told apart into experts and the rest
			return 0
		}
		most = min(most, share*m.Time.Seconds()/float64(m.Experts))
		if m.Expert > 0 {
			sum, n = sum+m.Expert.Seconds(), n+1
		}
	}
	if n == 0 {
		return 0
	}
	return min(sum/n, most)
}

// Observe takes a pass of that many rows, such as Verdict.Rows, Verdict.Experts and Verdict.Busy.
func (c *Costs) Observe(rows int, used tandem.Experts, took time.Duration) {
	if rows < 1 || took <= 0 {
		return
	}
	defer c.correct()
	if c.blind && c.seen == 0 {
		c.scale = took.Seconds() / c.time(rows)
		c.correct()
	}
	c.seen = min(c.seen+1, int(1/c.t.Gain))
	gain := max(c.t.Gain, 1/(float64(c.seen)+c.t.Trust))
	want := c.time(rows)
	if n := used.All(); n > 0 {
		want = max(want+c.scale*c.expert*(float64(n)-c.spread.Used(rows)), want/c.t.Outlier)
	}
	c.spread.Observe(rows, used)
	off := min(max(took.Seconds()/want, 1/c.t.Outlier), c.t.Outlier)
	c.scale *= math.Pow(off, gain)
	for i := range c.knots {
		c.knots[i].weight *= c.t.Fade
		c.knots[i].ratio = math.Pow(c.knots[i].ratio, c.t.Fade) // a lasting change moves to the scale of all
	}
	// The observation lies between two points; each learns the more, the nearer it is.
	at, share := c.place(rows)
	c.learn(at, off, gain, 1-share)
	if share > 0 {
		c.learn(at+1, off, gain, share)
	}
}

func (c *Costs) learn(at int, off, gain, share float64) {
	k := &c.knots[at]
	k.ratio *= math.Pow(off, (1-gain)*share*max(c.t.Gain, 1/(k.weight+c.t.Trust)))
	k.weight += share
}

// place returns the point at or before rows and how far rows is on the way to the next, 0 to 1.
func (c *Costs) place(rows int) (at int, share float64) {
	at, exact := slices.BinarySearchFunc(c.knots, rows, func(k knot, rows int) int { return cmp.Compare(k.rows, rows) })
	switch {
	case exact:
		return at, 0
	case at == 0:
		return 0, 0
	case at == len(c.knots):
		return at - 1, 0
	}
	a, b := c.knots[at-1].rows, c.knots[at].rows
	return at - 1, float64(rows-a) / float64(b-a)
}

// correct applies the ratios and makes the times non-decreasing.
func (c *Costs) correct() {
	longest := 0.0
	for i, k := range c.knots {
		own := math.Pow(k.ratio, k.weight/(k.weight+c.t.Trust))
		longest = max(longest, (k.measured+c.expert*c.spread.Used(k.rows))*c.scale*own)
		c.steady[i] = longest
	}
}

// Time returns the expected time of a pass of that many rows, never less than for fewer rows.
func (c *Costs) Time(rows int) time.Duration {
	if c.blind && c.seen == 0 {
		return 0
	}
	return time.Duration(c.time(max(rows, 1)) * float64(time.Second))
}

func (c *Costs) time(rows int) float64 {
	at, share := c.place(rows)
	t := c.steady[at]
	last := len(c.knots) - 1
	switch {
	case share > 0:
		a, b, rise := c.knots[at].rows, c.knots[at+1].rows, c.steady[at+1]-t
		t += share * rise
		// The first rows between two points add more experts than the last ones: as much more as leaves no row without a price.
		if experts := c.scale * c.expert * (c.spread.Used(b) - c.spread.Used(a)); experts > 0 {
			ahead := (c.spread.Used(rows)-c.spread.Used(a))/(c.spread.Used(b)-c.spread.Used(a)) - share
			t += ahead * min(experts, rise)
		}
	case rows > c.knots[last].rows && last > 0: // beyond: as steep as the last line
		a, b := c.knots[last-1], c.knots[last]
		rise := t - c.steady[last-1]
		experts := min(rise, c.scale*c.expert*(c.spread.Used(b.rows)-c.spread.Used(a.rows)))
		t += (rise-experts)*float64(rows-b.rows)/float64(b.rows-a.rows) + c.scale*c.expert*(c.spread.Used(rows)-c.spread.Used(b.rows))
	case rows > c.knots[last].rows: // a single point: in proportion, as arithmetic would be
		t *= float64(rows) / float64(c.knots[last].rows)
	}
	return t
}
