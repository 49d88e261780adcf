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

var opened = tandem.Opened{Reused: 1, Hindsight: tandem.Hindsight{Tokens: 3, Hits: 5}}

var drafted = tandem.Proposed{Nodes: 3, Depth: 2, Busy: time.Millisecond, Passes: 2, Reused: 1, Ahead: time.Second,
	Tree: tandem.Tree{Tokens: []tandem.Token{9, 4, 5}, Parents: []int32{-1, 0, 1}, LogProbs: []float32{0, -1, -2}}}

// fake remembers what it was asked.
type fake struct {
	mu       sync.Mutex
	opening  tandem.Opening
	proposal tandem.Proposal
	closed   tandem.SessionID
	err      error
}

func (f *fake) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opening = o
	return opened, f.err
}

func (f *fake) Propose(_ context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proposal = p
	return drafted, f.err
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

// one is the configuration of a process with one drafter.
func one(n Named, segment *shm.Owner) Config {
	n.Name = "d"
	return Config{Drafters: []Named{n}, Segment: segment}
}

func dial(t *testing.T, addr string) *Client {
	t.Helper()
	conn, err := rpc.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return NewClient(conn, "")
}

func TestDrafterOverTheWire(t *testing.T) {
	f := new(fake)
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	want := wire.Description{Name: "d", Vocab: 3, Counters: map[string]int64{"x": 1}, Drafters: []string{"d"}}
	var pieces [][]byte
	for i := range 40000 {
		pieces = append(pieces, fmt.Append(nil, i, "\xff"))
	}
	serve(t, addr, one(Named{Drafter: f, Describe: func() wire.Description { return want }, Vocabulary: func(offset, limit int) [][]byte {
		return pieces[min(offset, len(pieces)):min(offset+limit, len(pieces))]
	}}, nil))
	var c tandem.Drafter = dial(t, addr)
	ctx := context.Background()
	o := tandem.Opening{Session: 3, Epoch: 1, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 8, Sampling: tandem.Sampling{TopP: 1}}
	how, err := c.Open(ctx, o)
	if o.Owner = f.opening.Owner; err != nil || how != opened || o.Owner == 0 || !reflect.DeepEqual(f.opening, o) {
		t.Errorf("opened %+v, %v", f.opening, err)
	}
	p := tandem.Proposal{Session: 3, Epoch: 1, Base: 3, Hash: 7, From: 2, Suffix: []tandem.Token{9}, Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}}
	got, err := c.Propose(ctx, p)
	if err != nil || !reflect.DeepEqual(f.proposal, p) || !reflect.DeepEqual(got, drafted) {
		t.Errorf("proposed %+v for %+v, %v", got, f.proposal, err)
	}
	if err := c.Close(ctx, 3); err != nil || f.closed != 3 {
		t.Errorf("closed %v, %v", f.closed, err)
	}
	f.err = tandem.Errorf("draft", tandem.UnknownSession, "session 3 is not held")
	for name, err := range map[string]error{"open": second(c.Open(ctx, o)), "close": c.Close(ctx, 3)} {
		if !errors.Is(err, tandem.UnknownSession) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Propose(ctx, p); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("propose: %v", err)
	}
	if _, err := c.Open(ctx, tandem.Opening{Session: 3}); !errors.Is(err, tandem.Invalid) {
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

func TestSeveralDraftersInOneProcess(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	fakes := map[string]*fake{"go": new(fake), "py": new(fake), "lookup": new(fake)}
	var cfg Config
	for _, name := range []string{"go", "py", "lookup"} {
		n := Named{Name: name, Drafter: fakes[name]}
		if name != "lookup" {
			n.Describe = func() wire.Description { return wire.Description{Fingerprint: "of " + name, Vocab: 2} }
			n.Vocabulary = func(offset, limit int) [][]byte { return [][]byte{[]byte(name), nil}[min(offset, 2):] }
		}
		cfg.Drafters = append(cfg.Drafters, n)
	}
	serve(t, addr, cfg)
	conn, err := rpc.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx := context.Background()
	for i, name := range []string{"", "py", "lookup"} {
		c, f := NewClient(conn, name), fakes[[]string{"go", "py", "lookup"}[i]]
		id := tandem.SessionID(i + 1)
		if _, err := c.Open(ctx, tandem.Opening{Session: id, Tokens: []tandem.Token{1}}); err != nil || f.opening.Session != id {
			t.Errorf("%q: opened %v, %v", name, f.opening, err)
		}
		if _, err := c.Propose(ctx, tandem.Proposal{Session: id}); err != nil || f.proposal.Session != id {
			t.Errorf("%q: proposed %v, %v", name, f.proposal, err)
		}
		if err := c.Close(ctx, id); err != nil || f.closed != id {
			t.Errorf("%q: closed %v, %v", name, f.closed, err)
		}
		d, err := c.Describe(ctx)
		if err != nil || !reflect.DeepEqual(d.Drafters, []string{"go", "py", "lookup"}) || name != "" && d.Name != name {
			t.Errorf("%q: described %+v, %v", name, d, err)
		}
		v, err := c.Vocabulary(ctx)
		if name == "lookup" {
			if d.Fingerprint != "" || !errors.Is(err, tandem.Unsupported) {
				t.Errorf("a drafter without a model has fingerprint %q and vocabulary %v, %v", d.Fingerprint, v, err)
			}
		} else if err != nil || d.Fingerprint != "of "+string(v[0]) {
			t.Errorf("%q: fingerprint %q, vocabulary %q, %v", name, d.Fingerprint, v, err)
		}
	}
	other := NewClient(conn, "rust")
	if _, err := other.Open(ctx, tandem.Opening{Session: 1, Tokens: []tandem.Token{1}}); !errors.Is(err, tandem.Unsupported) {
		t.Errorf("a drafter that is not there opened: %v", err)
	}
	if _, err := other.Propose(ctx, tandem.Proposal{Session: 1}); !errors.Is(err, tandem.Unsupported) {
		t.Errorf("a drafter that is not there proposed: %v", err)
	}
	if _, err := NewClient(conn, "").Propose(ctx, tandem.Proposal{Session: 1, Stop: 2}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("a threshold of 2: %v: want invalid", err)
	}
}

func TestVocabularyOfLongPieces(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	pieces := [][]byte{bytes.Repeat([]byte("a"), 700<<10), bytes.Repeat([]byte("b"), 700<<10), bytes.Repeat([]byte("c"), 2<<20), nil}
	serve(t, addr, one(Named{Drafter: new(fake), Vocabulary: func(offset, limit int) [][]byte { return pieces[offset:] }}, nil))
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
	stop := serve(t, addr, one(Named{Drafter: new(fake), Describe: describe}, o))
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
	serve(t, addr, one(Named{Drafter: new(fake), Describe: describe}, o2))
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
			serve(t, addr, one(Named{Drafter: new(fake), Describe: func() wire.Description { return wire.Description{SegmentSocket: socket} }}, o))
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
	serve(t, addr, one(Named{Drafter: new(fake)}, nil))
	c := NewClaimer(dial(t, addr))
	defer c.Close()
	if _, err := c.Claim(context.Background(), "d", shm.Handle{Segment: 1}); !errors.Is(err, tandem.Stale) {
		t.Errorf("drafter without shared memory: %v: want stale", err)
	}
}

// pond is a pool that keeps what it gets, after refusing some.
type pond struct {
	got    []tandem.Ticket
	refuse int
	err    error
}

func (p *pond) Put(_ context.Context, t tandem.Ticket) error {
	if p.refuse > 0 {
		p.refuse--
		return tandem.Errorf("verifier", tandem.Exhausted, "full")
	}
	if p.err == nil {
		p.got = append(p.got, t)
	}
	return p.err
}

func TestDraftsGoOnWithoutThePool(t *testing.T) {
	f, p, up := new(fake), new(pond), true
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	serve(t, addr, one(Named{Drafter: f}, nil))
	d := &Detour{Drafter: dial(t, addr), Name: "go", Pool: p, PoolUp: func() bool { return up }}
	ctx := context.Background()
	ask := tandem.Proposal{Session: 3, Epoch: 1, Base: 3, Hash: 7, From: 2, Suffix: []tandem.Token{9}}
	want := tandem.Ticket{Session: 3, Epoch: 1, Base: 3, Hash: 7, Drafter: "go", Tree: drafted.Tree}
	if _, err := d.Propose(ctx, ask); err != nil || f.proposal.Return || len(p.got) != 0 {
		t.Errorf("with a pool: asked %+v, %d tickets, %v", f.proposal, len(p.got), err)
	}
	up, p.refuse = false, 3
	if got, err := d.Propose(ctx, ask); err != nil || !f.proposal.Return || !reflect.DeepEqual(got, drafted) || !reflect.DeepEqual(p.got, []tandem.Ticket{want}) {
		t.Errorf("without: asked %+v, got %+v, tickets %+v, %v", f.proposal, got, p.got, err)
	}
	merge := ask
	merge.Return = true
	if _, err := d.Propose(ctx, merge); err != nil || len(p.got) != 1 {
		t.Errorf("a tree to be merged went into the pool: %v, %v", p.got, err)
	}
	p.refuse = 1 << 30
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := d.Propose(short, ask); !errors.Is(err, tandem.Deadline) {
		t.Errorf("no room for long: %v", err)
	}
	p.refuse, p.err = 0, tandem.Errorf("rpc", tandem.Unavailable, "no verifier")
	if _, err := d.Propose(ctx, ask); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("nobody there: %v", err)
	}
	// The gateway reaches the pool, the drafter does not.
	up, p.err = true, nil
	f.err = tandem.Errorf("pool", tandem.Unavailable, "not connected")
	if _, err := d.Propose(ctx, ask); !f.proposal.Return || !errors.Is(err, tandem.Unavailable) {
		t.Errorf("a drafter without a pool was asked %+v, %v", f.proposal, err)
	}
	f.err = tandem.Errorf("drafter", tandem.Stale, "another epoch")
	if _, err := d.Propose(ctx, ask); f.proposal.Return || !errors.Is(err, tandem.Stale) {
		t.Errorf("a stale proposal was repeated as %+v, %v", f.proposal, err)
	}
}

// second returns the error of an Open.
func second(_ tandem.Opened, err error) error { return err }
