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

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
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

// newPublisher returns a publisher that sends a ticket once, however late its reply comes on a busy machine: these tests count tickets.
func newPublisher(t testing.TB, cfg PublisherConfig) *Publisher {
	t.Helper()
	if cfg.Answer == 0 {
		cfg.Answer = 3 * time.Second
	}
	if cfg.Wait == 0 {
		cfg.Wait = 30 * time.Second
	}
	p, err := NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// queue is a verifier as far as its pool knows it: it has room for so many tickets, until they are taken.
type queue struct {
	*Consumer
	tickets chan tandem.Ticket
}

func (q *queue) submit(_ context.Context, t tandem.Ticket) error {
	select {
	case q.tickets <- t:
		return nil
	default:
		return tandem.Errorf("verifier", tandem.Exhausted, "%d tickets wait", len(q.tickets))
	}
}

// Take waits for a ticket and returns it with up to most-1 more.
func (q *queue) Take(ctx context.Context, most int) (got []tandem.Ticket, err error) {
	select {
	case t := <-q.tickets:
		got = append(got, t)
	case <-ctx.Done():
		return nil, tandem.Errorf(op, tandem.KindOf(ctx.Err()), "%w", ctx.Err())
	}
	for len(got) < most {
		select {
		case t := <-q.tickets:
			got = append(got, t)
		default:
			return got, nil
		}
	}
	return got, nil
}

func newConsumer(t testing.TB, cfg ConsumerConfig) *queue { return consumerOf(t, cfg, 32) }

// consumerOf returns the pool of a verifier with room for so many tickets.
func consumerOf(t testing.TB, cfg ConsumerConfig, room int) *queue {
	t.Helper()
	q := &queue{tickets: make(chan tandem.Ticket, room)}
	cfg.Submit = q.submit
	var err error
	if q.Consumer, err = NewConsumer(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.Close)
	return q
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
	testkit.Eventually(t, "the pool takes a ticket", func() bool { return p.Put(context.Background(), k) == nil })
}

func TestTicketTravels(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access()}
	segment := newSegment(t, shm.SegmentConfig{})
	src := newConsumer(t, ConsumerConfig{Config: cfg, Fetcher: copies{segment: segment}})
	for _, inline := range []int{0, 1024} {
		p := newPublisher(t, PublisherConfig{Config: cfg, Trees: trees.NewWriter(segment, inline, new(tandem.Counters))})
		for _, n := range []int{1, 16, 256} {
			want := ticket(n, chain(n))
			put(t, p, want)
			got, err := src.Take(within(t, 30*time.Second), 4)
			if err != nil || len(got) != 1 {
				t.Fatalf("took %d tickets, %v", len(got), err)
			}
			if !reflect.DeepEqual(got[0], want) {
				t.Fatalf("inline %d, %d nodes: took %+v: want %+v", inline, n, got[0], want)
			}
		}
	}
	if segment.Leased() != 0 {
		t.Error("a tree went into memory that nobody has mapped")
	}
}

func TestPoolIsBounded(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	p := newPublisher(t, PublisherConfig{Config: cfg})
	src := consumerOf(t, ConsumerConfig{Config: cfg}, 4) // the verifier's bound, and none of the pool's own on top
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
		got, err := src.Take(within(t, 30*time.Second), 3)
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

// TestOldTicketsAreForgotten: a ticket that comes after nobody waits for it any more.
func TestOldTicketsAreForgotten(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	src := newConsumer(t, ConsumerConfig{Config: cfg})
	late := newPublisher(t, PublisherConfig{Config: cfg, Worth: -time.Second})
	put(t, late, ticket(1, chain(2)))
	testkit.Eventually(t, "a ticket past its deadline is not counted", func() bool {
		_, _ = src.Take(within(t, 20*time.Millisecond), 1)
		return cfg.Counters.Snapshot()["tickets.expired"] == 1
	})
}

func TestGarbageIsCountedAndDropped(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	src := newConsumer(t, ConsumerConfig{Config: cfg, Fetcher: copies{segment: newSegment(t, shm.SegmentConfig{Slots: 2})}, MaxNodes: 16,
		Vocab: 100})
	p := newPublisher(t, PublisherConfig{Config: cfg})
	put(t, p, ticket(1, chain(2)))
	if _, err := src.Take(within(t, 30*time.Second), 1); err != nil {
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
		if err := p.conn.Publish(cfg.tickets(""), c.data); err != nil {
			t.Fatal(err)
		}
		put(t, p, ticket(3, chain(2)))
		whole, degraded := false, false
		for !whole || degraded != c.degrade { // the valid ticket comes through, whatever came before it, and may overtake a fetch
			got, err := src.Take(within(t, 30*time.Second), 4)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, g := range got {
				if g.Base == 3 {
					whole = true
					continue
				}
				degraded = true
				if !c.degrade || len(g.Tree.Tokens) > 0 || (g.Tree.Tokens != nil) != (c.counter == "tickets.garbage") {
					t.Errorf("%s: took %+v", name, g)
				}
			}
		}
		if n := cfg.Counters.Snapshot()[c.counter]; n != before+1 {
			t.Errorf("%s: %s went from %d to %d", name, c.counter, before, n)
		}
	}
}

func TestServerLostAndBack(t *testing.T) {
	s, err := StartServer()
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	src := newConsumer(t, ConsumerConfig{Config: cfg})
	p := newPublisher(t, PublisherConfig{Config: cfg})
	take := func() {
		t.Helper()
		put(t, p, ticket(1, chain(2)))
		if _, err := src.Take(within(t, 30*time.Second), 1); err != nil {
			t.Fatal(err)
		}
	}
	take()
	port := s.nats.Addr().(*net.TCPAddr).Port
	s.Close()
	testkit.Eventually(t, "the loss is not noticed", func() bool { return !p.Connected() && !src.conn.Connected() })
	start := time.Now()
	if err := p.Put(context.Background(), ticket(1, chain(2))); !errors.Is(err, tandem.Unavailable) {
		t.Fatalf("put without a server: %v: want unavailable", err)
	}
	if d := time.Since(start); d > 10*time.Second { // of the 30 s that a Put may wait
		t.Errorf("put without a server took %v", d)
	}
	again, err := startServer(&server.Options{Host: "127.0.0.1", Port: port, Authorization: cfg.Token}, &door{token: cfg.Token})
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
	p := newPublisher(t, PublisherConfig{Config: cfg, Answer: 20 * time.Millisecond}) // what meets a verifier's end has no reply
	testkit.Eventually(t, "no connection", p.Connected)
	for range 2 {
		start := time.Now()
		if err := p.Put(context.Background(), ticket(1, chain(2))); !errors.Is(err, tandem.Unavailable) {
			t.Fatalf("put without a verifier: %v: want unavailable", err)
		}
		if d := time.Since(start); d > 10*time.Second { // of the 30 s that a Put may wait
			t.Errorf("put without a verifier took %v", d)
		}
		src := newConsumer(t, ConsumerConfig{Config: cfg})
		put(t, p, ticket(2, chain(2)))
		if _, err := src.Take(within(t, 30*time.Second), 1); err != nil {
			t.Fatal(err)
		}
		src.Close()
		testkit.Eventually(t, "the verifier's end is not noticed", func() bool {
			return errors.Is(p.Put(context.Background(), ticket(3, chain(2))), tandem.Unavailable)
		})
	}
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
	for _, c := range []Config{{}, {Access: Access{URL: "nats://127.0.0.1:1"}, Name: "a.b"}, {Access: Access{URL: "nats://"}},
		{Access: Access{URL: "http://host:1"}}, {Access: Access{URL: "nats://127.0.0.1:1"}, Name: "a b"}} {
		if _, err := NewConsumer(ConsumerConfig{Config: c}); !errors.Is(err, tandem.Invalid) {
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
	src := newConsumer(b, ConsumerConfig{Config: cfg})
	p := newPublisher(b, PublisherConfig{Config: cfg})
	put(b, p, ticket(1, chain(16)))
	if _, err := src.Take(within(b, 30*time.Second), 1); err != nil {
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
