// Package peers_test runs a whole round over everything between the rooms: gRPC on unix sockets,
// the pool, shared memory and the verdict stream, with a drafter and a verifier that compute nothing.
package peers_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/verifying"
	"github.com/tandem-llm/tandem/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// drafter proposes the same chain always, with log-probabilities as a model has them.
type drafter struct{ pool tandem.Pool }

func (drafter) Open(context.Context, tandem.Opening) (tandem.Opened, error) {
	return tandem.Opened{}, nil
}
func (drafter) Close(context.Context, tandem.SessionID) error { return nil }
func (d drafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	t := tandem.Root(p.Suffix[len(p.Suffix)-1])
	t.LogProbs = []float32{0}
	for i := 1; i < p.Bounds.Nodes; i++ {
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, tandem.Token(1000+i)), append(t.Parents, int32(i-1)),
			append(t.LogProbs, -float32(i)/3)
	}
	err := d.pool.Put(ctx, p.Ticket("d", t))
	return tandem.Proposed{Nodes: t.Len(), Depth: t.Len() - 1, Tree: t}, err
}

// verifier hands on the verdicts that it is told.
type verifier struct {
	tandem.Verifier // nil: of the rest nothing is asked
	verdicts        chan []tandem.Verdict
}

func (v verifier) Verdicts(ctx context.Context, s tandem.Subscription) error {
	s.Began()
	for {
		select {
		case all := <-v.verdicts:
			s.Deliver(all)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stack is the three processes in one, with real sockets between them.
type stack struct {
	drafter  *drafting.Client
	verdicts chan tandem.Verdict
	segment  *shm.Segment
	counters *tandem.Counters // of the ticket consumer, and of the drafter
}

// far is a number of bytes that no tree has.
const far = 1 << 20

// start runs a stack whose trees above inline bytes travel by shared memory; apart says that drafter, gateway and verifier are on hosts of
// their own, as far as they can tell.
func start(t testing.TB, inline int, apart bool) *stack {
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

	s.segment, err = shm.New(shm.SegmentConfig{Lease: time.Hour})
	must(err)
	t.Cleanup(func() { _ = s.segment.Close() })
	l, err := rpc.Listen("unix://" + filepath.Join(dir, "segment"))
	must(err)
	must(s.segment.Serve(l))
	written := trees.NewWriter(s.segment, inline, s.counters)
	// A ticket is sent once, however late its reply comes on a busy machine: what is counted here are tickets.
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: cfg, Trees: written, Wait: 30 * time.Second, Answer: 3 * time.Second})
	must(err)
	t.Cleanup(publisher.Close)
	draftServer, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(dir, "drafter")})
	must(err)
	description := tandem.Description{Name: "d", SegmentSocket: l.Addr().String()}
	if apart {
		description.SegmentSocket = ""
	}
	drafting.Register(draftServer.Registrar(), drafting.ServerConfig{Trees: written,
		Drafters: []drafting.Named{{Name: "d", Drafter: drafter{publisher}, Describe: func() tandem.Description { return description }}}})
	work.Go(func() { _ = draftServer.Run(ctx) })

	target := verifier{verdicts: make(chan []tandem.Verdict, 64)}
	verdicts := verifying.NewServer(verifying.ServerConfig{Verifier: target})
	verifyServer, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(dir, "verifier"), Drain: verdicts.Close})
	must(err)
	verdicts.Register(verifyServer.Registrar())
	work.Go(func() { _ = verifyServer.Run(ctx) })

	toDrafter, err := rpc.Dial(draftServer.Addr())
	must(err)
	t.Cleanup(func() { _ = toDrafter.Close() })
	mapped := new(shm.Set)
	find := func(ctx context.Context) (string, error) {
		d, err := drafting.NewClient(toDrafter, "").Describe(ctx)
		return d.SegmentSocket, err
	}
	verifierMaps, gatewayMaps := shm.NewLink(shm.Verifier, mapped, find), shm.NewLink(shm.Gateway, new(shm.Set), find)
	t.Cleanup(verifierMaps.Close)
	t.Cleanup(gatewayMaps.Close)
	consumer, err := pool.NewConsumer(pool.ConsumerConfig{Config: cfg, Segments: mapped,
		Submit: func(_ context.Context, k tandem.Ticket) error {
			target.verdicts <- []tandem.Verdict{{Session: k.Session, Epoch: k.Epoch, Base: k.Base, Hash: k.Hash,
				Tokens: []tandem.Token{1}, Nodes: k.Tree.Len(), Batch: 1}}
			return nil
		}})
	must(err)
	t.Cleanup(consumer.Close)

	gatewayToDrafter, err := rpc.Dial(draftServer.Addr())
	must(err)
	t.Cleanup(func() { _ = gatewayToDrafter.Close() })
	toVerifier, err := rpc.Dial(verifyServer.Addr())
	must(err)
	t.Cleanup(func() { _ = toVerifier.Close() })
	s.drafter = drafting.NewClient(gatewayToDrafter, "d").Mapping(gatewayMaps)
	up := make(chan bool, 2)
	work.Go(func() {
		verifying.Follow(ctx, verifying.NewClient(toVerifier), verifying.Subscriber{
			Sessions: func() []tandem.SessionID { return []tandem.SessionID{7} },
			Deliver:  func(v tandem.Verdict) { s.verdicts <- v }, State: func(now bool) { up <- now }})
	})
	if !<-up {
		t.Fatal("verifier went down before it came up")
	}
	_, err = s.drafter.Open(ctx, tandem.Opening{Session: 7, Tokens: []tandem.Token{1}, Limit: 2, MaxNodes: 1,
		Sampling: tandem.Sampling{TopP: 1}})
	must(err)
	unmapped := func() bool { return s.segment.Readers(shm.Verifier) == 0 || gatewayMaps.Segment() == 0 }
	testkit.Eventually(t, "the drafter's memory is not mapped", func() bool { return apart || !unmapped() })
	testkit.Eventually(t, "the pool is not reachable from both ends", func() bool {
		_, err := s.drafter.Propose(ctx, proposal(warmUp, 2))
		return err == nil
	})
	select { // so that nothing of it is on its way when the rounds are counted
	case <-s.verdicts:
	case <-time.After(30 * time.Second):
		t.Fatal("no verdict on the first ticket")
	}
	return s
}

// warmUp is the base of tickets that count for nothing.
const warmUp = 1 << 20

func proposal(base, nodes int) tandem.Proposal {
	return tandem.Proposal{Session: 7, Epoch: 1, Base: tandem.Position(base), Hash: 9, From: tandem.Position(base - 1),
		Suffix: []tandem.Token{1}, Bounds: tandem.Bounds{Nodes: nodes, Depth: nodes, Width: 1}}
}

func (s *stack) round(t testing.TB, base, nodes int) tandem.Verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
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
		inline int
		apart  bool
		shared bool
	}{
		"by handle":        {0, false, true},
		"small ones apart": {far, false, false},
		"on other hosts":   {0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, c.inline, c.apart)
			before := s.counters.Snapshot()
			const rounds = 300 // more than the segment has slots
			for i := range rounds {
				nodes := []int{16, 256}[i%2]
				if v := s.round(t, i+1, nodes); int(v.Base) != i+1 || v.Nodes != nodes || v.Session != 7 || v.Kind != tandem.OK {
					t.Fatalf("round %d: verdict %+v: %v", i, v, s.counters.Snapshot())
				}
			}
			counted := s.counters.Snapshot()
			for _, name := range []string{"tickets.mapped", "trees.shared"} { // each written once, for both who read it
				if n := counted[name] - before[name]; n != map[bool]int64{true: rounds}[c.shared] {
					t.Errorf("%s: %d of %d: %v", name, n, rounds, counted)
				}
			}
			if counted["tickets.no_slot"] != 0 || counted["tickets.stale_handle"] != 0 || counted["tickets.claimed"] != 0 {
				t.Errorf("handles went wrong: %v", counted)
			}
			if n := s.segment.Leased(); n > 1 {
				t.Errorf("%d slots are leased by one session", n)
			}
		})
	}
}

// BenchmarkRound compares rounds whose trees travel by handle with those whose trees travel inside their messages, by turns in one run. It
// prints the medians, and the median of the ratios of runs of rounds of both kinds.
func BenchmarkRound(b *testing.B) {
	for _, nodes := range []int{16, 256} {
		b.Run(fmt.Sprint(nodes, " nodes"), func(b *testing.B) {
			const turn = 50 // rounds of one kind, then as many of the other
			stacks := [2]*stack{start(b, far, true), start(b, 0, false)}
			base := 0
			run := func(s *stack, rounds int) []time.Duration {
				times := make([]time.Duration, rounds)
				for i := range times {
					base++
					begun := time.Now()
					s.round(b, base, nodes)
					times[i] = time.Since(begun)
				}
				slices.Sort(times)
				return times
			}
			for _, s := range stacks {
				run(s, 200)
			}
			var all [2][]time.Duration
			var ratios []float64
			b.ResetTimer()
			for left := b.N; left > 0; left -= turn {
				inline, handle := run(stacks[0], turn), run(stacks[1], turn)
				all[0], all[1] = append(all[0], inline...), append(all[1], handle...)
				ratios = append(ratios, float64(handle[turn/2])/float64(inline[turn/2]))
			}
			b.StopTimer()
			slices.Sort(ratios)
			for i, name := range []string{"inline", "handle"} {
				slices.Sort(all[i])
				b.ReportMetric(float64(all[i][len(all[i])/2].Nanoseconds())/1e3, "µs/"+name+"-p50")
				b.ReportMetric(float64(all[i][len(all[i])*99/100].Nanoseconds())/1e3, "µs/"+name+"-p99")
			}
			b.ReportMetric(ratios[len(ratios)/2], "handle/inline")
		})
	}
}
