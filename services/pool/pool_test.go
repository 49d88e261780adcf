package pool

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newServer(t testing.TB) *Server {
	t.Helper()
	s, err := StartServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func newPublisher(t testing.TB, cfg PublisherConfig) *Publisher {
	t.Helper()
	p, err := NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func newSource(t testing.TB, cfg SourceConfig) *Source {
	t.Helper()
	s, err := NewSource(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// chain returns a tree of n nodes in a row.
func chain(n int) tandem.Tree {
	t := tandem.Root(1)
	for i := 1; i < n; i++ {
		t.Tokens, t.Parents = append(t.Tokens, tandem.Token(i)), append(t.Parents, int32(i-1))
	}
	return t
}

func ticket(base int, tree tandem.Tree) tandem.Ticket {
	return tandem.Ticket{Session: 5, Epoch: 2, Base: tandem.Position(base), Hash: 99, Drafter: "d", Tree: tree,
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
}

// put retries while the pool is full or the stream is not there yet.
func put(t testing.TB, p *Publisher, k tandem.Ticket) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		err := p.Put(context.Background(), k)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// claims is a Claimer over a segment of this process.
type claims struct {
	owner *shm.Owner
	hang  bool
}

func (c claims) Claim(ctx context.Context, _ string, h shm.Handle) ([]byte, error) {
	if c.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.owner.Take(h)
}

func newSegment(t testing.TB, cfg shm.Config) *shm.Owner {
	t.Helper()
	o, err := shm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

func TestTicketTravels(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access()}
	segment := newSegment(t, shm.Config{})
	src := newSource(t, SourceConfig{Config: cfg, Claimer: claims{owner: segment}})
	for _, inline := range []int{0, DefaultInline} {
		p := newPublisher(t, PublisherConfig{Config: cfg, Segment: segment, Inline: inline})
		for _, n := range []int{1, 16, 256} {
			want := ticket(n, chain(n))
			put(t, p, want)
			got, err := src.Take(within(t, 5*time.Second), 4)
			if err != nil || len(got) != 1 {
				t.Fatalf("took %d tickets, %v", len(got), err)
			}
			if !reflect.DeepEqual(got[0], want) {
				t.Fatalf("inline %d, %d nodes: took %+v: want %+v", inline, n, got[0], want)
			}
		}
	}
	eventually(t, "slots stay leased", func() bool { return segment.Leased() == 0 })
}

func TestPoolIsBounded(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Batch: 4, MaxAge: time.Minute, Counters: new(tandem.Counters)}
	p := newPublisher(t, PublisherConfig{Config: cfg})
	src := newSource(t, SourceConfig{Config: cfg})
	for i := range 4 {
		put(t, p, ticket(i+1, chain(2)))
	}
	if err := p.Put(context.Background(), ticket(9, chain(2))); !errors.Is(err, tandem.Exhausted) {
		t.Fatalf("fifth ticket of a pool of four: %v: want exhausted", err)
	}
	if n := cfg.Counters.Snapshot()["tickets.pool_full"]; n == 0 {
		t.Error("a full pool is not counted")
	}
	var bases []int
	for len(bases) < 4 {
		got, err := src.Take(within(t, 5*time.Second), 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) > 3 {
			t.Fatalf("took %d tickets: asked for at most 3", len(got))
		}
		for _, g := range got {
			bases = append(bases, int(g.Base))
		}
	}
	if slices.Sort(bases); !slices.Equal(bases, []int{1, 2, 3, 4}) {
		t.Errorf("took bases %v", bases)
	}
	put(t, p, ticket(7, chain(2))) // there is room again
}

func TestOldTicketsAreForgotten(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), MaxAge: 150 * time.Millisecond, Counters: new(tandem.Counters)}
	p := newPublisher(t, PublisherConfig{Config: cfg})
	src := newSource(t, SourceConfig{Config: cfg})
	put(t, p, ticket(1, chain(2)))
	time.Sleep(400 * time.Millisecond)
	if got, err := src.Take(within(t, 200*time.Millisecond), 1); !errors.Is(err, tandem.Deadline) {
		t.Fatalf("took %v, %v: want nothing", got, err)
	}
	late := newPublisher(t, PublisherConfig{Config: cfg, Worth: -time.Second})
	put(t, late, ticket(1, chain(2)))
	eventually(t, "a ticket past its deadline is not counted", func() bool {
		_, _ = src.Take(within(t, 20*time.Millisecond), 1)
		return cfg.Counters.Snapshot()["tickets.expired"] == 2
	})
}

func TestGarbageIsCountedAndDropped(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	src := newSource(t, SourceConfig{Config: cfg, Claimer: claims{owner: newSegment(t, shm.Config{Slots: 2})}, MaxNodes: 16, Vocab: 100})
	p := newPublisher(t, PublisherConfig{Config: cfg})
	put(t, p, ticket(1, chain(2)))
	if _, err := src.Take(within(t, 5*time.Second), 1); err != nil {
		t.Fatal(err)
	}
	valid := wire.Envelope{Ticket: ticket(1, chain(2))}
	marshal := func(change func(*wire.Envelope)) []byte {
		e := valid
		change(&e)
		b, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, c := range map[string]struct {
		data    []byte
		counter string
		degrade bool
	}{ // degrade: the ticket comes through without a tree
		"empty":               {nil, "tickets.garbage", false},
		"random":              {[]byte("\xff\x00\x17 not a ticket"), "tickets.garbage", false},
		"too long":            {make([]byte, wire.MaxEnvelope+1), "tickets.garbage", false},
		"no session":          {marshal(func(e *wire.Envelope) { e.Ticket.Session = 0 }), "tickets.garbage", false},
		"base 0":              {marshal(func(e *wire.Envelope) { e.Ticket.Base = 0 }), "tickets.garbage", false},
		"negative base":       {marshal(func(e *wire.Envelope) { e.Ticket.Base = -1 }), "tickets.garbage", false},
		"too many nodes":      {marshal(func(e *wire.Envelope) { e.Ticket.Tree = chain(17) }), "tickets.garbage", true},
		"token out of range":  {marshal(func(e *wire.Envelope) { e.Ticket.Tree = tandem.Root(100) }), "tickets.garbage", true},
		"handle of elsewhere": {marshal(func(e *wire.Envelope) { e.Handle.Segment = 1 }), "tickets.stale_handle", true},
	} {
		before := cfg.Counters.Snapshot()[c.counter]
		if err := p.conn.Publish(cfg.withDefaults().subject(), c.data); err != nil {
			t.Fatal(err)
		}
		put(t, p, ticket(3, chain(2)))
		seen := 0
		for seen < 1 { // the valid ticket comes through, whatever came before it
			got, err := src.Take(within(t, 5*time.Second), 4)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, g := range got {
				if g.Base == 3 {
					seen++
				} else if !c.degrade || len(g.Tree.Tokens) > 0 || (g.Tree.Tokens != nil) != (c.counter == "tickets.garbage") {
					t.Errorf("%s: took %+v", name, g)
				}
			}
		}
		if n := cfg.Counters.Snapshot()[c.counter]; n != before+1 {
			t.Errorf("%s: %s went from %d to %d", name, c.counter, before, n)
		}
	}
}

func TestClaimsThatFailDegrade(t *testing.T) {
	s := newServer(t)
	segment := newSegment(t, shm.Config{Slots: 8})
	for name, c := range map[string]struct {
		claimer Claimer
		spoil   func()
		counter string
	}{
		"no claimer": {nil, func() {}, "tickets.claim_failed"},
		"hangs":      {claims{hang: true}, func() {}, "tickets.claim_failed"},
		"stale":      {claims{owner: newSegment(t, shm.Config{Slots: 1})}, func() {}, "tickets.stale_handle"},
	} {
		cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
		src := newSource(t, SourceConfig{Config: cfg, Claimer: c.claimer})
		p := newPublisher(t, PublisherConfig{Config: cfg, Segment: segment})
		put(t, p, ticket(4, chain(4)))
		start := time.Now()
		got, err := src.Take(within(t, 5*time.Second), 1)
		if err != nil || len(got) != 1 || got[0].Tree.Tokens != nil || got[0].Base != 4 {
			t.Fatalf("%s: took %+v, %v: want one ticket without a tree", name, got, err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("%s: took %v", name, d)
		}
		if n := cfg.Counters.Snapshot()[c.counter]; n != 1 {
			t.Errorf("%s: %s is %d", name, c.counter, n)
		}
		src.Close()
	}
}

func TestNoFreeSlotSendsInline(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	segment := newSegment(t, shm.Config{Slots: 1, Lease: time.Hour})
	if _, err := segment.Put([]byte("held")); err != nil {
		t.Fatal(err)
	}
	src := newSource(t, SourceConfig{Config: cfg})
	p := newPublisher(t, PublisherConfig{Config: cfg, Segment: segment})
	put(t, p, ticket(1, chain(8)))
	got, err := src.Take(within(t, 5*time.Second), 1)
	if err != nil || got[0].Tree.Len() != 8 {
		t.Fatalf("took %+v, %v", got, err)
	}
	big := chain(256)
	big.Tokens = slices.Clone(big.Tokens)
	for range 10 {
		big.Tokens, big.Parents = append(big.Tokens, big.Tokens...), append(big.Parents, big.Parents...)
		if len(big.Tokens) > 4096 {
			break
		}
	}
	if err := p.Put(context.Background(), ticket(1, big)); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("a tree that fits nowhere: %v: want exhausted", err)
	}
}

func TestServerLostAndBack(t *testing.T) {
	s, err := StartServer()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	src := newSource(t, SourceConfig{Config: cfg})
	p := newPublisher(t, PublisherConfig{Config: cfg})
	take := func() {
		t.Helper()
		put(t, p, ticket(1, chain(2)))
		if _, err := src.Take(within(t, 10*time.Second), 1); err != nil {
			t.Fatal(err)
		}
	}
	take()
	port := s.nats.Addr().(*net.TCPAddr).Port
	s.Close()
	eventually(t, "the loss is not noticed", func() bool { return !p.Connected() && !src.Connected() })
	start := time.Now()
	if err := p.Put(context.Background(), ticket(1, chain(2))); !errors.Is(err, tandem.Unavailable) {
		t.Fatalf("put without a server: %v: want unavailable", err)
	}
	if d := time.Since(start); d > 50*time.Millisecond {
		t.Errorf("put without a server took %v", d)
	}
	again, err := startServer(&server.Options{Host: "127.0.0.1", Port: port, Authorization: cfg.Token})
	if err != nil {
		t.Skipf("port was taken meanwhile: %v", err)
	}
	defer again.Close()
	take()
	take()
}

// TestNoVerifier puts tickets while no verifier is there: refused at once, accepted when it comes.
func TestNoVerifier(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access()}
	p := newPublisher(t, PublisherConfig{Config: cfg})
	eventually(t, "no connection", p.Connected)
	for range 2 {
		start := time.Now()
		if err := p.Put(context.Background(), ticket(1, chain(2))); !errors.Is(err, tandem.Unavailable) {
			t.Fatalf("put without a verifier: %v: want unavailable", err)
		}
		if d := time.Since(start); d > 200*time.Millisecond {
			t.Errorf("put without a verifier took %v", d)
		}
		src := newSource(t, SourceConfig{Config: cfg})
		put(t, p, ticket(2, chain(2)))
		if _, err := src.Take(within(t, 5*time.Second), 1); err != nil {
			t.Fatal(err)
		}
		src.Close()
		eventually(t, "the verifier's end is not noticed", func() bool {
			return errors.Is(p.Put(context.Background(), ticket(3, chain(2))), tandem.Unavailable)
		})
	}
}

func TestTakeEnds(t *testing.T) {
	s := newServer(t)
	src := newSource(t, SourceConfig{Config: Config{Access: s.Access()}})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if _, err := src.Take(ctx, 1); !errors.Is(err, tandem.Canceled) {
			t.Errorf("take of an ended context: %v", err)
		}
		if _, err := src.Take(context.Background(), 1); !errors.Is(err, tandem.Unavailable) {
			t.Errorf("take of a closed source: %v", err)
		}
	})
	time.Sleep(10 * time.Millisecond)
	cancel()
	time.Sleep(10 * time.Millisecond)
	src.Close()
	work.Wait()
}

func TestWrongTokenIsKeptOut(t *testing.T) {
	s := newServer(t)
	a := s.Access()
	a.Token = "wrong"
	p := newPublisher(t, PublisherConfig{Config: Config{Access: a}})
	if err := p.Put(context.Background(), ticket(1, chain(2))); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("put with a wrong token: %v", err)
	}
	if nc, err := nats.Connect(a.URL); err == nil {
		nc.Close()
		t.Error("the server lets strangers in")
	}
}

func TestBadConfiguration(t *testing.T) {
	for _, c := range []Config{{}, {Access: Access{URL: "nats://127.0.0.1:1"}, Name: "a.b"}, {Access: Access{URL: "nats://"}}, {Access: Access{URL: "http://host:1"}},
		{Access: Access{URL: "nats://127.0.0.1:1"}, Batch: -1}, {Access: Access{URL: "nats://127.0.0.1:1"}, MaxAge: 1}} {
		if _, err := NewSource(SourceConfig{Config: c}); !errors.Is(err, tandem.Invalid) {
			t.Errorf("source of %+v: %v: want invalid", c, err)
		}
		if _, err := NewPublisher(PublisherConfig{Config: c}); !errors.Is(err, tandem.Invalid) {
			t.Errorf("publisher of %+v: %v: want invalid", c, err)
		}
	}
	if got := redact("nats://me:secret@host:1"); got != "nats://…@host:1" {
		t.Errorf("redacted to %q", got)
	}
}

func BenchmarkPutTake(b *testing.B) {
	s := newServer(b)
	cfg := Config{Access: s.Access()}
	src := newSource(b, SourceConfig{Config: cfg})
	p := newPublisher(b, PublisherConfig{Config: cfg, Inline: DefaultInline})
	put(b, p, ticket(1, chain(16)))
	if _, err := src.Take(within(b, 5*time.Second), 1); err != nil {
		b.Fatal(err)
	}
	times := make([]time.Duration, 0, b.N)
	var work sync.WaitGroup
	arrived := make(chan time.Time)
	work.Go(func() {
		for range b.N {
			if _, err := src.Take(context.Background(), 1); err != nil {
				b.Error(err)
			}
			arrived <- time.Now()
		}
	})
	b.ResetTimer()
	for range b.N {
		start := time.Now()
		if err := p.Put(context.Background(), ticket(1, chain(16))); err != nil {
			b.Fatal(err)
		}
		times = append(times, (<-arrived).Sub(start))
	}
	work.Wait()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs/p50")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "µs/p99")
}
