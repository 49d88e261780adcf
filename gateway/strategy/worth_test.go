package strategy

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// newTestShared returns what a gateway whose passes take 40 ms knows of three drafters: cheap, and dear ones whose passes take 8 ms.
func newTestShared(t *testing.T) *Shared {
	rules, err := Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	l := NewShared(rules)
	l.Measured([]tandem.Cost{{Rows: 1, Time: 40e6}, {Rows: 64, Time: 80e6}})
	for name, pass := range map[string]time.Duration{"cheap": 200e3, "dear": 8e6, "good": 8e6} {
		l.passed(name, tandem.Proposed{Passes: 2, Busy: 2 * pass})
	}
	return l
}

// TestOpens: a dear drafter that sessions hardly used is opened as often as its share of the time allows; a cheap one, one that is used
// and one that nobody knows always are.
func TestOpens(t *testing.T) {
	l := newTestShared(t)
	p := newPlanner(l, tandem.VoteTree, true, true)
	for _, d := range []string{"cheap", "dear", "good", "unknown", tandem.WayMedusa} {
		if !p.Opens(d, 200) {
			t.Errorf("%s is not opened although nobody has judged it", d)
		}
	}
	p.arm = learn.Arm{Drafters: []string{"good"}}
	for range 20 {
		p.count([]string{"cheap", "dear", "good"}, true)
	}
	p.HandOn()
	opened := map[string]int{}
	cost := time.Duration(0.2 * float64(l.costs.Time(200)))
	const sessions, rounds = 200, 30
	for range sessions {
		p := newPlanner(l, tandem.VoteTree, true, true)
		for _, d := range []string{"cheap", "dear", "good", "unknown"} {
			if p.Opens(d, 200) {
				opened[d]++
			}
		}
		for range rounds {
			l.passes(50 * time.Millisecond)
		}
	}
	if opened["cheap"] != sessions || opened["good"] != sessions || opened["unknown"] != sessions {
		t.Errorf("in %d sessions opened %v", sessions, opened)
	}
	spent, all := time.Duration(opened["dear"])*cost, time.Duration(sessions*rounds)*50*time.Millisecond
	if share := float64(spent) / float64(all); share > openShare || share < openShare/2 {
		t.Errorf("%d times %v for a drafter that nobody uses are %.4f of the time: want at most %v, and not much less",
			opened["dear"], cost, share, openShare)
	}
	for range 4 {
		p := newPlanner(l, tandem.VoteTree, true, true)
		p.arm = learn.Arm{Drafters: []string{"dear"}}
		for range leastUse {
			p.count([]string{"cheap", "dear"}, true)
		}
		p.HandOn()
	}
	alone := newPlanner(l, tandem.VoteTree, true, true)
	alone.arm = learn.Arm{Drafters: []string{"cheap"}}
	for range leastUse {
		alone.count([]string{"cheap"}, false)
	}
	if alone.HandOn(); len(alone.uses) != 0 || l.worth.used["cheap"] != 0 {
		t.Errorf("a session with one drafter has judged it: %v", l.worth.used)
	}
	if !newPlanner(l, tandem.VoteTree, true, true).Opens("dear", 1<<20) {
		t.Error("a drafter that sessions have used again is not opened")
	}
}

// TestVotesWithoutTheDear: what several cheap drafters bring together is a way to spend a round, beside that of all; with those that cost
// about the same there is one vote, and the target's own ways may be missing in each.
func TestVotesWithoutTheDear(t *testing.T) {
	p := newPlanner(newTestShared(t), tandem.VoteTree, true, true)
	p.round = 50 * time.Millisecond
	p.price = map[string]time.Duration{"a": 2e6, "b": 3e6, "dear": 40e6, tandem.WayMedusa: 2e6, "lookup": 30e3}
	for _, tc := range []struct{ ready, want []string }{
		{[]string{"a", "b", "lookup"}, []string{"vote of a, b, lookup"}},
		{[]string{"a", "b", "dear", "lookup"}, []string{"vote of a, b, lookup", "vote of a, b, dear, lookup"}},
		{[]string{"a", "b", "dear", tandem.WayMedusa, "lookup"}, []string{"vote of a, b, lookup", "vote of a, b, lookup, medusa",
			"vote of a, b, dear, lookup", "vote of a, b, dear, lookup, medusa"}},
	} {
		var got []string
		free, dear := p.prices(tc.ready)
		for _, a := range p.together(tc.ready, free, dear) {
			got = append(got, a.Name)
			if want := p.price["dear"]; slices.Contains(a.Drafters, "dear") != (a.Price >= want) {
				t.Errorf("%s has price %v", a.Name, a.Price)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("of %v: %q, want %q", tc.ready, got, tc.want)
		}
	}
}

// TestPromptRows: prompt rows are as many as bring more than they cost; a way that is only looked at gets the fewest, and one in use that
// brings nothing none.
func TestPromptRows(t *testing.T) {
	l := newTestShared(t)
	l.Measured([]tandem.Cost{{Rows: 1, Time: 40e6}, {Rows: 8, Time: 42e6}, {Rows: 64, Time: 154e6}}) // 2 ms a row beyond 8
	p := newPlanner(l, tandem.VoteTree, true, true)
	p.round, l.tokens = 50*time.Millisecond, 2
	rows := []int{2, 4, 8, 16}
	if got := p.Prompts(tandem.WayPPD, 4, rows, []float64{0, 0, 0, 0}); got != 0 {
		t.Errorf("a way that is only looked at has choice %d", got)
	}
	p.own.use([]string{tandem.WayPPD})
	for _, tc := range []struct {
		nodes int
		gains []float64
		want  int
	}{{4, []float64{0.2, 0.3, 0.35, 0.4}, 1}, {1, []float64{0.2, 0.3, 0.5, 0.6}, 2}, {1, []float64{0.2, 0.5, 1, 3}, 3},
		{20, []float64{0.05, 0.1, 0.15, 0.2}, -1}} {
		if got := p.Prompts(tandem.WayPPD, tc.nodes, rows, tc.gains); got != tc.want {
			t.Errorf("%d nodes, gains %v: choice %d, want %d", tc.nodes, tc.gains, got, tc.want)
		}
	}
}
