package drafter

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
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
	f := newStatesRig(t, name, Config{FeatureWait: wait, Chunk: 4})
	text := randomText(rand.New(rand.NewPCG(9, 10)), 40)
	f.oracle.most = 3
	f.oracle.fails = func(_ context.Context, call int) error {
		switch {
		case call < 3:
			return tandem.Errorf("test", tandem.UnknownSession, "not yet")
		case call < 5:
			return tandem.Errorf("test", tandem.Stale, "of an older epoch")
		}
		return nil
	}
	f.begin(1, "", text, 38)
	if n := f.counters.Snapshot(); n["features.came"] != 37 || n["features.missing"] != 0 || f.oracle.calls < 12 {
		t.Errorf("counted %v after %d calls: want all 37 features, in pieces", n, f.oracle.calls)
	}
	for kind, least := range map[tandem.Kind]time.Duration{tandem.UnknownSession: wait,
		tandem.Deadline: wait, tandem.Unsupported: 0} {
		f.oracle.fails = func(ctx context.Context, _ int) error {
			if kind == tandem.Deadline {
				<-ctx.Done()
			}
			return tandem.Errorf("test", kind, "no features")
		}
		before, begun := f.counters.Snapshot()["features.missing"], time.Now()
		f.begin(2, kind.String(), text, 38)
		took := time.Since(begun)
		if missing := f.counters.Snapshot()["features.missing"] - before; missing != 37 || took < least || took > least+20*time.Second {
			t.Errorf("%v: %d features missing after %v", kind, missing, took)
		}
		calls := f.oracle.calls
		if tree := f.tree(2, 39, 38, 4); tree.Len() < 2 {
			t.Errorf("%v: tree %+v", kind, tree)
		}
		if asked := f.oracle.calls > calls; asked != (kind != tandem.Unsupported) {
			t.Errorf("%v: asked again: %v", kind, asked)
		}
	}
	f.oracle.fails = func(ctx context.Context, _ int) error {
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := f.Open(ctx, tandem.Opening{Session: 3, Epoch: 1, Tokens: text, Limit: 64, MaxNodes: 64})
	if tandem.KindOf(err) != tandem.Deadline {
		t.Errorf("an Open whose caller gave up: %v", err)
	}
	f.oracle.fails = nil
	testkit.Eventually(t, "the two sessions that were opened are held", func() bool { return f.sessions() == 2 })
	f.begin(4, "", text, 1) // nothing to draft from
	if tree := f.tree(4, 1, 1, 4); tree.Len() != 1 {
		t.Errorf("tree %+v below the first token", tree)
	}
	if tree := f.tree(4, 2, 1, 4); tree.Len() < 2 {
		t.Errorf("tree %+v below the second token", tree)
	}
}

// TestStatesPromptWaits: a prompt is read when all its features have come, as the target reads it on the same processors. Of a longer one
// than is kept, parts are read as they come.
func TestStatesPromptWaits(t *testing.T) {
	f := newStatesRig(t, "dovetail", Config{Chunk: 4})
	text := randomText(rand.New(rand.NewPCG(11, 12)), 40)
	f.oracle.most = 3
	for id, held := range []int{2048, 6} {
		f.held = held
		before, last := f.counters.Snapshot()["passes"], int64(0)
		f.oracle.fails = func(context.Context, int) error {
			last = f.counters.Snapshot()["passes"] - before
			return nil
		}
		f.begin(tandem.SessionID(id+1), "", text, 38)
		if all := f.counters.Snapshot()["passes"] - before; all == 0 || (last > 0) != (held < 38) {
			t.Errorf("%d features are kept: %d passes of %d before the last features came", held, last, all)
		}
	}
}
