package engine

import (
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
)

// recurrence is what a sequence of a model with recurrent layers has beside pages. The states in its slot (kv.Pages.Home) are those behind
// its first `at` positions. What the positions after them put into the states is in records; so is what tree rows put in. Len is
// at + len(pending). A pass applies pending records first, saves the states, and goes on with its own rows.
//
// The last committed row stays pending: then the sequence can give it up without states from before, as a draft does that needs its logits
// again. All other rows that a pass commits are in the slot when it ends; tree rows that are accepted are pending until the next pass.
type recurrence struct {
	at      int
	pending []int32 // records of positions at, at+1 …
	ofNodes []int32 // records of tree rows
	broken  bool    // a pass has failed that had begun: what the slot holds is unknown
}

// records are the free places for records of rows, and the sequences that have the others.
type records struct {
	free []int32
	of   map[*Sequence]bool
}

func newRecords(n int) *records {
	r := &records{of: map[*Sequence]bool{}}
	for i := range n {
		r.free = append(r.free, int32(n-1-i))
	}
	return r
}

func (r *records) enter(s *Sequence) { r.of[s] = true }

func (r *records) take() int32 {
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	return i
}

const (
	leastApart   = 8 // pages between states that divide a prompt
	mostParts    = 8 // of a prompt between them
	maxSequences = 1 << 13
)

// slots and records return how many places for states and records the cache of a model has.
func (o *Options) slots(c *blocks.Config) int {
	if !c.Recurrent() {
		return 0
	}
	return memory.SlotsEach * o.Sequences
}

func (o *Options) records(c *blocks.Config) int {
	if !c.Recurrent() {
		return 0
	}
	return o.MaxRows + memory.RecordsEach*o.Sequences
}

// stated returns up to which position the slot has the states, or, of a model without, all positions.
func (s *Sequence) stated() int {
	switch {
	case s.broken:
		return 0
	case s.model.config.Recurrent():
		return s.at
	}
	return s.length
}

// drop gives the records of a list up, from the n-th on.
func (s *Sequence) drop(list *[]int32, n int) {
	if n == len(*list) {
		return
	}
	s.model.records.free = append(s.model.records.free, (*list)[n:]...)
	*list = (*list)[:n]
}

func (s *Sequence) leave() {
	if s.model.records == nil {
		return
	}
	s.drop(&s.pending, 0)
	s.at = 0
	delete(s.model.records.of, s)
}

// rerootStates makes the records of path pending and keeps those of the rows in keep.
func (s *Sequence) rerootStates(path, keep []int32) {
	if !s.model.config.Recurrent() {
		return
	}
	old, kept := s.ofNodes, make([]int32, len(keep))
	for i, n := range keep {
		kept[i], old[n] = old[n], -1
	}
	for _, n := range path {
		s.pending, old[n] = append(s.pending, old[n]), -1
	}
	for _, r := range old {
		if r >= 0 {
			s.model.records.free = append(s.model.records.free, r)
		}
	}
	s.ofNodes = kept
}

// rewind gives up the positions from n on, and as many before as have no states; it returns how many are left.
func (s *Sequence) rewind(n int) (int, error) {
	if !s.model.config.Recurrent() || n >= s.at && !s.broken {
		err := s.pages.Truncate(n)
		if err == nil && s.model.config.Recurrent() {
			s.pages.Unmark(n)
			s.drop(&s.pending, n-s.at)
		}
		return n, err
	}
	if s.broken {
		return 0, tandem.Errorf("engine", tandem.Unavailable, "the sequence's states are lost, since a pass failed: open it again")
	}
	n, err := s.pages.Rewind(n)
	if err == nil {
		s.drop(&s.pending, 0)
		s.at = n
	}
	return n, err
}

// nextMark returns the first position behind at where s will keep states of its prompt for others; 0: none. They are kept at the last end
// of a page of the prompt; at the end of the last page that the prompt shares with an earlier text whose states there were not kept; and
// where they only divide a long prompt, so that not all is computed again of the first that differs in its middle.
func (s *Sequence) nextMark(at int) int {
	end := len(s.prompt) / kernels.PageRows * kernels.PageRows
	if end <= at {
		return 0
	}
	apart := leastApart * kernels.PageRows
	for apart*mostParts < end {
		apart *= 2 // so that prompts of other lengths are divided at the same places
	}
	next := min(end, (at/apart+1)*apart)
	if p := s.pages.Parted(); p > at && p < next {
		return p
	}
	return next
}

// walk is what a pass does with a sequence's states.
type walk struct {
	at               int     // where the slot will be
	applied          int     // pending records that the slot then contains
	pending, ofNodes []int32 // further records
}

// walks lays the walks of a pass; begin has each part's first row. There are enough records: sequences with many pending ones are folded
// before.
func (f running) walks(batch []Part, begin []int) error {
	if !f.config.Recurrent() {
		return nil
	}
	need := 0
	for i := range batch {
		need += len(batch[i].Nodes) + min(len(batch[i].Extend), 1)
	}
	if err := f.spare(need); err != nil {
		return err
	}
	for i := range batch {
		part := &batch[i]
		if part.walk = (walk{}); begin[i+1] > begin[i] {
			steps, err := part.steps(begin[i])
			if err != nil {
				f.unwalk(batch[:i+1])
				return err
			}
			f.pass.Walks = append(f.pass.Walks, part.Seq.walkOf(steps))
		}
	}
	return nil
}

// unwalk gives back what walks of a pass that does not run have taken.
func (f running) unwalk(batch []Part) {
	for _, part := range batch {
		f.records.free = append(append(f.records.free, part.walk.pending...), part.walk.ofNodes...)
		part.Seq.pages.Unmark(part.Seq.length)
	}
}

func (s *Sequence) walkOf(steps []kernels.Step) kernels.Walk {
	if s.at == 0 {
		return kernels.Walk{From: -1, Steps: steps}
	}
	return kernels.Walk{From: s.pages.Home(), Steps: steps}
}

// steps lays the walk of a part whose first row is row first of the pass.
func (part *Part) steps(first int) ([]kernels.Step, error) {
	s, r := part.Seq, part.Seq.model.records
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

// walked takes over what a pass has done with the states.
func (part *Part) walked() {
	s, w := part.Seq, &part.walk
	if !s.model.config.Recurrent() || len(part.Extend)+len(part.Nodes) == 0 {
		return
	}
	s.model.records.free = append(s.model.records.free, s.pending[:w.applied]...)
	s.at, s.pending = w.at, append(s.pending[w.applied:], w.pending...)
	s.ofNodes = append(s.ofNodes, w.ofNodes...)
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
func (f running) spare(n int) error {
	for len(f.records.free) < n {
		var all []*Sequence
		for s := range f.records.of {
			if len(s.pending) > 1 && !s.broken {
				all = append(all, s)
			}
		}
		if len(all) == 0 {
			return tandem.Errorf("engine", tandem.Exhausted,
				"%d rows need a record each of what they put into recurrent states: %d of %d are free, held tree rows have the others",
				n, len(f.records.free), f.options.records(&f.config))
		}
		slices.SortFunc(all, func(a, b *Sequence) int { return cmp.Compare(len(b.pending), len(a.pending)) })
		if err := f.fold(all[:min(len(all), f.options.MaxRows)]); err != nil {
			return err
		}
	}
	return nil
}

// fold applies the pending records of sequences but the last. A pass needs rows: it computes the last committed row of each again, from the
// same inputs, and so writes what is there already.
func (f running) fold(all []*Sequence) error {
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
		p.Walks = append(p.Walks, s.walkOf(append(steps, kernels.Step{Row: int32(i), Record: -1, Save: -1})))
	}
	if err := f.runner.Run(&p); err != nil {
		for _, s := range all {
			s.Distrust()
			s.broken = true
		}
		return f.passError(p.Rows, err)
	}
	for _, s := range all {
		last := len(s.pending) - 1
		f.records.free = append(f.records.free, s.pending[:last]...)
		s.at, s.pending = s.at+last, append(s.pending[:0], s.pending[last])
	}
	return nil
}
