package verifier_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/mempool"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/verifier"
)

const (
	targetFile = "../models/gopher-19m-q8_0.gguf"
	draftFile  = "../models/gopher-draft-all-f16.gguf"
	maxNodes   = 16
	limit      = 192
)

var prompts = []string{
	"func (r *Reader) Read(p []byte) (n int, err error) {\n",
	"def __init__(self, name):\n        ",
	"The standard library provides a",
	"package main\n\nimport (\n\t\"fmt\"\n",
}

func openModel(t testing.TB, file string, sessions int) *engine.Model {
	t.Helper()
	return openThreads(t, file, sessions, 1)
}

// openPool opens a model whose sessions share so many pages.
func openPool(t testing.TB, file string, pages int) *engine.Model {
	t.Helper()
	m, err := engine.Open(file, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192, KVPages: pages})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func openThreads(t testing.TB, file string, sessions, threads int) *engine.Model {
	t.Helper()
	m, err := engine.Open(file, engine.Options{Device: testdevice.CPU(t, threads), MaxRows: 192,
		KVPages: engine.PagesFor(sessions, limit, drafter.DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// rig is drafter, pool and verifier in one process, and as much of a gateway as tests need.
type rig struct {
	t        testing.TB
	v        *verifier.Verifier
	d        *drafter.Drafter
	pool     tandem.Pool // what the drafter's tickets go through
	counters *tandem.Counters
	patience time.Duration // for a verdict, before the ticket counts as lost

	mu      sync.Mutex
	waiting map[tandem.SessionID]chan tandem.Verdict
}

type rigOptions struct {
	verifier verifier.Config
	drafter  drafter.Config
	pool     func(tandem.Pool) tandem.Pool // put between drafter and verifier
	sessions int
	draft    string // file of the draft model, if not draftFile
	// side makes the draft one that reads hidden states of the target, which the verifier's model hands out: a file of
	// engine/testdata/sides, with the target there unless verifier.Model is set.
	side   string
	source func(tandem.FeatureSource) tandem.FeatureSource // put between verifier and drafter
	alone  bool                                            // no drafter: every request has its trees from elsewhere
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, counters: &tandem.Counters{}, patience: 20 * time.Second,
		waiting: map[tandem.SessionID]chan tandem.Verdict{}}
	if o.verifier.Model == nil {
		o.verifier.Model = openModel(t, targetFile, max(o.sessions, 2))
	}
	o.verifier.Counters = r.counters
	if o.side != "" {
		o.drafter.Model, o.drafter.Taps = openSide(t, o.side, max(o.sessions, 2))
	}
	if o.drafter.Model == nil && !o.alone {
		o.drafter.Model = openModel(t, cmp.Or(o.draft, draftFile), max(o.sessions, 2))
	}
	o.drafter.Counters, o.drafter.Name = r.counters, "test"
	var err error
	if r.v, err = verifier.New(o.verifier); err != nil {
		t.Fatal(err)
	}
	if r.pool = (mempool.Pool{Verifier: r.v}); o.pool != nil {
		r.pool = o.pool(r.pool)
	}
	o.drafter.Pool = r.pool
	if len(o.drafter.Taps) > 0 {
		if o.drafter.Features = r.v; o.source != nil {
			o.drafter.Features = o.source(r.v)
		}
	}
	shutdown := []func(context.Context) error{r.v.Shutdown}
	if !o.alone {
		if r.d, err = drafter.New(o.drafter); err != nil {
			t.Fatal(err)
		}
		shutdown = append(shutdown, r.d.Shutdown)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	subscribe(ctx, &running, r.v, r.deliver)
	t.Cleanup(func() {
		cancel()
		running.Wait()
		for _, stop := range shutdown {
			if err := stop(context.Background()); err != nil {
				t.Error(err)
			}
		}
		if _, test := t.(*testing.T); test { // a benchmark's own goroutines wait for it
			goleak.VerifyNone(t)
		}
	})
	return r
}

// subscribe has v's verdicts delivered until ctx ends.
func subscribe(ctx context.Context, running *sync.WaitGroup, v tandem.Verifier, deliver func(tandem.Verdict)) {
	began := make(chan struct{})
	running.Go(func() {
		_ = v.Verdicts(ctx, tandem.Subscription{Began: func() { close(began) }, Deliver: func(all []tandem.Verdict) {
			for _, x := range all {
				deliver(x)
			}
		}})
	})
	<-began
}

// deliver takes a verdict from the verifier; those nobody waits for are forgotten.
func (r *rig) deliver(v tandem.Verdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.waiting[v.Session] <- v:
	default:
	}
}

func (r *rig) expect(id tandem.SessionID) chan tandem.Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan tandem.Verdict, 100)
	r.waiting[id] = c
	return c
}

type asked struct {
	tenant   string
	prompt   []tandem.Token
	sampling tandem.Sampling
	bounds   tandem.Bounds
	how      tandem.Proposal // Growth, Branch, Stop and Ahead of the session's proposals
	tokens   int
	limit    int           // positions; 0: limit
	disturb  func(*stream) // called before each round
	seen     func(tandem.Verdict)
	enough   func() bool               // ends the text before it has all its tokens
	tree     func(*stream) tandem.Tree // of each round, in place of the drafter's
}

// stream is one request as the rig's gateway sees it.
type stream struct {
	*rig
	asked
	id       tandem.SessionID
	epoch    tandem.Epoch
	text     []tandem.Token
	told     int // tokens that the drafter knows
	verdicts chan tandem.Verdict
	rounds   int
	accepted int
	reused   int // tokens that the verifier had in memory
}

func (r *rig) generate(a asked) (*stream, error) {
	s := &stream{rig: r, asked: a, id: tandem.NewSessionID(), text: slices.Clone(a.prompt)}
	s.verdicts = r.expect(s.id)
	ctx := context.Background()
	defer func() {
		if _ = r.v.Close(ctx, s.id); r.d != nil {
			_ = r.d.Close(ctx, s.id)
		}
	}()
	if err := s.open(ctx); err != nil {
		return s, err
	}
	for len(s.text) < len(a.prompt)+a.tokens && (a.enough == nil || !a.enough()) {
		if a.disturb != nil {
			a.disturb(s)
		}
		if err := s.round(ctx); err != nil {
			return s, err
		}
	}
	s.text = s.text[:min(len(s.text), len(a.prompt)+a.tokens)]
	return s, nil
}

func (s *stream) opening() tandem.Opening {
	return tandem.Opening{Session: s.id, Epoch: s.epoch, Tenant: s.tenant, Tokens: s.text,
		Limit: tandem.Position(cmp.Or(s.limit, limit)), MaxNodes: maxNodes,
		Prompt: len(s.prompt), Sampling: s.sampling, Features: true}
}

func (s *stream) open(ctx context.Context) error {
	opened, err := s.v.Open(ctx, s.opening())
	if err != nil {
		return err
	}
	s.reused, s.told = opened.Reused, len(s.text)
	if s.d == nil {
		return nil
	}
	if _, err = s.d.Open(ctx, s.opening()); tandem.KindOf(err) == tandem.Exhausted {
		return nil // then there are no trees for a while
	}
	return err
}

// reopen opens the session in its next epoch, as soon as there is memory for it.
func (s *stream) reopen(ctx context.Context) (err error) {
	s.epoch++
	testkit.Until(func() bool {
		err = s.open(ctx)
		return tandem.KindOf(err) != tandem.Exhausted
	})
	return err
}

// patiently generates as soon as there is memory for it.
func (r *rig) patiently(a asked) (s *stream, err error) {
	testkit.Until(func() bool {
		s, err = r.generate(a)
		return tandem.KindOf(err) != tandem.Exhausted
	})
	return s, err
}

func (s *stream) ticket() tandem.Ticket {
	return tandem.Ticket{Session: s.id, Epoch: s.epoch, Base: tandem.Position(len(s.text)),
		Hash: tandem.EmptyPrefix.Add(s.text...), Tree: tandem.Root(s.text[len(s.text)-1])}
}

func (s *stream) round(ctx context.Context) error {
	want := s.ticket()
	if s.tree != nil {
		want.Tree = s.tree(s)
		if err := s.v.Submit(ctx, want); err != nil {
			return err
		}
		return s.await(want)
	}
	bounds := s.bounds
	bounds.Depth = min(bounds.Depth, s.tokens-(len(s.text)-len(s.prompt))-1)
	p, err := s.d.Propose(ctx, tandem.Proposal{Session: s.id, Epoch: s.epoch, Base: want.Base, Hash: want.Hash,
		From: tandem.Position(s.told), Suffix: s.text[s.told:], Bounds: bounds,
		Growth: s.how.Growth, Branch: s.how.Branch, Stop: s.how.Stop, Ahead: s.how.Ahead})
	switch {
	case err == nil:
		s.told = len(s.text)
		if p.Nodes < 1 || p.Nodes > max(bounds.Nodes, 1) || p.Depth > bounds.Depth {
			return fmt.Errorf("proposed %+v for %v", p, bounds)
		}
	case tandem.KindOf(err) == tandem.UnknownSession || tandem.KindOf(err) == tandem.Stale:
		s.told = len(s.text)
		if _, err := s.d.Open(ctx, s.opening()); err != nil && tandem.KindOf(err) != tandem.Exhausted {
			return err
		}
		fallthrough
	default:
		if err := s.v.Submit(ctx, want); err != nil {
			return err
		}
	}
	return s.await(want)
}

// await takes the verdict on a ticket, which is put again if it is late.
func (s *stream) await(want tandem.Ticket) error {
	ctx := context.Background()
	lost := time.NewTimer(s.patience)
	defer lost.Stop()
	for {
		select {
		case v := <-s.verdicts:
			if v.Epoch != want.Epoch || v.Base != want.Base || v.Hash != want.Hash {
				continue
			}
			switch v.Kind {
			case tandem.OK:
				if len(v.Tokens) != len(v.Path)+1 {
					return fmt.Errorf("verdict %+v", v)
				}
				if s.seen != nil {
					s.seen(v)
				}
				s.text = append(s.text, v.Tokens...)
				s.rounds, s.accepted = s.rounds+1, s.accepted+len(v.Path)
				return nil
			case tandem.UnknownSession, tandem.Stale, tandem.Exhausted:
				return s.reopen(ctx)
			default:
				return fmt.Errorf("verdict %v: %s", v.Kind, v.Message)
			}
		case <-lost.C:
			lost.Reset(s.patience)
			if err := s.v.Submit(ctx, want); err != nil && tandem.KindOf(err) != tandem.Exhausted {
				return err
			}
		}
	}
}

// plain is decoding without any of what is tested: one token a pass, drawn from its logits.
type plain struct{ m *engine.Model }

func (p plain) generate(t testing.TB, a asked) []tandem.Token {
	t.Helper()
	text, _ := p.explain(t, a)
	return text
}

// explain is generate with the log-probabilities of what it has drawn, if they are wanted. It counts the text anew
// for every token.
func (p plain) explain(t testing.TB, a asked) (text []tandem.Token, logprobs []tandem.Logprob) {
	t.Helper()
	seq, err := p.m.NewSequence(min(cmp.Or(a.limit, limit), p.m.Config().Context), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	var s sample.Sampler
	text = slices.Clone(a.prompt)
	for len(text) < len(a.prompt)+a.tokens {
		out, err := p.m.Forward([]engine.Part{{Seq: seq, Extend: text[seq.Len():], Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		logits := out.Logits(out.First(0))
		shaped := s.Shape(logits, a.sampling, sample.NewHistory(a.sampling, text, len(a.prompt)))
		x := s.Draw(shaped, a.sampling, tandem.Position(len(text)))
		if a.sampling.Logprobs {
			logprobs = append(logprobs, s.Logprob(logits, x, a.sampling.TopLogprobs))
		}
		text = append(text, x)
	}
	return text, logprobs
}

func (p plain) prompt(text string) []tandem.Token { return p.m.Vocab().Encode(text, true) }

func randomTree(r *rand.Rand, root tandem.Token, vocab int) tandem.Tree {
	t := tandem.Root(root)
	for range r.IntN(maxNodes) {
		t.Tokens = append(t.Tokens, tandem.Token(r.IntN(vocab)))
		t.Parents = append(t.Parents, int32(r.IntN(len(t.Parents))))
	}
	return t
}
