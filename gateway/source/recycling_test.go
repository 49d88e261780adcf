package source

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
)

// newRecyclingSet is newTestSet with recycling, for a tenant.
func newRecyclingSet(t *testing.T, tenant string) (*Set, *Session, *tandem.Counters) {
	t.Helper()
	set, s, counters := newTestSet(t, &chains{})
	s.Tenant, s.Names = tenant, []string{tandem.Recycling}
	set.Roster.Enlist(roster.Enlisted{Name: tandem.Recycling, Recycling: true, Last: true})
	set.Update(t.Context(), bounds)
	return set, s, counters
}

// recyclingOf returns a set's source that drafts from successors.
func recyclingOf(s *Set) *recycling {
	i := slices.IndexFunc(s.list, func(x Source) bool { return x.Name() == tandem.Recycling })
	return s.list[i].(*recycling)
}

// after returns the successors of one node.
func after(first tandem.Token) (out []tandem.Token) {
	for i := range tandem.Token(tandem.MostSuccessors) {
		out = append(out, first+i)
	}
	return out
}

// TestRecyclingLearnsFromRejectedNodes: every node of the tree teaches, by its own path; if it is not known which tree was verified, the
// root alone does; a verdict with a token that does not exist teaches nothing.
func TestRecyclingLearnsFromRejectedNodes(t *testing.T) {
	set, s, counters := newRecyclingSet(t, "a")
	draw := func() tandem.Tree { return recyclingOf(set).draw(3, tandem.Proposal{Bounds: bounds}).Tree }
	if n := set.Successors(tandem.Bounds{}); n != 0 {
		t.Errorf("%d successors are asked for without drafts", n)
	}
	if n := set.Successors(bounds); n != tandem.MostSuccessors || draw().Len() != 1 {
		t.Errorf("%d successors are asked for, and the first tree is %v", n, draw())
	}
	tree := tandem.Tree{Tokens: []tandem.Token{3, 7, 40}, Parents: []int32{-1, 0, 1}}
	s.Text.Append(50) // the round's token: both nodes are wrong
	set.Committed(1)
	v := &tandem.Verdict{Nodes: 3, Tokens: []tandem.Token{50}, Successors: slices.Concat(after(50), after(60), after(70))}
	set.TakeSuccessors(tree, 1, v)
	table := set.recycled.of("a")
	for _, c := range [][3]tandem.Token{{2, 3, 50}, {3, 7, 60}, {7, 40, 70}, {9, 40, 70}} {
		if got, _ := table.First(c[0], c[1]); got != c[2] {
			t.Errorf("after %d %d comes %d: want %d", c[0], c[1], got, c[2])
		}
	}
	set.TakeSuccessors(tandem.Tree{}, 1, &tandem.Verdict{Successors: slices.Concat(after(51), after(61), after(71))})
	if got, _ := table.First(3, 7); got != 60 {
		t.Errorf("a tree that is not known taught %d", got)
	}
	if got, _ := table.First(2, 3); got != 51 {
		t.Errorf("the root taught %d: want 51", got)
	}
	set.TakeSuccessors(tree, 1, &tandem.Verdict{Successors: slices.Concat(after(52), after(62), after(95))}) // 102 of a vocabulary of 100
	if got, _ := table.First(2, 3); got != 51 || counters.Snapshot()["successors.garbage"] != 1 {
		t.Errorf("garbage taught %d; %v", got, counters.Snapshot())
	}
}

// TestTenantsShareNoSuccessors: what one tenant's verdicts say is in no other's tree, and no more than mostTables tenants are kept, those
// that were served last.
func TestTenantsShareNoSuccessors(t *testing.T) {
	set, s, _ := newRecyclingSet(t, "a")
	tokens := func(tenant string) int {
		s.Tenant = tenant
		return recyclingOf(set).draw(3, tandem.Proposal{Bounds: bounds}).Tree.Len()
	}
	teach := func(tenant string) {
		s.Tenant = tenant
		set.Successors(bounds)
		set.TakeSuccessors(tandem.Tree{}, 0, &tandem.Verdict{Successors: after(50)})
	}
	teach("a")
	if tokens("a") < 2 || tokens("b") != 1 || tokens("") != 1 {
		t.Errorf("trees of %d, %d and %d nodes: want guesses for a alone", tokens("a"), tokens("b"), tokens(""))
	}
	for i := range mostTables - 1 {
		teach(fmt.Sprint(i))
	}
	tokens("a") // so that 0 was served longest ago
	teach("last")
	if n := len(set.recycled.tables); n != mostTables || tokens("0") != 1 || tokens("a") < 2 || tokens("1") < 2 || tokens("last") < 2 {
		t.Errorf("%d tables; trees of %d, %d, %d and %d nodes: want 0's gone", n, tokens("0"), tokens("a"), tokens("1"), tokens("last"))
	}
}
