package test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
)

var drafts = []string{"all", "go", "py", "prose"}

// longSettings are temperature 0, and 0.8 with three seeds.
var longSettings = []setting{{0, 0}, {0.8, 1}, {0.8, 2}, {0.8, 3}}

// longPrompts returns the prompts that -filter lets through, or skips the test without -long.
func longPrompts(t *testing.T) []prompt {
	t.Helper()
	if !*long {
		t.Skip("long form: make long")
	}
	all := slices.DeleteFunc(prompts(t), func(p prompt) bool { return !strings.HasPrefix(p.ID, *filter) })
	if len(all) == 0 {
		t.Fatalf("no prompt begins with %q", *filter)
	}
	return all
}

// eightAtOnce calls f for all indices below n, eight at the same time.
func eightAtOnce(n int, f func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// keepKilling kills a process of the group at random moments, every mean on average, until the
// function that it returns is called.
func (g *group) keepKilling(role string, mean time.Duration) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(rand.N(2 * mean)):
			}
			for _, pid := range g.w.role(role) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

// TestLongSameText runs every prompt with every setting, tree and draft model, eight requests at once,
// against plain decoding one by one; again while drafter or verifier are killed all the time, and
// with each instruction set.
func TestLongSameText(t *testing.T) {
	all := longPrompts(t)
	type job struct {
		p prompt
		s setting
	}
	var jobs []job
	for _, p := range all {
		for _, s := range longSettings {
			jobs = append(jobs, job{p, s})
		}
	}
	want := make([]result, len(jobs))
	t.Run("plain", func(t *testing.T) {
		g := up(t, "--no-draft")
		for i, j := range jobs {
			want[i] = g.run(t, plain(j.s.request(j.p.Prompt, 128)))
		}
	})
	compare := func(t *testing.T, g *group, trees []client.Tree) {
		for _, tree := range trees {
			var mu sync.Mutex
			rounds, tokens := map[string]int{}, map[string]int{}
			eightAtOnce(len(jobs), func(i int) {
				j := jobs[i]
				got, err := g.try(t.Context(), withTree(j.s.request(j.p.Prompt, 128), tree))
				if err != nil || !slices.Equal(got.tokens, want[i].tokens) || got.text != want[i].text {
					t.Errorf("%s, %v, tree %v: %v: tokens\n%v, plain\n%v", j.p.ID, j.s, tree, err, got.tokens, want[i].tokens)
				}
				if j.s.temperature == 0 {
					mu.Lock()
					rounds[j.p.Domain] += got.finished.Statistics.Rounds
					tokens[j.p.Domain] += len(got.tokens)
					mu.Unlock()
				}
			})
			for domain, n := range rounds {
				if 5*tokens[domain] < 6*n {
					t.Errorf("tree %v, %s: %d tokens in %d rounds: hardly anything was speculated", tree, domain, tokens[domain], n)
				}
				t.Logf("tree %v, %s, temperature 0: %.2f tokens per round", tree, domain, float64(tokens[domain])/float64(n))
			}
		}
	}
	for _, d := range drafts {
		t.Run("draft "+d, func(t *testing.T) {
			g := up(t, "--draft", filepath.Join("..", "models", fmt.Sprintf("gopher-draft-%s-f16.gguf", d)))
			compare(t, g, trees)
		})
	}
	for _, role := range []string{"drafter", "verifier"} {
		t.Run(role+" killed", func(t *testing.T) {
			g := up(t)
			defer g.keepKilling(role, 4*time.Second)() // more often, and the pauses between restarts leave plain rounds alone
			compare(t, g, trees[:1])
		})
	}
	for _, isa := range []string{"generic", "avx2", "avx512"} {
		t.Run("isa "+isa, func(t *testing.T) {
			if !hasISA(t, newWorld(t), isa) {
				t.Skip("this machine has no ", isa)
			}
			compare(t, up(t, "--isa", isa), trees[:1])
		})
	}
}
