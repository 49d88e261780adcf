package lookup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/test/testkit"
)

var _ tandem.Drafter = (*Drafter)(nil)

type rig struct {
	*Drafter
	pool     *draftertest.Pool
	counters *tandem.Counters
}

func newRig(t *testing.T, c Config) rig {
	t.Helper()
	r := rig{pool: draftertest.NewPool(2), counters: &tandem.Counters{}}
	c.Pool, c.Counters, c.Vocab = r.pool, r.counters, 300
	var err error
	if r.Drafter, err = New(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 {
			if err := r.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
		goleak.VerifyNone(t)
	})
	return r
}

func tokensOf(s string) (out []tandem.Token) {
	for _, c := range []byte(s) {
		out = append(out, tandem.Token(c))
	}
	return out
}

func opening(id tandem.SessionID, text []tandem.Token) tandem.Opening {
	return tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: draftertest.Limit, MaxNodes: 12}
}

const repeated = "if err != nil { return err }; x := f(); if err !"

func TestProposesWhatStoodBefore(t *testing.T) {
	r := newRig(t, Config{})
	text := tokensOf(repeated)
	opened, err := r.Open(context.Background(), opening(1, text))
	if err != nil {
		t.Fatal(err)
	}
	if h := opened.Hindsight; h.Tokens != len(text) || h.Hits&0b1111111 != 0b0111111 { // of "if err !" all that follows "if"
		t.Errorf("hindsight of %d tokens: %b", h.Tokens, h.Hits)
	}
	p := draftertest.Proposal(1, text, len(text))
	p.Bounds = tandem.Bounds{Nodes: 8, Depth: 7, Width: 1}
	done, err := r.Propose(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	k := r.pool.Take(t)
	if k.Session != 1 || k.Epoch != 1 || k.Base != p.Base || k.Hash != p.Hash || k.Drafter != Name ||
		!slices.Equal(k.SelfDrafts, p.SelfDrafts) {
		t.Errorf("ticket %+v", k)
	}
	if !slices.Equal(k.Tree.Tokens, tokensOf("!= nil {")) || !reflect.DeepEqual(k.Tree, done.Tree) || done.Nodes != 8 || done.Depth != 7 ||
		done.Passes != 0 {
		t.Errorf("proposed %+v, ticket %v", done, k.Tree)
	}
	if k.Tree.Tokens[0] = 9; done.Tree.Tokens[0] == 9 {
		t.Error("the answer shares its tree with the pool")
	}

	// The gateway merges this one itself: no ticket.
	p.Return = true
	if done, err := r.Propose(context.Background(), p); err != nil || done.Tree.Len() != 8 {
		t.Errorf("returned %+v, %v", done, err)
	}
	// A plan under which a wide pass never pays leaves the root, a free one all; a high α ends the draft.
	p.Plan = tandem.Plan{Verify: []time.Duration{time.Millisecond, time.Hour}}
	if done, _ := r.Propose(context.Background(), p); done.Tree.Len() != 1 || done.Nodes != 1 || done.Depth != 0 {
		t.Errorf("a plan against drafts gave %+v", done)
	}
	p.Plan = tandem.Plan{Verify: slices.Repeat([]time.Duration{time.Second}, 5)}
	if done, _ := r.Propose(context.Background(), p); done.Tree.Len() != 5 {
		t.Errorf("a plan of 5 nodes gave %d", done.Nodes)
	}
	p.Plan, p.Stop = tandem.Plan{}, 0.7
	done, _ = r.Propose(context.Background(), p)
	if n := done.Tree.Len(); n == 1 || n == 8 || done.Tree.LogProbs[n-1] < float32(math.Log(0.7)) {
		t.Errorf("α of 0.7 gave %v", done.Tree)
	}
	p.Bounds = tandem.Bounds{}
	if done, err := r.Propose(context.Background(), p); err != nil || done.Nodes != 1 {
		t.Errorf("plain bounds gave %+v, %v", done, err)
	}
	if n := r.counters.Snapshot(); n["drafts"] != 6 {
		t.Errorf("counters %v", n)
	}
}

// TestFollowsTheGateway lets the committed tokens grow and be contradicted; the trees must be those of a
// session that was opened with the same tokens.
func TestFollowsTheGateway(t *testing.T) {
	r := newRig(t, Config{})
	ctx := context.Background()
	rapid.Check(t, func(t *rapid.T) {
		var text []tandem.Token
		grow := func(name string) {
			for i := range rapid.IntRange(1, 10).Draw(t, name) {
				text = append(text, tandem.Token(rapid.IntRange(0, 3).Draw(t, fmt.Sprint(name, i))))
			}
		}
		grow("prompt")
		if _, err := r.Open(ctx, opening(1, text)); err != nil {
			t.Fatal(err)
		}
		told, prompt := len(text), len(text)
		for round := range rapid.IntRange(1, 6).Draw(t, "rounds") {
			grow(fmt.Sprint("round ", round))
			if rapid.IntRange(0, 3).Draw(t, "contradicted") == 0 { // it had been told something else
				told = rapid.IntRange(0, told-1).Draw(t, "from")
				text[told]++
			}
			p := draftertest.Proposal(1, text, told)
			p.Return = true
			got, err := r.Propose(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			told = len(text)
			again := opening(2, text)
			again.Prompt = prompt // the rest is the target's, from which it learns
			if _, err := r.Open(ctx, again); err != nil {
				t.Fatal(err)
			}
			p = draftertest.Proposal(2, text, told)
			p.Return = true
			want, err := r.Propose(ctx, p)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got.Tree, want.Tree) {
				t.Fatalf("round %d of %v:\n got %v\nwant %v", round, text, got.Tree, want.Tree)
			}
			if got.Hindsight != want.Hindsight || got.Hindsight.Tokens != min(len(text), tandem.MaxHindsight) {
				t.Fatalf("round %d of %v: hindsight %b, want %b", round, text, got.Hindsight, want.Hindsight)
			}
		}
	})
}

func TestRefuses(t *testing.T) {
	r := newRig(t, Config{Sessions: 2, Tokens: 2 * draftertest.Limit})
	ctx := context.Background()
	text := tokensOf(repeated)
	longer := append(slices.Clone(text), 5, 6)
	for _, c := range []struct {
		name   string
		change func(*tandem.Opening)
		kind   tandem.Kind
	}{
		{"right", func(*tandem.Opening) {}, tandem.OK},
		{"again", func(*tandem.Opening) {}, tandem.OK},
		{"older", func(o *tandem.Opening) { o.Epoch-- }, tandem.Stale},
		{"no session", func(o *tandem.Opening) { o.Session = 0 }, tandem.Invalid},
		{"no tokens", func(o *tandem.Opening) { o.Tokens = nil }, tandem.Invalid},
		{"limit", func(o *tandem.Opening) { o.Limit = 1 }, tandem.Invalid},
		{"nodes", func(o *tandem.Opening) { o.MaxNodes = 0 }, tandem.Invalid},
		{"vocabulary", func(o *tandem.Opening) { o.Tokens = []tandem.Token{300} }, tandem.Invalid},
		{"too large for ever", func(o *tandem.Opening) { o.Limit = 2*draftertest.Limit + 1 }, tandem.Unsupported},
		{"too large now", func(o *tandem.Opening) { o.Session, o.Limit = 2, draftertest.Limit+1 }, tandem.Exhausted},
		{"second", func(o *tandem.Opening) { o.Session, o.Limit = 2, 60 }, tandem.OK},
		{"one too many", func(o *tandem.Opening) { o.Session, o.Limit = 3, 60 }, tandem.Exhausted},
	} {
		o := opening(1, text)
		c.change(&o)
		if _, err := r.Open(ctx, o); tandem.KindOf(err) != c.kind {
			t.Errorf("open %s: %v, want %v", c.name, err, c.kind)
		}
	}
	if _, err := r.Propose(ctx, draftertest.Proposal(1, longer, len(text))); err != nil {
		t.Fatal(err)
	}
	r.pool.Take(t)
	for _, c := range []struct {
		name   string
		change func(*tandem.Proposal)
		kind   tandem.Kind
	}{
		{"unknown session", func(p *tandem.Proposal) { p.Session = 9 }, tandem.UnknownSession},
		{"old epoch", func(p *tandem.Proposal) { p.Epoch = 0 }, tandem.Stale},
		{"hash", func(p *tandem.Proposal) { p.Hash++ }, tandem.Stale},
		{"a gap", func(p *tandem.Proposal) { p.Base, p.From, p.Suffix = 100, 99, []tandem.Token{1} }, tandem.Stale},
		{"merely behind", func(p *tandem.Proposal) { *p = draftertest.Proposal(1, text, len(text)-1) }, tandem.Stale},
		{"base", func(p *tandem.Proposal) { p.Base++ }, tandem.Invalid},
		{"nothing", func(p *tandem.Proposal) { *p = tandem.Proposal{Session: 1, Epoch: 1} }, tandem.Invalid},
		{"vocabulary", func(p *tandem.Proposal) { p.Suffix = []tandem.Token{300, -1} }, tandem.Invalid},
		{"above the limit", func(p *tandem.Proposal) { *p = draftertest.Proposal(1, slices.Repeat(longer, 20), 0) }, tandem.Invalid},
		{"right, once more", func(*tandem.Proposal) {}, tandem.OK},
	} {
		p := draftertest.Proposal(1, longer, len(text))
		c.change(&p)
		if _, err := r.Propose(ctx, p); tandem.KindOf(err) != c.kind {
			t.Errorf("propose %s: %v, want %v", c.name, err, c.kind)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Propose(ended, draftertest.Proposal(1, longer, len(text))); !errors.Is(err, tandem.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if _, err := r.Open(ended, opening(1, text)); !errors.Is(err, tandem.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	if err := r.CloseOwned(ctx, 7); err != nil || len(r.sessions) == 0 {
		t.Errorf("%v, no sessions are left of another owner", err)
	}
	if err := errors.Join(r.Close(ctx, 2), r.Close(ctx, 77), r.CloseOwned(ctx, 0)); err != nil || r.reserved != 0 || len(r.sessions) != 0 {
		t.Errorf("after closing: %v, %d tokens reserved, %d sessions", err, r.reserved, len(r.sessions))
	}
	for _, c := range []Config{{}, {Pool: r.pool, Counters: r.counters}, {Pool: r.pool, Counters: r.counters, Vocab: 1,
		Sessions: -1}} {
		if _, err := New(c); !errors.Is(err, tandem.Invalid) {
			t.Errorf("configuration %+v: %v", c, err)
		}
	}
}

func TestWaitsForThePool(t *testing.T) {
	r := newRig(t, Config{})
	text := tokensOf(repeated)
	if _, err := r.Open(context.Background(), opening(1, text)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.pool.Put(context.Background(), tandem.Ticket{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := r.Propose(ctx, draftertest.Proposal(1, text, len(text))); !errors.Is(err, tandem.Deadline) {
		t.Errorf("pool stays full: %v, want Deadline", err)
	}
	ended := make(chan error)
	go func() {
		_, err := r.Propose(context.Background(), draftertest.Proposal(1, text, len(text)))
		ended <- err
	}()
	testkit.Eventually(t, "it waits for room", func() bool { return r.counters.Snapshot()["pool.paused"] == 1 })
	r.pool.Take(t)
	r.pool.Take(t)
	if err := <-ended; err != nil {
		t.Errorf("pool has room again: %v", err)
	}
}

func TestDropsIdleSessionsAndEnds(t *testing.T) {
	r := newRig(t, Config{Idle: 20 * time.Millisecond})
	text := tokensOf(repeated)
	if _, err := r.Open(context.Background(), opening(1, text)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the session is dropped", func() bool { return r.counters.Snapshot()["sessions.idle"] > 0 })
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, text, len(text))); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("after the drop: %v", err)
	}
	if err := r.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(context.Background(), opening(1, text)); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Open after shutdown: %v", err)
	}
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, text, len(text))); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Propose after shutdown: %v", err)
	}
}

// TestSessionsAtOnce opens, proposes and closes from many goroutines; the race detector watches.
func TestSessionsAtOnce(t *testing.T) {
	r := newRig(t, Config{Idle: time.Millisecond})
	text := tokensOf(repeated)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			id := tandem.SessionID(1 + g/2) // two for each
			for range 50 {
				_, _ = r.Open(context.Background(), opening(id, text))
				p := draftertest.Proposal(id, text, len(text))
				p.Return = true
				if _, err := r.Propose(context.Background(), p); err != nil && !errors.Is(err, tandem.UnknownSession) {
					t.Error(err)
				}
				if g%3 == 0 {
					_ = r.Close(context.Background(), id)
				}
			}
		})
	}
	all.Wait()
	if err := r.CloseOwned(context.Background(), 0); err != nil || r.reserved != 0 {
		t.Errorf("%v, %d tokens are still reserved", err, r.reserved)
	}
}

// TestSurvivesAPanic damages a session on purpose.
func TestSurvivesAPanic(t *testing.T) {
	r := newRig(t, Config{})
	text := tokensOf(repeated)
	for id := range tandem.SessionID(2) {
		if _, err := r.Open(context.Background(), opening(1+id, text)); err != nil {
			t.Fatal(err)
		}
	}
	r.sessions[1].seen = nil
	for i, want := range []tandem.Kind{tandem.Internal, tandem.UnknownSession} {
		if _, err := r.Propose(context.Background(), draftertest.Proposal(1, text, len(text))); tandem.KindOf(err) != want {
			t.Errorf("call %d: %v, want %v", i, err, want)
		}
	}
	if _, err := r.Propose(context.Background(), draftertest.Proposal(2, text, len(text))); err != nil {
		t.Error(err)
	}
}
