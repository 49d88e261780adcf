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

// judges has a session of so many rounds find that the ways to spend a round with a drafter bring (1 + gain) times what those without do.
func (l *Shared) judges(t *testing.T, drafter string, sampled bool, gain float64, rounds int) (opened bool) {
	p := newPlanner(l, tandem.VoteTree, true, true, sampled)
	opened = p.Opens(drafter)
	cheap, with := p.ask([]string{"cheap"}), p.ask([]string{drafter})
	for range rounds {
		arms := []learn.Arm{{Name: Plain}, cheap}
		if opened {
			arms = append(arms, with)
		}
		p.choices.Recall(cheap, 1, 1000)
		p.choices.Recall(with, 1+2*gain, 1000)
		for _, a := range arms {
			p.choices.Observe(a, 2, 50*time.Millisecond, false)
		}
		p.choices.Choose(arms)
		ready := []string{"cheap"}
		if opened {
			ready = append(ready, drafter)
		}
		p.count(ready)
	}
	p.HandOn()
	return opened
}

// TestOpens: a drafter with which sessions did not gain is looked at again ever more rarely; a cheap one, one that brings something and one
// that nobody knows always are opened. What it is worth when sampling is another question.
func TestOpens(t *testing.T) {
	l := newTestShared(t)
	l.round, l.prices = 50*time.Millisecond, map[string]time.Duration{tandem.Medusa: 2e6, tandem.PPD: 1e5}
	const sessions, rounds = 100, 64
	opened := map[string]int{}
	for range sessions {
		for _, d := range []struct {
			name string
			gain float64
		}{{"cheap", 0}, {"dear", 0.01}, {"good", 0.3}, {tandem.Medusa, -0.2}, {tandem.PPD, -0.2}} {
			if l.judges(t, d.name, false, d.gain, rounds) {
				opened[d.name]++
			}
		}
	}
	for _, d := range []string{"cheap", "good", tandem.PPD} {
		if opened[d] != sessions {
			t.Errorf("%s was opened %d times: want %d", d, opened[d], sessions)
		}
	}
	again := 0 // rounds are spent without it: 256, 512, 1024, 2048, …
	for left, wait := sessions*rounds, l.worth.t.First; left > 0; left, wait = left-wait-rounds, 2*wait {
		again++
	}
	for _, d := range []string{"dear", tandem.Medusa} {
		if opened[d] < again || opened[d] > again+1 {
			t.Errorf("%s was opened %d times in %d sessions: want about %d", d, opened[d], sessions, again)
		}
	}
	if !newPlanner(l, tandem.VoteTree, true, true, true).Opens("dear") {
		t.Error("a drafter that greedy decoding does not want is not looked at when sampling")
	}
	for i := 0; !l.judges(t, "dear", false, 0.3, rounds); i++ { // it has become better
		if i > l.worth.t.Most/rounds {
			t.Fatal("it is not looked at any more")
		}
	}
	if p := newPlanner(l, tandem.VoteTree, true, true, false); !p.Opens("dear") {
		t.Errorf("a drafter that now brings something is not opened: %+v", l.worth.known["dear"])
	}
	alone := newPlanner(l, tandem.VoteTree, true, true, false)
	if alone.count([]string{"dear"}); len(alone.uses) != 0 {
		t.Errorf("a session with one drafter has judged it: %v", alone.uses)
	}
	l.judges(t, "brief", false, -0.5, l.worth.t.Judged-1)
	if p := newPlanner(l, tandem.VoteTree, true, true, false); !p.Opens("brief") {
		t.Error("few rounds have judged a drafter")
	}
}

// TestVotesWithoutTheDear: what several cheap drafters bring together is a way to spend a round, beside that of all; with those that cost
// about the same there is one vote, and the target's own ways may be missing in each.
func TestVotesWithoutTheDear(t *testing.T) {
	p := newPlanner(newTestShared(t), tandem.VoteTree, true, true, false)
	p.round = 50 * time.Millisecond
	p.price = map[string]time.Duration{"a": 2e6, "b": 3e6, "dear": 40e6, tandem.Medusa: 2e6, "lookup": 30e3}
	for _, tc := range []struct{ ready, want []string }{
		{[]string{"a", "b", "lookup"}, []string{"vote of a, b, lookup"}},
		{[]string{"a", "b", "dear", "lookup"}, []string{"vote of a, b, lookup", "vote of a, b, dear, lookup"}},
		{[]string{"a", "b", "dear", tandem.Medusa, "lookup"}, []string{"vote of a, b, lookup", "vote of a, b, lookup, medusa",
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
	p := newPlanner(l, tandem.VoteTree, true, true, false)
	p.round, l.tokens = 50*time.Millisecond, 2
	rows := []int{2, 4, 8, 16}
	if got := p.Prompts(tandem.PPD, 4, rows, []float64{0, 0, 0, 0}); got != 0 {
		t.Errorf("a way that is only looked at has choice %d", got)
	}
	p.own.use([]string{tandem.PPD})
	for _, tc := range []struct {
		nodes int
		gains []float64
		want  int
	}{{4, []float64{0.2, 0.3, 0.35, 0.4}, 1}, {1, []float64{0.2, 0.3, 0.5, 0.6}, 2}, {1, []float64{0.2, 0.5, 1, 3}, 3},
		{20, []float64{0.05, 0.1, 0.15, 0.2}, -1}} {
		if got := p.Prompts(tandem.PPD, tc.nodes, rows, tc.gains); got != tc.want {
			t.Errorf("%d nodes, gains %v: choice %d, want %d", tc.nodes, tc.gains, got, tc.want)
		}
	}
}
