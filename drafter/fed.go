package drafter

import (
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/half"
)

// fed is what a session of a draft with states knows of the target's hidden states, its features (Dovetail; EAGLE).
//
// Row i of the draft's sequence is token i+1 with the state of position i: the first token has no state before it, so it has no row.
// The state is the target's. Where the target has not been yet, below the last committed token, it is the draft's own output for the row
// of the parent. Rows of committed tokens are computed with the target's state as well, so after a verdict nothing that was
// computed below the old root is used again: the next pass runs the accepted tokens anew, now with their features, and the new root.
//
// Invariants between passes:
//  1. The first sure rows of the sequence are final: computed with the target's states, or with zeros where those are not to be had.
//     Rows after them were computed with the draft's own outputs, because the features had not come in time. They are given up as soon
//     as some have come.
//  2. rows holds the features of positions from base on. base is at most sure, and one row is kept if there is one: a root may have to be
//     run again for more candidates.
//  3. A sequence publishes only rows that its tokens alone determine: it becomes private before the first row without features.
type fed struct {
	epoch tandem.Epoch
	next  atomic.Int64  // first position whose features are neither here nor known not to exist; base + len(rows)
	asked atomic.Uint64 // answers of the verifier, of whatever kind, while the session is opened
	none  atomic.Bool   // the verifier keeps none, and is not asked again in this session

	sure   int
	base   int
	rows   [][]uint16 // nil: not to be had
	finals int        // rows of the pass that is running that will be final: the first of them

	width    int               // of a row of features
	own      int               // of an output
	outputs  []float32         // (explored nodes, own): the draft's outputs
	instead  map[int][]float32 // own outputs of positions from sure on, in place of features that have not come
	unpacked []float32         // of the pass that is running
	nothing  []float32         // zeros for what is not to be had
	shares   bool              // the sequence is not private yet
}

func newFed(epoch tandem.Epoch, found, width, own int) *fed {
	f := &fed{epoch: epoch, sure: found, base: found, width: width, own: own, instead: map[int][]float32{},
		nothing: make([]float32, width), shares: true}
	f.next.Store(int64(found))
	return f
}

// end returns the first position whose features are not decided.
func (f *fed) end() int { return f.base + len(f.rows) }

// learn adds an answer to a question for positions from f.end() or before. It returns how many positions' features it has brought, and
// how many will not come. Errors: Corrupt if the answer is not for a draft that reads taps, and then it is ignored.
func (f *fed) learn(a tandem.Features, taps []int) (came, missing int, err error) {
	part := f.width / len(taps) // of one state
	if a.Width != part*len(a.Taps) {
		return 0, 0, tandem.Errorf("features", tandem.Corrupt, "states of %d values: want %d", a.Width/max(len(a.Taps), 1), part)
	}
	from := make([]int, len(taps))
	for i, tap := range taps {
		if from[i] = slices.Index(a.Taps, tap) * part; from[i] < 0 {
			return 0, 0, tandem.Errorf("features", tandem.Corrupt, "states %v: want state %d among them", a.Taps, tap)
		}
	}
	for f.end() < int(a.From) {
		f.rows = append(f.rows, nil)
		missing++
	}
	for i := f.end() - int(a.From); i < a.Len(); i++ {
		row := make([]uint16, 0, f.width)
		for _, at := range from {
			row = append(row, a.Rows[i*a.Width+at:][:part]...)
		}
		if slices.ContainsFunc(row, func(h uint16) bool { return h>>10&31 == 31 }) { // NaN or infinite
			row = nil
			missing++
		} else {
			came++
		}
		f.rows = append(f.rows, row)
	}
	f.next.Store(int64(f.end()))
	return came, missing, nil
}

// giveUp decides that the features of positions before end will not come, and returns how many those are.
func (f *fed) giveUp(end int) (missing int) {
	for ; f.end() < end; missing++ {
		f.rows = append(f.rows, nil)
	}
	f.next.Store(int64(f.end()))
	return missing
}

// rollBack gives up all but the first n rows of the sequence, and what is known of states from there on if the text is another one.
func (f *fed) rollBack(n int, other bool) {
	f.sure = min(f.sure, n)
	if f.base > n { // they have been given up: the verifier may still have them
		f.base, f.rows = n, nil
	} else if other {
		f.rows = f.rows[:min(len(f.rows), n-f.base)]
	}
	if other {
		clear(f.instead)
	}
	f.next.Store(int64(f.end()))
}

// fresh reports whether features have come for rows that were computed without.
func (f *fed) fresh(held int) bool { return f.sure < held && f.end() > f.sure }

// feed gives the part the states of its Extend rows, of which the first is row first of the sequence, and of its Nodes.
func (s *session) feed(part *engine.Part) {
	f := s.fed
	if f == nil {
		return
	}
	first := s.seq.Len()
	f.finals = 0
	f.unpacked = slices.Grow(f.unpacked[:0], len(part.Extend)*f.width)
	for i := range part.Extend {
		at, state, final := first+i, engine.State{Target: f.nothing}, true
		switch k := at - f.base; {
		case k < len(f.rows) && f.rows[k] != nil:
			n := len(f.unpacked)
			f.unpacked = f.unpacked[:n+f.width]
			half.Unpack(f.unpacked[n:], f.rows[k])
			state.Target = f.unpacked[n:]
		case k < len(f.rows):
			s.private()
		default:
			final = false
			s.private()
			if own := f.instead[at]; own != nil {
				state = engine.State{Own: own}
			}
		}
		if part.States = append(part.States, state); final && f.finals == i {
			f.finals++
		}
	}
	for _, parent := range part.Parents {
		part.States = append(part.States, engine.State{Own: f.output(int(parent) + 1)})
	}
}

// private keeps from other sessions what s computes from now on.
func (s *session) private() {
	if s.fed.shares {
		s.fed.shares = false
		s.seq.Private()
	}
}

// output returns the draft's output at an explored node.
func (f *fed) output(node int) []float32 { return f.outputs[node*f.own:][:f.own] }

// ran notes that a pass has computed extended rows, after which the sequence holds held.
func (f *fed) ran(extended, held int) {
	if extended > 0 && f.sure == held-extended {
		f.sure += f.finals
	}
	if drop := min(f.sure-1-f.base, len(f.rows)); drop > 0 {
		f.base, f.rows = f.base+drop, slices.Delete(f.rows, 0, drop)
	}
	for at := range f.instead {
		if at < f.sure {
			delete(f.instead, at)
		}
	}
}

// explored notes the output at a new explored node; the root's is the first.
func (f *fed) explored(root bool, output []float32) {
	if root {
		f.outputs = f.outputs[:0]
	}
	f.outputs = append(f.outputs, output...)
}

// retain forgets the outputs at all explored nodes but the root and those in kept, ascending.
func (f *fed) retain(kept []int32) {
	if f == nil {
		return
	}
	for i, node := range kept {
		copy(f.outputs[(i+1)*f.own:][:f.own], f.output(int(node)))
	}
	f.outputs = f.outputs[:min(len(f.outputs), (len(kept)+1)*f.own)]
}

// remember keeps the outputs at the root, whose token is number at of the text, and at the nodes of path below it.
func (f *fed) remember(at int, path []int32) {
	f.instead[at] = slices.Clone(f.output(0))
	for i, node := range path {
		f.instead[at+1+i] = slices.Clone(f.output(int(node)))
	}
}

// adoptFed is adopt for a draft with states.
func (s *session) adoptFed(p tandem.Proposal) error {
	f, held := s.fed, len(s.tokens)
	keep := s.follow(p)
	s.recall.Keep(keep)
	known := keep == held && s.explored.Len() > 0
	if known {
		s.explored.Hits(s.tokens[held:], func(i int, hit bool) { s.recall.Saw(held+i, hit) })
	}
	if known && int(p.Base) == held && p.Bounds.Width <= s.explored.Width() && !f.fresh(s.seq.Len()) {
		kept := s.explored.Reroot(0)
		f.retain(kept)
		return s.seq.Reroot(nil, rowsOf(kept))
	}
	if known {
		f.remember(held-1, s.explored.Follow(s.tokens[held:]))
	}
	s.explored.Clear()
	n := max(min(s.seq.Len(), keep-1, int(p.Base)-2, f.sure), 0)
	f.rollBack(n, keep < held)
	return s.seq.Truncate(n)
}
