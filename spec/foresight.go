package spec

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

const (
	trustClasses = 1 << 2            // of paths, by the sum of the ranks above: 0, 1, 2 to 3, 4 and more
	trustBins    = 1 << 4            // of the guess's own log-probability, half a nat wide
	trustMemory  = worth.Memory << 2 // guesses of a cell that are remembered, about
)

// Trust learns what guesses of a model's prompt tokens (PPD) are worth: the probability that the model itself gives to a guess once it has
// seen the tokens between. It counts by the guess's level, its own probability, and how likely the path to it was. So guesses can be
// compared with the model's own candidates. The next pass over the path shows what they were worth; no text is needed. The zero value
// believes the guesses. Not safe for concurrent use.
type Trust struct {
	cells [tandem.MostLevels][trustClasses][trustBins]trustCell
}

type trustCell struct{ seen, real float64 }

// Drew is Learn where the model's own candidates are not known, but the text is: token stands where the guesses of a level were, and counts
// as certain. above is the sum of the ranks of the tokens between, each among its parent's candidates.
func (t *Trust) Drew(level, above int, guesses []Candidate, token tandem.Token) {
	t.learn(level, above, guesses, []Candidate{{Token: token}})
}

// Shift returns a copy of list, with by[i] added to the logit of candidate i, sorted likeliest first. Together the candidates stay as
// likely as they were.
func Shift(list []Candidate, by []float32) []Candidate {
	out := slices.Clone(list)
	was, is := 0.0, 0.0
	for i := range out {
		was += chance(out[i].LogProb)
		out[i].LogProb += by[i]
	}
	top := math.Inf(-1)
	for _, c := range out {
		top = max(top, float64(c.LogProb))
	}
	for _, c := range out {
		is += math.Exp(float64(c.LogProb) - top)
	}
	norm := float32(top + math.Log(is) - math.Log(min(was, 1)))
	for i := range out {
		out[i].LogProb = min(out[i].LogProb-norm, 0)
	}
	slices.SortStableFunc(out, func(a, b Candidate) int { return cmp.Compare(b.LogProb, a.LogProb) })
	return out
}

// at returns the cell of a guess. above is the sum of the ranks of the tokens between, each among its parent's candidates.
func (t *Trust) at(level, above int, logProb float32) *trustCell {
	bin := int(min(max(-2*float64(logProb), 0), trustBins-1)) // NaN is not greater than 0
	return &t.cells[min(level, tandem.MostLevels-1)][min(bits.Len(uint(above)), trustClasses-1)][bin]
}

// learn compares the guesses of a level with the candidates that the model itself then had there.
func (t *Trust) learn(level, above int, guesses, own []Candidate) {
	for _, g := range guesses {
		p := 0.0
		if i := slices.IndexFunc(own, func(c Candidate) bool { return c.Token == g.Token }); i >= 0 {
			p = chance(own[i].LogProb)
		}
		c := t.at(level, above, g.LogProb)
		c.seen, c.real = c.seen*(1-1./trustMemory)+1, c.real*(1-1./trustMemory)+p
	}
}

// candidates returns the guesses of a level with the chances that they have lately had, likeliest first.
func (t *Trust) candidates(level, above int, guesses []Candidate) []Candidate {
	out, sum := make([]Candidate, 0, len(guesses)), 0.0
	for _, g := range guesses {
		if !(g.LogProb > float32(math.Inf(-1))) {
			continue
		}
		c := t.at(level, above, g.LogProb)
		p := (c.real + worth.Prior*chance(g.LogProb)) / (c.seen + worth.Prior)
		out, sum = append(out, Candidate{g.Token, float32(p)}), sum+p
	}
	for i := range out {
		out[i].LogProb = min(logOf(float64(out[i].LogProb)/max(sum/worth.MostCertain, 1)), 0)
	}
	slices.SortStableFunc(out, func(a, b Candidate) int { return cmp.Compare(b.LogProb, a.LogProb) })
	return out
}

// Lengths returns PPD's f(T_i) of the likeliest path, for i from 0 to levels: the expected tokens of a pass with i levels of guesses, the
// target's own included. Each level adds the product of the mean chances of the best guesses down to it.
func (t *Trust) Lengths(levels int) []float64 {
	out, reach := []float64{1}, 1.0
	for k := range levels {
		sum := trustCell{worth.Prior, worth.Prior / 2.}
		for _, c := range t.cells[min(k, tandem.MostLevels-1)][0] {
			sum.seen, sum.real = sum.seen+c.seen, sum.real+c.real
		}
		reach *= sum.real / sum.seen
		out = append(out, out[k]+reach)
	}
	return out
}

// Sketch is the tree as it would be if growth ended now. Below explored nodes it has their candidates. Below others it has what prompt
// tokens behind the explored nodes above them have foretold. Exploring its open nodes makes a better tree.
type Sketch struct {
	Tree tandem.Tree
	Root bool    // the root must be run before anything can grow; then there is nothing else
	Used []int32 // explored nodes, except the root, whose candidates took part; ascending
	Open []Row   // nodes to explore, likeliest first; Parent is an explored node, or -1-i for entry i of Open before it

	bounds tandem.Bounds
	bare   bool  // nothing is foretold below some of Open
	below  []int // of Tree's nodes: the entry of Open that is the parent, -1 if the parent is explored
}

// spot is a row of a grower.
type spot struct {
	node   int32 // explored; -1: not
	open   int   // entry of Open; -1: none
	anchor int32 // the nearest explored node that has foretold something: itself or above; -1: none
	below  int   // how many steps below that
	above  int   // the sum of the ranks in these steps
	list   []Candidate
}

// NewSketch grows a tree for p below e's root, whose token is root. It only reads e and t.
func NewSketch(e *Explored, root tandem.Token, p tandem.Proposal, t *Trust) *Sketch {
	g, s := NewGrower(root, p), &Sketch{bounds: p.Bounds}
	var rows []spot // by row number
	top := spot{node: -1, open: -1, anchor: -1}
	for pending := g.Pending(math.MaxInt); len(pending) > 0; pending = g.Pending(math.MaxInt) {
		lists := make([][]Candidate, len(pending))
		for i, r := range pending {
			switch {
			case r.Depth > 0:
				parent := &top
				if r.Parent >= 0 {
					parent = &rows[r.Parent]
				}
				x := s.visit(e, t, parent, r)
				lists[i], rows = Temper(x.list, p.Temper), append(rows, x)
			case e.Len() == 0:
				s.Root = true
			default:
				top.node, top.list = 0, e.Candidates(0)
				if e.Foretold(0) != nil {
					top.anchor = 0
				}
				lists[i] = Temper(top.list, p.Temper)
			}
		}
		g.Absorb(lists)
	}
	d := g.Draft()
	s.Tree, s.below = d.Tree, make([]int, d.Tree.Len())
	for i, parent := range d.Tree.Parents {
		s.below[i] = -1
		if i > 0 && parent > 0 {
			s.below[i] = rows[d.Rows[parent]].open
		}
	}
	s.sort()
	slices.Sort(s.Used)
	return s
}

// visit finds a row among the explored nodes, or what is foretold of its successors.
func (s *Sketch) visit(e *Explored, t *Trust, parent *spot, r Row) spot {
	x := spot{node: -1, open: -1, anchor: parent.anchor, below: parent.below + 1}
	x.above = parent.above + max(slices.IndexFunc(parent.list, func(c Candidate) bool { return c.Token == r.Token }), 0)
	if parent.node >= 0 {
		x.node = e.Child(parent.node, r.Token)
	}
	if x.node >= 0 {
		s.Used, x.list = append(s.Used, x.node), e.Candidates(x.node)
		if e.Foretold(x.node) != nil {
			x.anchor, x.below, x.above = x.node, 0, 0
		}
		return x
	}
	x.open = len(s.Open)
	if r.Parent = parent.node; parent.node < 0 {
		r.Parent = int32(-1 - parent.open)
	}
	s.Open = append(s.Open, r)
	if levels := e.Foretold(x.anchor); x.below <= len(levels) {
		x.list = t.candidates(x.below-1, x.above, e.Foretells(x.anchor, x.below-1, r.Token))
	}
	s.bare = s.bare || len(x.list) == 0
	return x
}

// sort brings Open into its order; a node is never likelier than its parent.
func (s *Sketch) sort() {
	order, place, old := make([]int, len(s.Open)), make([]int, len(s.Open)), s.Open
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(old[b].LogProb, old[a].LogProb) })
	s.Open = make([]Row, 0, len(old))
	for to, from := range order {
		place[from] = to
		r := old[from]
		if r.Parent < 0 {
			r.Parent = int32(-1 - place[-1-r.Parent])
		}
		s.Open = append(s.Open, r)
	}
	for i, b := range s.below {
		if b >= 0 {
			s.below[i] = place[b]
		}
	}
}

// slack is how much less likely than the tree's last node an open node's best child may be expected to be: the expectation is a mean.
const slack = 1. / 2

// Worth returns how many of the first n open nodes a pass, of duration step, should explore to make a better tree; 0 if it is not worth
// its time. It judges as Children.Rows does: what was foretold below these nodes gives way to children of their own, as c expects them.
// Nodes whose best child would not be in the tree are left out. Without a plan the pass must raise the tree's expected tokens by
// worthwhile, or find nodes for a tree that has too few.
func (s *Sketch) Worth(c *Children, p tandem.Plan, drafted, step time.Duration, n int) int {
	if n == 0 {
		return 0
	}
	var now, then []float64
	for i, chance := range newChances(p.Accept).along(s.Tree)[1:] {
		now = append(now, chance)
		if below := s.below[i+1]; below < 0 || below >= n {
			then = append(then, chance)
		}
	}
	for _, r := range s.Open[:n] {
		for _, share := range c.expect(r.Own) {
			then = append(then, r.Chance*share)
		}
	}
	nodes := max(s.bounds.Nodes-1, 0)
	now, then = likeliest(now, nodes), likeliest(then, nodes)
	size := len(then) // of the better tree
	if len(p.Verify) > 0 {
		_, before := best(now, p, drafted)
		w, after := best(then, p, drafted+step)
		if after <= before {
			return 0
		}
		size = w - 1
	} else if 1+total(then) <= (1+worth.LeastChance)*(1+total(now)) && (!s.bare || s.Tree.Len() >= s.bounds.Nodes) {
		return 0
	} else if len(then) < nodes {
		return n
	}
	useful := 1
	for size > 0 && useful < n && s.brings(c, useful) >= then[size-1]*slack {
		useful++
	}
	return useful
}

// brings returns the chance that the best child of an open node is expected to have.
func (s *Sketch) brings(c *Children, open int) float64 {
	return s.Open[open].Chance * c.expect(s.Open[open].Own)[0]
}

// likeliest returns the best n chances, best first; it sorts list.
func likeliest(list []float64, n int) []float64 {
	slices.SortFunc(list, func(a, b float64) int { return cmp.Compare(b, a) })
	return list[:min(n, len(list))]
}

func total(list []float64) (sum float64) {
	for _, v := range list {
		sum += v
	}
	return sum
}

// Learn compares an explored node's candidates with what the nearest node above it that has foretold anything said in their place. Call it
// once for each node, when the node has been explored.
func (t *Trust) Learn(e *Explored, node int32) {
	above, at := 0, node
	for below := 1; at > 0; below++ {
		above += e.nodes[at].at
		at = e.nodes[at].parent
		if levels := e.Foretold(at); levels != nil {
			if below <= len(levels) {
				t.learn(below-1, above, e.Foretells(at, below-1, e.nodes[node].token), e.Candidates(node))
			}
			return
		}
	}
}
