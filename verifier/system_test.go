package verifier_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/verifier"
)

var (
	greedy  = tandem.Sampling{TopP: 1}
	sampled = tandem.Sampling{Temperature: 0.8, TopK: 200, TopP: 0.95, Seed: 7}
)

func TestSpeculationEqualsPlain(t *testing.T) {
	const tokens = 40
	twin := plain{openModel(t, targetFile, 1)}
	samplings := []tandem.Sampling{greedy, sampled}
	var wants [4][2][]tandem.Token // by prompt and sampling: the same for all trees
	for i := range wants {
		for k, sampling := range samplings {
			wants[i][k] = twin.generate(t, asked{prompt: twin.prompt(prompts[i]), tokens: tokens, sampling: sampling})
		}
	}
	for _, c := range []struct {
		name string
		o    rigOptions
		how  tandem.Proposal
	}{
		{"levels", rigOptions{sessions: 4}, tandem.Proposal{}},
		{"best-first", rigOptions{sessions: 4}, tandem.Proposal{Growth: tandem.GrowBest}},
		{"pacer, ahead", rigOptions{sessions: 4}, tandem.Proposal{Growth: tandem.GrowPacer, Branch: 0.3, Stop: 0.01, Ahead: true}},
		{"few rows, short pieces", rigOptions{sessions: 4, drafter: drafter.Config{TreeRows: 5, Chunk: 3},
			verifier: verifier.Config{Chunk: 5, MaxWaiting: 1}}, tandem.Proposal{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.o)
			var all sync.WaitGroup
			for i, bounds := range []tandem.Bounds{{Nodes: 16, Depth: 7, Width: 10}, {Nodes: 8, Depth: 4, Width: 4},
				{Nodes: 5, Depth: 4, Width: 1}, {}} {
				a := asked{prompt: twin.prompt(prompts[i]), bounds: bounds, tokens: tokens, how: c.how}
				all.Go(func() {
					for k, sampling := range samplings {
						a := a
						a.sampling = sampling
						s, err := r.generate(a)
						if err != nil || !slices.Equal(s.text, wants[i][k]) {
							t.Errorf("%v %+v: %v\n got %v\nwant %v", bounds, sampling, err, s.text, wants[i][k])
						}
						if got := s.rounds + s.accepted; got != tokens {
							t.Errorf("%v: %d rounds and %d accepted for %d tokens", bounds, s.rounds, s.accepted, tokens)
						}
						t.Logf("%-7v %4.1f tokens a round", bounds, float64(tokens)/float64(s.rounds))
					}
				})
			}
			all.Wait()
		})
	}
}

// faultyPool loses, repeats and delays tickets, and slips bad ones in.
type faultyPool struct {
	tandem.Pool
	mu   sync.Mutex
	rng  *rand.Rand
	held *tandem.Ticket
}

func (p *faultyPool) Put(ctx context.Context, t tandem.Ticket) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	bad := t
	switch p.rng.IntN(9) {
	case 0:
		return nil // lost
	case 1:
		if err := p.Pool.Put(ctx, t); err != nil {
			return err
		}
	case 2:
		if p.held != nil {
			bad = *p.held // comes late
		}
		p.held = &t
	case 3:
		bad.Hash++
		bad.Tree = tandem.Root(1)
	case 4:
		t.Tree = tandem.Tree{} // could not be claimed
	case 5:
		bad.Session++
	case 6:
		bad.Epoch, bad.Base = bad.Epoch+1, bad.Base-3
	}
	_ = p.Pool.Put(ctx, bad)
	return p.Pool.Put(ctx, t)
}

func TestFaultsChangeNothing(t *testing.T) {
	const tokens = 40
	twin := plain{openModel(t, targetFile, 1)}
	rng := rand.New(rand.NewPCG(5, 6))
	pool := &faultyPool{rng: rng}
	r := newRig(t, rigOptions{sessions: 6, pool: func(p tandem.Pool) tandem.Pool { pool.Pool = p; return pool }})
	r.patience = 100 * time.Millisecond
	disturb := func(s *stream) {
		pool.mu.Lock()
		what := rng.IntN(12)
		pool.mu.Unlock()
		ctx := context.Background()
		switch what {
		case 0:
			_ = s.v.Close(ctx, s.id)
		case 1:
			_ = s.d.Close(ctx, s.id)
		case 2:
			s.epoch++
			if err := s.open(ctx); err != nil {
				s.t.Error(err)
			}
		case 3: // a gateway that believes in another text
			p := tandem.Proposal{Session: s.id, Epoch: s.epoch, Base: 3, Suffix: []tandem.Token{1, 2, 3}, Bounds: s.bounds}
			if _, err := s.d.Propose(ctx, p); tandem.KindOf(err) != tandem.Stale && tandem.KindOf(err) != tandem.UnknownSession {
				s.t.Errorf("proposal with a wrong hash: %v", err)
			}
		case 4:
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			want := s.ticket()
			_, _ = s.d.Propose(short, tandem.Proposal{Session: s.id, Epoch: s.epoch, Base: want.Base, Hash: want.Hash,
				From: tandem.Position(s.told), Suffix: s.text[s.told:], Bounds: s.bounds})
			cancel()
		}
	}
	var all sync.WaitGroup
	for i := range 6 {
		a := asked{prompt: twin.prompt(prompts[i%len(prompts)]), bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 4}, tokens: tokens,
			sampling: greedy}
		if i%2 == 1 {
			a.sampling = sampled
		}
		want := twin.generate(t, a)
		a.disturb = disturb
		all.Go(func() {
			if s, err := r.generate(a); err != nil || !slices.Equal(s.text, want) {
				t.Errorf("%v\n got %v\nwant %v", err, s.text, want)
			}
		})
	}
	all.Wait()
	n := r.counters.Snapshot()
	for _, name := range []string{"tickets.stale_epoch", "tickets.stale_hash", "tickets.stale_base", "tickets.unknown_session",
		"tickets.repeated"} {
		if n[name] == 0 {
			t.Errorf("%s: none counted in %v", name, n)
		}
	}
	if n["faults"] != 0 {
		t.Errorf("faults in %v", n)
	}
}

// TestTextEndsAtTheLimit fills sessions to their last token: trees must be cut, never the text.
func TestTextEndsAtTheLimit(t *testing.T) {
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{})
	a := asked{prompt: slices.Repeat(twin.prompt(prompts[0]), 20)[:limit-9], sampling: greedy,
		bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 4}, tokens: 9}
	want := twin.generate(t, a)
	s, err := r.generate(a)
	if err != nil || !slices.Equal(s.text, want) {
		t.Fatalf("%v\n got %v\nwant %v", err, s.text, want)
	}
}

// TestCutTrees gives the verifier trees that are deeper than the room a session has left.
func TestCutTrees(t *testing.T) {
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{})
	ctx := context.Background()
	for left := range 5 {
		a := asked{prompt: slices.Repeat(twin.prompt(prompts[0]), 20)[:limit-left], sampling: greedy, tokens: left}
		s := &stream{rig: r, asked: a, id: tandem.NewSessionID(), text: a.prompt}
		s.verdicts = r.expect(s.id)
		if left == 0 {
			if _, err := r.v.Open(ctx, s.opening()); tandem.KindOf(err) != tandem.Invalid {
				t.Errorf("a full session opened: %v, want Invalid", err)
			}
			continue
		}
		if _, err := r.v.Open(ctx, s.opening()); err != nil {
			t.Fatal(err)
		}
		want := twin.generate(t, a)[len(a.prompt):]
		tick := s.ticket()
		tick.Tree = tandem.Root(a.prompt[len(a.prompt)-1])
		for i, tok := range append(slices.Clone(want), 1, 1) { // two deeper than there is room; a wrong sibling before each
			parent := int32(2 * i)
			tick.Tree.Tokens = append(tick.Tree.Tokens, (tok+1)%4096, tok)
			tick.Tree.Parents = append(tick.Tree.Parents, parent, parent)
		}
		if err := tick.Tree.Validate(maxNodes, 4096); err != nil {
			t.Fatal(err)
		}
		if err := r.v.Submit(ctx, tick); err != nil {
			t.Fatal(err)
		}
		v := <-s.verdicts
		var path []int32
		for i := range left - 1 {
			path = append(path, int32(2*i+2))
		}
		if v.Kind != tandem.OK || !slices.Equal(v.Tokens, want) || !slices.Equal(v.Path, path) || v.Nodes != 2*left-1 {
			t.Errorf("%d left: verdict %+v, want tokens %v by path %v", left, v, want, path)
		}
		tick = tandem.Ticket{Session: s.id, Base: limit, Hash: v.Hash.Add(v.Tokens...), Tree: tandem.Root(want[left-1])}
		if err := r.v.Submit(ctx, tick); err != nil {
			t.Fatal(err)
		}
		if v := <-s.verdicts; v.Kind != tandem.Invalid {
			t.Errorf("a ticket for a full session: %+v, want Invalid", v)
		}
		if err := r.v.Close(ctx, s.id); err != nil {
			t.Error(err)
		}
	}
}
