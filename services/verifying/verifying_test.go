package verifying

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fake struct {
	opening tandem.Opening
	closed  tandem.SessionID
	err     error
}

func (f *fake) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	f.opening = o
	return tandem.Opened{Reused: 1}, f.err
}
func (f *fake) Close(_ context.Context, id tandem.SessionID) error { f.closed = id; return f.err }

func serve(t *testing.T, addr string, cfg Config) (*Server, func()) {
	t.Helper()
	v := NewServer(cfg)
	s, err := rpc.NewServer(rpc.Config{Listen: addr, Drain: v.Close})
	if err != nil {
		t.Fatal(err)
	}
	v.Register(s.Registrar())
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	stop := func() { cancel(); work.Wait() }
	t.Cleanup(stop)
	return v, stop
}

func dial(t *testing.T, addr string) *Client {
	t.Helper()
	conn, err := rpc.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return NewClient(conn)
}

// follow runs c.Run until the test ends.
func follow(t *testing.T, c *Client) (verdicts chan tandem.Verdict, states chan bool) {
	verdicts, states = make(chan tandem.Verdict, 1000), make(chan bool, 100)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		c.Run(ctx, func(v tandem.Verdict) { verdicts <- v }, func(up bool) { states <- up })
	})
	t.Cleanup(func() { cancel(); work.Wait() })
	return verdicts, states
}

func wantState(t *testing.T, states chan bool, want bool) {
	t.Helper()
	select {
	case got := <-states:
		if got != want {
			t.Fatalf("state is %v: want %v", got, want)
		}
	case <-time.After(5 * time.Second):
		t.Fatalf("state never became %v", want)
	}
}

func TestVerifierOverTheWire(t *testing.T) {
	f := new(fake)
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	want := wire.Description{Name: "v", ISA: "avx2", KVCapacity: 7}
	serve(t, addr, Config{Verifier: f, Describe: func() wire.Description { return want }})
	var c tandem.Verifier = dial(t, addr)
	ctx := context.Background()
	o := tandem.Opening{Session: 3, Epoch: 1, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 8, Sampling: tandem.Sampling{TopP: 1, Seed: 4}}
	_, err := c.Open(ctx, o)
	if o.Owner = f.opening.Owner; err != nil || o.Owner == 0 || !reflect.DeepEqual(f.opening, o) {
		t.Errorf("opened %+v, %v", f.opening, err)
	}
	if err := c.Close(ctx, 3); err != nil || f.closed != 3 {
		t.Errorf("closed %v, %v", f.closed, err)
	}
	f.err = tandem.Errorf("kv", tandem.Exhausted, "no pages")
	if _, err := c.Open(ctx, o); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("open: %v", err)
	}
	if d, err := dial(t, addr).Describe(ctx); err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("described %+v, %v", d, err)
	}
}

func TestTicketsPastThePool(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	var got tandem.Ticket
	var answer error
	counters := new(tandem.Counters)
	serve(t, addr, Config{Verifier: new(fake), Counters: counters, MaxNodes: 3, Vocab: 10,
		Submit: func(_ context.Context, k tandem.Ticket) error { got = k; return answer }})
	c := dial(t, addr)
	ctx := context.Background()
	good := tandem.Ticket{Session: 3, Epoch: 1, Base: 5, Hash: 7, Drafter: "go", Tree: tandem.Tree{Tokens: []tandem.Token{4, 9}, Parents: []int32{-1, 0}, LogProbs: []float32{0, -1}}}
	if err := c.Put(ctx, good); err != nil || !reflect.DeepEqual(got, good) {
		t.Errorf("submitted %+v, %v", got, err)
	}
	answer = tandem.Errorf("verifier", tandem.Exhausted, "8 tickets wait")
	if err := c.Put(ctx, good); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("no room: %v", err)
	}
	answer = nil
	for name, change := range map[string]func(*tandem.Ticket){
		"no session": func(k *tandem.Ticket) { k.Session = 0 },
		"no base":    func(k *tandem.Ticket) { k.Base = 0 },
		"vocabulary": func(k *tandem.Ticket) { k.Tree = tandem.Root(10) },
		"too large": func(k *tandem.Ticket) {
			k.Tree = tandem.Tree{Tokens: make([]tandem.Token, 4), Parents: []int32{-1, 0, 1, 2}}
		},
		"no parent": func(k *tandem.Ticket) { k.Tree = tandem.Tree{Tokens: []tandem.Token{1, 2}, Parents: []int32{-1, 1}} },
		"no siblings": func(k *tandem.Ticket) {
			k.Tree = tandem.Tree{Tokens: []tandem.Token{1, 2, 2}, Parents: []int32{-1, 0, 0}}
		},
	} {
		bad := good
		change(&bad)
		got = tandem.Ticket{}
		if err := c.Put(ctx, bad); err == nil || got.Session != 0 || got.Tree.Len() != 0 {
			t.Errorf("%s: %v, submitted %+v", name, err, got)
		}
	}
	handle := wire.FromEnvelope(wire.Envelope{Ticket: good, Handle: shm.Handle{Segment: 1}})
	for _, m := range []*peerv1.Ticket{nil, handle, {Version: 1, Session: 1, Base: 1}} {
		if _, err := c.rpc.Submit(ctx, &peerv1.SubmitRequest{Ticket: m}); err == nil {
			t.Errorf("%v was taken", m)
		}
	}
	if n := counters.Snapshot(); n["tickets.garbage"] != 9 || n["tickets.submitted"] != 1 {
		t.Errorf("counted %v", n)
	}
	other := "unix://" + filepath.Join(t.TempDir(), "v")
	serve(t, other, Config{Verifier: new(fake)})
	if err := dial(t, other).Put(ctx, good); !errors.Is(err, tandem.Unsupported) {
		t.Errorf("a verifier that takes no tickets: %v", err)
	}
}

func TestVerdictsReachEverySubscriberInOrder(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	s, _ := serve(t, addr, Config{Verifier: new(fake)})
	a, aState := follow(t, dial(t, addr))
	b, bState := follow(t, dial(t, addr))
	wantState(t, aState, true)
	wantState(t, bState, true)
	for i := range 500 {
		s.Deliver(tandem.Verdict{Session: 1, Base: tandem.Position(i), Tokens: []tandem.Token{tandem.Token(i)}})
		if i%50 == 0 {
			time.Sleep(time.Millisecond) // stay within the buffer
		}
	}
	for name, ch := range map[string]chan tandem.Verdict{"first": a, "second": b} {
		for i := range 500 {
			select {
			case v := <-ch:
				if int(v.Base) != i || v.Tokens[0] != tandem.Token(i) {
					t.Fatalf("%s subscriber: verdict %d is %+v", name, i, v)
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s subscriber: verdict %d does not come", name, i)
			}
		}
	}
}

func TestVerifierGoneAndBack(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	_, stop := serve(t, addr, Config{Verifier: new(fake)})
	verdicts, states := follow(t, dial(t, addr))
	wantState(t, states, true)
	start := time.Now()
	stop()
	if d := time.Since(start); d > time.Second {
		t.Errorf("a standing stream held the server up for %v", d)
	}
	wantState(t, states, false)
	s, _ := serve(t, addr, Config{Verifier: new(fake)})
	wantState(t, states, true)
	s.Deliver(tandem.Verdict{Session: 9})
	select {
	case v := <-verdicts:
		if v.Session != 9 {
			t.Errorf("verdict %+v", v)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("no verdict after the restart")
	}
	select {
	case up := <-states:
		t.Errorf("state %v without a reason", up)
	default:
	}
}

// stuck is a stream whose reader does not read.
type stuck struct {
	peerv1.VerifierService_VerdictsServer
	ctx  context.Context
	sent chan int
}

func (s *stuck) Context() context.Context     { return s.ctx }
func (s *stuck) SendHeader(metadata.MD) error { return nil }
func (s *stuck) Send(r *peerv1.VerdictsResponse) error {
	s.sent <- len(r.GetVerdicts())
	return nil
}

func TestSlowSubscriberIsCutOff(t *testing.T) {
	counters := new(tandem.Counters)
	s := NewServer(Config{Verifier: new(fake), Buffer: 4, Counters: counters})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	slow := &stuck{ctx: ctx, sent: make(chan int)}
	ended := make(chan error)
	go func() { ended <- (&adapter{s: s}).Verdicts(nil, slow) }()
	for end := time.Now().Add(3 * time.Second); counters.Snapshot()["verdicts.cut_off"] == 0; time.Sleep(time.Millisecond) {
		start := time.Now()
		s.Deliver(tandem.Verdict{Session: 1})
		if d := time.Since(start); d > 100*time.Millisecond {
			t.Fatalf("deliver waited %v for a slow subscriber", d)
		}
		if time.Now().After(end) {
			t.Fatal("slow subscriber is never cut off")
		}
	}
	for {
		select {
		case <-slow.sent:
		case err := <-ended:
			if !errors.Is(err, tandem.Exhausted) {
				t.Errorf("cut off with %v: want exhausted", err)
			}
			if len(s.subs) != 0 {
				t.Error("subscription is left")
			}
			return
		}
	}
}
