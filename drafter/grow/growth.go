package grow

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec"
)

// Limits bound how far a session's trees grow.
type Limits struct {
	TreeRows int                          // tree rows in the cache, at most
	PassRows int                          // tree rows in a pass, at most
	Pace     func(rows int) time.Duration // how long a pass of so many rows takes
	Children *spec.Children               // what a further pass is expected to bring
}

// Growth is a tree that grows from what a session has explored. Its user repeats three steps: Next says how many rows of the tree must be
// run; Missing adds them to a pass, whose results become explored nodes; when Next says that none is left, Absorb goes on below them.
type Growth struct {
	explored *spec.Explored
	limits   *Limits
	bounds   tandem.Bounds
	stops    bool // below some probability, which only a pass finds
	plan     tandem.Plan
	temper   float64 // Proposal.Temper
	root     int32   // explored node
	tree     spec.Grower
	pending  []spec.Row // the grower's, not absorbed yet
	at       []int32    // the explored node of each pending row, -1 if it must be run
	rows     []int32    // the explored node of each of the grower's rows
	judged   bool       // a plan has decided which of the pending rows are run
}

// NewGrowth returns the tree for p below an explored node, root, whose token is given. It keeps e and l, which must outlive it.
func NewGrowth(e *spec.Explored, l *Limits, root int32, token tandem.Token, p tandem.Proposal) *Growth {
	return &Growth{explored: e, limits: l, bounds: p.Bounds, stops: p.Stop > 0, plan: p.Plan, temper: p.Temper,
		root: root, tree: spec.NewGrower(token, p)}
}

// Tree returns what has grown. It is valid until the next call of another method.
func (g *Growth) Tree() tandem.Tree { return g.tree.Draft().Tree }

// Next returns how many rows must be run before the tree can go on; after 0 comes Absorb. more is false if the tree is complete, because of
// its bounds or because a further pass would bring less than it takes. drafted is the time that drafting has taken so far.
func (g *Growth) Next(drafted time.Duration) (run int, more bool) {
	if run, more = g.next(); !more {
		return 0, false
	}
	return g.judge(drafted, run)
}

// next looks for the grower's pending rows among the explored nodes, after asking it for some if there are none.
func (g *Growth) next() (run int, more bool) {
	if len(g.pending) == 0 {
		g.pending, g.at, g.judged = g.tree.Pending(min(g.limits.TreeRows-len(g.rows), g.limits.PassRows)), g.at[:0], false
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
			g.at[i] = g.explored.Child(g.parent(r), r.Token)
			g.rows[len(g.rows)-len(g.pending)+i] = g.at[i]
		case g.explored.Len() > 0:
			g.at[i] = g.root
		}
	}
	return g.unexplored(), len(g.pending) > 0
}

// unexplored returns how many of the pending rows must be run.
func (g *Growth) unexplored() (n int) {
	for _, node := range g.at {
		if node < 0 {
			n++
		}
	}
	return n
}

// parent returns the explored node of a row's parent.
func (g *Growth) parent(r spec.Row) int32 {
	if r.Parent < 0 {
		return g.root
	}
	return g.rows[r.Parent]
}

// judge lets the plan decide, after so much drafting, which of the pending rows go on, and returns how many of them must be run. Those that
// are explored already cost nothing, so they go first, alone.
func (g *Growth) judge(drafted time.Duration, run int) (left int, more bool) {
	if len(g.plan.Verify) == 0 || g.judged || run == 0 || g.pending[0].Depth == 0 {
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
		cost[i+1] = g.limits.Pace(rows)
	}
	pass := func(rows int) time.Duration { return cost[rows] }
	n := g.limits.Children.Rows(g.tree.Draft(), g.plan, drafted, pass, len(g.pending))
	if n == 0 {
		return 0, false
	}
	g.shorten(n)
	g.judged = true
	return g.unexplored(), true
}

// shorten leaves the first n pending rows.
func (g *Growth) shorten(n int) {
	if n < len(g.pending) {
		g.tree.Shorten(n)
		g.rows = g.rows[:len(g.rows)-len(g.pending)+n]
		g.pending, g.at = g.pending[:n], g.at[:n]
	}
}

// Chain returns how many further rows the tree wants, each the best guess behind the row before, before that row has been run: all that are
// left of a tree that is one chain or, with a plan, as many as it expects to be worth their time. drafted is as for Next, which says that
// one row must be run, or the root.
func (g *Growth) Chain(drafted time.Duration) int {
	if g.bounds.Width != 1 || g.stops || len(g.pending) != 1 {
		return 0
	}
	r := g.pending[0]
	left := min(g.bounds.Depth-1, g.bounds.Nodes-2, g.limits.TreeRows-1) - r.Depth
	return g.limits.Children.Chain(r, g.plan, drafted, g.limits.Pace(1), left)
}

// Missing adds to a part the rows that must be run, without the root, until the part has n nodes.
func (g *Growth) Missing(part *engine.Part, n int) {
	for i, r := range g.pending {
		if r.Depth > 0 && g.at[i] < 0 && len(part.Nodes) < n {
			part.Nodes, part.Parents = append(part.Nodes, r.Token), append(part.Parents, g.parent(r)-1)
		}
	}
}

// Absorb goes on below the rows of Next, all of which are explored now. learn: Limits.Children learns from what was found there.
func (g *Growth) Absorb(learn bool) {
	lists := make([][]spec.Candidate, len(g.at))
	for i, node := range g.at {
		lists[i] = spec.Temper(g.explored.Candidates(node), g.temper)
		if learn {
			g.limits.Children.Learn(g.pending[i], lists[i], g.plan.Accept)
		}
	}
	g.tree.Absorb(lists)
	g.pending = nil
}

// Pending returns the explored nodes of the rows of Next, -1 for one that must be run. The slice is the growth's, and valid until Absorb.
func (g *Growth) Pending() []int32 { return g.at }

// Used returns the explored nodes of the tree's rows, ascending.
func (g *Growth) Used() []int32 {
	used := slices.DeleteFunc(slices.Clone(g.rows), func(n int32) bool { return n < 0 })
	slices.Sort(used)
	return used
}

// Renumber gives the growth's nodes the numbers that they have after Session.Retain, whose result is index.
func (g *Growth) Renumber(index map[int32]int32) {
	for _, list := range [][]int32{g.rows, g.at} {
		for i, n := range list {
			if n > 0 {
				list[i] = index[n]
			}
		}
	}
}
