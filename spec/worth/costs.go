package worth

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

// Costs says what passes of a model take. For the target it is T_V, for a draft model the pass that T_D counts:
//
//	T(w, c) = s · (rest(w) + reach(w) · (c − c₀) + e · E(w))        a pass of w rows in all, of one session or several, behind c positions
//	T_R(n)  = ⌊n/W⌋ · T(W) + T(n mod W)                            reading n tokens of a prompt, or a run of accepted ones
//	T_D(p, w, l) = T_R(l + w) + (p − 1) · T(w)                     p passes of w rows of a draft that has l tokens to read first
//
// rest and reach are straight lines between measured points, so that steps stay where they were measured; the last line goes on beyond
// them. E(w) is how many experts a pass of w rows uses (Spread), e is what one of them costs, c₀ is the mean context of the points, and W
// is the widest of them. So a row is priced by the experts that it is expected to add. Nothing measured: the nominal machine of Linear.
//
// Passes correct this while they serve. Half of a correction goes to s, because memory bandwidth and clock rates change all widths at once,
// and half to the nearest points, because contexts and kernels do not. What points have learned apart from s fades. Not safe for
// concurrent use.
type Costs struct {
	knots   []knot // by rows, at least one
	context float64
	spread  *Spread
	expert  float64 // seconds that one more expert costs; 0: a model without, or not known
	scale   float64
	seen    int  // observations
	nominal bool // nothing was measured: the first observation scales all
}

// knot is a measured point.
type knot struct {
	rows       int
	measured   float64 // seconds, without experts
	reach      float64 // seconds that one more position before the pass costs
	correction float64 // logarithm of its factor beside scale
	rest       float64 // measured, corrected, and never less than for fewer rows
}

// NewCosts returns costs as measured; of several measurements with the same rows the mean counts. Points without rows or time are ignored.
func NewCosts(measured []tandem.Cost) *Costs {
	points := slices.DeleteFunc(slices.Clone(measured), func(m tandem.Cost) bool { return m.Rows < 1 || m.Time <= 0 })
	c := &Costs{scale: 1, spread: NewSpread(points), expert: expertOf(points), nominal: len(points) == 0}
	if c.nominal {
		points = Linear(nominalRead, nominalRead/NominalRows, NominalRows*NominalRows)
	}
	all := float64(len(points))
	slices.SortStableFunc(points, func(a, b tandem.Cost) int { return cmp.Or(a.Rows-b.Rows, a.Context-b.Context) })
	for len(points) > 0 {
		first := points[0]
		k, n, last := knot{rows: first.Rows}, 0, first
		for ; n < len(points) && points[n].Rows == k.rows; n++ {
			last = points[n]
			k.measured += last.Time.Seconds() - c.expert*float64(last.Experts)
			c.context += float64(last.Context) / all
		}
		if k.measured /= float64(n); last.Context > first.Context {
			k.reach = max(last.Time-first.Time, 0).Seconds() / float64(last.Context-first.Context)
		}
		c.knots, points = append(c.knots, k), points[n:]
	}
	c.correct()
	return c
}

// Linear returns the costs of a pass that reads all weights, and then multiplies them with each of its rows, which takes row: Dovetail's
// T_V = max(T_c, T_p) + β·min(T_c, T_p) with β = 1, because within one operation kernels hardly do both at once.
func Linear(reading, row time.Duration, widest int) []tandem.Cost {
	pass := func(rows int) tandem.Cost {
		return tandem.Cost{Rows: rows, Time: max(reading+time.Duration(rows)*row, 1)}
	}
	return []tandem.Cost{pass(1), pass(widest)}
}

// expertOf returns the seconds that one more expert costs, by what was measured: the mean over widths. Experts cost at most a whole pass.
func expertOf(points []tandem.Cost) float64 {
	sum, n, most := 0.0, 0, math.Inf(1)
	for _, m := range points {
		if m.Experts < 1 { // this point cannot be told apart into experts and the rest
			return 0
		}
		if most = min(most, m.Time.Seconds()/float64(m.Experts)); m.Expert > 0 {
			sum, n = sum+m.Expert.Seconds(), n+1
		}
	}
	return min(sum/float64(max(n, 1)), most)
}

// Observe takes a pass of that many rows, such as Verdict.Rows, Verdict.Experts and Verdict.Busy. One that took more than twice the
// expected time, or less than half of it, counts as that: a stalled pass is no new cost.
func (c *Costs) Observe(rows int, used tandem.Experts, took time.Duration) {
	if rows < 1 || took <= 0 {
		return
	}
	defer c.correct()
	want := c.time(rows, c.context)
	if !c.Known() {
		c.scale, want = took.Seconds()/want, took.Seconds()
	}
	c.seen++
	if n := used.All(); n > 0 {
		want = max(want+c.scale*c.expert*(float64(n)-c.spread.Used(rows)), want/2)
	}
	c.spread.Observe(rows, used)
	gain := max(CostGain, 1/float64(c.seen+2))
	step := gain * math.Log(min(max(took.Seconds()/want, 1./2), 2))
	c.scale *= math.Exp(step)
	for i := range c.knots {
		c.knots[i].correction *= 1 - CostGain*CostGain
	}
	at, share := c.place(rows)
	near := (1-share)*(1-share) + share*share // so that the observed width moves by the whole step
	c.knots[at].correction += step * (1 - share) / near
	if share > 0 {
		c.knots[at+1].correction += step * share / near
	}
}

// place returns the point at or before rows and how far rows is on the way to the next, 0 to 1.
func (c *Costs) place(rows int) (at int, share float64) {
	at, _ = slices.BinarySearchFunc(c.knots, rows+1, func(k knot, rows int) int { return cmp.Compare(k.rows, rows) })
	if at--; at < 0 || at == len(c.knots)-1 {
		return max(at, 0), 0
	}
	a, b := c.knots[at].rows, c.knots[at+1].rows
	return at, float64(rows-a) / float64(b-a)
}

// correct applies the corrections of points.
func (c *Costs) correct() {
	longest := 0.0
	for i := range c.knots {
		k := &c.knots[i]
		longest = max(longest, k.measured*math.Exp(k.correction))
		k.rest = longest
	}
}

// Known reports whether any pass was measured or observed. Until then times are those of a nominal machine.
func (c *Costs) Known() bool { return !c.nominal || c.seen > 0 }

// Widest returns the rows of the widest measured pass.
func (c *Costs) Widest() int { return c.knots[len(c.knots)-1].rows }

// Time returns the expected time of a pass of that many rows, never less than for fewer rows, behind a usual context.
func (c *Costs) Time(rows int) time.Duration { return c.TimeAt(rows, int(c.context)) }

// TimeAt returns the expected time of a pass of that many rows, all of one session, behind context positions; at least 1 ns.
func (c *Costs) TimeAt(rows, context int) time.Duration {
	return time.Duration(max(c.time(max(rows, 1), float64(context))*float64(time.Second), 1))
}

// Read returns how long it takes to read so many tokens in passes of at most Widest rows.
func (c *Costs) Read(tokens int) (t time.Duration) {
	if pieces := tokens / c.Widest(); pieces > 0 {
		t = time.Duration(pieces) * c.Time(c.Widest())
	}
	if rest := tokens % c.Widest(); rest > 0 {
		t += c.Time(rest)
	}
	return t
}

// Draft returns how long a draft of passes passes with rows rows each takes. The model first reads lag tokens, in the first pass. No pass:
// 0.
func (c *Costs) Draft(passes, rows, lag int) time.Duration {
	if passes < 1 {
		return 0
	}
	return c.Read(lag+rows) + time.Duration(passes-1)*c.Time(rows)
}

func (c *Costs) time(rows int, context float64) float64 {
	at, share := c.place(rows)
	k := c.knots[at]
	rest, reach := k.rest, k.reach
	switch {
	case share > 0:
		next := c.knots[at+1]
		rest, reach = rest+share*(next.rest-rest), reach+share*(next.reach-reach)
	case rows > k.rows && at > 0: // beyond: as steep as the last line
		before := c.knots[at-1]
		rest += (rest - before.rest) * float64(rows-k.rows) / float64(k.rows-before.rows)
	case rows > k.rows: // a single point: in proportion, as arithmetic would be
		rest *= float64(rows) / float64(k.rows)
	}
	return c.scale * (max(rest+reach*(context-c.context), 0) + c.expert*c.spread.Used(rows))
}
