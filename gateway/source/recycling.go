package source

import (
	"context"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// mostTables bounds the tenants whose successors are kept: the table of the one that was served longest ago goes first.
const mostTables = 8

// successors holds, for all sessions of a gateway, what verdicts have said of likely tokens: a table for each tenant. No other tenant's
// texts change it, and no other tenant's drafts are made of it. How much a guess is worth is learned from all sessions, as costs and
// acceptance are. Safe for concurrent use; the zero value knows nothing.
type successors struct {
	mu      sync.Mutex
	tables  []tenantTable              // at most mostTables, the latest used last
	chances map[bool]*spec.RankChances // greedy, and sampled
}

type tenantTable struct {
	tenant string
	table  *spec.Successors
}

// of returns a tenant's table, nil if it has none. x.mu must be held.
func (x *successors) of(tenant string) *spec.Successors {
	for i, t := range x.tables {
		if t.tenant == tenant {
			x.tables = append(append(x.tables[:i], x.tables[i+1:]...), t)
			return t.table
		}
	}
	return nil
}

// begin returns a tenant's table, a new one if it has none. x.mu must be held.
func (x *successors) begin(tenant string) *spec.Successors {
	if t := x.of(tenant); t != nil {
		return t
	}
	if len(x.tables) == mostTables {
		x.tables = append(x.tables[:0], x.tables[1:]...)
	}
	x.tables = append(x.tables, tenantTable{tenant, spec.NewSuccessors()})
	return x.tables[len(x.tables)-1].table
}

// worth returns the chances of guesses. x.mu must be held.
func (x *successors) worth(sampled bool) *spec.RankChances {
	if x.chances == nil {
		x.chances = map[bool]*spec.RankChances{false: {}, true: {}}
	}
	return x.chances[sampled]
}

// recycling drafts from the tokens that the target found likely at the nodes of earlier trees. It is ready in every round of its session:
// where its tenant's table knows nothing, its tree is the root alone.
type recycling struct {
	instant
	asked     int              // successors that the round's ticket asks for
	hindsight tandem.Hindsight // on the latest tokens that were committed while it was asked
	own       *spec.Successors // of a session that shares none with its tenant's others
}

func newRecycling(c common) *recycling {
	d := &recycling{}
	d.instant = instant{common: c, self: d, draft: d.draw}
	return d
}

// Ready implements Source.
func (d *recycling) Ready() bool { return d.state == ready && !d.aside() }

func (d *recycling) offers() bool            { return false } // it asks for successors, not guesses
func (d *recycling) restart(context.Context) {}

func (d *recycling) absent() string {
	if d.aside() {
		return "put aside"
	}
	return states[d.state]
}

func (d *recycling) sampled() bool { return d.session.Sampling.Temperature > 0 }

// table returns what the session drafts from, nil if there is none and it is not to begin. d.recycled.mu must be held.
func (d *recycling) table(begin bool) *spec.Successors {
	switch tenant := d.session.Tenant; {
	case !tandem.Salted(tenant) && begin:
		return d.recycled.begin(tenant)
	case !tandem.Salted(tenant):
		return d.recycled.of(tenant)
	case d.own == nil && begin:
		d.own = spec.NewSuccessors()
	}
	return d.own
}

// draw makes a tree for a proposal.
func (d *recycling) draw(root tandem.Token, p tandem.Proposal) tandem.Proposed {
	begun := time.Now()
	t := tandem.Root(root)
	t.LogProbs = []float32{0}
	x := &d.recycled
	x.mu.Lock()
	if table := d.table(false); table != nil {
		t = table.Tree(d.session.before(d.session.Text.Len()-1), root, x.worth(d.sampled()), p.Bounds, p.Stop)
	}
	x.mu.Unlock()
	t, _ = spec.Cut(t, p.Plan, time.Since(begun))
	_, depth := t.Depths()
	return tandem.Proposed{Nodes: t.Len(), Depth: depth, Busy: time.Since(begun), Tree: t}
}

// before returns the token before that at a place of the text, -1 at its begin.
func (s *Session) before(at int) tandem.Token {
	if at < 1 {
		return -1
	}
	return s.Text.Tokens[at-1]
}

// look compares what it would have guessed with the n tokens that a round has committed, as hindsight and for the chances of its guesses.
func (d *recycling) look(n int) {
	if d.asked == 0 || n == 0 {
		d.hindsight = tandem.Hindsight{}
		return
	}
	tokens, x := d.session.Text.Tokens, &d.recycled
	root := len(tokens) - n - 1
	hits := make([]bool, n)
	x.mu.Lock()
	if table := d.table(false); table != nil {
		hits = x.worth(d.sampled()).Learn(table, d.session.before(root), tokens[root], tokens[root+1:])
	}
	x.mu.Unlock()
	h := &d.hindsight
	for _, hit := range hits {
		h.Tokens, h.Hits = min(h.Tokens+1, tandem.MaxHindsight), h.Hits<<1
		if hit {
			h.Hits |= 1
		}
	}
	d.session.hindsight(d.Name(), tandem.Position(len(tokens)), *h, 0)
}

// take keeps the successors of a verdict on a tree whose root is that many tokens before the text's end. Only the root's count if it is not
// known which tree was verified.
func (d *recycling) take(t tandem.Tree, committed int, v *tandem.Verdict) {
	n := d.asked
	if n == 0 || len(v.Successors) == 0 {
		return
	}
	for _, s := range v.Successors {
		if s < 0 || int(s) >= d.Vocab {
			d.Counters.Add("successors.garbage", 1)
			return
		}
	}
	tokens := d.session.Text.Tokens
	root := len(tokens) - committed - 1
	if t.Guesses()*n != len(v.Successors) || t.Tokens[0] != tokens[root] {
		t = tandem.Root(tokens[root])
	}
	x := &d.recycled
	x.mu.Lock()
	defer x.mu.Unlock()
	table := d.table(true)
	for i, token := range t.Tokens[:t.Guesses()] {
		before := d.session.before(root)
		if i > 0 {
			before = t.Tokens[t.Parents[i]]
		}
		table.Learn(before, token, v.SuccessorsOf(i, n))
	}
	d.Counters.Add("successors.taken", int64(t.Guesses()))
}

// Successors returns how many of the target's likeliest tokens the verdict of the next round is to carry for each node: those that
// recycling drafts from, if it may draft in this session within b.
func (s *Set) Successors(b tandem.Bounds) int {
	n := 0
	if d := s.recycling; d != nil && d.Ready() && !b.Plain() {
		n = tandem.MostSuccessors
	}
	if s.recycling != nil {
		s.recycling.asked = n
	}
	return n
}

// TakeSuccessors gives recycling what a round's verdict says of likely tokens. t is the tree that was verified as a whole, or none;
// committed counts the round's tokens.
func (s *Set) TakeSuccessors(t tandem.Tree, committed int, v *tandem.Verdict) {
	if s.recycling != nil {
		s.recycling.take(t, committed, v)
	}
}
