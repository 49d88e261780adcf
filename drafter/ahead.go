package drafter

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	aheadRows  = 1 << 4 // of a pass: few, so that a job does not wait for long
	aheadShare = 1 << 3 // one session's part of them: the results decide what is worth running next
)

// lookahead is what a session does between an answer and the next proposal: it prepares for the outcomes of
// verifying the tree that was sent, as LLMCad's speculative generation does for the likeliest one alone.
//
// An outcome is a next root, with a probability by the draft model (spec.Explored.Likely). Once it has been
// run the candidates after it are known, which saves the next tree its first pass; then the tree that the same
// proposal would have there is grown, pass by pass. Rows are run in the order of their worth: the
// probability of their outcome, divided by the number of rows that it takes to save one pass.
type lookahead struct {
	proposal tandem.Proposal // the last one answered
	trees    map[int32]*growth
	left     int // nodes that may still be run
	ran      int
	busy     time.Duration
}

// take notes a pass.
func (a *lookahead) take(nodes int, spent time.Duration) {
	a.left, a.ran, a.busy = a.left-nodes, a.ran+nodes, a.busy+spent
}

// goAhead lets a session that has answered p draft for the next round.
func (d *Drafter) goAhead(s *session, p tandem.Proposal) {
	s.ahead.proposal, s.ahead.trees = p, map[int32]*growth{}
	s.ahead.left = min(d.cfg.Ahead, d.cfg.TreeRows-s.seq.Nodes())
	d.sched.Spare(s)
}

// comeBack ends a session's drafting ahead when its next tree is wanted and the committed tokens are
// adopted. It returns the time that drafting ahead took.
func (d *Drafter) comeBack(s *session) time.Duration {
	d.sched.Rest(s)
	if s.ahead.ran > 0 {
		if s.explored.Len() > 0 {
			d.cfg.Counters.Add("ahead.hits", 1)
		} else {
			d.cfg.Counters.Add("ahead.misses", 1)
		}
	}
	busy := s.ahead.busy
	s.ahead = lookahead{}
	return busy
}

// Spare implements schedule.Session: rows ahead of a proposal, as long as they are worth a pass.
func (s *session) Spare(space schedule.Space) schedule.Part {
	p := schedule.Part{Part: engine.Part{Seq: s.seq, Want: engine.WantTail}, TopK: s.width()}
	if s.grower.renew(&p.Part, space.Rows) {
		return p
	}
	gain := s.d.prepare(s, &p.Part, min(space.Rows, aheadShare, s.ahead.left))
	if gain < s.d.cfg.AheadGain {
		return schedule.Part{}
	}
	s.grower.complete(&p.Part, space.Rows, false)
	return p
}

// prepare adds at most n rows to a part, the worthiest first. gain is how many passes they are expected to
// save.
func (d *Drafter) prepare(s *session, part *engine.Part, n int) (gain float64) {
	type work struct {
		worth float64
		row   spec.Row
		tree  *growth // or row
	}
	var list []work
	// the last position of a session is no root of a tree
	for _, r := range s.explored.Likely(n, s.capacity-len(s.Tokens)-1, worth.LeastChance) {
		list = append(list, work{worth: math.Exp(float64(r.LogProb)), row: r})
	}
	nodes, logProbs := s.explored.Outcomes(worth.LeastChance)
	for i, node := range nodes {
		if g, run := d.tree(s, node); run > 0 {
			list = append(list, work{worth: math.Exp(float64(logProbs[i])) / float64(run), tree: g})
		}
	}
	slices.SortStableFunc(list, func(a, b work) int { return cmp.Compare(b.worth, a.worth) })
	for _, w := range list {
		before := len(part.Nodes)
		if before >= n {
			break
		}
		if w.tree != nil {
			w.tree.missing(part, n)
		} else {
			part.Nodes, part.Parents = append(part.Nodes, w.row.Token), append(part.Parents, w.row.Parent)
		}
		gain += w.worth * float64(len(part.Nodes)-before)
	}
	return gain
}

// tree returns the tree that grows below an outcome, and how many rows must be run before it can go on; 0
// if it is done.
func (d *Drafter) tree(s *session, node int32) (g *growth, run int) {
	p := s.ahead.proposal
	if g = s.ahead.trees[node]; g == nil {
		p.Bounds.Depth = min(p.Bounds.Depth, s.capacity-len(s.Tokens)-s.explored.Depth(node))
		g = &growth{root: node, tree: spec.NewGrower(0, p), temper: p.Temper}
		s.ahead.trees[node] = g
	}
	for g.tree != nil {
		run, more := g.next(&s.explored, d.room(g))
		if more {
			run, more = s.judge(g, p.Plan, 0, run)
		}
		switch {
		case !more:
			g.tree = nil
		case run > 0:
			return g, run
		default:
			g.absorb(&s.explored, func(spec.Row, []spec.Candidate) {}) // learned once the tree is wanted
		}
	}
	return g, 0
}
