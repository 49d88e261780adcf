package grow_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
)

// begin returns n tokens that are the same for the same number.
func begin(number uint64, n int) []tandem.Token {
	rng := rand.New(rand.NewPCG(number, 0))
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		tokens[i] = tandem.Token(3 + rng.IntN(4000))
	}
	return tokens
}

func openOf(r *draftertest.Rig, tenant string, id tandem.SessionID, text []tandem.Token) tandem.Opened {
	r.T.Helper()
	opened, err := r.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tenant: tenant, Tokens: text,
		Limit:    draftertest.Limit,
		MaxNodes: 64})
	if err != nil {
		r.T.Fatal(err)
	}
	return opened
}

// TestSharedPrefixes: sessions that begin alike are opened at once, one after the other, and again; each drafts the trees
// that a drafter drafts which shares nothing.
func TestSharedPrefixes(t *testing.T) {
	r := draftertest.New(t, drafter.Config{Chunk: 40})
	alone := draftertest.Twin(t, drafter.Config{PrefixCache: -1})
	system := begin(1, 100)
	text := func(i int) []tandem.Token { return append(slices.Clone(system), begin(uint64(2+i), 20)...) }
	same := func(id tandem.SessionID, text []tandem.Token) {
		t.Helper()
		openOf(alone, "", id, text)
		for n := range 3 { // the second tree contradicts what was explored, the third may follow it
			told := len(text)
			if n > 0 {
				text = append(slices.Clone(text), tandem.Token(100*n))
			}
			p := draftertest.Proposal(id, text, told)
			if got, want := r.Drafted(p), alone.Drafted(p); !reflect.DeepEqual(got.Tree, want.Tree) {
				t.Errorf("session %v, tree %d: %v, sharing nothing %v", id, n, got.Tree, want.Tree)
			}
		}
	}
	var all sync.WaitGroup
	found := make([]int, 4)
	for i := range found {
		all.Go(func() { found[i] = openOf(r, "a", tandem.SessionID(i+1), text(i)).Reused })
	}
	all.Wait()
	slices.Sort(found)
	if !slices.Equal(found, []int{0, 64, 64, 64}) {
		t.Errorf("of sessions opened at once each found %v tokens: want the first page by all but one", found)
	}
	for i := range found {
		same(tandem.SessionID(i+1), text(i))
	}
	if got := openOf(r, "b", 9, text(0)).Reused; got != 0 {
		t.Errorf("another tenant found %d tokens", got)
	}
	for id := range tandem.SessionID(10) {
		_, _ = r.Close(context.Background(), id), alone.Close(context.Background(), id)
	}
	longer := append(text(2), 100, 200, 300) // with the tokens of two rounds
	if got := openOf(r, "a", 7, longer).Reused; got < len(longer)-2 {
		t.Errorf("a second turn of %d tokens found %d", len(longer), got)
	}
	same(7, longer)
	if free, m := r.Draft().Config.Model.FreePages(), r.Draft().Config.Model; r.Close(context.Background(), 7) != nil ||
		m.FreePages() <= free {
		t.Errorf("%d pages free with a session open, %d without", free, m.FreePages())
	}
	if m := r.Draft().Config.Model; m.FreePages() != m.Pages() || m.Prefixes().Kept() == 0 {
		t.Errorf("%d of %d pages free, %d kept", m.FreePages(), m.Pages(), m.Prefixes().Kept())
	}
}

// TestRolledBackUnderOthers: a proposal that contradicts tokens which another session shares gets memory of its own, or an error if there
// is none; the other does not notice.
func TestRolledBackUnderOthers(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	alone := draftertest.Twin(t, drafter.Config{PrefixCache: -1})
	text := begin(1, 140)
	for id := range tandem.SessionID(6) {
		openOf(r, "", id+1, text)
	}
	openOf(alone, "", 1, text)
	other := append(slices.Clone(text[:30]), begin(7, 111)...)
	shared := r.Draft().Config.Model.FreePages()
	p := draftertest.Proposal(1, other, 30)
	alone.Drafted(p)
	r.Drafted(p)
	if now := r.Draft().Config.Model.FreePages(); now != shared-3 {
		t.Errorf("%d pages were free, now %d: want two fewer, and one of the tree's", shared, now)
	}
	for id := range tandem.SessionID(6) { // the first goes on after a text of its own, the others after the one they share
		now := text
		if id == 0 {
			now = other
		}
		openOf(alone, "", id+1, now)
		p := draftertest.Proposal(id+1, append(slices.Clone(now), 50), len(now))
		if got, want := r.Drafted(p), alone.Drafted(p); !reflect.DeepEqual(got.Tree, want.Tree) {
			t.Errorf("session %v: %v, sharing nothing %v", id+1, got.Tree, want.Tree)
		}
	}
	var err error
	for id := tandem.SessionID(7); err == nil; id++ { // until nothing is left
		_, err = r.Open(context.Background(), tandem.Opening{Session: id, Tokens: begin(uint64(id), 5), Limit: draftertest.Limit,
			MaxNodes: 64})
	}
	_, err = r.Propose(context.Background(), draftertest.Proposal(2, append(slices.Clone(text[:30]), begin(8, 112)...), 30))
	if free := r.Draft().Config.Model.FreePages(); !errors.Is(err, tandem.Exhausted) || free != 2 {
		t.Errorf("with no page free: %v, then %d free: want Exhausted and those of the session that is dropped", err, free)
	}
	same := draftertest.Proposal(3, append(slices.Clone(text), 50, 60), len(text)+1)
	if got, want := r.Drafted(same), alone.Drafted(same); !reflect.DeepEqual(got.Tree, want.Tree) {
		t.Errorf("after another's rollback: %v, sharing nothing %v", got.Tree, want.Tree)
	}
}

// TestFaultIsNotKept: nobody finds what a session computed that was dropped after a fault.
func TestFaultIsNotKept(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	text := begin(1, 100)
	openOf(r, "", 1, text)
	err := r.Draft().Sched.Do(context.Background(), func() error {
		r.Draft().Sched.Fail(r.Draft().Session(1), tandem.Errorf("test", tandem.Internal, "a pass failed"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := openOf(r, "", 1, text).Reused; got != 0 || r.Draft().Config.Model.Prefixes().Kept() != 0 {
		t.Errorf("%d tokens found, %d pages kept: want none", got, r.Draft().Config.Model.Prefixes().Kept())
	}
	if err := r.Close(context.Background(), 1); err != nil {
		t.Error(err)
	}
	if got := openOf(r, "", 1, text).Reused; got != 99 {
		t.Errorf("%d tokens found of what went well: want 99", got)
	}
}
