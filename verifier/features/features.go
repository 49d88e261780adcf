// Package features keeps the target's hidden states of committed positions for the drafters that read them.
package features

import (
	"context"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
)

const (
	// DefaultBytes is how much memory the features of all sessions take at most, unless told otherwise.
	DefaultBytes = 64 << 20
	// pageRows is how many positions share a page of features.
	pageRows = 32
	// mostAnswered is about how many bytes one answer holds: a larger one would take longer to send than its first rows to use.
	mostAnswered = 256 << 10
)

// Store keeps the target's hidden states of committed positions, as f16, for drafters that ask for them. Safe for concurrent use: it
// answers without the schedule's goroutine, which may be busy with a pass of the target. A nil *Store keeps nothing.
//
//  1. Only rows of committed positions are kept: those of the prompt as its pieces are computed, after a verdict the root's and those
//     of the accepted nodes. Converting them waits until the verdicts are on their way (schedule.Session.Settle).
//  2. Positions found in memory that other sessions have filled have no features: no pass computes them.
//  3. All sessions together have at most a fixed number of pages. When they are used up, the session with the most gives up its oldest.
//  4. A session's rows are kept from the moment that an Opening announces that they will be wanted, or a drafter asks for some.
type Store struct {
	taps     []int
	width    int // values of a row
	most     int // pages in use
	counters *tandem.Counters

	mu    sync.Mutex
	of    map[tandem.SessionID]*kept
	pages int        // in use
	spare [][]uint16 // free pages, kept for use again
	row   []float32  // scratch, (width)
	read  readRow
}

// readRow copies the hidden states of a row of a pass to dst.
type readRow func(out *engine.Output, part, row int, dst []float32)

// kept is what is kept of one session.
type kept struct {
	epoch   tandem.Epoch
	wanted  bool
	end     int           // nothing will be added before this position
	coming  int           // rows of positions before this one are about to come: whoever asks for them waits
	pages   []page        // ascending, with gaps where positions have no features
	changed chan struct{} // closed when end has changed or the session is gone
}

// page holds the rows of successive positions.
type page struct {
	first, n int
	rows     []uint16 // (pageRows, width)
}

// New returns a store for rows of width values, those of all taps one after the other. Its pages take at most so many bytes, but one there
// is in any case. It is nil without taps.
func New(taps []int, width, bytes int, counters *tandem.Counters) *Store {
	if len(taps) == 0 {
		return nil
	}
	return &Store{taps: taps, width: width, most: max(bytes/(2*pageRows*width), 1), counters: counters,
		of: map[tandem.SessionID]*kept{}, row: make([]float32, width), read: (*engine.Output).Features}
}

// Open begins to keep the session that o opens. Passes will compute its prompt but for the first held tokens, which were found in memory,
// and the last.
func (f *Store) Open(o tandem.Opening, held int) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.of[o.Session] = &kept{epoch: o.Epoch, wanted: o.Features, end: held, coming: len(o.Tokens) - 1, changed: make(chan struct{})}
}

// with calls do with what is kept of a session, if anything is, under mu.
func (f *Store) with(id tandem.SessionID, do func(k *kept)) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := f.of[id]; k != nil {
		do(k)
	}
}

// Forget gives up what is kept of a session, if anything is, and ends waits for more.
func (f *Store) Forget(id tandem.SessionID) {
	f.with(id, func(k *kept) {
		for len(k.pages) > 0 {
			f.drop(k)
		}
		delete(f.of, id)
		close(k.changed)
	})
}

// Expect says that the rows of a session's positions before end are about to be kept: who asks for them waits.
func (f *Store) Expect(id tandem.SessionID, end int) {
	f.with(id, func(k *kept) { k.coming = end })
}

// Decided says that no more rows will come for a session's positions before end: whoever waits for one goes on without.
func (f *Store) Decided(id tandem.SessionID, end int) {
	f.with(id, func(k *kept) { k.advance(end) })
}

func (k *kept) advance(end int) {
	if end > k.end {
		k.end = end
		close(k.changed)
		k.changed = make(chan struct{})
	}
}

// Keep adds rows of part number part of a pass to a session. They belong to the positions from first on. out is only read.
func (f *Store) Keep(id tandem.SessionID, first int, out *engine.Output, part int, rows []int) {
	if len(rows) == 0 {
		return
	}
	f.with(id, func(k *kept) {
		if k.wanted && first >= k.end {
			for i, row := range rows {
				f.read(out, part, row, f.row)
				half.Pack(f.place(k, first+i), f.row)
			}
			f.counters.Add("features.kept", int64(len(rows)))
		}
		k.advance(first + len(rows))
	})
}

// place returns where a session's row of position at goes, after all that it has.
func (f *Store) place(k *kept, at int) []uint16 {
	n := len(k.pages)
	if n == 0 || k.pages[n-1].n == pageRows || k.pages[n-1].first+k.pages[n-1].n != at {
		rows := f.memory(k) // may take k's oldest
		k.pages = append(k.pages, page{first: at, rows: rows})
		n = len(k.pages)
	}
	p := &k.pages[n-1]
	p.n++
	return p.rows[(p.n-1)*f.width : p.n*f.width]
}

// memory returns memory for a page of k, taken from a session if there is none.
func (f *Store) memory(k *kept) []uint16 {
	if f.pages == f.most {
		victim := k
		for _, other := range f.of {
			if len(other.pages) > len(victim.pages) {
				victim = other
			}
		}
		f.counters.Add("features.dropped", int64(victim.pages[0].n))
		f.drop(victim)
	}
	f.pages++
	if n := len(f.spare); n > 0 {
		rows := f.spare[n-1]
		f.spare = f.spare[:n-1]
		return rows
	}
	return make([]uint16, pageRows*f.width)
}

// drop gives up a session's oldest page.
func (f *Store) drop(k *kept) {
	f.spare = append(f.spare, k.pages[0].rows)
	k.pages = slices.Delete(k.pages, 0, 1)
	f.pages--
}

// Bytes returns how much memory the rows of all sessions take now.
func (f *Store) Bytes() int64 {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(f.pages) * pageRows * int64(f.width) * 2
}

// answer returns what is kept for q, or the channel to wait for before it asks again.
func (f *Store) answer(q tandem.FeatureQuery) (out tandem.Features, wait <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.of[q.Session]
	switch {
	case k == nil:
		return out, nil, tandem.Errorf("features", tandem.UnknownSession, "session %v is not held", q.Session)
	case k.epoch != q.Epoch:
		return out, nil, tandem.Errorf("features", tandem.Stale, "epoch %d of session %v: epoch %d is held", q.Epoch, q.Session, k.epoch)
	}
	k.wanted = true
	out = tandem.Features{From: q.From, Taps: slices.Clone(f.taps), Width: f.width}
	from, until := int(q.From), min(int(q.Until), k.end)
	if from >= k.end {
		if from < k.coming {
			return out, k.changed, nil
		}
		return out, nil, nil
	}
	most := max(mostAnswered/(2*f.width), 1)
	for _, p := range k.pages {
		if p.first+p.n <= from {
			continue
		}
		if p.first > from && out.Len() > 0 || p.first >= until || out.Len() == most {
			break
		}
		from = max(from, p.first)
		if out.Len() == 0 {
			out.From = tandem.Position(from)
		}
		n := min(p.first+p.n, until, from+most-out.Len()) - from
		out.Rows = append(out.Rows, p.rows[(from-p.first)*f.width:][:n*f.width]...)
		from += n
	}
	if out.Len() == 0 {
		out.From = tandem.Position(until) // what was asked for is not to be had
	}
	return out, nil, nil
}

// Features implements tandem.FeatureSource. Errors: Unsupported of a nil Store, UnknownSession, Stale for another epoch, Invalid for a
// query that asks for nothing, that of a ctx that ends while it waits.
func (f *Store) Features(ctx context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	const op = "features"
	if f == nil {
		return tandem.Features{}, tandem.Errorf(op, tandem.Unsupported, "the verifier keeps no hidden states: want --taps")
	}
	if err := q.Validate(); err != nil {
		return tandem.Features{}, err
	}
	for {
		out, wait, err := f.answer(q)
		if err != nil || wait == nil {
			return out, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return tandem.Features{}, tandem.Errorf(op, tandem.KindOf(ctx.Err()), "waiting for position %d: %w", q.From, ctx.Err())
		}
	}
}

var _ tandem.FeatureSource = (*Store)(nil)
