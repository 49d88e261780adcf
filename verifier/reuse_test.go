package verifier_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/verifier"
)

// TestSharedPrefixesChangeNothing: chats of two tenants, some with the same words, go on for turns, with less memory than what
// is kept of them would like; sessions are closed, opened again and dropped on the way. Every turn's text is that of decoding it
// anew.
func TestSharedPrefixesChangeNothing(t *testing.T) {
	twin := plain{openModel(t, targetFile, 1)}
	m := openPool(t, targetFile, 9)
	r := newRig(t, rigOptions{sessions: 3, verifier: verifier.Config{Model: m, Chunk: 48}})
	const chats, turns, tokens = 6, 3, 12
	var all sync.WaitGroup
	var models sync.Mutex // the twin's
	for chat := range chats {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(chat), 5))
			a := asked{tenant: fmt.Sprint(chat % 2), prompt: twin.prompt(prompts[chat%2] + prompts[2] + prompts[3]), tokens: tokens,
				bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 4}}
			a.disturb = func(s *stream) {
				switch rng.IntN(8) {
				case 0:
					_ = s.v.Close(context.Background(), s.id)
				case 1:
					_ = s.d.Close(context.Background(), s.id)
				case 2:
					s.epoch++
					_ = s.open(context.Background()) // if there is no memory the round will try again
				}
			}
			for turn := range turns {
				a.sampling = []tandem.Sampling{greedy, sampled}[rng.IntN(2)]
				models.Lock()
				want := twin.generate(t, a)
				models.Unlock()
				if s, err := r.patiently(a); err != nil || !slices.Equal(s.text, want) {
					t.Errorf("chat %d, turn %d: %v\n got %v\nwant %v", chat, turn, err, s.text, want)
				}
				a.prompt = append(slices.Clone(want), twin.prompt(prompts[rng.IntN(4)])[1:]...)
			}
		})
	}
	all.Wait()
	for other := range 8 { // more tenants than there is memory for what they leave
		a := asked{tenant: fmt.Sprint("other ", other), prompt: twin.prompt(prompts[0] + prompts[2] + prompts[3]), tokens: 4,
			bounds: tandem.Bounds{Nodes: 4, Depth: 3, Width: 1}, sampling: greedy}
		if s, err := r.generate(a); err != nil || !slices.Equal(s.text, twin.generate(t, a)) {
			t.Errorf("%s: %v, text %v", a.tenant, err, s.text)
		}
	}
	if err := r.v.CloseOwned(context.Background(), 0); err != nil {
		t.Error(err)
	}
	n := r.counters.Snapshot()
	t.Logf("counters %v", n)
	if m.FreePages() != m.Pages() || n["faults"] != 0 || n["prefix.reused_tokens"] < 1000 || n["prefix.evicted_pages"] == 0 {
		t.Errorf("%d of %d pages are free, counters %v", m.FreePages(), m.Pages(), n)
	}
	m.Prefixes().Drop()
	if m.Prefixes().Kept() != 0 || m.FreePages() != m.Pages() {
		t.Errorf("after all was forgotten %d pages are kept, %d of %d free", m.Prefixes().Kept(), m.FreePages(), m.Pages())
	}
}

// TestManyOnATinyPool: sessions together want many times the memory that verifier and drafter have. Each gets its turn, is dropped for
// older ones and opened again, and says the text that it says alone. The drafter's lack of memory costs guesses, never a request.
func TestManyOnATinyPool(t *testing.T) {
	const sessions, tokens = 6, 100
	twin := plain{openModel(t, targetFile, 1)}
	pages := engine.PagesFor(1, limit, maxNodes) + 1
	m, draft := openPool(t, targetFile, pages), openPool(t, draftFile, pages)
	r := newRig(t, rigOptions{verifier: verifier.Config{Model: m, Chunk: 48}, drafter: drafter.Config{Model: draft, TreeRows: maxNodes}})
	var all sync.WaitGroup
	var models sync.Mutex // the twin's
	for i := range sessions {
		all.Go(func() {
			a := asked{tenant: fmt.Sprint(i % 2), prompt: twin.prompt(prompts[i%4] + prompts[(i+1)%4]), tokens: tokens,
				bounds: tandem.Bounds{Nodes: 12, Depth: 6, Width: 4}, sampling: []tandem.Sampling{greedy, sampled}[i%2]}
			models.Lock()
			want := twin.generate(t, a)
			models.Unlock()
			s, err := r.patiently(a) // a gateway has those wait that have not begun
			if err != nil || !slices.Equal(s.text, want) {
				t.Errorf("session %d: %v\n got %v\nwant %v", i, err, s.text, want)
			}
		})
	}
	all.Wait()
	n := r.counters.Snapshot()
	t.Logf("counters %v", n)
	if n["sessions.crowded_out"] == 0 || n["faults"] != 0 || m.FreePages() != m.Pages() {
		t.Errorf("%d of %d pages are free, counters %v; want sessions crowded out and no faults", m.FreePages(), m.Pages(), n)
	}
}

// TestReusedIsTold: Open says how much it found, to its caller and to telemetry; with the cache off nothing.
func TestReusedIsTold(t *testing.T) {
	for name, bound := range map[string]int{"all": 0, "off": -1} {
		t.Run(name, func(t *testing.T) {
			var told []tandem.Attr
			events := tandem.Events{BeginFunc: func(ctx context.Context, stage tandem.Stage, _ []tandem.Attr) (context.Context,
				tandem.End) {
				return ctx, func(_ error, attrs ...tandem.Attr) {
					if stage == tandem.StageOpen {
						told = append(told, attrs...)
					}
				}
			}}
			r := newRig(t, rigOptions{verifier: verifier.Config{Events: events, PrefixCache: bound},
				drafter: drafter.Config{Events: events, PrefixCache: bound}})
			ctx := context.Background()
			for _, c := range []struct {
				tenant        string
				tokens, found int
			}{{"a", 90, 0}, {"a", 100, 89}, {"b", 100, 0}, {"a", 64, 63}, {"a", 1, 0}} {
				if bound < 0 {
					c.found = 0
				}
				s := &stream{rig: r, asked: asked{tenant: c.tenant, sampling: greedy}, id: tandem.NewSessionID(), text: counted(c.tokens)}
				told = nil
				v, err := r.v.Open(ctx, s.opening())
				if err != nil || v.Reused != c.found {
					t.Errorf("%+v: verifier says %+v, %v", c, v, err)
				}
				d, err := r.d.Open(ctx, s.opening())
				if err != nil || d.Reused != c.found {
					t.Errorf("%+v: drafter says %+v, %v", c, d, err)
				}
				if attr := (tandem.Attr{Key: "reused", Int: int64(c.found)}); !slices.Equal(told, []tandem.Attr{attr, attr}) {
					t.Errorf("%+v: telemetry was told %v", c, told)
				}
				_, _ = r.v.Close(ctx, s.id), r.d.Close(ctx, s.id)
			}
			if n := r.counters.Snapshot(); bound < 0 && n["prefix.hits"] != 0 ||
				bound == 0 && (n["prefix.hits"] != 4 || n["prefix.reused_tokens"] != 2*(89+63)) {
				t.Errorf("counters %v", n)
			}
		})
	}
}

func counted(n int) []tandem.Token {
	tokens := make([]tandem.Token, n)
	for i := range tokens {
		tokens[i] = tandem.Token(10 + i)
	}
	return tokens
}

// BenchmarkSecondTurn opens a chat's second turn, which begins with the first and adds 50 tokens, and compares the time with
// that of the first turn.
func BenchmarkSecondTurn(b *testing.B) {
	const context1, more = 950, 50
	m, err := engine.Open(targetFile, engine.Options{Device: testdevice.CPU(b, 0), MaxRows: 256, KVPages: engine.PagesFor(2, 1024, 256)})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	v, err := verifier.New(verifier.Config{Model: m, Counters: &tandem.Counters{}})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	defer v.Shutdown(ctx)
	var took [2]time.Duration
	for n := 0; b.Loop(); n++ {
		for turn, tokens := range []int{context1, context1 + more} {
			o := tandem.Opening{Session: tandem.SessionID(1 + n), Tenant: fmt.Sprint(n), Tokens: counted(tokens), Limit: 1024, MaxNodes: 16,
				Sampling: greedy}
			begun := time.Now()
			if _, err := v.Open(ctx, o); err != nil {
				b.Fatal(err)
			}
			took[turn] += time.Since(begun)
			if err := v.Close(ctx, o.Session); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(took[0].Milliseconds())/float64(b.N), "first-ms")
	b.ReportMetric(float64(took[1].Milliseconds())/float64(b.N), "second-ms")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "second/first")
}
