package test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/nats-io/nats.go"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// TestGarbageInThePool publishes what no drafter would, while a request runs whose session it is aimed
// at: everything is counted, and the text stays the same.
func TestGarbageInThePool(t *testing.T) {
	t.Parallel()
	g := up(t)
	r := withTree(setting{0.8, 5}.request(prompts(t)[0].Prompt, 400), trees[0])
	r.IgnoreEOS = true
	want := g.run(t, plain(r))

	var tokens []uint32
	published := false
	for event, err := range g.client.Generate(t.Context(), r) {
		switch {
		case err != nil:
			t.Fatal(err)
		case event.Started != nil:
			id, err := strconv.ParseUint(event.Started.Session, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			g.publishGarbage(t, tandem.SessionID(id))
			published = true
		case event.Delta != nil:
			tokens = append(tokens, event.Delta.Tokens...)
		}
	}
	if !published || !slices.Equal(tokens, want.tokens) {
		t.Errorf("tokens\n%v, without garbage\n%v", tokens, want.tokens)
	}
	for _, names := range [][]string{{"tickets.garbage"}, {"tickets.unknown_session"}, {"tickets.stale_epoch"},
		{"tickets.stale_handle", "tickets.claim_failed"}} { // the drafter is asked for the tree, and may be late on a busy machine
		testkit.Eventually(t, "a count of "+names[0], func() bool {
			counted := g.counters(t, "verifier")
			return slices.ContainsFunc(names, func(name string) bool { return counted[name] > 0 })
		})
	}
}

// publishGarbage connects to the pool as a process of this tandem would.
func (g *group) publishGarbage(t *testing.T, session tandem.SessionID) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(g.w.tmp, "tandem-*", "pool"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files with the pool's address: %v, %v", files, err)
	}
	url, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(strings.TrimSpace(string(url)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	random := make([]byte, 300)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	envelope := func(session tandem.SessionID, epoch tandem.Epoch, h shm.Handle) []byte {
		e := wire.Envelope{Ticket: tandem.Ticket{Session: session, Epoch: epoch, Base: 10, Hash: 1, Drafter: "gopher-draft-go-f16"},
			Handle: h}
		if h == (shm.Handle{}) {
			e.Ticket.Tree = tandem.Root(5)
		}
		b, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for _, message := range [][]byte{
		nil, []byte("hello"), random, make([]byte, 100<<10),
		envelope(tandem.NewSessionID(), 0, shm.Handle{}),
		envelope(session, 77, shm.Handle{}),
		envelope(session, 0, shm.Handle{}),
		envelope(session, 0, shm.Handle{Segment: 1, Slot: 2, Length: 3, Generation: 4}),
		envelope(session, 0, shm.Handle{Segment: 1, Slot: 1 << 31, Length: 1 << 31, Generation: 1<<64 - 1}),
	} {
		if err := conn.Publish("tandem-drafts.ticket", message); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// counters returns the counters of a process.
func (g *group) counters(t *testing.T, role string) map[string]int64 {
	t.Helper()
	d, err := g.client.Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Processes {
		if p.Role == role {
			return p.Counters
		}
	}
	t.Fatalf("no %s among the processes", role)
	return nil
}
