package verifier

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/spec/learn"
)

const (
	smallModel = "../models/gopher-draft-all-f16.gguf"
	benchRows  = 64
	quarter    = benchRows / 4
)

// bench is a verifier without an owner: the test says when a pass runs.
type bench struct {
	*Verifier
	t        testing.TB
	verdicts []tandem.Verdict // of the last pass
}

// flat costs 10 ms up to 8 rows and 1 ms for each row beyond.
var flat = []tandem.Cost{{Rows: 1, Time: 10 * time.Millisecond}, {Rows: 8, Time: 10 * time.Millisecond}, {Rows: 64, Time: 66 * time.Millisecond}}

func newBench(t testing.TB) *bench {
	m, err := engine.Open(smallModel, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: benchRows, MaxWanted: benchRows, KVPages: 120})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return benchOf(t, m)
}

func benchOf(t testing.TB, m *engine.Model) *bench {
	b := &bench{t: t}
	cfg, err := Config{Model: m, Counters: &tandem.Counters{}, Deliver: func(v tandem.Verdict) { b.verdicts = append(b.verdicts, v) }}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	b.Verifier = &Verifier{cfg: cfg, room: make(chan struct{}, 1000), sessions: map[tandem.SessionID]*session{},
		blames: ledger{counters: cfg.Counters}, costs: learn.NewCosts(flat), hold: time.AfterFunc(time.Hour, func() {})}
	return b
}

// openPrompt opens a session whose prompt has so many tokens, of a tenant of its own.
func (b *bench) openPrompt(id tandem.SessionID, n int) *session {
	return b.openOf(fmt.Sprint(id), id, slices.Repeat([]tandem.Token{5}, n))
}

func (b *bench) openOf(tenant string, id tandem.SessionID, tokens []tandem.Token) *session {
	b.t.Helper()
	o := tandem.Opening{Session: id, Tenant: tenant, Tokens: tokens, Limit: 400, MaxNodes: benchRows, Sampling: tandem.Sampling{TopP: 1}}
	if err := b.open(o, &prompt{ctx: context.Background(), ended: make(chan error, 1)}); err != nil {
		b.t.Fatal(err)
	}
	return b.sessions[id]
}

// ask puts a ticket with a tree of so many nodes: siblings below the root.
func (b *bench) ask(s *session, nodes int, came time.Time) {
	tree := tandem.Root(s.tokens[len(s.tokens)-1])
	for i := 1; i < nodes; i++ {
		tree.Tokens, tree.Parents = append(tree.Tokens, tandem.Token(i)), append(tree.Parents, 0)
	}
	b.room <- struct{}{}
	b.admit(tandem.Ticket{Session: s.id, Epoch: s.epoch, Base: tandem.Position(len(s.tokens)), Hash: s.hash, Tree: tree}, came)
}

// run runs a pass and returns who got how many rows: of trees, of prompts.
func (b *bench) run() (trees, prompts map[tandem.SessionID]int) {
	b.t.Helper()
	b.verdicts = nil
	b.plan()
	trees, prompts = map[tandem.SessionID]int{}, map[tandem.SessionID]int{}
	all := 0
	for _, sh := range b.inPass {
		n := len(sh.seg.Extend) + len(sh.seg.Nodes)
		all += n
		if sh.check != nil {
			trees[sh.s.id] = n
		} else {
			prompts[sh.s.id] = n
		}
	}
	if all > benchRows {
		b.t.Fatalf("%d rows planned: at most %d fit", all, benchRows)
	}
	b.Verifier.run(b.inPass)
	if len(b.verdicts) != len(trees) {
		b.t.Errorf("%d verdicts for %d trees", len(b.verdicts), len(trees))
	}
	for _, v := range b.verdicts {
		if v.Kind != tandem.OK || v.Rows != all || v.Batch != len(trees) {
			b.t.Errorf("verdict %+v: want %d rows, a batch of %d", v, all, len(trees))
		}
	}
	return trees, prompts
}

// TestPromptsBesideRounds: nobody in rounds, prompts fill the passes; somebody, and they take what the pass has room
// for without taking half as long again, or a few rows; sessions take turns.
func TestPromptsBesideRounds(t *testing.T) {
	b := newBench(t)
	long, other := b.openPrompt(1, 200), b.openPrompt(2, 200)
	if _, prompts := b.run(); prompts[1] != benchRows || len(prompts) != 1 {
		t.Errorf("alone: %v", prompts)
	}
	if _, prompts := b.run(); prompts[2] != benchRows {
		t.Errorf("second pass: %v, want the other prompt's turn", prompts)
	}
	talks := b.openPrompt(3, 1)
	b.ready(talks, nil)
	for _, c := range []struct{ nodes, rows int }{{1, 12}, {8, 5 + 3}, {20, 11}, {60, 4}} { // 10 ms → 15 ms: 13 rows in all …
		b.costs = learn.NewCosts(flat)
		at := [2]int{long.seq.Len(), other.seq.Len()}
		b.ask(talks, c.nodes, time.Now())
		trees, prompts := b.run()
		if trees[3] != c.nodes || prompts[1]+prompts[2] != c.rows || len(prompts) != 1 {
			t.Errorf("beside a tree of %d rows: %v, want %d rows of one prompt", c.nodes, prompts, c.rows)
		}
		if now := [2]int{long.seq.Len(), other.seq.Len()}; now[0]+now[1] != at[0]+at[1]+c.rows {
			t.Errorf("%v rows are in after %v and %v", now, at, prompts)
		}
	}
	// Between its rounds a session that is expected back counts as well.
	talks.answered, talks.pace = time.Now(), time.Minute
	b.costs = learn.NewCosts(flat)
	if _, prompts := b.run(); prompts[1]+prompts[2] != 13 {
		t.Errorf("while a ticket is expected: %v, want 13 rows", prompts)
	}
	talks.answered = time.Now().Add(-time.Hour)
	if _, prompts := b.run(); prompts[1]+prompts[2] != benchRows {
		t.Errorf("while none is: %v", prompts)
	}
	for range 20 {
		b.pass()
	}
	if len(b.opening) > 0 || long.prompt != nil || other.prompt != nil {
		t.Error("prompts never got in")
	}
}

// TestPassesAreFair: trees of any size, tickets at any time: each waits for a bounded number of passes, first
// come first served among trees of a usual size, and large trees leave the others most passes.
func TestPassesAreFair(t *testing.T) {
	b := newBench(t)
	model := b.cfg.Model
	rapid.Check(t, func(t *rapid.T) {
		b := benchOf(b.t, model)
		b.costs = learn.NewCosts(nil)
		defer b.last()
		n := rapid.IntRange(1, 12).Draw(t, "sessions")
		nodes := make([]int, n)
		var all []*session
		for i := range n {
			s := b.openPrompt(tandem.SessionID(i+1), 1)
			b.ready(s, nil)
			s.pace = 0
			all = append(all, s)
			nodes[i] = rapid.IntRange(1, quarter).Draw(t, "nodes")
			if rapid.IntRange(0, 5).Draw(t, "large") == 0 {
				nodes[i] = rapid.IntRange(quarter+1, benchRows).Draw(t, "nodes")
			}
		}
		waited := make([]int, n)
		for range 30 {
			for i, s := range all {
				if s.ticket == nil && rapid.IntRange(0, 3).Draw(t, "asks") > 0 {
					b.ask(s, nodes[i], time.Now())
				}
				s.pace = 0 // no waits
			}
			order := slices.Clone(b.queue)
			trees, _ := b.run()
			if len(order) > 0 && len(trees) == 0 {
				t.Fatal("an empty pass although tickets wait")
			}
			skipped := false
			for _, c := range order {
				i := int(c.s.id) - 1
				if trees[c.s.id] > 0 {
					if skipped && nodes[i] > quarter {
						t.Fatalf("a tree of %d rows overtook a small one", nodes[i])
					}
					waited[i] = 0
					continue
				}
				if nodes[i] <= quarter && len(trees) > 0 && sum(trees) < quarter {
					skipped = true
				}
				if waited[i]++; waited[i] > n+4 {
					t.Fatalf("session %d with trees of %d rows waited for %d passes; all: %v", i+1, nodes[i], waited[i], nodes)
				}
			}
		}
	})
}

func sum(rows map[tandem.SessionID]int) (n int) {
	for _, r := range rows {
		n += r
	}
	return n
}

// TestLargestTreesLeaveOthersMostPasses: one session with trees that fill a pass beside one with small trees.
func TestLargestTreesLeaveOthersMostPasses(t *testing.T) {
	b := newBench(t)
	large, small := b.openPrompt(1, 1), b.openPrompt(2, 1)
	b.ready(large, nil)
	b.ready(small, nil)
	served := map[tandem.SessionID]int{}
	for range 40 {
		large.pace, small.pace = 0, 0
		for s, nodes := range map[*session]int{large: benchRows, small: 4} {
			if s.ticket == nil {
				b.ask(s, nodes, time.Now())
			}
		}
		trees, _ := b.run()
		for id := range trees {
			served[id]++
		}
	}
	if served[2] < 29 || served[1] < 9 {
		t.Errorf("of 40 passes %d with large trees and %d with small ones: want about 10 and 30", served[1], served[2])
	}
}

// TestWaits: a pass waits for a ticket that is due within what sharing a pass with it saves.
func TestWaits(t *testing.T) {
	b := newBench(t)
	here, next := b.openPrompt(1, 1), b.openPrompt(2, 1)
	b.ready(here, nil)
	b.ready(next, nil)
	next.rows = 4
	now := time.Now()
	b.ask(here, 4, now)
	for _, c := range []struct {
		name           string
		answered, pace time.Duration // ago; until the next ticket
		at             time.Duration // after the ticket came
		rows           int
		want           bool
	}{
		{"no rounds yet", 0, 0, 0, 4, false},
		{"due soon", time.Millisecond, 3 * time.Millisecond, 0, 4, true},
		{"due when a pass of its own would be over", 0, 11 * time.Millisecond, 0, 4, false},
		{"waited as long as is saved", 8 * time.Millisecond, 9 * time.Millisecond, 11 * time.Millisecond, 4, false},
		{"a little late", 4 * time.Millisecond, 3 * time.Millisecond, 0, 4, true},
		{"very late", 20 * time.Millisecond, 3 * time.Millisecond, 0, 4, false},
		{"no room in the pass", time.Millisecond, 3 * time.Millisecond, 0, benchRows, false},
	} {
		next.answered, next.pace, next.rows = now.Add(-c.answered), c.pace, c.rows
		if got := b.waits(now.Add(c.at)); got != c.want {
			t.Errorf("%s: waits %v", c.name, got)
		}
	}
}
