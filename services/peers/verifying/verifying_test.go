package verifying

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a verifier that computes nothing: a test says its verdicts.
type fake struct {
	desk
	opening     tandem.Opening
	identity    tandem.Identity
	progress    []tandem.Progress // of each Open
	closed      tandem.SessionID
	ticket      tandem.Ticket
	err         error
	description tandem.Description
}

func (f *fake) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	for _, p := range f.progress {
		o.Progress(p)
	}
	f.opening, f.opening.Progress = o, nil
	return tandem.Opened{Identity: f.identity, Reused: 2, Cached: 1, Guesses: []tandem.Guess{guess}}, f.err
}
func (f *fake) Close(_ context.Context, id tandem.SessionID) error   { f.closed = id; return f.err }
func (f *fake) Submit(_ context.Context, t tandem.Ticket) error      { f.ticket = t; return f.err }
func (f *fake) Describe(context.Context) (tandem.Description, error) { return f.description, f.err }

// desk gives verdicts to those who subscribed and said that the session is theirs.
type desk struct {
	mu   sync.Mutex
	subs map[chan tandem.Verdict][]tandem.SessionID
}

func (d *desk) Verdicts(ctx context.Context, s tandem.Subscription) error {
	verdicts := make(chan tandem.Verdict, 1000)
	d.mu.Lock()
	if d.subs == nil {
		d.subs = map[chan tandem.Verdict][]tandem.SessionID{}
	}
	d.subs[verdicts] = s.Sessions()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.subs, verdicts)
	}()
	s.Began()
	for {
		select {
		case v := <-verdicts:
			s.Deliver([]tandem.Verdict{v})
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// say delivers v.
func (d *desk) say(v tandem.Verdict) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for verdicts, sessions := range d.subs {
		if slices.Contains(sessions, v.Session) {
			verdicts <- v
		}
	}
}

func serve(t *testing.T, addr string, cfg ServerConfig) (*Server, func()) {
	t.Helper()
	v, _, stop := run(t, addr, cfg)
	return v, stop
}

// listen serves until the test ends, and returns the address, with the port that it got.
func listen(t *testing.T, addr string, cfg ServerConfig) string {
	t.Helper()
	_, addr, _ = run(t, addr, cfg)
	return addr
}

func run(t *testing.T, addr string, cfg ServerConfig) (v *Server, at string, stop func()) {
	t.Helper()
	v = NewServer(cfg)
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: addr, Drain: v.Close, Grace: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	v.Register(s.Registrar())
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	stop = func() { cancel(); work.Wait() }
	t.Cleanup(stop)
	return v, s.Addr(), stop
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

// follow runs Follow until the test ends, for a process that has those sessions.
func follow(t *testing.T, c *Client, sessions ...tandem.SessionID) (verdicts chan tandem.Verdict, states chan bool) {
	verdicts, states = make(chan tandem.Verdict, 1000), make(chan bool, 100)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		Follow(ctx, c, Subscriber{Sessions: func() []tandem.SessionID { return sessions },
			Deliver: func(v tandem.Verdict) { verdicts <- v }, State: func(up bool) { states <- up }})
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
	case <-time.After(30 * time.Second):
		t.Fatalf("state never became %v", want)
	}
}

var guess = tandem.Guess{SelfDraft: tandem.Medusa, Levels: [][]tandem.TopLogprob{{{Token: 7, LogProb: -0.5}}}}

// opening is a valid one.
func opening(id tandem.SessionID) tandem.Opening {
	return tandem.Opening{Session: id, Epoch: 1, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 8,
		Sampling: tandem.Sampling{TopP: 1, Seed: 4}}
}

func TestVerifierOverTheWire(t *testing.T) {
	want := tandem.Description{Name: "v", ISA: "avx2", KVCapacity: 7, Protocol: tandem.Protocol, Identity: "a-b-c-f16-a1", Lineage: "l"}
	f := &fake{identity: "a-b-c-f16-a1", description: want}
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	serve(t, addr, ServerConfig{Verifier: f})
	var c tandem.Verifier = dial(t, addr)
	ctx := context.Background()
	o := opening(3)
	o.Identity, o.Fingerprint = "d-e-f-q8_0-a2", "cafe"
	var told []tandem.Progress
	f.progress = []tandem.Progress{{Cached: 1, Held: 1, Pass: -1}, {Cached: 1, Held: 7, Steps: 1 << 40, Pass: time.Minute}}
	o.Progress = func(p tandem.Progress) { told = append(told, p) }
	opened, err := c.Open(ctx, o)
	o.Progress = nil
	if !reflect.DeepEqual(opened, tandem.Opened{Identity: f.identity, Reused: 2, Cached: 1, Guesses: []tandem.Guess{guess}}) {
		t.Errorf("opened %+v", opened)
	}
	if !slices.Equal(told, f.progress) {
		t.Errorf("told %+v: want %+v", told, f.progress)
	}
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
	if _, err := c.Describe(ctx); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("describe: %v", err)
	}
	f.err = nil
	if d, err := c.Describe(ctx); err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("described %+v, %v", d, err)
	}
}

// Follow tells why a verifier that is there does not take a subscription, and goes on trying.
func TestFollowTellsWhyItIsRefused(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "v"))
	if err != nil {
		t.Fatal(err)
	}
	other := grpc.NewServer() // of before there was a protocol
	NewServer(ServerConfig{Verifier: new(fake)}).Register(other)
	go func() { _ = other.Serve(l) }()
	t.Cleanup(other.Stop)
	c := dial(t, "unix://"+l.Addr().String())
	why := make(chan error, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		Follow(ctx, c, Subscriber{Sessions: func() []tandem.SessionID { return nil }, Deliver: func(tandem.Verdict) {},
			State: func(up bool) { t.Errorf("state %v of a verifier that cannot be used", up) }, Refused: func(err error) { why <- err }})
	})
	t.Cleanup(func() { cancel(); work.Wait() })
	select {
	case err := <-why:
		if tandem.Refusal(err) != tandem.OpProtocol {
			t.Errorf("refused with %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nobody is told")
	}
}

func TestTicketsPastThePool(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	f, counters := new(fake), new(tandem.Counters)
	serve(t, addr, ServerConfig{Verifier: f, Counters: counters, MaxNodes: 3, Vocab: 10})
	c := dial(t, addr)
	ctx := context.Background()
	if _, err := c.Open(ctx, opening(3)); err != nil {
		t.Fatal(err)
	}
	good := tandem.Ticket{Session: 3, Epoch: 1, Base: 5, Hash: 7, Drafter: "go", Tree: tandem.Tree{Tokens: []tandem.Token{4, 9},
		Parents: []int32{-1, 0}, LogProbs: []float32{0, -1}}}
	if err := c.Submit(ctx, good); err != nil || !reflect.DeepEqual(f.ticket, good) {
		t.Errorf("submitted %+v, %v", f.ticket, err)
	}
	f.err = tandem.Errorf("verifier", tandem.Exhausted, "8 tickets wait")
	if err := c.Submit(ctx, good); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("no room: %v", err)
	}
	f.err = nil
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
		f.ticket = tandem.Ticket{}
		if err := c.Submit(ctx, bad); err == nil || f.ticket.Session != 0 || f.ticket.Tree.Len() != 0 {
			t.Errorf("%s: %v, submitted %+v", name, err, f.ticket)
		}
	}
	handle := wire.FromEnvelope(wire.Envelope{Ticket: good, Handle: shm.Handle{Segment: 1}})
	old := &peerv1.Ticket{Version: tandem.Protocol - 1, Session: 1, Base: 1}
	noTree := &peerv1.Ticket{Version: tandem.Protocol, Session: 1, Base: 1}
	for _, m := range []*peerv1.Ticket{nil, handle, old, noTree} {
		if _, err := c.rpc.Submit(ctx, &peerv1.SubmitRequest{Ticket: m}); err == nil {
			t.Errorf("%v was taken", m)
		}
	}
	if n := counters.Snapshot(); n["tickets.garbage"] != 9 || n["refused.protocol"] != 1 || n["tickets.submitted"] != 1 {
		t.Errorf("counted %v", n)
	}
}

// TestVerdictsComeInOrder: also on a process's second connection, as while its first has broken unseen.
func TestVerdictsComeInOrder(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	f := new(fake)
	serve(t, addr, ServerConfig{Verifier: f})
	a, aState := follow(t, dial(t, addr), 1)
	b, bState := follow(t, dial(t, addr), 1)
	wantState(t, aState, true)
	wantState(t, bState, true)
	for i := range 500 {
		f.say(tandem.Verdict{Session: 1, Base: tandem.Position(i), Tokens: []tandem.Token{tandem.Token(i)}})
	}
	for name, ch := range map[string]chan tandem.Verdict{"first": a, "second": b} {
		for i := range 500 {
			select {
			case v := <-ch:
				if int(v.Base) != i || v.Tokens[0] != tandem.Token(i) {
					t.Fatalf("%s subscriber: verdict %d is %+v", name, i, v)
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("%s subscriber: verdict %d does not come", name, i)
			}
		}
	}
}

func TestVerifierGoneAndBack(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	_, stop := serve(t, addr, ServerConfig{Verifier: new(fake)})
	verdicts, states := follow(t, dial(t, addr), 9)
	wantState(t, states, true)
	start := time.Now()
	stop()
	if d := time.Since(start); d > 30*time.Second { // calls have a minute
		t.Errorf("a standing stream held the server up for %v", d)
	}
	wantState(t, states, false)
	f := new(fake)
	serve(t, addr, ServerConfig{Verifier: f})
	wantState(t, states, true)
	f.say(tandem.Verdict{Session: 9})
	select {
	case v := <-verdicts:
		if v.Session != 9 {
			t.Errorf("verdict %+v", v)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("no verdict after the restart")
	}
	select {
	case up := <-states:
		t.Errorf("state %v without a reason", up)
	default:
	}
}

// TestAStreamEndsWithItsSubscription: for the verifier's reason.
func TestAStreamEndsWithItsSubscription(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	serve(t, addr, ServerConfig{Verifier: slow{}})
	err := dial(t, addr).Verdicts(t.Context(), tandem.Subscription{Deliver: func([]tandem.Verdict) {}})
	if !errors.Is(err, tandem.Exhausted) {
		t.Errorf("ended with %v: want exhausted", err)
	}
}

// slow is a verifier that finds every subscriber too slow.
type slow struct{ tandem.Verifier }

func (slow) Verdicts(_ context.Context, s tandem.Subscription) error {
	s.Began()
	return tandem.Errorf("verifier", tandem.Exhausted, "subscriber lags")
}
