package drafter

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec"
)

// maxVerify is the most entries of a Plan's costs that are accepted.
const maxVerify = 4096

// checkProposal refuses a proposal whose bounds, thresholds or plan make no sense.
func checkProposal(p tandem.Proposal) error {
	const op = "propose"
	chance := func(v float64) bool { return v >= 0 && v <= 1 } // not NaN
	switch plan := p.Plan; {
	case p.Bounds.Nodes < 0 || p.Bounds.Depth < 0 || p.Bounds.Width < 0:
		return tandem.Errorf(op, tandem.Invalid, "tree of %d nodes, depth %d, width %d: want 0 or more", p.Bounds.Nodes, p.Bounds.Depth,
			p.Bounds.Width)
	case p.Growth > tandem.GrowPacer:
		return tandem.Errorf(op, tandem.Invalid, "growth %d: want 0 to %d", p.Growth, tandem.GrowPacer)
	case !chance(p.Branch):
		return tandem.Errorf(op, tandem.Invalid, "branch threshold %v: want 0 to 1", p.Branch)
	case !chance(p.Stop):
		return tandem.Errorf(op, tandem.Invalid, "stop threshold %v: want 0 to 1", p.Stop)
	case !chance(p.Temper):
		return tandem.Errorf(op, tandem.Invalid, "temperature %v of the draft: want more than 0 and at most 1, or 0 for 1", p.Temper)
	case len(plan.Verify) > maxVerify:
		return tandem.Errorf(op, tandem.Invalid, "plan with costs of %d widths: at most %d allowed", len(plan.Verify), maxVerify)
	case plan.Round < 0:
		return tandem.Errorf(op, tandem.Invalid, "plan with %v for the rest of a round: want 0 or more", plan.Round)
	case !(plan.Others >= 0 && plan.Others <= math.MaxInt32):
		return tandem.Errorf(op, tandem.Invalid, "plan with %v tokens of other sessions: want 0 or more", plan.Others)
	case len(plan.Accept) > 0 && len(plan.Accept) != tandem.AcceptBins():
		return tandem.Errorf(op, tandem.Invalid, "plan with %d bins of acceptance: want %d or none", len(plan.Accept), tandem.AcceptBins())
	}
	for i, v := range p.Plan.Verify {
		if v < 0 {
			return tandem.Errorf(op, tandem.Invalid, "plan in which %d rows take %v: want 0 or more", i+1, v)
		}
	}
	for i, v := range p.Plan.Accept {
		if !chance(float64(v)) {
			return tandem.Errorf(op, tandem.Invalid, "plan with an acceptance of %v in bin %d: want 0 to 1", v, i)
		}
	}
	return nil
}

// width returns how many candidates of each node the session wants from its passes: a few more than
// its trees may be wide, because the target often draws the next best one instead of a draft.
func (s *session) width() int {
	if n := s.explored.Width(); n > 0 {
		return n
	}
	return min(max(s.job.proposal.Bounds.Width, leastWidth), maxWidth)
}

// leastWidth is how many candidates of a node are held at least.
const leastWidth = 8

// growth is a tree that grows from the explored nodes.
type growth struct {
	root    int32 // explored node
	grower  spec.Grower
	pending []spec.Row // the grower's, not absorbed yet
	at      []int32    // the explored node of each pending row, -1 if it must be run
	rows    []int32    // the explored node of each of the grower's rows
	wanted  bool       // the plan wants the pending rows; judged once
	temper  float64    // Proposal.Temper
}

// next looks for the grower's pending rows among the explored nodes, after asking it for some, at most room, if there
// are none, and returns how many must be run; false if the tree is done.
func (g *growth) next(e *spec.Explored, room int) (run int, more bool) {
	if len(g.pending) == 0 {
		g.pending, g.at, g.wanted = g.grower.Pending(room), g.at[:0], false
		for _, r := range g.pending {
			g.at = append(g.at, -1)
			if r.Depth > 0 {
				g.rows = append(g.rows, -1)
			}
		}
	}
	for i, r := range g.pending {
		switch {
		case g.at[i] >= 0:
		case r.Depth > 0:
			g.at[i] = e.Child(g.parent(r), r.Token)
			g.rows[len(g.rows)-len(g.pending)+i] = g.at[i]
		case e.Len() > 0:
			g.at[i] = g.root
		}
		if g.at[i] < 0 {
			run++
		}
	}
	return run, len(g.pending) > 0
}

// parent returns the explored node of a row's parent.
func (g *growth) parent(r spec.Row) int32 {
	if r.Parent < 0 {
		return g.root
	}
	return g.rows[r.Parent]
}

// missing adds the pending rows that must be run, but the root and not more than n in all, to a part.
func (g *growth) missing(part *engine.Part, n int) {
	for i, r := range g.pending {
		if r.Depth > 0 && g.at[i] < 0 && len(part.Nodes) < n {
			part.Nodes, part.Parents = append(part.Nodes, r.Token), append(part.Parents, g.parent(r)-1)
		}
	}
}

// absorb gives the grower the candidates after its pending rows, all of which are explored.
func (g *growth) absorb(e *spec.Explored) {
	lists := make([][]spec.Candidate, len(g.at))
	for i, node := range g.at {
		lists[i] = spec.Temper(e.Candidates(node), g.temper)
	}
	g.grower.Absorb(lists)
	g.pending = nil
}

// room returns how many more rows a tree may have run, in all and so also in a pass. Rows of other trees do not count.
func (d *Drafter) room(g *growth) int {
	return min(d.cfg.TreeRows-len(g.rows), d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())
}

// advance answers the grower's rows from the explored nodes until some must be run, or the tree and with it
// the job is finished. The time since begun counts as the job's.
func (d *Drafter) advance(s *session, begun time.Time) {
	j := s.job
	for d.way.Levels == 0 {
		run, more := j.next(&s.explored, d.room(&j.growth))
		first := run > 0 && j.at[0] < 0 && len(j.rows) == 0 // the root
		if !more || run > 0 && !first && !d.worth(&j.growth, j.proposal.Plan, j.busy+time.Since(begun)) {
			break
		}
		if run > 0 {
			if s.seq.Nodes()+run > d.cfg.TreeRows {
				s.compact()
			}
			j.busy += time.Since(begun)
			return
		}
		useful := time.Duration(0)
		for _, node := range j.at {
			useful += s.explored.Use(node)
		}
		if useful > 0 {
			d.cfg.Counters.Add("ahead.useful_ns", int64(useful))
		}
		j.absorb(&s.explored)
	}
	if d.way.Levels > 0 {
		if d.sketch(s, begun) {
			j.busy += time.Since(begun)
			return
		}
		j.tree = j.sketched.Tree
	} else {
		j.tree = j.grower.Draft().Tree
	}
	j.hindsight = s.recall.Of(len(s.tokens))
	j.busy += time.Since(begun)
	if plan := j.proposal.Plan; len(plan.Verify) > 0 {
		j.tree, _ = spec.Cut(j.tree, plan, j.busy)
	}
	if s.explored.Len() > 0 {
		j.reused = s.explored.Sent(j.tree, j.known)
	}
	d.sched.End(s, nil)
	// Below a verdict a draft with states has the target's states: what it drafted ahead would be given up.
	if p := j.proposal; p.Ahead && !p.Bounds.Plain() && s.fed == nil {
		d.goAhead(s, p)
	}
}

// worth reports whether a plan wants a pass for a tree's pending rows after so much drafting.
func (d *Drafter) worth(g *growth, plan tandem.Plan, drafted time.Duration) bool {
	if g.wanted || len(plan.Verify) == 0 {
		return true
	}
	leaves := make([]float32, len(g.pending))
	for i, r := range g.pending {
		leaves[i] = r.LogProb
	}
	g.wanted = spec.Worth(g.grower.Draft().Tree, plan, drafted, d.sched.Pace(), leaves)
	return g.wanted
}

// compact gives up the tree rows that the growing tree does not use.
func (s *session) compact() {
	used := slices.DeleteFunc(slices.Clone(s.job.rows), func(n int32) bool { return n < 0 })
	slices.Sort(used)
	s.retain(used)
}

// retain gives up all tree rows but those of the explored nodes in used, ascending.
func (s *session) retain(used []int32) {
	j := s.job
	place := make(map[int32]int32, len(used))
	known := 1
	for i, n := range used {
		place[n] = int32(i + 1)
		if int(n) < j.known {
			known++
		}
	}
	s.explored.Retain(used)
	s.fed.retain(used)
	if err := s.seq.Reroot(nil, rowsOf(used)); err != nil {
		panic(err)
	}
	for _, list := range [][]int32{j.rows, j.at} {
		for i, n := range list {
			if n > 0 {
				list[i] = place[n]
			}
		}
	}
	j.known = min(j.known, known)
}
