package drafter

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// grower grows a session's trees, each in passes of the draft model: it says which rows a pass has for the tree, gives the model what it
// reads beside tokens, and takes the results. There is one for each kind of draft model: tokens, states (target states, which the model
// reads with each token) and prompts (prompt tokens, by which one pass guesses several levels). All but open belongs to the schedule's
// goroutine.
type grower interface {
	// open ends the opening of the session by o: what the schedule has not computed of its text is in the cache when it returns. It runs
	// in the goroutine of Open's caller and may wait.
	open(ctx context.Context, o tandem.Opening) error
	// adopt makes the checked proposal's tokens the session's, and the cache agree with them.
	adopt(p tandem.Proposal) error
	// begin starts the tree of the session's new job.
	begin()
	// grow goes on with the tree as far as it can without a pass; done: the tree is complete. begun is when the job's unfinished work
	// began, for what drafting has cost so far.
	grow(begun time.Time) (t tandem.Tree, done bool)
	// nodes adds to a part at most n nodes of the tree that must be run.
	nodes(part *engine.Part, n int)
	// complete gives a part all that the model reads beside its tokens. tree: the part is for the tree, in a pass of at most so many rows.
	complete(part *engine.Part, rows int, tree bool)
	// take takes a part's results, as take has them.
	take(r result)
	// retain gives up all tree rows but those of the explored nodes in used, ascending.
	retain(used []int32)
	// goes reports whether the session, which has answered p, is to draft ahead of the verdict.
	goes(p tandem.Proposal) bool
	// renew gives a part, of at most so many rows, what must be computed before anything can be drafted ahead. wait: with this part, or
	// until Schedule.Spare is called again, nothing else is.
	renew(part *engine.Part, rows int) (wait bool)
	// closed is told that the session has ended.
	closed()
}

// result is what a pass has computed for a session.
type result struct {
	part  schedule.Part
	out   *engine.Output
	tail  int           // wanted row of the last token of Extend
	first int           // wanted row of the first of Nodes
	tree  bool          // the part was for the tree of the session's job
	cost  time.Duration // of a row, if it was run ahead of a proposal; else 0
}

// newGrower returns the grower of a session that is opened, whose sequence begins with found rows.
func (s *session) newGrower(found int) grower {
	t := tokenGrower{session: s}
	if width, own := s.d.cfg.Model.StateWidth(); width > 0 {
		states := newStateGrower(t, found, width, own)
		if block := s.d.cfg.Model.Block(); block.Rows > 0 {
			return &blockGrower{stateGrower: states, block: block}
		}
		return states
	}
	s.goal = len(s.Tokens) - 1
	if s.d.way.Levels > 0 {
		return &promptGrower{tokenGrower: t}
	}
	return &t
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
const leastWidth = 1 << 3

// growth is a tree that grows from the explored nodes.
type growth struct {
	root    int32 // explored node
	tree    spec.Grower
	pending []spec.Row // the grower's, not absorbed yet
	at      []int32    // the explored node of each pending row, -1 if it must be run
	rows    []int32    // the explored node of each of the grower's rows
	judged  bool       // a plan has decided which of the pending rows are run
	temper  float64    // Proposal.Temper
}

// next looks for the grower's pending rows among the explored nodes, after asking it for some, at most room, if there
// are none, and returns how many must be run; false if the tree is done.
func (g *growth) next(e *spec.Explored, room int) (run int, more bool) {
	if len(g.pending) == 0 {
		g.pending, g.at, g.judged = g.tree.Pending(room), g.at[:0], false
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
func (g *growth) absorb(e *spec.Explored, learn func(r spec.Row, list []spec.Candidate)) {
	lists := make([][]spec.Candidate, len(g.at))
	for i, node := range g.at {
		lists[i] = spec.Temper(e.Candidates(node), g.temper)
		learn(g.pending[i], lists[i])
	}
	g.tree.Absorb(lists)
	g.pending = nil
}

// shorten leaves the first n pending rows.
func (g *growth) shorten(n int) {
	if n < len(g.pending) {
		g.tree.Shorten(n)
		g.rows = g.rows[:len(g.rows)-len(g.pending)+n]
		g.pending, g.at = g.pending[:n], g.at[:n]
	}
}

// room returns how many more rows a tree may have run, in all and so also in a pass. Rows of other trees do not count.
func (d *Drafter) room(g *growth) int {
	return min(d.cfg.TreeRows-len(g.rows), d.cfg.Model.MaxRows(), d.cfg.Model.MaxWanted())
}

// judge lets a plan decide, after so much drafting, which of the pending rows go on, and returns how many of them must be run. Those that
// are explored already cost nothing, so they go first, alone. more is false if no pass is worth its time.
func (s *session) judge(g *growth, plan tandem.Plan, drafted time.Duration, run int) (left int, more bool) {
	if len(plan.Verify) == 0 || g.judged || run == 0 || g.pending[0].Depth == 0 {
		return run, true
	}
	if known := slices.IndexFunc(g.at, func(node int32) bool { return node < 0 }); known > 0 {
		g.shorten(known)
		return 0, true
	}
	cost, rows := make([]time.Duration, len(g.at)+1), 0
	for i, node := range g.at {
		if node < 0 {
			rows++
		}
		cost[i+1] = s.d.sched.Pace(rows)
	}
	n := s.children.Rows(g.tree.Draft(), plan, drafted, func(rows int) time.Duration { return cost[rows] }, len(g.pending))
	if n == 0 {
		return 0, false
	}
	g.shorten(n)
	g.judged, run = true, 0
	for _, node := range g.at {
		if node < 0 {
			run++
		}
	}
	return run, true
}

// learned returns what absorb is to do with candidates in a tree for a proposal.
func (s *session) learned(p tandem.Proposal) func(spec.Row, []spec.Candidate) {
	return func(r spec.Row, list []spec.Candidate) { s.children.Learn(r, list, p.Plan.Accept) }
}
