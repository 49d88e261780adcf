package grow_test

import (
	"context"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/testkit"
)

// oracle drafts as the book says: every tree anew, in a sequence that holds nothing but text.
type oracle struct {
	t   testing.TB
	m   *engine.Model
	seq *engine.Sequence
	had []tandem.Token // text of seq
}

func newOracle(t testing.TB) *oracle {
	m, err := engine.Open(draftertest.ModelFile, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: draftertest.Limit + 256,
		MaxWanted: 256,
		KVPages:   engine.PagesFor(1, draftertest.Limit, 256)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	seq, err := m.NewSequence(draftertest.Limit, 256)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(seq.Close)
	return &oracle{t: t, m: m, seq: seq}
}

// sequence returns one with text in it and no tree, and the candidates after each of the last so many tokens. It computes at least
// those anew, and what differs from the text before.
func (o *oracle) sequence(text []tandem.Token, last int) (*engine.Sequence, [][]spec.Candidate) {
	keep := 0
	for keep < min(len(text)-last, len(o.had)) && text[keep] == o.had[keep] {
		keep++
	}
	if err := o.seq.Truncate(keep); err != nil {
		o.t.Fatal(err)
	}
	o.had = slices.Clone(text)
	if more := text[keep : len(text)-last]; len(more) > 0 {
		o.forward(engine.Part{Seq: o.seq, Extend: more})
	}
	return o.seq, o.forward(engine.Part{Seq: o.seq, Extend: text[len(text)-last:], Want: engine.WantAll})
}

func (o *oracle) forward(part engine.Part) (lists [][]spec.Candidate) {
	out, err := o.m.Forward([]engine.Part{part}, grow.MaxWidth)
	if err != nil {
		o.t.Fatal(err)
	}
	for i := range out.Len() {
		lists = append(lists, grow.Candidates(out.Top(i), grow.MaxWidth))
	}
	return lists
}

// tree returns what p must be answered with below text if it has no plan.
func (o *oracle) tree(text []tandem.Token, p tandem.Proposal, treeRows int) tandem.Tree {
	seq, roots := o.sequence(text, 1)
	p.Bounds.Nodes, p.Bounds.Depth = min(p.Bounds.Nodes, 64), min(p.Bounds.Depth, draftertest.Limit-len(text))
	g := spec.NewGrower(text[len(text)-1], p)
	for {
		rows := g.Pending(treeRows - seq.Nodes())
		if len(rows) == 0 {
			return g.Draft().Tree
		}
		lists := roots
		if rows[0].Depth > 0 {
			part := engine.Part{Seq: seq, Want: engine.WantTail}
			for _, r := range rows {
				part.Nodes, part.Parents = append(part.Nodes, r.Token), append(part.Parents, r.Parent)
			}
			lists = o.forward(part)
		}
		g.Absorb(lists)
	}
}

// check compares the log-probabilities of any tree below text with the model's, bit by bit.
func (o *oracle) check(text []tandem.Token, tree tandem.Tree) {
	o.t.Helper()
	seq, lists := o.sequence(text, 1)
	if tree.Len() > 1 {
		part := engine.Part{Seq: seq, Want: engine.WantTail, Nodes: tree.Tokens[1:]}
		for _, parent := range tree.Parents[1:] {
			part.Parents = append(part.Parents, parent-1)
		}
		lists = append(lists, o.forward(part)...)
	}
	for i, token := range tree.Tokens[1:] {
		parent := tree.Parents[i+1]
		at := slices.IndexFunc(lists[parent], func(c spec.Candidate) bool { return c.Token == token })
		if at < 0 {
			o.t.Fatalf("node %d has token %d, none of the likeliest %d after its parent", i+1, token, grow.MaxWidth)
		}
		if want := tree.LogProbs[parent] + lists[parent][at].LogProb; math.Float32bits(tree.LogProbs[i+1]) != math.Float32bits(want) {
			o.t.Fatalf("node %d has log-probability %v: want %v", i+1, tree.LogProbs[i+1], want)
		}
	}
}

// hindsight compares h with what the model would have guessed of text, and returns of how many tokens it is.
func (o *oracle) hindsight(text []tandem.Token, h tandem.Hindsight) int {
	o.t.Helper()
	if err := h.Validate(); err != nil || h.Tokens >= len(text) {
		o.t.Fatalf("hindsight of %d tokens of %d: %v", h.Tokens, len(text), err)
	}
	_, lists := o.sequence(text, h.Tokens+1)
	for i := range h.Tokens {
		at := len(text) - 1 - i
		guess := lists[h.Tokens-1-i][0].Token // after the token before at
		if hit := guess == text[at]; hit != (h.Hits>>i&1 == 1) {
			o.t.Fatalf("hindsight of token %d of %d is %v: want %v", at, len(text), !hit, hit)
		}
	}
	return h.Tokens
}

// walk is a session whose committed tokens and proposals are random.
type walk struct {
	*draftertest.Rig
	*oracle
	random *rand.Rand
	id     tandem.SessionID
	text   []tandem.Token
	told   int

	hindsight int // tokens that were known in all
}

func (w *walk) proposal() tandem.Proposal {
	p := draftertest.Proposal(w.id, w.text, w.told)
	r := w.random
	p.Bounds = tandem.Bounds{Nodes: 2 + r.IntN(24), Depth: 1 + r.IntN(8), Width: 1 + r.IntN(12)}
	if r.IntN(12) == 0 {
		p.Bounds = tandem.Bounds{}
	}
	p.Growth, p.Branch, p.Stop = tandem.Growth(r.IntN(3)), []float64{0, 0.05, 0.5}[r.IntN(3)], []float64{0, 0, 0.1}[r.IntN(3)]
	p.Ahead, p.Return = r.IntN(4) > 0, r.IntN(2) > 0
	if r.IntN(3) == 0 {
		p.Plan.Round = time.Duration(r.IntN(2000)) * time.Microsecond
		for i := range 1 + r.IntN(20) {
			p.Plan.Verify = append(p.Plan.Verify, time.Duration(20+i)*100*time.Microsecond)
		}
	}
	return p
}

// round proposes once, checks the answer, and commits something.
func (w *walk) round() {
	p := w.proposal()
	done, err := w.Propose(context.Background(), p)
	if err != nil {
		w.Rig.T.Fatal(err)
	}
	w.told = len(w.text)
	if !p.Return {
		k := w.Pool.Take(w.Rig.T)
		if !reflect.DeepEqual(k.Tree, done.Tree) {
			w.Rig.T.Fatalf("ticket %v for %v", k, done.Tree)
		}
		clear(k.Tree.Tokens) // it is the pool's
	}
	depth := 0
	if _, depth = done.Tree.Depths(); done.Tree.Validate(max(p.Bounds.Nodes, 1), 4096) != nil || depth > p.Bounds.Depth ||
		done.Depth != depth || done.Nodes != done.Tree.Len() {
		w.Rig.T.Fatalf("%+v for %v", done, p.Bounds)
	}
	w.oracle.check(w.text, done.Tree)
	if len(p.Plan.Verify) == 0 {
		if want := w.oracle.tree(w.text, p, w.Draft().Config.TreeRows); !reflect.DeepEqual(done.Tree, want) {
			w.Rig.T.Fatalf("%+v:\n got %v\nwant %v", p, done.Tree, want)
		}
	} else if done.Nodes > len(p.Plan.Verify) {
		w.Rig.T.Fatalf("%d nodes, costs of %d", done.Nodes, len(p.Plan.Verify))
	}
	w.hindsight += w.oracle.hindsight(w.text, done.Hindsight)
	for range w.random.IntN(8) { // passes that it may go ahead
		w.invariants()
	}
	w.invariants()
	w.commit(done.Tree)
}

// invariants looks at the session where nothing can be half done.
func (w *walk) invariants() {
	err := w.Draft().Sched.Do(context.Background(), func() error {
		s := w.Draft().Session(w.id)
		e, n := s.Explored.Len(), s.Cache.Len()
		if e == 0 && (n >= len(s.Text.Tokens) || s.Cache.Nodes() != 0) || e > 0 && (n != len(s.Text.Tokens) || s.Cache.Nodes() != e-1) ||
			s.Cache.Nodes() > w.Draft().Config.TreeRows {
			w.Rig.T.Errorf("%d tokens, %d positions, %d rows, %d explored", len(s.Text.Tokens), n, s.Cache.Nodes(), e)
		}
		return nil
	})
	if err != nil {
		w.Rig.T.Fatal(err)
	}
}

// commit goes some way down the tree and on with a token of the draft model's, or with any; or nowhere; or takes back
// what was committed before.
func (w *walk) commit(tree tandem.Tree) {
	r := w.random
	switch r.IntN(10) {
	case 0: // the same again
		return
	case 1: // the drafter had believed something else
		w.told -= 1 + r.IntN(3)
		w.text = append(w.text[:w.told:w.told], tandem.Token(r.IntN(4096)), tandem.Token(r.IntN(4096)), tandem.Token(r.IntN(4096)), 7)
		return
	}
	node := r.IntN(tree.Len())
	var path []tandem.Token
	for n := int32(node); n > 0; n = tree.Parents[n] {
		path = append(path, tree.Tokens[n])
	}
	slices.Reverse(path)
	w.text = append(slices.Clone(w.text), path...)
	switch r.IntN(4) {
	case 0:
		w.text = append(w.text, tandem.Token(r.IntN(4096)))
	case 1: // the tree was cut short by the budget
	default:
		_, next := w.oracle.sequence(w.text, 1)
		w.text = append(w.text, next[0][r.IntN(4)].Token)
	}
}

// TestRandomCommits: hits, misses and everything between never change what a session drafts.
func TestRandomCommits(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for name, c := range map[string]drafter.Config{"as it is": {}, "few rows": {TreeRows: 24, Ahead: 9},
		"many ahead": {TreeRows: 256, Ahead: 256}} {
		t.Run(name, func(t *testing.T) {
			r, o := draftertest.New(t, c), newOracle(t)
			for seed := range uint64(4) {
				w := &walk{Rig: r, oracle: o, random: rand.New(rand.NewPCG(seed, 0)), id: tandem.SessionID(seed + 1),
					text: slices.Clone(r.Text), told: len(r.Text)}
				r.Begin(w.id, w.text)
				for range rounds {
					if len(w.text) > draftertest.Limit-10 {
						w.text, w.told = slices.Clone(r.Text), len(r.Text)
						r.Begin(w.id, w.text)
					}
					w.round()
				}
				if w.hindsight < 3*rounds { // what is taken back takes all before with it
					t.Errorf("hindsight of %d tokens in %d rounds", w.hindsight, rounds)
				}
				if err := r.Close(context.Background(), w.id); err != nil {
					t.Fatal(err)
				}
			}
			n := r.Counters.Snapshot()
			if n["ahead.hits"] == 0 || n["ahead.misses"] == 0 || n["ahead.nodes"] == 0 || n["ahead.useful_ns"] == 0 ||
				n["ahead.useful_ns"] > n["ahead.busy_ns"] || n["faults"] != 0 {
				t.Errorf("counters %v", n)
			}
		})
	}
}

// TestAheadOfManySessions has sessions draft ahead while others are opened, proposed for, cancelled and closed.
func TestAheadOfManySessions(t *testing.T) {
	r, o := draftertest.New(t, drafter.Config{}), newOracle(t)
	var all sync.WaitGroup
	var one sync.Mutex // the oracle's
	for i := range 4 {
		all.Go(func() {
			random, id, text := rand.New(rand.NewPCG(uint64(i), 1)), tandem.SessionID(i+1), r.Text[:len(r.Text)-i]
			for range 6 {
				if _, err := r.Open(context.Background(), tandem.Opening{Session: id, Epoch: 1, Tokens: text, Limit: draftertest.Limit,
					MaxNodes: 64}); err != nil {
					t.Error(err)
				}
				told, text := len(text), slices.Clone(text)
				for range 5 {
					p := draftertest.Proposal(id, text, told)
					p.Ahead, p.Return, p.Growth = true, true, tandem.Growth(i%3)
					ctx, cancel := context.WithTimeout(context.Background(),
						[]time.Duration{time.Minute, time.Millisecond}[random.IntN(5)/4])
					done, err := r.Propose(ctx, p)
					cancel()
					if tandem.KindOf(err) == tandem.Deadline {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					one.Lock()
					o.check(text, done.Tree)
					one.Unlock()
					told = len(text)
					text = append(append(text, draftertest.Leaf(done.Tree)[:random.IntN(done.Depth+1)]...), tandem.Token(random.IntN(4096)))
				}
				if random.IntN(2) == 0 {
					if err := r.Close(context.Background(), id); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	all.Wait()
	if n := r.Counters.Snapshot()["faults"]; n != 0 {
		t.Errorf("%d faults", n)
	}
}

// TestAHitNeedsNoPass waits until a session has prepared for the likeliest outcome, and takes it.
func TestAHitNeedsNoPass(t *testing.T) {
	r := draftertest.New(t, drafter.Config{TreeRows: 256, Ahead: 200})
	r.Begin(1, r.Text)
	p := draftertest.Proposal(1, r.Text, len(r.Text))
	p.Bounds, p.Ahead, p.Return = tandem.Bounds{Nodes: 4, Depth: 3, Width: 1}, true, true
	first, err := r.Propose(context.Background(), p)
	if err != nil || first.Ahead != 0 || first.Reused != 0 || first.Passes != 3 {
		t.Fatalf("%+v, %v", first, err)
	}
	testkit.Eventually(t, "it goes on ahead no more", func() (idle bool) {
		if err := r.Draft().Sched.Do(context.Background(),
			func() error { idle = r.Draft().Sched.Load().Spare == 0; return nil }); err != nil {
			t.Fatal(err)
		}
		return idle
	})
	o := newOracle(t)
	text := append(slices.Clone(r.Text), first.Tree.Tokens[1])
	_, next := o.sequence(text, 1)
	text = append(text, next[0][1].Token) // not in the chain that was sent
	p = draftertest.Proposal(1, text, len(r.Text))
	p.Bounds, p.Return = tandem.Bounds{Nodes: 4, Depth: 3, Width: 1}, true
	hit, err := r.Propose(context.Background(), p)
	if err != nil || hit.Passes != 0 || hit.Reused != hit.Nodes-1 || hit.Ahead == 0 || hit.Nodes != 4 {
		t.Errorf("%+v, %v", hit, err)
	}
	if want := o.tree(text, p, 256); !reflect.DeepEqual(hit.Tree, want) {
		t.Errorf("got %v\nwant %v", hit.Tree, want)
	}
	if n := r.Counters.Snapshot(); n["ahead.hits"] != 1 || n["ahead.misses"] != 0 {
		t.Errorf("counters %v", n)
	}
}

// TestPlanBoundsTheTree gives costs under which a draft is worth nothing, and costs under which all of it is.
func TestPlanBoundsTheTree(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	r.Begin(1, r.Text)
	p := draftertest.Proposal(1, r.Text, len(r.Text))
	p.Return = true
	steep := make([]time.Duration, 64)
	for i := range steep {
		steep[i] = time.Duration(10*i*i+1) * time.Second // far more than drafting takes, on a busy machine too
	}
	p.Plan.Verify = steep
	if done, err := r.Propose(context.Background(), p); err != nil || done.Nodes != 1 || done.Passes != 1 {
		t.Errorf("every node costs ten seconds: %+v, %v", done, err)
	}
	flat := slices.Repeat([]time.Duration{time.Hour}, 64)
	p.Plan.Verify = flat
	if done, err := r.Propose(context.Background(), p); err != nil || done.Nodes != draftertest.Bounds.Nodes || done.Reused < 1 {
		t.Errorf("nodes cost nothing: %+v, %v", done, err)
	}
	p.Plan.Verify = flat[:5]
	if done, err := r.Propose(context.Background(), p); err != nil || done.Nodes != 5 {
		t.Errorf("costs of 5 widths: %+v, %v", done, err)
	}
}

func TestProposeRefusesShapes(t *testing.T) {
	r := draftertest.New(t, drafter.Config{})
	r.Begin(1, r.Text)
	nan := math.NaN()
	for name, change := range map[string]func(*tandem.Proposal){
		"negative nodes": func(p *tandem.Proposal) { p.Bounds.Nodes = -1 },
		"negative depth": func(p *tandem.Proposal) { p.Bounds.Depth = -1 },
		"negative width": func(p *tandem.Proposal) { p.Bounds.Width = -1 },
		"growth":         func(p *tandem.Proposal) { p.Growth = 3 },
		"branch NaN":     func(p *tandem.Proposal) { p.Branch = nan },
		"branch above 1": func(p *tandem.Proposal) { p.Branch = 1.1 },
		"stop NaN":       func(p *tandem.Proposal) { p.Stop = nan },
		"stop below 0":   func(p *tandem.Proposal) { p.Stop = -0.1 },
		"many costs":     func(p *tandem.Proposal) { p.Plan.Verify = make([]time.Duration, 4097) },
		"negative cost":  func(p *tandem.Proposal) { p.Plan.Verify = []time.Duration{1, -1} },
		"negative round": func(p *tandem.Proposal) { p.Plan.Round = -1 },
		"others NaN":     func(p *tandem.Proposal) { p.Plan.Others = nan },
		"others Inf":     func(p *tandem.Proposal) { p.Plan.Others = math.Inf(1) },
		"few bins":       func(p *tandem.Proposal) { p.Plan.Accept = make([]float32, 3) },
		"accept NaN":     func(p *tandem.Proposal) { p.Plan.Accept = slices.Repeat([]float32{float32(nan)}, tandem.AcceptBins()) },
		"accept above 1": func(p *tandem.Proposal) { p.Plan.Accept = slices.Repeat([]float32{2}, tandem.AcceptBins()) },
	} {
		p := draftertest.Proposal(1, r.Text, len(r.Text))
		change(&p)
		if _, err := r.Propose(context.Background(), p); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
	r.Drafted(draftertest.Proposal(1, r.Text, len(r.Text)))
}
