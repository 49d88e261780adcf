package worth

import (
	"testing"
	"time"
)

// TestPlain: the time of plain decoding is found from rounds with trees, also where all passes take longer than was measured at the start,
// where a draft reads beside the first of them, where rounds with the root alone were held up, and where the answer is long.
func TestPlain(t *testing.T) {
	const ms = time.Millisecond
	costs := NewCosts(Linear(20*ms, 2*ms, 16))
	for name, tc := range map[string]struct {
		rounds, others, roots, slow, stalled int // of the roots each stalled-th
		factor                               float64
	}{
		"trees":                   {rounds: 40, factor: 1},
		"a slower machine":        {rounds: 40, factor: 1.3},
		"others in the pass":      {rounds: 40, others: 3, factor: 1},
		"roots":                   {rounds: 40, roots: 12, factor: 1.2},
		"stalls":                  {rounds: 32, roots: 31, stalled: 4, factor: 1},
		"a draft reads beside it": {rounds: 40, slow: 10, factor: 1},
		"long":                    {rounds: 3*stretch + 5, factor: 1.1},
		"short":                   {rounds: 1, factor: 1},
	} {
		var p Plain
		want := 0.0
		for i := range tc.rounds {
			s := Spent{Nodes: 5, Tokens: 3, Rest: ms, Context: 100 + i}
			if i < tc.roots {
				s.Nodes, s.Tokens = 1, 1
			}
			s.Rows = s.Nodes + tc.others
			busy := tc.factor * float64(costs.TimeAt(s.Rows, s.Context))
			if i >= tc.roots && i < tc.roots+tc.slow {
				busy *= 1.9
			}
			factor := tc.factor
			if i < tc.roots && tc.stalled > 0 && i%tc.stalled == 0 {
				busy, factor = 3*busy, 3*factor
			}
			s.Busy = time.Duration(busy)
			want += float64(s.Tokens) * (factor*float64(costs.TimeAt(1+tc.others, s.Context)) + float64(ms))
			p.Add(s, costs.TimeAt)
		}
		time, _ := p.Time(costs.TimeAt)
		if got := float64(time) / want; got < .99 || got > 1.01 {
			t.Errorf("%s: %.3f of the time of plain decoding", name, got)
		}
	}
	if got, earned := new(Plain).Time(costs.TimeAt); got != 0 || earned.Gain() != 1 {
		t.Errorf("no round: %v, %v", got, earned)
	}
}

// TestEarned: draft models are judged by the rounds that asked one and those in which one could be asked and nobody was, but by none that
// others drafted, or that shared their passes.
func TestEarned(t *testing.T) {
	const ms = time.Millisecond
	costs := NewCosts(Linear(20*ms, 2*ms, 16))
	pass := func(rows int) time.Duration { return costs.TimeAt(rows, 100) }
	for name, tc := range map[string]struct {
		asked, idle, apart, shared int           // rounds
		draft                      time.Duration // that a round with Asked takes beside its pass
		rounds                     int
		gain                       float64
	}{
		"pays":             {asked: 2 * stretch, draft: 8 * ms, rounds: 2 * stretch, gain: float64(2*pass(1)) / float64(pass(4)+8*ms)},
		"does not":         {asked: 20, draft: 60 * ms, rounds: 20, gain: float64(2*pass(1)) / float64(pass(4)+60*ms)},
		"is never asked":   {idle: 40, rounds: 40, gain: 1},
		"others draft":     {apart: 50, gain: 1},
		"others' sessions": {shared: 50, draft: ms, gain: 1},
		"is asked sometimes": {asked: 10, idle: 10, apart: 10, shared: 10, draft: 8 * ms, rounds: 20,
			gain: float64(30*pass(1)) / float64(10*(pass(4)+8*ms)+10*pass(1))},
	} {
		var p Plain
		add := func(n, nodes, others, tokens int, took time.Duration, m Role) {
			for range n {
				busy := pass(nodes + others)
				p.Add(Spent{Rows: nodes + others, Nodes: nodes, Context: 100, Tokens: tokens, Busy: busy, Took: busy + took, Model: m},
					costs.TimeAt)
			}
		}
		add(tc.asked, 4, 0, 2, tc.draft, Asked)
		add(tc.idle, 1, 0, 1, 0, Idle)
		add(tc.apart, 4, 0, 4, 0, Apart)
		add(tc.shared, 4, 3, 2, tc.draft, Asked)
		_, got := p.Time(costs.TimeAt)
		if gain := got.Gain(); got.Rounds != tc.rounds || gain < tc.gain*.999 || gain > tc.gain*1.001 {
			t.Errorf("%s: %d rounds, gain %.3f: want %d, %.3f", name, got.Rounds, gain, tc.rounds, tc.gain)
		}
		if again, ok := ParseEarned(got.String()); !ok || again != got {
			t.Errorf("%s: %q is %v", name, got.String(), again)
		}
	}
	for _, line := range []string{"", "ready", "earned", "earned 1 2", "earned 1 -2 3", "earned x 2 3"} {
		if e, ok := ParseEarned(line); ok {
			t.Errorf("%q is %v", line, e)
		}
	}
}
