package states_test

import (
	"context"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/drafter/states"
	"github.com/tandem-llm/tandem/test/testkit"
)

// aheadKinds are the kinds of drafts that read states.
var aheadKinds = append(slices.Clone(sideNames), "mtp")

// ahead proposes the tree below the first n tokens of a session's text, of which told are known, and lets the session draft ahead.
func ahead(f *draftertest.States, id tandem.SessionID, n, told int) tandem.Proposed {
	f.T.Helper()
	p := draftertest.Proposal(id, f.Oracle.Texts[id][:n], told)
	p.Bounds, p.Ahead, p.Return = tandem.Bounds{Nodes: 12, Depth: 3, Width: 2}, true, true
	done, err := f.Propose(context.Background(), p)
	if err != nil {
		f.T.Fatal(err)
	}
	return done
}

// rest waits until the drafter has nothing more to do ahead and all features that were asked for have come.
func rest(f *draftertest.States) {
	f.T.Helper()
	testkit.Eventually(f.T, "it goes on ahead no more", func() (idle bool) {
		states.Came(f.Draft())
		f.Do(func() { idle = f.Draft().Sched.Load().Spare == 0 })
		return idle
	})
}

// outcome returns the tokens that lead to the likeliest tree that a session has ready; nil: there is none.
func outcome(f *draftertest.States, id tandem.SessionID) (tokens []tandem.Token) {
	f.T.Helper()
	f.Do(func() {
		s := f.Draft().Session(id)
		nodes, chances := s.Explored.Outcomes(0)
		best := float32(math.Inf(-1))
		for i, node := range nodes {
			if chances[i] <= best || !s.Lookahead.Ready(node, s.Room()) {
				continue
			}
			best, tokens = chances[i], path(s, node)
		}
	})
	return tokens
}

// path returns the tokens of the explored nodes on the way to one.
func path(s *grow.Session, node int32) (tokens []tandem.Token) {
	var walk func(at int32, so []tandem.Token) bool
	walk = func(at int32, so []tandem.Token) bool {
		if at == node {
			tokens = so
			return true
		}
		for _, c := range s.Explored.Candidates(at) {
			if child := s.Explored.Child(at, c.Token); child > 0 && walk(child, append(slices.Clone(so), c.Token)) {
				return true
			}
		}
		return false
	}
	walk(0, nil)
	return tokens
}

// TestStatesAhead: when the verdict leads to a tree that was drafted ahead, this tree is sent without a pass, before the target's states
// have come. They replace the draft's own while the target verifies: a later tree is that of a session that was never ahead.
func TestStatesAhead(t *testing.T) {
	for _, kind := range aheadKinds {
		t.Run(kind, func(t *testing.T) {
			f := draftertest.NewStates(t, kind, drafter.Config{PrefixCache: -1})
			random := rand.New(rand.NewPCG(1, 5))
			hits := int64(0)
			for id := tandem.SessionID(1); id < 12; id += 2 {
				text := f.RandomText(random, 60)
				n := 6
				f.BeginText(id, "", text, n)
				ahead(f, id, n, n)
				told := n
				for range 5 {
					rest(f)
					next := outcome(f, id)
					if len(next) == 0 || n+len(next) > 50 {
						break
					}
					copy(text[n:], next)
					n += len(next)
					done := ahead(f, id, n, told)
					if done.Passes != 0 || done.Reused != done.Nodes-1 || done.Nodes < 2 {
						t.Fatalf("%+v: want a tree without a pass", done)
					}
					told, hits = n, hits+1
				}
				rest(f)
				f.Do(func() {
					s := f.Draft().Session(id)
					if s.Cache.Len() != states.Sure(f.Draft(), id) { // what was computed from own states is gone
						t.Errorf("%d of %d rows are final", states.Sure(f.Draft(), id), s.Cache.Len())
					}
					for s.Explored.Child(0, text[n]) >= 0 {
						text[n]-- // to one that was not foreseen
					}
				})
				got := f.Tree(id, n+1, told, 4)
				f.BeginText(id+1, "", text, n+1)
				if want := f.Tree(id+1, n+1, n+1, 4); !reflect.DeepEqual(got, want) {
					t.Errorf("after %d hits\ngot  %+v\nwant %+v", hits, got, want)
				}
				_, _ = f.Close(t.Context(), id), f.Close(t.Context(), id+1)
			}
			n := f.Counters.Snapshot()
			if hits < 5 || n["ahead.hits"] < hits || n["faults"] > 0 || n["features.late"] > 0 {
				t.Errorf("%d hits, counted %v", hits, n)
			}
		})
	}
}

// TestStatesAheadRandom: whatever the verdicts are, late features, lost tickets, callers that give up and sessions that end while the
// drafter is ahead among them: a tree for which passes were run, once all features are there, is that of a session that was never ahead.
func TestStatesAheadRandom(t *testing.T) {
	for _, kind := range aheadKinds {
		t.Run(kind, func(t *testing.T) {
			f := draftertest.NewStates(t, kind, drafter.Config{PrefixCache: -1, TreeRows: 40, Ahead: 30})
			random, judged := rand.New(rand.NewPCG(2, 9)), 0
			for id := tandem.SessionID(1); id < 24; id += 2 {
				text := f.RandomText(random, 60)
				n := 1 + random.IntN(9)
				f.Oracle.Late(false)
				f.BeginText(id, "", text, n)
				for told := n; n < 48; {
					late := random.IntN(4) == 0
					f.Oracle.Late(late)
					if random.IntN(5) == 0 {
						ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(500))*time.Microsecond)
						p := draftertest.Proposal(id, text[:n], told)
						p.Bounds, p.Ahead, p.Return = tandem.Bounds{Nodes: 12, Depth: 3, Width: 2}, true, true
						if _, err := f.Propose(ctx, p); err == nil {
							told = n
						} else if k := tandem.KindOf(err); k != tandem.Deadline && k != tandem.Canceled {
							t.Fatal(err)
						}
						cancel()
					}
					done := ahead(f, id, n, told)
					told = n
					if final := final(f, id, n); final && done.Passes > 0 {
						f.Oracle.Late(false)
						f.BeginText(id+1, "", text, n)
						p := draftertest.Proposal(id+1, text[:n], n)
						p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 3, Width: 2}, true
						want, err := f.Propose(t.Context(), p)
						if err != nil || !reflect.DeepEqual(done.Tree, want.Tree) {
							t.Fatalf("session %d at %d tokens\ngot  %+v\nwant %+v, %v", id, n, done.Tree, want.Tree, err)
						}
						judged++
					}
					if random.IntN(3) == 0 {
						for range random.IntN(8) { // passes that it may go ahead
							f.Do(func() {})
						}
					} else {
						rest(f)
					}
					if next := outcome(f, id); len(next) > 0 && n+len(next) < 48 && random.IntN(3) > 0 {
						n += copy(text[n:], next)
						continue
					}
					n += 1 + random.IntN(2)
				}
				_, _ = f.Close(t.Context(), id), f.Close(t.Context(), id+1) // ahead, at times
			}
			n := f.Counters.Snapshot()
			if judged < 20 || n["ahead.hits"] < 20 || n["ahead.misses"] < 20 || n["faults"] > 0 || n["features.late"] == 0 {
				t.Errorf("%d trees judged, counted %v", judged, n)
			}
		})
	}
}

// final reports whether the rows of a session's first n tokens were computed with the target's states.
func final(f *draftertest.States, id tandem.SessionID, n int) (is bool) {
	f.T.Helper()
	f.Do(func() { is = states.Sure(f.Draft(), id) == n-1 })
	return is
}

// TestStatesAheadIsOff: nothing is drafted ahead where drafter and verifier share cores, and where the proposal does not want it.
func TestStatesAheadIsOff(t *testing.T) {
	for name, c := range map[string]struct {
		gain float64
		want bool
	}{"processors of their own": {0.1, true}, "shared cores": {0.7, false}} {
		t.Run(name, func(t *testing.T) {
			f := draftertest.NewStates(t, "eagle", drafter.Config{AheadGain: c.gain})
			text := f.RandomText(rand.New(rand.NewPCG(4, 4)), 40)
			f.BeginText(1, "", text, 10)
			told := 10
			for n := 10; n < 20; n++ {
				ahead(f, 1, n, told)
				told = n
				rest(f)
			}
			if n := f.Counters.Snapshot(); n["ahead.nodes"] > 0 != c.want {
				t.Errorf("%d nodes ahead", n["ahead.nodes"])
			}
			p := draftertest.Proposal(1, text[:20], told)
			p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 3, Width: 2}, true
			_, err := f.Propose(t.Context(), p)
			before := f.Counters.Snapshot()["ahead.nodes"]
			if rest(f); err != nil || f.Counters.Snapshot()["ahead.nodes"] != before {
				t.Errorf("ahead although the proposal does not want it, %v", err)
			}
		})
	}
}

// TestStatesAheadAreKept: a later session of the tenant finds what one that was ahead has computed, but nothing of its own states.
func TestStatesAheadAreKept(t *testing.T) {
	f := draftertest.NewStates(t, "eagle3", drafter.Config{})
	text := f.RandomText(rand.New(rand.NewPCG(6, 6)), 60)
	n := 24
	f.BeginText(1, "t", text, n)
	ahead(f, 1, n, n)
	for hits := 0; hits < 6; hits++ {
		rest(f)
		next, told := outcome(f, 1), n
		if len(next) == 0 {
			t.Fatal("nothing was prepared")
		}
		n += copy(text[n:], next)
		if hits == 5 {
			f.Oracle.Late(true) // the last rows stay those of own states
		}
		ahead(f, 1, n, told)
	}
	rest(f)
	if final(f, 1, n) {
		t.Error("rows are final although the features did not come")
	}
	f.Oracle.Late(false)
	_ = f.Close(t.Context(), 1)
	f.BeginText(2, "t", text, n+1)
	f.BeginText(3, "u", text, n+1)
	if got, want := f.Tree(2, n+1, n+1, 4), f.Tree(3, n+1, n+1, 4); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if found := f.Counters.Snapshot()["prefix.reused_tokens"]; found < 20 {
		t.Errorf("%d tokens were found: want what was computed before the last hit", found)
	}
}
