package sequence

import "github.com/tandem-llm/tandem/kernels"

// recurrence is what a sequence of a model with recurrent layers has beside pages. The states in its slot (kv.Pages.Home) are those behind
// its first `at` positions. What the positions after them put into the states is in records; so is what tree rows put in. Len is
// at + len(pending). A pass applies pending records first, saves the states, and goes on with its own rows.
//
// The last committed row stays pending: then the sequence can give it up without states from before, as a draft does that needs its logits
// again. All other rows that a pass commits are in the slot when it ends; tree rows that are accepted are pending until the next pass.
type recurrence struct {
	records *records // of the model; nil: it has no recurrent layers, and the rest says nothing
	at      int
	pending []int32 // records of positions at, at+1 …
	ofNodes []int32 // records of tree rows
	broken  bool    // a pass has failed that had begun: what the slot holds is unknown
}

// records are the free places for records of rows. All sequences of a model share them.
type records struct{ free []int32 }

func newRecords(n int) *records {
	r := &records{}
	for i := range n {
		r.free = append(r.free, int32(n-1-i))
	}
	return r
}

func (r *records) take() int32 {
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	return i
}

func (r *records) give(all []int32) { r.free = append(r.free, all...) }

// recurrent reports whether the model has recurrent layers.
func (r *recurrence) recurrent() bool { return r.records != nil }

// dropPending gives the records of the positions from at+n on up, dropNodes those of tree rows.
func (r *recurrence) dropPending(n int) {
	if r.records != nil {
		r.records.give(r.pending[n:])
		r.pending = r.pending[:n]
	}
}

func (r *recurrence) dropNodes() {
	if r.records != nil {
		r.records.give(r.ofNodes)
		r.ofNodes = r.ofNodes[:0]
	}
}

// begin makes the slot's states those behind position at, without pending records.
func (r *recurrence) begin(at int) {
	r.dropPending(0)
	r.at = at
}

// reroot makes the records of path pending and keeps those of the rows in keep.
func (r *recurrence) reroot(path, keep []int32) {
	if !r.recurrent() {
		return
	}
	old, kept := r.ofNodes, make([]int32, len(keep))
	for i, n := range keep {
		kept[i], old[n] = old[n], -1
	}
	for _, n := range path {
		r.pending, old[n] = append(r.pending, old[n]), -1
	}
	for _, x := range old {
		if x >= 0 {
			r.records.free = append(r.records.free, x)
		}
	}
	r.ofNodes = kept
}

// walked takes over what a pass has done with the states.
func (r *recurrence) walked(w *walk) {
	if !r.recurrent() {
		return
	}
	r.records.give(r.pending[:w.applied])
	r.at, r.pending = w.at, append(r.pending[w.applied:], w.pending...)
	r.ofNodes = append(r.ofNodes, w.ofNodes...)
}

// folded gives up the pending records but the last, which the slot's states contain now.
func (r *recurrence) folded() {
	last := len(r.pending) - 1
	r.records.give(r.pending[:last])
	r.at, r.pending = r.at+last, append(r.pending[:0], r.pending[last])
}

// walkOf returns the walk of these steps from the states in slot home.
func (r *recurrence) walkOf(home int32, steps []kernels.Step) kernels.Walk {
	if r.at == 0 {
		return kernels.Walk{From: -1, Steps: steps}
	}
	return kernels.Walk{From: home, Steps: steps}
}

// walk is what a pass does with a sequence's states.
type walk struct {
	at               int     // where the slot will be
	applied          int     // pending records that the slot then contains
	pending, ofNodes []int32 // further records
}

// give gives back what the walk of a pass that does not run has taken.
func (w *walk) give(to *records) {
	to.give(w.pending)
	to.give(w.ofNodes)
}
