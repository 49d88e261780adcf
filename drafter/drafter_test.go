package drafter_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestKinds: what a draft's file holds decides what its sessions do.
func TestKinds(t *testing.T) {
	prompts := func(t *testing.T) *draftertest.Rig {
		side := draftertest.FromRoot("drafter/prompts/testdata/ppd.gguf")
		return draftertest.New(t, drafter.Config{Model: draftertest.OpenDraft(t, draftertest.ModelFile, side)})
	}
	for name, c := range map[string]struct {
		open               func(t *testing.T) *draftertest.Rig
		bound, reads, mute bool
	}{
		"tokens":  {open: func(t *testing.T) *draftertest.Rig { return draftertest.New(t, drafter.Config{}) }},
		"prompts": {open: prompts, bound: true},
		"states": {open: func(t *testing.T) *draftertest.Rig { return draftertest.NewStates(t, "eagle", drafter.Config{}).Rig },
			bound: true, reads: true},
		"blocks": {open: func(t *testing.T) *draftertest.Rig { return draftertest.NewStates(t, "dflash", drafter.Config{}).Rig },
			bound: true, reads: true, mute: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.open(t).Draft().Traits
			if (got.OwnTarget != "") != c.bound || (got.Skipped == 1) != c.reads || got.Whole != c.reads || (got.Gate != nil) != c.reads ||
				got.Mute != c.mute {
				t.Errorf("traits %+v", got)
			}
		})
	}
}

// TestTreesDependOnTheTextAlone drafts the same texts after different pasts: kept nodes, rollbacks,
// fresh sessions. The trees must be equal to the last bit of their log-probabilities.
func TestTreesDependOnTheTextAlone(t *testing.T) {
	for name, c := range map[string]struct {
		drafter.Config
		change func(*tandem.Proposal)
	}{
		"levels":       {},
		"best-first":   {change: func(p *tandem.Proposal) { p.Growth = tandem.GrowBest }},
		"pacer":        {change: func(p *tandem.Proposal) { p.Growth, p.Branch = tandem.GrowPacer, 0.1 }},
		"ahead":        {change: func(p *tandem.Proposal) { p.Ahead = true }},
		"pacer, ahead": {change: func(p *tandem.Proposal) { p.Growth, p.Stop, p.Ahead = tandem.GrowPacer, 0.05, true }},
		"few rows":     {drafter.Config{TreeRows: 20, Ahead: 100}, func(p *tandem.Proposal) { p.Ahead = true }},
		"short pieces": {drafter.Config{Chunk: 3}, nil},
	} {
		t.Run(name, func(t *testing.T) { treesDependOnTheTextAlone(t, draftertest.New(t, c.Config), c.change) })
	}
}

func treesDependOnTheTextAlone(t *testing.T, r *draftertest.Rig, change func(*tandem.Proposal)) {
	draft := func(id tandem.SessionID, text []tandem.Token, told int) tandem.Ticket {
		p := draftertest.Proposal(id, text, told)
		if change != nil {
			change(&p)
		}
		return r.Drafted(p)
	}
	text := slices.Clone(r.Text)
	r.Begin(1, text)
	told := len(text)
	for round := range 8 {
		got := draft(1, text, told)
		fresh := tandem.SessionID(100 + round)
		r.Begin(fresh, text)
		if want := draft(fresh, text, len(text)); !reflect.DeepEqual(got.Tree, want.Tree) {
			t.Fatalf("round %d:\n got %v\nwant %v", round, got.Tree, want.Tree)
		}
		if err := r.Close(context.Background(), fresh); err != nil {
			t.Fatal(err)
		}
		told = len(text)
		path := draftertest.Leaf(got.Tree)
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
	r := draftertest.New(t, drafter.Config{})
	r.Begin(1, r.Text)
	if n, _ := r.State(1); n != len(r.Text)-1 {
		t.Errorf("%d positions after Open with %d tokens", n, len(r.Text))
	}
	k := r.Drafted(draftertest.Proposal(1, r.Text, len(r.Text)))
	n, rows := r.State(1)
	if n != len(r.Text) || rows == 0 || rows > 60 {
		t.Errorf("%d positions and %d rows with a tree", n, rows)
	}
	text := append(append(slices.Clone(r.Text), draftertest.Leaf(k.Tree)...), 7)
	var kept int
	if err := r.Draft().Sched.Do(context.Background(), func() error {
		s := r.Draft().Session(1)
		err := s.Parts.Adopter.Adopt(draftertest.Proposal(1, text, len(r.Text)))
		kept = s.Cache.Len()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := len(text) - 2; kept < want-1 || kept > want { // the deepest node may not have been run
		t.Errorf("%d positions kept of a text of %d", kept, len(text))
	}
}

func TestProposeRefuses(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	r.Begin(1, r.Text)
	longer := append(slices.Clone(r.Text), 5, 6)
	r.Drafted(draftertest.Proposal(1, longer, len(r.Text)))
	for name, c := range map[string]struct {
		change func(*tandem.Proposal)
		kind   tandem.Kind
	}{
		"unknown session":  {func(p *tandem.Proposal) { p.Session = 2 }, tandem.UnknownSession},
		"old epoch":        {func(p *tandem.Proposal) { p.Epoch = 0 }, tandem.Stale},
		"new epoch":        {func(p *tandem.Proposal) { p.Epoch = 2 }, tandem.Stale},
		"hash":             {func(p *tandem.Proposal) { p.Hash++ }, tandem.Stale},
		"a gap":            {func(p *tandem.Proposal) { p.Base, p.From, p.Suffix = 100, 99, []tandem.Token{1} }, tandem.Stale},
		"merely behind":    {func(p *tandem.Proposal) { *p = draftertest.Proposal(1, r.Text, len(r.Text)-1) }, tandem.Stale},
		"base":             {func(p *tandem.Proposal) { p.Base++ }, tandem.Invalid},
		"nothing":          {func(p *tandem.Proposal) { *p = tandem.Proposal{Session: 1, Epoch: 1} }, tandem.Invalid},
		"negative":         {func(p *tandem.Proposal) { p.From, p.Base = -1, 1; p.Suffix = p.Suffix[:2] }, tandem.Invalid},
		"vocabulary":       {func(p *tandem.Proposal) { p.Suffix = []tandem.Token{4096, -1} }, tandem.Invalid},
		"above the limit":  {func(p *tandem.Proposal) { *p = draftertest.Proposal(1, slices.Repeat(longer, 20), 0) }, tandem.Invalid},
		"right, once more": {func(p *tandem.Proposal) {}, tandem.OK},
	} {
		p := draftertest.Proposal(1, longer, len(r.Text))
		c.change(&p)
		if _, err := r.Propose(context.Background(), p); tandem.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	r := draftertest.New(t, drafter.Config{Window: engine.Window{Last: 1024, Step: engine.PageTokens}}) // a text takes memory for all of it
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
	if n := r.Counters.Snapshot()["sessions.orphaned"]; n != 3 {
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
	r := draftertest.New(t, drafter.Config{TreeRows: 4})
	text := slices.Repeat(r.Text, 20)[:draftertest.Limit-4]
	r.Begin(1, text)
	for n := draftertest.Limit - 4; n <= draftertest.Limit; n++ {
		text = append(text, 9)[:n]
		k := r.Drafted(draftertest.Proposal(1, text, min(n, len(text)-n+draftertest.Limit-4)))
		if _, depth := k.Tree.Depths(); depth > draftertest.Limit-n {
			t.Errorf("depth %d with %d tokens of %d", depth, n, draftertest.Limit)
		}
	}
	r.Begin(2, r.Text)
	p := draftertest.Proposal(2, r.Text, len(r.Text))
	p.Bounds = tandem.Bounds{}
	if k := r.Drafted(p); k.Tree.Len() != 1 {
		t.Errorf("plain bounds gave %v", k.Tree)
	}
	p.Bounds = tandem.Bounds{Nodes: 1000, Depth: 60, Width: 1000}
	if k := r.Drafted(p); k.Tree.Len() > 64 {
		t.Errorf("%d nodes, 64 allowed", k.Tree.Len())
	}
}

// TestSessionsShareThePass drafts for several sessions at once, with prefill among them, and compares with
// each alone.
func TestSessionsShareThePass(t *testing.T) {
	r := draftertest.New(t, drafter.Config{Chunk: 8})
	texts := make([][]tandem.Token, 4)
	want := make([]tandem.Tree, len(texts))
	for i := range texts {
		texts[i] = r.Text[:len(r.Text)-i]
		r.Begin(9, texts[i])
		want[i] = r.Drafted(draftertest.Proposal(9, texts[i], len(texts[i]))).Tree
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
	if n := len(r.Pool.Tickets); n != len(texts) {
		t.Fatalf("%d tickets", n)
	}
	for range texts {
		k := r.Pool.Take(t)
		if i := k.Session - 20; !reflect.DeepEqual(k.Tree, want[i]) {
			t.Errorf("session %d:\n got %v\nwant %v", i, k.Tree, want[i])
		}
	}
}

func TestFullPoolPauses(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	r.Begin(1, r.Text)
	for range 8 {
		if err := r.Pool.Put(context.Background(), tandem.Ticket{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := r.Propose(ctx, draftertest.Proposal(1, r.Text, len(r.Text))); !errors.Is(err, tandem.Deadline) {
		t.Errorf("pool stays full: %v, want Deadline", err)
	}
	paused := func(now, all int64) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("%d paused now, %d in all", now, all), func() bool {
			n := r.Counters.Snapshot()
			return n["pool.paused"] == now && n["pool.pauses"] == all && (now > 0 || n["pool.paused_us"] > 0)
		})
	}
	before := r.Counters.Snapshot()["pool.pauses"] // 1, unless drafting alone took the 30 ms
	ended := make(chan error)
	go func() {
		_, err := r.Propose(context.Background(), draftertest.Proposal(1, r.Text, len(r.Text)))
		ended <- err
	}()
	paused(1, before+1)
	for range 8 {
		r.Pool.Take(t)
	}
	if err := <-ended; err != nil {
		t.Errorf("pool has room again: %v", err)
	}
	paused(0, before+1)
	r.Pool.Gone.Store(true)
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, r.Text, len(r.Text))); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("pool is closed: %v, want Unavailable", err)
	}
}

func TestIdleSessionsAreDropped(t *testing.T) {
	r := draftertest.New(t, drafter.Config{Idle: 20 * time.Millisecond})
	r.Begin(1, r.Text)
	testkit.Eventually(t, "the session is dropped", func() bool { return r.Counters.Snapshot()["sessions.idle"] > 0 })
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, r.Text, len(r.Text))); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("after the drop: %v", err)
	}
}

func TestShutdownEndsCalls(t *testing.T) {
	r := draftertest.New(t, drafter.Config{Chunk: 1})
	ended := make(chan error)
	go func() {
		_, err := r.Open(context.Background(), tandem.Opening{Session: 1, Tokens: slices.Repeat(r.Text, 20)[:draftertest.Limit],
			Limit:    draftertest.Limit,
			MaxNodes: 4})
		ended <- err
	}()
	testkit.Eventually(t, "it is opened", func() (begun bool) {
		return r.Draft().Sched.Do(context.Background(), func() error { begun = r.Draft().Session(1) != nil; return nil }) == nil && begun
	})
	if err := r.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil && !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Open during shutdown: %v, want Unavailable", err)
	}
	if _, err := r.Propose(context.Background(), draftertest.Proposal(1, r.Text, 1)); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Propose after shutdown: %v, want Unavailable", err)
	}
}
