package gateway_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// web is the network between processes that are real but for their wires, in the virtual time of a bubble. Whatever passes from one
// process to another is a step.
type web struct {
	steps  atomic.Int64
	work   sync.WaitGroup // messages under way
	mu     sync.Mutex
	rng    *rand.Rand
	links  map[[2]*proc]*wire
	placed map[tandem.SessionID]*proc // the verifier that a session is opened at
}

// proc is a process as the network sees it.
type proc struct {
	name     string
	down     bool
	draining bool
	until    time.Time // it is stopped until then
	slow     time.Duration
	garbage  float64
}

// wire is one direction between two processes.
type wire struct {
	cut          bool
	lose, double float64 // of the tickets and verdicts
	delay        time.Duration
}

func newWeb(seed uint64) *web {
	return &web{rng: rand.New(rand.NewPCG(seed, 37)), links: map[[2]*proc]*wire{}, placed: map[tandem.SessionID]*proc{}}
}

func (n *web) chance(p float64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return p > 0 && n.rng.Float64() < p
}

func (n *web) upTo(d time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(n.rng.Int64N(int64(d) + 1))
}

func (n *web) pick(of int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.IntN(of)
}

// link returns a copy of the link as it is now, and of the process at its end.
func (n *web) link(from, to *proc) (wire, proc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if from.down && from != to {
		return wire{cut: true}, *to
	}
	if l := n.links[[2]*proc{from, to}]; l != nil {
		return *l, *to
	}
	return wire{}, *to
}

// change changes a link or a process.
func (n *web) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// set changes a link; the caller is in change.
func (n *web) set(from, to *proc) *wire {
	k := [2]*proc{from, to}
	if n.links[k] == nil {
		n.links[k] = &wire{}
	}
	return n.links[k]
}

// pass takes one way of a call. A link that is cut is silent until it is whole again, a stopped process until it goes on.
func (n *web) pass(ctx context.Context, from, to *proc) error {
	n.steps.Add(1)
	l, _ := n.link(from, to)
	wait := n.upTo(time.Millisecond) + n.upTo(l.delay)
	if n.chance(l.lose) {
		wait += 200*time.Millisecond + n.upTo(time.Second) // sent again by TCP
	}
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return tandem.Errorf("net", tandem.KindOf(ctx.Err()), "%s to %s: %w", from.name, to.name, ctx.Err())
		}
		switch l, p := n.link(from, to); {
		case l.cut:
			wait = 100 * time.Millisecond
		case p.down:
			return tandem.Errorf("net", tandem.Unavailable, "%s is down", to.name)
		case time.Until(p.until) > 0:
			wait = time.Until(p.until)
		default:
			return nil
		}
	}
}

// call has f run at the other end.
func (n *web) call(ctx context.Context, from, to *proc, f func() error) error {
	if err := n.pass(ctx, from, to); err != nil {
		return err
	}
	err := f()
	if lost := n.pass(ctx, to, from); lost != nil {
		return lost
	}
	return err
}

// send has f run at the other end, never, once or twice.
func (n *web) send(from, to *proc, f func()) {
	l, _ := n.link(from, to)
	copies := 1
	if n.chance(l.double) {
		copies = 2
	}
	for range copies {
		if n.chance(l.lose) {
			continue
		}
		n.work.Go(func() {
			n.steps.Add(1)
			testkit.Sleep(n.upTo(time.Millisecond) + n.upTo(l.delay))
			l, p := n.link(from, to)
			if testkit.Sleep(time.Until(p.until)); !l.cut && !p.down {
				f()
			}
		})
	}
}

// fleet is the verifiers as one gateway sees them: it opens a session at one of them, and asks that one from then on.
type fleet struct {
	n   *web
	gw  *proc
	own uint64
	all []*verifying
}

// choose places a session: anew whenever it is opened. A verifier of another identity is the last choice.
func (f *fleet) choose(o tandem.Opening) *verifying {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	var good, any []*verifying
	for _, v := range f.all {
		if l := f.n.links[[2]*proc{f.gw, &v.proc}]; v.down || v.draining || l != nil && l.cut {
			continue
		}
		if any = append(any, v); o.Identity == v.model.Names().Identity || o.Identity == "" && v != f.all[len(f.all)-1] {
			good = append(good, v)
		}
	}
	if len(good) > 0 {
		any = good
	}
	if len(any) == 0 {
		any = f.all
	}
	i := slices.IndexFunc(any, func(v *verifying) bool { return &v.proc == f.n.placed[o.Session] })
	if i < 0 || f.n.rng.IntN(4) == 0 {
		i = f.n.rng.IntN(len(any))
	}
	return any[i]
}

// at returns the verifier at which a session is opened.
func (f *fleet) at(id tandem.SessionID) *verifying {
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	i := slices.IndexFunc(f.all, func(v *verifying) bool { return &v.proc == f.n.placed[id] })
	if i < 0 {
		return nil
	}
	return f.all[i]
}

// Open implements tandem.Verifier.
func (f *fleet) Open(ctx context.Context, o tandem.Opening) (opened tandem.Opened, err error) {
	v, old := f.choose(o), f.at(o.Session)
	if old != nil && old != v {
		f.n.work.Go(func() { f.closeAt(old, o.Session) })
	}
	f.n.change(func() { f.n.placed[o.Session] = &v.proc })
	o.Owner = f.own
	if tell := o.Progress; tell != nil {
		o.Progress = func(p tandem.Progress) {
			if l, _ := f.n.link(&v.proc, f.gw); !l.cut {
				f.n.steps.Add(1)
				tell(p)
			}
		}
	}
	err = f.n.call(ctx, f.gw, &v.proc, func() (err error) {
		if _, p := f.n.link(f.gw, &v.proc); p.draining {
			return tandem.Errorf("net", tandem.Unavailable, "%s is draining", v.name)
		}
		opened, err = v.room().Open(ctx, o)
		return err
	})
	return opened, err
}

// closeAt closes a session at a verifier that it has left, as long as that may take.
func (f *fleet) closeAt(v *verifying, id tandem.SessionID) {
	for range 30 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		err := f.n.call(ctx, f.gw, &v.proc, func() error {
			if f.at(id) == v {
				return nil // it is back
			}
			return v.room().Close(ctx, id)
		})
		if cancel(); tandem.KindOf(err) != tandem.Deadline {
			return
		}
	}
}

// Close implements tandem.Verifier.
func (f *fleet) Close(ctx context.Context, id tandem.SessionID) error {
	v := f.at(id)
	if v == nil {
		return nil
	}
	return f.n.call(ctx, f.gw, &v.proc, func() error { return v.room().Close(ctx, id) })
}

// Submit implements tandem.Verifier: through the pool, where it may get lost, or by a call.
func (f *fleet) Submit(ctx context.Context, t tandem.Ticket) error {
	v := f.at(t.Session)
	if f.n.chance(0.5) {
		f.n.send(f.gw, &v.proc, func() { _ = v.room().Submit(context.Background(), t) })
		return nil
	}
	return f.n.call(ctx, f.gw, &v.proc, func() error { return v.room().Submit(ctx, t) })
}

// Verdicts implements tandem.Verifier; the world subscribes for the gateway.
func (f *fleet) Verdicts(ctx context.Context, _ tandem.Subscription) error {
	<-ctx.Done()
	return ctx.Err()
}

// Describe implements tandem.Verifier.
func (f *fleet) Describe(context.Context) (tandem.Description, error) {
	return tandem.Description{}, nil
}

// far is a drafter as a gateway sees it.
type far struct {
	n   *web
	gw  *proc
	own uint64
	d   *drafting
}

// Open implements tandem.Drafter.
func (f far) Open(ctx context.Context, o tandem.Opening) (opened tandem.Opened, err error) {
	o.Owner = f.own
	err = f.n.call(ctx, f.gw, &f.d.proc, func() (err error) {
		opened, err = f.d.room().Open(ctx, o)
		return err
	})
	return opened, err
}

// Close implements tandem.Drafter.
func (f far) Close(ctx context.Context, id tandem.SessionID) error {
	return f.n.call(ctx, f.gw, &f.d.proc, func() error { return f.d.room().Close(ctx, id) })
}

// Propose implements tandem.Drafter.
func (f far) Propose(ctx context.Context, p tandem.Proposal) (got tandem.Proposed, err error) {
	err = f.n.call(ctx, f.gw, &f.d.proc, func() (err error) {
		_, d := f.n.link(f.gw, &f.d.proc)
		select {
		case <-time.After(d.slow):
		case <-ctx.Done():
			return ctx.Err()
		}
		if got, err = f.d.room().Propose(ctx, p); err == nil && f.n.chance(d.garbage) {
			got = f.n.garble(got)
		}
		return err
	})
	return got, err
}

// garble returns what no drafter may say.
func (n *web) garble(got tandem.Proposed) tandem.Proposed {
	switch n.pick(4) {
	case 0:
		got.Nodes = -1
	case 1:
		got.Depth = got.Nodes
	case 2:
		got.Hindsight = tandem.Hindsight{Tokens: 3, Hits: 8}
	case 3:
		got.Tree = tandem.Tree{Tokens: []tandem.Token{1, 2}, Parents: []int32{-1, 1}}
	}
	return got
}

// Put implements tandem.Pool for a drafter: its tickets go to the verifier of their session.
func (d *drafting) Put(_ context.Context, t tandem.Ticket) error {
	v := d.fleet.at(t.Session)
	if v == nil {
		return tandem.Errorf("net", tandem.UnknownSession, "nobody verifies session %v", t.Session)
	}
	if _, p := d.fleet.n.link(&d.proc, &d.proc); d.fleet.n.chance(p.garbage) && t.Tree.Len() > 1 {
		t.Tree = tandem.Tree{Tokens: slices.Clone(t.Tree.Tokens), Parents: slices.Clone(t.Tree.Parents)}
		t.Tree.Parents[1] = 1
	}
	d.fleet.n.send(&d.proc, &v.proc, func() { _ = v.room().Submit(context.Background(), t) })
	return nil
}

// corrupt returns what no verifier may say, but for the tokens of the truth.
func (n *web) corrupt(v tandem.Verdict) tandem.Verdict {
	v.Tokens, v.Path = slices.Clone(v.Tokens), slices.Clone(v.Path)
	switch n.pick(7) {
	case 0:
		v.Epoch++
	case 1:
		v.Base++
	case 2:
		v.Hash ^= 1
	case 3:
		v.Tokens = append(v.Tokens, 5)
	case 4:
		v.Tokens = nil
	case 5:
		v.Path, v.Tokens = append(v.Path, 1<<20), append(v.Tokens, 5)
	case 6:
		v.Kind = []tandem.Kind{tandem.Internal, tandem.UnknownSession, tandem.Stale, tandem.Exhausted}[n.pick(4)]
	}
	return v
}
