package gateway

import (
	"context"
	"errors"
	"sync"
	"time"
	"unsafe"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/peer"
)

// patience is how long a session whose output is not read keeps its slot before it is parked: a client that takes
// half of what waits for it in this time is not slow.
const patience = 100 * time.Millisecond

// output decouples a session from its client's sink, so that the session never waits for a client that does not
// read. The session's goroutine puts pieces in; the caller of Generate hands them to the sink one by one.
//
//	session ─ put ▶ pieces ─ deliver ▶ sink
//
// Its rules:
//
//  1. The sink gets each piece once, in order, from one goroutine, and nothing after it has failed or the request
//     was cancelled.
//  2. put never waits. give says when too much is unread, so the output holds at most limit and one piece more.
//  3. A piece that the sink keeps waiting for the unread time ends the request.
//  4. Of the prompt's progress it holds the latest report, which goes first.
//
// A client that reads costs a session nothing: its next round runs while the sink writes.
type output struct {
	sink   tandem.Sink
	limit  int           // bytes, as size counts them
	unread time.Duration // longest time that the sink may take for one piece

	mu     sync.Mutex
	pieces []piece
	latest *tandem.PromptProgress // nil: the sink has been told
	bytes  int                    // of pieces, and of the one that the sink is taking
	ended  bool                   // the session will put nothing more
	err    error                  // of the sink: it takes nothing more

	more chan struct{} // capacity 1: deliver should look for pieces, or for the end
	less chan struct{} // capacity 1: at least half of limit is free
}

// piece is one call of the sink.
type piece struct {
	progress *tandem.PromptProgress
	started  *tandem.Started // nil without progress: a delta
	delta    tandem.Delta
	bytes    int
}

func newOutput(s tandem.Sink, limit int, unread time.Duration) *output {
	return &output{sink: s, limit: limit, unread: unread, more: make(chan struct{}, 1), less: make(chan struct{}, 1)}
}

// size returns about how many bytes of memory a delta takes. What it shares with the session, such as the names of
// drafters, counts too.
func size(d *tandem.Delta) int {
	n := int(unsafe.Sizeof(piece{})) + len(d.Text) + 4*len(d.Tokens) + len(d.Origins)
	for _, l := range d.Logprobs {
		n += int(unsafe.Sizeof(l)) + len(l.Top)*int(unsafe.Sizeof(tandem.TopLogprob{}))
	}
	if r := d.Round; r != nil {
		n += int(unsafe.Sizeof(*r)) + len(r.Choice) + len(r.Why) +
			4*(len(r.Tree.Tokens)+len(r.Tree.Parents)+len(r.Tree.LogProbs)+len(r.Path)) +
			2*len(r.Votes) + len(r.Lanes)*int(unsafe.Sizeof(tandem.Lane{}))
		for _, name := range r.Drafters {
			n += int(unsafe.Sizeof(name)) + len(name)
		}
	}
	return n
}

// start puts what the sink is to get first. It holds the prompt, which is the client's own, and does not count.
func (o *output) start(s tandem.Started) error {
	defer o.flush()
	return o.put(piece{started: &s})
}

// put adds a piece, for flush to hand on. An error is the sink's, which then takes nothing more.
func (o *output) put(p piece) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return o.err
	}
	o.pieces, o.bytes = append(o.pieces, p), o.bytes+p.bytes
	return nil
}

// progress puts how far the prompt has been read.
func (o *output) progress(p tandem.PromptProgress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.latest = &p
	wake(o.more)
}

// flush makes deliver hand on what has been put.
func (o *output) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pieces) > 0 {
		wake(o.more)
	}
}

// end says that the session puts nothing more.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	wake(o.more)
}

// give adds a round's output, the last of all or not. If too much is unread, it waits a little for the client to read; unread reports that
// it has not read half of that meanwhile.
func (o *output) give(ctx context.Context, d tandem.Delta, last bool) (unread bool, err error) {
	if err := o.put(piece{delta: d, bytes: size(&d)}); err != nil {
		return false, err
	}
	full := o.full()
	if last || full {
		o.flush()
	}
	if last || !full {
		return false, nil
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return !o.drained(limited) && ctx.Err() == nil, nil
}

// full reports whether no more should be put for now.
func (o *output) full() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.bytes >= o.limit
}

// drained waits until half of limit is free or ctx ends, and reports whether it is free.
func (o *output) drained(ctx context.Context) bool {
	for {
		o.mu.Lock()
		free := o.bytes <= o.limit/2
		o.mu.Unlock()
		if free {
			return true
		}
		select {
		case <-o.less:
		case <-ctx.Done():
			return false
		}
	}
}

// deliver hands all pieces to the sink, and returns when the session has ended and all are taken. If the sink fails
// or keeps a piece waiting for too long, quit ends the session with that error, which deliver returns. Pieces left when ctx
// ends are dropped, and whole is false.
func (o *output) deliver(ctx context.Context, quit context.CancelCauseFunc) (whole bool, err error) {
	late := time.AfterFunc(o.unread, func() {
		quit(o.fail(tandem.Errorf(op, tandem.Deadline, "the client has read nothing for %v: want all output read as it comes", o.unread)))
	})
	late.Stop()
	defer late.Stop()
	for {
		p, there := o.next(ctx)
		if !there {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.ended && len(o.pieces) == 0, o.err
		}
		late.Reset(o.unread)
		err := peer.Guard(func() error { return p.give(o.sink) })
		late.Stop()
		if err != nil {
			quit(o.fail(sinkError(err)))
		}
		o.took(p)
	}
}

// give calls the sink.
func (p piece) give(to tandem.Sink) error {
	switch {
	case p.progress != nil:
		return to.Progress(*p.progress)
	case p.started != nil:
		return to.Started(*p.started)
	}
	return to.Delta(p.delta)
}

// next waits for the next piece; there is none if the session or ctx has ended, or the sink has failed.
func (o *output) next(ctx context.Context) (p piece, there bool) {
	for {
		o.mu.Lock()
		switch {
		case o.err != nil || ctx.Err() != nil || len(o.pieces) == 0 && o.latest == nil && o.ended:
			o.mu.Unlock()
			return p, false
		case o.latest != nil:
			p.progress, o.latest = o.latest, nil
			o.mu.Unlock()
			return p, true
		case len(o.pieces) > 0:
			p, o.pieces[0] = o.pieces[0], p
			if o.pieces = o.pieces[1:]; len(o.pieces) == 0 {
				o.pieces = nil
			}
			o.mu.Unlock()
			return p, true
		}
		o.mu.Unlock()
		select {
		case <-o.more:
		case <-ctx.Done():
		}
	}
}

// took counts a piece as read.
func (o *output) took(p piece) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.bytes -= p.bytes; o.bytes <= o.limit/2 {
		wake(o.less)
	}
}

// fail keeps the sink's first error, and returns it.
func (o *output) fail(err error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	return o.err
}

// wake makes a channel of capacity 1 readable.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sinkError returns the error of a request whose sink refused to go on. It counts as Canceled by the client,
// unless the sink's error has another kind.
func sinkError(err error) error {
	kind := tandem.KindOf(err)
	if e := (*tandem.Error)(nil); kind == tandem.Internal && !errors.As(err, &e) {
		kind = tandem.Canceled
	}
	return tandem.Errorf(op, kind, "output not taken: %w", err)
}
