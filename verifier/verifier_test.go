package verifier_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/verifier"
)

// openStream opens a session at the verifier alone.
func openStream(t *testing.T, r *rig, text ...tandem.Token) *stream {
	t.Helper()
	s := &stream{rig: r, asked: asked{sampling: greedy}, id: tandem.NewSessionID(), epoch: 3, text: text}
	s.verdicts = r.expect(s.id)
	if _, err := r.v.Open(context.Background(), s.opening()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stream) ask(t tandem.Ticket) tandem.Verdict {
	s.t.Helper()
	if err := s.v.Submit(context.Background(), t); err != nil {
		s.t.Fatal(err)
	}
	select {
	case v := <-s.verdicts:
		return v
	case <-time.After(30 * time.Second):
		s.t.Fatalf("no verdict on %+v", t)
		return tandem.Verdict{}
	}
}

func TestTicketsAreAnsweredByKind(t *testing.T) {
	r := newRig(t, rigOptions{})
	s := openStream(t, r, 1, 50, 60, 70)
	for _, c := range []struct {
		name    string
		change  func(*tandem.Ticket)
		kind    tandem.Kind
		counter string
		message string
	}{
		{"old epoch", func(t *tandem.Ticket) { t.Epoch-- }, tandem.Stale, "tickets.stale_epoch", "epoch 2: epoch 3 is held"},
		{"new epoch", func(t *tandem.Ticket) { t.Epoch++ }, tandem.Stale, "tickets.stale_epoch", "epoch 4"},
		{"base behind", func(t *tandem.Ticket) { t.Base-- }, tandem.Stale, "tickets.stale_base", "base 3: 4 tokens"},
		{"base ahead", func(t *tandem.Ticket) { t.Base = math.MaxInt32 }, tandem.Stale, "tickets.stale_base", "2147483647"},
		{"base negative", func(t *tandem.Ticket) { t.Base = -4 }, tandem.Stale, "tickets.stale_base", "-4"},
		{"hash", func(t *tandem.Ticket) { t.Hash ^= 1 }, tandem.Stale, "tickets.stale_hash", "hash of 4"},
		{"root", func(t *tandem.Ticket) { t.Tree = tandem.Root(71) }, tandem.Invalid, "tickets.invalid",
			"root is token 71: token 70 is committed at 3"},
		{"no nodes", func(t *tandem.Ticket) { t.Tree.Tokens = []tandem.Token{} }, tandem.Invalid, "tickets.invalid", "no nodes"},
		{"vocabulary", func(t *tandem.Ticket) {
			t.Tree = tandem.Tree{Tokens: []tandem.Token{70, 4096}, Parents: []int32{-1, 0}}
		}, tandem.Invalid, "tickets.invalid", "4096"},
		{"too wide", func(t *tandem.Ticket) {
			for i := range maxNodes {
				t.Tree.Tokens, t.Tree.Parents = append(t.Tree.Tokens, tandem.Token(i)), append(t.Tree.Parents, 0)
			}
		}, tandem.Invalid, "tickets.invalid", "17 nodes"},
		{"parents", func(t *tandem.Ticket) {
			t.Tree = tandem.Tree{Tokens: []tandem.Token{70, 1}, Parents: []int32{-1, math.MaxInt32}}
		}, tandem.Invalid, "tickets.invalid", "parent"},
	} {
		tick := s.ticket()
		c.change(&tick)
		before := r.counters.Snapshot()[c.counter]
		v := s.ask(tick)
		if v.Kind != c.kind || !strings.Contains(v.Message, c.message) || v.Base != tick.Base || v.Epoch != tick.Epoch ||
			v.Hash != tick.Hash {
			t.Errorf("%s: %+v, want %v with %q", c.name, v, c.kind, c.message)
		}
		if got := r.counters.Snapshot()[c.counter]; got != before+1 {
			t.Errorf("%s: %s went from %d to %d", c.name, c.counter, before, got)
		}
	}
	lost := tandem.Ticket{Session: 12345}
	verdicts := r.expect(lost.Session)
	if err := r.v.Submit(context.Background(), lost); err != nil {
		t.Fatal(err)
	}
	if v := <-verdicts; v.Kind != tandem.UnknownSession || r.counters.Snapshot()["tickets.unknown_session"] != 1 {
		t.Errorf("unknown session: %+v", v)
	}
	unclaimed := s.ticket()
	unclaimed.Tree = tandem.Tree{}
	v := s.ask(unclaimed)
	if v.Kind != tandem.OK || len(v.Tokens) != 1 || v.Nodes != 1 || v.Batch != 1 || v.Busy <= 0 {
		t.Errorf("a ticket whose tree was lost: %+v", v)
	}
	again := s.ask(s.ticket())
	if !slices.Equal(again.Tokens, v.Tokens) || r.counters.Snapshot()["verdicts"] != 1 {
		t.Errorf("asked again: %+v, first %+v; counters %v", again, v, r.counters.Snapshot())
	}
	s.text = append(s.text, v.Tokens...)
	if v = s.ask(s.ticket()); v.Kind != tandem.OK {
		t.Errorf("next round: %+v", v)
	}
	old := tandem.Ticket{Session: s.id, Epoch: s.epoch, Base: 4, Hash: tandem.EmptyPrefix.Add(1, 50, 60, 70), Tree: tandem.Root(70)}
	if v = s.ask(old); v.Kind != tandem.Stale {
		t.Errorf("a ticket two rounds old: %+v", v)
	}
}

// TestGarbageHarmsNobody floods the verifier with random tickets for a session that goes on.
func TestGarbageHarmsNobody(t *testing.T) {
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{})
	a := asked{prompt: twin.prompt(prompts[0]), sampling: sampled, bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 4}, tokens: 16}
	want := twin.generate(t, a)
	rng := rand.New(rand.NewPCG(8, 9))
	a.disturb = func(s *stream) {
		for range 20 {
			bad := s.ticket()
			bad.Tree = randomTree(rng, bad.Tree.Tokens[0], 4096)
			n := rng.IntN(bad.Tree.Len())
			switch rng.IntN(5) {
			case 0:
				bad.Tree.Tokens[n] = tandem.Token(rng.Uint32())
			case 1:
				bad.Tree.Parents[n] = int32(rng.Uint32())
			case 2:
				bad.Tree.Parents = bad.Tree.Parents[:n]
			case 3:
				bad.Tree.LogProbs = make([]float32, n)
				bad.Hash++
			case 4:
				bad.Base, bad.Epoch = tandem.Position(rng.Uint32()), tandem.Epoch(rng.IntN(3))
			}
			_ = s.v.Submit(context.Background(), bad)
		}
	}
	for range 3 {
		s, err := r.generate(a)
		if err != nil && tandem.KindOf(err) == tandem.Internal { // the rig's stream takes an Invalid verdict as its own
			continue
		}
		if err != nil || !slices.Equal(s.text, want) {
			t.Errorf("%v\n got %v\nwant %v", err, s.text, want)
		}
	}
	a.disturb = nil
	if s, err := r.generate(a); err != nil || !slices.Equal(s.text, want) {
		t.Errorf("afterwards: %v\n got %v\nwant %v", err, s.text, want)
	}
	if n := r.counters.Snapshot(); n["faults"] != 0 || n["tickets.invalid"] == 0 {
		t.Errorf("counters %v", n)
	}
}

func TestOpenRefuses(t *testing.T) {
	r := newRig(t, rigOptions{})
	good := tandem.Opening{Session: 9, Epoch: 2, Tokens: []tandem.Token{1, 2}, Limit: 10, MaxNodes: 4, Sampling: greedy}
	ctx := context.Background()
	if _, err := r.v.Open(ctx, good); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*tandem.Opening)
		kind   tandem.Kind
	}{
		"no session":     {func(o *tandem.Opening) { o.Session = 0 }, tandem.Invalid},
		"no tokens":      {func(o *tandem.Opening) { o.Tokens = nil }, tandem.Invalid},
		"vocabulary":     {func(o *tandem.Opening) { o.Tokens = []tandem.Token{4096} }, tandem.Invalid},
		"limit":          {func(o *tandem.Opening) { o.Limit = 2 }, tandem.Invalid},
		"negative limit": {func(o *tandem.Opening) { o.Limit = -1 }, tandem.Invalid},
		"nodes":          {func(o *tandem.Opening) { o.MaxNodes = 0 }, tandem.Invalid},
		"too many nodes": {func(o *tandem.Opening) { o.MaxNodes = 1000 }, tandem.Invalid},
		"temperature":    {func(o *tandem.Opening) { o.Sampling.Temperature = math.NaN() }, tandem.Invalid},
		"old epoch":      {func(o *tandem.Opening) { o.Epoch = 1 }, tandem.Stale},
		"never fits":     {func(o *tandem.Opening) { o.Session, o.Limit = 10, 1000 }, tandem.Invalid},
		"no memory": {func(o *tandem.Opening) {
			o.Session, o.Tokens, o.Limit, o.MaxNodes = 10, make([]tandem.Token, 705), 768, 1
		}, tandem.Exhausted},
		"same epoch":      {func(o *tandem.Opening) {}, tandem.OK},
		"a later epoch":   {func(o *tandem.Opening) { o.Epoch = 5 }, tandem.OK},
		"another session": {func(o *tandem.Opening) { o.Session = 11 }, tandem.OK},
	} {
		o := good
		c.change(&o)
		if _, err := r.v.Open(ctx, o); tandem.KindOf(err) != c.kind {
			t.Errorf("%s: %v, want %v", name, err, c.kind)
		}
		if c.kind == tandem.OK {
			_ = r.v.Close(ctx, o.Session)
			if _, err := r.v.Open(ctx, good); err != nil {
				t.Error(err)
			}
		}
	}
	if err := r.v.Close(ctx, 777); err != nil {
		t.Errorf("closing an unknown session: %v", err)
	}
	before := r.counters.Snapshot()["sessions.orphaned"]
	if err := errors.Join(r.v.CloseOwned(ctx, 7), r.v.CloseOwned(ctx, 0)); err != nil {
		t.Error(err)
	}
	if n := r.counters.Snapshot()["sessions.orphaned"] - before; n != 1 {
		t.Errorf("%d sessions closed with their owners: want 1, of owner 0 alone", n)
	}
	if _, err := r.v.Open(ctx, tandem.Opening{Session: 10, Tokens: []tandem.Token{1}, Limit: 2 * limit, MaxNodes: 1,
		Sampling: greedy}); err != nil {
		t.Errorf("all memory should be free: %v", err)
	}
}

// TestCancelledOpenFreesItsMemory gives a long prefill up in the middle.
func TestCancelledOpenFreesItsMemory(t *testing.T) {
	r := newRig(t, rigOptions{sessions: 1, verifier: verifier.Config{Chunk: 4}})
	o := tandem.Opening{Session: 5, Tokens: slices.Repeat([]tandem.Token{5, 6, 7}, 60), Limit: limit, MaxNodes: 4, Sampling: greedy}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Millisecond)
	defer cancel()
	if _, err := r.v.Open(ctx, o); !errors.Is(err, tandem.Deadline) {
		t.Skipf("prefill ended before its deadline: %v", err)
	}
	begun := time.Now()
	o.Session = 6
	for {
		_, err := r.v.Open(context.Background(), tandem.Opening{Session: 6, Tokens: []tandem.Token{1}, Limit: limit, MaxNodes: 4,
			Sampling: greedy})
		if err == nil {
			break
		}
		if !errors.Is(err, tandem.Exhausted) || time.Since(begun) > 30*time.Second {
			t.Fatalf("memory not free after %v: %v", time.Since(begun), err)
		}
	}
	if d := time.Since(begun); d > 50*time.Millisecond {
		t.Logf("freed after %v: busy machine", d)
	}
}

func TestIdleSessionsAreDropped(t *testing.T) {
	r := newRig(t, rigOptions{verifier: verifier.Config{Idle: 20 * time.Millisecond}})
	s := openStream(t, r, 1, 2, 3)
	testkit.Eventually(t, "the session is dropped", func() bool { return r.counters.Snapshot()["sessions.idle"] > 0 })
	if v := s.ask(s.ticket()); v.Kind != tandem.UnknownSession {
		t.Errorf("after the drop: %+v", v)
	}
}

func TestShutdownEndsOpens(t *testing.T) {
	begun := make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	r := newRig(t, rigOptions{verifier: verifier.Config{Chunk: 1, Events: tandem.Events{
		BeginFunc: func(ctx context.Context, _ tandem.Stage, _ []tandem.Attr) (context.Context, tandem.End) {
			begin()
			return ctx, func(error, ...tandem.Attr) {}
		}}}})
	ended := make(chan error, 1)
	go func() {
		_, err := r.v.Open(context.Background(), tandem.Opening{Session: 5, Tokens: slices.Repeat([]tandem.Token{5}, limit-1), Limit: limit,
			MaxNodes: 4, Sampling: greedy})
		ended <- err
	}()
	<-begun
	if err := r.v.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil && !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Open during shutdown: %v, want Unavailable", err)
	}
	if _, err := r.v.Open(context.Background(), tandem.Opening{Session: 6, Tokens: []tandem.Token{1}, Limit: 5,
		MaxNodes: 1}); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("Open after shutdown: %v, want Unavailable", err)
	}
}

// recorder counts the stages that were begun and ended.
type recorder struct {
	mu     sync.Mutex
	begun  map[tandem.Stage]int
	ended  map[tandem.Stage]int
	links  []string
	adopts []string
	last   map[string]tandem.Attr // of the last process stage that ended
}

func (e *recorder) events() tandem.Events {
	e.begun, e.ended, e.last = map[tandem.Stage]int{}, map[tandem.Stage]int{}, map[string]tandem.Attr{}
	return tandem.Events{
		BeginFunc: func(ctx context.Context, s tandem.Stage, attrs []tandem.Attr) (context.Context, tandem.End) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.begun[s]++
			for _, a := range attrs {
				if a.Key == "link" {
					e.links = append(e.links, a.Str)
				}
			}
			return ctx, func(_ error, attrs ...tandem.Attr) {
				e.mu.Lock()
				defer e.mu.Unlock()
				e.ended[s]++
				for _, a := range attrs {
					e.last[a.Key] = a
				}
			}
		},
		AdoptFunc: func(ctx context.Context, carrier string) context.Context {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.adopts = append(e.adopts, carrier)
			return ctx
		},
	}
}

func TestStages(t *testing.T) {
	rec := &recorder{}
	r := newRig(t, rigOptions{verifier: verifier.Config{Events: rec.events()}})
	s := openStream(t, r, 1, 50, 60)
	tick := s.ticket()
	tick.Trace = "sender"
	s.ask(tick)
	s.ask(tick)
	tick.Epoch++
	s.ask(tick)
	tick.Session++
	_ = r.v.Submit(context.Background(), tick)
	if err := r.v.Close(context.Background(), s.id); err != nil { // runs after what was answered above
		t.Fatal(err)
	}
	s.ask(s.ticket())
	if err := r.v.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	for stage, want := range map[tandem.Stage]int{tandem.StageOpen: 1, tandem.StageProcess: 5, tandem.StageVerify: 1} {
		if rec.begun[stage] != want || rec.ended[stage] != want {
			t.Errorf("%s: %d begun, %d ended, want %d", stage, rec.begun[stage], rec.ended[stage], want)
		}
	}
	if len(rec.links) != 4 || rec.links[0] != "sender" || !slices.Equal(rec.adopts, rec.links) {
		t.Errorf("links %v, adopted %v", rec.links, rec.adopts)
	}
	if rec.last["outcome"].Str != "unknown_session" {
		t.Errorf("last outcome %v", rec.last["outcome"])
	}
}

// TestDistribution checks by chi-square that decoding with random trees draws from the distribution that
// plain sampling draws from, truncated by top-p, and that a rule that is only nearly right does not.
func TestDistribution(t *testing.T) {
	const draws, vocab = 120_000, 12
	rng := rand.New(rand.NewPCG(11, 12))
	logits := make([][]float32, vocab+1) // after each token; the last at the root
	for i := range logits {
		for range vocab {
			logits[i] = append(logits[i], float32(rng.NormFloat64()*1.5))
		}
	}
	p := tandem.Sampling{Temperature: 1, TopP: 0.9}
	var s sample.Sampler
	// chi returns chi-square in standard deviations above its mean.
	chi := func(accept func(tandem.Tree, func(int32) tandem.Token) []tandem.Token) float64 {
		n, total := [vocab][vocab]float64{}, [vocab]float64{}
		for i := range draws {
			p.Seed = uint64(i)
			tree := randomTree(rng, 0, vocab)
			if tree.Validate(maxNodes, vocab) != nil { // equal siblings
				tree = tandem.Root(0)
			}
			depths, _ := tree.Depths()
			got := accept(tree, func(node int32) tandem.Token {
				from := vocab
				if node > 0 {
					from = int(tree.Tokens[node])
				}
				return s.Draw(logits[from], p, tandem.Position(depths[node]))
			})
			if len(got) == 1 { // the next round draws the second token
				got = append(got, s.Draw(logits[got[0]], p, 1))
			}
			n[got[0]][got[1]]++
			total[got[0]]++
		}
		sum, cells := 0.0, 0.0
		count := func(distribution []sample.Prob, seen [vocab]float64, all float64) {
			for _, q := range distribution {
				e := q.P * all
				sum += (seen[q.Token] - e) * (seen[q.Token] - e) / max(e, 1)
				cells++
				seen[q.Token] = 0
			}
			for _, outside := range seen {
				sum += outside * draws
			}
			cells--
		}
		count(s.Distribution(logits[vocab], p), total, draws)
		for a := range vocab {
			if total[a] > 0 {
				count(s.Distribution(logits[a], p), n[a], total[a])
			}
		}
		return (sum - cells) / math.Sqrt(2*cells)
	}
	right := chi(func(t tandem.Tree, draw func(int32) tandem.Token) []tandem.Token {
		_, tokens := spec.Accept(t, draw)
		return tokens
	})
	wrong := chi(func(t tandem.Tree, draw func(int32) tandem.Token) []tandem.Token {
		_, tokens := spec.Accept(t, draw)
		if t.Len() > 1 && rng.IntN(8) == 0 && tokens[0] != 0 { // takes the likeliest for granted, once in 8
			tokens = []tandem.Token{sample.Argmax(logits[vocab])}
		}
		return tokens
	})
	if right > 5 || wrong < 20 {
		t.Errorf("chi-square is %.1f deviations above its mean, of a broken rule %.1f; want at most 5 and at least 20", right, wrong)
	}
}
