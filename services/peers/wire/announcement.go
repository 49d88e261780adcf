package wire

import (
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

const (
	announcementVersion = 1
	maxAnnouncement     = 16 << 10 // bytes
	maxName             = 200      // bytes of a drafter's name
	maxDrafters         = 16       // of one process

	// MostAsked bounds Announcement.Asked.
	MostAsked = 64
)

// Announcement is what a process repeatedly tells about itself. It has drafters, a verifier or a gateway.
type Announcement struct {
	Instance uint64 // random, another one at each start of the process
	Sequence uint64 // counts the announcements of an instance
	Addr     string // as rpc.Dial takes it
	Draining bool   // it finishes what it has and takes nothing new
	Drafters []AnnouncedDrafter
	Verifier *AnnouncedVerifier
	Gateway  *AnnouncedGateway
	Segment  uint64   // id of its shared memory, 0 for none
	Protocol int      // the sender's, filled in by Marshal; 0 is older than protocol 1
	Asked    []uint64 // a 0, then the numbers with which tables have asked lately; at most MostAsked in all; nil: it does not tell
	Proof    string   // that the sender has the secret, filled in by Marshal; "" for none
	Signed   []byte   // what Proof proves: filled in by UnmarshalAnnouncement
}

// Marshal encodes a. sign returns the proof that the message then carries; nil: it carries none. Errors: Invalid for a result too large to
// travel.
func (a Announcement) Marshal(sign func(message []byte) string) ([]byte, error) {
	m := &peerv1.Announcement{Version: announcementVersion, Instance: a.Instance, Sequence: a.Sequence, Address: a.Addr,
		State: FromDraining(a.Draining), Segment: a.Segment, Protocol: tandem.Protocol, Drafters: fromDrafters(a.Drafters),
		Verifier: FromVerifier(a.Verifier), Gateway: fromGateway(a.Gateway), Asked: a.Asked}
	b, err := signed(m)
	if err == nil && sign != nil {
		m.Proof = sign(b)
		b, err = proto.Marshal(m)
	}
	if err != nil || len(b) > maxAnnouncement {
		return nil, tandem.Errorf(op, tandem.Invalid, "announcement of %s has %d bytes: at most %d of valid UTF-8", a.Addr, len(b),
			maxAnnouncement)
	}
	return b, nil
}

// FromDraining encodes whether a process takes no new work.
func FromDraining(draining bool) peerv1.State {
	if draining {
		return peerv1.State_STATE_DRAINING
	}
	return peerv1.State_STATE_UP
}

// signed returns the bytes of m that its proof covers: all but the proof.
func signed(m *peerv1.Announcement) ([]byte, error) {
	bare := proto.CloneOf(m)
	bare.Proof = ""
	return proto.MarshalOptions{Deterministic: true}.Marshal(bare)
}

// UnmarshalAnnouncement decodes an announcement. Errors: Corrupt, Unsupported (another version).
func UnmarshalAnnouncement(b []byte) (Announcement, error) {
	var m peerv1.Announcement
	if len(b) > maxAnnouncement {
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "announcement has %d bytes: at most %d", len(b), maxAnnouncement)
	}
	if err := proto.Unmarshal(b, &m); err != nil {
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "not an announcement: %w", err)
	}
	switch {
	case m.GetVersion() != announcementVersion:
		return Announcement{}, tandem.Errorf(op, tandem.Unsupported, "announcement has version %d: want %d", m.GetVersion(),
			announcementVersion)
	case m.GetInstance() == 0 || m.GetAddress() == "":
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "announcement without an instance or an address")
	case m.GetState() != peerv1.State_STATE_UP && m.GetState() != peerv1.State_STATE_DRAINING:
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "announcement has state %d: want 1 or 2", m.GetState())
	}
	a := Announcement{Instance: m.GetInstance(), Sequence: m.GetSequence(), Addr: m.GetAddress(),
		Draining: m.GetState() == peerv1.State_STATE_DRAINING, Segment: m.GetSegment(), Protocol: int(m.GetProtocol()), Proof: m.GetProof(),
		Asked: m.GetAsked()}
	var err error
	if a.Signed, err = signed(&m); err != nil {
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "not an announcement: %w", err)
	}
	if a.Drafters, err = toDrafters(m.GetDrafters()); err == nil {
		a.Verifier, err = ToVerifier(m.GetVerifier())
	}
	if err == nil {
		a.Gateway, err = toGateway(m.GetGateway())
	}
	if kinds := count(len(a.Drafters) > 0, a.Verifier != nil, a.Gateway != nil); err == nil && kinds != 1 {
		err = tandem.Errorf(op, tandem.Corrupt, "announcement of %.100q is of %d kinds of process: want drafters, a verifier or a gateway",
			a.Addr, kinds)
	}
	if err != nil {
		return Announcement{}, err
	}
	return a, nil
}

// count returns how many are true.
func count(all ...bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}
