package drafter_test

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

var chainedKinds = []string{"tokens", "dovetail", "dovetail-bare", "eagle", "eagle3", "qwen35-mtp", "mtp"}

// rounds drafts chains and trees for two sessions, as a text goes on along them, and returns all of them; each is told of the chains.
func rounds(f *draftertest.States, each func(p tandem.Proposal, done tandem.Proposed)) (all []tandem.Tree) {
	f.T.Helper()
	random := rand.New(rand.NewPCG(7, 9))
	for id := range tandem.SessionID(2) {
		text, n := draftertest.RandomTokens(random, 60), 8
		f.BeginText(id+1, "", text, n)
		for told := n; n < 50; {
			p := draftertest.Proposal(id+1, text[:n], told)
			p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 1 + random.IntN(8), Width: 1 + random.IntN(2)*3*random.IntN(2)}, true
			if random.IntN(4) == 0 {
				p.Bounds.Nodes = 4
			}
			done, err := f.Propose(context.Background(), p)
			if err != nil {
				f.T.Fatal(err)
			}
			if all = append(all, done.Tree); each != nil {
				each(p, done)
			}
			told = n
			for at := int32(0); n < 50; n++ { // the target goes some way down the tree, and draws one more token
				i := slices.Index(done.Tree.Parents, at)
				if at = int32(i); i < 0 || random.IntN(4) == 0 {
					break
				}
				text[n] = done.Tree.Tokens[i]
			}
			n++
		}
	}
	return all
}

// TestChainsAreTheSameTrees: a draft whose device runs chains gives the trees of one that goes step by step, with the same probabilities.
// A tree that is one chain takes one pass, which is one graph and one wait.
func TestChainsAreTheSameTrees(t *testing.T) {
	for _, name := range chainedKinds {
		want := rounds(draftertest.NewStates(t, name, drafter.Config{}), nil)
		gpu, driver := testdevice.GPU(t, emulated.Options{})
		f := draftertest.NewStatesOn(t, name, gpu, drafter.Config{})
		if !f.Model.Chains() {
			t.Errorf("%s: no chains", name)
		}
		var calls emulated.Calls
		chains, rows := int64(0), int64(0)
		got := rounds(f, func(p tandem.Proposal, done tandem.Proposed) {
			if driver == nil { // a real GPU does not tell
				return
			}
			if now := driver.Calls(); p.Bounds.Width == 1 && !p.Bounds.Plain() && done.Nodes > 2 {
				chains, rows = chains+1, rows+int64(done.Nodes-1)
				calls.Graphs, calls.Waits, calls.Writes = calls.Graphs+now.Graphs, calls.Waits+now.Waits, calls.Writes+now.Writes
			}
		})
		if len(got) != len(want) {
			t.Fatalf("%s: %d trees, want %d", name, len(got), len(want))
		}
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("%s: tree %d\ngot  %+v\nwant %+v", name, i, got[i], want[i])
			}
		}
		t.Logf("%s: %d chains of %.1f tokens: %d waits, %d graphs, %d uploads", name, chains, float64(rows)/float64(max(chains, 1)),
			calls.Waits, calls.Graphs, calls.Writes)
		if driver != nil && (chains == 0 || 10*calls.Waits > 11*chains) {
			t.Errorf("%s: %d waits for %d chains: want about one each", name, calls.Waits, chains)
		}
	}
}

// TestLostInAChain: a device that is lost in the middle of a chain fails the draft once, as a device that goes step by step does: with the
// same kind of error, and the session is gone.
func TestLostInAChain(t *testing.T) {
	for _, width := range []int{1, 3} {
		gpu, driver := testdevice.GPU(t, emulated.Options{})
		if driver == nil {
			t.Skip("a real GPU is not lost on demand")
		}
		f := draftertest.NewStatesOn(t, "eagle", gpu, drafter.Config{})
		text := draftertest.RandomTokens(rand.New(rand.NewPCG(1, 1)), 20)
		f.BeginText(1, "", text, 10)
		driver.FailLaunch(40)
		p := draftertest.Proposal(1, text[:10], 10)
		p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 6, Width: width}, true
		if _, err := f.Propose(t.Context(), p); tandem.KindOf(err) != tandem.Unavailable || gpu.Lost() == nil {
			t.Errorf("width %d: %v, lost: %v; want kind unavailable", width, err, gpu.Lost())
		}
		if _, err := f.Propose(t.Context(), p); tandem.KindOf(err) != tandem.UnknownSession {
			t.Errorf("width %d: another proposal: %v, want kind unknown session", width, err)
		}
		if n := f.Counters.Snapshot(); n["drafts.unavailable"] != 1 {
			t.Errorf("width %d: counted %v", width, n)
		}
	}
}

// leaving is a context that ends while the drafter works for it: after it has been asked for its error so many times.
type leaving struct {
	context.Context
	left atomic.Int32
	done chan struct{}
}

func (c *leaving) Done() <-chan struct{} { return c.done }

func (c *leaving) Err() error {
	switch left := c.left.Add(-1); {
	case left > 0:
		return nil
	case left == 0:
		close(c.done)
	}
	return context.Canceled
}

// TestCancelInAChain: whenever a caller gives up, before, in or behind a chain, the cache stays consistent, and the next proposal gets the
// tree that it would have got.
func TestCancelInAChain(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	for _, name := range []string{"tokens", "eagle3"} {
		f := draftertest.NewStatesOn(t, name, gpu, drafter.Config{})
		text := draftertest.RandomTokens(rand.New(rand.NewPCG(2, 3)), 40)
		canceled := 0
		for left := range int32(8) {
			id := tandem.SessionID(2*left + 1)
			propose := func(ctx context.Context, id tandem.SessionID, n, told int) (tandem.Tree, error) {
				p := draftertest.Proposal(id, text[:n], told)
				p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 6, Width: 1}, true
				done, err := f.Propose(ctx, p)
				return done.Tree, err
			}
			f.BeginText(id, "", text, 10)
			f.BeginText(id+1, "", text, 10)
			ctx := &leaving{Context: t.Context(), done: make(chan struct{})}
			ctx.left.Store(left + 1)
			if _, err := propose(ctx, id, 14, 10); err != nil {
				canceled++
			}
			f.Do(func() {
				s := f.Draft().Session(id)
				if s == nil {
					return
				}
				if err := s.Cache.Consistent(); err != nil {
					t.Errorf("%s: given up after %d questions: %v", name, left, err)
				}
			})
			for _, n := range []int{14, 17} {
				want, err := propose(t.Context(), id+1, n, map[int]int{14: 10, 17: 14}[n])
				if err != nil {
					t.Fatal(err)
				}
				if got, err := propose(t.Context(), id, n, 10); err != nil || !reflect.DeepEqual(got, want) {
					t.Fatalf("%s: given up after %d questions, then %d tokens: %v\ngot  %+v\nwant %+v", name, left, n, err, got, want)
				}
			}
			for range 2 {
				_ = f.Close(t.Context(), id)
				id++
			}
		}
		if canceled == 0 {
			t.Errorf("%s: nothing was given up", name)
		}
	}
}

// TestPlannedChain: with a plan a chain is as long as it is expected to pay: while nothing is known of the draft, of which every second
// guess is then taken to be right, not at all where a round takes no time, and to its end where it takes an hour.
func TestPlannedChain(t *testing.T) {
	for verify, want := range map[time.Duration]int{time.Nanosecond: 1, time.Hour: 6} {
		gpu, _ := testdevice.GPU(t, emulated.Options{})
		f := draftertest.NewStatesOn(t, "dovetail", gpu, drafter.Config{})
		text := draftertest.RandomTokens(rand.New(rand.NewPCG(1, 1)), 20)
		f.BeginText(1, "", text, 10)
		p := draftertest.Proposal(1, text[:10], 10)
		p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 6, Width: 1}, true
		p.Plan.Verify = slices.Repeat([]time.Duration{verify}, 32)
		if done, err := f.Propose(t.Context(), p); err != nil || done.Passes != want {
			t.Errorf("rounds of %v: %d passes, %v; want %d", verify, done.Passes, err, want)
		}
	}
}
