package learn

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// box has the costs of passes on a machine like the development machine, the chances that a draft's tokens are right, and
// the variation of times (the logarithm's standard deviation). The known costs were measured with that noise.
type box struct {
	costs, known  *worth.Costs
	chance, noise float64
}

func newBox(chance, noise float64, r *rand.Rand) box {
	costs := []tandem.Cost{{Rows: 1, Time: 39e6}, {Rows: 8, Time: 43e6}, {Rows: 16, Time: 67e6}, {Rows: 32, Time: 122e6},
		{Rows: 64, Time: 240e6}}
	b := box{costs: worth.NewCosts(costs), chance: chance, noise: noise}
	for i, c := range costs {
		costs[i].Time = min(b.disturbed(c.Time, r), b.disturbed(c.Time, r), b.disturbed(c.Time, r))
	}
	b.known = worth.NewCosts(costs)
	return b
}

func (b box) disturbed(t time.Duration, r *rand.Rand) time.Duration {
	return time.Duration(float64(t) * math.Exp(b.noise*r.NormFloat64()))
}

// tokens is the mean number of tokens of a round with a chain of s.
func (b box) tokens(s int) float64 { return (1 - math.Pow(b.chance, float64(s+1))) / (1 - b.chance) }

// cost is the cost of a token if each of that many sessions has a chain of s in every pass.
func (b box) cost(sessions, s int) float64 {
	return b.costs.Time(sessions*(1+s)).Seconds() / (float64(sessions) * b.tokens(s))
}

// best is the cost of the best fixed length.
func (b box) best(sessions int) float64 {
	least := math.Inf(1)
	for s := 1; s <= 12; s++ {
		least = min(least, b.cost(sessions, s))
	}
	return least
}

// run verifies sessions together for that many passes, with one set of drafts in the pool, random draws and disturbed
// times. It returns what a token would have cost, undisturbed, in the last two thirds.
func (b box) run(l *Length, r *rand.Rand, sessions, passes int) float64 {
	tokens, seconds := 0.0, 0.0
	waiting := l.Now()
	for pass := range passes {
		s := waiting
		waiting = l.Now()
		rows := sessions * (1 + s)
		busy := b.disturbed(b.costs.Time(rows), r)
		b.known.Observe(rows, nil, busy)
		for session := range sessions {
			right := 0
			for right < s && r.Float64() < b.chance {
				right++
			}
			l.Record(Chain{Session: tandem.SessionID(session + 1), Batch: sessions, Rows: rows, Nodes: 1 + s,
				Busy:   busy + time.Duration(session)*time.Microsecond,
				Length: s, Right: right}, b.known)
			if pass >= passes/3 {
				tokens += float64(right + 1)
			}
		}
		if pass >= passes/3 {
			seconds += b.costs.Time(rows).Seconds()
		}
	}
	return seconds / tokens
}

// TestLengthSettles runs both rules on a machine where the cost per token is least at some length, from every start. The paper's has
// no bar: with few drafts in the pool nearly all its records are of one length, and the slope is luck.
func TestLengthSettles(t *testing.T) {
	for _, c := range []struct {
		rule       string
		noise, bar float64
	}{{LengthCurve, 0.05, 0.93}, {LengthCurve, 0.3, 0.88}, {LengthPaper, 0.05, 0}, {LengthPaper, 0.3, 0}} {
		for _, sessions := range []int{1, 2, 8} {
			worst, best := math.Inf(1), 0.0
			for _, chance := range []float64{0.3, 0.6, 0.8} {
				for _, start := range []int{1, 4, 12} {
					sum := 0.0
					const seeds = 8
					for seed := range uint64(seeds) {
						r := rand.New(rand.NewPCG(seed, 3))
						b := newBox(chance, c.noise, r)
						l := NewLength(LengthRule{Rule: c.rule, Start: start, Most: 12, Punish: 1, Reward: 1, Records: 8})
						sum += b.best(sessions) / b.run(l, r, sessions, 400)
					}
					share := sum / seeds
					if worst, best = min(worst, share), max(best, share); share < c.bar {
						t.Errorf("%s, noise %v, %d sessions, chance %v from length %d: %.3f of the best fixed length, want %v", c.rule,
							c.noise, sessions, chance, start, share, c.bar)
					}
				}
			}
			t.Logf("%s, noise %v, %d sessions: %.2f to %.2f of the best fixed length", c.rule, c.noise, sessions, worst, best)
		}
	}
}

// TestLengthUnderLoad changes the number of sessions: the longer passes of more sessions say nothing about lengths.
func TestLengthUnderLoad(t *testing.T) {
	sum := 0.0
	const seeds = 10
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 4))
		b := newBox(0.6, 0.05, r)
		l := NewLength(LengthRule{})
		for range 10 {
			b.run(l, r, 8, 10)
			sum += b.best(1) / b.run(l, r, 1, 60)
		}
	}
	if share := sum / (10 * seeds); share < 0.93 {
		t.Errorf("%.3f of the best fixed length of one session, after eight: want 0.93", share)
	}
}

// chainOf returns a chain that was verified alone.
func chainOf(length, right int, busy time.Duration) Chain {
	return Chain{Session: 1, Batch: 1, Rows: length + 1, Nodes: length + 1, Busy: busy, Length: length, Right: right}
}

// TestLengthGoesByWhatWasVerified: chains shorter than the length in use decide nothing, however many they are, and say
// nothing about positions that they did not reach.
func TestLengthGoesByWhatWasVerified(t *testing.T) {
	costs := newBox(0.6, 0, rand.New(rand.NewPCG(0, 0))).costs
	l := NewLength(LengthRule{Rule: LengthCurve, Start: 4, Most: 12, Punish: 1, Reward: 1, Records: 3})
	for range 100 {
		l.Record(chainOf(2, 2, 40*time.Millisecond), costs)
	}
	if l.Now() != 4 || l.tried[3] != 0 || l.tried[2] == 0 {
		t.Errorf("length %d, position 3 tried %v times after chains of 2: want 4 and 0", l.Now(), l.tried[3])
	}
	for range 3 {
		l.Record(chainOf(4, 4, 40*time.Millisecond), costs)
	}
	if l.Now() != 5 {
		t.Errorf("length %d, all of 4 right at no more cost: want 5", l.Now())
	}
}

func TestLengthCountsTheTransition(t *testing.T) {
	costs := newBox(0.6, 0, rand.New(rand.NewPCG(0, 0))).costs
	l := NewLength(LengthRule{Rule: LengthCurve, Start: 4, Most: 5, Punish: 1, Reward: 1, Records: 3})
	rec := func(s, n, right int) {
		for range n {
			l.Record(chainOf(s, right, 40*time.Millisecond), costs)
		}
	}
	rec(4, 2, 4)
	for _, bad := range []Chain{chainOf(0, 0, 1), chainOf(6, 0, 1), chainOf(4, 5, 1), chainOf(4, -1, 1), chainOf(4, 1, 0),
		{Length: 4, Busy: 1}} {
		l.Record(bad, costs)
	}
	if l.Now() != 4 || l.fresh != 2 {
		t.Errorf("decided after 2 records: %d", l.Now())
	}
	rec(4, 1, 4)
	if l.Now() != 5 {
		t.Fatalf("%d, want 5: nothing to compare with", l.Now())
	}
	rec(4, 9, 4)
	if l.Now() != 5 {
		t.Errorf("%d: drafts of the old length decided", l.Now())
	}
	rec(5, 3, 0)
	if l.Now() != 4 {
		t.Errorf("%d, want 4: a fifth token was never right", l.Now())
	}
}

// TestPaperLengthRule plays the paper's rule record by record: time over the mean of the drafted tokens found correct in
// a pass, a line over time, the transition included.
func TestPaperLengthRule(t *testing.T) {
	l := NewLength(LengthRule{Rule: LengthPaper, Start: 4, Most: 6, Punish: 2, Reward: 1, Records: 4})
	pass := func(busy int, right ...int) {
		for i, n := range right {
			l.Record(Chain{Session: tandem.SessionID(i + 1), Batch: len(right), Rows: 5 * len(right), Nodes: 5,
				Busy: time.Duration(busy) * time.Millisecond, Length: 4, Right: n}, nil)
		}
	}
	want := func(length int, slope float64) {
		t.Helper()
		if l.Now() != length || math.Abs(l.slopeWas-slope) > 1e-12 {
			t.Fatalf("length %d, slope %v: want %d, %v", l.Now(), l.slopeWas, length, slope)
		}
	}
	// t_V/vl: 40/1, 40/2, 30/1.5, 20/2 ms: slope -(1.5·40 + 0.5·20 - 0.5·20 - 1.5·10)/5
	pass(40, 0, 2)
	pass(40, 2, 2)
	pass(30, 3, 0)
	want(4, 0)
	pass(20, 1, 3)
	want(5, -0.009)
	// The transition counts: these were drafted with 4. With nothing right vl is half a token in the pass: 40/0.25 ms.
	for _, right := range [][]int{{4, 4}, {4, 4}, {0, 1}, {0, 0}} {
		pass(40, right...)
	}
	want(3, (0.5*(80-10)+1.5*(160-10))/5e3)
	// Neither dearer nor cheaper: it stays. And it stays within its bounds.
	for range 4 {
		pass(40, 2, 2)
	}
	want(3, 0)
	for range 3 {
		for i := range 4 {
			pass(40+i, 1)
		}
	}
	want(1, 0.001)
	for range 9 {
		for i := range 4 {
			pass(40-i, 1)
		}
	}
	want(6, -0.001)
}

// TestPassesOfSeveralSessions: the verdicts of one pass are one record, also if some of its tickets were not Minions', or if
// chains were bounded by their requests.
func TestPassesOfSeveralSessions(t *testing.T) {
	l := NewLength(LengthRule{Rule: LengthPaper, Start: 4, Most: 6, Punish: 1, Reward: 1, Records: 100})
	add := func(session, batch, rows, right int, bounded bool) {
		l.Record(Chain{Session: tandem.SessionID(session), Batch: batch, Rows: rows, Nodes: 5, Busy: 40 * time.Millisecond, Length: 4,
			Right: right, Bounded: bounded}, nil)
	}
	want := func(records int, sum float64) {
		t.Helper()
		if l.fresh != records || math.Abs(l.sum-sum) > 1e-12 {
			t.Fatalf("%d records of %v s in all: want %d of %v", l.fresh, l.sum, records, sum)
		}
	}
	add(1, 3, 15, 4, false)
	add(2, 3, 15, 2, false)
	want(0, 0)
	add(3, 3, 15, 0, false) // complete
	want(1, 0.02)
	add(1, 3, 11, 4, false)
	add(2, 3, 11, 4, false) // the third ticket was plain
	add(1, 3, 11, 2, false) // so this is of the next pass
	want(2, 0.03)
	add(3, 2, 10, 4, false) // and this of another
	want(3, 0.05)
	add(2, 2, 10, 1, true) // bounded: not of that length
	want(4, 0.06)
	add(5, 1, 5, 0, true) // alone: no record
	want(4, 0.06)
}

// TestLengthStaysWithin: whatever is recorded, the length is one that the rule allows.
func TestLengthStaysWithin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule := LengthRule{Rule: rapid.SampledFrom([]string{LengthCurve, LengthPaper}).Draw(t, "rule"), Start: 2,
			Most:   rapid.IntRange(2, 12).Draw(t, "most"),
			Punish: rapid.IntRange(1, 20).Draw(t, "punish"), Reward: rapid.IntRange(1, 20).Draw(t, "reward"),
			Records: rapid.IntRange(2, 4).Draw(t, "records")}
		l, costs := NewLength(rule), worth.NewCosts(nil)
		for range rapid.IntRange(1, 60).Draw(t, "chains") {
			n := rapid.IntRange(-1, 13)
			l.Record(Chain{Session: tandem.SessionID(rapid.IntRange(0, 3).Draw(t, "session")), Batch: n.Draw(t, "batch"),
				Rows: n.Draw(t, "rows"), Nodes: n.Draw(t, "nodes"),
				Busy: time.Duration(rapid.Int64Range(-1, 1<<40).Draw(t, "busy")), Length: n.Draw(t, "length"), Right: n.Draw(t, "right"),
				Bounded: rapid.Bool().Draw(t, "bounded")}, costs)
			if l.Now() < 1 || l.Now() > rule.Most || len(l.pass.sessions) > 4 {
				t.Fatalf("length %d of at most %d, %d sessions in a pass", l.Now(), rule.Most, len(l.pass.sessions))
			}
			if rapid.Bool().Draw(t, "observe") {
				costs.Observe(n.Draw(t, "width"), nil, time.Millisecond)
			}
		}
	})
}

// TestLengthExplains: the slope of the latest decision, and whether the length is judged already.
func TestLengthExplains(t *testing.T) {
	l := NewLength(LengthRule{Rule: LengthCurve, Start: 4, Most: 8, Punish: 1, Reward: 1, Records: 2})
	costs := worth.NewCosts([]tandem.Cost{{Rows: 1, Time: 10e6}, {Rows: 11, Time: 110e6}})
	step := func(want string, transition bool) {
		t.Helper()
		if got := l.Explain(); got != want || l.InTransition() != transition {
			t.Errorf("%q, in transition %v: want %q, %v", got, l.InTransition(), want, transition)
		}
		l.Record(chainOf(l.Now(), 0, 40*time.Millisecond), costs) // nothing is ever right: a longer draft brings nothing
	}
	step("0 of 2 records", false)
	step("1 of 2 records", false)
	step("slope +0 ms a token, 0 of 2 records", true)
	step("slope +0 ms a token, 1 of 2 records", true)
	step("slope +10 ms a token, 0 of 2 records", true)
}
