package states_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
)

var sideNames = []string{"dovetail", "dovetail-bare", "eagle", "eagle3", "qwen35-mtp"}

// TestStatesTreesAreTheDrafts compares a tree with what the draft computes by itself from the target's states: the children of the root,
// and those of the first of them, whose state is the draft's own.
func TestStatesTreesAreTheDrafts(t *testing.T) {
	for _, name := range sideNames {
		t.Run(name, func(t *testing.T) {
			f := draftertest.NewStates(t, name, drafter.Config{Chunk: 5})
			text := draftertest.RandomTokens(rand.New(rand.NewPCG(1, 2)), 20)
			f.Oracle.Tell(1, text)
			opened, err := f.Open(t.Context(), tandem.Opening{Session: 1, Epoch: 1, Tokens: text, Limit: 64, MaxNodes: 64})
			if err != nil || opened.Hindsight.Tokens != len(text)-2 { // of all tokens that a row has guessed
				t.Fatalf("opened %+v, %v", opened, err)
			}
			tree := f.Tree(1, len(text), len(text), 3)
			if err := f.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			part := f.Oracle.Target.FeatureWidth() / len(f.Oracle.Taps)
			var states []engine.State
			x := make([]float32, f.Oracle.Target.FeatureWidth())
			for p := range len(text) - 1 {
				half.Unpack(x, f.Oracle.Row(text, p))
				var s engine.State
				for _, tap := range f.Side.Taps {
					at := slices.Index(f.Oracle.Taps, tap) * part
					s.Target = append(s.Target, x[at:at+part]...)
				}
				states = append(states, s)
			}
			seq, err := f.Model.NewSequence(60, 10)
			if err != nil {
				t.Fatal(err)
			}
			defer seq.Close()
			out, err := f.Model.Forward([]engine.Part{{Seq: seq, Extend: text[1:], States: states, Want: engine.WantTail}}, 3)
			if err != nil {
				t.Fatal(err)
			}
			children := func(node int32) (got []tandem.Token) {
				for i, parent := range tree.Parents {
					if parent == node && i > 0 {
						got = append(got, tree.Tokens[i])
					}
				}
				return got
			}
			want := out.Top(0).IDs
			got := children(0)
			if len(got) == 0 || got[0] != tandem.Token(want[0]) || len(got) > 1 && got[1] != tandem.Token(want[1]) {
				t.Fatalf("below the root %v: want %v", got, want)
			}
			own := slices.Clone(out.Hidden(0, len(text)-2))
			out, err = f.Model.Forward([]engine.Part{{Seq: seq, Nodes: got[:1], Parents: []int32{-1}, States: []engine.State{{Own: own}},
				Want: engine.WantTail}}, 3)
			if err != nil {
				t.Fatal(err)
			}
			first := int32(slices.Index(tree.Tokens[1:], got[0]) + 1)
			if below := children(first); len(below) == 0 || below[0] != tandem.Token(out.Top(0).IDs[0]) {
				t.Errorf("below the first child %v: want %v", below, out.Top(0).IDs)
			}
		})
	}
}

// TestStatesTreesDependOnTheTextAlone: whatever happened before, features that came late and rounds drafted without, repeated and wider
// proposals: as soon as all features are there, a tree is that of a session that was opened with the whole text.
func TestStatesTreesDependOnTheTextAlone(t *testing.T) {
	for _, name := range append(slices.Clone(sideNames), "dflash") {
		t.Run(name, func(t *testing.T) {
			f := draftertest.NewStates(t, name, drafter.Config{Chunk: 5, PrefixCache: -1})
			random := rand.New(rand.NewPCG(3, 4))
			for id := tandem.SessionID(1); id < 40; id += 2 {
				text := draftertest.RandomTokens(random, 50)
				n := 1 + random.IntN(20)
				f.Oracle.Most = random.IntN(4)
				f.BeginText(id, "", text, n)
				for told := n; n < 44; {
					tree := f.Tree(id, n, told, 1+random.IntN(6))
					told = n
					if random.IntN(3) == 0 { // the ticket was lost
						tree = f.Tree(id, n, told, 1+random.IntN(6))
					}
					for at := int32(0); n < 44; { // the target goes some way down the tree, and draws one more token
						next := text[n]
						if i := slices.Index(tree.Parents, at); i > 0 && random.IntN(4) > 0 {
							next, at = tree.Tokens[i], int32(i)
						} else {
							at = int32(tree.Len())
						}
						text[n] = next
						n++
						if at == int32(tree.Len()) {
							break
						}
					}
					late := random.IntN(2) == 0
					f.Oracle.Fails = nil
					if late {
						f.Oracle.Fails = func(context.Context, int) error { return tandem.Errorf("test", tandem.Deadline, "late") }
						continue
					}
					if f.Oracle.Most > 0 { // it comes in several rounds
						continue
					}
					got := f.Tree(id, n, told, 4)
					told = n
					f.BeginText(id+1, "", text, n)
					if want := f.Tree(id+1, n, n, 4); !reflect.DeepEqual(got, want) {
						t.Fatalf("session %d at %d tokens\ngot  %+v\nwant %+v", id, n, got, want)
					}
				}
				f.Oracle.Fails = nil
				_ = f.Close(t.Context(), id)
				_ = f.Close(t.Context(), id+1)
			}
			n := f.Counters.Snapshot()
			if n["features.late"] == 0 || n["features.missing"] > 0 || n["faults"] > 0 {
				t.Errorf("counted %v", n)
			}
		})
	}
}

// TestStatesPrefixes: a prompt whose features the verifier has not is found in the drafter's own memory, if it was computed with them. What
// was computed without them is nobody else's.
func TestStatesPrefixes(t *testing.T) {
	for _, name := range []string{"dovetail", "dflash"} {
		t.Run(name, func(t *testing.T) { statesPrefixes(t, draftertest.NewStates(t, name, drafter.Config{Chunk: 16})) })
	}
}

func statesPrefixes(t *testing.T, f *draftertest.States) {
	text := draftertest.RandomTokens(rand.New(rand.NewPCG(5, 6)), 60)
	const n = 52
	f.Oracle.Hides = 40
	f.BeginText(1, "t", text, n) // without most
	poor := f.Tree(1, n, n, 4)
	_ = f.Close(t.Context(), 1)
	f.Oracle.Hides = 0
	f.BeginText(2, "t", text, n)
	rich := f.Tree(2, n, n, 4)
	if reflect.DeepEqual(poor, rich) {
		t.Error("features change nothing")
	}
	_ = f.Close(t.Context(), 2)
	f.Oracle.Hides = n // the verifier found all of it
	before := f.Counters.Snapshot()["features.missing"]
	f.BeginText(3, "t", text, n)
	if again := f.Tree(3, n, n, 4); reflect.DeepEqual(again, poor) {
		t.Error("the prompt was computed without features though it was in memory")
	}
	if missing := f.Counters.Snapshot()["features.missing"] - before; missing == 0 || missing > 24 {
		t.Errorf("%d positions without features: want those after the pages that are kept", missing)
	}
	other := slices.Clone(text)
	other[0]++ // its states are others from the first on
	f.Oracle.Hides = 0
	f.BeginText(4, "t", other, n)
	f.BeginText(5, "u", other, n)
	if a, b := f.Tree(4, n, n, 4), f.Tree(5, n, n, 4); !reflect.DeepEqual(a, b) {
		t.Error("a text with another first token was taken for the same")
	}
}

// TestGarbageFeatures: what does not fit is counted and ignored.
func TestGarbageFeatures(t *testing.T) {
	f := draftertest.NewStates(t, "eagle3", drafter.Config{FeatureWait: 50 * time.Millisecond})
	text := draftertest.RandomTokens(rand.New(rand.NewPCG(7, 8)), 40)
	f.BeginText(100, "", text, 30)
	want := f.Tree(100, 30, 30, 4)
	id := tandem.SessionID(0)
	for name, c := range map[string]struct {
		spoil func(*tandem.Features)
		count string
	}{
		"wider": {func(a *tandem.Features) { a.Width += len(a.Taps) }, "corrupt"},
		"narrower": {func(a *tandem.Features) {
			a.Width, a.Rows = a.Width-len(a.Taps), a.Rows[:a.Len()*(a.Width-len(a.Taps))]
		}, "corrupt"},
		"no width":   {func(a *tandem.Features) { a.Width = 0 }, "corrupt"},
		"other taps": {func(a *tandem.Features) { a.Taps = []int{9, 8, 7} }, "corrupt"},
		"a tap less": {func(a *tandem.Features) {
			a.Taps, a.Width = a.Taps[1:], a.Width/3*2
			a.Rows = a.Rows[:a.Len()*a.Width]
		}, "corrupt"},
		"no taps":         {func(a *tandem.Features) { a.Taps = nil }, "corrupt"},
		"too many rows":   {func(a *tandem.Features) { a.Rows = append(a.Rows, a.Rows...) }, "corrupt"},
		"half a row":      {func(a *tandem.Features) { a.Rows = a.Rows[:len(a.Rows)-1] }, "corrupt"},
		"other positions": {func(a *tandem.Features) { a.From = -1 }, "corrupt"},
		"NaN":             {func(a *tandem.Features) { a.Rows = slices.Clone(a.Rows); a.Rows[3] = 0x7e00 }, "missing"},
		"infinite":        {func(a *tandem.Features) { a.Rows = slices.Clone(a.Rows); a.Rows[len(a.Rows)-1] = 0xfc00 }, "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			id++
			before := f.Counters.Snapshot()
			f.Oracle.Spoil = c.spoil
			f.BeginText(id, fmt.Sprint(id), text, 30)
			if tree := f.Tree(id, 30, 30, 4); tree.Len() < 2 {
				t.Errorf("tree %+v", tree)
			}
			f.Tree(id, 33, 30, 4)
			n := f.Counters.Snapshot()
			if n["features."+c.count] == before["features."+c.count] || n["faults"] > 0 {
				t.Errorf("counted %v", n)
			}
			f.Oracle.Spoil = nil
			f.BeginText(id, fmt.Sprint(id), text, 30)
			if tree := f.Tree(id, 30, 30, 4); !reflect.DeepEqual(tree, want) {
				t.Error("what was computed without features was kept for another session")
			}
			_ = f.Close(t.Context(), id)
		})
	}
}
