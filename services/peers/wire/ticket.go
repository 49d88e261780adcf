package wire

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/shm"
)

// MaxEnvelope is the size limit of an encoded ticket in bytes.
const MaxEnvelope = 4 << 10

// FromTree encodes t, which must be a valid tree.
func FromTree(t tandem.Tree) *peerv1.Tree {
	parents := make([]uint32, 0, len(t.Parents))
	for _, p := range t.Parents[1:] {
		parents = append(parents, uint32(p))
	}
	return &peerv1.Tree{Tokens: FromTokens(t.Tokens), Parents: parents, LogProbs: t.LogProbs, Prompts: uint32(t.Prompts)}
}

// ToTree decodes t. The result must still pass Tree.Validate.
func ToTree(t *peerv1.Tree) (tandem.Tree, error) {
	if len(t.GetTokens()) != len(t.GetParents())+1 {
		return tandem.Tree{}, tandem.Errorf(op, tandem.Corrupt, "tree has %d tokens and %d parents: want one parent fewer",
			len(t.GetTokens()), len(t.GetParents()))
	}
	out := tandem.Tree{Tokens: ToTokens(t.GetTokens()), Parents: make([]int32, 1, len(t.GetTokens())), LogProbs: t.GetLogProbs(),
		Prompts: int(t.GetPrompts())}
	out.Parents[0] = -1
	for _, p := range t.GetParents() {
		out.Parents = append(out.Parents, int32(p))
	}
	return out, nil
}

// MarshalTree encodes t as the bytes of a shared-memory payload.
func MarshalTree(t tandem.Tree) ([]byte, error) {
	if len(t.Tokens) == 0 || len(t.Parents) != len(t.Tokens) {
		return nil, tandem.Errorf(op, tandem.Invalid, "tree has %d tokens and %d parents: want as many, and at least one", len(t.Tokens),
			len(t.Parents))
	}
	b, err := proto.Marshal(FromTree(t))
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Internal, "%w", err)
	}
	return b, nil
}

// UnmarshalTree decodes a shared-memory payload. The result must still pass Tree.Validate.
func UnmarshalTree(b []byte) (tandem.Tree, error) {
	var t peerv1.Tree
	if err := proto.Unmarshal(b, &t); err != nil {
		return tandem.Tree{}, tandem.Errorf(op, tandem.Corrupt, "payload is not a tree: %w", err)
	}
	return ToTree(&t)
}

// Envelope is a ticket as it travels: with its tree, or with the handle of a payload that holds it.
type Envelope struct {
	Ticket tandem.Ticket // Tree is empty if Handle is set; Trace travels beside the envelope
	Handle shm.Handle    // zero: the tree is in Ticket
	// Lease is how long after the sending the payload stays, unless the session's next tree comes before; a process that has
	// the segment mapped may read it. 0: it must be fetched. Sent in milliseconds, at most maxLease.
	Lease time.Duration
}

// maxLease bounds Envelope.Lease.
const maxLease = time.Hour

// Marshal encodes e. A result above MaxEnvelope is Exhausted.
func (e Envelope) Marshal() ([]byte, error) {
	b, err := proto.Marshal(FromEnvelope(e))
	switch {
	case err != nil:
		return nil, tandem.Errorf(op, tandem.Invalid, "ticket of session %s: %w", e.Ticket.Session, err)
	case len(b) > MaxEnvelope:
		return nil, tandem.Errorf(op, tandem.Exhausted, "ticket of session %s has %d bytes: at most %d travel in the pool",
			e.Ticket.Session, len(b), MaxEnvelope)
	}
	return b, nil
}

// FromEnvelope encodes e, whose tree, unless it has a handle, must be valid.
func FromEnvelope(e Envelope) *peerv1.Ticket {
	t := e.Ticket
	m := &peerv1.Ticket{Version: tandem.Protocol, Session: uint64(t.Session), Epoch: uint32(t.Epoch), Base: int32(t.Base),
		Hash: uint64(t.Hash), Drafter: t.Drafter, Ways: t.SelfDrafts, Successors: uint32(t.Successors)}
	if e.Handle == (shm.Handle{}) {
		m.Payload = &peerv1.Ticket_Inline{Inline: FromTree(t.Tree)}
	} else {
		m.Payload = &peerv1.Ticket_Handle{Handle: FromHandle(e.Handle)}
		m.LeaseMs = uint32(min(e.Lease, maxLease).Milliseconds())
	}
	return m
}

// UnmarshalEnvelope decodes a message from the pool, which may be anything. Errors: Corrupt,
// Unsupported (another protocol). An inline tree must still pass Tree.Validate.
func UnmarshalEnvelope(b []byte) (Envelope, error) {
	if len(b) > MaxEnvelope {
		return Envelope{}, tandem.Errorf(op, tandem.Corrupt, "ticket has %d bytes: at most %d", len(b), MaxEnvelope)
	}
	var m peerv1.Ticket
	if err := proto.Unmarshal(b, &m); err != nil {
		return Envelope{}, tandem.Errorf(op, tandem.Corrupt, "not a ticket: %w", err)
	}
	return ToEnvelope(&m)
}

// ToEnvelope decodes m, with the errors of UnmarshalEnvelope.
func ToEnvelope(m *peerv1.Ticket) (Envelope, error) {
	switch {
	case m.GetVersion() == 0:
		return Envelope{}, tandem.Errorf(op, tandem.Corrupt, "ticket has version 0: want that of a protocol, such as %d", tandem.Protocol)
	case m.GetVersion() != tandem.Protocol:
		return Envelope{}, tandem.Errorf(op, tandem.Unsupported, "ticket of protocol %d: this process speaks %d", m.GetVersion(),
			tandem.Protocol)
	case m.GetSession() == 0:
		return Envelope{}, tandem.Errorf(op, tandem.Corrupt, "ticket has no session")
	case m.GetBase() < 1:
		return Envelope{}, tandem.Errorf(op, tandem.Corrupt, "ticket has base %d: want at least 1", m.GetBase())
	}
	e := Envelope{Ticket: tandem.Ticket{Session: tandem.SessionID(m.GetSession()), Epoch: tandem.Epoch(m.GetEpoch()),
		Base: tandem.Position(m.GetBase()), Hash: tandem.PrefixHash(m.GetHash()), Drafter: m.GetDrafter()}}
	var err error
	if e.Ticket.SelfDrafts, err = toWays(m.GetWays()); err != nil {
		return e, err
	}
	if e.Ticket.Successors, err = toSuccessors(m.GetSuccessors()); err != nil {
		return e, err
	}
	switch p := m.GetPayload().(type) {
	case *peerv1.Ticket_Inline:
		e.Ticket.Tree, err = ToTree(p.Inline)
	case *peerv1.Ticket_Handle:
		e.Handle, e.Lease = ToHandle(p.Handle), min(time.Duration(m.GetLeaseMs())*time.Millisecond, maxLease)
		if e.Handle.Segment == 0 {
			err = tandem.Errorf(op, tandem.Corrupt, "ticket has a handle without a segment")
		}
	default:
		err = tandem.Errorf(op, tandem.Corrupt, "ticket has no tree")
	}
	return e, err
}
