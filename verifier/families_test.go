package verifier_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/verifier"
)

const (
	depth2026, width2026 = 7, 10 // of trees of maxNodes nodes
	firstTurn, lastTurn  = 20, 8 // tokens
)

// halfRight returns trees of maxNodes nodes for a text that is known: at each depth the right token is among the children half of the time.
func halfRight(r *rand.Rand, text []tandem.Token, vocab int) func(*stream) tandem.Tree {
	return func(s *stream) tandem.Tree {
		t := tandem.Root(s.text[len(s.text)-1])
		depth, children, tried := []int{0}, []map[tandem.Token]bool{{}}, []bool{false}
		right := 0 // the last node of the right path
		for len(t.Tokens) < maxNodes {
			p := r.IntN(len(t.Tokens))
			if r.IntN(2) == 0 {
				p = right
			}
			x, at := tandem.Token(r.IntN(vocab)), len(s.text)+depth[p]
			try := p == right && !tried[p]
			if tried[p] = tried[p] || try; try && at < len(text) && r.IntN(2) == 0 {
				x = text[at]
			}
			if depth[p] == depth2026 || len(children[p]) == width2026 || children[p][x] {
				continue
			}
			if children[p][x] = true; p == right && at < len(text) && x == text[at] {
				right = len(t.Tokens)
			}
			t.Tokens, t.Parents = append(t.Tokens, x), append(t.Parents, int32(p))
			depth, children, tried = append(depth, depth[p]+1), append(children, map[tandem.Token]bool{}), append(tried, false)
		}
		return t
	}
}

// TestFamiliesSpeculateExactly: in every architecture, in the golden models and in random ones of other shapes, the texts of eight requests
// at a time, greedy and drawn, with trees that are right half of the time, are those of plain decoding; also after their verifier has died
// and another one goes on, in a second turn whose beginning is in memory, and with keys and values in Q8_0.
func TestFamiliesSpeculateExactly(t *testing.T) {
	dir := t.TempDir()
	for i, f := range family.All(2) {
		t.Run(f.Name, func(t *testing.T) {
			path := f.Write(t, dir)
			info, err := engine.Inspect(path)
			if err != nil {
				t.Fatal(err)
			}
			kvType := "f16"
			if i%2 == 1 && info.Config.HeadDim%32 == 0 {
				kvType = "q8_0"
			}
			speculateExactly(t, path, kvType)
		})
	}
}

func speculateExactly(t *testing.T, path, kvType string) {
	open := func(sessions int) *engine.Model {
		m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 160, KVType: kvType,
			KVPages: engine.PagesFor(sessions, limit, maxNodes)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	twin := plain{open(1)}
	vocab := twin.m.Config().Vocab
	var jobs [8]asked
	var first, second [len(jobs)][]tandem.Token // texts of both turns
	for i := range jobs {
		r := rand.New(rand.NewPCG(uint64(i), 1))
		a := asked{tenant: "one", sampling: greedy, tokens: firstTurn}
		if i%2 == 1 {
			a.sampling = tandem.Sampling{Temperature: 0.8, TopP: 0.95, Seed: uint64(i)}
		}
		for range 2 + 11*i {
			a.prompt = append(a.prompt, tandem.Token(3+r.IntN(vocab-3)))
		}
		first[i] = twin.generate(t, a)
		jobs[i] = a
		a.prompt, a.tokens = append(slices.Clone(first[i]), a.prompt[:2]...), lastTurn
		second[i] = twin.generate(t, a)
	}
	turn := func(r *rig, what string, wants [len(jobs)][]tandem.Token, change func(i int, a *asked)) (accepted, rounds, reused int) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for i := range jobs {
			a := jobs[i]
			change(i, &a)
			a.tree = halfRight(rand.New(rand.NewPCG(uint64(i), 2)), wants[i], vocab)
			all.Go(func() {
				s, err := r.generate(a)
				if want := wants[i][:len(a.prompt)+a.tokens]; err != nil || !slices.Equal(s.text, want) {
					t.Errorf("%s, request %d, temperature %g: %v\n got %v\nwant %v", what, i, a.sampling.Temperature, err, s.text, want)
				}
				mu.Lock()
				defer mu.Unlock()
				accepted, rounds, reused = accepted+s.accepted, rounds+s.rounds, reused+s.reused
			})
		}
		all.Wait()
		return accepted, rounds, reused
	}
	half := func(i int) int { return 5 + i }
	began := false
	t.Run("dies", func(t *testing.T) { // its verifier is gone at the end
		r := newRig(t, rigOptions{alone: true, verifier: verifier.Config{Model: open(len(jobs))}})
		turn(r, "at first", first, func(i int, a *asked) { a.tokens = half(i) })
		began = true
	})
	if !began {
		return
	}
	r := newRig(t, rigOptions{alone: true, verifier: verifier.Config{Model: open(2 * len(jobs))}})
	accepted, rounds, _ := turn(r, "by another verifier", first, func(i int, a *asked) {
		a.prompt, a.tokens = first[i][:len(a.prompt)+half(i)], a.tokens-half(i)
	})
	more, again, reused := turn(r, "second turn", second, func(i int, a *asked) {
		a.prompt, a.tokens = second[i][:len(first[i])+2], lastTurn
	})
	told := fmt.Sprintf("%s, %s: %d of the second turn's tokens were in memory; %d accepted in %d rounds", t.Name(), kvType, reused,
		accepted+more, rounds+again)
	if t.Log(told); accepted+more < (rounds+again)/4 || reused == 0 {
		t.Error("too few: ", told)
	}
}
