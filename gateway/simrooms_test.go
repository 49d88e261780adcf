package gateway_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/verifier"
)

const (
	roomsNodes   = 12
	roomsTokens  = 40
	roomsPrompts = 6
	roomsClients = 10
	roomsPages   = 5 // of a verifier: for one session or two
)

// verifying is a verifier's process.
type verifying struct {
	proc
	mu    sync.Mutex
	v     *verifier.Verifier
	model *engine.Model
}

func (v *verifying) room() *verifier.Verifier {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.v
}

// drafting is a drafter's process. It is a tandem.Pool for itself.
type drafting struct {
	proc
	fleet *fleet
	mu    sync.Mutex
	d     *drafter.Drafter
	model *engine.Model
}

func (d *drafting) room() *drafter.Drafter {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.d
}

// box is the whole of it, in one bubble: real rooms with tiny models, and a network with faults.
type box struct {
	t         *testing.T
	n         *web
	counters  *tandem.Counters
	verifiers []*verifying
	drafters  []*drafting
	truth     map[tandem.Identity][roomsPrompts][]tandem.Token
	mild      bool           // faults come one by one, and none costs a request
	running   sync.WaitGroup // subscriptions
	clients   sync.WaitGroup

	mu       sync.Mutex
	gateways []*serving
	owners   uint64
	ends     map[string]int
	slowest  time.Duration // of the requests
	cancels  map[int]context.CancelFunc
	silent   bool
}

// serving is a gateway's process.
type serving struct {
	proc
	g     *gateway.Gateway
	fleet *fleet
	ctx   context.Context // of its subscriptions
	stop  context.CancelFunc
}

// tiny returns a target that says this or that, by its seed, and a draft that guesses it now and then.
func tiny(seed uint64) *family.Model {
	return family.Make("llama", family.Shape{Layers: 1, Dim: 64, Heads: 2, KV: 1, HeadDim: 32, RopeDim: 32, FFN: 64, Words: 8}, seed)
}

func roomsPrompt(i int) []tandem.Token {
	out := []tandem.Token{tandem.Token(3 + i)}
	for j := range 4 + 7*i {
		out = append(out, tandem.Token(5+(i*31+j*17)%200))
	}
	return out
}

func roomsSampling(i int) tandem.Sampling {
	if i%2 == 0 {
		return tandem.Sampling{TopP: 1}
	}
	return tandem.Sampling{Temperature: 0.8, TopP: 0.95, Seed: uint64(i)}
}

// decode is plain decoding.
func decode(t *testing.T, m *engine.Model, i int) []tandem.Token {
	seq, err := m.NewSequence(positions, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	var s sample.Sampler
	prompt := roomsPrompt(i)
	text, sampling := slices.Clone(prompt), roomsSampling(i)
	for len(text) < len(prompt)+roomsTokens {
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: text[seq.Len():], Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		shaped := s.Shape(out.Logits(out.First(0)), sampling, sample.NewHistory(sampling, text, len(prompt)))
		text = append(text, s.Draw(shaped, sampling, tandem.Position(len(text))))
	}
	return text[len(prompt):]
}

// newBox assembles the rooms.
func newBox(t *testing.T, seed uint64, files []string, draft string) *box {
	b := &box{t: t, n: newWeb(seed), counters: new(tandem.Counters), ends: map[string]int{}, cancels: map[int]context.CancelFunc{},
		truth: map[tandem.Identity][roomsPrompts][]tandem.Token{}, mild: seed%2 == 1}
	open := func(file string, p *proc, pages int, pass time.Duration) *engine.Model {
		device := testdevice.Slow(testdevice.CPU(t, 1), func(rows int) time.Duration {
			_, now := b.n.link(p, p)
			return max(pass+time.Duration(rows)*pass/32, time.Until(now.until))
		})
		m, err := engine.Open(file, engine.Options{Device: device, MaxRows: 64, KVPages: pages})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	for i, file := range files {
		v := &verifying{proc: proc{name: fmt.Sprint("verifier", i)}}
		v.model = open(file, &v.proc, roomsPages, 20*time.Millisecond)
		id := v.model.Names().Identity
		if _, there := b.truth[id]; !there {
			var all [roomsPrompts][]tandem.Token
			for j := range all {
				all[j] = decode(t, v.model, j)
			}
			b.truth[id] = all
		}
		b.verifiers = append(b.verifiers, v)
		b.startVerifier(v)
	}
	for i := range 2 {
		d := &drafting{proc: proc{name: fmt.Sprint("drafter", i)}, fleet: &fleet{n: b.n, all: b.verifiers}}
		d.model = open(draft, &d.proc, engine.PagesFor(6, positions, drafter.DefaultTreeRows), 2*time.Millisecond)
		b.drafters = append(b.drafters, d)
		b.startDrafter(d)
	}
	for range 2 {
		b.gateways = append(b.gateways, b.newGateway())
	}
	return b
}

func (b *box) startVerifier(v *verifying) {
	room, err := verifier.New(verifier.Config{Model: v.model, Counters: b.counters})
	if err != nil {
		b.t.Error(err)
	}
	v.mu.Lock()
	v.v = room
	v.mu.Unlock()
	b.n.change(func() { v.down, v.draining = false, false })
}

// kill ends a verifier: calls of it fail at once, and it forgets all. Its model is free when gone is over.
func (b *box) killVerifier(v *verifying) (was bool) {
	b.n.change(func() { was, v.down = !v.down, true })
	if !was {
		return false
	}
	if err := v.room().Shutdown(context.Background()); err != nil {
		b.t.Error(err)
	}
	return true
}

func (b *box) startDrafter(d *drafting) {
	room, err := drafter.New(drafter.Config{Model: d.model, Name: d.name, Pool: d, Counters: b.counters})
	if err != nil {
		b.t.Error(err)
	}
	d.mu.Lock()
	d.d = room
	d.mu.Unlock()
	b.n.change(func() { d.down = false })
}

func (b *box) killDrafter(d *drafting) (was bool) {
	b.n.change(func() { was, d.down = !d.down, true })
	if was {
		if err := d.room().Shutdown(context.Background()); err != nil {
			b.t.Error(err)
		}
	}
	return was
}

// newGateway starts a gateway that is subscribed to all verifiers.
func (b *box) newGateway() *serving {
	b.owners++
	x := &serving{proc: proc{name: fmt.Sprint("gateway", b.owners)}}
	x.ctx, x.stop = context.WithCancel(context.Background())
	x.fleet = &fleet{n: b.n, gw: &x.proc, own: b.owners, all: b.verifiers}
	var enlisted []gateway.Enlisted
	for _, d := range b.drafters {
		enlisted = append(enlisted, gateway.Enlisted{Name: d.name, Drafter: far{b.n, &x.proc, x.fleet.own, d}})
	}
	var err error
	x.g, err = gateway.New(gateway.Config{Vocab: gateway.FromToken(b.verifiers[0].model.Vocab()), Verifier: x.fleet, Drafters: enlisted,
		Recycling: b.owners%2 == 0, Limits: tandem.Limits{Context: positions}, Sessions: 3, Queue: 8, Unread: 16, Counters: b.counters})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, v := range b.verifiers {
		b.running.Go(func() { b.subscribe(x, v) })
	}
	return x
}

// killGateway ends a gateway: nothing of it reaches anybody any more, and its peers drop its sessions when they have missed it for three
// seconds. Another takes its place.
func (b *box) killGateway(i int, long time.Duration) {
	b.mu.Lock()
	x := b.gateways[i]
	b.mu.Unlock()
	was := false
	b.n.change(func() { was, x.down = !x.down, true })
	if !was {
		return
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	x.stop()
	_ = x.g.Shutdown(ended) // its requests are cut short
	testkit.Sleep(3 * time.Second)
	for _, v := range b.verifiers {
		_ = v.room().CloseOwned(context.Background(), x.fleet.own)
	}
	for _, d := range b.drafters {
		_ = d.room().CloseOwned(context.Background(), x.fleet.own)
	}
	testkit.Sleep(long)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gateways[i] = b.newGateway()
}

// subscribe brings a verifier's verdicts to a gateway.
func (b *box) subscribe(x *serving, v *verifying) {
	g, f := x.g, x.fleet
	for x.ctx.Err() == nil {
		testkit.Sleep(50 * time.Millisecond)
		if l, p := b.n.link(f.gw, &v.proc); p.down || l.cut {
			continue
		}
		_ = v.room().Verdicts(x.ctx, tandem.Subscription{Owner: f.own, Began: func() { g.VerifierState(true) },
			Sessions: func() []tandem.SessionID {
				return slices.DeleteFunc(g.Sessions(), func(id tandem.SessionID) bool { return f.at(id) != v })
			},
			Deliver: func(all []tandem.Verdict) {
				for _, a := range all {
					if _, p := b.n.link(f.gw, &v.proc); b.n.chance(p.garbage) {
						a = b.n.corrupt(a)
					}
					b.n.send(&v.proc, f.gw, func() { g.Deliver(a) })
				}
			}})
		g.VerifierState(false)
	}
}

// roomsSink keeps the tokens; it is silent now and then.
type roomsSink struct {
	tokensOf
	ctx  context.Context
	b    *box
	long time.Duration
}

func (s *roomsSink) Delta(d tandem.Delta) error {
	s.b.mu.Lock()
	silent := s.b.silent
	s.b.mu.Unlock()
	if silent {
		select {
		case <-time.After(s.long):
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	return s.tokensOf.Delta(d)
}

// client asks one request after the other until the play is over.
func (b *box) client(c int, over func() bool) {
	for !over() {
		testkit.Sleep(b.n.upTo(15 * time.Second))
		i := b.n.pick(roomsPrompts)
		r := tandem.Request{Tokens: roomsPrompt(i), MaxTokens: 1 + b.n.pick(roomsTokens), IgnoreEOS: true, Sampling: roomsSampling(i),
			Strategy: []tandem.Strategy{"", tandem.StrategyPlanner, tandem.StrategyFixed, tandem.StrategyMinions}[b.n.pick(4)]}
		if b.n.pick(6) > 0 {
			r.Bounds = tandem.Bounds{Nodes: 2 + b.n.pick(roomsNodes-1), Depth: 1 + b.n.pick(4), Width: 1 + b.n.pick(3)}
		}
		for again := true; again; {
			again = b.request(c, i, r)
		}
	}
}

// request asks for a text. It reports whether the gateway died meanwhile, so that it is to be asked again.
func (b *box) request(c, i int, r tandem.Request) (again bool) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.mu.Lock()
	b.cancels[c] = cancel
	x := b.gateways[b.n.pick(len(b.gateways))]
	b.mu.Unlock()
	s := &roomsSink{ctx: ctx, b: b, long: b.n.upTo(45 * time.Second)}
	asked := time.Now()
	res, err := x.g.Generate(ctx, r, s)
	end := tandem.KindOf(err).String()
	if _, p := b.n.link(&x.proc, &x.proc); p.down && err != nil {
		testkit.Sleep(time.Second)
		again, end, err, r.MaxTokens = true, "cut", nil, len(s.tokensOf)
	}
	b.judge(i, r, s.tokensOf, res, err, time.Since(asked))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends[end]++
	return again
}

// judge compares a request's text with the truth.
func (b *box) judge(i int, r tandem.Request, got []tandem.Token, res tandem.Result, err error, took time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	want := b.truth[res.Identity][i]
	if len(got) > 0 && (len(got) > len(want) || !slices.Equal(got, want[:len(got)])) {
		b.t.Errorf("prompt %d: tokens %v, want %v", i, got, want)
	}
	kind := tandem.KindOf(err)
	switch {
	case err == nil && len(got) != r.MaxTokens:
		b.t.Errorf("prompt %d: %d tokens without an error, want %d", i, len(got), r.MaxTokens)
	case err != nil && (b.mild || !slices.Contains([]tandem.Kind{tandem.Unavailable, tandem.Exhausted, tandem.Canceled, tandem.Deadline,
		tandem.Corrupt, tandem.Internal}, kind)): // the last as a garbage verdict says
		b.t.Errorf("prompt %d ends after %v with %v", i, took, err)
	}
	if took > 10*time.Minute {
		b.t.Errorf("prompt %d took %v: %v", i, took, err)
	}
	b.slowest = max(b.slowest, took)
}

// TestRoomsUnderFaults runs gateways, verifiers and drafters with tiny models in virtual time, while processes die, stop and drain and the
// network loses, doubles, delays and cuts: every text is that of plain decoding, or a part of it and a documented error. In the end
// nothing is left.
func TestRoomsUnderFaults(t *testing.T) {
	seeds, lasts := uint64(2), 20*time.Minute
	switch {
	case *long:
		seeds, lasts = 20, time.Hour
	case testing.Short():
		seeds, lasts = 1, 5*time.Minute
	}
	dir := t.TempDir()
	target := tiny(1)
	file := target.Write(t, dir)
	draft := target.Noisy(9, 0.3)
	draft.Name = "draft"
	other := tiny(2)
	other.Name = "other"
	files := []string{file, file, other.Write(t, dir)}
	draftFile := draft.Write(t, dir)
	for seed := uint64(1); seed <= seeds; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			real := time.Now()
			synctest.Test(t, func(t *testing.T) { play(t, seed, files, draftFile, lasts) })
			t.Logf("in %v of real time", time.Since(real).Round(time.Millisecond))
		})
	}
}

// missing names what every play should meet and this one has not met yet.
func (b *box) missing() []string {
	counts := b.counters.Snapshot()
	return slices.DeleteFunc([]string{"sessions.parkings", "tickets.repeated", "verifier.open_deadline", "verifier.open_unavailable",
		"drafter.late_open"}, func(what string) bool { return counts[what] > 0 })
}

// play runs a box for that long, and up to three times as long while something is missing.
func play(t *testing.T, seed uint64, files []string, draft string, long time.Duration) {
	b := newBox(t, seed, files, draft)
	free := func() (out []int) {
		for _, v := range b.verifiers {
			out = append(out, v.model.FreePages())
		}
		for _, d := range b.drafters {
			out = append(out, d.model.FreePages())
		}
		return out
	}
	before, begun := free(), time.Now()
	over := func() bool { // chance decides what comes: the play goes on for what has not come yet
		played := time.Since(begun)
		return played >= long && (b.mild || len(b.missing()) == 0) || played >= 3*long
	}
	for c := range roomsClients {
		b.clients.Go(func() { b.client(c, over) })
	}
	b.faults(over)
	b.clients.Wait()
	b.n.work.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, g := range b.gateways {
		if running, waiting := g.g.Load(); running+waiting > 0 || len(g.g.Sessions()) > 0 {
			t.Errorf("%d sessions run and %d wait after the last request; %v", running, waiting, g.g.Sessions())
		}
		if err := g.g.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	}
	b.n.work.Wait()
	testkit.Sleep(11 * time.Minute) // sessions that nobody could close are dropped when they are idle
	if after := free(); !slices.Equal(before, after) {
		t.Errorf("free pages of verifiers and drafters: %v, want %v", after, before)
	}
	t.Logf("%d steps in %v of virtual time: %v, slowest %v", b.n.steps.Load(), time.Since(begun).Round(time.Second), b.ends,
		b.slowest.Round(time.Millisecond))
	for _, g := range b.gateways {
		g.stop()
	}
	b.running.Wait()
	for _, v := range b.verifiers {
		if !b.killVerifier(v) {
			t.Errorf("%s is down in the end", v.name)
		}
	}
	for _, d := range b.drafters {
		b.killDrafter(d)
	}
	if missing := b.missing(); !b.mild && len(missing) > 0 {
		t.Errorf("nothing came to %q", missing)
	}
	counts := b.counters.Snapshot()
	if testing.Verbose() {
		for _, k := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%s %d", k, counts[k])
		}
	}
}
