package drafting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake remembers what it was asked.
type fake struct {
	mu       sync.Mutex
	opening  tandem.Opening
	proposal tandem.Proposal
	closed   tandem.SessionID
	err      error
}

func (f *fake) Open(_ context.Context, o tandem.Opening) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opening = o
	return f.err
}

func (f *fake) Propose(_ context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proposal = p
	return tandem.Proposed{Nodes: 16, Depth: 7, Busy: time.Millisecond}, f.err
}

func (f *fake) Close(_ context.Context, id tandem.SessionID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = id
	return f.err
}

// serve serves cfg at addr until the returned function is called.
func serve(t *testing.T, addr string, cfg Config) (stop func()) {
	t.Helper()
	s, err := rpc.NewServer(rpc.Config{Listen: addr})
	if err != nil {
		t.Fatal(err)
	}
	Register(s.Registrar(), cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	stop = func() { cancel(); work.Wait() }
	t.Cleanup(stop)
	return stop
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

func TestDrafterOverTheWire(t *testing.T) {
	f := new(fake)
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	want := wire.Description{Name: "d", Vocab: 3, Counters: map[string]int64{"x": 1}}
	var pieces [][]byte
	for i := range 40000 {
		pieces = append(pieces, fmt.Append(nil, i, "\xff"))
	}
	serve(t, addr, Config{Drafter: f, Describe: func() wire.Description { return want }, Vocabulary: func(offset, limit int) [][]byte {
		return pieces[min(offset, len(pieces)):min(offset+limit, len(pieces))]
	}})
	var c tandem.Drafter = dial(t, addr)
	ctx := context.Background()
	o := tandem.Opening{Session: 3, Epoch: 1, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 8, Sampling: tandem.Sampling{TopP: 1}}
	if err := c.Open(ctx, o); err != nil || !reflect.DeepEqual(f.opening, o) {
		t.Errorf("opened %+v, %v", f.opening, err)
	}
	p := tandem.Proposal{Session: 3, Epoch: 1, Base: 3, Hash: 7, From: 2, Suffix: []tandem.Token{9}, Policy: tandem.Policy{Nodes: 16, Depth: 7, Width: 10}}
	got, err := c.Propose(ctx, p)
	if err != nil || !reflect.DeepEqual(f.proposal, p) || got != (tandem.Proposed{Nodes: 16, Depth: 7, Busy: time.Millisecond}) {
		t.Errorf("proposed %+v for %+v, %v", got, f.proposal, err)
	}
	if err := c.Close(ctx, 3); err != nil || f.closed != 3 {
		t.Errorf("closed %v, %v", f.closed, err)
	}
	f.err = tandem.Errorf("draft", tandem.UnknownSession, "session 3 is not held")
	for name, err := range map[string]error{"open": c.Open(ctx, o), "close": c.Close(ctx, 3)} {
		if !errors.Is(err, tandem.UnknownSession) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Propose(ctx, p); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("propose: %v", err)
	}
	if err := c.Open(ctx, tandem.Opening{Session: 3}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("opening without tokens: %v", err)
	}
	d, err := dial(t, addr).Describe(ctx)
	if err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("described %+v, %v", d, err)
	}
	v, err := dial(t, addr).Vocabulary(ctx)
	if err != nil || !reflect.DeepEqual(v, pieces) {
		t.Errorf("vocabulary of %d pieces, %v: want %d", len(v), err, len(pieces))
	}
}

func TestVocabularyOfLongPieces(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	pieces := [][]byte{bytes.Repeat([]byte("a"), 700<<10), bytes.Repeat([]byte("b"), 700<<10), bytes.Repeat([]byte("c"), 2<<20), nil}
	serve(t, addr, Config{Drafter: new(fake), Vocabulary: func(offset, limit int) [][]byte { return pieces[offset:] }})
	v, err := dial(t, addr).Vocabulary(context.Background())
	if err != nil || len(v) != 4 || len(v[2]) != 2<<20 {
		t.Errorf("%d pieces, %v", len(v), err)
	}
}

func newSegment(t *testing.T, socket string) *shm.Owner {
	t.Helper()
	o, err := shm.New(shm.Config{Slots: 4, Lease: time.Minute})
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

func claim(t *testing.T, c *Claimer, o *shm.Owner, text string) {
	t.Helper()
	h, err := o.Put([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	got, err := c.Claim(ctx, "d", h)
	if err != nil || string(got) != text {
		t.Fatalf("claimed %q, %v: want %q", got, err, text)
	}
	for end := time.Now().Add(3 * time.Second); o.Leased() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("claimed payload is not released")
		}
	}
}

func TestClaims(t *testing.T) {
	dir := t.TempDir()
	addr, socket := "unix://"+filepath.Join(dir, "d"), filepath.Join(dir, "seg")
	o := newSegment(t, socket)
	describe := func() wire.Description { return wire.Description{SegmentSocket: socket} }
	stop := serve(t, addr, Config{Drafter: new(fake), Segment: o, Describe: describe})
	c := NewClaimer(dial(t, addr))
	defer c.Close()
	for i := range 10 {
		claim(t, c, o, fmt.Sprint("payload ", i))
	}
	if c.reader == nil || c.reader.Segment() == 0 {
		t.Error("the segment was not mapped")
	}
	h, err := o.Put([]byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	far := h
	far.Slot = 1000
	if _, err := c.Claim(context.Background(), "d", far); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("handle out of bounds: %v: want corrupt", err)
	}
	o.Release(h)
	if _, err := c.Claim(context.Background(), "d", h); !errors.Is(err, tandem.Stale) {
		t.Errorf("released handle: %v: want stale", err)
	}
	// The drafter dies and comes back with another segment.
	stop()
	_ = o.Close()
	if _, err := c.Claim(context.Background(), "d", h); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("claim from a dead drafter: %v: want unavailable", err)
	}
	o2 := newSegment(t, socket)
	serve(t, addr, Config{Drafter: new(fake), Segment: o2, Describe: describe})
	for end := time.Now().Add(3 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := c.client.Describe(context.Background()); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("drafter is not found again")
		}
	}
	if _, err := c.Claim(context.Background(), "d", h); !errors.Is(err, tandem.Stale) {
		t.Errorf("handle of the dead drafter: %v: want stale", err)
	}
	claim(t, c, o2, "after restart")
}

func TestClaimsWhereNothingCanBeMapped(t *testing.T) {
	dir := t.TempDir()
	for name, socket := range map[string]string{"not told": "", "not there": filepath.Join(dir, "none")} {
		t.Run(name, func(t *testing.T) {
			addr := "unix://" + filepath.Join(t.TempDir(), "d")
			o := newSegment(t, filepath.Join(t.TempDir(), "seg"))
			serve(t, addr, Config{Drafter: new(fake), Segment: o, Describe: func() wire.Description { return wire.Description{SegmentSocket: socket} }})
			c := NewClaimer(dial(t, addr))
			defer c.Close()
			claim(t, c, o, "copied")
			claim(t, c, o, "copied again")
			if c.reader != nil {
				t.Error("something was mapped")
			}
		})
	}
	addr := "unix://" + filepath.Join(dir, "none")
	serve(t, addr, Config{Drafter: new(fake), Describe: func() wire.Description { return wire.Description{} }})
	c := NewClaimer(dial(t, addr))
	defer c.Close()
	if _, err := c.Claim(context.Background(), "d", shm.Handle{Segment: 1}); !errors.Is(err, tandem.Stale) {
		t.Errorf("drafter without shared memory: %v: want stale", err)
	}
}
