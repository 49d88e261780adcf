package wire

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

func verifierOf(load VerifierLoad) Announcement {
	return Announcement{Instance: 7, Sequence: 3, Addr: "unix:///v", Protocol: tandem.Protocol, Verifier: &AnnouncedVerifier{Model: "m",
		Version: "v1", Identity: "i-1", Lineage: "l", Vocab: 9, Fingerprint: "f",
		Costs:    []tandem.Cost{{Rows: 1, Context: 100, Time: time.Millisecond}, {Rows: 8, Context: 100, Time: 3 * time.Millisecond}},
		KVTokens: 4096, PageTokens: 64, Taps: []int{2, -1}, SelfDrafts: []string{"medusa"}, SegmentSocket: "/s", Queue: "q1", Load: load}}
}

// TestAnnouncedVerifiersAndGateways: they come back as they were; a message of no kind, of two, or with impossible counts is refused.
func TestAnnouncedVerifiersAndGateways(t *testing.T) {
	v := verifierOf(VerifierLoad{FreePages: 5, Sessions: 2, Waiting: 1, Prefixes: []uint64{3, 1 << 63}})
	g := Announcement{Instance: 8, Sequence: 1, Addr: "box:8451", Protocol: tandem.Protocol,
		Gateway: &AnnouncedGateway{Name: "g", Model: "m", Version: "v1", HTTP: "box:8080", Running: 3, Waiting: 4}}
	for _, a := range []Announcement{v, g} {
		b, err := a.Marshal(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := UnmarshalAnnouncement(b)
		if err != nil {
			t.Fatal(err)
		}
		got.Signed = nil
		same(t, got, a)
	}
	for name, change := range map[string]func(*peerv1.Announcement){
		"a gateway too":    func(a *peerv1.Announcement) { a.Gateway = new(peerv1.AnnouncedGateway) },
		"drafters too":     func(a *peerv1.Announcement) { a.Drafters = []*peerv1.AnnouncedDrafter{{Name: "d"}} },
		"nothing":          func(a *peerv1.Announcement) { a.Verifier = nil },
		"-1 pages":         func(a *peerv1.Announcement) { a.Verifier.Load.FreePages = -1 },
		"-1 sessions":      func(a *peerv1.Announcement) { a.Verifier.Load.Sessions = -1 },
		"-1 tickets":       func(a *peerv1.Announcement) { a.Verifier.Load.Waiting = -1 },
		"257 prefixes":     func(a *peerv1.Announcement) { a.Verifier.Load.Prefixes = make([]uint64, tandem.MostPrefixes+1) },
		"many self-drafts": func(a *peerv1.Announcement) { a.Verifier.SelfDrafts = make([]string, mostWays+1) },
		"a gateway with -1 requests": func(a *peerv1.Announcement) {
			a.Verifier, a.Gateway = nil, &peerv1.AnnouncedGateway{Running: -1}
		},
	} {
		b, err := v.Marshal(nil)
		var m peerv1.Announcement
		if err == nil {
			err = proto.Unmarshal(b, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		change(&m)
		if b, err = proto.Marshal(&m); err != nil {
			t.Fatal(err)
		}
		if _, err := UnmarshalAnnouncement(b); !errors.Is(err, tandem.Corrupt) {
			t.Errorf("%s: %v: want corrupt", name, err)
		}
	}
	full := verifierOf(VerifierLoad{Prefixes: make([]uint64, tandem.MostPrefixes)})
	if b, err := full.Marshal(nil); err != nil || len(b) > maxAnnouncement/2 {
		t.Errorf("a full summary makes %d bytes, %v: want at most half of what fits", len(b), err)
	}
}

// TestLoadIsNoChange: a verifier and a gateway are the same with another load, and others with any other field.
func TestLoadIsNoChange(t *testing.T) {
	v := *verifierOf(VerifierLoad{}).Verifier
	busy := *verifierOf(VerifierLoad{Sessions: 9, Prefixes: []uint64{1}}).Verifier
	if !v.Equal(busy) {
		t.Error("a verifier with another load is another verifier")
	}
	for name, change := range map[string]func(*AnnouncedVerifier){
		"identity": func(v *AnnouncedVerifier) { v.Identity = "i-2" }, "queue": func(v *AnnouncedVerifier) { v.Queue = "q2" },
		"costs": func(v *AnnouncedVerifier) { v.Costs = nil }, "taps": func(v *AnnouncedVerifier) { v.Taps = nil },
	} {
		o := v
		if change(&o); v.Equal(o) {
			t.Errorf("another %s makes no difference", name)
		}
	}
	g := AnnouncedGateway{Name: "g", HTTP: "box:80"}
	if !g.Equal(AnnouncedGateway{Name: "g", HTTP: "box:80", Running: 5}) || g.Equal(AnnouncedGateway{Name: "h", HTTP: "box:80"}) {
		t.Error("gateways are compared by their load, or not by their name")
	}
}
