package drafter

import (
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
)

// stateGrower is the grower of a draft model that reads the target's hidden states, its features, beside tokens (Dovetail; EAGLE). The tree
// grows as from tokens; this file is about the states.
//
// Row i of the draft's sequence is token i+1 with the state of position i: the first token has no state before it, so it has no row.
// The state is the target's. Where the target has not been yet, below the last committed token, it is the draft's own output for the row
// of the parent. Rows of committed tokens are computed with the target's state as well. So after a verdict the next pass runs the
// accepted tokens anew, now with their features, and the new root; nothing that was computed below the old root is used again, unless
// the whole next tree was drafted ahead (stateahead.go).
//
// Invariants between passes:
//  1. The first sure rows of the sequence are final: computed with the target's states, or with zeros where those are not to be had.
//     Rows after them were computed with the draft's own outputs, because the features had not come in time, or ahead of them. They are
//     given up as soon as some have come.
//  2. found holds the features of positions from base on. base is at most sure, and one row is kept if there is one: a root may have to be
//     run again for more candidates.
//  3. A sequence publishes only rows that its tokens alone determine: the first sure rows. It becomes private before the first row
//     without features.
type stateGrower struct {
	tokenGrower
	next  atomic.Int64           // first position whose features are neither here nor known not to exist; base + len(rows)
	asked atomic.Uint64          // answers of the verifier, of whatever kind, while the session is opened
	addr  atomic.Pointer[string] // of the verifier that holds the session (tandem.Place)
	none  atomic.Bool            // the verifier keeps none, and is not asked again in this session

	sure   int
	base   int
	found  [][]uint16 // features of positions; nil: not to be had
	finals int        // rows of the pass that is running that will be final: the first of them

	features int               // values of a row of features
	own      int               // values of an output
	outputs  []float32         // (explored nodes, own): the draft's outputs
	instead  map[int][]float32 // own outputs of positions from sure on, in place of features that have not come
	unpacked []float32         // of the pass that is running
	zeros    []float32         // for what is not to be had
	shares   bool              // the sequence is not private yet

	going atomic.Bool // the session drafts ahead
}

// newStateGrower returns the grower of a session whose sequence begins with held rows. The model reads width values of features for a row,
// and its outputs have own values.
func newStateGrower(t tokenGrower, held, width, own int) *stateGrower {
	f := &stateGrower{tokenGrower: t, sure: held, base: held, features: width, own: own, instead: map[int][]float32{},
		zeros: make([]float32, width), shares: true}
	f.next.Store(int64(held))
	t.seq.Publish(held)
	t.d.states.Store(t.Prefix.Session, f)
	return f
}

// infinite are the bits of an f16's exponent.
const infinite = 0x7c00

// end returns the first position whose features are not decided.
func (f *stateGrower) end() int { return f.base + len(f.found) }

// add adds an answer to a question for positions from f.end() or before. It returns how many positions' features it has brought, and
// how many will not come. Errors: Corrupt if the answer is not for a draft that reads taps, and then it is ignored.
func (f *stateGrower) add(a tandem.Features, taps []int) (came, missing int, err error) {
	part := f.features / len(taps) // of one state
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
		f.found = append(f.found, nil)
		missing++
	}
	for i := f.end() - int(a.From); i < a.Len(); i++ {
		row := make([]uint16, 0, f.features)
		for _, at := range from {
			row = append(row, a.Rows[i*a.Width+at:][:part]...)
		}
		if slices.ContainsFunc(row, func(h uint16) bool { return h&infinite == infinite }) { // or no number
			row = nil
			missing++
		} else {
			came++
		}
		f.found = append(f.found, row)
	}
	f.next.Store(int64(f.end()))
	return came, missing, nil
}

// giveUp decides that the features of positions before end will not come, and returns how many those are.
func (f *stateGrower) giveUp(end int) (missing int) {
	for ; f.end() < end; missing++ {
		f.found = append(f.found, nil)
	}
	f.next.Store(int64(f.end()))
	return missing
}

// rollBack gives up all but the first n rows of the sequence, and what is known of states from there on if the text is another one.
func (f *stateGrower) rollBack(n int, other bool) {
	f.sure = min(f.sure, n)
	if f.base > n { // they have been given up: the verifier may still have them
		f.base, f.found = n, nil
	} else if other {
		f.found = f.found[:min(len(f.found), n-f.base)]
	}
	if other {
		clear(f.instead)
	}
	f.seq.Publish(f.sure)
	f.next.Store(int64(f.end()))
}

// fresh reports whether features have come for rows that were computed without.
func (f *stateGrower) fresh(held int) bool { return f.sure < held && f.end() > f.sure }

// complete implements grower: the states of the Extend rows, of which the first is the sequence's next, and of the Nodes.
func (f *stateGrower) complete(part *engine.Part, _ int, _ bool) {
	f.completeText(part)
	for _, parent := range part.Parents {
		part.States = append(part.States, engine.State{Own: f.output(int(parent) + 1)})
	}
}

// completeText gives a part the states of its Extend rows.
func (f *stateGrower) completeText(part *engine.Part) {
	first := f.seq.Len()
	f.finals = 0
	f.unpacked = slices.Grow(f.unpacked[:0], len(part.Extend)*f.features)
	for i := range part.Extend {
		at, state, final := first+i, engine.State{Target: f.zeros}, true
		switch k := at - f.base; {
		case k < len(f.found) && f.found[k] != nil:
			n := len(f.unpacked)
			f.unpacked = f.unpacked[:n+f.features]
			half.Unpack(f.unpacked[n:], f.found[k])
			state.Target = f.unpacked[n:]
		case k < len(f.found):
			f.private()
		default:
			final = false
			f.private()
			if own := f.instead[at]; own != nil {
				state = engine.State{Own: own}
			}
		}
		if part.States = append(part.States, state); final && f.finals == i {
			f.finals++
		}
	}
}

// private keeps from other sessions what this one computes from now on.
func (f *stateGrower) private() {
	if f.shares {
		f.shares = false
		f.seq.Private()
	}
}

// take implements grower. It keeps the draft's outputs at the nodes that the part has explored.
func (f *stateGrower) take(r result) {
	n, ahead := len(r.part.Extend), r.cost > 0
	f.ran(n, f.seq.Len())
	if ahead && n > 0 && f.Missing() == 0 {
		r.tree = true // it begins anew
	}
	if r.tree && n > 0 {
		f.outputs = append(f.outputs[:0], r.out.Hidden(r.part.At, n-1)...) // the root's
	}
	if r.tree || ahead {
		for i := range r.part.Nodes {
			f.outputs = append(f.outputs, r.out.Hidden(r.part.At, n+i)...)
		}
	}
	f.tokenGrower.take(r)
	if ahead && f.explored.Len() > 0 {
		f.explored.Resent(f.job.tree)
	}
}

// output returns the draft's output at an explored node.
func (f *stateGrower) output(node int) []float32 { return f.outputs[node*f.own:][:f.own] }

// ran notes that a pass has computed extended rows, after which the sequence holds held.
func (f *stateGrower) ran(extended, held int) {
	if extended > 0 && f.sure == held-extended {
		f.sure += f.finals
		f.seq.Publish(f.sure)
	}
	if drop := min(f.sure-1-f.base, len(f.found)); drop > 0 {
		f.base, f.found = f.base+drop, slices.Delete(f.found, 0, drop)
	}
	for at := range f.instead {
		if at < f.sure {
			delete(f.instead, at)
		}
	}
}

// retain implements grower. It forgets the outputs at all explored nodes but the root and those in used.
func (f *stateGrower) retain(used []int32) {
	f.retainOutputs(used)
	f.tokenGrower.retain(used)
}

func (f *stateGrower) retainOutputs(used []int32) {
	for i, node := range used {
		copy(f.outputs[(i+1)*f.own:][:f.own], f.output(int(node)))
	}
	f.outputs = f.outputs[:min(len(f.outputs), (len(used)+1)*f.own)]
}

// remember keeps the outputs at the root, whose token is number at of the text, and at the nodes of path below it.
func (f *stateGrower) remember(at int, path []int32) {
	f.instead[at] = slices.Clone(f.output(0))
	for i, node := range path {
		f.instead[at+1+i] = slices.Clone(f.output(int(node)))
	}
}

// adopt implements grower. The accepted tokens are run anew, with their features, and so is all that was explored.
func (f *stateGrower) adopt(p tandem.Proposal) error {
	s, held := f.session, len(f.Tokens)
	path, prepared := f.prepared(p)
	keep := s.Follow(p)
	s.recall.Keep(keep)
	known := keep == held && s.explored.Len() > 0
	if known {
		s.explored.Hits(s.Tokens[held:], func(i int, hit bool) { s.recall.Saw(held+i, hit) })
	}
	if prepared {
		return f.goOn(held, path)
	}
	if known && int(p.Base) == held && p.Bounds.Width <= s.explored.Width() && !f.fresh(s.seq.Len()) {
		kept := s.explored.Reroot(0)
		f.retainOutputs(kept)
		return s.seq.Reroot(nil, rowsOf(kept))
	}
	if known {
		f.remember(held-1, s.explored.Follow(s.Tokens[held:]))
	}
	s.explored.Clear()
	n := max(min(s.seq.Len(), keep-1, int(p.Base)-2, f.sure), 0)
	err := s.seq.Truncate(n)
	f.rollBack(min(n, s.seq.Len()), keep < held)
	return err
}

// closed implements grower.
func (f *stateGrower) closed() { f.d.states.CompareAndDelete(f.Prefix.Session, f) }
