package draftertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// Sides is the folder of side files and their tiny targets.
var Sides = FromRoot("engine/testdata/sides")

// Oracle is a FeatureSource that knows the text of every session from its beginning to its end, and so all features. Its functions may
// be changed between calls.
type Oracle struct {
	t      testing.TB
	Target *engine.Model
	Taps   []int

	mu    sync.Mutex
	Texts map[tandem.SessionID][]tandem.Token
	Most  int                              // rows in an answer
	Hides int                              // positions of which there are no features: the first of them
	Spoil func(*tandem.Features)           // nil: as they are
	Fails func(context.Context, int) error // by number of the call; nil: never
	Calls int
	known map[string][]uint16 // by text up to the position
}

// Tell says what the text of a session is. Drafts ahead may ask for another session's features meanwhile.
func (o *Oracle) Tell(id tandem.SessionID, text []tandem.Token) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Texts[id] = text
}

func (o *Oracle) Features(ctx context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Calls++
	if o.Fails != nil {
		if err := o.Fails(ctx, o.Calls); err != nil {
			return tandem.Features{}, err
		}
	}
	text := o.Texts[q.Session]
	if q.From < 0 || int(q.Until) > len(text)-1 {
		o.t.Errorf("asked for positions %d to %d of a text of %d", q.From, q.Until, len(text))
	}
	f := tandem.Features{From: max(q.From, min(tandem.Position(o.Hides), q.Until)), Taps: o.Taps, Width: o.Target.FeatureWidth()}
	until := int(q.Until)
	if o.Most > 0 {
		until = min(until, int(f.From)+o.Most)
	}
	for p := int(f.From); p < until; p++ {
		f.Rows = append(f.Rows, o.Row(text, p)...)
	}
	if o.Spoil != nil {
		o.Spoil(&f)
	}
	return f, nil
}

// Row returns the features of position p of text.
func (o *Oracle) Row(text []tandem.Token, p int) []uint16 {
	key := fmt.Sprint(text[:p+1])
	if row, is := o.known[key]; is {
		return row
	}
	seq, err := o.Target.NewSequence(len(text), 0)
	if err != nil {
		o.t.Fatal(err)
	}
	defer seq.Close()
	out, err := o.Target.Forward([]engine.Part{{Seq: seq, Extend: text}}, 1)
	if err != nil {
		o.t.Fatal(err)
	}
	x := make([]float32, o.Target.FeatureWidth())
	for i := range text {
		out.Features(0, i, x)
		row := make([]uint16, len(x))
		half.Pack(row, x)
		o.known[fmt.Sprint(text[:i+1])] = row
	}
	return o.known[key]
}

// States is a drafter with a draft that reads states, beside an oracle of the tiny target.
type States struct {
	*Rig
	Oracle *Oracle
	Model  *engine.Model
	Side   side.Spec
}

func NewStates(t testing.TB, name string, c drafter.Config) *States {
	t.Helper()
	return NewStatesOn(t, name, testdevice.CPU(t, 1), c)
}

// NewStatesOn is NewStates with the draft on a device. "tokens" is a draft that reads tokens alone.
func NewStatesOn(t testing.TB, name string, d kernels.Device, c drafter.Config) *States {
	t.Helper()
	before := goleak.IgnoreCurrent() // such as the device's
	path, target := filepath.Join(Sides, name+".gguf"), filepath.Join(Sides, "target.gguf")
	if name == "mtp" { // inside its target's file
		m := family.Make("qwen35",
			family.Shape{Layers: 4, Dim: 64, Heads: 4, KV: 2, HeadDim: 32, FFN: 96, Words: 20, States: 4, Groups: 2}, 5)
		m.WithMTP(5)
		target = m.Write(t, t.TempDir())
		path = side.MTPPath(target)
	} else if name == "tokens" {
		path = target
	} else if filepath.IsAbs(name) {
		path = name
	} else if of, ok := strings.CutSuffix(name, "-mtp"); ok {
		target = filepath.Join(Sides, of+".gguf")
	}
	spec, err := engine.SideOf(path)
	if err != nil {
		t.Fatal(err)
	}
	taps := append([]int{1}, spec.Taps...) // of other drafts as well
	slices.Reverse(taps)
	taps = slices.Compact(taps)
	open := func(open func(engine.Options) (*engine.Model, error), d kernels.Device, o engine.Options) *engine.Model {
		o.Device, o.MaxRows, o.KVPages = d, 192, engine.PagesFor(6, 64, drafter.DefaultTreeRows)
		m, err := open(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	f := &States{Side: spec, Model: open(func(o engine.Options) (*engine.Model, error) { return engine.OpenDraft(path, target, o) },
		d, engine.Options{})}
	f.Oracle = &Oracle{t: t, Taps: taps, Texts: map[tandem.SessionID][]tandem.Token{}, known: map[string][]uint16{},
		Target: open(func(o engine.Options) (*engine.Model, error) { return engine.Open(target, o) }, testdevice.CPU(t, 1),
			engine.Options{Taps: taps})}
	f.Rig = &Rig{T: t, Pool: NewPool(8), Counters: &tandem.Counters{}}
	c.Model, c.Counters, c.Name, c.Pool, c.Taps = f.Model, f.Counters, "test", f.Pool, spec.Taps
	if c.Features = f.Oracle; name == "tokens" {
		c.Features = nil
	}
	if f.Drafter, err = drafter.New(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t, before)
	})
	return f
}

// BeginText opens a session with the first n tokens of text.
func (f *States) BeginText(id tandem.SessionID, tenant string, text []tandem.Token, n int) {
	f.T.Helper()
	f.Oracle.Tell(id, text)
	_, err := f.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tenant: tenant, Tokens: text[:n], Limit: 64, MaxNodes: 64})
	if err != nil {
		f.T.Fatal(err)
	}
}

// Tree returns the tree below the first n tokens of a session's text, of which told are known.
func (f *States) Tree(id tandem.SessionID, n, told, width int) tandem.Tree {
	f.T.Helper()
	p := Proposal(id, f.Oracle.Texts[id][:n], told)
	p.Bounds, p.Return = tandem.Bounds{Nodes: 12, Depth: 4, Width: width}, true
	done, err := f.Propose(context.Background(), p)
	if err != nil {
		f.T.Fatal(err)
	}
	if err := done.Tree.Validate(12, f.Oracle.Target.Vocab().Size()); err != nil {
		f.T.Fatal(err)
	}
	return done.Tree
}

// RandomText returns n tokens of the target.
func (f *States) RandomText(r *rand.Rand, n int) (text []tandem.Token) {
	vocab := f.Oracle.Target.Vocab().Size()
	for range n {
		text = append(text, tandem.Token(vocab/2+r.IntN(vocab/2)))
	}
	return text
}

func RandomTokens(r *rand.Rand, n int) (text []tandem.Token) {
	for range n {
		text = append(text, tandem.Token(60+r.IntN(200)))
	}
	return text
}

// Late makes features late or not.
func (o *Oracle) Late(late bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.Fails = nil; late {
		o.Fails = func(context.Context, int) error { return tandem.Errorf("test", tandem.Deadline, "late") }
	}
}
