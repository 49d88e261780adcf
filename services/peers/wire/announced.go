package wire

import (
	"slices"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

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
	Window      int             // as Description has it
}

// Equal reports whether both say the same.
func (d AnnouncedDrafter) Equal(o AnnouncedDrafter) bool {
	return d.Name == o.Name && d.Model == o.Model && d.Vocab == o.Vocab && d.Fingerprint == o.Fingerprint && d.Identity == o.Identity &&
		d.Lineage == o.Lineage && d.Features == o.Features && slices.Equal(d.Costs, o.Costs) && d.Window == o.Window
}

// AnnouncedVerifier is what a verifier says of itself.
type AnnouncedVerifier struct {
	Model         string
	Version       string          // of tandem
	Identity      tandem.Identity // of what computes the texts
	Lineage       string          // of the model
	Vocab         int             // size of the vocabulary
	Fingerprint   string          // of the vocabulary
	Costs         []tandem.Cost   // of its passes; none: they were not measured
	KVTokens      int64           // tokens that its KV memory holds, over all sessions
	PageTokens    int             // tokens in a page of KV memory
	Taps          []int           // hidden states that it hands out, as in Description; nil: none
	SelfDrafts    []string        // names of the target's own drafts
	SegmentSocket string          // of its shared memory; "" unless the process is on this host
	Queue         string          // names the subject of its tickets, another at each start; "": the subject that all share
	Load          VerifierLoad    // at the time of the announcement
}

// VerifierLoad is what a verifier has to do.
type VerifierLoad struct {
	FreePages int      // pages of KV memory that no session has
	Sessions  int      // sessions that it holds
	Waiting   int      // tickets that wait for a pass
	Prefixes  []uint64 // summary of the prompts that it keeps: see tandem.PrefixKey
}

// Equal reports whether both say the same, whatever the load.
func (v AnnouncedVerifier) Equal(o AnnouncedVerifier) bool {
	return v.Model == o.Model && v.Version == o.Version && v.Identity == o.Identity && v.Lineage == o.Lineage && v.Vocab == o.Vocab &&
		v.Fingerprint == o.Fingerprint && slices.Equal(v.Costs, o.Costs) && v.KVTokens == o.KVTokens && v.PageTokens == o.PageTokens &&
		slices.Equal(v.Taps, o.Taps) && slices.Equal(v.SelfDrafts, o.SelfDrafts) && v.SegmentSocket == o.SegmentSocket && v.Queue == o.Queue
}

// AnnouncedGateway is what a gateway says of itself.
type AnnouncedGateway struct {
	Name             string
	Model            string
	Version          string // of tandem
	HTTP             string // address of its HTTP server; "" for none
	Running, Waiting int    // requests that it answers, and that wait in its queue
}

// Equal reports whether both say the same, whatever the load.
func (g AnnouncedGateway) Equal(o AnnouncedGateway) bool {
	return g.Name == o.Name && g.Model == o.Model && g.Version == o.Version && g.HTTP == o.HTTP
}

func fromDrafters(all []AnnouncedDrafter) (out []*peerv1.AnnouncedDrafter) {
	for _, d := range all {
		out = append(out, &peerv1.AnnouncedDrafter{Name: d.Name, Model: d.Model, Vocabulary: int32(d.Vocab), Fingerprint: d.Fingerprint,
			Identity: string(d.Identity), Lineage: d.Lineage, Features: d.Features, Costs: fromCosts(d.Costs),
			Window: int32(d.Window)})
	}
	return out
}

// toDrafters decodes the drafters of a process. Errors: Corrupt.
func toDrafters(all []*peerv1.AnnouncedDrafter) (out []AnnouncedDrafter, err error) {
	if len(all) > maxDrafters {
		return nil, tandem.Errorf(op, tandem.Corrupt, "announcement has %d drafters: want at most %d", len(all), maxDrafters)
	}
	seen := map[string]bool{}
	for _, d := range all {
		name := d.GetName()
		if name == "" || len(name) > maxName || seen[name] || d.GetVocabulary() < 0 {
			return nil, tandem.Errorf(op, tandem.Corrupt,
				"announcement has drafter %.210q with %d tokens: want names of 1 to %d bytes, each once, and 0 tokens or more", name,
				d.GetVocabulary(), maxName)
		}
		seen[name] = true
		identity, lineage := named(d)
		out = append(out, AnnouncedDrafter{Name: name, Model: d.GetModel(), Vocab: int(d.GetVocabulary()), Fingerprint: d.GetFingerprint(),
			Identity: identity, Lineage: lineage, Features: d.GetFeatures(), Costs: toCosts(d.GetCosts()),
			Window: max(int(d.GetWindow()), 0)})
	}
	return out, nil
}

// FromVerifier encodes v; nil is absent.
func FromVerifier(v *AnnouncedVerifier) *peerv1.AnnouncedVerifier {
	if v == nil {
		return nil
	}
	return &peerv1.AnnouncedVerifier{Model: v.Model, Version: v.Version, Identity: string(v.Identity), Lineage: v.Lineage,
		Vocabulary: int32(v.Vocab), Fingerprint: v.Fingerprint, Costs: fromCosts(v.Costs), KvTokens: v.KVTokens,
		PageTokens: int32(v.PageTokens), Taps: fromTaps(v.Taps), SelfDrafts: v.SelfDrafts, SegmentSocket: v.SegmentSocket, Queue: v.Queue,
		Load: &peerv1.VerifierLoad{FreePages: int32(v.Load.FreePages), Sessions: int32(v.Load.Sessions), Waiting: int32(v.Load.Waiting),
			Prefixes: v.Load.Prefixes}}
}

// ToVerifier decodes m; absent is nil. Errors: Corrupt.
func ToVerifier(m *peerv1.AnnouncedVerifier) (*AnnouncedVerifier, error) {
	if m == nil {
		return nil, nil
	}
	load := m.GetLoad()
	if n := len(load.GetPrefixes()); n > tandem.MostPrefixes {
		return nil, tandem.Errorf(op, tandem.Corrupt, "announced verifier has a summary of %d prefixes: want at most %d", n,
			tandem.MostPrefixes)
	}
	if load.GetFreePages() < 0 || load.GetSessions() < 0 || load.GetWaiting() < 0 {
		return nil, tandem.Errorf(op, tandem.Corrupt, "announced verifier has %d free pages, %d sessions and %d waiting tickets: "+
			"want 0 or more", load.GetFreePages(), load.GetSessions(), load.GetWaiting())
	}
	drafts, err := toWays(m.GetSelfDrafts())
	if err != nil {
		return nil, err
	}
	identity, lineage := named(m)
	return &AnnouncedVerifier{Model: m.GetModel(), Version: m.GetVersion(), Identity: identity, Lineage: lineage,
		Vocab: int(m.GetVocabulary()), Fingerprint: m.GetFingerprint(), Costs: toCosts(m.GetCosts()), KVTokens: m.GetKvTokens(),
		PageTokens: int(m.GetPageTokens()), Taps: toTaps(m.GetTaps()), SelfDrafts: drafts, SegmentSocket: m.GetSegmentSocket(),
		Queue: m.GetQueue(), Load: VerifierLoad{FreePages: int(load.GetFreePages()), Sessions: int(load.GetSessions()),
			Waiting: int(load.GetWaiting()), Prefixes: load.GetPrefixes()}}, nil
}

func fromGateway(g *AnnouncedGateway) *peerv1.AnnouncedGateway {
	if g == nil {
		return nil
	}
	return &peerv1.AnnouncedGateway{Name: g.Name, Model: g.Model, Version: g.Version, Http: g.HTTP, Running: int32(g.Running),
		Waiting: int32(g.Waiting)}
}

// toGateway decodes m; absent is nil. Errors: Corrupt.
func toGateway(m *peerv1.AnnouncedGateway) (*AnnouncedGateway, error) {
	if m == nil {
		return nil, nil
	}
	if m.GetRunning() < 0 || m.GetWaiting() < 0 {
		return nil, tandem.Errorf(op, tandem.Corrupt, "announced gateway has %d running and %d waiting requests: want 0 or more",
			m.GetRunning(), m.GetWaiting())
	}
	return &AnnouncedGateway{Name: m.GetName(), Model: m.GetModel(), Version: m.GetVersion(), HTTP: m.GetHttp(),
		Running: int(m.GetRunning()), Waiting: int(m.GetWaiting())}, nil
}
