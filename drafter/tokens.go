package drafter

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/spec"
)

// tokenGrower is the grower of a draft model that reads tokens alone. Rows that have been explored are not run again.
type tokenGrower struct {
	*session
	growth // of the job's tree
}

// open implements grower: the schedule has computed all of the text.
func (t *tokenGrower) open(context.Context, tandem.Opening) error { return nil }

// adopt implements grower. If the new tokens lead to an explored node, that becomes the root, and what was explored below it stays.
func (t *tokenGrower) adopt(p tandem.Proposal) error {
	s := t.session
	held := len(s.Tokens)
	keep := s.Follow(p)
	s.recall.Keep(keep)
	if keep == held && s.explored.Len() > 0 {
		s.explored.Hits(s.Tokens[held:], func(i int, hit bool) { s.recall.Saw(held+i, hit) })
	}
	fresh := int(p.Base) - 1 // the position of the root: it must be run for its logits unless they are known
	if s.explored.Len() == 0 || keep < held {
		s.explored.Clear()
		return s.seq.Truncate(min(s.seq.End(), keep, fresh))
	}
	path := s.explored.Follow(s.Tokens[held:])
	if len(path) == int(p.Base)-held && p.Bounds.Width <= s.explored.Width() {
		root := int32(0)
		if len(path) > 0 {
			root = path[len(path)-1]
		}
		return s.seq.Reroot(rowsOf(path), rowsOf(s.explored.Reroot(root)))
	}
	s.explored.Clear()
	if held > fresh {
		return s.seq.Truncate(fresh)
	}
	return s.seq.Commit(rowsOf(path[:min(len(path), fresh-held)]))
}

// begin implements grower.
func (t *tokenGrower) begin() {
	p := t.job.proposal
	t.growth = growth{tree: spec.NewGrower(t.Tokens[p.Base-1], p), temper: p.Temper}
}

// grow implements grower. It answers the rows of the tree from the explored nodes until some must be run.
func (t *tokenGrower) grow(begun time.Time) (tandem.Tree, bool) {
	s, d := t.session, t.d
	for {
		run, more := t.next(&s.explored, d.room(&t.growth))
		if more {
			run, more = s.judge(&t.growth, s.job.proposal.Plan, s.job.busy+time.Since(begun), run)
		}
		if !more {
			return t.tree.Draft().Tree, true
		}
		if run > 0 {
			if s.seq.Nodes()+run > d.cfg.TreeRows {
				used := slices.DeleteFunc(slices.Clone(t.rows), func(n int32) bool { return n < 0 })
				slices.Sort(used)
				s.grower.retain(used)
			}
			return tandem.Tree{}, false
		}
		s.use(t.at)
		t.absorb(&s.explored, s.learned(s.job.proposal))
	}
}

// nodes implements grower.
func (t *tokenGrower) nodes(part *engine.Part, n int) { t.missing(part, n) }

// complete implements grower: there is nothing else to read.
func (t *tokenGrower) complete(*engine.Part, int, bool) {}

// take implements grower.
func (t *tokenGrower) take(r result) {
	s := t.session
	switch part := &r.part.Part; {
	case len(part.Nodes) > 0:
		width := s.width()
		for i, token := range part.Nodes {
			parent := part.Parents[i] + 1
			at := tandem.Position(len(s.Tokens) + s.explored.Depth(parent) + 1)
			s.explored.Add(parent, token, s.guesses(r.out, r.first+i, width, at), r.cost)
		}
	case r.tree:
		width := s.width()
		s.explored.Start(s.guesses(r.out, r.tail, width, tandem.Position(len(s.Tokens))), width)
	}
}

// retain implements grower.
func (t *tokenGrower) retain(used []int32) {
	s, j := t.session, t.job
	index := make(map[int32]int32, len(used))
	known := 1
	for i, n := range used {
		index[n] = int32(i + 1)
		if int(n) < j.known {
			known++
		}
	}
	s.explored.Retain(used)
	if err := s.seq.Reroot(nil, rowsOf(used)); err != nil {
		panic(err)
	}
	for _, list := range [][]int32{t.rows, t.at} {
		for i, n := range list {
			if n > 0 {
				list[i] = index[n]
			}
		}
	}
	j.known = min(j.known, known)
}

// goes implements grower.
func (t *tokenGrower) goes(p tandem.Proposal) bool {
	return p.Ahead && t.d.cfg.AheadGain < 1 && !p.Bounds.Plain()
}

// renew implements grower: there is nothing that would have to be computed anew.
func (t *tokenGrower) renew(*engine.Part, int) bool { return false }

// closed implements grower.
func (t *tokenGrower) closed() {}
