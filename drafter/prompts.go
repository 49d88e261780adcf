package drafter

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/shape"
)

// promptGrower is the grower of a draft model with prompt tokens (PPD) of its own, which needs fewer passes for a tree:
//
//  1. A pass has prompt rows behind the nodes where the tree is likely to go on. Their logits guess the candidates of the levels below.
//  2. The tree grows through these guesses as through candidates (spec.Sketch).
//  3. The next pass runs the likeliest nodes of the tree, several levels at once, with prompt rows behind them. A node counts as explored
//     only if the draft model has it among the candidates of its parent. Other rows, and all prompt rows, leave the cache after the pass.
//
// So explored nodes, and what ahead.go makes of them, are the same as without prompt tokens. The tree may have nodes that were never run.
// Their probability is how often such guesses were right (spec.Trust). The target verifies them like any others.
type promptGrower struct {
	tokenGrower
	sketched *spec.Sketch // the job's tree so far
	explore  int          // of sketched's open nodes that the next pass is to explore
	behind   []prompted   // rows of the pass that is running
}

const (
	promptRows  = 1 << 3 // nodes that a pass explores at most,
	promptSpots = 1      // and how many of them could get all prompt rows, if the others got none
)

// promptsOf returns the self-draft of a model that was opened with prompt tokens.
func promptsOf(m *engine.Model) tandem.SelfDraft {
	all := m.SelfDrafts()
	if i := slices.IndexFunc(all, func(w tandem.SelfDraft) bool { return w.Name == tandem.PPD }); i >= 0 {
		return all[i]
	}
	return tandem.SelfDraft{}
}

// trusted returns what prompt tokens have been worth to sessions like s.
func (d *Drafter) trusted(s *session) *spec.Trust {
	if s.sampling.Temperature > 0 {
		return &d.trust[1]
	}
	return &d.trust[0]
}

// begin implements grower.
func (s *promptGrower) begin() { s.sketched, s.explore = nil, 0 }

// grow implements grower. It sketches the tree anew from all that is explored and foretold.
func (s *promptGrower) grow(begun time.Time) (tandem.Tree, bool) {
	d, j := s.d, s.job
	draw := func() {
		s.sketched = spec.NewSketch(&s.explored, s.Tokens[j.proposal.Base-1], j.proposal, d.trusted(s.session))
	}
	draw()
	if s.sketched.Root {
		return tandem.Tree{}, false
	}
	n := min(len(s.sketched.Open), promptRows)
	if over := s.seq.Nodes() + n + d.way.Levels*d.way.Members - d.cfg.TreeRows; over > 0 {
		s.retain(s.sketched.Used)
		draw()
		n = min(n, d.cfg.TreeRows-s.seq.Nodes())
	}
	s.use(s.sketched.Used)
	s.explore = s.sketched.Worth(s.children, j.proposal.Plan, j.busy+time.Since(begun),
		d.sched.Pace(n+promptSpots*d.way.Levels*d.way.Members), n)
	return s.sketched.Tree, s.explore == 0
}

// nodes implements grower: those that are to be explored.
func (s *promptGrower) nodes(part *engine.Part, n int) {
	old := part.Seq.Nodes()
	for _, r := range s.sketched.Open[:min(s.explore, n)] {
		parent := r.Parent - 1
		if r.Parent < 0 {
			parent = int32(old) - 1 - r.Parent
		}
		part.Nodes, part.Parents = append(part.Nodes, r.Token), append(part.Parents, parent)
	}
}

// take implements grower.
func (s *promptGrower) take(r result) {
	if r.tree {
		s.foretell(r.part, r.out, r.tail, r.first)
	} else {
		s.tokenGrower.take(r)
	}
}

// prompted is a row of a part that has prompt rows behind it.
type prompted struct {
	row    int // 0: the root, the last of Extend; else the index in Nodes, from 1
	first  int // index of its first prompt row in Nodes; members come one after the other
	levels int
}

// complete implements grower: it adds prompt rows behind those rows where the tree will likely go on, as far as they fit into the pass.
func (s *promptGrower) complete(part *engine.Part, rows int, tree bool) {
	if !tree {
		return
	}
	way, b := s.d.way, s.job.proposal.Bounds
	s.behind = s.behind[:0]
	fit := min(rows-len(part.Extend)-len(part.Nodes), s.d.cfg.TreeRows-s.seq.Nodes()-len(part.Nodes), promptSpots*way.Levels*way.Members)
	if b.Plain() || fit < way.Members {
		return
	}
	old, n := s.seq.Nodes(), len(part.Nodes)
	ends, depths := make([]float64, n+1), make([]int, n+1)
	if len(part.Extend) > 0 {
		ends[0] = 1
	}
	for i, r := range s.sketched.Open[:n] {
		p := math.Exp(float64(r.LogProb))
		ends[i+1], depths[i+1] = p, r.Depth
		if r.Parent < 0 {
			ends[-r.Parent] -= p
		}
	}
	for i := range ends {
		ends[i] = max(ends[i], 0)
	}
	counts := shape.Place(ends, s.d.trusted(s.session).Lengths(way.Levels), way, fit)
	t := tandem.Tree{Tokens: make([]tandem.Token, n+1), Parents: make([]int32, n+1)}
	at := n
	for i := range counts {
		if counts[i] = int8(max(min(int(counts[i]), b.Depth-depths[i]-1), 0)); counts[i] > 0 && ends[i] > 0 {
			s.behind = append(s.behind, prompted{row: i, first: at, levels: int(counts[i])})
			at += int(counts[i]) * way.Members
		} else {
			counts[i] = 0
		}
	}
	t = shape.Prompt(t, counts, way)
	for i := n + 1; i < t.Len(); i++ {
		parent := t.Parents[i] - 1 // an index in Nodes, or the end of the prefix
		if parent >= 0 {
			parent += int32(old)
		}
		part.Nodes, part.Parents = append(part.Nodes, -1-t.Tokens[i]), append(part.Parents, parent)
	}
	s.d.cfg.Counters.Add("prompts.rows", int64(t.Len()-n-1))
}

// foretell takes a pass that grows a tree: what it has explored, and what its prompt rows say. tail is the wanted row of the root,
// first that of the first of Nodes. Rows that are no explored nodes leave the cache.
func (s *promptGrower) foretell(p schedule.Part, out *engine.Output, tail, first int) {
	part, width := &p.Part, s.width()
	if len(part.Extend) > 0 {
		s.explored.Start(s.guesses(out, tail, width, tandem.Position(len(s.Tokens))), width)
		s.learnChildren(-1, 0, 0)
	}
	old := s.explored.Len() - 1 // tree rows before the pass
	nodes, kept := []int32{0}, make([]int32, old)
	for i := range kept {
		kept[i] = int32(i)
	}
	for i, token := range part.Nodes {
		if token < 0 {
			break // prompt rows come last
		}
		parent, node := part.Parents[i]+1, int32(-1)
		if int(parent) > old {
			parent = nodes[int(parent)-old]
		}
		if parent >= 0 && s.explored.Has(parent, token) {
			at := tandem.Position(len(s.Tokens) + s.explored.Depth(parent) + 1)
			node = s.explored.Add(parent, token, s.guesses(out, first+i, width, at), 0)
			s.d.trusted(s.session).Learn(&s.explored, node)
			s.learnChildren(parent, node, token)
			kept = append(kept, int32(old+i))
		}
		nodes = append(nodes, node)
	}
	s.takeGuesses(p, out, nodes, width)
	if err := s.seq.Reroot(nil, kept); err != nil {
		panic(err)
	}
}

// learnChildren learns from the candidates of a node that has been explored; parent is -1 for the root.
func (s *promptGrower) learnChildren(parent, node int32, token tandem.Token) {
	p, r := s.job.proposal, spec.Row{}
	if parent >= 0 {
		siblings := spec.Temper(s.explored.Candidates(parent), p.Temper)
		at := slices.IndexFunc(siblings, func(c spec.Candidate) bool { return c.Token == token })
		r = spec.Row{Depth: 1, Own: siblings[at].LogProb}
	}
	s.children.Learn(r, spec.Temper(s.explored.Candidates(node), p.Temper), p.Plan.Accept)
}

// takeGuesses asks the model what its prompt rows say. nodes are the explored nodes of the rows that they can stand behind, -1 for none.
// A failure costs guesses only.
func (s *promptGrower) takeGuesses(p schedule.Part, out *engine.Output, nodes []int32, width int) {
	way := s.d.way
	var asks []engine.GuessAsk
	var list []prompted
	for _, q := range s.behind {
		if nodes[q.row] < 0 {
			continue
		}
		ask := engine.GuessAsk{SelfDraft: way.Name}
		for e := range way.Members * way.Levels {
			row := q.first + e/way.Levels*q.levels + min(e%way.Levels, q.levels-1) // a level without rows is left out of the guess
			ask.Hidden = append(ask.Hidden, out.Hidden(p.At, len(p.Extend)+row))
		}
		asks, list = append(asks, ask), append(list, q)
	}
	if len(asks) == 0 {
		return
	}
	guesses, err := s.d.cfg.Model.Guess(asks, tandem.MostCandidates)
	if err != nil {
		s.d.cfg.Counters.Add("prompts.failed", int64(len(asks)))
		return
	}
	for i, q := range list {
		node := nodes[q.row]
		var levels [][]spec.Candidate
		for k, level := range guesses[i].Levels[:q.levels] {
			at := tandem.Position(len(s.Tokens) + s.explored.Depth(node) + 1 + k)
			level = sample.Lean(level, s.sampling, at)
			var list []spec.Candidate
			for _, c := range level {
				if int(c.Token) < s.Vocab && len(list) < width {
					list = append(list, spec.Candidate{Token: c.Token, LogProb: c.LogProb})
				}
			}
			levels = append(levels, list)
		}
		s.explored.Foretell(node, levels)
	}
}
