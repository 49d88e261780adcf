package drafting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/wire"
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
	proposed tandem.Proposed // zero: drafted
	closed   tandem.SessionID
	err      error
}

func (f *fake) Open(_ context.Context, o tandem.Opening) (tandem.Opened, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opening, f.opening.Progress = o, nil
	return opened, f.err
}

func (f *fake) Propose(_ context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proposal = p
	if f.proposed.Nodes > 0 {
		return f.proposed, f.err
	}
	return drafted, f.err
}

func (f *fake) Close(_ context.Context, id tandem.SessionID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = id
	return f.err
}

// serve serves cfg at addr until the returned function is called.
func serve(t *testing.T, addr string, cfg ServerConfig) (stop func()) {
	t.Helper()
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: addr})
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
func one(n Named, segment *shm.Segment) ServerConfig {
	n.Name = "d"
	cfg := ServerConfig{Drafters: []Named{n}}
	if segment != nil {
		cfg.Trees = trees.NewWriter(segment, 0, new(tandem.Counters))
	}
	return cfg
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
	want := tandem.Description{Name: "d", Vocab: 3, Counters: map[string]int64{"x": 1}, Drafters: []string{"d"}, Protocol: tandem.Protocol,
		Costs: []tandem.Cost{{Rows: 1, Context: 1, Time: 8e6}, {Rows: 64, Context: 65, Time: 96e6}}}
	var pieces [][]byte
	for i := range 40000 {
		pieces = append(pieces, fmt.Append(nil, i, "\xff"))
	}
	whole := wire.Vocabulary{Tokenizer: "llama", EOS: 2, Pieces: pieces, Kinds: bytes.Repeat([]byte{1, 4}, 20000)}
	serve(t, addr, one(Named{Drafter: f, Describe: func() tandem.Description { return want },
		Vocabulary: func(offset, limit int) wire.Vocabulary {
			part, from, to := whole, min(offset, len(pieces)), min(offset+limit, len(pieces))
			part.Pieces, part.Kinds = pieces[from:to], whole.Kinds[from:to]
			return part
		}}, nil))
	var c tandem.Drafter = dial(t, addr)
	ctx := context.Background()
	o := tandem.Opening{Session: 3, Epoch: 1, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 8, Sampling: tandem.Sampling{TopP: 1}}
	how, err := c.Open(ctx, o)
	if o.Owner = f.opening.Owner; err != nil || !reflect.DeepEqual(how, opened) || o.Owner == 0 || !reflect.DeepEqual(f.opening, o) {
		t.Errorf("opened %+v, %v", f.opening, err)
	}
	p := tandem.Proposal{Session: 3, Epoch: 1, Base: 3, Hash: 7, From: 2, Suffix: []tandem.Token{9},
		Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}}
	got, err := c.Propose(ctx, p)
	if err != nil || !reflect.DeepEqual(f.proposal, p) || !reflect.DeepEqual(got, drafted) {
		t.Errorf("proposed %+v for %+v, %v", got, f.proposal, err)
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
	f.err = nil
	if err := c.Close(ctx, 3); err != nil || f.closed != 3 {
		t.Errorf("closed %v, %v", f.closed, err)
	}
	if _, err := c.Open(ctx, tandem.Opening{Session: 3}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("opening without tokens: %v", err)
	}
	d, err := dial(t, addr).Describe(ctx)
	if err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("described %+v, %v", d, err)
	}
	v, err := dial(t, addr).Vocabulary(ctx, 1<<20)
	if err != nil || !reflect.DeepEqual(v, whole) {
		t.Errorf("vocabulary of %d pieces, %v: want %d", len(v.Pieces), err, len(pieces))
	}
	whole.Pieces, whole.Kinds = pieces[:30001], whole.Kinds[:30001]
	if v, err := dial(t, addr).Vocabulary(ctx, 30001); err != nil || !reflect.DeepEqual(v, whole) {
		t.Errorf("a part of %d pieces, %v: want 30001", len(v.Pieces), err)
	}
}

func TestSeveralDraftersInOneProcess(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	fakes := map[string]*fake{"go": new(fake), "py": new(fake), "lookup": new(fake)}
	var cfg ServerConfig
	for _, name := range []string{"go", "py", "lookup"} {
		n := Named{Name: name, Drafter: fakes[name]}
		if name != "lookup" {
			n.Describe = func() tandem.Description { return tandem.Description{Fingerprint: "of " + name, Vocab: 2} }
			n.Vocabulary = func(offset, limit int) wire.Vocabulary {
				return wire.Vocabulary{EOS: -1, Pieces: [][]byte{[]byte(name), nil}[min(offset, 2):]}
			}
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
		v, err := c.Vocabulary(ctx, 9)
		if name == "lookup" {
			if d.Fingerprint != "" || !errors.Is(err, tandem.Unsupported) {
				t.Errorf("a drafter without a model has fingerprint %q and vocabulary %v, %v", d.Fingerprint, v, err)
			}
		} else if err != nil || d.Fingerprint != "of "+string(v.Pieces[0]) {
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
	serve(t, addr, one(Named{Drafter: new(fake), Vocabulary: func(offset, limit int) wire.Vocabulary {
		return wire.Vocabulary{EOS: -1, Pieces: pieces[offset:]}
	}}, nil))
	v, err := dial(t, addr).Vocabulary(context.Background(), 9)
	if err != nil || len(v.Pieces) != 4 || len(v.Pieces[2]) != 2<<20 || v.EOS != -1 {
		t.Errorf("%d pieces, eos %d, %v", len(v.Pieces), v.EOS, err)
	}
}

// TestVocabularyWithoutEnd: what a drafter lists is bounded in bytes, and has a type for each token.
func TestVocabularyWithoutEnd(t *testing.T) {
	for name, c := range map[string]struct {
		part wire.Vocabulary
		says string
	}{
		"large":   {wire.Vocabulary{EOS: -1, Pieces: [][]byte{bytes.Repeat([]byte("a"), 3<<20)}}, "more than 67108864 bytes"},
		"untyped": {wire.Vocabulary{Tokenizer: "gpt2", Pieces: [][]byte{{}, {}}, Kinds: []byte{1}}, "1 types of 2 tokens"},
	} {
		addr := "unix://" + filepath.Join(t.TempDir(), "d")
		serve(t, addr, one(Named{Drafter: new(fake), Vocabulary: func(offset, limit int) wire.Vocabulary { return c.part }}, nil))
		if _, err := dial(t, addr).Vocabulary(context.Background(), 1<<20); !errors.Is(err, tandem.Corrupt) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// second returns the error of an Open.
func second(_ tandem.Opened, err error) error { return err }

// TestTargetOverTheWire: the target's tokenizer arrives whole, whatever its size; a drafter that takes none, or refuses it, says so.
func TestTargetOverTheWire(t *testing.T) {
	var name string
	var file []byte
	var refuse error
	addr := "unix://" + filepath.Join(t.TempDir(), "d")
	serve(t, addr, ServerConfig{Drafters: []Named{{Name: "own", Drafter: new(fake)}, {Name: "any", Drafter: new(fake),
		Target: func(fingerprint string, f []byte) error { name, file = fingerprint, f; return refuse }}}})
	c := dial(t, addr)
	own, other := c, NewClient(nil, "any")
	other.rpc = c.rpc
	for _, size := range []int{0, 1, maxPieceBytes, 3*maxPieceBytes + 5} {
		want := bytes.Repeat([]byte{7}, size)
		if err := other.Target(t.Context(), "f", want); err != nil || name != "f" || !bytes.Equal(file, want) {
			t.Errorf("%d bytes: %d came for %q, %v", size, len(file), name, err)
		}
	}
	if err := other.Target(t.Context(), "f", make([]byte, maxVocabularyBytes+1)); !errors.Is(err, tandem.Invalid) ||
		!strings.Contains(err.Error(), "more than 67108864 bytes") {
		t.Errorf("too large: %v", err)
	}
	if err := other.Target(t.Context(), "", []byte{1}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("without a fingerprint: %v", err)
	}
	if err := own.Target(t.Context(), "f", []byte{1}); !errors.Is(err, tandem.Unsupported) {
		t.Errorf("a drafter that does not translate: %v", err)
	}
	refuse = tandem.Errorf("token", tandem.Corrupt, "no tokenizer")
	if err := other.Target(t.Context(), "f", []byte{1}); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("refused: %v", err)
	}
}
