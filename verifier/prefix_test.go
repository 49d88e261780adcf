package verifier

import (
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// fill runs passes until no prompt waits, and returns the prompt rows of all passes by session.
func (b *bench) fill() map[tandem.SessionID]int {
	b.t.Helper()
	rows := map[tandem.SessionID]int{}
	for passes := 0; b.sched.Load().Opening > 0; passes++ {
		_, prompts := b.run()
		for id, n := range prompts {
			rows[id] += n
		}
		if passes > 200 {
			b.t.Fatal("prompts never got in")
		}
	}
	return rows
}

// counting returns tokens that begin with a number of their own.
func counting(first, n int) []tandem.Token {
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		tokens[i] = tandem.Token(5 + (first*997+i)%4000)
	}
	return tokens
}

// TestOnePromptIsComputedOnce: of sessions that are opened at once one computes what all begin with, unless they are of other
// tenants; if it is dropped half-way the others go on from there.
func TestOnePromptIsComputedOnce(t *testing.T) {
	b := newBench(t)
	system := counting(1, 160)
	text := func(i int) []tandem.Token { return append(slices.Clone(system), counting(2+i, 40)...) } // 199 positions
	for i := range 4 {
		b.openOf("a", tandem.SessionID(i+1), text(i))
	}
	b.openOf("b", 5, text(0))
	rows := b.fill()
	if rows[1] != 199 || rows[5] != 199 {
		t.Errorf("%v: want all 199 rows by the first session and by the other tenant's", rows)
	}
	for id := tandem.SessionID(2); id <= 4; id++ { // 128 in whole pages
		if s := b.admission.session(id); rows[id] != 199-128 || s.Reused() != 128 || s.seq.Len() != 199 {
			t.Errorf("session %v: %d rows, %d found, %d held", id, rows[id], s.Reused(), s.seq.Len())
		}
	}
	if n := b.cfg.Counters.Snapshot(); n["prefix.hits"] != 3 || n["prefix.reused_tokens"] != 3*128 {
		t.Errorf("counters %v", n)
	}
	b.dropAll(5)

	b.cfg.Model.Prefixes().Drop()
	first, second := b.openOf("a", 6, text(0)), b.openOf("a", 7, text(0))
	for range 2 { // 128 rows, of which others find the first page
		if _, prompts := b.run(); len(prompts) != 1 || prompts[6] != benchRows {
			t.Fatalf("rows %v: want the first session's alone", prompts)
		}
	}
	b.sched.Drop(first, nil)
	if rows := b.fill(); rows[7] != 199-128 || second.Reused() != 128 {
		t.Errorf("after the first was dropped: %v rows and %d found, want %d and all that it had filled", rows, second.Reused(), 199-128)
	}
	b.dropAll(7)
	if m := b.cfg.Model; m.FreePages() != m.Pages() {
		t.Errorf("%d of %d pages are free", m.FreePages(), m.Pages())
	}
}

// TestReopenedSessionFindsItsOwn: a session that is opened again with a later epoch, or after it was closed in the middle of its
// prompt, goes on from what it had; after a fault of its own it starts from nothing.
func TestReopenedSessionFindsItsOwn(t *testing.T) {
	b := newBench(t)
	tokens := counting(1, 200)
	open := func(epoch tandem.Epoch) *session {
		o := tandem.Opening{Session: 1, Epoch: epoch, Tokens: tokens, Limit: 400, MaxNodes: benchRows, Sampling: tandem.Sampling{TopP: 1}}
		s, err := b.enter(o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	open(1)
	for range 2 {
		b.run()
	}
	s := open(2) // half-way in its prompt
	if s.seq.Len() != 2*benchRows {
		t.Errorf("closed after %d rows: %d found", 2*benchRows, s.seq.Len())
	}
	b.fill()
	b.ask(s, 5)
	if b.run(); len(b.verdicts) != 1 || b.verdicts[0].Kind != tandem.OK {
		t.Fatalf("verdicts %+v", b.verdicts)
	}
	want := b.verdicts[0].Tokens
	s = open(3)
	if s.seq.Len() != 199 {
		t.Errorf("opened again: %d found, want all 199", s.seq.Len())
	}
	b.fill()
	b.ask(s, 5)
	if b.run(); len(b.verdicts) != 1 || !slices.Equal(b.verdicts[0].Tokens, want) {
		t.Errorf("opened again it says %+v, before that %v", b.verdicts, want)
	}
	b.sched.Fail(s, tandem.Errorf("test", tandem.Internal, "a pass failed"))
	if s = open(4); s.seq.Len() != 0 || s.Reused() != 0 {
		t.Errorf("after a fault: %d found, want none", s.seq.Len())
	}
	b.fill()
	b.ask(s, 5)
	if b.run(); len(b.verdicts) != 1 || !slices.Equal(b.verdicts[0].Tokens, want) {
		t.Errorf("after a fault it says %+v, before that %v", b.verdicts, want)
	}
}

// TestKeptPagesGiveWay: what is kept never stands in the way of a session, and none is opened less.
func TestKeptPagesGiveWay(t *testing.T) {
	for _, bound := range []int{-1, 0, 2} {
		m, err := engine.Open(SmallestModel(t), engine.Options{Device: testdevice.CPU(t, 1), MaxRows: benchRows, MaxWanted: benchRows,
			KVPages: 120})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		b := benchOf(t, m)
		m.Prefixes().Bound(bound)
		each := engine.PagesFor(1, 640, 0)
		for round := range 3 {
			n := 0
			for ; ; n++ {
				o := tandem.Opening{Session: tandem.SessionID(n + 1), Tokens: counting(40*round+n, 640), Limit: 800, MaxNodes: benchRows,
					Sampling: tandem.Sampling{TopP: 1}}
				_, err := b.enter(o)
				if tandem.KindOf(err) == tandem.Exhausted {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			b.fill()
			if want := m.Pages() / each; n != want || m.FreePages() != m.Pages()-n*each {
				t.Errorf("bound %d, round %d: %d sessions of %d pages fit into %d, want %d; %d are free", bound, round, n, each, m.Pages(),
					want, m.FreePages())
			}
			b.dropAll(benchSessions)
			kept := each * n // of each nine whole pages and one begun
			if bound != 0 {
				kept = max(bound, 0)
			}
			if m.FreePages() != m.Pages() || round == 0 && m.Prefixes().Kept() != kept || m.Prefixes().Kept() > m.Pages() {
				t.Errorf("bound %d, round %d: %d of %d pages are free, %d kept, want %d", bound, round, m.FreePages(), m.Pages(),
					m.Prefixes().Kept(), kept)
			}
		}
		if n := b.cfg.Counters.Snapshot()["prefix.evicted_pages"]; n != m.Prefixes().Evicted() || (n > 0) != (bound >= 0) {
			t.Errorf("bound %d: %d pages evicted, %d counted", bound, m.Prefixes().Evicted(), n)
		}
	}
}
