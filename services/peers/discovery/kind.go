package discovery

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

const (
	maxDrafters = 16          // of one process
	askTime     = time.Second // for one Describe

	aDrafter  = "drafter process"
	aVerifier = "verifier"
)

// Kind is a kind of process. Each has a subject of its own, so that older tables do not see the kinds that they do not know.
type Kind struct {
	name    string // in messages
	subject string // of announcements
	// is reports whether an announcement is of this kind.
	is func(a wire.Announcement) bool
	// describe asks the process at the other end of conn what it would announce. nil: such processes are not called, and are up while
	// they are heard.
	describe func(ctx context.Context, addr string, conn grpc.ClientConnInterface) (wire.Announcement, error)
	again    bool // ask configured processes to describe themselves every two beats, because their load changes
}

// The kinds.
var (
	Drafters = Kind{name: aDrafter, subject: "drafters", describe: describeDrafters,
		is: func(a wire.Announcement) bool { return len(a.Drafters) > 0 }}
	Verifiers = Kind{name: aVerifier, subject: "verifiers", describe: describeVerifier, again: true,
		is: func(a wire.Announcement) bool { return a.Verifier != nil }}
	Gateways = Kind{name: "gateway", subject: "gateways", is: func(a wire.Announcement) bool { return a.Gateway != nil }}
)

// kindOf returns the kind of a process.
func kindOf(a wire.Announcement) Kind {
	switch {
	case a.Verifier != nil:
		return Verifiers
	case a.Gateway != nil:
		return Gateways
	}
	return Drafters
}

// id names the process of an announcement in a table and in the registry: by its address, at which there is one process. Gateways are not
// called, and several hosts may have one at the same address of loopback, so their instance counts as well.
func (k Kind) id(a wire.Announcement) string {
	if k.describe == nil {
		return fmt.Sprintf("%s %016x", a.Addr, a.Instance)
	}
	return a.Addr
}

// ask is the subject of requests to announce at once.
func (k Kind) ask() string { return k.subject + ".ask" }

// Describe asks the process at the other end of conn, for a second at most, what it would announce; addr names it in errors. An Instance of
// 0 means that the process does not say. Errors: those of the call; Unavailable with tandem.OpProtocol for a process of another protocol.
func (k Kind) Describe(ctx context.Context, addr string, conn grpc.ClientConnInterface) (wire.Announcement, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return k.describe(ctx, addr, conn)
}

func describeDrafters(ctx context.Context, addr string, conn grpc.ClientConnInterface) (out wire.Announcement, err error) {
	first, err := drafting.NewClient(conn, "").Describe(ctx)
	if err != nil {
		return out, err
	}
	if err := rpc.CheckProtocol(first.Protocol, aDrafter+" at "+addr, "this process"); err != nil {
		return out, err
	}
	out.Instance, out.Draining = first.Instance, first.Draining
	for _, name := range first.Drafters[:min(len(first.Drafters), maxDrafters)] {
		d, err := drafting.NewClient(conn, name).Describe(ctx)
		if err != nil {
			return out, err
		}
		out.Drafters = append(out.Drafters, wire.AnnouncedDrafter{Name: name, Model: d.Model, Vocab: d.Vocab, Fingerprint: d.Fingerprint,
			Identity: d.Identity, Lineage: d.Lineage, Features: len(d.Taps) > 0, Costs: d.Costs, Window: d.Window})
	}
	return out, nil
}

// describeVerifier returns what a verifier announces. One that tells no more than its description has an unknown load.
func describeVerifier(ctx context.Context, addr string, conn grpc.ClientConnInterface) (out wire.Announcement, err error) {
	r, err := peerv1.NewVerifierServiceClient(conn).Describe(ctx, &peerv1.VerifierServiceDescribeRequest{})
	if err != nil {
		return out, err
	}
	d := wire.ToDescription(r.GetDescription())
	if err := rpc.CheckProtocol(d.Protocol, aVerifier+" at "+addr, "this process"); err != nil {
		return out, err
	}
	out.Instance, out.Draining = d.Instance, d.Draining
	if out.Verifier, err = wire.ToVerifier(r.GetVerifier()); err != nil || out.Verifier != nil {
		return out, err
	}
	out.Verifier = VerifierOf(d)
	return out, nil
}

// VerifierOf returns the part of a verifier's announcement that follows from its description; Queue and Load are left empty.
func VerifierOf(d tandem.Description) *wire.AnnouncedVerifier {
	return &wire.AnnouncedVerifier{Model: d.Model, Version: d.Version, Identity: d.Identity, Lineage: d.Lineage, Vocab: d.Vocab,
		Fingerprint: d.Fingerprint, Costs: d.Costs, KVTokens: d.KVCapacity, PageTokens: d.PageTokens, Taps: slices.Clone(d.Taps),
		SelfDrafts: d.SelfDraftNames(), SegmentSocket: d.SegmentSocket}
}
