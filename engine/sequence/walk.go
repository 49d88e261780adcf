package sequence

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Walks appends to walks those of a pass over sequences of c, if the model has recurrent layers. begin has the pass's first row of each
// part, and at the end the number of rows. If too few records are free, pending ones are folded first, in passes that run makes. Errors:
// Exhausted if held tree rows have the records, Invalid for a tree that needs too many states at once, and run's.
func Walks(c *Cache, batch []Part, begin []int, walks []kernels.Walk, run func(*kernels.Pass) error) ([]kernels.Walk, error) {
	if c.records == nil {
		return walks, nil
	}
	need := 0
	for i := range batch {
		need += len(batch[i].Nodes) + min(len(batch[i].Extend), 1)
	}
	if err := c.spare(need, run); err != nil {
		return walks, err
	}
	for i := range batch {
		part := &batch[i]
		if part.walk = (walk{}); begin[i+1] > begin[i] {
			steps, err := part.steps(begin[i])
			if err != nil {
				c.unwalk(batch[:i+1])
				return walks, err
			}
			walks = append(walks, part.Seq.walkOf(part.Seq.pages.Home(), steps))
		}
	}
	return walks, nil
}

// unwalk gives back what walks of a pass that does not run have taken.
func (c *Cache) unwalk(batch []Part) {
	for _, part := range batch {
		part.walk.give(c.records)
		part.Seq.pages.Unmark(part.Seq.length)
	}
}

// steps lays the walk of a part whose first row is row first of the pass.
func (part *Part) steps(first int) ([]kernels.Step, error) {
	s, r := part.Seq, part.Seq.records
	w := &part.walk
	w.at = s.at
	steps := make([]kernels.Step, 0, len(s.pending)+len(part.Extend)+len(s.parents)+len(part.Nodes))
	for _, p := range s.pending {
		steps = append(steps, kernels.Step{Row: -1, Record: p, Save: -1})
	}
	mark := s.nextMark(s.length)
	for i := range part.Extend {
		step := kernels.Step{Row: int32(first + i), Record: -1, Save: -1}
		if s.length+i+1 == mark {
			step.Save = s.pages.Mark(mark)
			mark = s.nextMark(mark)
		}
		steps = append(steps, step)
	}
	n := len(steps)
	save := n - 2
	if save >= 0 && steps[save].Save >= 0 {
		save = n - 1 // ends of pages are not next to each other
	}
	if save >= 0 {
		steps[save].Save = s.pages.Home()
		w.at, w.applied = s.at+save+1, min(len(s.pending), save+1)
	}
	if save < n-1 && len(part.Extend) > 0 { // the last row stays pending
		steps[n-1].Record = r.take()
		w.pending = append(w.pending, steps[n-1].Record)
	}
	for range part.Nodes {
		w.ofNodes = append(w.ofNodes, r.take())
	}
	d := descent{part: part, first: first + len(part.Extend), steps: steps}
	d.prepare()
	err := d.below(-1, 0, 1)
	return d.steps, err
}

// descent goes through the tree of a part, and of what the sequence holds of it that lies above new rows, a row after its parent.
type descent struct {
	part     *Part
	first    int // row of the pass of the first new one
	steps    []kernels.Step
	children [][]int32 // per row, from -1 on
	size     []int32   // of the subtree
}

// prepare finds the children of every row, smallest subtree first: what comes last may take its parent's place, so that a chain needs one
// state, and a tree of n rows log2(n) of them.
func (d *descent) prepare() {
	s, p := d.part.Seq, d.part
	old, all := len(s.parents), len(s.parents)+len(p.Nodes)
	parent := func(i int) int32 {
		if i < old {
			return s.parents[i]
		}
		return p.Parents[i-old]
	}
	d.children, d.size = make([][]int32, all+1), make([]int32, all+1)
	for i := all - 1; i >= 0; i-- {
		if i >= old {
			d.size[i+1]++
		}
		if d.size[i+1] > 0 { // new, or above new rows
			if i < old {
				d.size[i+1]++
			}
			d.size[parent(i)+1] += d.size[i+1]
			d.children[parent(i)+1] = append(d.children[parent(i)+1], int32(i))
		}
	}
	for _, c := range d.children {
		slices.SortFunc(c, func(a, b int32) int { return cmp.Or(cmp.Compare(d.size[a+1], d.size[b+1]), cmp.Compare(a, b)) })
	}
}

// below lays the steps below row i, whose state is number at. States from free on are free.
func (d *descent) below(i, at, free int32) error {
	s, old := d.part.Seq, int32(len(d.part.Seq.parents))
	children := d.children[i+1]
	for k, c := range children {
		step, next := kernels.Step{Row: -1, In: at, Out: free, Save: -1}, free+1
		if k == len(children)-1 {
			step.Out, next = at, free
		}
		if step.Out >= kernels.MaxHeld {
			return tandem.Errorf("engine", tandem.Invalid, "a tree whose branches need more than %d recurrent states at once",
				kernels.MaxHeld)
		}
		if c < old {
			step.Record = s.ofNodes[c]
		} else {
			step.Row, step.Record = int32(d.first)+c-old, d.part.walk.ofNodes[c-old]
		}
		d.steps = append(d.steps, step)
		if err := d.below(c, step.Out, next); err != nil {
			return err
		}
	}
	return nil
}

// spare makes sure that n records are free, if need be by passes that apply pending ones.
func (c *Cache) spare(n int, run func(*kernels.Pass) error) error {
	for len(c.records.free) < n {
		var all []*Sequence
		for s := range c.open {
			if len(s.pending) > 1 && !s.broken {
				all = append(all, s)
			}
		}
		if len(all) == 0 {
			return tandem.Errorf("engine", tandem.Exhausted,
				"%d rows need a record each of what they put into recurrent states: %d of %d are free, held tree rows have the others",
				n, len(c.records.free), c.sizes.Records(c.config))
		}
		slices.SortFunc(all, func(a, b *Sequence) int { return cmp.Compare(len(b.pending), len(a.pending)) })
		if err := fold(all[:min(len(all), c.sizes.Rows)], run); err != nil {
			return err
		}
	}
	return nil
}

// fold applies the pending records of sequences but the last. A pass needs rows: it computes the last committed row of each again, from the
// same inputs, and so writes what is there already.
func fold(all []*Sequence, run func(*kernels.Pass) error) error {
	var p kernels.Pass
	for i, s := range all {
		at := s.length - 1
		p.Rows++
		p.Tokens, p.Pos, p.Store = append(p.Tokens, int32(s.tokens[at])), append(p.Pos, int32(at)), append(p.Store, s.pages.At(at))
		p.Table, p.Pages = append(p.Table, int32(len(p.Pages))), append(p.Pages, s.pages.Table...)
		p.Prefix, p.AncOff, p.AncLen = append(p.Prefix, int32(s.length)), append(p.AncOff, 0), append(p.AncLen, 0)
		var steps []kernels.Step
		for _, r := range s.pending[:len(s.pending)-1] {
			steps = append(steps, kernels.Step{Row: -1, Record: r, Save: -1})
		}
		steps[len(steps)-1].Save = s.pages.Home()
		p.Walks = append(p.Walks, s.walkOf(s.pages.Home(), append(steps, kernels.Step{Row: int32(i), Record: -1, Save: -1})))
	}
	if err := run(&p); err != nil {
		for _, s := range all {
			s.Distrust()
			s.broken = true
		}
		return err
	}
	for _, s := range all {
		s.folded()
	}
	return nil
}
