package main

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/services/discovery"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/rpc"
	"github.com/tandem-llm/tandem/services/wire"
)

// book writes down what a gateway would be told.
type book struct{ lines []string }

func (b *book) Enlist(m gateway.Member) { b.lines = append(b.lines, "+"+m.Name) }
func (b *book) Dismiss(name string)     { b.lines = append(b.lines, "-"+name) }
func (b *book) DrafterState(name string, up bool) {
	b.lines = append(b.lines, name+map[bool]string{true: " up", false: " down"}[up])
}

// want checks what was told since the last time.
func (b *book) want(t *testing.T, what string, lines ...string) {
	t.Helper()
	slices.Sort(b.lines)
	slices.Sort(lines)
	if !slices.Equal(b.lines, lines) {
		t.Errorf("%s: told %q: want %q", what, b.lines, lines)
	}
	b.lines = nil
}

func testVocab(t *testing.T) *token.Vocab {
	t.Helper()
	v, err := readVocab(filepath.Join("..", "..", "models", defaultTarget))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func connection(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	c, err := rpc.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestMembers(t *testing.T) {
	vocab, b, log := testVocab(t), new(book), new(bytes.Buffer)
	r := &role{counters: new(tandem.Counters), log: slog.New(slog.NewTextHandler(log, nil))}
	m := newMembers(b, vocab, r, new(pool.Fallback))
	good := func(names ...string) (out []wire.Drafter) {
		for _, n := range names {
			out = append(out, wire.Drafter{Name: n, Model: "m", Vocab: vocab.Size(), Fingerprint: fingerprint(vocab.Fingerprint())})
		}
		return out
	}
	lookup := wire.Drafter{Name: "lookup"}
	conn := connection(t, "unix:///none")
	a := discovery.Peer{Addr: "a", Instance: 1, Conn: conn, Up: true, Drafters: append(good("go", "py"), lookup)}
	c := discovery.Peer{Addr: "c", Instance: 2, Conn: conn, Drafters: good("go")}
	m.update([]discovery.Peer{a, c})
	b.want(t, "one process is there, one is only heard of", "+go", "+py", "+lookup")
	c.Up = true
	m.update([]discovery.Peer{a, c})
	b.want(t, "a second drafter of the same name", "+go#2")
	a.Up = false
	m.update([]discovery.Peer{a, c})
	b.want(t, "a process dies", "go down", "py down", "lookup down")
	early := discovery.Peer{Addr: "0", Instance: 3, Conn: conn, Up: true, Drafters: good("go")}
	m.update([]discovery.Peer{early, a, c})
	b.want(t, "a third; the others keep their names", "+go#3")
	m.update([]discovery.Peer{early, c})
	b.want(t, "it is gone", "-go", "-py", "-lookup")
	a.Up, a.Instance, a.Drafters = true, 4, good("go", "prose")
	m.update([]discovery.Peer{early, a, c})
	b.want(t, "it is back with another model", "+go", "+prose")
	c.Draining = true
	m.update([]discovery.Peer{early, a, c})
	b.want(t, "one drains", "-go#2")
	c.Draining, c.Instance = false, 5
	m.update([]discovery.Peer{early, a, c})
	b.want(t, "its successor", "+go#2")
	a.Conn = connection(t, "unix:///none")
	m.update([]discovery.Peer{early, a, c})
	b.want(t, "over another connection, under the same name", "+go", "+prose")
	m.update([]discovery.Peer{early, a, c})
	b.want(t, "nothing happened")
	if got := m.processes(); len(got) != 3 || got[1].used != 2 || got[1].models() != "m, m" {
		t.Errorf("processes %+v", got)
	}
	if log.Len() != 0 {
		t.Errorf("logged %s", log)
	}
}

func TestOtherVocabularyAmongGood(t *testing.T) {
	vocab, b, log := testVocab(t), new(book), new(bytes.Buffer)
	r := &role{counters: new(tandem.Counters), log: slog.New(slog.NewTextHandler(log, nil))}
	m := newMembers(b, vocab, r, new(pool.Fallback))
	s, err := rpc.NewServer(rpc.Config{Listen: "unix://" + filepath.Join(t.TempDir(), "d")})
	if err != nil {
		t.Fatal(err)
	}
	same := pieces(vocab)
	drafting.Register(s.Registrar(), drafting.Config{Drafters: []drafting.Named{{Name: "go"},
		{Name: "other", Vocabulary: func(offset, limit int) [][]byte {
			out := same(offset, limit)
			if i := 7 - offset; i >= 0 && i < len(out) {
				out[i] = []byte("seven")
			}
			return out
		}},
		{Name: "short", Vocabulary: func(offset, limit int) [][]byte { return same(offset, min(limit, max(0, 100-offset))) }},
		{Name: "mute"}}})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	p := discovery.Peer{Addr: s.Addr(), Instance: 1, Conn: connection(t, s.Addr()), Up: true}
	for _, n := range []string{"other", "go", "short", "mute"} {
		d := wire.Drafter{Name: n, Vocab: vocab.Size(), Fingerprint: "of " + n}
		if n == "go" {
			d.Fingerprint = fingerprint(vocab.Fingerprint())
		}
		p.Drafters = append(p.Drafters, d)
	}
	for p.Conn.Connect(); p.Conn.GetState().String() != "READY"; {
		p.Conn.WaitForStateChange(ctx, p.Conn.GetState())
	}
	for range 3 {
		m.update([]discovery.Peer{p})
	}
	b.want(t, "the good one goes on", "+go")
	for _, want := range []string{`drafter=other`, `token 7 is \"seven\" there`, "drafter=short", "100 tokens there", "drafter=mute", "fingerprint of mute there"} {
		if n := strings.Count(log.String(), want); n != 1 {
			t.Errorf("%q is logged %d times: want once, in\n%s", want, n, log)
		}
	}
	if n := r.counters.Snapshot()["drafters.other_vocabulary"]; n != 3 {
		t.Errorf("%d counted: want 3", n)
	}
	p.Instance = 2 // restarted with the same wrong models: said once more
	m.update([]discovery.Peer{p})
	if n := strings.Count(log.String(), "drafter=other"); n != 2 {
		t.Errorf("after a restart it is logged %d times: want 2", n)
	}
	p.Drafters[0].Fingerprint = fingerprint(vocab.Fingerprint())
	m.update([]discovery.Peer{p})
	b.want(t, "restarted with a right one", "+other")
}
