package schedule

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// TestFair: sessions with trees of any size, verified whole or grown in pieces, some of which have to catch up first, and prompts: a
// pass is never too large; each session is in a pass again after a bounded number of them; small trees are never overtaken by
// large ones; and pieces cost the rounds at most half as long again, or a few rows.
func TestFair(t *testing.T) {
	costs := worth.NewCosts(flat)
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(nil, nil)
		n := rapid.IntRange(1, 12).Draw(t, "sessions")
		all, trees := make([]*player, n), make([]int, n)
		for i := range all {
			all[i] = b.opened(tandem.SessionID(i + 1))
			all[i].whole = rapid.Bool().Draw(t, "whole")
			trees[i] = rapid.IntRange(1, quarter).Draw(t, "tree")
			if rapid.IntRange(0, 5).Draw(t, "large") == 0 {
				trees[i] = rapid.IntRange(quarter+1, passRows).Draw(t, "tree")
			}
		}
		var opening []*player
		waited := map[*player]int{}
		for round := range 60 {
			for i, p := range all {
				if !p.Busy() && rapid.IntRange(0, 3).Draw(t, "asks") > 0 {
					if rapid.IntRange(0, 7).Draw(t, "behind") == 0 {
						p.lacks = rapid.IntRange(9, 100).Draw(t, "lacks")
					}
					b.queue(p, trees[i])
				}
			}
			if len(opening) < 4 && rapid.IntRange(0, 7).Draw(t, "opens") == 0 {
				p := b.player(tandem.SessionID(1000+round), rapid.IntRange(1, 300).Draw(t, "prompt"))
				b.Enter(p, NewCall(context.Background()))
				opening = append(opening, p)
			}
			queue, lagging := slices.Clone(b.line), map[*player]bool{}
			for _, x := range queue {
				p := x.(*player)
				lagging[p] = p.Opening() || p.lacks > leastPiece
			}
			before := len(b.model.passes)
			b.costs = worth.NewCosts(flat) // nothing learned
			rows := b.step(append(slices.Clone(all), opening...)...)
			in := func(p *player) int {
				if i := slices.Index(all, p); i >= 0 {
					return rows[i]
				}
				return rows[n+slices.Index(opening, p)]
			}
			if len(b.model.passes) == before && len(b.line) == 0 { // no more than the news that a prompt is in
				continue
			}
			if len(b.model.passes) != before+1 {
				t.Fatalf("no pass although %d wait", len(queue))
			}
			total, pieces, skipped := b.model.passes[before], 0, false
			if total > passRows {
				t.Fatalf("%d rows in a pass of %d", total, passRows)
			}
			for _, x := range queue {
				p := x.(*player)
				if lagging[p] {
					pieces += in(p)
				}
			}
			rounds := total - pieces
			if rounds > 0 && pieces > leastPiece && float64(costs.Time(total)) > slower*float64(costs.Time(rounds)) {
				t.Fatalf("%d rows of pieces beside %d of rounds", pieces, rounds)
			}
			for _, x := range queue {
				p := x.(*player)
				if in(p) > 0 {
					if skipped && p.whole && in(p) > quarter && !lagging[p] {
						t.Fatalf("a tree of %d rows overtook a small one", in(p))
					}
					delete(waited, p)
					continue
				}
				if !lagging[p] && p.tree <= quarter && total-pieces > 0 && total-pieces < quarter {
					skipped = true
				}
				// large trees sit out three passes at most, prompts stand behind each other
				if waited[p]++; waited[p] > 2*n+8 {
					t.Fatalf("session %v waited for %d passes; trees %v", p.ID, waited[p], trees)
				}
			}
			opening = slices.DeleteFunc(opening, func(p *player) bool { return !p.Opening() })
		}
		for range 200 { // all that is left gets in
			b.Step()
		}
		if len(b.line) > 0 || b.counter("faults") != 0 {
			t.Fatalf("%+v after all; counters %v", b.Load(), b.cfg.Counters.Snapshot())
		}
	})
}

// TestPromptsBesideFullPasses: a prompt gets in with every second pass at least where rounds fill the passes to the last row: one session
// whose trees are as large as a pass, whole or not, and many with small ones.
func TestPromptsBesideFullPasses(t *testing.T) {
	for name, trees := range map[string][]int{"whole": {passRows}, "in pieces": {passRows}, "small": slices.Repeat([]int{8}, 20)} {
		b := newBench(t, nil)
		all := make([]*player, len(trees))
		for i := range all {
			all[i] = b.opened(tandem.SessionID(i + 1))
			all[i].whole = name == "whole"
		}
		prompt := b.player(1000, 100)
		b.Enter(prompt, NewCall(context.Background()))
		passes, rounds := 0, 0
		for ; prompt.Missing() > 0 && passes < 100; passes++ {
			for i, p := range all {
				if !p.Busy() {
					b.queue(p, trees[i])
				}
			}
			before := prompt.Missing()
			b.step(all...)
			if before == prompt.Missing() {
				rounds++
			}
		}
		if most := 2*(100/leastPiece+1) + 1; passes > most || rounds > passes/2+1 || b.counter("faults") != 0 {
			t.Errorf("%s: a prompt of 100 tokens took %d passes, %d of them without it: want at most %d, half of them; %d faults",
				name, passes, rounds, most, b.counter("faults"))
		}
		if len(all[0].turns) == 0 {
			t.Errorf("%s: no round got in beside the prompt", name)
		}
	}
}

// TestLargeTreesSitOut: one session with trees that fill a pass beside one with small trees.
func TestLargeTreesSitOut(t *testing.T) {
	b := newBench(t, nil)
	large, small := b.opened(1), b.opened(2)
	large.whole, small.whole = true, true
	served := [2]int{}
	for range 40 {
		for p, tree := range map[*player]int{large: passRows, small: 4} {
			if !p.Busy() {
				b.queue(p, tree)
			}
		}
		for i, n := range b.step(large, small) {
			if n > 0 {
				served[i]++
			}
		}
	}
	if served[1] < 29 || served[0] < 9 {
		t.Errorf("of 40 passes %d with large trees and %d with small ones: want about 10 and 30", served[0], served[1])
	}
	b.End(small, nil)
	b.End(large, nil)
	b.queue(large, passRows)
	if rows := b.step(large); rows[0] != passRows {
		t.Errorf("alone a large tree got %d rows of %d", rows[0], passRows)
	}
}

// TestExpectedCount: pieces are short as well while nobody is queued, but somebody is expected.
func TestExpectedCount(t *testing.T) {
	b := newBench(t, nil)
	long, talks := b.player(1, 1000), b.opened(2)
	b.Enter(long, NewCall(context.Background()))
	for _, c := range []struct {
		name     string
		answered time.Duration // ago
		rhythm   time.Duration
		rows     int
	}{
		{"nobody has begun", 0, 0, passRows},
		{"a ticket is expected", 0, time.Minute, 13}, // 10 ms → 15 ms
		{"it is late", time.Hour, time.Minute, passRows},
	} {
		b.costs = worth.NewCosts(flat)
		talks.answered, talks.rhythm = time.Now().Add(-c.answered), c.rhythm
		if rows := b.step(long); rows[0] != c.rows {
			t.Errorf("%s: a piece of %d rows, want %d", c.name, rows[0], c.rows)
		}
	}
	talks.lacks = 100 // what a session has to catch up with is a prompt to the others
	other := b.opened(3)
	b.queue(talks, 4)
	b.queue(other, 1)
	b.costs = worth.NewCosts(flat)
	if rows := b.step(long, talks, other); rows[2] != 1 || rows[0]+rows[1] != 12 {
		t.Errorf("beside one row: %v: want 12 of pieces", rows)
	}
	if talks.lacks = 4; b.step(talks)[0] != 4 {
		t.Errorf("a few tokens that a session lacks count as its round: %v", talks.turns)
	}
}

// TestOnePromptOnce: of sessions with the same prompt one computes it, and the others find it; if that one is dropped, the
// next goes on.
func TestOnePromptOnce(t *testing.T) {
	b := newBench(t, nil)
	shares := &text{trusted: true}
	var all []*player
	for id := range tandem.SessionID(4) {
		p := b.player(id+1, 200)
		p.shares = shares
		b.Enter(p, NewCall(context.Background()))
		all = append(all, p)
	}
	if rows := b.step(all...); !slices.Equal(rows, []int{passRows, 0, 0, 0}) {
		t.Errorf("rows %v: want the first session's alone", rows)
	}
	b.Drop(all[0], nil)
	for range 10 {
		b.Step()
	}
	computed := 0
	for _, n := range b.model.passes {
		computed += n
	}
	if computed != 200 || b.Load().Opening != 0 || all[1].Reused() != passRows || all[2].Reused() != 200 {
		t.Errorf("%d rows computed, %+v, %d and %d reused", computed, b.Load(), all[1].Reused(), all[2].Reused())
	}
	if b.counter("prefix.hits") != 3 || b.counter("prefix.reused_tokens") != passRows+400 {
		t.Errorf("counters %v", b.cfg.Counters.Snapshot())
	}
}

// TestWaits: a pass waits for a session that is due within what sharing a pass with it saves.
func TestWaits(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Patience = 1 })
	here, next := b.opened(1), b.opened(2)
	now := time.Now()
	b.Queue(here, nil, now, 4)
	for _, c := range []struct {
		name             string
		answered, rhythm time.Duration // ago; until it is queued again
		at               time.Duration // after the other was
		rows             int
		want             bool
	}{
		{"no rounds yet", 0, 0, 0, 4, false},
		{"due soon", time.Millisecond, 3 * time.Millisecond, 0, 4, true},
		{"due when a pass of its own would be over", 0, 11 * time.Millisecond, 0, 4, false},
		{"waited as long as is saved", 8 * time.Millisecond, 9 * time.Millisecond, 11 * time.Millisecond, 4, false},
		{"a little late", 4 * time.Millisecond, 3 * time.Millisecond, 0, 4, true},
		{"very late", 20 * time.Millisecond, 3 * time.Millisecond, 0, 4, false},
		{"no room in the pass", time.Millisecond, 3 * time.Millisecond, 0, passRows, false},
	} {
		next.answered, next.rhythm, next.rows = now.Add(-c.answered), c.rhythm, c.rows
		if got := b.waits(now.Add(c.at), math.MaxInt); got != c.want {
			t.Errorf("%s: waits %v", c.name, got)
		}
	}
	next.answered, next.rhythm, next.rows = now.Add(-time.Millisecond), 3*time.Millisecond, 4
	if here.ran = true; b.waits(now, math.MaxInt) {
		t.Error("waits in the middle of what it has begun")
	}
	here.ran = false
	b.Enter(b.player(3, 100), NewCall(context.Background()))
	if b.waits(now, math.MaxInt) {
		t.Error("waits although a prompt could be computed")
	}
}
