package drafter

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec"
)

const (
	aheadRows   = 16    // of a pass: so few that a job is not kept waiting for long
	aheadShare  = 8     // of them, one session's: what comes back decides what is worth running next
	aheadChance = 0.005 // what is less likely than this to come is not prepared for
)

// ahead is what a session does between an answer and the next proposal: it prepares for the outcomes of
// verifying the tree that was sent, as LLMCad's speculative generation does for the likeliest one alone.
//
// An outcome is a next root, and has a chance by the draft model (spec.Explored.Likely). Once it has been
// run the candidates after it are known, which spares the next tree its first pass; then the tree that the same
// proposal would have there is grown, pass by pass. Rows are run in the order of what they are worth: the
// chance of their outcome, divided by how many of them it takes to spare one pass.
type ahead struct {
	proposal tandem.Proposal // that was answered
	trees    map[int32]*growth
	left     int // nodes that may still be run
	ran      int
	busy     time.Duration
}

// take notes a pass.
func (a *ahead) take(nodes int, spent time.Duration) {
	a.left, a.ran, a.busy = a.left-nodes, a.ran+nodes, a.busy+spent
}

// goAhead lets a session that has answered p draft for what may come next.
func (d *Drafter) goAhead(s *session, p tandem.Proposal) {
	s.ahead.proposal, s.ahead.trees = p, map[int32]*growth{}
	s.ahead.left = min(d.cfg.Ahead, d.cfg.TreeRows-s.seq.Nodes())
	d.ahead = append(d.ahead, s)
}

// rest ends a session's drafting ahead.
func (d *Drafter) rest(s *session) {
	d.ahead = slices.DeleteFunc(d.ahead, func(x *session) bool { return x == s })
	s.ahead.trees = nil
}

// comeBack ends a session's drafting ahead because its next tree is wanted and what was committed
// adopted. It returns the time that drafting ahead took.
func (d *Drafter) comeBack(s *session) time.Duration {
	d.rest(s)
	if s.ahead.ran > 0 {
		if s.explored.Len() > 0 {
			d.cfg.Counters.Add("ahead.hits", 1)
		} else {
			d.cfg.Counters.Add("ahead.misses", 1)
		}
	}
	busy := s.ahead.busy
	s.ahead = ahead{}
	return busy
}

// goOn runs one pass for sessions that draft ahead; false if there are none.
func (d *Drafter) goOn() bool {
	begun := time.Now()
	rows := min(aheadRows, d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())
	var waiting, ran []*session
	for i, s := range d.ahead {
		if rows == 0 {
			waiting = append(waiting, d.ahead[i:]...)
			break
		}
		sh := share{s: s, seg: engine.Part{Seq: s.seq, Want: engine.WantTail}, ahead: true}
		gain := d.prepare(s, &sh.seg, min(rows, aheadShare, s.ahead.left))
		if n := len(sh.seg.Nodes); n > 0 && gain >= d.cfg.AheadGain {
			rows -= n
			d.inPass, ran = append(d.inPass, sh), append(ran, s)
		}
	}
	d.ahead = append(waiting, ran...)
	if len(d.inPass) == 0 {
		return false
	}
	d.run(d.inPass, begun)
	d.inPass = d.inPass[:0]
	return true
}

// prepare adds at most n rows to a segment, the worthiest first. gain is how many passes they are expected to
// spare.
func (d *Drafter) prepare(s *session, seg *engine.Part, n int) (gain float64) {
	type work struct {
		worth float64
		row   spec.Row
		tree  *growth // or row
	}
	var list []work
	// the last position of a session is no root of a tree
	for _, r := range s.explored.Likely(n, s.capacity-len(s.tokens)-1, aheadChance) {
		list = append(list, work{worth: math.Exp(float64(r.LogProb)), row: r})
	}
	nodes, logProbs := s.explored.Outcomes(aheadChance)
	for i, node := range nodes {
		if g, run := d.tree(s, node); run > 0 {
			list = append(list, work{worth: math.Exp(float64(logProbs[i])) / float64(run), tree: g})
		}
	}
	slices.SortStableFunc(list, func(a, b work) int { return cmp.Compare(b.worth, a.worth) })
	for _, w := range list {
		before := len(seg.Nodes)
		if before >= n {
			break
		}
		if w.tree != nil {
			w.tree.missing(seg, n)
		} else {
			seg.Nodes, seg.Parents = append(seg.Nodes, w.row.Token), append(seg.Parents, w.row.Parent)
		}
		gain += w.worth * float64(len(seg.Nodes)-before)
	}
	return gain
}

// tree returns the tree that grows below an outcome, and how many rows must be run before it can go on; 0
// if it is done.
func (d *Drafter) tree(s *session, node int32) (g *growth, run int) {
	p := s.ahead.proposal
	if g = s.ahead.trees[node]; g == nil {
		p.Bounds.Depth = min(p.Bounds.Depth, s.capacity-len(s.tokens)-s.explored.Depth(node))
		g = &growth{root: node, grower: spec.NewGrower(0, p), temper: p.Temper}
		s.ahead.trees[node] = g
	}
	for g.grower != nil {
		run, more := g.next(&s.explored, d.room(g))
		switch {
		case !more || run > 0 && !d.worth(g, p.Plan, 0):
			g.grower = nil
		case run > 0:
			return g, run
		default:
			g.absorb(&s.explored)
		}
	}
	return g, 0
}
