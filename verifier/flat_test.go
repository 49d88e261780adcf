package verifier_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/verifier"
)

// TestMemoryIsFlat: 10,000 rounds of 32 sessions, which come and go, some in the middle of a round; pages,
// memory and goroutines are the same after the first and the last of them.
func TestMemoryIsFlat(t *testing.T) {
	const sessions = 32
	rounds := 10_000
	if testing.Short() {
		rounds = 1_500
	}
	m := openModel(t, verifier.SmallestModel(t), sessions)
	counters := &tandem.Counters{}
	var mu sync.Mutex
	waiting := map[tandem.SessionID]chan tandem.Verdict{}
	v, err := verifier.New(verifier.Config{Model: m, Counters: counters, MaxWaiting: 2 * sessions})
	if err != nil {
		t.Fatal(err)
	}
	ctx, running := context.Background(), new(sync.WaitGroup)
	defer running.Wait()
	defer v.Shutdown(ctx)
	subscribe(ctx, running, v, func(x tandem.Verdict) {
		mu.Lock()
		defer mu.Unlock()
		if c := waiting[x.Session]; c != nil {
			c <- x
		}
	})
	// talk is one session: a few rounds, then it closes, sometimes with a ticket on its way.
	talk := func(rng *rand.Rand, rounds int) {
		s := &stream{asked: asked{sampling: sampled}, id: tandem.NewSessionID(), text: []tandem.Token{1, tandem.Token(rng.IntN(4096))}}
		verdicts := make(chan tandem.Verdict, 4)
		mu.Lock()
		waiting[s.id] = verdicts
		mu.Unlock()
		defer func() {
			if err := v.Close(ctx, s.id); err != nil {
				t.Error(err)
			}
			mu.Lock()
			delete(waiting, s.id)
			mu.Unlock()
		}()
		if _, err := v.Open(ctx, s.opening()); err != nil {
			t.Error(err)
			return
		}
		for range rounds {
			tick := s.ticket()
			tick.Drafter = "random"
			for i := range int32(rng.IntN(4)) { // a chain
				tick.Tree.Tokens, tick.Tree.Parents = append(tick.Tree.Tokens, tandem.Token(rng.IntN(4096))), append(tick.Tree.Parents, i)
			}
			if err := v.Submit(ctx, tick); err != nil {
				t.Error(err)
				return
			}
			x := <-verdicts
			if x.Kind != tandem.OK {
				t.Errorf("verdict %+v", x)
				return
			}
			s.text = append(s.text, x.Tokens...)
		}
		if rng.IntN(2) == 0 {
			_ = v.Submit(ctx, s.ticket())
		}
	}
	all := func(rounds int) (heap uint64, goroutines int) {
		var group sync.WaitGroup
		for i := range sessions {
			group.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), uint64(rounds)))
				for left := rounds / sessions; left > 0; left -= 40 {
					talk(rng, min(left, 40))
				}
			})
		}
		group.Wait()
		if err := v.CloseOwned(ctx, 0); err != nil { // after all that was submitted
			t.Error(err)
		}
		if free := m.FreePages(); free != m.Pages() {
			t.Errorf("%d of %d pages are free with no session open", free, m.Pages())
		}
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc, runtime.NumGoroutine()
	}
	heap, goroutines := all(rounds / 10)
	after, now := all(rounds - rounds/10)
	t.Logf("%d rounds: heap %d KiB, then %d KiB; %d goroutines, then %d; counters %v", rounds, heap>>10, after>>10, goroutines, now,
		counters.Snapshot())
	if after > heap+256<<10 {
		t.Errorf("heap went from %d to %d KiB", heap>>10, after>>10)
	}
	// One that has told its group that it is done may still be counted.
	testkit.Eventually(t, "more goroutines than before", func() bool { return runtime.NumGoroutine() <= goroutines })
	if n := counters.Snapshot(); n["verdicts"] < int64(rounds-2*sessions) || n["faults"] != 0 {
		t.Errorf("counters %v", n)
	}
}
