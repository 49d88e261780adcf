package draftertest

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// Files of the shipped models.
var (
	ModelFile  = FromRoot("models/gopher-draft-all-f16.gguf")
	TargetFile = FromRoot("models/gopher-19m-q8_0.gguf")
)

// FromRoot returns the path of a file of the repository, which lies around the working directory.
func FromRoot(path string) string {
	root := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Join("..", root)
	}
	return filepath.Join(root, path)
}

// Rig is a drafter over a pool that keeps its tickets.
type Rig struct {
	*drafter.Drafter
	T        testing.TB
	Pool     *Pool
	Counters *tandem.Counters
	Text     []tandem.Token // a prompt
}

// New returns a rig with a drafter that c configures; without a model, of ModelFile.
func New(t testing.TB, c drafter.Config) *Rig {
	t.Helper()
	t.Cleanup(func() {
		if _, bench := t.(*testing.B); !bench { // testing's own goroutines would count
			goleak.VerifyNone(t)
		}
	})
	return Twin(t, c)
}

// OpenDraft opens a model for six sessions, with side files of its own.
func OpenDraft(t testing.TB, path string, sides ...string) *engine.Model {
	t.Helper()
	m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192,
		KVPages: engine.PagesFor(6, Limit, drafter.DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	for _, side := range sides {
		if err := m.OpenSide(side); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// Twin returns a rig beside another.
func Twin(t testing.TB, c drafter.Config) *Rig {
	t.Helper()
	m := c.Model
	if m == nil {
		m = OpenDraft(t, ModelFile)
	}
	r := &Rig{T: t, Pool: NewPool(8), Counters: &tandem.Counters{},
		Text: m.Vocab().Encode("func (r *Reader) Read(p []byte) (n int, err error) {\n", true)}
	c.Model, c.Counters, c.Name = m, r.Counters, "test"
	if c.Pool == nil {
		c.Pool = r.Pool
	}
	var err error
	if r.Drafter, err = drafter.New(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		m.Close()
	})
	return r
}

// Begin opens a session.
func (r *Rig) Begin(id tandem.SessionID, text []tandem.Token) {
	r.T.Helper()
	if _, err := r.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: Limit, MaxNodes: 64}); err != nil {
		r.T.Fatal(err)
	}
}

// Drafted proposes and returns the ticket that came into the pool.
func (r *Rig) Drafted(p tandem.Proposal) tandem.Ticket {
	r.T.Helper()
	done, err := r.Propose(context.Background(), p)
	if err != nil {
		r.T.Fatal(err)
	}
	k := r.Pool.Take(r.T)
	_, depth := k.Tree.Depths()
	if k.Session != p.Session || k.Epoch != p.Epoch || k.Base != p.Base || k.Hash != p.Hash || k.Drafter != "test" ||
		!slices.Equal(k.SelfDrafts, p.SelfDrafts) {
		r.T.Errorf("ticket %+v for %+v", k, p)
	}
	if done.Nodes != k.Tree.Len() || done.Depth != depth || done.Busy == 0 || !reflect.DeepEqual(done.Tree, k.Tree) ||
		(done.Passes == 0) != (done.Nodes == 1 || done.Reused == done.Nodes-1) {
		r.T.Errorf("proposed %+v, tree of %d nodes and depth %d", done, k.Tree.Len(), depth)
	}
	if err := k.Tree.Validate(max(p.Bounds.Nodes, 1), 4096); err != nil {
		r.T.Error(err)
	}
	return k
}

// Do runs fn where sessions belong.
func (r *Rig) Do(fn func()) {
	r.T.Helper()
	if err := r.Draft().Sched.Do(context.Background(), func() error { fn(); return nil }); err != nil {
		r.T.Fatal(err)
	}
}

// State returns how many positions and tree rows of a session are in the cache.
func (r *Rig) State(id tandem.SessionID) (positions, rows int) {
	r.T.Helper()
	r.Do(func() { s := r.Draft().Session(id); positions, rows = s.Cache.Len(), s.Cache.Nodes() })
	return positions, rows
}

// Leaf returns the tokens from below the root to the deepest node.
func Leaf(t tandem.Tree) (path []tandem.Token) {
	depths, deepest := t.Depths()
	for n := int32(slices.Index(depths, int32(deepest))); n > 0; n = t.Parents[n] {
		path = append(path, t.Tokens[n])
	}
	slices.Reverse(path)
	return path
}

// Truth returns text and what the target goes on with at temperature 0, n tokens in all.
func Truth(b testing.TB, text []tandem.Token, n int) []tandem.Token {
	m, err := engine.Open(TargetFile, engine.Options{Device: testdevice.CPU(b, 1), KVPages: engine.PagesFor(1, n, 0)})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	seq, err := m.NewSequence(n, 0)
	if err != nil {
		b.Fatal(err)
	}
	all := slices.Clone(text)
	for next := all; len(all) < n; next = all[len(all)-1:] {
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: next, Want: engine.WantTail}}, 1)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, tandem.Token(out.Top(0).IDs[0]))
	}
	return all
}
