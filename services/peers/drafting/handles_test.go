package drafting

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/test/testkit"
)

func newSegment(t *testing.T, socket string) *shm.Segment {
	t.Helper()
	o, err := shm.New(shm.SegmentConfig{Slots: 4, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	l, err := rpc.Listen("unix://" + socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Serve(l); err != nil {
		t.Fatal(err)
	}
	return o
}

// open opens session 3 at c's drafter, and returns a Proposal for it.
func open(t *testing.T, c *Client) tandem.Proposal {
	t.Helper()
	o := tandem.Opening{Session: 3, Epoch: 1, Tokens: []tandem.Token{1}, Limit: 1000, MaxNodes: 256, Sampling: tandem.Sampling{TopP: 1}}
	if _, err := c.Open(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	return tandem.Proposal{Session: 3, Epoch: 1, Base: 3, Hash: 7, From: 2, Suffix: []tandem.Token{9}, Return: true}
}

// large returns an answer with a tree that is worth a handle.
func large(nodes int) tandem.Proposed {
	out := tandem.Proposed{Nodes: nodes, Depth: nodes - 1, Tree: tandem.Root(9)}
	out.Tree.LogProbs = []float32{0}
	for i := 1; i < nodes; i++ {
		out.Tree.Tokens, out.Tree.Parents = append(out.Tree.Tokens, tandem.Token(1000+i)), append(out.Tree.Parents, int32(i-1))
		out.Tree.LogProbs = append(out.Tree.LogProbs, -float32(i))
	}
	return out
}

// counting counts the trees that an answer held itself.
type counting struct {
	peerv1.DrafterServiceClient
	handles, inline int
	forge           func(*peerv1.Handle)
}

func (c *counting) Propose(ctx context.Context, r *peerv1.ProposeRequest, o ...grpc.CallOption) (*peerv1.ProposeResponse, error) {
	out, err := c.DrafterServiceClient.Propose(ctx, r, o...)
	switch {
	case err != nil:
	case out.Handle != nil:
		c.handles++
		if c.forge != nil {
			c.forge(out.Handle)
		}
	case out.Tree != nil:
		c.inline++
	}
	return out, err
}

// TestTreesByHandle: who has the drafter's memory mapped is told trees by handle, who has not, the trees themselves; a restarted
// drafter tells them itself until its new memory is mapped.
func TestTreesByHandle(t *testing.T) {
	dir := t.TempDir()
	addr, socket := "unix://"+filepath.Join(dir, "d"), filepath.Join(dir, "seg")
	o := newSegment(t, socket)
	f := &fake{proposed: large(16)}
	stop := serve(t, addr, one(Named{Drafter: f}, o))
	set := new(shm.Set)
	var here atomic.Bool
	here.Store(true)
	link := shm.NewLink(shm.Gateway, set, func(context.Context) (string, error) {
		if here.Load() {
			return socket, nil
		}
		return "", nil
	})
	defer link.Close()
	c := dial(t, addr).Mapping(link)
	wire := &counting{DrafterServiceClient: c.rpc}
	c.rpc = wire
	p := open(t, c)
	ask := func(what string, handles int) {
		t.Helper()
		wire.handles, wire.inline = 0, 0
		for range 10 {
			p.Base++
			got, err := c.Propose(context.Background(), p)
			if err != nil || !reflect.DeepEqual(got, f.proposed) {
				t.Fatalf("%s: %v: got %+v", what, err, got)
			}
		}
		if wire.handles != handles || wire.inline != 10-handles {
			t.Errorf("%s: %d trees by handle, %d told: want %d and %d", what, wire.handles, wire.inline, handles, 10-handles)
		}
	}
	mapped := func(o *shm.Segment) {
		t.Helper()
		testkit.Eventually(t, "the segment is mapped", func() bool { return link.Segment() == o.ID() })
	}
	mapped(o)
	ask("mapped", 10)
	if n := o.Leased(); n != 1 {
		t.Errorf("%d slots are leased by one session", n)
	}
	f.proposed = large(256)
	ask("256 nodes", 10)
	f.proposed = tandem.Proposed{Nodes: 1, Tree: tandem.Root(9)}
	ask("a root alone", 0)
	f.proposed = large(16)
	c.segment = nil
	ask("not mapped", 0)
	c.segment = link

	stop() // and again, with another segment, on a host where it cannot be mapped
	here.Store(false)
	_ = o.Close()
	o2 := newSegment(t, socket)
	serve(t, addr, one(Named{Drafter: f}, o2))
	testkit.Eventually(t, "the drafter is found again", func() bool {
		_, err := c.Describe(context.Background())
		return err == nil
	})
	p = open(t, c)
	ask("another segment", 0)
	here.Store(true)
	link.Poke()
	mapped(o2)
	ask("mapped again", 10)
	if err := c.Close(context.Background(), 3); err != nil || o2.Leased() != 0 {
		t.Errorf("%v: %d slots stay leased after the session's end", err, o2.Leased())
	}
}

// TestForgedHandles: what a drafter may answer in place of its handle.
func TestForgedHandles(t *testing.T) {
	dir := t.TempDir()
	addr, socket := "unix://"+filepath.Join(dir, "d"), filepath.Join(dir, "seg")
	o := newSegment(t, socket)
	serve(t, addr, one(Named{Drafter: &fake{proposed: large(16)}}, o))
	link := shm.NewLink(shm.Gateway, new(shm.Set), func(context.Context) (string, error) { return socket, nil })
	defer link.Close()
	c := dial(t, addr).Mapping(link)
	testkit.Eventually(t, "the segment is mapped", func() bool { return link.Segment() != 0 })
	wire := &counting{DrafterServiceClient: c.rpc}
	c.rpc = wire
	p := open(t, c)
	noTree, err := o.Put(shm.Key{}, 0, []byte("no tree"))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]struct {
		forge func(*peerv1.Handle)
		kind  tandem.Kind
	}{
		"none":            {nil, tandem.OK},
		"slot":            {func(h *peerv1.Handle) { h.Slot = 1 << 31 }, tandem.Corrupt},
		"length":          {func(h *peerv1.Handle) { h.Length = 1 << 31 }, tandem.Corrupt},
		"shorter":         {func(h *peerv1.Handle) { h.Length-- }, tandem.Corrupt},
		"stale":           {func(h *peerv1.Handle) { h.Generation -= 2 }, tandem.Stale},
		"being written":   {func(h *peerv1.Handle) { h.Generation++ }, tandem.Stale},
		"another segment": {func(h *peerv1.Handle) { h.Segment++ }, tandem.Corrupt},
		"no tree": {func(h *peerv1.Handle) {
			*h = peerv1.Handle{Segment: noTree.Segment, Slot: noTree.Slot, Length: noTree.Length, Generation: noTree.Generation}
		}, tandem.Corrupt},
	} {
		wire.forge = f.forge
		p.Base++
		if got, err := c.Propose(context.Background(), p); tandem.KindOf(err) != f.kind || (err == nil) != (got.Tree.Len() == 16) {
			t.Errorf("%s: %d nodes, %v: want %v", name, got.Tree.Len(), err, f.kind)
		}
	}
	wire.forge = nil
	plain := dial(t, addr)
	answers := &told{DrafterServiceClient: plain.rpc, handle: noTree}
	plain.rpc = answers
	if _, err := plain.Propose(context.Background(), p); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("a handle for somebody who has mapped nothing: %v: want corrupt", err)
	}
}

// told answers every Propose with a handle.
type told struct {
	peerv1.DrafterServiceClient
	handle shm.Handle
}

func (d *told) Propose(context.Context, *peerv1.ProposeRequest, ...grpc.CallOption) (*peerv1.ProposeResponse, error) {
	return &peerv1.ProposeResponse{Nodes: 3, Handle: wire.FromHandle(d.handle)}, nil
}

// TestFetch: a verifier that cannot read a tree in shared memory gets a copy, as often as it asks, until the lease has ended.
func TestFetch(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	o := newSegment(t, filepath.Join(t.TempDir(), "seg"))
	stop := serve(t, addr, one(Named{Drafter: new(fake)}, o))
	c := dial(t, addr)
	ctx := context.Background()
	h, err := o.Put(shm.Key{}, 0, []byte("payload"))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got, err := c.Fetch(ctx, h); err != nil || string(got) != "payload" {
			t.Fatalf("fetched %q, %v", got, err)
		}
	}
	far := h
	far.Slot = 1000
	if _, err := c.Fetch(ctx, far); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("handle out of bounds: %v: want corrupt", err)
	}
	o.Release(h)
	if _, err := c.Fetch(ctx, h); !errors.Is(err, tandem.Stale) {
		t.Errorf("released handle: %v: want stale", err)
	}
	stop()
	if _, err := c.Fetch(ctx, h); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("fetched from a dead drafter: %v: want unavailable", err)
	}
	addr = "unix://" + filepath.Join(t.TempDir(), "none")
	serve(t, addr, one(Named{Drafter: new(fake)}, nil))
	if _, err := dial(t, addr).Fetch(ctx, h); !errors.Is(err, tandem.Stale) {
		t.Errorf("drafter without shared memory: %v: want stale", err)
	}
}
