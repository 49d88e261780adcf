package verifier

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/verifier"
)

// TestPoolIsOneBatch: what waits for a busy verifier, in NATS, on the way and at the verifier together, is one batch; the next sender is
// told to pause, and goes on once there is room. What waits is told.
func TestPoolIsOneBatch(t *testing.T) {
	const batch = 3
	m, err := engine.Open("../../../models/gopher-19m-q8_0.gguf", engine.Options{Device: testdevice.CPU(t, 1), KVPages: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	counters := new(tandem.Counters)
	busy, begun := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	events := tandem.Events{BeginFunc: func(ctx context.Context, stage tandem.Stage, _ []tandem.Attr) (context.Context, tandem.End) {
		if stage == tandem.StageProcess {
			begin()
			<-busy // as in a long pass
		}
		return ctx, func(error, ...tandem.Attr) {}
	}}
	v, err := verifier.New(verifier.Config{Model: m, MaxWaiting: batch, Counters: counters, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	defer roles.Shutdown(v.Shutdown)
	release := sync.OnceFunc(func() { close(busy) })
	defer release()
	nats, err := pool.StartServer()
	if err != nil {
		t.Fatal(err)
	}
	defer nats.Close()
	cfg := pool.Config{Access: nats.Access(), Counters: counters}
	consumer, err := pool.NewConsumer(pool.ConsumerConfig{Config: cfg, Submit: v.Submit})
	if err != nil {
		t.Fatal(err)
	}
	defer consumer.Close()
	p, err := pool.NewPublisher(pool.PublisherConfig{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	put := func(drafter string) error {
		return p.Put(t.Context(), tandem.Ticket{Session: tandem.NewSessionID(), Base: 1, Drafter: drafter, Tree: tandem.Root(1)})
	}
	testkit.Eventually(t, "the pool comes up", func() bool { return put("first") == nil })
	<-begun // it has its place, and keeps the verifier
	// On a busy machine the publisher hears late and sends a ticket again, which takes one more place: so places are counted, not puts.
	for _, drafter := range []string{"go", "", "go", "go"} {
		if err := put(drafter); err != nil && (!errors.Is(err, tandem.Exhausted) || v.Waiting().Tickets < batch) {
			t.Fatalf("%q: %v: want room for a batch of %d", drafter, err, batch)
		}
	}
	if err := put("go"); !errors.Is(err, tandem.Exhausted) {
		t.Fatalf("one more than %d tickets: %v: want exhausted", batch, err)
	}
	told := map[string]int64{}
	tellPool(told, v.Waiting())
	if told["pool.depth"] != batch || told["pool.limit"] != batch || told["pool.oldest_us"] <= 0 || told[PoolOf+"first"] < 1 ||
		told[PoolOf+"first"]+told[PoolOf+"go"]+told[PoolOf+"gateway"] != batch {
		t.Errorf("told %v", told)
	}
	release()
	testkit.Eventually(t, "the verifier has finished, and the pool has room", func() bool { return put("go") == nil })
}
