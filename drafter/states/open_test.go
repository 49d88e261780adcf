package states_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/drafter/states"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestStatesOpen: Open waits for a verifier that does not hold the session yet, and for features as long as some come; without them it goes
// on after its time, and at once if there is nobody to ask.
func TestStatesOpen(t *testing.T) {
	for _, name := range []string{"eagle", "dflash"} {
		t.Run(name, func(t *testing.T) { statesOpen(t, name) })
	}
}

func statesOpen(t *testing.T, name string) {
	const wait = 500 * time.Millisecond // longer than five calls and the pauses between them
	f := draftertest.NewStates(t, name, drafter.Config{FeatureWait: wait, Chunk: 4})
	text := draftertest.RandomTokens(rand.New(rand.NewPCG(9, 10)), 40)
	f.Oracle.Most = 3
	f.Oracle.Fails = func(_ context.Context, call int) error {
		switch {
		case call < 3:
			return tandem.Errorf("test", tandem.UnknownSession, "not yet")
		case call < 5:
			return tandem.Errorf("test", tandem.Stale, "of an older epoch")
		}
		return nil
	}
	f.BeginText(1, "", text, 38)
	if n := f.Counters.Snapshot(); n["features.came"] != 37 || n["features.missing"] != 0 || f.Oracle.Calls < 12 {
		t.Errorf("counted %v after %d calls: want all 37 features, in pieces", n, f.Oracle.Calls)
	}
	for kind, least := range map[tandem.Kind]time.Duration{tandem.UnknownSession: wait,
		tandem.Deadline: wait, tandem.Unsupported: 0} {
		f.Oracle.Fails = func(ctx context.Context, _ int) error {
			if kind == tandem.Deadline {
				<-ctx.Done()
			}
			return tandem.Errorf("test", kind, "no features")
		}
		before, begun := f.Counters.Snapshot()["features.missing"], time.Now()
		f.BeginText(2, kind.String(), text, 38)
		took := time.Since(begun)
		if missing := f.Counters.Snapshot()["features.missing"] - before; missing != 37 || took < least || took > least+20*time.Second {
			t.Errorf("%v: %d features missing after %v", kind, missing, took)
		}
		calls := f.Oracle.Calls
		if tree := f.Tree(2, 39, 38, 4); tree.Len() < 2 {
			t.Errorf("%v: tree %+v", kind, tree)
		}
		if asked := f.Oracle.Calls > calls; asked != (kind != tandem.Unsupported) {
			t.Errorf("%v: asked again: %v", kind, asked)
		}
	}
	f.Oracle.Fails = func(ctx context.Context, _ int) error {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := f.Open(ctx, tandem.Opening{Session: 3, Epoch: 1, Tokens: text, Limit: 64, MaxNodes: 64})
	if tandem.KindOf(err) != tandem.Deadline {
		t.Errorf("an Open whose caller gave up: %v", err)
	}
	f.Oracle.Fails = nil
	testkit.Eventually(t, "the two sessions that were opened are held", func() bool { return states.Open(f.Draft()) == 2 })
	f.BeginText(4, "", text, 1) // nothing to draft from
	if tree := f.Tree(4, 1, 1, 4); tree.Len() != 1 {
		t.Errorf("tree %+v below the first token", tree)
	}
	if tree := f.Tree(4, 2, 1, 4); tree.Len() < 2 {
		t.Errorf("tree %+v below the second token", tree)
	}
}

// TestStatesPromptWaits: a prompt is read when all its features have come, as the target reads it on the same processors. Of a longer one
// than is kept, parts are read as they come.
func TestStatesPromptWaits(t *testing.T) {
	f := draftertest.NewStates(t, "dovetail", drafter.Config{Chunk: 4})
	text := draftertest.RandomTokens(rand.New(rand.NewPCG(11, 12)), 40)
	f.Oracle.Most = 3
	for id, held := range []int{2048, 6} {
		states.Hold(f.Draft(), held)
		before, last := f.Counters.Snapshot()["passes"], int64(0)
		f.Oracle.Fails = func(context.Context, int) error {
			last = f.Counters.Snapshot()["passes"] - before
			return nil
		}
		f.BeginText(tandem.SessionID(id+1), "", text, 38)
		if all := f.Counters.Snapshot()["passes"] - before; all == 0 || (last > 0) != (held < 38) {
			t.Errorf("%d features are kept: %d passes of %d before the last features came", held, last, all)
		}
	}
}
