// Package trees keeps token trees in shared memory: the process that makes a tree writes it once, and tickets and answers carry its
// handle.
package trees

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

const (
	// handleBytes is the size of a handle in a message. A tree that is no larger, such as a root alone, is not worth one.
	handleBytes = 32
	// ticketBytes is room in an envelope for all but the tree.
	ticketBytes = 512
)

// Writer writes the trees of one process into its segment. A session has at most one tree of each drafter there: before the next
// one is written, verifier and gateway have read the last. Safe for concurrent use; a nil Writer writes nothing.
type Writer struct {
	segment  *shm.Segment
	inline   int
	counters *tandem.Counters
}

// NewWriter returns a Writer into segment, which the caller owns. Trees of at most inline encoded bytes travel inside their messages.
// The Writer counts "trees.shared", trees that it has written, and "tickets.no_slot", trees that found no room.
func NewWriter(segment *shm.Segment, inline int, counters *tandem.Counters) *Writer {
	return &Writer{segment: segment, inline: max(inline, handleBytes), counters: counters}
}

// Envelope returns t in the form for the pool: with a handle if the verifier has the segment mapped, or if the tree is too large for a
// ticket. In the second case there is no lease, and the verifier must fetch the tree. Errors: Invalid.
func (w *Writer) Envelope(t tandem.Ticket) (wire.Envelope, error) {
	e := wire.Envelope{Ticket: t}
	payload, err := wire.MarshalTree(t.Tree)
	if err != nil || w == nil {
		return e, err
	}
	read := w.segment.Readers(shm.Verifier) > 0
	if len(payload) <= w.inline || !read && len(payload)+ticketBytes <= wire.MaxEnvelope {
		w.Forget(t.Drafter, t.Session) // Answer must not mistake an older tree for this one
		return e, nil
	}
	h, ok := w.put(t.Drafter, t.Session, version(t.Epoch, t.Base), payload)
	if ok {
		e.Handle = h
		if read {
			e.Lease = w.segment.Lease()
		}
	}
	return e, nil
}

// Answer returns the handle of the tree that a drafter has made for p, for a caller that has mapped the segment called mapped; zero if
// the answer must hold the tree itself. A tree that a ticket already names is not written again.
func (w *Writer) Answer(drafter string, p tandem.Proposal, tree tandem.Tree, mapped uint64) shm.Handle {
	if w == nil || mapped != w.segment.ID() || tree.Len() < 2 {
		return shm.Handle{}
	}
	if h, ok := w.segment.Find(shm.Key{Drafter: drafter, Session: uint64(p.Session)}, version(p.Epoch, p.Base)); ok && !p.Return {
		return h
	}
	payload, err := wire.MarshalTree(tree)
	if err != nil || len(payload) <= w.inline {
		return shm.Handle{}
	}
	h, _ := w.put(drafter, p.Session, version(p.Epoch, p.Base), payload)
	return h
}

// Forget ends the lease of a session's tree of that drafter.
func (w *Writer) Forget(drafter string, id tandem.SessionID) {
	if w != nil {
		w.segment.Forget(shm.Key{Drafter: drafter, Session: uint64(id)})
	}
}

// Copy returns a tree's payload, for a verifier that cannot read the segment. Errors: Stale, Corrupt.
func (w *Writer) Copy(h shm.Handle) ([]byte, error) {
	if w == nil {
		return nil, tandem.Errorf("trees", tandem.Stale, "segment %016x: this process has no shared memory", h.Segment)
	}
	return w.segment.Copy(h)
}

// Release ends the lease of a tree that was not sent after all. Unknown handles are ignored.
func (w *Writer) Release(h shm.Handle) {
	if w != nil {
		w.segment.Release(h)
	}
}

func (w *Writer) put(drafter string, id tandem.SessionID, version uint64, payload []byte) (shm.Handle, bool) {
	h, err := w.segment.Put(shm.Key{Drafter: drafter, Session: uint64(id)}, version, payload)
	if err != nil { // every slot is leased, or the tree is larger than one
		w.counters.Add("tickets.no_slot", 1)
		return h, false
	}
	w.counters.Add("trees.shared", 1)
	return h, true
}

// version distinguishes the trees of a session.
func version(e tandem.Epoch, base tandem.Position) uint64 {
	return uint64(e)<<32 | uint64(uint32(base))
}

// Read returns the tree that h names; it must still pass Tree.Validate. Errors: those of the segment, and Corrupt for a payload
// that is not a tree.
func Read(from interface {
	Read(shm.Handle) ([]byte, error)
}, h shm.Handle) (tandem.Tree, error) {
	payload, err := from.Read(h)
	if err != nil {
		return tandem.Tree{}, err
	}
	return wire.UnmarshalTree(payload)
}
