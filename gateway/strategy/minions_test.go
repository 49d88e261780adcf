package strategy

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

func TestVerifiedChain(t *testing.T) {
	// 0 ─ 5 ─ 6 ─ 7
	//   │   └ 8
	//   └ 9
	tree := tandem.Tree{Tokens: []tandem.Token{1, 5, 9, 6, 8, 7}, Parents: []int32{-1, 0, 0, 1, 1, 3}}
	for _, test := range []struct {
		committed     []tandem.Token
		length, right int
	}{
		{[]tandem.Token{4}, 3, 0},
		{[]tandem.Token{9, 4}, 1, 1},
		{[]tandem.Token{5, 4}, 3, 1},
		{[]tandem.Token{5, 8, 4}, 2, 2},
		{[]tandem.Token{5, 6, 7, 4}, 3, 3},
		{[]tandem.Token{5}, 3, 1}, // the text ends in the path
	} {
		if length, right := verifiedChain(tree, test.committed); length != test.length || right != test.right {
			t.Errorf("committed %v: %d of %d: want %d of %d", test.committed, right, length, test.right, test.length)
		}
	}
	if length, right := verifiedChain(tandem.Root(3), []tandem.Token{1}); length != 0 || right != 0 {
		t.Errorf("a root is a chain: %d of %d", right, length)
	}
}

// newShared returns what sessions share under a length rule.
func newShared(t testing.TB, rule learn.LengthRule) *Shared {
	t.Helper()
	rules, err := Rules{Length: rule}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := NewShared(rules)
	s.Measured("", []tandem.Cost{{Rows: 1, Time: 39e6}, {Rows: 8, Time: 43e6}, {Rows: 16, Time: 67e6}, {Rows: 32, Time: 122e6}})
	return s
}

// wide lets the length rule do as it likes.
var wide = tandem.Bounds{Nodes: 32, Depth: 16, Width: 1}

// minionsOf returns a session's strategy.
func minionsOf(s *Shared, without tandem.Technique) Strategy {
	m, _ := New(tandem.Request{Strategy: tandem.StrategyMinions, Vote: tandem.VoteNone, Bounds: wide, Without: without}, 0, s)
	return m
}

// asks returns the length that a session drafts with.
func asks(m Strategy, p tandem.Bounds) int {
	return m.Decide([]string{"lookup"}, p).Asks[0].Proposal.Bounds.Depth
}

// round has a session draft, and so many of its tokens found right. draft makes the tree.
func round(s *Shared, m Strategy, id tandem.SessionID, p tandem.Bounds, right int, draft func(tandem.Bounds) tandem.Tree) {
	decision := m.Decide([]string{"lookup"}, p)
	tree := draft(decision.Asks[0].Proposal.Bounds)
	v := tandem.Verdict{Session: id, Nodes: tree.Len(), Rows: tree.Len(), Batch: 1, Busy: 40 * time.Millisecond,
		Tokens: append(slices.Clone(tree.Tokens[1:1+min(right, tree.Len()-1)]), 999)}
	s.Verified(v, false)
	m.Learn(&Outcome{Decision: decision, Drafts: []Draft{{Drafter: "lookup", Got: tandem.Proposed{Tree: tree}}}, Tree: tree,
		Judged: tree.Len() > 1, Verdict: v, Tokens: len(v.Tokens)})
}

// whole drafts chains of the length asked for.
func whole(p tandem.Bounds) tandem.Tree {
	t := tandem.Root(1)
	for n := range p.Depth {
		t.Tokens, t.Parents = append(t.Tokens, tandem.Token(10+n)), append(t.Parents, int32(n))
	}
	return t
}

// TestLengthIsOfTheChainVerified has lookup draft from a text that repeats only what it has said of late, so that its chains are of
// two tokens where four were asked for. All of it is right: that says nothing for or against four.
func TestLengthIsOfTheChainVerified(t *testing.T) {
	text := spec.NewAutomaton()
	text.Append(1, 2, 1)
	if n := text.Continue(tandem.Bounds{Nodes: 5, Depth: 4, Width: 1}).Len(); n != 3 {
		t.Fatalf("lookup drafts %d nodes: want a root and two tokens", n)
	}
	s := newShared(t, learn.LengthRule{})
	m := minionsOf(s, 0)
	for range 100 {
		round(s, m, 7, wide, 2, func(b tandem.Bounds) tandem.Tree { return text.Continue(b) })
		if got := asks(m, wide); got != 4 {
			t.Fatalf("after chains of two: asks for %d: want 4", got)
		}
	}
	for range 60 {
		round(s, m, 7, wide, 16, whole)
	}
	if got := asks(m, wide); got < 7 {
		t.Errorf("all of every chain was right, and the chains of two were: asks for %d: want 7 or more", got)
	}
}

// TestOneLengthForAllSessions: what one session has found out, those beside it and those after it go by.
func TestOneLengthForAllSessions(t *testing.T) {
	for _, rule := range []string{learn.LengthCurve, learn.LengthPaper} {
		s := newShared(t, learn.LengthRule{Rule: rule, Start: 4, Most: 12, Punish: 1, Reward: 1, Records: 4})
		a, b := minionsOf(s, 0), minionsOf(s, 0)
		for n := range 16 {
			round(s, a, 1, wide, 1+n, whole) // more and more is right
		}
		now := asks(a, wide)
		if now <= 4 {
			t.Errorf("%s: asks for %d when more and more is right: want more than 4", rule, now)
		}
		a.HandOn()
		if beside, after := asks(b, wide), asks(minionsOf(s, 0), wide); beside != now || after != now {
			t.Errorf("%s: a session beside it asks for %d, a later one for %d: want %d", rule, beside, after, now)
		}
		if fixed := asks(minionsOf(s, tandem.TechniqueAdaptive), wide); fixed != wide.Depth {
			t.Errorf("%s: a session that does not adapt asks for %d: want the bounds' %d", rule, fixed, wide.Depth)
		}
		if line := b.Explain(b.Decide([]string{"lookup"}, wide)); !strings.Contains(line, "slope") {
			t.Errorf("%s: explained as %q: want the slope that decided", rule, line)
		}
	}
}

// TestBoundsOfOneRequestMoveNoLength: a request that allows two tokens gets two; the others' length stays.
func TestBoundsOfOneRequestMoveNoLength(t *testing.T) {
	for _, rule := range []string{learn.LengthCurve, learn.LengthPaper} {
		s := newShared(t, learn.LengthRule{Rule: rule, Start: 4, Most: 12, Punish: 1, Reward: 1, Records: 4})
		a, b := minionsOf(s, 0), minionsOf(s, 0)
		narrow := tandem.Bounds{Nodes: 8, Depth: 2, Width: 4}
		for n := range 50 {
			round(s, a, 1, narrow, n%3, whole)
		}
		if bounded, other := asks(a, narrow), asks(b, wide); bounded != 2 || other != 4 {
			t.Errorf("%s: the bounded session asks for %d, another for %d: want 2 and 4", rule, bounded, other)
		}
	}
}

// TestLengthOfManyAtOnce has sessions come, draft and go at the same time; the race detector looks on.
func TestLengthOfManyAtOnce(t *testing.T) {
	for _, rule := range []string{learn.LengthCurve, learn.LengthPaper} {
		s := newShared(t, learn.LengthRule{Rule: rule, Start: 4, Most: 6, Punish: 1, Reward: 1, Records: 2})
		var wg sync.WaitGroup
		for id := range 8 {
			wg.Go(func() {
				for range 10 {
					m := minionsOf(s, 0)
					for n := range 20 {
						round(s, m, tandem.SessionID(id+1), wide, n%5, whole)
						if got := asks(m, wide); got < 1 || got > 6 {
							t.Errorf("%s: asks for %d: want 1 to 6", rule, got)
						}
						m.Explain(m.Decide([]string{"lookup"}, wide))
					}
					m.HandOn()
				}
			})
		}
		wg.Wait()
	}
}
