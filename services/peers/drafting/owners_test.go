package drafting

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// as returns the drafter at addr as the process with that number sees it; "" is a stranger that sends none.
func as(t *testing.T, addr, process string) *Client {
	t.Helper()
	with := func(ctx context.Context) context.Context {
		ctx = metadata.AppendToOutgoingContext(ctx, "tandem-protocol", strconv.Itoa(tandem.Protocol))
		if process == "" {
			return ctx
		}
		return metadata.AppendToOutgoingContext(ctx, "tandem-process", process)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			return rpc.FromStatus(invoke(with(ctx), method, req, reply, cc, opts...))
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
			opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(with(ctx), d, cc, method, opts...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return NewClient(conn, "")
}

// TestTwoGateways: a session is drafted for and closed by the process that opened it alone, at each drafter of a process.
func TestTwoGateways(t *testing.T) {
	f := new(fake)
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	serve(t, addr, one(Named{Drafter: f}, nil))
	ctx := t.Context()
	o := tandem.Opening{Session: 3, Epoch: 1, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 8, Sampling: tandem.Sampling{TopP: 1}}
	p := tandem.Proposal{Session: 3, Epoch: 1, Base: 3, Hash: 7, From: 2, Suffix: []tandem.Token{9},
		Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}}
	a, b, stranger := as(t, addr, "a1"), as(t, addr, "b2"), as(t, addr, "")
	if _, err := stranger.Open(ctx, o); !errors.Is(rpc.FromStatus(err), tandem.Unauthenticated) {
		t.Errorf("a stranger opens: %v", err)
	}
	if _, err := a.Open(ctx, o); err != nil || f.opening.Owner != 0xa1 {
		t.Fatalf("a opens: %v", err)
	}
	for name, c := range map[string]*Client{"b": b, "a stranger": stranger} {
		if _, err := c.Propose(ctx, p); !errors.Is(err, tandem.UnknownSession) || f.proposal.Session != 0 {
			t.Errorf("%s has a tree drafted for a's session: %v", name, err)
		}
		if err := c.Close(ctx, 3); err != nil || f.closed != 0 {
			t.Errorf("%s closes a's session: %v", name, err)
		}
	}
	if _, err := b.Open(ctx, o); !errors.Is(rpc.FromStatus(err), tandem.UnknownSession) || f.opening.Owner != 0xa1 {
		t.Errorf("b opens a's session: %v", err)
	}
	if _, err := a.Propose(ctx, p); err != nil || f.proposal.Session != 3 {
		t.Errorf("a's own: %v", err)
	}
	if err := a.Close(ctx, 3); err != nil || f.closed != 3 {
		t.Errorf("a closes: %v", err)
	}
}
