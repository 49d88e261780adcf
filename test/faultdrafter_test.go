package test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/nats-io/nats.go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// lie is what a badDrafter does to an honest answer.
type lie struct {
	name   string
	tree   func(*peerv1.Tree)            // changes the tree
	ticket func(*peerv1.Ticket)          // changes the ticket, where the drafter puts it itself
	answer func(*peerv1.ProposeResponse) // changes what is said about it
	fail   error                         // in place of an answer
	wait   time.Duration                 // before anything else
	lost   bool                          // the ticket is never put
	big    bool                          // too large for a ticket: sent in the answer alone
	honest bool                          // no contract is broken: it need not be put aside, only cost little
	tuned  bool                          // it is for the planner to notice
}

// lies are all the ways to be a bad drafter. The honest tree is a chain of four below the root.
var lies = []lie{
	{name: "cycle", tree: func(t *peerv1.Tree) { t.Parents[0], t.Parents[1] = 2, 1 }},
	{name: "node its own parent", tree: func(t *peerv1.Tree) { t.Parents[1] = 2 }},
	{name: "parent out of range", tree: func(t *peerv1.Tree) { t.Parents[3] = 1000 }},
	{name: "negative parent", tree: func(t *peerv1.Tree) { t.Parents[3] = math.MaxUint32 }},
	{name: "parents missing", tree: func(t *peerv1.Tree) { t.Parents = t.Parents[:2] }},
	{name: "no nodes", tree: func(t *peerv1.Tree) { t.Tokens, t.Parents = nil, nil }},
	{name: "400 nodes", tree: func(t *peerv1.Tree) { chainOf(t, 400) }},
	{name: "10^6 nodes", tree: func(t *peerv1.Tree) { chainOf(t, 1_000_000) }, big: true},
	{name: "10^5 nodes", tree: func(t *peerv1.Tree) { chainOf(t, 100_000) }, big: true},
	{name: "token outside the vocabulary", tree: func(t *peerv1.Tree) { t.Tokens[2] = 4096 }},
	{name: "negative token", tree: func(t *peerv1.Tree) { t.Tokens[2] = math.MaxUint32 }},
	{name: "another root", tree: func(t *peerv1.Tree) { t.Tokens[0]++ }},
	{name: "siblings of one token", tree: func(t *peerv1.Tree) { t.Parents[1], t.Tokens[2] = 0, t.Tokens[1] }},
	{name: "log-probability NaN", tree: func(t *peerv1.Tree) { t.LogProbs = []float32{0, float32(math.NaN()), -1, -1, -1} }},
	{name: "log-probability above 0", tree: func(t *peerv1.Tree) { t.LogProbs = []float32{0, 7, 7, 7, 7} }},
	{name: "log-probabilities missing", tree: func(t *peerv1.Tree) { t.LogProbs = []float32{0} }},
	{name: "prompt nodes", tree: func(t *peerv1.Tree) { t.Prompts = 2 }},
	{name: "nothing but prompt nodes", tree: func(t *peerv1.Tree) { t.Prompts = 5 }},
	{name: "2^32 prompt nodes", tree: func(t *peerv1.Tree) { t.Prompts = math.MaxUint32 }},
	{name: "prompt nodes in the ticket alone", honest: true, ticket: func(k *peerv1.Ticket) {
		own := proto.CloneOf(k.GetInline())
		own.Prompts = 2
		k.Payload = &peerv1.Ticket_Inline{Inline: own}
	}},
	{name: "1,000 ways asked in its ticket", honest: true, ticket: func(k *peerv1.Ticket) {
		k.Ways = slices.Repeat([]string{"medusa"}, 1000)
	}},
	{name: "another hash", ticket: func(k *peerv1.Ticket) { k.Hash++ }},
	{name: "another base", ticket: func(k *peerv1.Ticket) { k.Base += 7 }},
	{name: "another epoch", ticket: func(k *peerv1.Ticket) { k.Epoch += 3 }},
	{name: "another session", ticket: func(k *peerv1.Ticket) { k.Session++ }},
	{name: "no ticket", lost: true},
	{name: "payload that is nowhere", honest: true, ticket: func(k *peerv1.Ticket) {
		k.Payload = &peerv1.Ticket_Handle{Handle: &peerv1.Handle{Segment: 7, Slot: 1, Length: 9, Generation: 3}}
	}},
	{name: "leased payload that is nowhere", honest: true, ticket: func(k *peerv1.Ticket) {
		k.Payload, k.LeaseMs = &peerv1.Ticket_Handle{Handle: &peerv1.Handle{Segment: 7, Slot: 1, Length: 9, Generation: 4}}, 2000
	}},
	{name: "tree in memory that nobody has", answer: func(r *peerv1.ProposeResponse) {
		r.Tree, r.Handle = nil, &peerv1.Handle{Segment: 7, Slot: 1, Length: 9, Generation: 4}
	}},
	{name: "negative nodes", answer: func(r *peerv1.ProposeResponse) { r.Nodes = -5 }},
	{name: "2^30 nodes", answer: func(r *peerv1.ProposeResponse) { r.Nodes = 1 << 30 }},
	{name: "deeper than its nodes", answer: func(r *peerv1.ProposeResponse) { r.Depth = 9 }},
	{name: "negative time", answer: func(r *peerv1.ProposeResponse) { r.BusyNs, r.AheadNs = -1, -1 }},
	{name: "more reused than there are", answer: func(r *peerv1.ProposeResponse) { r.Reused = 1 << 30 }},
	{name: "hindsight of 65 tokens", answer: func(r *peerv1.ProposeResponse) { r.Hindsight = &peerv1.Hindsight{Tokens: 65} }},
	{name: "more right than there were", answer: func(r *peerv1.ProposeResponse) { r.Hindsight = &peerv1.Hindsight{Tokens: 3, Hits: 8} }},
	{name: "error", fail: status.Error(codes.Internal, "no drafts today"), honest: true},
	{name: "unknown session", fail: status.Error(codes.NotFound, "who is that?"), honest: true},
	{name: "stale", fail: status.Error(codes.FailedPrecondition, "that was long ago"), honest: true},
	{name: "hangs", wait: time.Hour, honest: true},
	{name: "late", wait: 300 * time.Millisecond, honest: true, tuned: true},
}

// chainOf makes t a chain of n nodes.
func chainOf(t *peerv1.Tree, n int) {
	t.LogProbs = nil
	for i := len(t.Tokens); i < n; i++ {
		t.Tokens, t.Parents = append(t.Tokens, 17), append(t.Parents, uint32(i-1))
	}
}

// badDrafter is a drafter process of the test's own, which lies in one way at a time.
type badDrafter struct {
	peerv1.UnimplementedDrafterServiceServer
	addr        string
	fingerprint string
	pool        *nats.Conn

	mu    sync.Mutex
	now   lie
	last  map[uint64]uint32 // last committed token of each session: the honest root
	asked atomic.Int64      // times that it was asked to propose
}

// serve serves d at a socket in a directory of its own until the end of the test.
func (d *badDrafter) serve(t testing.TB) {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "d")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("tandem-protocol", strconv.Itoa(tandem.Protocol)))
		return h(ctx, r)
	}), grpc.StreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
		_ = s.SetHeader(metadata.Pairs("tandem-protocol", strconv.Itoa(tandem.Protocol)))
		return h(srv, s)
	}))
	peerv1.RegisterDrafterServiceServer(s, d)
	var work sync.WaitGroup
	work.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); work.Wait() })
	d.addr, d.last = "unix://"+sock, map[uint64]uint32{}
}

// tell changes the lie.
func (d *badDrafter) tell(l lie) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now = l
	d.asked.Store(0)
}

func (d *badDrafter) lie() lie {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now
}

func (d *badDrafter) Open(_ context.Context, r *peerv1.DrafterServiceOpenRequest) (*peerv1.DrafterServiceOpenResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last[r.GetOpening().GetSession()] = r.Opening.Tokens[len(r.Opening.Tokens)-1]
	return &peerv1.DrafterServiceOpenResponse{}, nil
}

func (d *badDrafter) Hold(r *peerv1.DrafterServiceHoldRequest, s grpc.ServerStreamingServer[peerv1.DrafterServiceHoldResponse]) error {
	opened, err := d.Open(s.Context(), &peerv1.DrafterServiceOpenRequest{Opening: r.GetOpening()})
	if err != nil {
		return err
	}
	return s.Send(&peerv1.DrafterServiceHoldResponse{State: &peerv1.DrafterServiceHoldResponse_Opened{Opened: opened}})
}

func (d *badDrafter) Close(_ context.Context, r *peerv1.DrafterServiceCloseRequest) (*peerv1.DrafterServiceCloseResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.last, r.GetSession())
	return &peerv1.DrafterServiceCloseResponse{}, nil
}

func (d *badDrafter) Describe(context.Context, *peerv1.DrafterServiceDescribeRequest) (*peerv1.DrafterServiceDescribeResponse, error) {
	return &peerv1.DrafterServiceDescribeResponse{Description: &peerv1.Description{Name: "bad", Model: "bad", Vocabulary: 4096,
		Fingerprint: d.fingerprint, Context: 1024, Drafters: []string{"bad"}, PageTokens: 16, KvCapacity: 1 << 20, Pid: int32(os.Getpid()),
		Protocol: tandem.Protocol}}, nil
}

func (d *badDrafter) Claim(context.Context, *peerv1.ClaimRequest) (*peerv1.ClaimResponse, error) {
	return nil, status.Error(codes.FailedPrecondition, "no such payload")
}

// Propose answers with a chain that no target is likely to accept, and with the lie of the moment.
func (d *badDrafter) Propose(ctx context.Context, r *peerv1.ProposeRequest) (*peerv1.ProposeResponse, error) {
	d.asked.Add(1)
	now := d.lie()
	select {
	case <-time.After(now.wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if now.fail != nil {
		return nil, now.fail
	}
	d.mu.Lock()
	if n := len(r.Suffix); n > 0 {
		d.last[r.Session] = r.Suffix[n-1]
	}
	tree := &peerv1.Tree{Tokens: []uint32{d.last[r.Session], 11, 12, 13, 14}, Parents: []uint32{0, 1, 2, 3}}
	d.mu.Unlock()
	if now.tree != nil {
		now.tree(tree)
	}
	answer := &peerv1.ProposeResponse{Nodes: int32(min(len(tree.Tokens), 16)), Depth: 4, BusyNs: 1000, Passes: 1, Tree: tree}
	if now.answer != nil {
		now.answer(answer)
	}
	if r.Return {
		return answer, nil
	}
	ticket := &peerv1.Ticket{Version: tandem.Protocol, Session: r.Session, Epoch: r.Epoch, Base: r.Base, Hash: r.Hash, Drafter: "bad",
		Payload: &peerv1.Ticket_Inline{Inline: tree}}
	if now.ticket != nil {
		now.ticket(ticket)
	}
	data, err := proto.Marshal(ticket)
	if err != nil {
		return nil, err
	}
	if !now.lost && !now.big {
		_, _ = d.pool.RequestWithContext(ctx, "tandem-drafts.ticket", data)
	}
	return answer, nil
}

// fingerprintOf returns the fingerprint of the target's vocabulary.
func fingerprintOf(t testing.TB, w *world, model string) string {
	t.Helper()
	var info struct {
		Tokenizer struct {
			Fingerprint string `json:"fingerprint"`
		} `json:"tokenizer"`
	}
	if err := json.Unmarshal([]byte(w.ok("model", "info", model, "--json").stdout), &info); err != nil {
		t.Fatal(err)
	}
	return info.Tokenizer.Fingerprint
}

// TestBadDrafter runs requests beside a drafter that lies, in every way, one gateway for each: the text
// is right, no request takes long, the lie is counted, and soon nobody asks that drafter any more.
func TestBadDrafter(t *testing.T) {
	mayBeSlow(t)
	d := &badDrafter{}
	d.serve(t)
	d.fingerprint = fingerprintOf(t, newWorld(t), targetModel)
	c := newCluster(t, clusterConfig{drafter: d.addr})
	var err error
	if d.pool, err = nats.Connect(c.natsURL); err != nil {
		t.Fatal(err)
	}
	defer d.pool.Close()
	requests, tokens, some := 6, 12, lies
	if *long {
		requests, tokens = 20, 128
	} else { // some of them, others each time
		r := newRandom(t)
		some = slices.DeleteFunc(slices.Clone(lies), func(l lie) bool { return l.ticket != nil || l.lost || r.IntN(2) == 0 })
		some = append(some, oneOf(r, slices.DeleteFunc(slices.Clone(lies), func(l lie) bool { return l.ticket == nil && !l.lost })))
	}
	jobs := c.workload(t, 2, tokens)
	for _, l := range some {
		t.Run(l.name, func(t *testing.T) {
			c.gateway.kill()
			c.gateway.start()
			d.tell(l)
			testkit.Eventually(t, "the gateway to know the drafter", func() bool { return c.up(t, "drafter", 0) })
			before := c.allCounters(t)
			begun, most := time.Now(), time.Duration(requests)*time.Second
			for n := range requests {
				if time.Since(begun) > 2*most {
					t.Fatalf("%d requests took %v, and the drafter was asked %d times: want at most %v for %d requests", n,
						time.Since(begun), d.asked.Load(), most, requests)
				}
				j := jobs[n%len(jobs)]
				r := j.request
				if l.tuned {
					r.Tree, r.Strategy = nil, "planner"
				}
				got, err := c.try(t.Context(), r)
				if err != nil || !slices.Equal(got.tokens, j.want) {
					t.Fatalf("%v: tokens\n%v, plain\n%v", err, got.tokens, j.want)
				}
			}
			took, asked := time.Since(begun), d.asked.Load()
			if asked == 0 {
				t.Fatal("the drafter was never asked")
			}
			if took > most {
				t.Errorf("%d requests took %v: want at most %v", requests, took, most)
			}
			if most := int64(6); !l.honest && asked > most {
				t.Errorf("the drafter was asked %d times in %d requests: want at most %d", asked, requests, most)
			}
			var counted []string
			for name, v := range c.allCounters(t) {
				if v > before[name] && !usual(name) {
					counted = append(counted, fmt.Sprintf("%s %d", name, v-before[name]))
				}
			}
			slices.Sort(counted)
			if len(counted) == 0 {
				t.Error("nothing of it is counted")
			}
			t.Logf("asked %d times in %d requests, %v; counted %s", asked, requests, took.Round(time.Millisecond),
				strings.Join(counted, ", "))
		})
	}
}

// usual reports whether a counter grows without a fault.
func usual(name string) bool {
	_, name, _ = strings.Cut(name, " ")
	return slices.Contains([]string{"tickets.put", "tickets.taken", "tickets.mapped", "tickets.waited_us", "trees.shared", "shm.leased",
		"awake.denied", "verdicts", "kv.pages"}, name) ||
		strings.HasPrefix(name, "pool.") || strings.HasPrefix(name, "passes") || strings.HasPrefix(name, "prefix.")
}

// allCounters returns the counters of all processes, each name after its role.
func (g *group) allCounters(t testing.TB) map[string]int64 {
	t.Helper()
	d, err := g.client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int64{}
	for _, p := range d.Processes {
		for name, v := range p.Counters {
			all[p.Role+" "+name] += v
		}
	}
	return all
}
