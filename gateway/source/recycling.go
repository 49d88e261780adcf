package source

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// recycling drafts from the tokens that the target found likely at the nodes of earlier trees. It is ready in every round of its session:
// where its tenant's table knows nothing, its tree is the root alone.
type recycling struct {
	instant
	deaf
	wanted    int              // successors that the round's ticket asks for
	hindsight tandem.Hindsight // on the latest tokens that were committed while it was asked
	own       *spec.Successors // of a session that shares none with its tenant's others
}

// newRecycling returns the source of an entry for it, nil for another entry.
func newRecycling(c common, _ <-chan struct{}) Source {
	if !c.entry.Recycling {
		return nil
	}
	d := &recycling{}
	d.instant = instant{common: c, draft: d.draw}
	d.hears = d
	return d
}

// Ready implements Source.
func (d *recycling) Ready() bool { return d.state == ready && !d.aside() }

// ask implements hearer.
func (d *recycling) ask(plain bool) (successors int) {
	if d.wanted = 0; d.Ready() && !plain {
		d.wanted = tandem.MostSuccessors
	}
	return d.wanted
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

// committed implements hearer. It compares what it would have guessed with the tokens, as hindsight and for the chances of its guesses.
func (d *recycling) committed(n int) {
	if d.wanted == 0 || n == 0 {
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

// verdict implements hearer. It keeps the successors of the tree's nodes, whose root is that many tokens before the text's end; only the
// root's if it is not known which tree was verified.
func (d *recycling) verdict(t tandem.Tree, committed int, v *tandem.Verdict) {
	n := d.wanted
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
