package drafter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
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
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

const sides = "../engine/testdata/sides"

var sideNames = []string{"dovetail", "dovetail-bare", "eagle", "eagle3", "qwen35-mtp"}

// prophet is a FeatureSource that knows the text of every session from its beginning to its end, and so all features. Its functions may
// be changed between calls.
type prophet struct {
	t      testing.TB
	target *engine.Model
	taps   []int

	mu    sync.Mutex
	texts map[tandem.SessionID][]tandem.Token
	most  int                              // rows in an answer
	hides int                              // positions of which there are no features: the first of them
	spoil func(*tandem.Features)           // nil: as they are
	fails func(context.Context, int) error // by number of the call; nil: never
	calls int
	known map[string][]uint16 // by text up to the position
}

// tell says what the text of a session is. Drafts ahead may ask for another session's features meanwhile.
func (o *prophet) tell(id tandem.SessionID, text []tandem.Token) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.texts[id] = text
}

func (o *prophet) Features(ctx context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	if o.fails != nil {
		if err := o.fails(ctx, o.calls); err != nil {
			return tandem.Features{}, err
		}
	}
	text := o.texts[q.Session]
	if q.From < 0 || int(q.Until) > len(text)-1 {
		o.t.Errorf("asked for positions %d to %d of a text of %d", q.From, q.Until, len(text))
	}
	f := tandem.Features{From: max(q.From, min(tandem.Position(o.hides), q.Until)), Taps: o.taps, Width: o.target.FeatureWidth()}
	until := int(q.Until)
	if o.most > 0 {
		until = min(until, int(f.From)+o.most)
	}
	for p := int(f.From); p < until; p++ {
		f.Rows = append(f.Rows, o.row(text, p)...)
	}
	if o.spoil != nil {
		o.spoil(&f)
	}
	return f, nil
}

// row returns the features of position p of text.
func (o *prophet) row(text []tandem.Token, p int) []uint16 {
	key := fmt.Sprint(text[:p+1])
	if row, is := o.known[key]; is {
		return row
	}
	seq, err := o.target.NewSequence(len(text), 0)
	if err != nil {
		o.t.Fatal(err)
	}
	defer seq.Close()
	out, err := o.target.Forward([]engine.Part{{Seq: seq, Extend: text}}, 1)
	if err != nil {
		o.t.Fatal(err)
	}
	x := make([]float32, o.target.FeatureWidth())
	for i := range text {
		out.Features(0, i, x)
		row := make([]uint16, len(x))
		half.Pack(row, x)
		o.known[fmt.Sprint(text[:i+1])] = row
	}
	return o.known[key]
}

// statesRig is a drafter with a draft that reads states, beside an oracle of the tiny target.
type statesRig struct {
	*rig
	oracle *prophet
	model  *engine.Model
	side   side.Spec
}

func newStatesRig(t testing.TB, name string, c Config) *statesRig {
	t.Helper()
	path, target := filepath.Join(sides, name+".gguf"), filepath.Join(sides, "target.gguf")
	if name == "mtp" { // inside its target's file
		m := family.Make("qwen35",
			family.Shape{Layers: 4, Dim: 64, Heads: 4, KV: 2, HeadDim: 32, FFN: 96, Words: 20, States: 4, Groups: 2}, 5)
		m.WithMTP(5)
		target = m.Write(t, t.TempDir())
		path = side.MTPPath(target)
	} else if filepath.IsAbs(name) {
		path = name
	} else if of, ok := strings.CutSuffix(name, "-mtp"); ok {
		target = filepath.Join(sides, of+".gguf")
	}
	spec, err := engine.SideOf(path)
	if err != nil {
		t.Fatal(err)
	}
	taps := append([]int{1}, spec.Taps...) // of other drafts as well
	slices.Reverse(taps)
	taps = slices.Compact(taps)
	open := func(open func(engine.Options) (*engine.Model, error), o engine.Options) *engine.Model {
		o.Device, o.MaxRows, o.KVPages = testdevice.CPU(t, 1), 192, engine.PagesFor(6, 64, DefaultTreeRows)
		m, err := open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	f := &statesRig{side: spec, model: open(func(o engine.Options) (*engine.Model, error) { return engine.OpenDraft(path, target, o) },
		engine.Options{})}
	f.oracle = &prophet{t: t, taps: taps, texts: map[tandem.SessionID][]tandem.Token{}, known: map[string][]uint16{},
		target: open(func(o engine.Options) (*engine.Model, error) { return engine.Open(target, o) }, engine.Options{Taps: taps})}
	f.rig = &rig{t: t, pool: draftertest.NewPool(8), counters: &tandem.Counters{}}
	c.Model, c.Counters, c.Name, c.Pool, c.Taps, c.Features = f.model, f.counters, "test", f.pool, spec.Taps, f.oracle
	if f.Drafter, err = New(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t)
	})
	return f
}

// begin opens a session with the first n tokens of text.
func (f *statesRig) begin(id tandem.SessionID, tenant string, text []tandem.Token, n int) {
	f.t.Helper()
	f.oracle.tell(id, text)
	_, err := f.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tenant: tenant, Tokens: text[:n], Limit: 64, MaxNodes: 64})
	if err != nil {
		f.t.Fatal(err)
	}
}

// tree returns the tree below the first n tokens of a session's text, of which told are known.
func (f *statesRig) tree(id tandem.SessionID, n, told, width int) tandem.Tree {
	f.t.Helper()
	p := draftertest.Proposal(id, f.oracle.texts[id][:n], told)
	p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 4, Width: width}, true
	done, err := f.Propose(context.Background(), p)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := done.Tree.Validate(12, f.oracle.target.Vocab().Size()); err != nil {
		f.t.Fatal(err)
	}
	return done.Tree
}

// randomText returns n tokens of the target.
func (f *statesRig) randomText(r *rand.Rand, n int) (text []tandem.Token) {
	vocab := f.oracle.target.Vocab().Size()
	for range n {
		text = append(text, tandem.Token(vocab/2+r.IntN(vocab/2)))
	}
	return text
}

func randomText(r *rand.Rand, n int) (text []tandem.Token) {
	for range n {
		text = append(text, tandem.Token(60+r.IntN(200)))
	}
	return text
}

// TestStatesTreesAreTheDrafts compares a tree with what the draft computes by itself from the target's states: the children of the root,
// and those of the first of them, whose state is the draft's own.
func TestStatesTreesAreTheDrafts(t *testing.T) {
	for _, name := range sideNames {
		t.Run(name, func(t *testing.T) {
			f := newStatesRig(t, name, Config{Chunk: 5})
			text := randomText(rand.New(rand.NewPCG(1, 2)), 20)
			f.oracle.tell(1, text)
			opened, err := f.Open(t.Context(), tandem.Opening{Session: 1, Epoch: 1, Tokens: text, Limit: 64, MaxNodes: 64})
			if err != nil || opened.Hindsight.Tokens != len(text)-2 { // of all tokens that a row has guessed
				t.Fatalf("opened %+v, %v", opened, err)
			}
			tree := f.tree(1, len(text), len(text), 3)
			if err := f.Shutdown(t.Context()); err != nil {
				t.Fatal(err)
			}
			part := f.oracle.target.FeatureWidth() / len(f.oracle.taps)
			var states []engine.State
			x := make([]float32, f.oracle.target.FeatureWidth())
			for p := range len(text) - 1 {
				half.Unpack(x, f.oracle.row(text, p))
				var s engine.State
				for _, tap := range f.side.Taps {
					at := slices.Index(f.oracle.taps, tap) * part
					s.Target = append(s.Target, x[at:at+part]...)
				}
				states = append(states, s)
			}
			seq, err := f.model.NewSequence(60, 10)
			if err != nil {
				t.Fatal(err)
			}
			defer seq.Close()
			out, err := f.model.Forward([]engine.Part{{Seq: seq, Extend: text[1:], States: states, Want: engine.WantTail}}, 3)
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
			out, err = f.model.Forward([]engine.Part{{Seq: seq, Nodes: got[:1], Parents: []int32{-1}, States: []engine.State{{Own: own}},
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
			f := newStatesRig(t, name, Config{Chunk: 5, PrefixCache: -1})
			random := rand.New(rand.NewPCG(3, 4))
			for id := tandem.SessionID(1); id < 40; id += 2 {
				text := randomText(random, 50)
				n := 1 + random.IntN(20)
				f.oracle.most = random.IntN(4)
				f.begin(id, "", text, n)
				for told := n; n < 44; {
					tree := f.tree(id, n, told, 1+random.IntN(6))
					told = n
					if random.IntN(3) == 0 { // the ticket was lost
						tree = f.tree(id, n, told, 1+random.IntN(6))
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
					f.oracle.fails = nil
					if late {
						f.oracle.fails = func(context.Context, int) error { return tandem.Errorf("test", tandem.Deadline, "late") }
						continue
					}
					if f.oracle.most > 0 { // it comes in several rounds
						continue
					}
					got := f.tree(id, n, told, 4)
					told = n
					f.begin(id+1, "", text, n)
					if want := f.tree(id+1, n, n, 4); !reflect.DeepEqual(got, want) {
						t.Fatalf("session %d at %d tokens\ngot  %+v\nwant %+v", id, n, got, want)
					}
				}
				f.oracle.fails = nil
				_ = f.Close(t.Context(), id)
				_ = f.Close(t.Context(), id+1)
			}
			n := f.counters.Snapshot()
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
		t.Run(name, func(t *testing.T) { statesPrefixes(t, newStatesRig(t, name, Config{Chunk: 16})) })
	}
}

func statesPrefixes(t *testing.T, f *statesRig) {
	text := randomText(rand.New(rand.NewPCG(5, 6)), 60)
	const n = 52
	f.oracle.hides = 40
	f.begin(1, "t", text, n) // without most
	poor := f.tree(1, n, n, 4)
	_ = f.Close(t.Context(), 1)
	f.oracle.hides = 0
	f.begin(2, "t", text, n)
	rich := f.tree(2, n, n, 4)
	if reflect.DeepEqual(poor, rich) {
		t.Error("features change nothing")
	}
	_ = f.Close(t.Context(), 2)
	f.oracle.hides = n // the verifier found all of it
	before := f.counters.Snapshot()["features.missing"]
	f.begin(3, "t", text, n)
	if again := f.tree(3, n, n, 4); reflect.DeepEqual(again, poor) {
		t.Error("the prompt was computed without features though it was in memory")
	}
	if missing := f.counters.Snapshot()["features.missing"] - before; missing == 0 || missing > 24 {
		t.Errorf("%d positions without features: want those after the pages that are kept", missing)
	}
	other := slices.Clone(text)
	other[0]++ // its states are others from the first on
	f.oracle.hides = 0
	f.begin(4, "t", other, n)
	f.begin(5, "u", other, n)
	if a, b := f.tree(4, n, n, 4), f.tree(5, n, n, 4); !reflect.DeepEqual(a, b) {
		t.Error("a text with another first token was taken for the same")
	}
}

// TestGarbageFeatures: what does not fit is counted and ignored.
func TestGarbageFeatures(t *testing.T) {
	f := newStatesRig(t, "eagle3", Config{FeatureWait: 50 * time.Millisecond})
	text := randomText(rand.New(rand.NewPCG(7, 8)), 40)
	f.begin(100, "", text, 30)
	want := f.tree(100, 30, 30, 4)
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
			before := f.counters.Snapshot()
			f.oracle.spoil = c.spoil
			f.begin(id, fmt.Sprint(id), text, 30)
			if tree := f.tree(id, 30, 30, 4); tree.Len() < 2 {
				t.Errorf("tree %+v", tree)
			}
			f.tree(id, 33, 30, 4)
			n := f.counters.Snapshot()
			if n["features."+c.count] == before["features."+c.count] || n["faults"] > 0 {
				t.Errorf("counted %v", n)
			}
			f.oracle.spoil = nil
			f.begin(id, fmt.Sprint(id), text, 30)
			if tree := f.tree(id, 30, 30, 4); !reflect.DeepEqual(tree, want) {
				t.Error("what was computed without features was kept for another session")
			}
			_ = f.Close(t.Context(), id)
		})
	}
}

// sessions returns how many sessions are held and known to read features.
func (f *statesRig) sessions() (n int) {
	f.states.Range(func(_, _ any) bool { n++; return true })
	return n
}
