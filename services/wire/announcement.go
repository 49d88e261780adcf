package wire

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

const (
	announcementVersion = 1
	maxAnnouncement     = 16 << 10 // bytes
	maxName             = 200      // bytes of a drafter's name
	maxDrafters         = 16       // of one process
)

// Announcement is what a drafter process repeatedly tells about itself.
type Announcement struct {
	Instance uint64 // random, another one at each start of the process
	Sequence uint64 // counts the announcements of an instance
	Addr     string // as rpc.Dial takes it
	Draining bool   // it finishes what it has and takes nothing new
	Drafters []AnnouncedDrafter
	Segment  uint64 // id of its shared memory, 0 for none
	Protocol int    // that it speaks, filled in by Marshal; 0 is older than protocol 1
	Proof    string // of the sender's secret, filled in by Marshal; "" for none
	Signed   []byte // what Proof proves: filled in by UnmarshalAnnouncement
}

// AnnouncedDrafter is what a process says of one of its drafters.
type AnnouncedDrafter struct {
	Name        string          // within the process
	Model       string          // "" for none
	Vocab       int             // size of the vocabulary; 0: it takes any
	Fingerprint string          // of the vocabulary; "": it takes any
	Identity    tandem.Identity // of what computes its drafts; "" for none
	Lineage     string          // of the model
	Features    bool            // it reads hidden states of the target
	Costs       []tandem.Cost   // of its passes, as Description has them; none: they were not measured
}

// Equal reports whether both say the same.
func (d AnnouncedDrafter) Equal(o AnnouncedDrafter) bool {
	return d.Name == o.Name && d.Model == o.Model && d.Vocab == o.Vocab && d.Fingerprint == o.Fingerprint && d.Identity == o.Identity &&
		d.Lineage == o.Lineage && d.Features == o.Features && slices.Equal(d.Costs, o.Costs)
}

// Marshal encodes a. sign returns the proof of a message; nil: it has none. A result too large to travel is Invalid.
func (a Announcement) Marshal(sign func(message []byte) string) ([]byte, error) {
	m := &peerv1.Announcement{Version: announcementVersion, Instance: a.Instance, Sequence: a.Sequence, Address: a.Addr,
		State: peerv1.State_STATE_UP, Segment: a.Segment, Protocol: tandem.Protocol}
	if a.Draining {
		m.State = peerv1.State_STATE_DRAINING
	}
	for _, d := range a.Drafters {
		m.Drafters = append(m.Drafters, &peerv1.AnnouncedDrafter{Name: d.Name, Model: d.Model, Vocabulary: int32(d.Vocab),
			Fingerprint: d.Fingerprint,
			Identity:    string(d.Identity), Lineage: d.Lineage, Features: d.Features, Costs: fromCosts(d.Costs)})
	}
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
	switch n := len(m.GetDrafters()); {
	case m.GetVersion() != announcementVersion:
		return Announcement{}, tandem.Errorf(op, tandem.Unsupported, "announcement has version %d: want %d", m.GetVersion(),
			announcementVersion)
	case m.GetInstance() == 0 || m.GetAddress() == "":
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "announcement without an instance or an address")
	case m.GetState() != peerv1.State_STATE_UP && m.GetState() != peerv1.State_STATE_DRAINING:
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "announcement has state %d: want 1 or 2", m.GetState())
	case n < 1 || n > maxDrafters:
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "announcement has %d drafters: want 1 to %d", n, maxDrafters)
	}
	a := Announcement{Instance: m.GetInstance(), Sequence: m.GetSequence(), Addr: m.GetAddress(),
		Draining: m.GetState() == peerv1.State_STATE_DRAINING, Segment: m.GetSegment(), Protocol: int(m.GetProtocol()), Proof: m.GetProof()}
	var err error
	if a.Signed, err = signed(&m); err != nil {
		return Announcement{}, tandem.Errorf(op, tandem.Corrupt, "not an announcement: %w", err)
	}
	seen := map[string]bool{}
	for _, d := range m.GetDrafters() {
		name := d.GetName()
		if name == "" || len(name) > maxName || seen[name] || d.GetVocabulary() < 0 {
			return Announcement{},
				tandem.Errorf(op, tandem.Corrupt,
					"announcement has drafter %.210q with %d tokens: want names of 1 to %d bytes, each once, and 0 tokens or more", name,
					d.GetVocabulary(), maxName)
		}
		seen[name] = true
		identity, lineage := named(d)
		a.Drafters = append(a.Drafters, AnnouncedDrafter{Name: name, Model: d.GetModel(), Vocab: int(d.GetVocabulary()),
			Fingerprint: d.GetFingerprint(),
			Identity:    identity, Lineage: lineage, Features: d.GetFeatures(), Costs: toCosts(d.GetCosts())})
	}
	return a, nil
}
