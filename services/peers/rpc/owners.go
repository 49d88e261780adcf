package rpc

import (
	"context"
	"sync"

	"github.com/tandem-llm/tandem"
)

// mostHeld is the number of sessions of one process that Owners keeps: many times what a gateway runs.
const mostHeld = 8192

// Owners knows which process has opened which session at a server, so that no other process gets its verdicts, closes it
// or submits tickets for it. The zero value knows none. Safe for concurrent use.
//
// A session belongs to the process that opened it, from its first Open until it is closed or the process is gone,
// even if the server has dropped it meanwhile: its owner must still be told. A process may assert
// that it owns a session that is not open here, because it opened it before this server was started; an Open
// outweighs an assertion.
type Owners struct {
	mu   sync.Mutex
	of   map[tandem.SessionID]*holding
	held map[uint64]int // sessions by process
	next uint64
}

// holding is one session's owner.
type holding struct {
	process uint64
	opens   int    // calls of Open in progress
	open    bool   // one has succeeded
	age     uint64 // smaller is older
}

// Caller returns the number of the process that made ctx's call. Errors: Unauthenticated if it names none.
func (o *Owners) Caller(ctx context.Context) (uint64, error) {
	if process := Caller(ctx); process != 0 {
		return process, nil
	}
	return 0, tandem.Errorf("rpc", tandem.Unauthenticated,
		"the call does not say which process makes it: want one number other than 0, in hexadecimal, as %s", headerProcess)
}

// Open records process as the owner of a session that it is about to open. The caller must call done with whether that
// succeeded. Errors: UnknownSession for another process's session.
func (o *Owners) Open(id tandem.SessionID, process uint64) (done func(ok bool), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.of[id]
	if h != nil && h.process != process && (h.open || h.opens > 0) {
		return nil, notHeld(id)
	}
	if h == nil || h.process != process {
		h = o.enter(id, process)
	}
	h.opens++
	return func(ok bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if h.opens--; ok {
			h.open = true
		}
		if h.opens == 0 && !h.open && o.of[id] == h {
			o.remove(id, h)
		}
	}, nil
}

// Assert records process as the owner of those sessions that have none.
func (o *Owners) Assert(ids []tandem.SessionID, process uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids[:min(len(ids), mostHeld)] {
		if o.of[id] == nil && id != 0 {
			o.enter(id, process)
		}
	}
}

// Close removes a session if it is process's, and reports whether it was.
func (o *Owners) Close(id tandem.SessionID, process uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.of[id]
	if h == nil || h.process != process {
		return false
	}
	if h.open = false; h.opens == 0 {
		o.remove(id, h)
	}
	return true
}

// Check returns nil if the session is process's, else UnknownSession, which does not tell whether another process has it.
func (o *Owners) Check(id tandem.SessionID, process uint64) error {
	if process == 0 || o.Of(id) != process {
		return notHeld(id)
	}
	return nil
}

// Of returns the process that owns the session, 0 for none.
func (o *Owners) Of(id tandem.SessionID) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if h := o.of[id]; h != nil {
		return h.process
	}
	return 0
}

// Forget removes the sessions of a process that is gone.
func (o *Owners) Forget(process uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, h := range o.of {
		if h.process == process {
			o.remove(id, h)
		}
	}
}

// enter makes process the owner of a session; a process with too many loses its oldest. Called with mu held.
func (o *Owners) enter(id tandem.SessionID, process uint64) *holding {
	if o.of == nil {
		o.of, o.held = map[tandem.SessionID]*holding{}, map[uint64]int{}
	}
	if old := o.of[id]; old != nil {
		o.remove(id, old)
	}
	if o.held[process] >= mostHeld {
		var oldest tandem.SessionID
		for other, h := range o.of {
			if h.process == process && (oldest == 0 || h.age < o.of[oldest].age) {
				oldest = other
			}
		}
		o.remove(oldest, o.of[oldest])
	}
	o.next++
	h := &holding{process: process, age: o.next}
	o.of[id] = h
	o.held[process]++
	return h
}

// remove forgets a session. Called with mu held.
func (o *Owners) remove(id tandem.SessionID, h *holding) {
	delete(o.of, id)
	if o.held[h.process]--; o.held[h.process] == 0 {
		delete(o.held, h.process)
	}
}

func notHeld(id tandem.SessionID) error {
	return tandem.Errorf("session", tandem.UnknownSession, "session %v is not held", id)
}
