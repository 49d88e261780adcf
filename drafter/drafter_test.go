package drafter

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/testkit"
)

const (
	modelFile = "../models/gopher-draft-all-f16.gguf"
)

type rig struct {
	*Drafter
	t        testing.TB
	pool     *draftertest.Pool
	counters *tandem.Counters
	text     []tandem.Token // a prompt
}

func newRig(t testing.TB, c Config) *rig {
	t.Helper()
	t.Cleanup(func() {
		if _, bench := t.(*testing.B); !bench { // testing's own goroutines would count
			goleak.VerifyNone(t)
		}
	})
	return newTwin(t, c)
}

// openDraft opens a model for six sessions, with side files of its own.
func openDraft(t testing.TB, path string, sides ...string) *engine.Model {
	t.Helper()
	m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192,
		KVPages: engine.PagesFor(6, draftertest.Limit, DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range sides {
		if err := m.OpenSide(side); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// newTwin returns a rig beside another.
func newTwin(t testing.TB, c Config) *rig {
	t.Helper()
	m := c.Model
	if m == nil {
		m = openDraft(t, modelFile)
	}
	r := &rig{t: t, pool: draftertest.NewPool(8), counters: &tandem.Counters{},
		text: m.Vocab().Encode("func (r *Reader) Read(p []byte) (n int, err error) {\n", true)}
	c.Model, c.Counters, c.Name = m, r.counters, "test"
	if c.Pool == nil {
		c.Pool = r.pool
	}
	var err error
	if r.Drafter, err = New(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		m.Close()
	})
	return r
}

func (r *rig) open(id tandem.SessionID, text []tandem.Token) {
	r.t.Helper()
	if _, err := r.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: draftertest.Limit,
		MaxNodes: 64}); err != nil {
		r.t.Fatal(err)
	}
}

func proposal(id tandem.SessionID, text []tandem.Token, told int) tandem.Proposal {
	return tandem.Proposal{Session: id, Epoch: 1, Base: tandem.Position(len(text)), Hash: tandem.EmptyPrefix.Add(text...),
		From: tandem.Position(told), Suffix: text[told:], Bounds: draftertest.Bounds, SelfDrafts: []string{tandem.Medusa}}
}

// draft proposes and returns the ticket that came into the pool.
func (r *rig) draft(p tandem.Proposal) tandem.Ticket {
	r.t.Helper()
	done, err := r.Propose(context.Background(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	k := r.pool.Take(r.t)
	_, depth := k.Tree.Depths()
	if k.Session != p.Session || k.Epoch != p.Epoch || k.Base != p.Base || k.Hash != p.Hash || k.Drafter != "test" ||
		!slices.Equal(k.SelfDrafts, p.SelfDrafts) {
		r.t.Errorf("ticket %+v for %+v", k, p)
	}
	if done.Nodes != k.Tree.Len() || done.Depth != depth || done.Busy == 0 || !reflect.DeepEqual(done.Tree, k.Tree) ||
		(done.Passes == 0) != (done.Nodes == 1 || done.Reused == done.Nodes-1) {
		r.t.Errorf("proposed %+v, tree of %d nodes and depth %d", done, k.Tree.Len(), depth)
	}
	if err := k.Tree.Validate(max(p.Bounds.Nodes, 1), 4096); err != nil {
		r.t.Error(err)
	}
	return k
}

// state looks at a session on the owner's thread: positions and tree rows in the cache.
func (r *rig) state(id tandem.SessionID) (positions, rows int) {
	r.t.Helper()
	err := r.sched.Do(context.Background(), func() error {
		positions, rows = r.session(id).seq.Len(), r.session(id).seq.Nodes()
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return positions, rows
}

// leaf returns the tokens from below the root to the deepest node.
func leaf(t tandem.Tree) (path []tandem.Token) {
	depths, deepest := t.Depths()
	for n := int32(slices.Index(depths, int32(deepest))); n > 0; n = t.Parents[n] {
		path = append(path, t.Tokens[n])
	}
	slices.Reverse(path)
	return path
}

// TestTreesDependOnTheTextAlone drafts the same texts after different pasts: kept nodes, rollbacks,
// fresh sessions. The trees must be equal to the last bit of their log-probabilities.
func TestTreesDependOnTheTextAlone(t *testing.T) {
	for name, c := range map[string]struct {
		Config
		change func(*tandem.Proposal)
	}{
		"levels":       {},
		"best-first":   {change: func(p *tandem.Proposal) { p.Growth = tandem.GrowBest }},
		"pacer":        {change: func(p *tandem.Proposal) { p.Growth, p.Branch = tandem.GrowPacer, 0.1 }},
		"ahead":        {change: func(p *tandem.Proposal) { p.Ahead = true }},
		"pacer, ahead": {change: func(p *tandem.Proposal) { p.Growth, p.Stop, p.Ahead = tandem.GrowPacer, 0.05, true }},
		"few rows":     {Config{TreeRows: 20, Ahead: 100}, func(p *tandem.Proposal) { p.Ahead = true }},
		"short pieces": {Config{Chunk: 3}, nil},
	} {
		t.Run(name, func(t *testing.T) { treesDependOnTheTextAlone(t, newRig(t, c.Config), c.change) })
	}
}

func treesDependOnTheTextAlone(t *testing.T, r *rig, change func(*tandem.Proposal)) {
	draft := func(id tandem.SessionID, text []tandem.Token, told int) tandem.Ticket {
		p := draftertest.Proposal(id, text, told)
		if change != nil {
			change(&p)
		}
		return r.draft(p)
	}
	text := slices.Clone(r.text)
	r.open(1, text)
	told := len(text)
	for round := range 8 {
		got := draft(1, text, told)
		fresh := tandem.SessionID(100 + round)
		r.open(fresh, text)
		if want := draft(fresh, text, len(text)); !reflect.DeepEqual(got.Tree, want.Tree) {
			t.Fatalf("round %d:\n got %v\nwant %v", round, got.Tree, want.Tree)
		}
		if err := r.Close(context.Background(), fresh); err != nil {
			t.Fatal(err)
		}
		told = len(text)
		path := leaf(got.Tree)
		text = append(text, path[:min(len(path), round)]...) // accepts a little more each round
		if round != 5 {
			text = append(text, tandem.Token(1000+round))
		}
		if round == 6 {
			text[told-2]++ // the drafter had believed something else
			told -= 3
		}
	}
}

func TestAcceptedNodesAreNotRunAgain(t *testing.T) {
	r := newRig(t, Config{})
	r.open(1, r.text)
	if n, _ := r.state(1); n != len(r.text)-1 {
		t.Errorf("%d positions after Open with %d tokens", n, len(r.text))
	}
	k := r.draft(draftertest.Proposal(1, r.text, len(r.text)))
	n, rows := r.state(1)
	if n != len(r.text) || rows == 0 || rows > 60 {
		t.Errorf("%d positions and %d rows with a tree", n, rows)
	}
	text := append(append(slices.Clone(r.text), leaf(k.Tree)...), 7)
	var kept int
	if err := r.sched.Do(context.Background(), func() error {
		s := r.session(1)
		err := s.grower.adopt(draftertest.Proposal(1, text, len(r.text)))
		kept = s.seq.Len()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := len(text) - 2; kept < want-1 || kept > want { // the deepest node may not have been run
		t.Errorf("%d positions kept of a text of %d", kept, len(text))
	}
}

func TestProposeRefuses(t *testing.T) {
	r := newRig(t, Config{})
	r.open(1, r.text)
	longer := append(slices.Clone(r.text), 5, 6)
	r.draft(draftertest.Proposal(1, longer, len(r.text)))
	for name, c := range map[string]struct {
		change func(*tandem.Proposal)
		kind   tandem.Kind
	}{
		"unknown session":  {func(p *tandem.Proposal) { p.Session = 2 }, tandem.UnknownSession},
		"old epoch":        {func(p *tandem.Proposal) { p.Epoch = 0 }, tandem.Stale},
		"new epoch":        {func(p *tandem.Proposal) { p.Epoch = 2 }, tandem.Stale},
		"hash":             {func(p *tandem.Proposal) { p.Hash++ }, tandem.Stale},
		"a gap":            {func(p *tandem.Proposal) { p.Base, p.From, p.Suffix = 100, 99, []tandem.Token{1} }, tandem.Stale},
		"merely behind":    {func(p *tandem.Proposal) { *p = draftertest.Proposal(1, r.text, len(r.text)-1) }, tandem.Stale},
		"base":             {func(p *tandem.Proposal) { p.Base++ }, tandem.Invalid},
		"nothing":          {func(p *tandem.Proposal) { *p = tandem.Proposal{Session: 1, Epoch: 1} }, tandem.Invalid},
		"negative":         {func(p *tandem.Proposal) { p.From, p.Base = -1, 1; p.Suffix = p.Suffix[:2] }, tandem.Invalid},
		"vocabulary":       {func(p *tandem.Proposal) { p.Suffix = []tandem.Token{4096, -1} }, tandem.Invalid},
		"above the limit":  {func(p *tandem.Proposal) { *p = draftertest.Proposal(1, slices.Repeat(longer, 20), 0) }, tandem.Invalid},
		"right, once more": {func(p *tandem.Proposal) {}, tandem.OK},
	} {
		p := draftertest.Proposal(1, longer, len(r.text))
		c.change(&p)
		if _, err := r.Propose(context.Background(), p); tandem.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	r := newRig(t, Config{Window: engine.Window{Last: 1024, Step: engine.PageTokens}}) // a text takes memory for all of it
	good := tandem.Opening{Session: 1, Epoch: 3, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 4}
	whole := func(id tandem.SessionID) func(*tandem.Opening) { // of a tenant of its own, so that it shares nothing
		return func(o *tandem.Opening) {
			o.Session, o.Tenant, o.Tokens, o.Limit = id, id.String(), make([]tandem.Token, 1024), 2000
		}
	}
	ctx := context.Background()
	for _, c := range []struct {
		name   string
		change func(*tandem.Opening)
		kind   tandem.Kind
	}{
		{"right", func(o *tandem.Opening) {}, tandem.OK},
		{"again", func(o *tandem.Opening) {}, tandem.OK},
		{"older", func(o *tandem.Opening) { o.Epoch-- }, tandem.Stale},
		{"no session", func(o *tandem.Opening) { o.Session = 0 }, tandem.Invalid},
		{"no tokens", func(o *tandem.Opening) { o.Tokens = nil }, tandem.Invalid},
		{"limit", func(o *tandem.Opening) { o.Limit = 1 }, tandem.Invalid},
		{"nodes", func(o *tandem.Opening) { o.MaxNodes = -1 }, tandem.Invalid},
		{"vocabulary", func(o *tandem.Opening) { o.Tokens = []tandem.Token{-1} }, tandem.Invalid},
		{"context", func(o *tandem.Opening) { o.Tokens, o.Limit = make([]tandem.Token, 1025), 2000 }, tandem.Unsupported},
		{"large", whole(2), tandem.OK},
		{"another", whole(3), tandem.OK},
		{"memory", whole(4), tandem.Exhausted},
	} {
		o := good
		c.change(&o)
		if _, err := r.Open(ctx, o); tandem.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %v", c.name, err, c.kind)
		}
	}
	if err := errors.Join(r.CloseOwned(ctx, 7), r.CloseOwned(ctx, 0)); err != nil {
		t.Error(err)
	}
	if n := r.counters.Snapshot()["sessions.orphaned"]; n != 3 {
		t.Errorf("%d sessions closed with their owners: want 3, of owner 0 alone", n)
	}
	if err := r.Close(ctx, 1); err != nil {
		t.Errorf("closing an unknown session: %v", err)
	}
	if _, err := r.Propose(ctx, draftertest.Proposal(1, good.Tokens, 2)); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("after CloseOwned: %v", err)
	}
}

// TestTreesFitTheLimits asks for trees at the end of a session's room.
func TestTreesFitTheLimits(t *testing.T) {
	r := newRig(t, Config{TreeRows: 4})
	text := slices.Repeat(r.text, 20)[:draftertest.Limit-4]
	r.open(1, text)
	for n := draftertest.Limit - 4; n <= draftertest.Limit; n++ {
		text = append(text, 9)[:n]
		k := r.draft(draftertest.Proposal(1, text, min(n, len(text)-n+draftertest.Limit-4)))
		if _, depth := k.Tree.Depths(); depth > draftertest.Limit-n {
			t.Errorf("depth %d with %d tokens of %d", depth, n, draftertest.Limit)
		}
	}
	r.open(2, r.text)
	p := draftertest.Proposal(2, r.text, len(r.text))
	p.Bounds = tandem.Bounds{}
	if k := r.draft(p); k.Tree.Len() != 1 {
		t.Errorf("plain bounds gave %v", k.Tree)
	}
	p.Bounds = tandem.Bounds{Nodes: 1000, Depth: 60, Width: 1000}
	if k := r.draft(p); k.Tree.Len() > 64 {
		t.Errorf("%d nodes, 64 allowed", k.Tree.Len())
	}
}

// TestSessionsShareThePass drafts for several sessions at once, with prefill among them, and compares with
// each alone.
func TestSessionsShareThePass(t *testing.T) {
	r := newRig(t, Config{Chunk: 8})
	texts := make([][]tandem.Token, 4)
	want := make([]tandem.Tree, len(texts))
	for i := range texts {
		texts[i] = r.text[:len(r.text)-i]
		r.open(9, texts[i])
		want[i] = r.draft(draftertest.Proposal(9, texts[i], len(texts[i]))).Tree
	}
	var all sync.WaitGroup
	for i, text := range texts {
		all.Go(func() {
			id := tandem.SessionID(20 + i)
			if _, err := r.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: draftertest.Limit,
				MaxNodes: 64}); err != nil {
				t.Error(err)
			}
			if _, err := r.Propose(context.Background(), draftertest.Proposal(id, text, len(text))); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(r.pool.Tickets); n != len(texts) {
		t.Fatalf("%d tickets", n)
	}
	for range texts {
		k := r.pool.Take(t)
		if i := k.Session - 20; !reflect.DeepEqual(k.Tree, want[i]) {
			t.Errorf("session %d:\n got %v\nwant %v", i, k.Tree, want[i])
		}
	}
}

func TestFullPoolPauses(t *testing.T) {
	r := newRig(t, Config{})
	r.open(1, r.text)
	for range 8 {
		if err := r.pool.Put(context.Background(), tandem.Ticket{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := r.Propose(ctx, draftertest.Proposal(1, r.text, len(r.text))); !errors.Is(err, tandem.Deadline) {
		t.Errorf("pool stays full: %v, want Deadline", err)
	}
	paused := func(now, all int64) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%d paused now, %d in all", now, all), func() bool {
			n := r.counters.Snapshot()
			return n["pool.paused"] == now && n["pool.pauses"] == all && (now > 0 || n["pool.paused_us"] > 0)
		})
	}
	before := r.counters.Snapshot()["pool.pauses"] // 1, unless drafting alone took the 30 ms
	ended := make(chan error)
	go func() {
		_, err := r.Propose(context.Background(), draftertest.Proposal(1, r.text, len(r.text)))
		ended <- err
	}()
	paused(1, before+1)
	for range 8 {
		r.pool.Take(t)
	}
	if err := <-ended; err != nil {
		t.Errorf("pool has room again: %v", err)
	}
	paused(0, before+1)
	r.pool.Gone.Store(true)
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, r.text, len(r.text))); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("pool is closed: %v, want Unavailable", err)
	}
}

// TestPanicsEndOneSession makes the owner stumble over a session that is damaged on purpose.
func TestPanicsEndOneSession(t *testing.T) {
	r := newRig(t, Config{})
	r.open(1, r.text)
	r.open(2, r.text)
	r.draft(draftertest.Proposal(1, r.text, len(r.text)))
	r.sched.Post(func() { // claims to have run nodes that the cache does not hold
		s := r.session(1)
		s.explored.Start([]spec.Candidate{{Token: 5}}, maxWidth)
		s.explored.Add(0, 5, nil, 0)
		_ = s.seq.Truncate(s.seq.Len())
	})
	r.sched.Post(func() { panic("posted") })
	longer := append(slices.Clone(r.text), 5, 6)
	_, err := r.Propose(context.Background(), draftertest.Proposal(1, longer, len(r.text)))
	if !errors.Is(err, tandem.Internal) || !strings.Contains(err.Error(), "commit path") {
		t.Errorf("got %v, want Internal with the reason", err)
	}
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, longer, len(r.text))); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("the damaged session: %v, want UnknownSession", err)
	}
	r.draft(draftertest.Proposal(2, r.text, len(r.text)))
	r.open(1, longer)
	r.draft(draftertest.Proposal(1, longer, len(longer)))
	damaged := newJob(context.Background())
	r.sched.Post(func() {
		s := r.session(1)
		s.Tokens, s.job = nil, damaged
		r.sched.Queue(s, damaged.Call, time.Now(), 1)
	})
	if err := damaged.Wait(); !errors.Is(err, tandem.Internal) {
		t.Errorf("a pass that cannot be planned: %v, want Internal", err)
	}
	r.draft(draftertest.Proposal(2, append(slices.Clone(r.text), 8), len(r.text)))
	p := draftertest.Proposal(1, append(slices.Clone(longer), 9), len(longer))
	p.Epoch, p.Ahead = 1, true
	r.open(1, longer)
	r.draft(p)
	r.sched.Post(func() { // goes on ahead with nowhere to note it
		s := r.session(1)
		r.sched.Rest(s)
		s.ahead.left, s.ahead.trees = 50, nil
		r.sched.Spare(s)
		s.explored.Sent(tandem.Root(9), 0)
	})
	testkit.Eventually(t, "drafting ahead without notes is a fault", func() bool { return r.counters.Snapshot()["faults"] >= 4 })
	if _, err := r.Propose(context.Background(), p); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("after a fault ahead: %v, want UnknownSession", err)
	}
	r.draft(draftertest.Proposal(2, append(slices.Clone(r.text), 8), len(r.text)+1))
	if n := r.counters.Snapshot()["faults"]; n != 4 {
		t.Errorf("%d faults", n)
	}
}

func TestIdleSessionsAreDropped(t *testing.T) {
	r := newRig(t, Config{Idle: 20 * time.Millisecond})
	r.open(1, r.text)
	testkit.Eventually(t, "the session is dropped", func() bool { return r.counters.Snapshot()["sessions.idle"] > 0 })
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, r.text, len(r.text))); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("after the drop: %v", err)
	}
}

func TestShutdownEndsCalls(t *testing.T) {
	r := newRig(t, Config{Chunk: 1})
	ended := make(chan error)
	go func() {
		_, err := r.Open(context.Background(), tandem.Opening{Session: 1, Tokens: slices.Repeat(r.text, 20)[:draftertest.Limit],
			Limit:    draftertest.Limit,
			MaxNodes: 4})
		ended <- err
	}()
	testkit.Eventually(t, "it is opened", func() (begun bool) {
		return r.sched.Do(context.Background(), func() error { begun = r.session(1) != nil; return nil }) == nil && begun
	})
	if err := r.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil && !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Open during shutdown: %v, want Unavailable", err)
	}
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, r.text, 1)); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Propose after shutdown: %v, want Unavailable", err)
	}
}
