package test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/route"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/verifying"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/verifier"
)

// TestOneContractForVerifiers holds every way to a verifier to what tandem.Verifier says, and to the same verdicts: the room itself, it
// behind a pool in memory, it behind gRPC, and it behind the router over gRPC and NATS, with its pool there and away.
func TestOneContractForVerifiers(t *testing.T) {
	t.Parallel()
	m, err := engine.Open(filepath.Join("..", "models", "gopher-draft-all-f16.gguf"), engine.Options{Device: testdevice.CPU(t, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	var first []tandem.Token
	for _, c := range []struct {
		name  string
		reach func(*testing.T, *verifier.Verifier) tandem.Verifier
	}{
		{"in process", func(_ *testing.T, v *verifier.Verifier) tandem.Verifier { return v }},
		{"grpc", func(t *testing.T, v *verifier.Verifier) tandem.Verifier { return overGRPC(t, v) }},
		{"router and nats", func(t *testing.T, v *verifier.Verifier) tandem.Verifier { return overNATS(t, v, true) }},
		{"router without its pool", func(t *testing.T, v *verifier.Verifier) tandem.Verifier { return overNATS(t, v, false) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := verifier.New(verifier.Config{Model: m, Counters: new(tandem.Counters),
				Process: (&roles.Process{Counters: new(tandem.Counters)}).Describe("", "", "", m)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := v.Shutdown(context.Background()); err != nil {
					t.Error(err)
				}
			})
			got := talk(t, c.reach(t, v), m)
			if first == nil {
				first = got
			}
			if !slices.Equal(got, first) {
				t.Errorf("says %v, the verifier in this process %v", got, first)
			}
		})
	}
}

// talk has a conversation with v, checks its contract on the way, and returns the tokens of the verdicts.
func talk(t *testing.T, v tandem.Verifier, m *engine.Model) (said []tandem.Token) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	const id = tandem.SessionID(7)
	verdicts, began, ended := make(chan tandem.Verdict, 64), make(chan struct{}, 1), make(chan error, 1)
	listening, leave := context.WithCancel(ctx)
	go func() {
		ended <- v.Verdicts(listening, tandem.Subscription{Sessions: func() []tandem.SessionID { return []tandem.SessionID{id} },
			Began: func() { began <- struct{}{} }, Deliver: func(all []tandem.Verdict) {
				for _, x := range all {
					verdicts <- x
				}
			}})
	}()
	<-began
	ask := func(ticket tandem.Ticket) tandem.Verdict {
		t.Helper()
		for {
			testkit.Eventually(t, "the pool's connection is made", func() bool {
				err := v.Submit(ctx, ticket)
				if k := tandem.KindOf(err); err != nil && k != tandem.Exhausted && k != tandem.Unavailable {
					t.Fatal(err)
				}
				return err == nil
			})
			for {
				select {
				case x := <-verdicts:
					if x.Base >= ticket.Base { // else it is said again: if the pool is slow, a ticket goes both ways
						return x
					}
				case <-ctx.Done():
					t.Fatal("no verdict")
				}
			}
		}
	}

	text := []tandem.Token{1, 50, 60, 70}
	ticket := func(tree tandem.Tree) tandem.Ticket {
		return tandem.Ticket{Session: id, Epoch: 2, Base: tandem.Position(len(text)), Hash: tandem.EmptyPrefix.Add(text...),
			Drafter: "test", Tree: tree}
	}
	o := tandem.Opening{Session: id, Epoch: 2, Tokens: text, Limit: 64, MaxNodes: 8, Sampling: tandem.Sampling{TopP: 1}}
	opened, err := v.Open(ctx, o)
	if err != nil || opened.Identity != m.Names().Identity {
		t.Fatalf("opened %+v, %v", opened, err)
	}
	o.Identity = "another"
	if _, err := v.Open(ctx, o); tandem.Refusal(err) != tandem.OpIdentity || !errors.Is(err, tandem.Unavailable) {
		t.Errorf("opened with another identity: %v", err)
	}
	for range 3 {
		root := text[len(text)-1]
		tree := tandem.Tree{Tokens: []tandem.Token{root, 3, 4, 5}, Parents: []int32{-1, 0, 0, 1}}
		x := ask(ticket(tree))
		if x.Session != id || x.Epoch != 2 || int(x.Base) != len(text) || x.Kind != tandem.OK || x.Nodes != 4 ||
			len(x.Tokens) != len(x.Path)+1 {
			t.Fatalf("verdict %+v", x)
		}
		text, said = append(text, x.Tokens...), append(said, x.Tokens...)
	}
	stale := ticket(tandem.Root(text[len(text)-1]))
	stale.Epoch = 1
	if x := ask(stale); x.Kind != tandem.Stale {
		t.Errorf("verdict on another epoch: %+v", x)
	}
	d, err := v.Describe(ctx)
	if err != nil || d.Identity != m.Names().Identity || d.Fingerprint != m.Names().Vocabulary || d.Vocab != m.Vocab().Size() ||
		d.KVCapacity != int64(m.Pages()*d.PageTokens) {
		t.Errorf("described %+v, %v", d, err)
	}
	for range 2 { // the second time it is unknown
		if err := v.Close(ctx, id); err != nil {
			t.Errorf("closed: %v", err)
		}
	}
	leave()
	if err := <-ended; tandem.KindOf(err) != tandem.Canceled {
		t.Errorf("verdicts ended with %v: want canceled", err)
	}
	return said
}

// overGRPC returns v as another process reaches it.
func overGRPC(t *testing.T, v *verifier.Verifier) tandem.Verifier {
	t.Helper()
	served := verifying.NewServer(verifying.ServerConfig{Verifier: v})
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "v"), Drain: served.Close})
	if err != nil {
		t.Fatal(err)
	}
	served.Register(s.Registrar())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	conn, err := rpc.Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return verifying.NewClient(conn)
}

// overNATS returns v as a gateway reaches it, with the pool's server there or away.
func overNATS(t *testing.T, v *verifier.Verifier, there bool) tandem.Verifier {
	t.Helper()
	server, err := pool.StartServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	cfg := pool.Config{Access: server.Access(), Counters: new(tandem.Counters)}
	consumer, err := pool.NewConsumer(pool.ConsumerConfig{Config: cfg, Submit: v.Submit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(consumer.Close)
	if !there {
		server.Close()
	}
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(publisher.Close)
	counters := new(tandem.Counters)
	t.Cleanup(func() {
		if direct := counters.Snapshot()["tickets.direct"]; there && direct != 0 || !there && direct != 4 {
			t.Errorf("%d of 4 tickets went past the pool", direct)
		}
	})
	if there {
		testkit.Eventually(t, "the pool is reachable from both ends", func() bool {
			return publisher.Put(t.Context(), tandem.Ticket{Session: 99, Epoch: 1, Base: 1, Tree: tandem.Root(1)}) == nil
		})
	}
	return route.New(route.Config{Verifier: overGRPC(t, v), Pool: publisher, PoolUp: publisher.Connected, Counters: counters})
}
