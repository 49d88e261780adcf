package states

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
)

// Feed holds what has come of the target's hidden states (features) for a session, and knows which rows of the draft's cache were computed
// with them.
//
// Row i of the draft's sequence is token i+1 with the state of position i: the first token has no state before it, so it has no row
// (grow.Traits.Skipped). The state is the target's. Where it has not come, it is the draft's own output for the row before (Instead), or
// zero.
//
// Invariants between passes:
//  1. The first sure rows of the sequence are final: computed with the target's states, or with zeros where those are not to be had.
//     Rows after them were computed with the draft's own outputs, because the features had not come in time, or ahead of them. They are
//     given up as soon as some have come.
//  2. found holds the features of positions from base on. base is at most sure, and one row is kept if there is one: a root may have to be
//     run again for more candidates.
//  3. A sequence publishes only rows that its tokens alone determine: the first sure rows. It becomes private before the first row
//     without features.
//
// ask and the atomic fields are safe for concurrent use; all else belongs to the schedule's goroutine.
type Feed struct {
	s     *grow.Session
	next  atomic.Int64           // first position whose features are neither here nor known not to exist; base + len(found)
	addr  atomic.Pointer[string] // of the verifier that holds the session (tandem.Place)
	none  atomic.Bool            // the verifier keeps none, and is not asked again in this session
	going atomic.Bool            // the session drafts ahead

	ready func(p tandem.Proposal) bool // reports whether the proposal's tree was drafted ahead; nil: none is

	width    int // values of a row of features
	sure     int
	base     int
	found    [][]uint16        // features of positions, f16; nil: not to be had
	finals   int               // rows of the pass that is running that will be final: the first of them
	instead  map[int][]float32 // the draft's outputs at positions from sure on, in place of features that have not come
	unpacked []float32         // of the pass that is running
	zeros    []float32         // for what is not to be had
	shares   bool              // the sequence is not private yet
}

// newFeed returns the feed of a session whose sequence begins with held final rows, for a model that reads width values of features a row.
func newFeed(s *grow.Session, held, width int) *Feed {
	f := &Feed{s: s, sure: held, base: held, width: width, instead: map[int][]float32{}, zeros: make([]float32, width), shares: true}
	f.next.Store(int64(held))
	s.Cache.Publish(held)
	return f
}

// infinite are the bits of an f16's exponent.
const infinite = 0x7c00

// end returns the first position whose features are not decided.
func (f *Feed) end() int { return f.base + len(f.found) }

// Sure returns how many rows of the sequence are final.
func (f *Feed) Sure() int { return f.sure }

// ask asks for the session's features of positions before until that are not here. Errors: those of tandem.FeatureSource, and Unsupported
// if there is none.
func (f *Feed) ask(ctx context.Context, until int) (tandem.Features, error) {
	c := &f.s.Draft.Config
	q := tandem.FeatureQuery{Session: f.s.ID, Epoch: f.s.Epoch, From: tandem.Position(f.next.Load()), Until: tandem.Position(until)}
	if addr := f.addr.Load(); addr != nil {
		q.Addr = *addr
	}
	if c.Features == nil {
		return tandem.Features{}, tandem.Errorf("features", tandem.Unsupported, "nobody hands them out")
	}
	a, err := c.Features.Features(ctx, q)
	if err == nil {
		err = a.Validate(q)
	}
	if errors.Is(err, tandem.Unsupported) {
		f.none.Store(true)
	}
	if errors.Is(err, tandem.Corrupt) || errors.Is(err, tandem.Stale) {
		c.Counters.Add("features."+tandem.KindOf(err).String(), 1)
	}
	if err != nil {
		return tandem.Features{}, err
	}
	return a, nil
}

// learn takes what has come for the session, and counts it. Errors: Corrupt.
func (f *Feed) learn(a tandem.Features) error {
	c := &f.s.Draft.Config
	came, missing, err := f.add(a, c.Taps)
	if err != nil {
		c.Counters.Add("features.corrupt", 1)
	}
	c.Counters.Add("features.came", int64(came))
	c.Counters.Add("features.missing", int64(missing))
	return err
}

// add adds an answer to a question for positions from f.end() or before. It returns how many positions' features it has brought, and
// how many will not come. Errors: Corrupt if the answer is not for a draft that reads taps, and then it is ignored.
func (f *Feed) add(a tandem.Features, taps []int) (came, missing int, err error) {
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
	missing = f.giveUp(int(a.From))
	for i := f.end() - int(a.From); i < a.Len(); i++ {
		row := make([]uint16, 0, f.width)
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
func (f *Feed) giveUp(end int) (missing int) {
	for ; f.end() < end; missing++ {
		f.found = append(f.found, nil)
	}
	f.next.Store(int64(f.end()))
	return missing
}

// Truncate gives up all but the first n rows of the sequence; a recurrent one may have to give up more. other: the text is another one from
// there on, so what is known of its states goes too. Errors: those of engine.Sequence.Truncate.
func (f *Feed) Truncate(n int, other bool) error {
	err := f.s.Cache.Truncate(n)
	n = min(n, f.s.Cache.Len())
	f.sure = min(f.sure, n)
	if f.base > n { // they have been given up: the verifier may still have them
		f.base, f.found = n, nil
	} else if other {
		f.found = f.found[:min(len(f.found), n-f.base)]
	}
	if other {
		clear(f.instead)
	}
	f.s.Cache.Publish(f.sure)
	f.next.Store(int64(f.end()))
	return err
}

// Fresh reports whether features have come for rows that were computed without.
func (f *Feed) Fresh() bool { return f.sure < f.s.Cache.Len() && f.end() > f.sure }

// Instead keeps a copy of the draft's output at a position of the text. It takes the place of that position's features until they come.
func (f *Feed) Instead(at int, output []float32) { f.instead[at] = slices.Clone(output) }

// Complete gives the rows of part.Extend, the next of the sequence, their states. They are valid until the next Complete.
func (f *Feed) Complete(part *engine.Part) {
	first := f.s.Cache.Len()
	f.finals = 0
	f.unpacked = slices.Grow(f.unpacked[:0], len(part.Extend)*f.width)
	for i := range part.Extend {
		at, state, final := first+i, engine.State{Target: f.zeros}, true
		switch k := at - f.base; {
		case k < len(f.found) && f.found[k] != nil:
			n := len(f.unpacked)
			f.unpacked = f.unpacked[:n+f.width]
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
func (f *Feed) private() {
	if f.shares {
		f.shares = false
		f.s.Cache.Private()
	}
}

// Ran notes that a pass has computed extended rows of the text, to which Complete had given states.
func (f *Feed) Ran(extended int) {
	if extended > 0 && f.sure == f.s.Cache.Len()-extended {
		f.sure += f.finals
		f.s.Cache.Publish(f.sure)
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
