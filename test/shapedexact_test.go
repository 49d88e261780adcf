package test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem/client"
)

// shapes change the logits before a draw by the text so far, so that a verifier that has lost the text draws otherwise.
var shapes = []func(r *client.Request){
	func(r *client.Request) { r.FrequencyPenalty, r.PresencePenalty = new(0.7), new(0.5) },
	func(r *client.Request) { r.RepeatPenalty, r.RepeatLast = new(1.3), new(200) },
	func(r *client.Request) {
		r.PresencePenalty, r.LogitBias = new(-0.5), map[uint32]float32{13: 1.5, 293: 2, 4018: -1.5}
	},
	func(r *client.Request) { r.RepeatPenalty, r.FrequencyPenalty, r.MinP = new(1.1), new(0.3), new(0.02) },
	func(r *client.Request) {},
}

// shaped is a request, and what plain decoding says to it.
type shaped struct {
	name    string
	request client.Request
	want    spoken
}

// shapedJobs returns requests with penalties, a bias and log-probabilities, half of them sampled, with what plain decoding says.
func (g *group) shapedJobs(t testing.TB, tokens int) (jobs []shaped) {
	t.Helper()
	for i, p := range sample(t, 3)[:len(shapes)] {
		r := setting{[]float64{0.8, 0, 1.1}[i%3], uint64(i)}.request(p.Prompt, tokens)
		r.IgnoreEOS, r.Logprobs, r.TopLogprobs = true, true, 2
		shapes[i](&r)
		jobs = append(jobs, shaped{fmt.Sprintf("%s, shape %d", p.ID, i), withTree(r, trees[i%len(trees)]), g.told(t, plain(r))})
	}
	return jobs
}

// together runs all jobs at once and kills the verifier when each of them has said at least so many tokens, if kill is not 0. It
// returns how many sessions were opened again and how many drafted tokens were accepted.
func (g *group) together(t testing.TB, jobs []shaped, kill int) (reopened, accepted int) {
	t.Helper()
	victim := g.w.one(t, "verifier")
	testkit.Eventually(t, "verifier and drafter to serve", func() bool { return g.up(t, "verifier", 0) && g.up(t, "drafter", 0) })
	var far atomic.Int32
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, j := range jobs {
		wg.Go(func() {
			var there sync.Once
			got, err := g.heard(t.Context(), j.request, func(tokens int) {
				if kill > 0 && tokens >= kill {
					there.Do(func() {
						if int(far.Add(1)) == len(jobs) {
							_ = syscall.Kill(victim, syscall.SIGKILL)
						}
					})
				}
			})
			if err != nil || got.text != j.want.text || !slices.Equal(got.tokens, j.want.tokens) ||
				!reflect.DeepEqual(got.logprobs, j.want.logprobs) {
				t.Errorf("%s, verifier killed at %d: %v:\n got %v %q\nwant %v %q", j.name, kill, err, got.tokens, got.text, j.want.tokens,
					j.want.text)
			}
			mu.Lock()
			defer mu.Unlock()
			reopened, accepted = reopened+got.finished.Statistics.Reopened, accepted+got.finished.Statistics.Accepted
		})
	}
	wg.Wait()
	if kill > 0 {
		g.back(t, "verifier", victim)
	}
	return reopened, accepted
}

// TestShapedTextAndKilledVerifier: texts that depend on all that was said before, by penalties and a bias, sampled and not, are the
// same with speculation, with and without their verifier killed in the middle; with keys and values in F16 and in Q8_0.
func TestShapedTextAndKilledVerifier(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	kills := []int{40}
	if *long {
		r := newRandom(t)
		for range 30 {
			kills = append(kills, 1+r.IntN(150))
		}
	}
	said := map[string]spoken{}
	for _, kvType := range []string{"f16", "q8_0"} {
		t.Run(kvType, func(t *testing.T) {
			g := up(t, "--kv-type", kvType, "--no-measure")
			jobs := g.shapedJobs(t, 160)
			said[kvType] = jobs[len(jobs)-1].want
			if _, accepted := g.together(t, jobs, 0); accepted == 0 {
				t.Error("nothing that was drafted was accepted: did speculation run at all?")
			}
			for _, kill := range kills {
				reopened, accepted := g.together(t, jobs, kill)
				if t.Logf("killed at %d tokens: %d sessions opened again, %d tokens accepted", kill, reopened, accepted); reopened == 0 &&
					kill < 100 {
					t.Errorf("no session was opened again although the verifier was killed when each had said %d of 160 tokens", kill)
				}
			}
		})
	}
	if a, b := said["f16"], said["q8_0"]; !t.Failed() && reflect.DeepEqual(a.logprobs, b.logprobs) {
		t.Error("log-probabilities are the same with both types of keys and values: is --kv-type heeded?")
	}
}

// TestTextAcrossBlocks: texts that pass position 256, 512 …, where a block of attention ends, with trees on both sides of it are
// those of plain decoding.
func TestTextAcrossBlocks(t *testing.T) {
	t.Parallel()
	borders, before := []int{256, 512}, []int{3}
	if *long {
		borders, before = []int{256, 512, 768}, []int{1, 2, 3, 5, 8, 13}
	}
	for _, kvType := range []string{"f16", "q8_0"} {
		t.Run(kvType, func(t *testing.T) {
			g := up(t, "--kv-type", kvType, "--no-measure")
			r := rand.New(rand.NewPCG(3, 5))
			accepted := 0
			for _, border := range borders {
				for _, n := range before {
					for _, s := range []setting{{0, 0}, {0.8, 4}} {
						q := s.request("", 16)
						q.IgnoreEOS, q.Tokens = true, phrases(r, border-n)
						want := g.run(t, plain(q))
						for _, tree := range trees {
							got := g.run(t, withTree(q, tree))
							if !slices.Equal(got.tokens, want.tokens) {
								t.Errorf("%d tokens before %d, %v, tree %v: tokens\n%v, plain\n%v", n, border, s, tree, got.tokens,
									want.tokens)
							}
							accepted += got.finished.Statistics.Accepted
						}
					}
				}
			}
			if accepted == 0 {
				t.Error("nothing that was drafted was accepted: did speculation run at all?")
			}
		})
	}
}

// phrases returns n tokens that repeat themselves, as text does.
func phrases(r *rand.Rand, n int) (tokens []uint32) {
	phrase := make([]uint32, 24)
	for i := range phrase {
		phrase[i] = 300 + r.Uint32N(3000)
	}
	for len(tokens) < n {
		from := r.IntN(len(phrase) - 8)
		tokens = append(tokens, phrase[from:from+8]...)
	}
	return tokens[:n]
}
