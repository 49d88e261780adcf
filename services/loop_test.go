// Package services_test runs a whole round over everything between the rooms: gRPC on unix sockets,
// the pool, shared memory and the verdict stream, with a drafter and a verifier that compute nothing.
package services_test

import (
	"context"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/verifying"
	"github.com/tandem-llm/tandem/services/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drafter proposes the same chain always.
type drafter struct{ pool tandem.Pool }

func (drafter) Open(context.Context, tandem.Opening) (tandem.Opened, error) {
	return tandem.Opened{}, nil
}
func (drafter) Close(context.Context, tandem.SessionID) error { return nil }
func (d drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	t := tandem.Root(p.Suffix[len(p.Suffix)-1])
	for i := 1; i < p.Bounds.Nodes; i++ {
		t.Tokens, t.Parents = append(t.Tokens, tandem.Token(i)), append(t.Parents, int32(i-1))
	}
	err := d.pool.Put(ctx, tandem.Ticket{Session: p.Session, Epoch: p.Epoch, Base: p.Base, Hash: p.Hash, Drafter: "d", Tree: t})
	return tandem.Proposed{Nodes: t.Len(), Depth: t.Len() - 1, Tree: t}, err
}

type verifier struct{}

func (verifier) Open(context.Context, tandem.Opening) (tandem.Opened, error) {
	return tandem.Opened{}, nil
}
func (verifier) Close(context.Context, tandem.SessionID) error { return nil }

// stack is the three processes in one, with real sockets between them.
type stack struct {
	drafter  *drafting.Client
	verdicts chan tandem.Verdict
	segment  *shm.Owner
	counters *tandem.Counters // of the ticket source
}

// start runs a stack whose trees above inline bytes travel by shared memory; unmapped says that the
// verifier cannot map it.
func start(t testing.TB, inline int, unmapped bool) *stack {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	t.Cleanup(func() { cancel(); work.Wait() })
	dir := t.TempDir()
	s := &stack{verdicts: make(chan tandem.Verdict, 16), counters: new(tandem.Counters)}

	nats, err := pool.StartServer()
	must(err)
	t.Cleanup(nats.Close)
	cfg := pool.Config{Access: nats.Access(), Counters: s.counters}

	s.segment, err = shm.New(shm.Config{})
	must(err)
	t.Cleanup(func() { _ = s.segment.Close() })
	l, err := rpc.Listen("unix://" + filepath.Join(dir, "segment"))
	must(err)
	must(s.segment.Serve(l))
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: cfg, Segment: s.segment, Inline: inline})
	must(err)
	t.Cleanup(publisher.Close)
	draftServer, err := rpc.NewServer(rpc.Config{Listen: "unix://" + filepath.Join(dir, "drafter")})
	must(err)
	description := wire.Description{Name: "d", SegmentSocket: l.Addr().String()}
	if unmapped {
		description.SegmentSocket = ""
	}
	drafting.Register(draftServer.Registrar(), drafting.Config{Segment: s.segment,
		Drafters: []drafting.Named{{Name: "d", Drafter: drafter{publisher}, Describe: func() wire.Description { return description }}}})
	work.Go(func() { _ = draftServer.Run(ctx) })

	verdicts := verifying.NewServer(verifying.Config{Verifier: verifier{}, Describe: func() wire.Description { return wire.Description{} }})
	verifyServer, err := rpc.NewServer(rpc.Config{Listen: "unix://" + filepath.Join(dir, "verifier"), Drain: verdicts.Close})
	must(err)
	verdicts.Register(verifyServer.Registrar())
	work.Go(func() { _ = verifyServer.Run(ctx) })

	toDrafter, err := rpc.Dial(draftServer.Addr())
	must(err)
	t.Cleanup(func() { _ = toDrafter.Close() })
	claimer := drafting.NewClaimer(drafting.NewClient(toDrafter, ""))
	t.Cleanup(claimer.Close)
	source, err := pool.NewSource(pool.SourceConfig{Config: cfg, Claimer: claimer, ClaimTime: 2 * time.Second})
	must(err)
	t.Cleanup(source.Close)
	work.Go(func() {
		for {
			tickets, err := source.Take(ctx, 8)
			if err != nil {
				return
			}
			for _, k := range tickets {
				verdicts.Deliver(tandem.Verdict{Session: k.Session, Epoch: k.Epoch, Base: k.Base, Hash: k.Hash,
					Tokens: []tandem.Token{1}, Nodes: k.Tree.Len(), Batch: len(tickets)})
			}
		}
	})

	gatewayToDrafter, err := rpc.Dial(draftServer.Addr())
	must(err)
	t.Cleanup(func() { _ = gatewayToDrafter.Close() })
	toVerifier, err := rpc.Dial(verifyServer.Addr())
	must(err)
	t.Cleanup(func() { _ = toVerifier.Close() })
	s.drafter = drafting.NewClient(gatewayToDrafter, "d")
	up := make(chan bool, 2)
	work.Go(func() {
		verifying.NewClient(toVerifier).Run(ctx, func(v tandem.Verdict) { s.verdicts <- v }, func(now bool) { up <- now })
	})
	if !<-up {
		t.Fatal("verifier went down before it came up")
	}
	for end := time.Now().Add(10 * time.Second); ; { // until the pool is reachable from both ends
		_, err := s.drafter.Propose(ctx, proposal(warmUp, 2))
		select {
		case <-s.verdicts:
			return s
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(end) {
			t.Fatalf("no verdict on the first ticket: %v", err)
		}
	}
}

// warmUp is the base of tickets that count for nothing.
const warmUp = 1 << 20

func proposal(base, nodes int) tandem.Proposal {
	return tandem.Proposal{Session: 7, Epoch: 1, Base: tandem.Position(base), Hash: 9, From: tandem.Position(base - 1),
		Suffix: []tandem.Token{1}, Bounds: tandem.Bounds{Nodes: nodes, Depth: nodes, Width: 1}}
}

func (s *stack) round(t testing.TB, base, nodes int) tandem.Verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := s.drafter.Propose(ctx, proposal(base, nodes)); err != nil {
		t.Fatal(err)
	}
	for {
		select {
		case v := <-s.verdicts:
			if v.Base != warmUp {
				return v
			}
		case <-ctx.Done():
			t.Fatal("no verdict")
		}
	}
}

func TestRounds(t *testing.T) {
	for name, c := range map[string]struct {
		inline   int
		unmapped bool
		claimed  bool
	}{
		"inline":            {pool.DefaultInline, false, false},
		"by handle":         {0, false, true},
		"claimed as a copy": {0, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, c.inline, c.unmapped)
			before := s.counters.Snapshot()["tickets.claimed"]
			const rounds = 200 // more than the segment has slots
			for i := range rounds {
				if v := s.round(t, i+1, 16); int(v.Base) != i+1 || v.Nodes != 16 || v.Session != 7 || v.Kind != tandem.OK {
					t.Fatalf("round %d: verdict %+v: %v", i, v, s.counters.Snapshot())
				}
			}
			counted := s.counters.Snapshot()
			if claimed := counted["tickets.claimed"] - before; claimed < rounds && c.claimed || claimed != 0 && !c.claimed {
				t.Errorf("%d of %d trees claimed: %v", claimed, rounds, counted)
			}
			if counted["tickets.no_slot"] != 0 || counted["tickets.stale_handle"] != 0 {
				t.Errorf("slots ran out: %v", counted)
			}
			for end := time.Now().Add(time.Second); s.segment.Leased() > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatalf("%d slots stay leased", s.segment.Leased())
				}
			}
		})
	}
}

func benchmarkRound(b *testing.B, inline int, unmapped bool, nodes int) {
	s := start(b, inline, unmapped)
	for i := range 200 {
		s.round(b, i+1, nodes)
	}
	times := make([]time.Duration, 0, b.N)
	b.ResetTimer()
	for i := range b.N {
		start := time.Now()
		s.round(b, i+1, nodes)
		times = append(times, time.Since(start))
	}
	b.StopTimer()
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs/p50")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "µs/p99")
}

func BenchmarkRoundInline(b *testing.B)    { benchmarkRound(b, pool.DefaultInline, false, 16) }
func BenchmarkRoundHandle(b *testing.B)    { benchmarkRound(b, 0, false, 16) }
func BenchmarkRoundCopy(b *testing.B)      { benchmarkRound(b, 0, true, 16) }
func BenchmarkRoundHandle256(b *testing.B) { benchmarkRound(b, 0, false, 256) }
