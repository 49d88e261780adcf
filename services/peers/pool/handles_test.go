package pool

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// copies is a Fetcher over a segment of this process.
type copies struct {
	segment *shm.Segment
	hang    bool
}

func (c copies) Fetch(ctx context.Context, _ string, h shm.Handle) ([]byte, error) {
	if c.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.segment.Copy(h)
}

func newSegment(t testing.TB, cfg shm.SegmentConfig) *shm.Segment {
	t.Helper()
	o, err := shm.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// mapped has a segment mapped as a verifier does.
func mapped(t testing.TB, segment *shm.Segment) *shm.Set {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := segment.Serve(l); err != nil {
		t.Fatal(err)
	}
	set := new(shm.Set)
	link := shm.NewLink(shm.Verifier, set, func(context.Context) (string, error) { return socket, nil })
	t.Cleanup(link.Close)
	testkit.Eventually(t, "the segment is not mapped",
		func() bool { return segment.Readers(shm.Verifier) == 1 && link.Segment() == segment.ID() })
	return set
}

// TestTreesByHandle: where the verifier has the sender's memory mapped, trees of all sizes come by handle, without a fetch, and a session
// holds one slot. The verifier gone, they travel inside their tickets again.
func TestTreesByHandle(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	segment := newSegment(t, shm.SegmentConfig{Slots: 4, Lease: time.Hour})
	src := newConsumer(t, ConsumerConfig{Config: cfg, Segments: mapped(t, segment), Fetcher: copies{hang: true}})
	p := newPublisher(t, PublisherConfig{Config: cfg, Trees: trees.NewWriter(segment, 0, cfg.Counters)})
	for i := range 40 {
		want := ticket(i+1, chain([]int{16, 256, 64, 1}[i%4]))
		put(t, p, want)
		got, err := src.Take(within(t, 30*time.Second), 4)
		if err != nil || len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Fatalf("round %d: took %+v, %v: want %+v", i, got, err, want)
		}
		if n := segment.Leased(); i > 0 && n > 1 {
			t.Fatalf("round %d: %d slots are leased by one session", i, n)
		}
	}
	n := cfg.Counters.Snapshot()
	// On a busy machine a ticket may be sent again, or put again because the consumer was not there yet.
	if n["tickets.mapped"] < 30 || n["tickets.mapped"] > 30+n["tickets.resent"] || n["trees.shared"] < 30 ||
		n["tickets.claimed"] != 0 || n["tickets.claim_failed"] != 0 {
		t.Errorf("counted %v: want 30 trees by handle, and 10 roots alone inside", n)
	}
}

// TestBadHandles: tickets whose handles are stale, forged or of memory that is gone; each comes through, without a tree.
func TestBadHandles(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	segment := newSegment(t, shm.SegmentConfig{Slots: 4, Lease: time.Hour})
	src := newConsumer(t, ConsumerConfig{Config: cfg, Segments: mapped(t, segment), MaxNodes: 16})
	p := newPublisher(t, PublisherConfig{Config: cfg})
	put(t, p, ticket(1, chain(2)))
	if _, err := src.Take(within(t, 30*time.Second), 1); err != nil {
		t.Fatal(err)
	}
	w := trees.NewWriter(segment, 0, cfg.Counters)
	written := func(n int) wire.Envelope {
		t.Helper()
		e, err := w.Envelope(ticket(2, chain(n)))
		if err != nil || e.Handle.Segment == 0 || e.Lease == 0 {
			t.Fatalf("no handle: %+v, %v", e, err)
		}
		e.Ticket.Tree = tandem.Tree{}
		return e
	}
	noTree, err := segment.Put(shm.Key{}, 0, []byte("no tree"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		nodes   int
		change  func(*wire.Envelope)
		counter string
	}{
		{"good", 16, func(e *wire.Envelope) {}, "tickets.mapped"},
		{"superseded", 16, func(e *wire.Envelope) { written(15) }, "tickets.stale_handle"},
		{"session over", 16, func(e *wire.Envelope) { w.Forget("d", 5) }, "tickets.stale_handle"},
		{"generation", 16, func(e *wire.Envelope) { e.Handle.Generation += 2 }, "tickets.stale_handle"},
		{"slot", 16, func(e *wire.Envelope) { e.Handle.Slot = 1 << 31 }, "tickets.garbage"},
		{"length", 16, func(e *wire.Envelope) { e.Handle.Length = 1 << 31 }, "tickets.garbage"},
		{"shorter", 16, func(e *wire.Envelope) { e.Handle.Length-- }, "tickets.garbage"},
		{"no tree", 16, func(e *wire.Envelope) { e.Handle = noTree }, "tickets.garbage"},
		{"too many nodes", 17, func(e *wire.Envelope) {}, "tickets.garbage"},
		{"not mapped, nobody to fetch from", 16, func(e *wire.Envelope) { e.Handle.Segment++ }, "tickets.claim_failed"},
		{"to be fetched", 16, func(e *wire.Envelope) { e.Lease = 0 }, "tickets.claim_failed"},
	} {
		e := written(c.nodes)
		c.change(&e)
		before := cfg.Counters.Snapshot()[c.counter]
		data, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.conn.Publish(cfg.tickets(""), data); err != nil {
			t.Fatal(err)
		}
		got, err := src.Take(within(t, 30*time.Second), 1)
		if err != nil || len(got) != 1 || got[0].Session != 5 || got[0].Base != 2 {
			t.Fatalf("%s: took %+v, %v", c.name, got, err)
		}
		absent := c.counter == "tickets.stale_handle" || c.counter == "tickets.claim_failed"
		if tree := got[0].Tree; (tree.Len() == 16) != (c.counter == "tickets.mapped") || (tree.Tokens == nil) != absent {
			t.Errorf("%s: tree %+v", c.name, tree)
		}
		if n := cfg.Counters.Snapshot()[c.counter]; n != before+1 {
			t.Errorf("%s: %s went from %d to %d", c.name, c.counter, before, n)
		}
	}
	// The drafter is killed with leases out: what it has put is still there.
	e := written(16)
	_ = segment.Close()
	data, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.conn.Publish(cfg.tickets(""), data); err != nil {
		t.Fatal(err)
	}
	if got, err := src.Take(within(t, 30*time.Second), 1); err != nil || got[0].Tree.Len() != 16 {
		t.Errorf("a dead drafter's tree: %+v, %v", got, err)
	}
}

// TestVerifierElsewhere: what is put for a verifier that has nothing mapped travels inside, or is fetched if it fits no ticket.
func TestVerifierElsewhere(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	segment := newSegment(t, shm.SegmentConfig{SlotSize: 16 << 10, Lease: time.Hour})
	src := newConsumer(t, ConsumerConfig{Config: cfg, Fetcher: copies{segment: segment}, MaxNodes: 4096})
	p := newPublisher(t, PublisherConfig{Config: cfg, Trees: trees.NewWriter(segment, 0, cfg.Counters)})
	for i, c := range []struct{ nodes, fetched int }{{16, 0}, {256, 0}, {2000, 1}} {
		want := ticket(i+1, chain(c.nodes))
		put(t, p, want)
		got, err := src.Take(within(t, 30*time.Second), 1)
		if err != nil || !reflect.DeepEqual(got[0], want) {
			t.Fatalf("%d nodes: took %d, %v", c.nodes, got[0].Tree.Len(), err)
		}
		if n := cfg.Counters.Snapshot()["tickets.claimed"]; n != int64(c.fetched) {
			t.Errorf("%d nodes: %d trees were fetched, want %d", c.nodes, n, c.fetched)
		}
	}
}

func TestClaimsThatFailDegrade(t *testing.T) {
	s := newServer(t)
	segment := newSegment(t, shm.SegmentConfig{Slots: 8, SlotSize: 16 << 10, Lease: time.Hour})
	for name, c := range map[string]struct {
		fetcher Fetcher
		spoil   func()
		counter string
	}{
		"no fetcher": {nil, func() {}, "tickets.claim_failed"},
		"hangs":      {copies{hang: true}, func() {}, "tickets.claim_failed"},
		"stale":      {copies{segment: newSegment(t, shm.SegmentConfig{Slots: 1})}, func() {}, "tickets.stale_handle"},
	} {
		cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
		src := newConsumer(t, ConsumerConfig{Config: cfg, Fetcher: c.fetcher})
		p := newPublisher(t, PublisherConfig{Config: cfg, Trees: trees.NewWriter(segment, 0, cfg.Counters)})
		put(t, p, ticket(4, chain(2000))) // fits no ticket
		start := time.Now()
		got, err := src.Take(within(t, 30*time.Second), 1)
		if err != nil || len(got) != 1 || got[0].Tree.Tokens != nil || got[0].Base != 4 {
			t.Fatalf("%s: took %+v, %v: want one ticket without a tree", name, got, err)
		}
		if d := time.Since(start); d > 20*time.Second { // a fetch has 100 ms
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
	segment := newSegment(t, shm.SegmentConfig{Slots: 1, Lease: time.Hour})
	if _, err := segment.Put(shm.Key{}, 0, []byte("held")); err != nil {
		t.Fatal(err)
	}
	src := newConsumer(t, ConsumerConfig{Config: cfg, Segments: mapped(t, segment)})
	p := newPublisher(t, PublisherConfig{Config: cfg, Trees: trees.NewWriter(segment, 0, cfg.Counters)})
	put(t, p, ticket(1, chain(16)))
	got, err := src.Take(within(t, 30*time.Second), 1)
	if err != nil || got[0].Tree.Len() != 16 {
		t.Fatalf("took %+v, %v", got, err)
	}
	if n := cfg.Counters.Snapshot()["tickets.no_slot"]; n == 0 {
		t.Error("that there was no slot is not counted")
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

// TestCloseDuringFetches: a consumer waits for its fetches, which end.
func TestCloseDuringFetches(t *testing.T) {
	s := newServer(t)
	cfg := Config{Access: s.Access(), Counters: new(tandem.Counters)}
	src := newConsumer(t, ConsumerConfig{Config: cfg, Fetcher: copies{hang: true}, FetchTime: time.Minute})
	p := newPublisher(t, PublisherConfig{Config: cfg, Wait: 200 * time.Millisecond,
		Trees: trees.NewWriter(newSegment(t, shm.SegmentConfig{SlotSize: 16 << 10, Lease: time.Hour}), 0, cfg.Counters)})
	put(t, p, ticket(1, chain(2))) // once the pool is there
	put(t, p, ticket(2, chain(2000)))
	start := time.Now()
	src.Close()
	if d := time.Since(start); d > 30*time.Second { // a fetch has a minute
		t.Errorf("close took %v", d)
	}
}
