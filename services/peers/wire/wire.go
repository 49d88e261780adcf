// Package wire turns tandem's values into the messages of proto/tandem/internal/v1 and back. Decoding
// checks the structure alone: whatever a peer sends becomes a value or an error, never a panic; the rooms
// check whether the value makes sense.
package wire

import (
	"cmp"
	"time"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/shm"
)

const op = "wire"

// FromDescription encodes d, with this program's protocol in place of d.Protocol.
func FromDescription(d tandem.Description) *peerv1.Description {
	out := &peerv1.Description{Name: d.Name, Version: d.Version, Model: d.Model, File: d.File, Vocabulary: int32(d.Vocab),
		Fingerprint: d.Fingerprint, Context: int32(d.Context), KvCapacity: d.KVCapacity, Threads: int32(d.Threads),
		Device: d.Device, Isa: d.ISA, Pid: int32(d.PID), SegmentSocket: d.SegmentSocket, Counters: d.Counters,
		Drafters: d.Drafters, PageTokens: int32(d.PageTokens), Protocol: tandem.Protocol, Identity: string(d.Identity), Lineage: d.Lineage,
		Ways: fromOffers(d.SelfDrafts), Taps: fromTaps(d.Taps), Costs: fromCosts(d.Costs), Window: int32(d.Window),
		Instance: d.Instance, State: FromDraining(d.Draining)}
	return out
}

// ToDescription decodes d; impossible costs and names that are not valid (tandem.ValidName) are left out.
func ToDescription(d *peerv1.Description) tandem.Description {
	out := tandem.Description{Name: d.GetName(), Version: d.GetVersion(), Model: d.GetModel(), File: d.GetFile(),
		Vocab: int(d.GetVocabulary()), Fingerprint: d.GetFingerprint(), Context: int(d.GetContext()), KVCapacity: d.GetKvCapacity(),
		Threads: int(d.GetThreads()),
		Device:  d.GetDevice(), ISA: d.GetIsa(), PID: int(d.GetPid()), SegmentSocket: d.GetSegmentSocket(), Counters: d.GetCounters(),
		Drafters: d.GetDrafters(), PageTokens: int(d.GetPageTokens()), Protocol: int(d.GetProtocol()),
		SelfDrafts: toOffers(d.GetWays()), Instance: d.GetInstance(), Draining: d.GetState() == peerv1.State_STATE_DRAINING}
	out.Identity, out.Lineage = named(d)
	out.Taps = toTaps(d.GetTaps())
	out.Costs, out.Window = toCosts(d.GetCosts()), max(int(d.GetWindow()), 0)
	return out
}

func fromCosts(costs []tandem.Cost) (out []*peerv1.Cost) {
	for _, c := range costs {
		out = append(out, &peerv1.Cost{Rows: int32(c.Rows), Context: int32(c.Context), TimeNs: int64(c.Time),
			Experts: int32(c.Experts), ExpertNs: int64(c.Expert)})
	}
	return out
}

// toCosts leaves out impossible costs.
func toCosts(costs []*peerv1.Cost) (out []tandem.Cost) {
	for _, c := range costs {
		if c := (tandem.Cost{Rows: int(c.GetRows()), Context: int(c.GetContext()), Time: time.Duration(c.GetTimeNs()),
			Experts: int(c.GetExperts()), Expert: time.Duration(c.GetExpertNs())}); c.Valid() {
			out = append(out, c)
		}
	}
	return out
}

// named returns the identity and the lineage in a message, empty if they are not valid.
func named(m interface {
	GetIdentity() string
	GetLineage() string
}) (tandem.Identity, string) {
	if tandem.ValidName("identity", m.GetIdentity()) != nil || tandem.ValidName("lineage", m.GetLineage()) != nil {
		return "", ""
	}
	return tandem.Identity(m.GetIdentity()), m.GetLineage()
}

// FromTokens encodes tokens.
func FromTokens(tokens []tandem.Token) []uint32 {
	return convert[uint32](tokens)
}

// ToTokens decodes tokens; an id beyond int32 becomes negative, which no vocabulary holds.
func ToTokens(ids []uint32) []tandem.Token {
	return convert[tandem.Token](ids)
}

// convert returns numbers of one type as those of another.
func convert[To, From ~int32 | ~uint32 | ~uint64](in []From) []To {
	out := make([]To, len(in))
	for i, n := range in {
		out[i] = To(n)
	}
	return out
}

// FromOpening encodes o but for Progress and Owner, which do not travel.
func FromOpening(o tandem.Opening) *peerv1.Opening {
	return &peerv1.Opening{Session: uint64(o.Session), Epoch: uint32(o.Epoch), Tokens: FromTokens(o.Tokens), Limit: int32(o.Limit),
		MaxNodes: int32(o.MaxNodes), Prompt: int32(o.Prompt), Tenant: o.Tenant, Sampling: fromSampling(o.Sampling),
		Identity: string(o.Identity), Fingerprint: o.Fingerprint, Vocabulary: int32(o.Vocab), Ways: o.SelfDrafts, Features: o.Features,
		Translate: o.Translate, Place: fromPlace(o.Place)}
}

func fromPlace(p tandem.Place) *peerv1.Place {
	if p == (tandem.Place{}) {
		return nil
	}
	return &peerv1.Place{Queue: p.Queue, Address: p.Addr}
}

// toPlace decodes p. Errors: Invalid for a queue that cannot be one, or an address that is too long.
func toPlace(p *peerv1.Place) (tandem.Place, error) {
	out := tandem.Place{Queue: p.GetQueue(), Addr: p.GetAddress()}
	if len(out.Addr) > maxAddress {
		return tandem.Place{}, tandem.Errorf(op, tandem.Invalid, "address of a place has %d bytes: want at most %d", len(out.Addr),
			maxAddress)
	}
	return out, out.Validate()
}

// maxAddress bounds an address, in bytes.
const maxAddress = 300

// ToOpening decodes o; a message without a session, tokens or sampling is Invalid, as is one with names that are not valid.
func ToOpening(o *peerv1.Opening) (tandem.Opening, error) {
	switch {
	case o.GetSession() == 0:
		return tandem.Opening{}, tandem.Errorf(op, tandem.Invalid, "opening has no session")
	case len(o.GetTokens()) == 0:
		return tandem.Opening{}, tandem.Errorf(op, tandem.Invalid, "opening of session %s has no tokens: want at least one",
			tandem.SessionID(o.GetSession()))
	}
	sampling, err := toSampling(o.GetSampling())
	place, misplaced := toPlace(o.GetPlace())
	if err == nil {
		err = cmp.Or(misplaced, tandem.ValidName("identity", o.GetIdentity()), tandem.ValidName("fingerprint", o.GetFingerprint()))
	}
	if err == nil {
		_, err = toWays(o.GetWays())
	}
	if err != nil {
		return tandem.Opening{}, tandem.Errorf(op, tandem.Invalid, "opening of session %s: %w", tandem.SessionID(o.GetSession()), err)
	}
	return tandem.Opening{Session: tandem.SessionID(o.GetSession()), Epoch: tandem.Epoch(o.GetEpoch()), Tokens: ToTokens(o.GetTokens()),
		Limit: tandem.Position(o.GetLimit()), MaxNodes: int(o.GetMaxNodes()), Prompt: int(o.GetPrompt()), Tenant: o.GetTenant(),
		Sampling: sampling,
		Identity: tandem.Identity(o.GetIdentity()), Fingerprint: o.GetFingerprint(), Vocab: int(o.GetVocabulary()), SelfDrafts: o.GetWays(),
		Features: o.GetFeatures(), Translate: o.GetTranslate(), Place: place}, nil
}

// ToIdentity decodes the identity in an answer. Errors: Corrupt if it is not valid.
func ToIdentity(s string) (tandem.Identity, error) {
	if err := tandem.ValidName("identity", s); err != nil {
		return "", tandem.Errorf(op, tandem.Corrupt, "%w", err)
	}
	return tandem.Identity(s), nil
}

// FromVerdict encodes v.
func FromVerdict(v tandem.Verdict) *peerv1.Verdict {
	path := make([]uint32, len(v.Path))
	for i, n := range v.Path {
		path[i] = uint32(n)
	}
	return &peerv1.Verdict{Session: uint64(v.Session), Epoch: uint32(v.Epoch), Base: int32(v.Base), Hash: uint64(v.Hash), Path: path,
		Tokens: FromTokens(v.Tokens), Nodes: int32(v.Nodes), Batch: int32(v.Batch), BusyNs: int64(v.Busy), Kind: peerv1.Kind(v.Kind),
		Message: v.Message, Rows: int32(v.Rows), Experts: v.Experts,
		Logprobs: fromLogprobs(v.Logprobs), Guesses: FromGuesses(v.Guesses), GuessingNs: int64(v.Guessing),
		Successors: fromSuccessors(v.Successors)}
}

// ToVerdict decodes v; a kind that this version does not know is Internal, and a verdict whose lists do not
// belong together Corrupt.
func ToVerdict(v *peerv1.Verdict) tandem.Verdict {
	out := tandem.Verdict{Session: tandem.SessionID(v.GetSession()), Epoch: tandem.Epoch(v.GetEpoch()), Base: tandem.Position(v.GetBase()),
		Hash: tandem.PrefixHash(v.GetHash()), Tokens: ToTokens(v.GetTokens()), Nodes: int(v.GetNodes()), Batch: int(v.GetBatch()),
		Busy: time.Duration(v.GetBusyNs()), Kind: tandem.Internal, Message: v.GetMessage(), Rows: int(v.GetRows()),
		Guesses: ToGuesses(v.GetGuesses()), Guessing: guessing(v), Successors: successors(v)}
	if k := v.GetKind(); k >= 0 && k <= peerv1.Kind(tandem.Unauthenticated) {
		out.Kind = tandem.Kind(k)
	}
	for _, n := range v.GetPath() {
		out.Path = append(out.Path, int32(n))
	}
	var err error
	if out.Logprobs, err = toLogprobs(v.GetLogprobs()); err == nil && len(v.GetExperts()) > 0 {
		out.Experts = v.GetExperts()
		err = out.Experts.Validate(out.Rows)
	}
	if err != nil && out.Kind == tandem.OK {
		out.Kind, out.Message = tandem.Corrupt, err.Error()
	}
	return out
}

// FromHandle encodes h.
func FromHandle(h shm.Handle) *peerv1.Handle {
	return &peerv1.Handle{Segment: h.Segment, Slot: h.Slot, Length: h.Length, Generation: h.Generation}
}

// ToHandle decodes h; absent is the zero Handle.
func ToHandle(h *peerv1.Handle) shm.Handle {
	return shm.Handle{Segment: h.GetSegment(), Slot: h.GetSlot(), Length: h.GetLength(), Generation: h.GetGeneration()}
}

// FromSessions encodes session ids.
func FromSessions(ids []tandem.SessionID) []uint64 {
	return convert[uint64](ids)
}

// ToSessions decodes session ids.
func ToSessions(ids []uint64) []tandem.SessionID {
	return convert[tandem.SessionID](ids)
}
