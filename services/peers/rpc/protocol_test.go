package rpc

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// other is a protocol that this release does not speak.
var other = strconv.Itoa(tandem.Protocol + 1)

// anyVerifier answers everything with nothing.
type anyVerifier struct {
	peerv1.UnimplementedVerifierServiceServer
}

func (anyVerifier) Open(context.Context, *peerv1.VerifierServiceOpenRequest) (*peerv1.VerifierServiceOpenResponse, error) {
	return &peerv1.VerifierServiceOpenResponse{}, nil
}

func (anyVerifier) Describe(context.Context, *peerv1.VerifierServiceDescribeRequest) (*peerv1.VerifierServiceDescribeResponse, error) {
	return &peerv1.VerifierServiceDescribeResponse{}, nil
}

func (anyVerifier) Verdicts(_ *peerv1.VerdictsRequest, s grpc.ServerStreamingServer[peerv1.VerdictsResponse]) error {
	return s.SendHeader(nil)
}

// makeCalls makes each kind of call and returns how it ended.
func makeCalls(ctx context.Context, conn grpc.ClientConnInterface) (open, describe, verdicts error) {
	c := peerv1.NewVerifierServiceClient(conn)
	_, open = c.Open(ctx, &peerv1.VerifierServiceOpenRequest{})
	_, describe = c.Describe(ctx, &peerv1.VerifierServiceDescribeRequest{})
	stream, err := c.Verdicts(ctx, &peerv1.VerdictsRequest{})
	if err != nil {
		return open, describe, err
	}
	md, verdicts := stream.Header()
	if verdicts == nil && md == nil {
		_, verdicts = stream.Recv()
	}
	return open, describe, verdicts
}

// wantRefused wants an error that names both protocols.
func wantRefused(t *testing.T, what string, err error, parts ...string) {
	t.Helper()
	if err = FromStatus(err); tandem.Refusal(err) != tandem.OpProtocol {
		t.Errorf("%s: error %v: want a refusal of the protocol", what, err)
		return
	}
	for _, p := range append(parts, "run the same release") {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%s: error %q does not say %q", what, err, p)
		}
	}
}

// A server refuses callers of another protocol, and those of before there was one, but tells everybody what it is.
func TestCallersOfAnotherProtocol(t *testing.T) {
	counters := new(tandem.Counters)
	s, err := NewServer(ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "s"), Counters: counters})
	if err != nil {
		t.Fatal(err)
	}
	peerv1.RegisterVerifierServiceServer(s.Registrar(), anyVerifier{})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	own, err := Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if open, describe, verdicts := makeCalls(ctx, own); open != nil || describe != nil || verdicts != nil {
		t.Errorf("our own protocol: %v, %v, %v", open, describe, verdicts)
	}
	raw, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	for header, said := range map[string]string{"": "older than 1", other: "protocol " + other, "x": "older than 1"} {
		as := ctx
		if header != "" {
			as = metadata.AppendToOutgoingContext(ctx, headerProtocol, header)
		}
		open, describe, verdicts := makeCalls(as, raw)
		wantRefused(t, "open by "+header, open, "the caller speaks", said, "this verifier "+ours)
		wantRefused(t, "verdicts by "+header, verdicts, said)
		if describe != nil {
			t.Errorf("describe by %q: %v", header, describe)
		}
	}
	if n := counters.Snapshot()["refused.protocol"]; n != 6 {
		t.Errorf("%d refusals counted: want 6", n)
	}
}

// A caller refuses the answers of a server of another protocol, and names it.
func TestServersOfAnotherProtocol(t *testing.T) {
	for header, said := range map[string]string{"": "older than 1", other: "protocol " + other} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		tell := func(set func(metadata.MD) error) {
			if header != "" {
				_ = set(metadata.Pairs(headerProtocol, header))
			}
		}
		raw := grpc.NewServer(
			grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
				tell(func(md metadata.MD) error { return grpc.SetHeader(ctx, md) })
				return h(ctx, r)
			}),
			grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
				tell(ss.SetHeader)
				return h(srv, ss)
			}))
		peerv1.RegisterVerifierServiceServer(raw, anyVerifier{})
		go func() { _ = raw.Serve(l) }()
		addr := "unix://" + l.Addr().String()
		conn, err := Dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		open, describe, verdicts := makeCalls(t.Context(), conn)
		wantRefused(t, "open at "+header, open, "verifier at "+addr+" speaks", said, "this process "+ours)
		wantRefused(t, "verdicts at "+header, verdicts, addr, said)
		if describe != nil {
			t.Errorf("describe at %q: %v", header, describe)
		}
		raw.Stop()
		_, err = peerv1.NewVerifierServiceClient(conn).Open(t.Context(), &peerv1.VerifierServiceOpenRequest{})
		if tandem.KindOf(err) != tandem.Unavailable || tandem.Refusal(err) != "" {
			t.Errorf("a server that is away: %v: want unavailable, and no refusal", err)
		}
		conn.Close()
	}
}
