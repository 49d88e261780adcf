package verifying

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/test/testkit"
)

// as returns the verifier at addr as the process with that number sees it; "" is a stranger that sends none.
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
	return NewClient(conn)
}

// sure is a verifier that counts what reaches it, and keeps how it was subscribed to.
type sure struct {
	tandem.Verifier          // nil: of the rest nothing is asked
	opens, closes, submitted atomic.Int32
	subscribed               chan tandem.Subscription
}

func (s *sure) Open(context.Context, tandem.Opening) (tandem.Opened, error) {
	s.opens.Add(1)
	return tandem.Opened{}, nil
}

func (s *sure) Close(context.Context, tandem.SessionID) error { s.closes.Add(1); return nil }
func (s *sure) Submit(context.Context, tandem.Ticket) error   { s.submitted.Add(1); return nil }

func (s *sure) Verdicts(ctx context.Context, sub tandem.Subscription) error {
	s.subscribed <- sub
	sub.Began()
	<-ctx.Done()
	return ctx.Err()
}

// TestTwoGateways: both work, each subscribes for itself, and neither does anything to the other's sessions.
func TestTwoGateways(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	v, counters := &sure{subscribed: make(chan tandem.Subscription, 1)}, new(tandem.Counters)
	s, _ := serve(t, addr, ServerConfig{Verifier: v, Counters: counters})
	a, b := as(t, addr, "a1"), as(t, addr, "b2")
	ctx := t.Context()
	for c, id := range map[*Client]tandem.SessionID{a: 1, b: 2} {
		if _, err := c.Open(ctx, opening(id)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		as      string
		owner   uint64
		asserts []tandem.SessionID
		owns    []tandem.SessionID // of the asserted: what another process has opened stays that one's
	}{{"a1", 0xa1, []tandem.SessionID{1, 2, 3}, []tandem.SessionID{1, 3}}, {"b2", 0xb2, []tandem.SessionID{2, 3}, []tandem.SessionID{2}},
		{"c3", 0xc3, []tandem.SessionID{1, 2}, nil}} {
		_, states := follow(t, as(t, addr, c.as), c.asserts...)
		wantState(t, states, true)
		if got := <-v.subscribed; got.Owner != c.owner || !slices.Equal(got.Sessions(), c.owns) {
			t.Errorf("%s subscribes as %x for %v: want %v", c.as, got.Owner, got.Sessions(), c.owns)
		}
	}

	ticket := tandem.Ticket{Session: 1, Epoch: 1, Base: 2, Tree: tandem.Root(2)}
	unknown := ticket
	unknown.Session = 99
	for whose, k := range map[string]tandem.Ticket{"a's": ticket, "nobody's": unknown} {
		if err := b.Submit(ctx, k); !errors.Is(err, tandem.UnknownSession) || v.submitted.Load() != 0 {
			t.Errorf("b's ticket for %s session: %v, %d submitted", whose, err, v.submitted.Load())
		}
	}
	if _, err := b.Open(ctx, opening(1)); !errors.Is(rpc.FromStatus(err), tandem.UnknownSession) || v.opens.Load() != 2 {
		t.Errorf("b opens a's session: %v", err)
	}
	if err := b.Close(ctx, 1); err != nil || v.closes.Load() != 0 {
		t.Errorf("b closes a's session: %v, %d closed: want what it would get for an unknown one", err, v.closes.Load())
	}
	if err := a.Submit(ctx, ticket); err != nil || v.submitted.Load() != 1 {
		t.Errorf("a's own ticket: %v", err)
	}
	if err := a.Close(ctx, 1); err != nil || v.closes.Load() != 1 {
		t.Errorf("a closes its own session: %v", err)
	}
	if n := counters.Snapshot()["sessions.foreign"]; n != 4 {
		t.Errorf("%d calls counted as for foreign sessions: want 4", n)
	}
	s.Forget(0xb2)
	if err := b.Submit(ctx, tandem.Ticket{Session: 2, Epoch: 1, Base: 2, Tree: tandem.Root(2)}); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("a forgotten process's ticket: %v", err)
	}
}

// TestNobody: who does not say which process it is neither subscribes nor opens.
func TestNobody(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	v := &sure{subscribed: make(chan tandem.Subscription, 1)}
	serve(t, addr, ServerConfig{Verifier: v})
	for _, number := range []string{"", "0", "x", "10000000000000000"} {
		c := as(t, addr, number)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := c.Open(ctx, opening(1)); !errors.Is(rpc.FromStatus(err), tandem.Unauthenticated) {
			t.Errorf("%q opens: %v", number, err)
		}
		nobody := tandem.Subscription{Began: func() { t.Errorf("%q has subscribed", number) }}
		if err := c.Verdicts(ctx, nobody); !errors.Is(rpc.FromStatus(err), tandem.Unauthenticated) {
			t.Errorf("%q subscribes: %v", number, err)
		}
	}
	if v.opens.Load() != 0 || len(v.subscribed) != 0 {
		t.Errorf("%d opened, %d subscribed", v.opens.Load(), len(v.subscribed))
	}
}

// TestSubscribersMemory: what a subscriber passes out is mapped while it subscribes, if it is on this host.
func TestSubscribersMemory(t *testing.T) {
	dir := t.TempDir()
	var now atomic.Int32
	var last atomic.Pointer[string]
	cfg := ServerConfig{Verifier: &sure{subscribed: make(chan tandem.Subscription, 10)}, Map: func(socket string) func() {
		last.Store(&socket)
		now.Add(1)
		return func() { now.Add(-1) }
	}}
	subscribe := func(addr, socket string) (end func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		states, ended := make(chan bool, 10), make(chan struct{})
		go func() {
			defer close(ended)
			Follow(ctx, dial(t, addr).Passing(socket), Subscriber{Sessions: func() []tandem.SessionID { return nil },
				Deliver: func(tandem.Verdict) {}, State: func(up bool) { states <- up }})
		}()
		wantState(t, states, true)
		return func() { cancel(); <-ended }
	}
	mapped := func(want int32) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%d sockets are mapped", want), func() bool { return now.Load() == want })
	}
	local := "unix://" + filepath.Join(dir, "v")
	serve(t, local, cfg)
	first, second := subscribe(local, "/a/socket"), subscribe(local, "/a/socket")
	mapped(2)
	if got := last.Load(); *got != "/a/socket" {
		t.Errorf("mapped %q", *got)
	}
	none := subscribe(local, "")
	first()
	mapped(1)
	second()
	none()
	mapped(0)
	remote := listen(t, "127.0.0.1:0", cfg)
	last.Store(nil)
	subscribe(remote, "/a/socket")()
	if last.Load() != nil {
		t.Error("a socket that somebody on another host names was looked at")
	}
}
