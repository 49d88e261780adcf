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

// A draft model with prompt tokens (PPD) of its own needs fewer passes for a tree. Behind the nodes where the tree is likely to go on, a
// pass has prompt rows, whose logits foretell the candidates of the levels below. The tree grows through what was foretold as through
// candidates (spec.Sketch). The next pass explores the likeliest of its nodes, several levels at once, and has prompt rows behind them. A
// node that was run is explored only if the draft has it among the candidates of its parent; other rows, and all prompt rows, leave the
// cache right after the pass. So explored nodes, and what ahead.go makes of them, are the same as without. The tree may have nodes that
// were never run, with the chances that such guesses have had (spec.Trust); the target judges them like any others.

const (
	promptRows  = 8 // nodes that a pass explores at most,
	promptSpots = 1 // and how many of them could get all prompt rows, if the others got none
)

// promptsOf returns the way of a model that was opened with prompt tokens.
func promptsOf(m *engine.Model) tandem.SelfDraft {
	ways := m.Ways()
	if i := slices.IndexFunc(ways, func(w tandem.SelfDraft) bool { return w.Name == tandem.PPD }); i >= 0 {
		return ways[i]
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

// sketch grows the job's tree anew from all that is explored and foretold. It reports whether a pass is to make it better.
func (d *Drafter) sketch(s *session, begun time.Time) bool {
	j := s.job
	draw := func() {
		j.sketched = spec.NewSketch(&s.explored, s.tokens[j.proposal.Base-1], j.proposal, d.trusted(s))
	}
	draw()
	if j.sketched.Root {
		return true
	}
	n := min(len(j.sketched.Open), promptRows)
	if over := s.seq.Nodes() + n + d.way.Levels*d.way.Members - d.cfg.TreeRows; over > 0 {
		s.retain(j.sketched.Used)
		draw()
		n = min(n, d.cfg.TreeRows-s.seq.Nodes())
	}
	useful := time.Duration(0)
	for _, node := range j.sketched.Used {
		useful += s.explored.Use(node)
	}
	if useful > 0 {
		d.cfg.Counters.Add("ahead.useful_ns", int64(useful))
	}
	j.explore = j.sketched.Worth(j.proposal.Plan, j.busy+time.Since(begun), d.sched.Pace(), n)
	return j.explore > 0
}

// open adds to a part the nodes that are to be explored, at most n.
func (j *job) open(part *engine.Part, n int) {
	old := part.Seq.Nodes()
	for _, r := range j.sketched.Open[:min(j.explore, n)] {
		parent := r.Parent - 1
		if r.Parent < 0 {
			parent = int32(old) - 1 - r.Parent
		}
		part.Nodes, part.Parents = append(part.Nodes, r.Token), append(part.Parents, parent)
	}
}

// prompted is a row of a part that has prompt rows behind it.
type prompted struct {
	row    int // 0: the root, the last of Extend; else the place in Nodes, from 1
	first  int // place of its first prompt row in Nodes; members come one after the other
	levels int
}

// place adds prompt rows to a part that is about to grow a tree: behind its rows where the tree will likely go on, as far as they fit into
// a pass with so many rows.
func (s *session) place(part *engine.Part, rows int) {
	way, b := s.d.way, s.job.proposal.Bounds
	s.behind = s.behind[:0]
	room := min(rows-len(part.Extend)-len(part.Nodes), s.d.cfg.TreeRows-s.seq.Nodes()-len(part.Nodes), promptSpots*way.Levels*way.Members)
	if b.Plain() || room < way.Members {
		return
	}
	old, n := s.seq.Nodes(), len(part.Nodes)
	ends, depths := make([]float64, n+1), make([]int, n+1)
	if len(part.Extend) > 0 {
		ends[0] = 1
	}
	for i, r := range s.job.sketched.Open[:n] {
		p := math.Exp(float64(r.LogProb))
		ends[i+1], depths[i+1] = p, r.Depth
		if r.Parent < 0 {
			ends[-r.Parent] -= p
		}
	}
	for i := range ends {
		ends[i] = max(ends[i], 0)
	}
	counts := shape.Place(ends, s.d.trusted(s).Lengths(way.Levels), way, room)
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
		parent := t.Parents[i] - 1 // a place in Nodes, or the end of the prefix
		if parent >= 0 {
			parent += int32(old)
		}
		part.Nodes, part.Parents = append(part.Nodes, -1-t.Tokens[i]), append(part.Parents, parent)
	}
	s.d.cfg.Counters.Add("prompts.rows", int64(t.Len()-n-1))
}

// foretell takes a pass that grows a tree: what it has explored, and what its prompt rows say. tail is the wanted row of the root,
// first that of the first of Nodes. Rows that are no explored nodes leave the cache.
func (s *session) foretell(p schedule.Part, out *engine.Output, tail, first int) {
	part, width := &p.Part, s.width()
	if len(part.Extend) > 0 {
		s.explored.Start(s.guesses(out, tail, width, tandem.Position(len(s.tokens))), width)
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
			at := tandem.Position(len(s.tokens) + s.explored.Depth(parent) + 1)
			node = s.explored.Add(parent, token, s.guesses(out, first+i, width, at), 0)
			s.d.trusted(s).Learn(&s.explored, node)
			kept = append(kept, int32(old+i))
		}
		nodes = append(nodes, node)
	}
	s.takeGuesses(p, out, nodes, width)
	if err := s.seq.Reroot(nil, kept); err != nil {
		panic(err)
	}
}

// takeGuesses asks the model what its prompt rows say. nodes are the explored nodes of the rows that they can stand behind, -1 for none.
// A failure costs guesses only.
func (s *session) takeGuesses(p schedule.Part, out *engine.Output, nodes []int32, width int) {
	way := s.d.way
	var asks []engine.GuessAsk
	var list []prompted
	for _, q := range s.behind {
		if nodes[q.row] < 0 {
			continue
		}
		ask := engine.GuessAsk{Way: way.Name}
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
			at := tandem.Position(len(s.tokens) + s.explored.Depth(node) + 1 + k)
			level = sample.Lean(level, s.sampling, at)
			var list []spec.Candidate
			for _, c := range level {
				if int(c.Token) < s.vocab && len(list) < width {
					list = append(list, spec.Candidate{Token: c.Token, LogProb: c.LogProb})
				}
			}
			levels = append(levels, list)
		}
		s.explored.Foretell(node, levels)
	}
}
