package drafter

import (
	"context"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// aheadKinds are the kinds of drafts that read states.
var aheadKinds = append(slices.Clone(sideNames), "mtp")

// always lets sessions draft ahead without asking whether it pays.
func (f *statesRig) always() {
	f.t.Helper()
	f.do(func() { f.pays = pays{ahead: true, hits: 1, left: math.MaxInt} })
}

// do runs fn where sessions belong.
func (f *statesRig) do(fn func()) {
	f.t.Helper()
	if err := f.sched.Do(context.Background(), func() error { fn(); return nil }); err != nil {
		f.t.Fatal(err)
	}
}

// ahead proposes the tree below the first n tokens of a session's text, of which told are known, and lets the session draft ahead.
func (f *statesRig) ahead(id tandem.SessionID, n, told int) tandem.Proposed {
	f.t.Helper()
	p := proposal(id, f.oracle.texts[id][:n], told)
	p.Bounds, p.Ahead, p.Return = tandem.Bounds{Nodes: 12, Depth: 3, Width: 2}, true, true
	done, err := f.Propose(context.Background(), p)
	if err != nil {
		f.t.Fatal(err)
	}
	return done
}

// rest waits until the drafter has nothing more to do ahead and all features that were asked for have come.
func (f *statesRig) rest() {
	f.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		f.aside.running.Wait()
		idle := false
		if f.do(func() { idle = f.sched.Load().Spare == 0 }); idle {
			return
		}
		if time.Now().After(end) {
			f.t.Fatal("still going on ahead")
		}
	}
}

// outcome returns the tokens that lead to the likeliest tree that a session has ready; nil: there is none.
func (f *statesRig) outcome(id tandem.SessionID) (tokens []tandem.Token) {
	f.t.Helper()
	f.do(func() {
		s := f.session(id)
		nodes, chances := s.explored.Outcomes(0)
		best := float32(math.Inf(-1))
		for i, node := range nodes {
			if g := s.ahead.trees[node]; g == nil || g.tree != nil || chances[i] <= best {
				continue
			}
			best, tokens = chances[i], f.path(s, node)
		}
	})
	return tokens
}

// path returns the tokens of the explored nodes on the way to one.
func (f *statesRig) path(s *session, node int32) (tokens []tandem.Token) {
	var walk func(at int32, so []tandem.Token) bool
	walk = func(at int32, so []tandem.Token) bool {
		if at == node {
			tokens = so
			return true
		}
		for _, c := range s.explored.Candidates(at) {
			if child := s.explored.Child(at, c.Token); child > 0 && walk(child, append(slices.Clone(so), c.Token)) {
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
			f := newStatesRig(t, kind, Config{PrefixCache: -1})
			f.always()
			random := rand.New(rand.NewPCG(1, 5))
			hits := int64(0)
			for id := tandem.SessionID(1); id < 12; id += 2 {
				text := f.randomText(random, 60)
				n := 6
				f.begin(id, "", text, n)
				f.ahead(id, n, n)
				told := n
				for range 5 {
					f.rest()
					next := f.outcome(id)
					if len(next) == 0 || n+len(next) > 50 {
						break
					}
					copy(text[n:], next)
					n += len(next)
					done := f.ahead(id, n, told)
					if done.Passes != 0 || done.Reused != done.Nodes-1 || done.Nodes < 2 {
						t.Fatalf("%+v: want a tree without a pass", done)
					}
					told, hits = n, hits+1
				}
				f.rest()
				f.do(func() {
					s := f.session(id)
					if s.seq.Len() != s.grower.(*stateGrower).sure { // what was computed from own states is gone
						t.Errorf("%d of %d rows are final", s.grower.(*stateGrower).sure, s.seq.Len())
					}
					for s.explored.Child(0, text[n]) >= 0 {
						text[n]-- // to one that was not foreseen
					}
				})
				got := f.tree(id, n+1, told, 4)
				f.begin(id+1, "", text, n+1)
				if want := f.tree(id+1, n+1, n+1, 4); !reflect.DeepEqual(got, want) {
					t.Errorf("after %d hits\ngot  %+v\nwant %+v", hits, got, want)
				}
				_, _ = f.Close(t.Context(), id), f.Close(t.Context(), id+1)
			}
			n := f.counters.Snapshot()
			if hits < 5 || n["ahead.hits"] < hits || n["faults"] > 0 || n["features.late"] > 0 {
				t.Errorf("%d hits, counted %v", hits, n)
			}
		})
	}
}
